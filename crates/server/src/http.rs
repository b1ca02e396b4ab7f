//! The routes, and the door in front of all of them.

mod audit;
mod batches;
mod body;
pub(crate) mod evolutions;
mod format;
mod grades;
mod lines;
mod pipe;
mod runs;
mod sandboxes;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use belljar::living::Sandboxes;
use belljar::{Engine, Queue};
use hyper::StatusCode;

use crate::door::{Door, HEALTH, Peer};
use crate::limits::Limits;
use crate::problem::{Problem, method_not_allowed};
use crate::stop::Stop;
use crate::wire;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) queue: Queue,
    pub(crate) door: Door,
    pub(crate) stop: Stop,
    pub(crate) evolutions: evolutions::Evolutions,
    /// The state directory with the audit trail, when runs are recorded.
    pub(crate) audit: Option<PathBuf>,
    pub(crate) limits: Limits,
    /// The sandboxes that stay.
    pub(crate) sandboxes: Sandboxes,
}

pub(crate) fn router(server: Arc<Server>) -> Router {
    let read = |route| -> MethodRouter<Arc<Server>> {
        MethodRouter::fallback(route, || async { method_not_allowed("GET") })
    };
    let door = middleware::from_fn_with_state(Arc::clone(&server), door);
    let stop = server.stop.clone();
    let api = Router::new()
        .route(HEALTH, get(health).fallback(|| async { method_not_allowed("GET") }))
        .route(wire::RUNS, post(runs::run).fallback(|| async { method_not_allowed("POST") }))
        .route("/v1/batches", post(batches::run).fallback(|| async { method_not_allowed("POST") }))
        .route(wire::GRADES, post(grades::grade).fallback(|| async { method_not_allowed("POST") }))
        .route(
            wire::EVOLUTIONS,
            post(evolutions::begin).fallback(|| async { method_not_allowed("POST") }),
        )
        .route(
            "/v1/evolutions/{id}",
            get(evolutions::show).fallback(|| async { method_not_allowed("GET") }),
        )
        .route(
            "/v1/evolutions/{id}/events",
            get(evolutions::events).fallback(|| async { method_not_allowed("GET") }),
        )
        .route(wire::POOL, get(pool).fallback(|| async { method_not_allowed("GET") }))
        .route("/v1/runs/{id}", read(get(audit::run)))
        .route("/v1/runs/{id}/events", read(get(audit::events)))
        .route("/v1/runs/{id}/explanation", read(get(audit::explanation)))
        .route("/v1/runs/{id}/report", read(get(audit::report)))
        .route(wire::STATS, read(get(audit::stats)))
        .route("/v1/audit", read(get(audit::trail)))
        .merge(sandboxes::routes())
        .fallback(not_found)
        .layer(door.clone())
        .with_state(server);
    let mcp = crate::mcp::mount(api.clone(), &stop).layer(door);
    api.merge(mcp)
}

/// Nothing is read, and no route is told from another, before the caller may speak.
async fn door(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let Some(peer) = head.extensions.get::<Peer>().copied() else {
        let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "backend", "nobody asked");
        return problem.into_response();
    };
    match server.door.admit(peer, &head) {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(problem) => problem.into_response(),
    }
}

async fn health() -> &'static str {
    "ok\n"
}

/// What waits for the next runs, and how they were served so far.
async fn pool(State(server): State<Arc<Server>>) -> Response {
    match server.engine.pool_stats() {
        Some(stats) => axum::Json(stats).into_response(),
        None => {
            let detail = "no pool is kept: the server was started with --pool 0";
            Problem::new(StatusCode::NOT_FOUND, "not_found", detail).into_response()
        }
    }
}

async fn not_found(request: Request) -> Problem {
    let detail = format!(
        "nothing is at {}: there are {HEALTH}, {runs}, {runs}/ID, {runs}/ID/events, \
         {runs}/ID/explanation, {runs}/ID/report, /v1/batches, {}, {}, {}, {}, /v1/audit and {}",
        request.uri().path(),
        wire::GRADES,
        wire::EVOLUTIONS,
        wire::SANDBOXES,
        wire::STATS,
        wire::POOL,
        runs = wire::RUNS,
    );
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}
