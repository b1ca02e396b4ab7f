//! Programs in a sandbox: started, followed, fed, signalled.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::living::{Following, Offsets, Sandboxes};
use belljar::sandbox::{ExecEvent, ExecInfo, ExecRequest, TerminalSize};
use belljar::{Captured, Data, Error, Stream};
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Beginning, Paged, READ, STATE, WRITE, at, question, screened, told};
use crate::api::{Api, look, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Mine, Server, Who, body};
use crate::limits::Left;
use crate::policy::Running;
use crate::problem::Problem;
use crate::stop::Stop;

/// The longest that an answer waits for the end of an exec when asked to.
const MOST_WAIT_MS: u64 = 3_600_000;

pub(super) fn enter(api: &mut Api) {
    let ran = |id, summary| {
        let ran = start(id, WRITE, summary).gives::<Finished>(200).gives::<ExecInfo>(202);
        ran.streams().refuses(STATE)
    };
    let one = ran("exec", "Run a program in a sandbox").takes::<ExecRequest>();
    api.post(&at("/exec"), exec, one);
    let one = ran("shell", "Run a script of bash in a sandbox").takes::<Script>();
    api.post(&at("/shell"), shell, one);
    let all = look("exec_list", READ, "The programs of a sandbox, those that ended lately too");
    api.get(&at("/execs"), list, all.asks::<Paged>().gives::<Execs>(200).refuses(STATE));
    let one = look("exec_info", READ, "One program; waits for its end when asked to");
    let one = one.asks::<Waiting>().gives::<ExecInfo>(200).refuses(STATE);
    api.get(&at("/execs/{id}"), info, one);
    let told = look("exec_events", READ, "What it writes, from an offset on, and its end");
    let told = told.asks::<From>().streams().refuses(STATE);
    api.get(&at("/execs/{id}/events"), follow, told);
    let done = |id, summary| look(id, WRITE, summary).gives_nothing().refuses(STATE);
    let fed = done("exec_stdin", "Write to its standard input").asks::<Input>();
    api.post(&at("/execs/{id}/stdin"), input, fed.takes_bytes("application/octet-stream"));
    let sent = done("exec_signal", "Send it a signal").takes::<Signal>();
    api.post(&at("/execs/{id}/signal"), signal, sent);
    let sized = done("exec_resize", "Change the size of its terminal").takes::<TerminalSize>();
    api.post(&at("/execs/{id}/resize"), resize, sized);
    let log = look("sandbox_logs", READ, "What all its programs wrote");
    api.get(&at("/logs"), logs, log.asks::<Tail>().streams().refuses(STATE));
}

async fn exec(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of(request.headers());
    let asked: ExecRequest = body::json(request).await?;
    let beginning = Beginning::of(&server, &principal, &sandboxes, &name)?;
    beginning.applied.command()?;
    beginning.applied.timeout(asked.timeout_ms)?;
    let running = beginning.enter(&server)?;
    let left = beginning.admit(&server, &principal)?;
    begin(&server, sandboxes, (name, asked), format, (left, running)).await
}

/// A script for bash, and all that an exec may be told but its command: only its shape.
#[derive(JsonSchema)]
#[schemars(rename = "ScriptRequest")]
#[expect(dead_code, reason = "only its shape is used")]
struct Script {
    script: String,
    #[serde(flatten)]
    how: ExecRequest,
}

async fn shell(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
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
    let beginning = Beginning::of(&server, &principal, &sandboxes, &name)?;
    beginning.applied.language(Some("bash"))?;
    beginning.applied.timeout(how.timeout_ms)?;
    if !how.cmd.is_empty() {
        return Err(Problem::field("cmd", "is not for a script: use /exec"));
    }
    screened(&server, &beginning.applied, "bash", &script).await?;
    let running = beginning.enter(&server)?;
    let left = beginning.admit(&server, &principal)?;
    let cmd = ["/bin/bash", "-c", &script].map(ToOwned::to_owned).to_vec();
    let asked = ExecRequest { cmd, ..how };
    begin(&server, sandboxes, (name, asked), format, (left, running)).await
}

/// An exec that has ended, with its output.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExecResult")]
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
    server: &Arc<Server>,
    sandboxes: Sandboxes,
    (name, asked): (String, ExecRequest),
    format: Format,
    (left, running): (Option<Left>, Running),
) -> Result<Response, Problem> {
    let background = asked.background;
    // Whoever goes away before the end has no more use for what it started, but in the background.
    let following = sandboxes.exec(&name, asked).await.map_err(told)?;
    let mut answer = if background {
        let info = sandboxes.exec_info(&name, following.id()).await.map_err(told)?;
        (StatusCode::ACCEPTED, axum::Json(info)).into_response()
    } else if format == Format::Json {
        axum::Json(document(server, following).await?).into_response()
    } else {
        // Whoever waits for its end is told that the server's came first.
        let stop = server.stop.clone();
        let until = async move {
            stop.cancelled().await;
            (Ending::BrokenOff, Problem::from(&Error::Cancelled))
        };
        stream(following, format, Seen::default(), until, running)
    };
    Left::mark(left.as_ref(), &mut answer);
    Ok(answer)
}

async fn document(server: &Server, following: Following) -> Result<Finished, Problem> {
    let ended = tokio::select! {
        biased;
        () = server.stop.cancelled() => Err(Error::Cancelled),
        ended = following.collect() => ended,
    };
    let (exec, [out, err]) = ended.map_err(told)?;
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

/// Whether what ends a stream ends the work too.
pub(super) enum Ending {
    BrokenOff,
    /// The work goes on, and so can whoever reads.
    LetGo,
}

/// What happens, as it happens; the last line is the end or an error, which is told when `until` comes first.
fn stream(
    mut following: Following,
    format: Format,
    mut seen: Seen,
    until: impl Future<Output = (Ending, Problem)> + Send + 'static,
    held: impl Send + 'static,
) -> Response {
    let outbox = Outbox::default();
    let told = outbox.clone();
    let work = Box::pin(async move {
        let _held = held;
        tokio::pin!(until);
        loop {
            let next = tokio::select! {
                biased;
                (ending, problem) = &mut until => {
                    if matches!(ending, Ending::BrokenOff) {
                        told.break_off();
                    }
                    return tell_problem(format, &told, &problem);
                }
                next = following.next() => next,
            };
            match next {
                Ok(Some(event)) => {
                    seen.pass(&event);
                    told.tell_as(format, &seen.id(), event_name(&event), &event);
                }
                Ok(None) => return,
                Err(error) => return tell_error(format, &told, &error),
            }
        }
    });
    lines::answer(format, outbox, work)
}

/// How much of both streams was told: the id of an event, from which `/events` goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) stdout: u64,
    stderr: u64,
}

impl Seen {
    fn pass(&mut self, event: &ExecEvent) {
        let (stream, to) = match event {
            ExecEvent::Output { stream, offset, data } => (stream, offset + data.0.len() as u64),
            ExecEvent::Gap { stream, to, .. } => (stream, *to),
            ExecEvent::Started { .. } | ExecEvent::Ended(_) => return,
        };
        match stream {
            Stream::Stdout => self.stdout = to,
            Stream::Stderr => self.stderr = to,
        }
    }

    pub(crate) fn id(self) -> String {
        format!("{}.{}", self.stdout, self.stderr)
    }

    pub(crate) fn read(id: &str) -> Result<Self, Problem> {
        let pair = id.split_once('.');
        let pair = pair.and_then(|(out, err)| Some((out.parse().ok()?, err.parse().ok()?)));
        let (stdout, stderr) =
            pair.ok_or_else(|| Problem::field("Last-Event-ID", "is none of ours"))?;
        Ok(Self { stdout, stderr })
    }
}

pub(super) fn tell_error(format: Format, to: &Outbox, error: &Error) {
    tell_problem(format, to, &Problem::from(error));
}

/// When a stream ends that would otherwise hold the server's end up: what it tells of goes on, and is there afterwards.
pub(super) async fn drained(stop: Stop) -> (Ending, Problem) {
    stop.draining().await;
    let detail = "the server ends: ask again when it is back";
    (Ending::LetGo, Problem::coded("draining", detail))
}

pub(super) fn tell_problem(format: Format, to: &Outbox, problem: &Problem) {
    #[derive(Serialize)]
    #[serde(tag = "type", rename = "error")]
    struct Told<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
    }
    to.tell(format, "error", &Told { problem });
}

pub(super) const fn event_name(event: &ExecEvent) -> &'static str {
    match event {
        ExecEvent::Started { .. } => "started",
        ExecEvent::Output { .. } => "output",
        ExecEvent::Gap { .. } => "gap",
        ExecEvent::Ended(_) => "ended",
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExecList")]
struct Execs {
    execs: Vec<ExecInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// In the order of their beginning, which is that of their ids.
async fn list(Mine(sandboxes): Mine, Path(name): Path<String>, request: Request) -> Answer<Execs> {
    let part = question::<Paged>(&request)?.part()?;
    let mut execs = sandboxes.execs(&name).await.map_err(told)?;
    execs.sort_by(|one, other| one.id.cmp(&other.id));
    let page = part.of(execs, |one| one.id.clone());
    Ok(axum::Json(Execs { execs: page.items, next_cursor: page.next_cursor }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Waiting {
    wait_ms: Option<u64>,
}

/// `?wait_ms=` answers at the end, or when that time is over.
async fn info(
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Answer<ExecInfo> {
    let asked: Waiting = question(&request)?;
    if let Some(wait) = asked.wait_ms {
        if wait > MOST_WAIT_MS {
            let reason = format!("must be no more than {MOST_WAIT_MS}: ask again then");
            return Err(Problem::field("wait_ms", &reason));
        }
        let limit = Duration::from_millis(wait);
        let ended = sandboxes.wait(&name, &id);
        if let Ok(ended) = tokio::time::timeout(limit, ended).await {
            return ended.map(axum::Json).map_err(told);
        }
    }
    sandboxes.exec_info(&name, &id).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize, JsonSchema)]
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
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let From { stdout, stderr } = question(&request)?;
    let format = Format::of_stream(request.headers());
    let seen = match lines::last_event(request.headers()) {
        Some(id) => Seen::read(id)?,
        None => Seen { stdout, stderr },
    };
    let from = Offsets { stdout: seen.stdout, stderr: seen.stderr };
    let following = sandboxes.follow(&name, &id, from).await.map_err(told)?;
    Ok(stream(following, format, seen, drained(server.stop.clone()), ()))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    #[serde(default)]
    close: bool,
}

/// The body is written to its standard input; `?close=true` ends that input then.
async fn input(
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Input = question(&request)?;
    let bytes = body::bytes(request).await?;
    if bytes.is_empty() {
        // Also where there is nothing to write, what is not there is told.
        sandboxes.exec_info(&name, &id).await.map_err(told)?;
    } else {
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SignalRequest")]
struct Signal {
    /// `TERM`, `SIGTERM` or `15`.
    signal: serde_json::Value,
}

async fn signal(
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Signal = body::json(request).await?;
    let word = asked.signal.as_str().map_or_else(|| asked.signal.to_string(), ToOwned::to_owned);
    sandboxes.signal(&name, &id, &word).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn resize(
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let size: TerminalSize = body::json(request).await?;
    sandboxes.resize(&name, &id, size).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, JsonSchema)]
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
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let asked: Tail = question(&request)?;
    let format = Format::of_stream(request.headers());
    let mut log = sandboxes.logs(&name, asked.tail, asked.follow).await.map_err(told)?;
    let outbox = Outbox::default();
    let to = outbox.clone();
    let work = Box::pin(async move {
        let until = drained(server.stop.clone());
        tokio::pin!(until);
        loop {
            let next = tokio::select! {
                biased;
                (_, problem) = &mut until => return tell_problem(format, &to, &problem),
                next = log.next() => next,
            };
            match next {
                Ok(Some((exec, stream, bytes))) => {
                    let line = Logged { exec: &exec, stream, data: Data(bytes) };
                    to.tell(format, "log", &line);
                }
                Ok(None) => return,
                Err(error) => return tell_error(format, &to, &error),
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_id_says_where_to_go_on() {
        let mut seen = Seen::default();
        let data = Data(b"12345".to_vec());
        seen.pass(&ExecEvent::Output { stream: Stream::Stderr, offset: 7, data });
        seen.pass(&ExecEvent::Gap { stream: Stream::Stdout, from: 0, to: 3 });
        assert_eq!(seen.id(), "3.12");
        assert_eq!(Seen::read("3.12").unwrap(), seen);
        for wrong in ["", "3", "3.", "a.b", "-1.0", "3.12.1"] {
            assert_eq!(Seen::read(wrong).unwrap_err().status, 400, "{wrong}");
        }
    }
}
