//! What a server says of itself: whether it lives, what it can do, how it fares.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use belljar::languages::Languages;
use belljar::{Config, Level, PoolStats};
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::{Access, Api, look};
use crate::door::{DOCUMENT, HEALTH, PAGE, READY};
use crate::http::Server;
use crate::openapi;
use crate::policy::PolicyState;
use crate::problem::{CODES, Code, Problem};
use crate::scope::Scope;
use crate::wire;

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

pub(super) fn enter(api: &mut Api) {
    let admin = Access::Scope(Scope::Admin);
    api.get(
        HEALTH,
        health,
        look("health", Access::Open, "Whether the server lives").gives_as(200, TEXT),
    );
    let ready = look("ready", Access::Open, "Whether it takes work now");
    api.get(READY, ready_now, ready.gives_as(200, TEXT));
    api.get(
        "/metrics",
        metrics,
        look("metrics", admin, "Counters for Prometheus").gives_as(200, PROMETHEUS),
    );
    let document = look("openapi", Access::Open, "This document");
    api.get(DOCUMENT, document_of, document.gives::<serde_json::Value>(200));
    api.get(PAGE, page, look("docs", Access::Open, "This document as a page").gives_as(200, HTML));
    let codes = look("problems", Access::Known, "Every code that a problem can have");
    api.get(wire::PROBLEMS, problems, codes.gives::<Problems>(200));
    let one = look("problem", Access::Known, "What one code means");
    api.get(&format!("{}/{{code}}", wire::PROBLEMS), problem, one.gives::<CodeShape>(200));
    let state = look("policy", admin, "Which policy is in force");
    api.get("/v1/policy", policy, state.gives::<PolicyState>(200));
    let pool_now = look("pool", admin, "What waits for the next runs, and how they were served");
    api.get(wire::POOL, pool, pool_now.gives::<PoolStats>(200).refuses(&[404]));
    let all = look("levels", Access::Known, "The levels, and what each promises");
    api.get("/v1/levels", levels, all.gives::<LevelList>(200));
    let all = look("languages", Access::Known, "The languages, and which are installed");
    api.get("/v1/languages", languages, all.gives::<LanguageList>(200));
}

async fn health() -> Response {
    text(TEXT, "ok\n".to_owned())
}

fn text(kind: &'static str, text: String) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Not ready is a problem with a status that balancers understand.
async fn ready_now(State(server): State<Arc<Server>>) -> Result<Response, Problem> {
    if server.stop.is_draining() {
        return Err(Problem::coded("draining", "the server ends when what runs has ended"));
    }
    server.admission.check()?;
    let policy = if server.policy.is_stale() { "policy: stale, see /v1/policy\n" } else { "" };
    Ok(text(TEXT, format!("ready\n{policy}")))
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let pool = server.engine.pool_stats();
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let waiting = pool.as_ref().map_or(0, |pool| pool.waiting);
    let gauges = [
        ("belljar_queue_running", "Runs that go on", count(server.queue.taken_turns())),
        (
            "belljar_queue_places",
            "Requests that run or wait for their turn",
            count(server.queue.taken_places()),
        ),
        ("belljar_pool_waiting", "Sandboxes that are kept ready", count(waiting)),
        (
            "belljar_idempotency_keys",
            "Answers that are kept for their keys",
            count(server.memory.count()),
        ),
        (
            "belljar_policy_stale",
            "1 when the policy's file is not what is in force",
            f64::from(u8::from(server.policy.is_stale())),
        ),
        (
            "belljar_overloaded",
            "1 while nothing new is begun",
            f64::from(u8::from(!server.admission.is_open())),
        ),
    ];
    text(PROMETHEUS, server.metrics.text(&server.table, server.engine.counts(), &gauges))
}

async fn document_of(State(server): State<Arc<Server>>) -> Response {
    axum::Json(openapi::document(&server.table)).into_response()
}

/// The page holds all that it needs, and the browser is told that nothing else may be fetched.
async fn page(State(server): State<Arc<Server>>) -> Response {
    let mut response = text(HTML, openapi::page(&server.table));
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// [`Code`] on the wire.
#[derive(JsonSchema)]
#[schemars(rename = "Code")]
#[expect(dead_code, reason = "only its shape is used")]
struct CodeShape {
    code: String,
    status: u16,
    title: String,
    retryable: bool,
    hint: String,
}

#[derive(Serialize, JsonSchema)]
struct Problems {
    #[schemars(with = "Vec<CodeShape>")]
    problems: &'static [Code],
}

async fn problems() -> axum::Json<Problems> {
    axum::Json(Problems { problems: &CODES })
}

async fn problem(Path(code): Path<String>) -> Result<axum::Json<&'static Code>, Problem> {
    Code::named(&code)
        .map(axum::Json)
        .ok_or_else(|| Problem::not_found(format!("no problem has the code {code:?}")))
}

async fn policy(State(server): State<Arc<Server>>) -> axum::Json<PolicyState> {
    axum::Json(server.policy.state())
}

/// What waits for the next runs, and how they were served so far.
async fn pool(State(server): State<Arc<Server>>) -> Result<axum::Json<PoolStats>, Problem> {
    let none = || Problem::not_found("no pool is kept: the server was started with --pool 0");
    server.engine.pool_stats().map(axum::Json).ok_or_else(none)
}

#[derive(Serialize, JsonSchema)]
struct LevelList {
    levels: Vec<LevelInfo>,
}

#[derive(Serialize, JsonSchema)]
struct LevelInfo {
    name: &'static str,
    default: bool,
    summary: &'static str,
    layers: Vec<String>,
}

async fn levels() -> axum::Json<LevelList> {
    let levels = Level::ALL.iter().map(|level| LevelInfo {
        name: level.name(),
        default: *level == Level::default(),
        summary: level.summary(),
        layers: level.layers().into_iter().map(|layer| layer.to_string()).collect(),
    });
    axum::Json(LevelList { levels: levels.collect() })
}

#[derive(Serialize, JsonSchema)]
struct LanguageList {
    languages: Vec<LanguageInfo>,
}

#[derive(Serialize, JsonSchema)]
struct LanguageInfo {
    name: String,
    extensions: Vec<String>,
    installed: bool,
    /// What would install it.
    fix: Option<String>,
}

async fn languages() -> Result<axum::Json<LanguageList>, Problem> {
    let read = || Languages::load(&Config::default().language_directories);
    let found = tokio::task::spawn_blocking(read).await;
    let found = found.map_err(|_| Problem::coded("lost", "the languages were not read"))?;
    let found = found.map_err(|error| Problem::coded("backend", error.to_string()))?;
    let languages = found.iter().map(|language| {
        let fix = language.find().err().map(|error| error.reason);
        let (name, extensions) = (language.name.clone(), language.extensions.clone());
        LanguageInfo { name, extensions, installed: fix.is_none(), fix }
    });
    Ok(axum::Json(LanguageList { languages: languages.collect() }))
}
