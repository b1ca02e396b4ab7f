//! The routes, and the door in front of all of them.

mod batches;
mod body;
mod format;
mod grades;
mod lines;
mod runs;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use belljar::{Engine, Queue};
use hyper::StatusCode;

use crate::door::{Door, HEALTH, Peer};
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
}

pub(crate) fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route(HEALTH, get(health).fallback(|| async { method_not_allowed("GET") }))
        .route(wire::RUNS, post(runs::run).fallback(|| async { method_not_allowed("POST") }))
        .route("/v1/batches", post(batches::run).fallback(|| async { method_not_allowed("POST") }))
        .route(wire::GRADES, post(grades::grade).fallback(|| async { method_not_allowed("POST") }))
        .route(wire::POOL, get(pool).fallback(|| async { method_not_allowed("GET") }))
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(&server), door))
        .with_state(server)
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
        "nothing is at {}: there are {HEALTH}, {}, /v1/batches, {} and {}",
        request.uri().path(),
        wire::RUNS,
        wire::GRADES,
        wire::POOL
    );
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}
