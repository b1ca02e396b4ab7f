//! Points to come back to, what differs between them, forks, and files that carry a sandbox elsewhere.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use belljar::SpecError;
use belljar::living::{Committed, Difference, ForkReport, Forked};
use belljar::sandbox::{ChangeKind, SandboxInfo, SnapshotInfo};
use belljar::units::show_bytes;
use belljar_server::wire;
use http_body_util::BodyExt;
use hyper::Method;
use serde::Serialize;

use super::{ALL, Called, at, say};
use crate::args::sandbox::{
    CheckFork, Commit, Diff, Export, Fork, Import, Point, Promote, Snapshot, Snapshots,
    WorkspaceCommand,
};
use crate::remote::sandboxes::{contents, empty, lost};
use crate::remote::{Failure, escaped};
use crate::render;

pub(super) async fn take(called: &Called, args: &Snapshot) -> Result<u8, Failure> {
    let asked = serde_json::json!({ "tag": args.tag });
    let taken: SnapshotInfo = called.way.post(&at(&args.name, "/snapshots"), &asked).await?;
    Ok(if called.json { render::json(&taken) } else { render::line(&taken.tag) })
}

#[derive(Serialize)]
struct Points {
    snapshots: Vec<SnapshotInfo>,
}

pub(super) async fn list(called: &Called, args: &Snapshots) -> Result<u8, Failure> {
    if let Some(tag) = &args.remove {
        let path = at(&args.name, &format!("/snapshots/{}", escaped(tag)));
        called.way.tell(Method::DELETE, &path, empty()).await?;
        return Ok(0);
    }
    let path = at(&args.name, "/snapshots?");
    let points = Points { snapshots: called.way.all(&path, "snapshots").await? };
    if called.json {
        return Ok(render::json(&points));
    }
    let mut rows = vec![["TAG", "CREATED", "FILES", "SIZE", "MADE"].map(String::from)];
    rows.extend(points.snapshots.iter().map(|one| {
        let made = if one.automatic { "before an exec" } else { "by name" };
        [
            one.tag.clone(),
            one.created_at.clone(),
            one.files.to_string(),
            show_bytes(one.bytes),
            made.to_owned(),
        ]
    }));
    Ok(render::table(&rows))
}

pub(super) async fn rollback(called: &Called, args: &Point) -> Result<u8, Failure> {
    let asked = serde_json::json!({ "tag": args.tag });
    let info: SandboxInfo = called.way.post(&at(&args.name, "/rollback"), &asked).await?;
    Ok(say(called, &info))
}

pub(super) async fn diff(called: &Called, args: &Diff) -> Result<u8, Failure> {
    let words = [("from", &args.from), ("to", &args.to)];
    let words = words.iter().filter_map(|(name, value)| {
        value.as_ref().map(|value| format!("{name}={}", escaped(value)))
    });
    let question = words.collect::<Vec<_>>().join("&");
    let found = called.way.get(&at(&args.name, &format!("/diff?{question}"))).await?;
    Ok(show(called, &found))
}

fn show(called: &Called, found: &Difference) -> u8 {
    if called.json {
        return render::json(found);
    }
    for change in &found.changes {
        let mark = match change.kind {
            ChangeKind::Added => "A",
            ChangeKind::Modified => "M",
            ChangeKind::Metadata => "m",
            ChangeKind::Removed => "D",
        };
        let printed = render::line(&format!("{mark} {}", render::visible(&change.path)));
        if printed != 0 {
            return printed;
        }
    }
    if found.truncated {
        render::words("and more: the list was cut");
    }
    0
}

pub(super) async fn fork(called: &Called, args: &Fork) -> Result<u8, Failure> {
    let asked =
        serde_json::json!({ "count": args.count, "as": args.new_name, "keep_env": args.keep_env });
    let forks: Forked = called.way.post(&at(&args.name, "/fork"), &asked).await?;
    if called.json {
        return Ok(render::json(&forks));
    }
    for name in &forks.withheld {
        render::words(&format!("not handed on: {name}, a secret. hint: --keep-env {name}"));
    }
    Ok(forks.sandboxes.iter().map(|one| render::line(&one.name)).max().unwrap_or(0))
}

/// 0 when they have nothing in common, 1 when they have.
pub(super) async fn check_fork(called: &Called, args: &CheckFork) -> Result<u8, Failure> {
    let asked = serde_json::json!({ "forks": args.forks });
    let report: ForkReport = called.way.post(&at(&args.name, "/check_fork"), &asked).await?;
    let code = u8::from(!report.ok);
    if called.json {
        return Ok(render::json(&report).max(code));
    }
    let mut rows = Vec::new();
    for check in &report.checks {
        let word = if check.ok { "ok" } else { "SHARED" };
        rows.push([word.to_owned(), check.name.clone(), render::visible(&check.found)]);
    }
    let printed = render::table(&rows);
    for check in report.checks.iter().filter(|check| !check.ok) {
        let fix = check.fix.as_deref().unwrap_or_default();
        render::words(&format!("{}: {fix}", check.name));
    }
    Ok(printed.max(code))
}

pub(super) async fn promote(called: &Called, args: &Promote) -> Result<u8, Failure> {
    let asked = serde_json::json!({ "as": args.name });
    let info: SandboxInfo = called.way.post(&at(&args.fork, "/promote"), &asked).await?;
    Ok(say(called, &info))
}

pub(super) async fn export(called: &Called, args: &Export) -> Result<u8, Failure> {
    let tag = args.tag.as_ref().map(|tag| format!("?tag={}", escaped(tag))).unwrap_or_default();
    let path = at(&args.name, &format!("/export{tag}"));
    let response = called.way.send(Method::GET, &path, wire::JSON, empty()).await?;
    let mut file = target(&args.file)?;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| lost(std::io::Error::other(error)))?;
        if let Some(data) = frame.data_ref() {
            file.write_all(data).map_err(|error| wrong(&args.file, &error))?;
        }
    }
    file.flush().map_err(|error| wrong(&args.file, &error))?;
    Ok(0)
}

fn target(path: &Path) -> Result<Box<dyn Write>, SpecError> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let made = File::options().write(true).create_new(true).open(path);
    Ok(Box::new(made.map_err(|error| wrong(path, &error))?))
}

fn wrong(path: &Path, error: &std::io::Error) -> SpecError {
    SpecError::new("FILE", format!("{}: {error}", path.display()))
}

pub(super) async fn import(called: &Called, args: &Import) -> Result<u8, Failure> {
    let body = if args.file == Path::new("-") {
        contents(std::io::stdin())
    } else {
        contents(File::open(&args.file).map_err(|error| wrong(&args.file, &error))?)
    };
    let name = args.name.as_ref().map(|name| format!("?name={}", escaped(name)));
    let path = format!("{ALL}/import{}", name.unwrap_or_default());
    let response = called.way.send(Method::POST, &path, wire::JSON, body).await?;
    let whole = response.into_body().collect().await;
    let whole = whole.map_err(|error| lost(std::io::Error::other(error)))?.to_bytes();
    let info: SandboxInfo = serde_json::from_slice(&whole).map_err(|error| lost(error.into()))?;
    Ok(if called.json { render::json(&info) } else { render::line(&info.name) })
}

pub(super) async fn workspace(called: &Called, command: WorkspaceCommand) -> Result<u8, Failure> {
    match command {
        WorkspaceCommand::Changes(one) => {
            let found = called.way.get(&at(&one.name, "/workspace/changes")).await?;
            Ok(show(called, &found))
        }
        WorkspaceCommand::Commit(one) => commit(called, &one).await,
        WorkspaceCommand::Discard(one) => {
            let path = at(&one.name, "/workspace/discard");
            let info: SandboxInfo = called.way.post(&path, &serde_json::json!({})).await?;
            Ok(say(called, &info))
        }
    }
}

/// The exit code is 1 when something was left that was wanted.
async fn commit(called: &Called, args: &Commit) -> Result<u8, Failure> {
    let asked = serde_json::json!({ "paths": args.paths, "force": args.force });
    let done: Committed = called.way.post(&at(&args.name, "/workspace/commit"), &asked).await?;
    if called.json {
        render::json(&done);
    } else {
        for path in &done.written {
            render::line(&render::visible(path));
        }
        for left in &done.left {
            render::words(&format!("left: {} ({})", left.path, left.reason));
        }
    }
    Ok(u8::from(!done.left.is_empty()))
}
