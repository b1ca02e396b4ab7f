//! `belljar sandbox`: places that stay. Every verb is one request to the routes of a server, or to the same routes
//! in this process.

mod code;
mod execs;
mod files;
mod once;
mod points;
mod terminal;

use belljar::sandbox::{
    EgressChange, NetworkInfo, SandboxInfo, SandboxRequest, SandboxState, SandboxWorkspace,
    WorkspaceMode,
};
use belljar::units::show_bytes;
use belljar::{EgressEntry, SpecError};
use hyper::Method;
use serde::Serialize;

use super::run::{limits, pairs};
use crate::args::net::NetExplain;
use crate::args::sandbox::{Create, Egress, List, Remove, Sandbox, SandboxCommand, Stop};
use crate::args::{Confine, LimitArgs};
use crate::remote::sandboxes::{Way, empty};
use crate::remote::{Failure, escaped};
use crate::render;

/// Where the sandboxes are.
const ALL: &str = belljar_server::wire::SANDBOXES;

/// How the command was called, for all of its verbs.
#[derive(Debug)]
struct Called {
    way: Way,
    json: bool,
}

pub(crate) async fn sandbox(args: Sandbox) -> u8 {
    let json = args.json;
    match carry_out(args).await {
        Ok(code) => code,
        Err(failure) => {
            if json {
                render::json(&failure.json());
            } else {
                render::trouble(&failure.text(), 0);
            }
            failure.code()
        }
    }
}

async fn carry_out(args: Sandbox) -> Result<u8, Failure> {
    let way = Way::find(args.server.as_deref(), args.state.as_deref()).await?;
    let called = Called { way, json: args.json };
    let done = dispatch(&called, args.command).await;
    called.way.wind_up().await;
    done
}

async fn dispatch(called: &Called, command: SandboxCommand) -> Result<u8, Failure> {
    match command {
        SandboxCommand::Create(one) => create(called, *one).await,
        SandboxCommand::List(one) => list(called, &one).await,
        SandboxCommand::Info(one) => info(called, &one.name).await,
        SandboxCommand::Start(one) => verb(called, &one.name, "start").await,
        SandboxCommand::Stop(one) => stop(called, &one).await,
        SandboxCommand::Kill(one) => verb(called, &one.name, "kill").await,
        SandboxCommand::Egress(one) => set_egress(called, one).await,
        SandboxCommand::Pause(one) => verb(called, &one.name, "pause").await,
        SandboxCommand::Resume(one) => verb(called, &one.name, "resume").await,
        SandboxCommand::Rm(one) => remove(called, &one).await,
        SandboxCommand::Exec(one) => execs::exec(called, one).await,
        SandboxCommand::Shell(one) => execs::shell(called, one).await,
        SandboxCommand::Execs(one) => execs::list(called, &one.name).await,
        SandboxCommand::Attach(one) => execs::attach(called, &one).await,
        SandboxCommand::Signal(one) => execs::signal(called, &one).await,
        SandboxCommand::Logs(one) => execs::logs(called, &one).await,
        SandboxCommand::RunPython(one) => once::python(called, *one).await,
        SandboxCommand::RunShell(one) => once::shell(called, *one).await,
        SandboxCommand::CheckFork(one) => points::check_fork(called, &one).await,
        SandboxCommand::Code(one) => code::code(called, one).await,
        SandboxCommand::Contexts(one) => code::contexts(called, &one).await,
        SandboxCommand::Cp(one) => files::copy(called, &one).await,
        SandboxCommand::Ls(one) => files::list(called, &one).await,
        SandboxCommand::Watch(one) => files::watch(called, &one).await,
        SandboxCommand::Undo(one) => verb(called, &one.name, "undo").await,
        SandboxCommand::Redo(one) => verb(called, &one.name, "redo").await,
        SandboxCommand::Snapshot(one) => points::take(called, &one).await,
        SandboxCommand::Snapshots(one) => points::list(called, &one).await,
        SandboxCommand::Rollback(one) => points::rollback(called, &one).await,
        SandboxCommand::Diff(one) => points::diff(called, &one).await,
        SandboxCommand::Fork(one) => points::fork(called, &one).await,
        SandboxCommand::Promote(one) => points::promote(called, &one).await,
        SandboxCommand::Export(one) => points::export(called, &one).await,
        SandboxCommand::Import(one) => points::import(called, &one).await,
        SandboxCommand::Workspace(one) => points::workspace(called, one).await,
    }
}

/// The path of a sandbox, and of something of it.
fn at(name: &str, rest: &str) -> String {
    format!("{ALL}/{}{rest}", escaped(name))
}

async fn create(called: &Called, args: Create) -> Result<u8, Failure> {
    let workspace = workspace(args.workspace.as_deref(), args.volume)?;
    let request = SandboxRequest {
        name: args.name,
        image: args.image,
        env: pairs("env", &args.env)?,
        secrets: super::secret::asked(&args.secrets)?,
        labels: pairs("label", &args.labels)?,
        workspace,
        idle_ms: args.idle,
        ttl_ms: args.ttl,
        egress: args.egress.into_iter().map(EgressEntry::Text).collect(),
        undo: args.undo,
        write_paths: args.write_paths,
        ..confined(args.confine, &args.limits)?
    };
    let info: SandboxInfo = called.way.post(ALL, &request).await?;
    Ok(if called.json { render::json(&info) } else { render::line(&info.name) })
}

/// What is at /workspace.
fn workspace(
    directory: Option<&str>,
    volume: Option<String>,
) -> Result<Option<SandboxWorkspace>, SpecError> {
    let mode = WorkspaceMode::ReadWrite;
    let volume = volume.map(|name| SandboxWorkspace { path: None, volume: Some(name), mode });
    directory.map_or(Ok(volume), |text| host_workspace(text).map(Some))
}

/// A sandbox with these barriers and limits.
fn confined(confine: Confine, limit_args: &LimitArgs) -> Result<SandboxRequest, SpecError> {
    if confine.policy.is_some() {
        return Err(SpecError::new("policy", "is for runs: give the sandbox its limits"));
    }
    if !confine.block_path.is_empty() {
        return Err(SpecError::new("block-path", "is for runs: remove the path inside"));
    }
    Ok(SandboxRequest {
        level: confine.level,
        limits: limits(limit_args),
        allow_missing: confine.allow_missing,
        allow_syscalls: confine.allow_syscall,
        deny_syscalls: confine.deny_syscall,
        ..SandboxRequest::default()
    })
}

/// `DIR`, `DIR:rw` or `DIR:cow`. Relative to where we are: the server may be elsewhere.
fn host_workspace(text: &str) -> Result<SandboxWorkspace, SpecError> {
    let modes = [("rw", WorkspaceMode::ReadWrite), ("cow", WorkspaceMode::CopyOnWrite)];
    let found = text.rsplit_once(':').and_then(|(path, word)| {
        let mode = modes.iter().find(|(name, _)| *name == word);
        mode.map(|(_, mode)| (path, *mode))
    });
    let (path, mode) = found.unwrap_or((text, WorkspaceMode::ReadOnly));
    let path = std::path::absolute(path)
        .map_err(|error| SpecError::new("workspace", format!("{path}: {error}")))?;
    Ok(SandboxWorkspace { path: Some(path), volume: None, mode })
}

#[derive(Serialize)]
struct All {
    sandboxes: Vec<SandboxInfo>,
}

async fn list(called: &Called, args: &List) -> Result<u8, Failure> {
    let state = args.in_state.as_deref().map(|state| format!("state={}", escaped(state)));
    let mut words: Vec<String> = state.into_iter().collect();
    let (first, others) = match args.labels.split_first() {
        Some((first, others)) => (Some(first), others),
        None => (None, &[][..]),
    };
    words.extend(first.map(|label| format!("label={}", escaped(label))));
    let path = format!("{ALL}?{}", words.join("&"));
    let mut all = All { sandboxes: called.way.all(&path, "sandboxes").await? };
    for (name, value) in pairs("label", others)? {
        all.sandboxes.retain(|one| one.labels.get(&name) == Some(&value));
    }
    if called.json {
        return Ok(render::json(&all));
    }
    let mut rows = vec![["NAME", "STATE", "LEVEL", "MEMORY", "CREATED", "ERROR"].map(String::from)];
    rows.extend(all.sandboxes.iter().map(row));
    Ok(render::table(&rows))
}

fn row(one: &SandboxInfo) -> [String; 6] {
    let memory = one.usage.and_then(|usage| usage.memory_bytes);
    [
        one.name.clone(),
        state_word(one.state).to_owned(),
        one.level.to_string(),
        memory.map_or_else(|| "-".to_owned(), show_bytes),
        one.created_at.clone(),
        one.error.clone().unwrap_or_default(),
    ]
}

const fn state_word(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Created => "created",
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        SandboxState::Stopped => "stopped",
        SandboxState::Failed => "failed",
        SandboxState::Removing => "removing",
    }
}

async fn info(called: &Called, name: &str) -> Result<u8, Failure> {
    let info: SandboxInfo = called.way.get(&at(name, "")).await?;
    if called.json {
        return Ok(render::json(&info));
    }
    let mut lines = vec![
        format!("name      {}", info.name),
        format!("id        {}", info.id),
        format!("state     {}", state_word(info.state)),
        format!("owner     {}", info.owner),
        format!("level     {}", info.level),
        format!("image     {}", info.image),
        format!("created   {}", info.created_at),
    ];
    lines.extend(info.expires_at.as_ref().map(|time| format!("expires   {time}")));
    lines.extend(info.parent.as_ref().map(|parent| format!("fork of   {parent}")));
    lines.extend(info.labels.iter().map(|(name, value)| format!("label     {name}={value}")));
    lines.extend(info.error.as_ref().map(|error| format!("error     {error}")));
    if let Some(usage) = &info.usage {
        let bytes = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), show_bytes);
        let count =
            |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |one| one.to_string());
        lines.push(format!("memory    {}", bytes(usage.memory_bytes)));
        lines.push(format!("disk      {}, {} files", bytes(usage.disk_bytes), count(usage.inodes)));
        lines.push(format!("processes {}, {} execs", count(usage.processes), usage.execs));
        lines.push(format!("cpu       {} ms", count(usage.cpu_ms)));
    }
    if let Some(receipt) = &info.receipt {
        let verified = receipt.layers.iter().filter(|layer| layer.verified).count();
        lines.push(format!("layers    {verified} verified (--json lists them)"));
    }
    Ok(render::line(&lines.join("\n")))
}

/// A verb that answers with what the sandbox is then.
async fn verb(called: &Called, name: &str, word: &str) -> Result<u8, Failure> {
    let info: SandboxInfo =
        called.way.post(&at(name, &format!("/{word}")), &serde_json::json!({})).await?;
    Ok(say(called, &info))
}

fn say(called: &Called, info: &SandboxInfo) -> u8 {
    if called.json {
        return render::json(info);
    }
    render::words(&format!("{} is {}", info.name, state_word(info.state)));
    0
}

async fn stop(called: &Called, args: &Stop) -> Result<u8, Failure> {
    let asked = serde_json::json!({ "grace_ms": args.grace });
    let info: SandboxInfo = called.way.post(&at(&args.name, "/stop"), &asked).await?;
    Ok(say(called, &info))
}

async fn set_egress(called: &Called, args: Egress) -> Result<u8, Failure> {
    let change = EgressChange { egress: args.hosts.into_iter().map(EgressEntry::Text).collect() };
    let info: SandboxInfo = called.way.post(&at(&args.name, "/egress"), &change).await?;
    Ok(say(called, &info))
}

/// What `belljar net explain` tells of a sandbox.
pub(super) async fn network(args: &NetExplain) -> Result<NetworkInfo, Failure> {
    let way = Way::find(args.server.as_deref(), args.state.as_deref()).await?;
    way.get(&at(&args.name, "/network")).await
}

async fn remove(called: &Called, args: &Remove) -> Result<u8, Failure> {
    let (mut removed, mut failed) = (Vec::new(), None);
    for name in &args.names {
        let path = at(name, if args.force { "?force=true" } else { "" });
        match called.way.tell(Method::DELETE, &path, empty()).await {
            Ok(()) if called.json => removed.push(name),
            Ok(()) => render::words(&format!("{name} is gone")),
            // The others go all the same; of several reasons the last is told in the end.
            Err(failure) => {
                if let Some(before) = failed.replace(failure).filter(|_| !called.json) {
                    render::trouble(&Failure::text(&before), 0);
                }
            }
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None if called.json => Ok(render::json(&serde_json::json!({ "removed": removed }))),
        None => Ok(0),
    }
}
