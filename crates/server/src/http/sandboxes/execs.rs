//! Programs in a sandbox: started, followed, fed, signalled.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use belljar::living::{Following, Offsets};
use belljar::sandbox::{ExecEvent, ExecInfo, ExecRequest, TerminalSize};
use belljar::{Captured, Data, Error, Stream};
use bytes::{BufMut, BytesMut};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::{Answer, only, question, told};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Server, body};
use crate::problem::Problem;

/// The longest that an answer waits for the end of an exec when asked to.
const MOST_WAIT: Duration = Duration::from_secs(3600);

pub(super) fn routes(
    router: Router<Arc<Server>>,
    at: impl Fn(&str) -> String,
) -> Router<Arc<Server>> {
    router
        .route(&at("/exec"), only(post(exec), "POST"))
        .route(&at("/shell"), only(post(shell), "POST"))
        .route(&at("/execs"), only(get(list), "GET"))
        .route(&at("/execs/{id}"), only(get(info), "GET"))
        .route(&at("/execs/{id}/events"), only(get(follow), "GET"))
        .route(&at("/execs/{id}/stdin"), only(post(input), "POST"))
        .route(&at("/execs/{id}/signal"), only(post(signal), "POST"))
        .route(&at("/execs/{id}/resize"), only(post(resize), "POST"))
        .route(&at("/logs"), only(get(logs), "GET"))
}

async fn exec(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of(request.headers());
    let asked: ExecRequest = body::json(request).await?;
    begin(server, name, asked, format).await
}

async fn shell(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of(request.headers());
    let mut asked: serde_json::Map<String, serde_json::Value> = body::json(request).await?;
    let Some(serde_json::Value::String(script)) = asked.remove("script") else {
        return Err(Problem::field("script", "is missing: give the script as text"));
    };
    // All that an exec may be told but its command, and nothing that it may not.
    let how: ExecRequest = serde_json::from_value(asked.into())
        .map_err(|error| Problem::field("body", &format!("cannot be read: {error}")))?;
    if !how.cmd.is_empty() {
        return Err(Problem::field("cmd", "is not for a script: use /exec"));
    }
    let cmd = ["/bin/bash", "-c", &script].map(ToOwned::to_owned).to_vec();
    begin(server, name, ExecRequest { cmd, ..how }, format).await
}

/// An exec that has ended, with its output.
#[derive(Serialize)]
pub(super) struct Finished {
    #[serde(flatten)]
    exec: ExecInfo,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    stdout_truncated: bool,
    stderr_truncated: bool,
}

async fn begin(
    server: Arc<Server>,
    name: String,
    asked: ExecRequest,
    format: Format,
) -> Result<Response, Problem> {
    let background = asked.background;
    // Whoever goes away before the end has no more use for what it started, but in the background.
    let following = server.sandboxes.exec(&name, asked).await.map_err(told)?;
    if background {
        let info = server.sandboxes.exec_info(&name, following.id()).await.map_err(told)?;
        return Ok((StatusCode::ACCEPTED, axum::Json(info)).into_response());
    }
    match format {
        Format::Json => Ok(axum::Json(document(following).await?).into_response()),
        Format::Lines | Format::Events => Ok(stream(following, format)),
    }
}

async fn document(following: Following) -> Result<Finished, Problem> {
    let (exec, [out, err]) = following.collect().await.map_err(told)?;
    Ok(Finished::new(exec, &out, &err))
}

impl Finished {
    pub(super) fn new(exec: ExecInfo, out: &Captured, err: &Captured) -> Self {
        let text = |stream: &Captured| (stream.text(), stream.base64(), stream.dropped_bytes > 0);
        let (stdout, stdout_base64, stdout_truncated) = text(out);
        let (stderr, stderr_base64, stderr_truncated) = text(err);
        Self {
            exec,
            stdout,
            stderr,
            stdout_base64,
            stderr_base64,
            stdout_truncated,
            stderr_truncated,
        }
    }
}

/// What happens, as it happens; the last line is the end or an error.
fn stream(mut following: Following, format: Format) -> Response {
    let outbox = Outbox::default();
    let told = outbox.clone();
    let work = Box::pin(async move {
        loop {
            match following.next().await {
                Ok(Some(event)) => tell(format, &mut told.write(), event_name(&event), &event),
                Ok(None) => return,
                Err(error) => return tell_error(format, &mut told.write(), &error),
            }
        }
    });
    lines::answer(format, outbox, work)
}

pub(super) fn tell_error(format: Format, to: &mut BytesMut, error: &Error) {
    tell_problem(format, to, &Problem::from(error));
}

pub(super) fn tell_problem(format: Format, to: &mut BytesMut, problem: &Problem) {
    #[derive(Serialize)]
    #[serde(tag = "type", rename = "error")]
    struct Told<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
    }
    tell(format, to, "error", &Told { problem });
}

/// One line, or one server-sent event.
pub(super) fn tell(format: Format, to: &mut BytesMut, name: &str, event: &impl Serialize) {
    if format == Format::Events {
        to.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
    }
    // Writing to memory does not fail, and JSON can say all that an event holds.
    serde_json::to_writer(to.writer(), event).ok();
    to.extend_from_slice(if format == Format::Events { b"\n\n" } else { b"\n" });
}

pub(super) const fn event_name(event: &ExecEvent) -> &'static str {
    match event {
        ExecEvent::Started { .. } => "started",
        ExecEvent::Output { .. } => "output",
        ExecEvent::Gap { .. } => "gap",
        ExecEvent::Ended(_) => "ended",
    }
}

#[derive(Serialize)]
struct Execs {
    execs: Vec<ExecInfo>,
}

async fn list(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<Execs> {
    let execs = server.sandboxes.execs(&name).await.map_err(told)?;
    Ok(axum::Json(Execs { execs }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    wait_ms: Option<u64>,
}

/// `?wait_ms=` answers at the end, or when that time is over.
async fn info(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Answer<ExecInfo> {
    let asked: Waiting = question(&request)?;
    let sandboxes = &server.sandboxes;
    if let Some(wait) = asked.wait_ms {
        let limit = Duration::from_millis(wait).min(MOST_WAIT);
        let ended = sandboxes.wait(&name, &id);
        if let Ok(ended) = tokio::time::timeout(limit, ended).await {
            return ended.map(axum::Json).map_err(told);
        }
    }
    sandboxes.exec_info(&name, &id).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    #[serde(default)]
    stdout: u64,
    #[serde(default)]
    stderr: u64,
}

/// `?stdout=OFFSET&stderr=OFFSET`: what is kept from there on, and then what comes.
async fn follow(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let From { stdout, stderr } = question(&request)?;
    let format = Format::of_stream(request.headers());
    let from = Offsets { stdout, stderr };
    let following = server.sandboxes.follow(&name, &id, from).await.map_err(told)?;
    Ok(stream(following, format))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    #[serde(default)]
    close: bool,
}

/// The body is written to its standard input; `?close=true` ends that input then.
async fn input(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Input = question(&request)?;
    let sandboxes = &server.sandboxes;
    let bytes = body::bytes(request).await?;
    if !bytes.is_empty() {
        sandboxes.input(&name, &id, &bytes).await.map_err(told)?;
    }
    if asked.close {
        match sandboxes.close_input(&name, &id).await {
            // It took what was written, wanted no more, and has ended: there is nothing left to close.
            Err(Error::NotFound { .. }) if !bytes.is_empty() => {}
            closed => closed.map_err(told)?,
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Signal {
    /// `TERM`, `SIGTERM` or `15`.
    signal: serde_json::Value,
}

async fn signal(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Signal = body::json(request).await?;
    let word = asked.signal.as_str().map_or_else(|| asked.signal.to_string(), ToOwned::to_owned);
    server.sandboxes.signal(&name, &id, &word).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn resize(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let size: TerminalSize = body::json(request).await?;
    server.sandboxes.resize(&name, &id, size).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tail {
    tail: Option<u64>,
    #[serde(default)]
    follow: bool,
}

/// One piece of a sandbox's log.
#[derive(Serialize)]
struct Logged<'a> {
    exec: &'a str,
    stream: Stream,
    data: Data,
}

/// What all its execs wrote, those that started first first; `?tail=` lines of it, `?follow=true` and what comes.
async fn logs(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: Tail = question(&request)?;
    let format = Format::of_stream(request.headers());
    let mut log = server.sandboxes.logs(&name, asked.tail, asked.follow).await.map_err(told)?;
    let outbox = Outbox::default();
    let to = outbox.clone();
    let work = Box::pin(async move {
        loop {
            match log.next().await {
                Ok(Some((exec, stream, bytes))) => {
                    let line = Logged { exec: &exec, stream, data: Data(bytes) };
                    tell(format, &mut to.write(), "log", &line);
                }
                Ok(None) => return,
                Err(error) => return tell_error(format, &mut to.write(), &error),
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}
