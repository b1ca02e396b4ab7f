//! `belljar net explain`: what a sandbox, or a run, may reach, what it reached, and what it tried.

use belljar::egress::inspected;
use belljar::sandbox::NetworkInfo;
use belljar::{EgressEntry, Event, SecretMode, SecretRequest};

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
        let secrets = run.start.as_ref().map(|start| start["request"]["secrets"].clone());
        let secrets: Option<Vec<SecretRequest>> =
            secrets.and_then(|secrets| serde_json::from_value(secrets).ok());
        let is_put_in = |one: &SecretRequest| one.mode() == SecretMode::Placeholder;
        let secrets = secrets.into_iter().flatten().filter(is_put_in).collect();
        let rules = run.start.as_ref().map(|start| start["spec"]["egress"].clone());
        let rules = rules.and_then(|rules| serde_json::from_value::<Vec<_>>(rules).ok());
        let inspected = inspected(&rules.unwrap_or_default());
        return Ok(NetworkInfo { egress, reached: outcome.reached, refused, secrets, inspected });
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
    if !info.inspected.is_empty() {
        lines.push("is looked into, inside TLS that is ended on the way, at".to_owned());
    }
    lines.extend(info.inspected.iter().map(|host| format!("  {host}")));
    if !info.secrets.is_empty() {
        lines.push("has placeholders, which become secrets on their way to".to_owned());
    }
    lines.extend(info.secrets.iter().map(|one| {
        let but = if one.exempt.is_empty() { "" } else { ", but not " };
        format!("  {}: {}{but}{}", one.name, one.hosts.join(", "), one.exempt.join(", "))
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
