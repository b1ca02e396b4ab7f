//! Points to come back to, forks, and what leaves as one file.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use belljar::living::{Committed, Difference, ForkReport, Forked, Sandboxes};
use belljar::sandbox::{SandboxInfo, SandboxRequest, SnapshotInfo};
use hyper::StatusCode;
use rustix::fs::{Mode, OFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::MutexGuard;

use super::{Answer, Beginning, Paged, READ, STATE, WRITE, Word, at, question, told};
use crate::api::{Api, look, start};
use crate::http::{Mine, Server, Who, body, pipe};
use crate::policy::quota;
use crate::principal::Principal;
use crate::problem::Problem;
use crate::wire;

/// Forks that are made where there are none to compare with.
const MADE_TO_COMPARE: u32 = 2;
/// What an archive has beside the contents of files.
const MOST_MANIFEST_BYTES: u64 = 256 << 20;
/// The form of an exported sandbox.
const TAR: &str = "application/x-tar";

pub(super) fn enter(api: &mut Api) {
    let all = look("snapshot_list", READ, "The points of a sandbox");
    api.get(&at("/snapshots"), list, all.asks::<Paged>().gives::<Points>(200));
    let one = start("snapshot_take", WRITE, "Keep a point to come back to");
    let one = one.may_take::<Taking>().gives::<SnapshotInfo>(201).refuses(STATE);
    api.post(&at("/snapshots"), take, one);
    let gone = look("snapshot_remove", WRITE, "Let go of a point");
    api.delete(&at("/snapshots/{tag}"), forget, gone.gives_nothing().refuses(STATE));
    // Once for each key: to go back twice is something else than to go back.
    let now = |id, summary| {
        let now = start(id, WRITE, summary);
        now.gives::<SandboxInfo>(200).refuses(STATE)
    };
    let back = now("rollback", "Make the files what they were at a point").takes::<Point>();
    api.post(&at("/rollback"), rollback, back);
    api.post(&at("/undo"), undo, now("undo", "Go back by one program"));
    api.post(&at("/redo"), redo, now("redo", "Go forward by one program"));
    let told = look("diff", READ, "What differs between two points").asks::<Between>();
    api.get(&at("/diff"), diff, told.gives::<Difference>(200).refuses(STATE));
    let forked = start("fork", WRITE, "Make others with the same files");
    let forked = forked.may_take::<Forking>().gives::<Forked>(201).refuses(STATE);
    api.post(&at("/fork"), fork, forked);
    let checked = look("check_fork", WRITE, "Show that forks are apart").heavy();
    let checked = checked.may_take::<Checking>().gives::<ForkReport>(200).refuses(STATE);
    api.post(&at("/check_fork"), check_fork, checked);
    let promoted = now("promote", "Let a fork take another's name").takes::<Promotion>();
    api.post(&at("/promote"), promote, promoted);
    let file =
        look("export", READ, "The files of a point as one portable file").asks::<Exporting>();
    api.get(&at("/export"), export, file.gives_as(200, TAR).refuses(STATE));
    let told = look("workspace_changes", READ, "What a copy-on-write workspace has changed");
    api.get(&at("/workspace/changes"), changes, told.gives::<Difference>(200).refuses(STATE));
    let done = look("workspace_commit", WRITE, "Write changes to the host's directory").heavy();
    let done = done.may_take::<Commit>().gives::<Committed>(200).refuses(STATE);
    api.post(&at("/workspace/commit"), commit, done);
    let done = now("workspace_discard", "Forget the changes");
    api.post(&at("/workspace/discard"), discard, done);
    let made = look("import", WRITE, "Make a sandbox of what an export gave").heavy();
    let made = made.asks::<Importing>().takes_bytes(TAR).gives::<SandboxInfo>(201).refuses(STATE);
    api.post(&format!("{}/import", wire::SANDBOXES), import, made);
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SnapshotList")]
struct Points {
    snapshots: Vec<SnapshotInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(Mine(sandboxes): Mine, Path(name): Path<String>, request: Request) -> Answer<Points> {
    let part = question::<Paged>(&request)?.part()?;
    let snapshots = sandboxes.snapshots(&name).await.map_err(told)?;
    // In the order in which they were taken; two at once by their tags.
    let key = |one: &SnapshotInfo| format!("{} {}", one.created_at, one.tag);
    let mut snapshots = snapshots;
    snapshots.sort_by_key(key);
    let page = part.of(snapshots, key);
    Ok(axum::Json(Points { snapshots: page.items, next_cursor: page.next_cursor }))
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SnapshotRequest")]
struct Taking {
    tag: Option<String>,
}

async fn take(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<SnapshotInfo>), Problem> {
    let asked: Taking = body::json_or_default(request).await?;
    let taken = sandboxes.snapshot(&name, asked.tag).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(taken)))
}

async fn forget(
    Mine(sandboxes): Mine,
    Path((name, tag)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    sandboxes.remove_snapshot(&name, &tag).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RollbackRequest")]
struct Point {
    tag: String,
}

async fn rollback(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: Point = body::json(request).await?;
    sandboxes.rollback(&name, &asked.tag).await.map(axum::Json).map_err(told)
}

async fn undo(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.undo(&name).await.map(axum::Json).map_err(told)
}

async fn redo(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.redo(&name).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Between {
    from: Option<Word>,
    to: Option<Word>,
}

async fn diff(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Answer<Difference> {
    let asked: Between = question(&request)?;
    let found = sandboxes.diff(&name, asked.from.map(|one| one.0), asked.to.map(|one| one.0)).await;
    found.map(axum::Json).map_err(told)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ForkRequest")]
struct Forking {
    #[serde(default = "one")]
    count: u32,
    #[serde(rename = "as")]
    new_name: Option<String>,
    /// Variables that look like secrets and are to be in the forks all the same.
    #[serde(default)]
    keep_env: Vec<String>,
}

fn one() -> u32 {
    1
}

async fn fork(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<Forked>), Problem> {
    let usual = || Forking { count: 1, new_name: None, keep_env: Vec::new() };
    let Forking { count, new_name, keep_env } = body::json_or(request, usual).await?;
    let _making = room(&server, &principal, &sandboxes, count).await?;
    let made = sandboxes.fork_keeping(&name, count, new_name, &keep_env).await;
    Ok((StatusCode::CREATED, axum::Json(made.map_err(told)?)))
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "CheckForkRequest")]
struct Checking {
    /// Sandboxes to compare with; two forks are made when there are none.
    forks: Vec<String>,
}

async fn check_fork(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Answer<ForkReport> {
    let asked: Checking = body::json_or_default(request).await?;
    let more = if asked.forks.is_empty() { MADE_TO_COMPARE } else { 0 };
    let _making = room(&server, &principal, &sandboxes, more).await?;
    Beginning::of(&server, &principal, &sandboxes, &name)?.admit(&server, &principal)?;
    sandboxes.check_fork(&name, &asked.forks).await.map(axum::Json).map_err(told)
}

/// Room for so many more, where a rule counts sandboxes. One maker at a time then, so that two are not one too many.
pub(super) async fn room<'a>(
    server: &'a Server,
    principal: &Principal,
    sandboxes: &Sandboxes,
    more: u32,
) -> Result<Option<MutexGuard<'a, ()>>, Problem> {
    let applied = server.policy.of(principal, &BTreeMap::new());
    let Some((rule, most)) = applied.most_sandboxes() else { return Ok(None) };
    let making = server.making.lock().await;
    let count = sandboxes.count();
    if count.saturating_add(usize::try_from(more).unwrap_or(usize::MAX)) > most {
        let detail = format!("{count} sandboxes exist, and {most} may (rule {rule})");
        return Err(quota(&rule, detail));
    }
    Ok(Some(making))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PromoteRequest")]
struct Promotion {
    /// Whose place it takes.
    #[serde(rename = "as")]
    name: String,
}

async fn promote(
    Mine(sandboxes): Mine,
    Path(fork): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: Promotion = body::json(request).await?;
    sandboxes.promote(&fork, &asked.name).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Exporting {
    tag: Option<Word>,
}

async fn export(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: Exporting = question(&request)?;
    let file = sandboxes.export(&name, asked.tag.map(|one| one.0)).await.map_err(told)?;
    let mut file = tokio::fs::File::from_std(file);
    pipe::answer(TAR, move |mut writer| async move {
        tokio::io::copy(&mut file, &mut writer).await.map_err(broken)?;
        writer.shutdown().await.map_err(broken)
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Importing {
    name: Option<Word>,
}

/// `POST /v1/sandboxes/import?name=`: the body is what an export gave.
async fn import(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    request: Request,
) -> Result<(StatusCode, axum::Json<SandboxInfo>), Problem> {
    let asked: Importing = question(&request)?;
    let name = asked.name.map(|one| one.0);
    let mut new = SandboxRequest { name, ..SandboxRequest::default() };
    server.policy.of(&principal, &new.labels).check_sandbox(&mut new)?;
    // What does not fit its disk cannot become a sandbox, so no more than that is taken in.
    let limits = new.limits.resolve().map_err(|error| told(error.into()))?;
    let most = limits.disk_bytes.saturating_add(MOST_MANIFEST_BYTES);
    let file = tempfile().map_err(broken)?;
    let mut kept = tokio::fs::File::from_std(file.try_clone().map_err(broken)?);
    pipe::receive(request.into_body(), |reader| async move {
        let mut bounded = reader.take(most.saturating_add(1));
        if tokio::io::copy(&mut bounded, &mut kept).await.map_err(broken)? > most {
            let detail =
                format!("the archive has more than {most} bytes, which no sandbox has room for");
            return Err(Problem::coded("too_large", detail));
        }
        kept.flush().await.map_err(broken)
    })
    .await?;
    let _making = room(&server, &principal, &sandboxes, 1).await?;
    let info = sandboxes.import(file, new).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(info)))
}

/// A file without a name, gone when it is closed.
fn tempfile() -> std::io::Result<std::fs::File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let made = rustix::fs::open(std::env::temp_dir(), flags, Mode::from_raw_mode(0o600))?;
    Ok(made.into())
}

fn broken(source: std::io::Error) -> Problem {
    told(belljar::Error::Backend { operation: "pass an archive on", source })
}

async fn changes(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<Difference> {
    sandboxes.workspace_changes(&name).await.map(axum::Json).map_err(told)
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "CommitRequest")]
struct Commit {
    /// All that may be, when empty.
    paths: Vec<String>,
    force: bool,
}

async fn commit(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Answer<Committed> {
    let asked: Commit = body::json_or_default(request).await?;
    let done = sandboxes.workspace_commit(&name, asked.paths, asked.force).await;
    done.map(axum::Json).map_err(told)
}

async fn discard(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.workspace_discard(&name).await.map(axum::Json).map_err(told)
}
