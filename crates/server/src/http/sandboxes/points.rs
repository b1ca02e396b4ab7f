//! Points to come back to, forks, and what leaves as one file.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use belljar::living::{Committed, Difference, ForkReport, Forked};
use belljar::sandbox::{SandboxInfo, SandboxRequest, SnapshotInfo};
use hyper::StatusCode;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::{Answer, only, question, told};
use crate::http::{Server, body, pipe};
use crate::problem::Problem;

/// The form of an exported sandbox.
const TAR: &str = "application/x-tar";

pub(super) fn routes(
    router: Router<Arc<Server>>,
    at: impl Fn(&str) -> String,
) -> Router<Arc<Server>> {
    router
        .route(&at("/snapshots"), only(get(list).post(take), "GET, POST"))
        .route(&at("/snapshots/{tag}"), only(delete(forget), "DELETE"))
        .route(&at("/rollback"), only(post(rollback), "POST"))
        .route(&at("/undo"), only(post(undo), "POST"))
        .route(&at("/redo"), only(post(redo), "POST"))
        .route(&at("/diff"), only(get(diff), "GET"))
        .route(&at("/fork"), only(post(fork), "POST"))
        .route(&at("/check_fork"), only(post(check_fork), "POST"))
        .route(&at("/promote"), only(post(promote), "POST"))
        .route(&at("/export"), only(get(export), "GET"))
        .route(&at("/workspace/changes"), only(get(changes), "GET"))
        .route(&at("/workspace/commit"), only(post(commit), "POST"))
        .route(&at("/workspace/discard"), only(post(discard), "POST"))
}

#[derive(Serialize)]
struct Points {
    snapshots: Vec<SnapshotInfo>,
}

async fn list(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<Points> {
    let snapshots = server.sandboxes.snapshots(&name).await.map_err(told)?;
    Ok(axum::Json(Points { snapshots }))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Taking {
    tag: Option<String>,
}

async fn take(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<SnapshotInfo>), Problem> {
    let asked: Taking = body::json_or_default(request).await?;
    let taken = server.sandboxes.snapshot(&name, asked.tag).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(taken)))
}

async fn forget(
    State(server): State<Arc<Server>>,
    Path((name, tag)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    server.sandboxes.remove_snapshot(&name, &tag).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    tag: String,
}

async fn rollback(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: Point = body::json(request).await?;
    server.sandboxes.rollback(&name, &asked.tag).await.map(axum::Json).map_err(told)
}

async fn undo(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    server.sandboxes.undo(&name).await.map(axum::Json).map_err(told)
}

async fn redo(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    server.sandboxes.redo(&name).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Between {
    from: Option<String>,
    to: Option<String>,
}

async fn diff(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<Difference> {
    let asked: Between = question(&request)?;
    let found = server.sandboxes.diff(&name, asked.from, asked.to).await;
    found.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<Forked>), Problem> {
    let usual = || Forking { count: 1, new_name: None, keep_env: Vec::new() };
    let Forking { count, new_name, keep_env } = body::json_or(request, usual).await?;
    let made = server.sandboxes.fork_keeping(&name, count, new_name, &keep_env).await;
    Ok((StatusCode::CREATED, axum::Json(made.map_err(told)?)))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Checking {
    /// Sandboxes to compare with; two forks are made when there are none.
    forks: Vec<String>,
}

async fn check_fork(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<ForkReport> {
    let asked: Checking = body::json_or_default(request).await?;
    server.sandboxes.check_fork(&name, &asked.forks).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promotion {
    /// Whose place it takes.
    #[serde(rename = "as")]
    name: String,
}

async fn promote(
    State(server): State<Arc<Server>>,
    Path(fork): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: Promotion = body::json(request).await?;
    server.sandboxes.promote(&fork, &asked.name).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exporting {
    tag: Option<String>,
}

async fn export(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: Exporting = question(&request)?;
    let file = server.sandboxes.export(&name, asked.tag).await.map_err(told)?;
    let mut file = tokio::fs::File::from_std(file);
    pipe::answer(TAR, move |mut writer| async move {
        tokio::io::copy(&mut file, &mut writer).await.map_err(broken)?;
        writer.shutdown().await.map_err(broken)
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Importing {
    name: Option<String>,
}

/// `POST /v1/sandboxes/import?name=`: the body is what an export gave.
pub(super) async fn import(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<(StatusCode, axum::Json<SandboxInfo>), Problem> {
    let asked: Importing = question(&request)?;
    let file = tempfile().map_err(broken)?;
    let mut kept = tokio::fs::File::from_std(file.try_clone().map_err(broken)?);
    pipe::receive(request.into_body(), |mut reader| async move {
        tokio::io::copy(&mut reader, &mut kept).await.map_err(broken)?;
        kept.flush().await.map_err(broken)
    })
    .await?;
    let new = SandboxRequest { name: asked.name, ..SandboxRequest::default() };
    let info = server.sandboxes.import(file, new).await.map_err(told)?;
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

async fn changes(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Answer<Difference> {
    server.sandboxes.workspace_changes(&name).await.map(axum::Json).map_err(told)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Commit {
    /// All that may be, when empty.
    paths: Vec<String>,
    force: bool,
}

async fn commit(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<Committed> {
    let asked: Commit = body::json_or_default(request).await?;
    let done = server.sandboxes.workspace_commit(&name, asked.paths, asked.force).await;
    done.map(axum::Json).map_err(told)
}

async fn discard(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Answer<SandboxInfo> {
    server.sandboxes.workspace_discard(&name).await.map(axum::Json).map_err(told)
}
