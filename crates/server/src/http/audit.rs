//! What was recorded, over HTTP: single runs, their events and reports, numbers of all, and the trail.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::audit::{self, Filter, RunLine, RunRecord, Stats};
use belljar::explain::Explanation;
use belljar::report::{self, Report};
use belljar::store::{Store, StoreError};
use belljar::{PoolStats, SpecError};
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::api::{Access, Api, look};
use crate::http::format::Format;
use crate::http::page::{self, Part};
use crate::http::{Server, Who};
use crate::principal::Principal;
use crate::problem::Problem;
use crate::scope::Scope;
use crate::wire;

/// What a question may hold; the words of `belljar audit list`.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used")]
struct Words {
    label: Option<String>,
    verdict: Option<String>,
    since: Option<String>,
    until: Option<String>,
    user: Option<String>,
    event: Option<String>,
    risk: Option<String>,
    /// Runs that one request began.
    request_id: Option<String>,
    limit: Option<u64>,
    cursor: Option<String>,
    /// Only runs whose `seq` is below; a cursor says the same.
    before: Option<u64>,
}

pub(super) fn enter(api: &mut Api) {
    let read = Access::Scope(Scope::AuditRead);
    let at = |rest: &str| format!("{}/{{id}}{rest}", wire::RUNS);
    let one = look("run_record", read, "All that is recorded of a run");
    api.get(&at(""), run, one.gives::<RunRecord>(200));
    let all = look("run_events", read, "What a run was refused");
    api.get(&at("/events"), events, all.gives::<Vec<belljar::Event>>(200));
    let one = look("run_explanation", read, "What was refused, in plain words, and what to do");
    api.get(&at("/explanation"), explanation, one.gives::<Explanation>(200));
    let one = look("run_report", read, "A security report; a page for whoever accepts HTML");
    api.get(&at("/report"), report, one.gives::<Report>(200).gives_as(200, "text/html"));
    let numbers = look("stats", read, "Numbers of all recorded runs");
    api.get(wire::STATS, stats, numbers.asks::<Words>().gives::<AllStats>(200));
    let all =
        look("audit", read, "Recorded runs, the newest first; as lines the records themselves");
    let all = all.asks::<Words>().gives::<Runs>(200).gives_as(200, wire::NDJSON);
    api.get("/v1/audit", trail, all);
}

/// `GET /v1/runs/{id}`: all that is recorded of a run.
async fn run(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(axum::Json(find(&server, &principal, id).await?).into_response())
}

/// `GET /v1/runs/{id}/events`.
async fn events(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(axum::Json(report::events_of(&find(&server, &principal, id).await?)).into_response())
}

/// `GET /v1/runs/{id}/report`: JSON, or a page for whoever accepts HTML.
async fn report(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accept.is_some_and(|value| value.contains("text/html"));
    let report = Report::of(&find(&server, &principal, id).await?);
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
async fn explanation(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(axum::Json(Explanation::of(&find(&server, &principal, id).await?)).into_response())
}

/// What `GET /v1/stats` tells.
#[derive(Serialize, JsonSchema)]
struct AllStats {
    /// Of the runs that were recorded; nothing when none are.
    runs: Option<Stats>,
    /// Of the pool; nothing when there is none.
    pool: Option<PoolStats>,
}

/// `GET /v1/stats`, with the filters of `belljar audit list`.
async fn stats(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<Response, Problem> {
    let query = Query::of(&request, &principal)?;
    // The pool serves all, and says what others do.
    let pool = server.engine.pool_stats().filter(|_| principal.only().is_none());
    let runs = match &server.audit {
        None => None,
        Some(_) => Some(read(&server, move |store| audit::statistics(store, &query.filter)).await?),
    };
    Ok(axum::Json(AllStats { runs, pool }).into_response())
}

/// `GET /v1/audit`: runs that match, the newest first; as lines, the records themselves, as
/// `belljar audit export` writes them.
async fn trail(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<Response, Problem> {
    let query = Query::of(&request, &principal)?;
    if Format::of(request.headers()) == Format::Lines {
        return export(&server, query).await;
    }
    let (limit, of_tenant) = (query.limit, query.filter.tenant.is_some());
    let list = move |store: &Store| {
        let before = match (&query.filter.tenant, &query.after) {
            (Some(tenant), Some(place)) => match audit::find_place(store, place, tenant)? {
                // Of a run that was pruned meanwhile, which was the oldest: nothing is behind it. What is another's is
                // told as that.
                None if is_place(place) => return Ok(Some(Vec::new())),
                None => return Ok(None),
                before => before,
            },
            (Some(_), None) => None,
            (None, _) => query.before,
        };
        audit::list(store, &query.filter, before, query.limit + 1).map(Some)
    };
    let mut runs = read(&server, list).await?.ok_or_else(none_of_ours)?;
    let more = runs.len() > limit;
    runs.truncate(limit);
    let place = |last: &RunLine| match last.seq {
        Some(seq) if !of_tenant => seq.to_string(),
        Some(_) | None => audit::place_of(last),
    };
    let next_cursor = runs.last().filter(|_| more).map(|last| page::write(&place(last)));
    if of_tenant {
        runs.iter_mut().for_each(|run| run.seq = None);
    }
    Ok(axum::Json(Runs { runs, next_cursor }).into_response())
}

/// What `GET /v1/audit` tells.
#[derive(Serialize, JsonSchema)]
struct Runs {
    runs: Vec<RunLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Records that one answer may hold; a longer trail is asked for in parts, or exported beside the server.
const MAX_EXPORT_BYTES: u64 = 256 << 20;
/// Sent at once, and so many times as much waits for a slow reader.
const PIECE_BYTES: usize = 64 << 10;
const MOST_WAITING: usize = 4;

fn write_to(
    store: &Store,
    filter: &Filter,
    out: &mut dyn Write,
) -> Result<io::Result<u64>, StoreError> {
    match filter.tenant {
        Some(_) => audit::export_of_tenant(store, filter, out),
        None => audit::export(store, filter, out),
    }
}

/// Read twice: how long it is has to be known before it is begun, and it is never held as a whole.
async fn export(server: &Arc<Server>, query: Query) -> Result<Response, Problem> {
    let filter = query.filter.clone();
    let counted = read(server, move |store| write_to(store, &filter, &mut Counting(0))).await?;
    counted.map_err(|_| {
        let detail = format!(
            "the trail has more than {MAX_EXPORT_BYTES} bytes: ask for a part with since and \
             until, or use belljar audit export"
        );
        Problem::coded("too_large", detail)
    })?;
    let (sender, pieces) = mpsc::channel(MOST_WAITING);
    let theirs = Arc::clone(server);
    tokio::spawn(async move {
        let failed = sender.clone();
        let written = read(&theirs, move |store| {
            let mut out = BufWriter::with_capacity(PIECE_BYTES, Sending(sender));
            let written = write_to(store, &query.filter, &mut out)?;
            Ok(written.and_then(|_| out.flush()))
        });
        // Who is gone need not be told; anybody else must not take a part for the whole.
        if !matches!(written.await, Ok(Ok(()))) {
            failed.send(Err(io::Error::other("the trail could not be read to its end"))).await.ok();
        }
    });
    let mut response = Response::new(Body::new(Pieces(pieces)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(wire::NDJSON));
    Ok(response)
}

/// Counts bytes, up to the most.
struct Counting(u64);

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        if self.0 > MAX_EXPORT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends what is written, and waits while nobody takes it.
struct Sending(mpsc::Sender<io::Result<Bytes>>);

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body of what is sent.
struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|next| next.map(|piece| piece.map(Frame::data)))
    }
}

/// What follows the question mark.
struct Query {
    filter: Filter,
    limit: usize,
    /// Only runs whose `seq` is below: the next part of a list.
    before: Option<u64>,
    /// The same for a tenant, to whom no `seq` is told.
    after: Option<String>,
}

impl Query {
    fn of(request: &Request, principal: &Principal) -> Result<Self, Problem> {
        Self::read(request.uri().query().unwrap_or_default(), principal.only())
    }

    fn read(text: &str, tenant: Option<String>) -> Result<Self, Problem> {
        let pairs: Vec<_> = form_urlencoded::parse(text.as_bytes()).collect();
        let (mut limit, mut cursor, mut before, mut words) = (None, None, None, Vec::new());
        for (name, value) in &pairs {
            match &**name {
                "limit" => limit = Some(number(name, value)?),
                "cursor" => cursor = Some(&**value),
                "before" => before = Some(number(name, value)?),
                name => words.push((name, &**value)),
            }
        }
        let part = Part::new(limit, cursor)?;
        let mut filter = Filter::parse(words, audit::now_us()).map_err(wrong)?;
        filter.tenant = tenant;
        if filter.tenant.is_some() && before.is_some() {
            return Err(Problem::field("before", "is not for keys of tenants: ask on with cursor"));
        }
        if let (None, Some(after)) = (&filter.tenant, &part.after) {
            before = Some(after.parse().map_err(|_| none_of_ours())?);
        }
        Ok(Self { filter, limit: part.limit, before, after: part.after })
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_question(text: &str) {
    for tenant in [None, Some("one".to_owned())] {
        match Query::read(text, tenant.clone()) {
            Ok(query) => assert_eq!(query.filter.tenant, tenant, "no word changes whose they are"),
            Err(problem) => assert_eq!(problem.status, 400, "{problem:?}"),
        }
    }
    is_place(text);
}

/// Whether a cursor is in the form of those that tenants are given.
fn is_place(text: &str) -> bool {
    let id = text.strip_suffix(".s").or(text.strip_suffix(".e"));
    id.is_some_and(|id| !id.is_empty() && id.bytes().all(|one| one.is_ascii_alphanumeric()))
}

fn none_of_ours() -> Problem {
    Problem::field("cursor", "is none of ours: begin without one")
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Problem> {
    value.parse().map_err(|_| Problem::field(name, &format!("is \"{value}\", which is no number")))
}

fn wrong(error: SpecError) -> Problem {
    Problem::field(&error.field, &error.reason)
}

/// A run. What is another tenant's is as unknown as what is nobody's.
async fn find(
    server: &Arc<Server>,
    principal: &Principal,
    id: String,
) -> Result<RunRecord, Problem> {
    let only = principal.only();
    let found = read(server, move |store| audit::show_of(store, &id, only.as_deref())).await?;
    found.map_err(|error| Problem::not_found(format!("{} {}", error.field, error.reason)))
}

/// Reads the trail where it may take its time.
async fn read<T: Send + 'static>(
    server: &Arc<Server>,
    act: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let Some(directory): Option<PathBuf> = server.audit.clone() else {
        let detail = "nothing is recorded here: the server was started with --no-audit";
        return Err(Problem::not_found(detail));
    };
    let done =
        tokio::task::spawn_blocking(move || Store::read(&directory).and_then(|store| act(&store)));
    let broken = |what: String| {
        let detail = format!("cannot read the audit trail: {what}");
        Problem::coded("audit", detail)
    };
    match done.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(broken(error.to_string())),
        Err(error) => Err(broken(error.to_string())),
    }
}
