//! Programs in a sandbox, from the command line: run, followed, signalled, read again.

use std::io::IsTerminal;

use belljar::sandbox::{ExecEnd, ExecEvent, ExecInfo, ExecRequest, ExecState};
use belljar::{Data, Error, SpecError, Stream};
use belljar_server::{Problem, wire};
use hyper::Method;
use serde::{Deserialize, Serialize};

use super::super::run::{pairs, read_stdin};
use super::{Called, at, terminal};
use crate::args::sandbox::{Attach, Exec, How, Logs, Shell, SignalArgs};
use crate::remote::sandboxes::{Lines, bytes, empty, json, read};
use crate::remote::{Failure, escaped};
use crate::render::{self, Live};

/// What runs a script.
const BASH: &str = "/bin/bash";
/// In which sandbox and where one is.
const PROMPT: &str = "\\h:\\w\\$ ";

pub(super) async fn exec(called: &Called, args: Exec) -> Result<u8, Failure> {
    let request = request(&args.how, args.cmd)?;
    run(called, &args.name, &request, args.how.raw).await
}

pub(super) async fn shell(called: &Called, args: Shell) -> Result<u8, Failure> {
    let wants_terminal = args.script.is_none() && !args.how.background && args.how.stdin.is_none();
    if wants_terminal && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        let mut request = request(&args.how, vec![BASH.to_owned(), "-i".to_owned()])?;
        request.env.entry("PS1".to_owned()).or_insert_with(|| PROMPT.to_owned());
        return terminal::open(called, &args.name, request).await;
    }
    let script = match args.script {
        Some(script) => script,
        None if args.how.stdin.is_some() => {
            return Err(SpecError::new("stdin", "needs a script that reads it: give -c").into());
        }
        // A script by a pipe, as bash itself takes it.
        None => {
            let piped = super::super::run::read_bounded(std::io::stdin());
            super::super::run::text("stdin", "standard input", piped)?
        }
    };
    let cmd = [BASH, "-c", &script].map(ToOwned::to_owned).to_vec();
    run(called, &args.name, &request(&args.how, cmd)?, args.how.raw).await
}

fn request(how: &How, cmd: Vec<String>) -> Result<ExecRequest, SpecError> {
    Ok(ExecRequest {
        cmd,
        cwd: how.cwd.clone(),
        env: pairs("env", &how.env)?,
        user: how.user.clone(),
        stdin: how.stdin.as_deref().map(read_stdin).transpose()?,
        keep_stdin: how.keep_stdin,
        timeout_ms: how.timeout,
        background: how.background,
        terminal: None,
    })
}

async fn run(called: &Called, name: &str, request: &ExecRequest, raw: bool) -> Result<u8, Failure> {
    let path = at(name, "/exec");
    if request.background {
        let info: ExecInfo = called.way.post(&path, request).await?;
        return Ok(if called.json { render::json(&info) } else { render::line(&info.id) });
    }
    to_the_end(called, &path, request, raw).await
}

/// Asks for a program and passes on what becomes of it.
pub(super) async fn to_the_end(
    called: &Called,
    path: &str,
    request: &impl Serialize,
    raw: bool,
) -> Result<u8, Failure> {
    if called.json {
        let answer = async {
            let response = called.way.send(Method::POST, path, wire::JSON, json(request)?);
            let response = response.await?;
            read::<serde_json::Value>(response).await
        };
        let finished = tokio::select! {
            answer = answer => answer?,
            () = super::super::interrupted() => return Err(Error::Cancelled.into()),
        };
        let info: ExecInfo = serde_json::from_value(finished.clone())
            .map_err(|error| crate::remote::sandboxes::lost(error.into()))?;
        let printed = render::json(&finished);
        return Ok(if printed == 0 { code_of(&info) } else { printed });
    }
    let response = called.way.send(Method::POST, path, wire::NDJSON, json(request)?).await?;
    called.way.let_go();
    follow(Lines::of(response), raw).await
}

/// One line of an exec's stream.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Told {
    Event(ExecEvent),
    Error(Problem),
}

/// Passes output on until the end; whoever interrupts us closes the connection, which ends what we started.
async fn follow(mut lines: Lines, raw: bool) -> Result<u8, Failure> {
    let mut live = Live::new(raw);
    loop {
        let next = tokio::select! {
            next = lines.next::<Told>() => next?,
            () = super::super::interrupted() => return Err(Error::Cancelled.into()),
        };
        match next {
            Some(Told::Event(ExecEvent::Started { .. })) => {}
            Some(Told::Event(ExecEvent::Output { stream, data, .. })) => {
                if live.write(stream, &data.0).is_err() {
                    return Ok(0); // nobody reads any more
                }
            }
            Some(Told::Event(ExecEvent::Gap { from, to, .. })) => {
                render::words(&format!("[bytes {from} to {to} are no longer kept]"));
            }
            Some(Told::Event(ExecEvent::Ended(info))) => {
                live.finish().ok(); // a reader that is gone by now misses nothing that it asked for
                if let Some(words) = info.end.as_ref().and_then(summary) {
                    render::trouble(&words, 0);
                }
                return Ok(code_of(&info));
            }
            Some(Told::Error(problem)) => return Err(Failure::Told(problem)),
            None => return Err(Error::Lost { what: "the server went away before the end" }.into()),
        }
    }
}

/// The program's own code, and ours for what it met, as for a run.
pub(super) fn code_of(info: &ExecInfo) -> u8 {
    match &info.end {
        Some(end) => render::verdict_code(&end.verdict, end.exit_code),
        None => render::OURS,
    }
}

/// A line about an end that is not the program's own.
fn summary(end: &ExecEnd) -> Option<String> {
    render::verdict_words(&end.verdict)
}

#[derive(Serialize)]
struct Execs {
    execs: Vec<ExecInfo>,
}

pub(super) async fn list(called: &Called, name: &str) -> Result<u8, Failure> {
    let all = Execs { execs: called.way.all(&at(name, "/execs?"), "execs").await? };
    if called.json {
        return Ok(render::json(&all));
    }
    let mut rows = vec![["ID", "STATE", "STARTED", "OUTPUT", "COMMAND"].map(String::from)];
    rows.extend(all.execs.iter().map(|one| {
        let state = match (&one.state, &one.end) {
            (ExecState::Running, _) => "running".to_owned(),
            (ExecState::Ended, Some(end)) => end.verdict.kind().to_owned(),
            (ExecState::Ended, None) => "ended".to_owned(),
            (ExecState::Lost, _) => "lost".to_owned(),
        };
        let written = (one.stdout_bytes + one.stderr_bytes).to_string();
        [one.id.clone(), state, one.started_at.clone(), written, one.cmd.join(" ")]
    }));
    Ok(render::table(&rows))
}

pub(super) async fn attach(called: &Called, args: &Attach) -> Result<u8, Failure> {
    let exec = at(&args.name, &format!("/execs/{}", escaped(&args.id)));
    let path = format!("{exec}/events?stdout={}", args.from);
    let response = called.way.send(Method::GET, &path, wire::NDJSON, empty()).await?;
    called.way.let_go();
    let following = follow(Lines::of(response), args.raw);
    if !args.stdin {
        return following.await;
    }
    let mut input = terminal::input();
    let feeding = async {
        let fed = async {
            while let Some(piece) = input.recv().await {
                called.way.tell(Method::POST, &format!("{exec}/stdin"), bytes(piece)).await?;
            }
            called.way.tell(Method::POST, &format!("{exec}/stdin?close=true"), empty()).await
        };
        match fed.await {
            // It has ended and wants no more: whoever follows it tells how.
            Err(Failure::Told(problem)) if &*problem.kind == "not_found" => {}
            fed => fed?,
        }
        std::future::pending::<Result<u8, Failure>>().await
    };
    tokio::select! {
        code = following => code,
        failed = feeding => failed,
    }
}

pub(super) async fn signal(called: &Called, args: &SignalArgs) -> Result<u8, Failure> {
    let path = at(&args.name, &format!("/execs/{}/signal", escaped(&args.id)));
    let asked = json(&serde_json::json!({ "signal": args.signal }))?;
    called.way.tell(Method::POST, &path, asked).await?;
    Ok(0)
}

#[derive(Serialize, Deserialize)]
struct Logged {
    exec: String,
    stream: Stream,
    data: Data,
}

pub(super) async fn logs(called: &Called, args: &Logs) -> Result<u8, Failure> {
    let tail = args.tail.map(|tail| format!("tail={tail}"));
    let words = tail.into_iter().chain(args.follow.then(|| "follow=true".to_owned()));
    let question = words.collect::<Vec<_>>().join("&");
    let path = at(&args.name, &format!("/logs?{question}"));
    let mut lines = Lines::of(called.way.send(Method::GET, &path, wire::NDJSON, empty()).await?);
    called.way.let_go();
    let mut live = Live::new(args.raw);
    loop {
        let next = tokio::select! {
            next = lines.next::<Logged>() => next?,
            () = super::super::interrupted() => return Ok(0),
        };
        match next {
            None => {
                live.finish().ok(); // as above
                return Ok(0);
            }
            Some(piece) if called.json => {
                let text = render::compact(&piece).unwrap_or_default();
                let printed = render::line(&text);
                if printed != 0 {
                    return Ok(printed);
                }
            }
            Some(piece) => {
                if live.write(piece.stream, &piece.data.0).is_err() {
                    return Ok(0);
                }
            }
        }
    }
}
