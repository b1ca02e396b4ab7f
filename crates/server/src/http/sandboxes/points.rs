//! Points to come back to, forks, and what leaves as one file.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use belljar::living::{Committed, Difference};
use belljar::sandbox::{SandboxInfo, SnapshotInfo};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::{Deserialize, Serialize};

use super::{Answer, only, question, sandboxes, told};
use crate::http::{Server, body};
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
    let snapshots = sandboxes(&server)?.snapshots(&name).await.map_err(told)?;
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
    let taken = sandboxes(&server)?.snapshot(&name, asked.tag).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(taken)))
}

async fn forget(
    State(server): State<Arc<Server>>,
    Path((name, tag)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    sandboxes(&server)?.remove_snapshot(&name, &tag).await.map_err(told)?;
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
    sandboxes(&server)?.rollback(&name, &asked.tag).await.map(axum::Json).map_err(told)
}

async fn undo(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes(&server)?.undo(&name).await.map(axum::Json).map_err(told)
}

async fn redo(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes(&server)?.redo(&name).await.map(axum::Json).map_err(told)
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
    let found = sandboxes(&server)?.diff(&name, asked.from, asked.to).await;
    found.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Forking {
    #[serde(default = "one")]
    count: u32,
    #[serde(rename = "as")]
    new_name: Option<String>,
}

fn one() -> u32 {
    1
}

#[derive(Serialize)]
struct Forks {
    sandboxes: Vec<SandboxInfo>,
}

async fn fork(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<Forks>), Problem> {
    let asked: Forking = body::json_or(request, || Forking { count: 1, new_name: None }).await?;
    let made = sandboxes(&server)?.fork(&name, asked.count, asked.new_name).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(Forks { sandboxes: made })))
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
    sandboxes(&server)?.promote(&fork, &asked.name).await.map(axum::Json).map_err(told)
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
    let file = sandboxes(&server)?.export(&name, asked.tag).await.map_err(told)?;
    let mut response = Response::new(body::of_file(file));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TAR));
    Ok(response)
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
    let sandboxes = sandboxes(&server)?;
    let mut import = sandboxes.import().await.map_err(told)?;
    let sent: Body = request.into_body();
    body::each_piece(sent, async |piece| import.write(&piece).await.map_err(told)).await?;
    let info = sandboxes.imported(import, asked.name).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(info)))
}

async fn changes(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<Difference> {
    sandboxes(&server)?.workspace_changes(&name).await.map(axum::Json).map_err(told)
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
    let done = sandboxes(&server)?.workspace_commit(&name, asked.paths, asked.force).await;
    done.map(axum::Json).map_err(told)
}

async fn discard(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Answer<SandboxInfo> {
    sandboxes(&server)?.workspace_discard(&name).await.map(axum::Json).map_err(told)
}
