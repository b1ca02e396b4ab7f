//! `/v1/sandboxes`: sandboxes that stay. What each verb does is in `belljar::living`; here is how it is asked for.

mod code;
mod execs;
mod files;
mod once;
mod points;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use belljar::living::Force;
use belljar::sandbox::{EgressChange, NetworkInfo, SandboxInfo, SandboxRequest, SandboxState};
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use serde::{Deserialize, Serialize};

use crate::door::Peer;
use crate::http::{Server, body};
use crate::problem::Problem;
use crate::wire;

/// How long programs have to end by themselves, unless the caller says.
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// The answers that are JSON.
type Answer<T> = Result<axum::Json<T>, Problem>;

pub(crate) fn routes() -> Router<Arc<Server>> {
    let at = |rest: &str| format!("{}/{{name}}{rest}", wire::SANDBOXES);
    let router = Router::new()
        .route(wire::SANDBOXES, only(post(create).get(list), "GET, POST"))
        .route(&format!("{}/import", wire::SANDBOXES), only(post(points::import), "POST"))
        .route(&at(""), only(get(info).delete(remove), "GET, DELETE"))
        .route(&at("/start"), only(post(start), "POST"))
        .route(&at("/stop"), only(post(stop), "POST"))
        .route(&at("/kill"), only(post(kill), "POST"))
        .route(&at("/egress"), only(post(set_egress).put(set_egress), "POST, PUT"))
        .route(&at("/network"), only(get(network), "GET"))
        .route(&at("/pause"), only(post(pause), "POST"))
        .route(&at("/resume"), only(post(resume), "POST"));
    let router = once::routes(router);
    let router = execs::routes(router, at);
    let router = code::routes(router, at);
    let router = files::routes(router, at);
    points::routes(router, at)
}

/// A path, and what is said to other methods.
fn only(route: MethodRouter<Arc<Server>>, methods: &'static str) -> MethodRouter<Arc<Server>> {
    route.fallback(move || async move { crate::problem::method_not_allowed(methods) })
}

fn told(error: belljar::Error) -> Problem {
    Problem::from(&error)
}

/// The words behind the question mark. One that is not known is a mistake, not a wish to be ignored.
fn question<T: for<'de> Deserialize<'de>>(request: &Request) -> Result<T, Problem> {
    let pairs = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
    let map: BTreeMap<String, String> = pairs.into_owned().collect();
    let object = map.into_iter().map(|(name, value)| (name, word(value))).collect();
    serde_json::from_value(serde_json::Value::Object(object))
        .map_err(|error| Problem::field("query", &format!("cannot be read: {error}")))
}

/// Numbers and truth values as such: a question has only text.
fn word(value: String) -> serde_json::Value {
    match value.as_str() {
        "true" => true.into(),
        "false" => false.into(),
        text => text.parse::<u64>().map_or_else(|_| value.clone().into(), Into::into),
    }
}

async fn create(State(server): State<Arc<Server>>, request: Request) -> Result<Response, Problem> {
    let ours = is_ours(&server, &request);
    let asked: SandboxRequest = body::json(request).await?;
    may_name_its_workspace(ours, &asked)?;
    let info = server.sandboxes.create(asked).await.map_err(told)?;
    let place = HeaderValue::from_str(&format!("{}/{}", wire::SANDBOXES, info.name));
    let mut response = (StatusCode::CREATED, axum::Json(info)).into_response();
    if let Ok(place) = place {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

fn may_name_its_workspace(ours: bool, asked: &SandboxRequest) -> Result<(), Problem> {
    if !ours && asked.workspace.as_ref().is_some_and(|one| one.path.is_some()) {
        let reason = "names a directory of the server's host, which only its own user may do, over the \
                      socket: use a volume, or send files";
        return Err(Problem::field("workspace.path", reason));
    }
    Ok(())
}

/// Whether the caller is the user whom this server acts for, as the kernel vouches.
fn is_ours(server: &Server, request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    matches!(peer, Some(Peer::Local { uid }) if *uid == server.door.own_uid || *uid == 0)
}

/// What `GET /v1/sandboxes` may be asked. Labels come as `label=name=value`, once.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    state: Option<SandboxState>,
    label: Option<String>,
}

#[derive(Serialize)]
struct All {
    sandboxes: Vec<SandboxInfo>,
}

async fn list(State(server): State<Arc<Server>>, request: Request) -> Answer<All> {
    let asked: Listing = question(&request)?;
    let label = match asked.label.as_deref().map(|text| text.split_once('=')) {
        Some(None) => return Err(Problem::field("label", "must be name=value")),
        Some(Some(pair)) => Some(pair),
        None => None,
    };
    let all = server.sandboxes.list(label, asked.state).await.map_err(told)?;
    Ok(axum::Json(All { sandboxes: all }))
}

async fn info(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    server.sandboxes.info(&name).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Removal {
    #[serde(default)]
    force: bool,
}

async fn remove(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Removal = question(&request)?;
    let force = if asked.force { Force::Yes } else { Force::No };
    server.sandboxes.remove(&name, force).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Stopping {
    grace_ms: Option<u64>,
}

async fn stop(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: Stopping = body::json_or_default(request).await?;
    let grace = asked.grace_ms.map_or(USUAL_GRACE, Duration::from_millis);
    server.sandboxes.stop(&name, grace).await.map(axum::Json).map_err(told)
}

async fn start(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    server.sandboxes.start(&name).await.map(axum::Json).map_err(told)
}

async fn kill(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    server.sandboxes.kill(&name).await.map(axum::Json).map_err(told)
}

async fn pause(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<SandboxInfo> {
    server.sandboxes.pause(&name).await.map(axum::Json).map_err(told)
}

/// What it may reach from now on, in place of what it may now.
async fn set_egress(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: EgressChange = body::json(request).await?;
    server.sandboxes.set_egress(&name, asked.egress).await.map(axum::Json).map_err(told)
}

async fn network(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Answer<NetworkInfo> {
    server.sandboxes.network(&name).await.map(axum::Json).map_err(told)
}

async fn resume(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Answer<SandboxInfo> {
    server.sandboxes.resume(&name).await.map(axum::Json).map_err(told)
}
