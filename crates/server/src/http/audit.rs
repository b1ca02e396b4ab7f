//! What was recorded, over HTTP: single runs, their events and reports, numbers of all, and the trail.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::audit::{self, Filter, RunRecord, Stats};
use belljar::explain::Explanation;
use belljar::report::{self, Report};
use belljar::store::{Store, StoreError};
use belljar::{PoolStats, SpecError};
use hyper::StatusCode;
use hyper::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use crate::http::Server;
use crate::http::format::Format;
use crate::problem::Problem;
use crate::wire;

/// Runs in one answer, unless `limit` says fewer.
const MOST_RUNS: usize = 1000;
const USUAL_RUNS: usize = 100;

/// `GET /v1/runs/{id}`: all that is recorded of a run.
pub(crate) async fn run(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(axum::Json(find(&server, id).await?).into_response())
}

/// `GET /v1/runs/{id}/events`.
pub(crate) async fn events(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(axum::Json(report::events_of(&find(&server, id).await?)).into_response())
}

/// `GET /v1/runs/{id}/report`: JSON, or a page for whoever accepts HTML.
pub(crate) async fn report(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accept.is_some_and(|value| value.contains("text/html"));
    let report = Report::of(&find(&server, id).await?);
    if !wants_page {
        return Ok(axum::Json(report).into_response());
    }
    let mut response = report.html().into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // As in the page itself, and a sandbox of the browser's around it.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// `GET /v1/runs/{id}/explanation`: the same as `belljar explain`.
pub(crate) async fn explanation(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(axum::Json(Explanation::of(&find(&server, id).await?)).into_response())
}

/// What `GET /v1/stats` tells.
#[derive(Serialize)]
struct AllStats {
    /// Of the runs that were recorded; nothing when none are.
    runs: Option<Stats>,
    /// Of the pool; nothing when there is none.
    pool: Option<PoolStats>,
}

/// `GET /v1/stats`, with the filters of `belljar audit list`.
pub(crate) async fn stats(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, Problem> {
    let query = Query::of(&request)?;
    let pool = server.engine.pool_stats();
    let runs = match &server.audit {
        None => None,
        Some(_) => Some(read(&server, move |store| audit::statistics(store, &query.filter)).await?),
    };
    Ok(axum::Json(AllStats { runs, pool }).into_response())
}

/// `GET /v1/audit`: runs that match, the newest first; as lines, the records themselves, as
/// `belljar audit export` writes them.
pub(crate) async fn trail(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, Problem> {
    let query = Query::of(&request)?;
    if Format::of(request.headers()) == Format::Lines {
        return export(&server, query).await;
    }
    let list = move |store: &Store| audit::list(store, &query.filter, query.before, query.limit);
    let runs = read(&server, list).await?;
    Ok(axum::Json(serde_json::json!({ "runs": runs })).into_response())
}

/// Records that one answer may hold; a longer trail is asked for in parts, or exported beside the server.
const MAX_EXPORT_BYTES: usize = 256 << 20;

async fn export(server: &Arc<Server>, query: Query) -> Result<Response, Problem> {
    let written = read(server, move |store| {
        let mut bytes = Bounded(Vec::new());
        Ok(audit::export(store, &query.filter, &mut bytes)?.map(|_| bytes.0))
    });
    let bytes = written.await?.map_err(|_| {
        let detail = format!(
            "the trail has more than {MAX_EXPORT_BYTES} bytes: ask for a part with since and \
             until, or use belljar audit export"
        );
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    })?;
    let mut response = bytes.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(wire::NDJSON));
    Ok(response)
}

struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_EXPORT_BYTES {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What follows the question mark.
struct Query {
    filter: Filter,
    limit: usize,
    /// Only runs whose `seq` is below: the next part of a list.
    before: Option<u64>,
}

impl Query {
    fn of(request: &Request) -> Result<Self, Problem> {
        let text = request.uri().query().unwrap_or_default();
        let pairs: Vec<_> = form_urlencoded::parse(text.as_bytes()).collect();
        let (mut limit, mut before, mut words) = (USUAL_RUNS, None, Vec::new());
        for (name, value) in &pairs {
            match &**name {
                "limit" => limit = number(name, value)?,
                "before" => before = Some(number(name, value)?),
                name => words.push((name, &**value)),
            }
        }
        if limit > MOST_RUNS {
            let reason = format!("is {limit}, more than {MOST_RUNS}: ask on with before");
            return Err(Problem::field("limit", &reason));
        }
        let filter = Filter::parse(words, audit::now_us()).map_err(wrong)?;
        Ok(Self { filter, limit, before })
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Problem> {
    value.parse().map_err(|_| Problem::field(name, &format!("is \"{value}\", which is no number")))
}

fn wrong(error: SpecError) -> Problem {
    Problem::field(&error.field, &error.reason)
}

async fn find(server: &Arc<Server>, id: String) -> Result<RunRecord, Problem> {
    let found = read(server, move |store| audit::show(store, &id)).await?;
    found.map_err(|error| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("{} {}", error.field, error.reason),
        )
    })
}

/// Reads the trail where it may take its time.
async fn read<T: Send + 'static>(
    server: &Arc<Server>,
    act: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let Some(directory): Option<PathBuf> = server.audit.clone() else {
        let detail = "nothing is recorded here: the server was started with --no-audit";
        return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
    };
    let done =
        tokio::task::spawn_blocking(move || Store::read(&directory).and_then(|store| act(&store)));
    let broken = |what: String| {
        let detail = format!("cannot read the audit trail: {what}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "audit", detail)
    };
    match done.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(broken(error.to_string())),
        Err(error) => Err(broken(error.to_string())),
    }
}
