//! `belljar net explain`: what a sandbox, or a run, may reach, what it reached, and what it tried.

use belljar::sandbox::NetworkInfo;
use belljar::{EgressEntry, Event};

use crate::args::net::{Net, NetExplain};
use crate::remote::Failure;
use crate::render;

pub(crate) async fn net(command: Net) -> u8 {
    let Net::Explain(args) = command;
    match explain(&args).await {
        Ok(info) if args.json => render::json(&info),
        Ok(info) => render::line(&text(&args.name, &info)),
        Err(failure) => {
            render::trouble(&failure.text(), 0);
            failure.code()
        }
    }
}

/// A sandbox of that name, or a run of that id in the audit trail.
async fn explain(args: &NetExplain) -> Result<NetworkInfo, Failure> {
    if let Ok(run) = super::audit::find(args.state.as_deref(), &args.name)
        && let Some(outcome) = run.outcome()
    {
        let asked = run.start.as_ref().map(|start| start["request"]["egress"].clone());
        let egress = asked.and_then(|asked| serde_json::from_value(asked).ok()).unwrap_or_default();
        let is_refusal =
            |event: &Event| event.rule.starts_with("egress/") || event.rule == "net_namespace";
        let refused = outcome.events.into_iter().filter(is_refusal).collect();
        return Ok(NetworkInfo { egress, reached: outcome.reached, refused });
    }
    super::sandbox::network(args).await
}

fn text(name: &str, info: &NetworkInfo) -> String {
    let mut lines = vec![if info.egress.is_empty() {
        format!("{name} may reach nothing")
    } else {
        format!("{name} may reach")
    }];
    lines.extend(info.egress.iter().map(|entry| match entry {
        EgressEntry::Text(text) => format!("  {text}"),
        EgressEntry::Rule(rule) => format!("  {}", render::compact(rule).unwrap_or_default()),
    }));
    if !info.reached.is_empty() {
        lines.push("reached".to_owned());
    }
    lines.extend(info.reached.iter().map(|line| {
        format!(
            "  {}:{}  {} connections, {} bytes sent, {} received",
            line.host, line.port, line.connections, line.sent_bytes, line.received_bytes
        )
    }));
    if !info.refused.is_empty() {
        lines.push("was refused".to_owned());
    }
    for event in &info.refused {
        lines.push(format!("  {} ({}, {} times)", event.detail, event.rule, event.count));
        lines.push(format!("    to allow it: {}", event.fix));
    }
    lines.join("\n")
}
