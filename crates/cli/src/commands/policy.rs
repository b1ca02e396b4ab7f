//! `belljar policy learn`: the least policy under which a recorded run passes, proved by running again.

use std::fs;
use std::io::Read;
use std::path::Path;

use belljar::{Config, Engine, Error, Outcome, Policy, RunRequest, SpecError};
use serde::Deserialize;

use crate::args::{Learn, PolicyCommand};
use crate::remote::Failure;
use crate::render;

/// The longest Outcome that is read: what is kept of two streams, and a recording.
const MAX_OUTCOME_BYTES: u64 = 256 << 20;
/// No attempt passed.
const NOT_PROVED: u8 = 1;

/// What `belljar run --record --json` prints.
#[derive(Deserialize)]
struct Recorded {
    request: Option<RunRequest>,
    #[serde(flatten)]
    outcome: Outcome,
}

pub(crate) async fn policy(command: PolicyCommand) -> u8 {
    let PolicyCommand::Learn(args) = command;
    match learn(&args).await {
        Ok(code) => code,
        Err(failure) => render::trouble(&failure.text(), failure.code()),
    }
}

async fn learn(args: &Learn) -> Result<u8, Failure> {
    let (request, outcome) =
        if args.outcome.exists() { read(&args.outcome)? } else { recall(args)? };
    let learnt = Policy::learn(&outcome)
        .ok_or_else(|| wrong("holds no recording: run it again with --record --json"))?;
    let engine = Engine::open(Config::default())?;
    for policy in learnt.weaker() {
        let again = tokio::select! {
            again = run_again(&engine, &request, &policy) => again,
            () = super::interrupted() => return Err(super::cancelled(&engine).await.into()),
        };
        let why = match again {
            Ok(again) if is_same(&again, &outcome) => return tell(args, &policy, &again),
            Ok(again) => again.verdict.kind().to_owned(),
            Err(error) => error.to_string(),
        };
        let level = policy.level.map(|level| level.to_string()).unwrap_or_default();
        render::trouble(&format!("not enough: at {level} the same run ended so: {why}"), 0);
    }
    let words = "no policy was found under which the same run passes: does it end alike each time?";
    Ok(render::trouble(words, NOT_PROVED))
}

async fn run_again(
    engine: &Engine,
    request: &RunRequest,
    policy: &Policy,
) -> Result<Outcome, Error> {
    let mut request = RunRequest { record: false, ..request.clone() };
    policy.apply(&mut request);
    engine.run(request).await
}

/// It ended in the same way, and met nothing that it had not met before.
fn is_same(again: &Outcome, before: &Outcome) -> bool {
    let known = |event: &belljar::Event| before.events.iter().any(|one| one.is_like(event));
    let worse = |event: &&belljar::Event| event.severity > belljar::Severity::Info;
    again.verdict == before.verdict && again.events.iter().filter(worse).all(known)
}

fn tell(args: &Learn, policy: &Policy, again: &Outcome) -> Result<u8, Failure> {
    let text = policy.to_toml().map_err(|error| wrong(&error))?;
    match &args.out {
        Some(path) => {
            fs::write(path, text).map_err(|error| wrong(&format!("{}: {error}", path.display())))?
        }
        None => {
            crate::output::put(std::io::stdout(), text.as_bytes()).ok();
        }
    }
    let level = policy.level.map(|level| level.to_string()).unwrap_or_default();
    let words = format!(
        "proved: the same run passes under it at level {level} ({}, run {})",
        again.verdict.kind(),
        again.execution_id
    );
    Ok(render::trouble(&words, 0))
}

fn read(path: &Path) -> Result<(RunRequest, Outcome), Failure> {
    let shown = path.display();
    let mut text = Vec::new();
    let opened = fs::File::open(path);
    let read = opened.and_then(|file| file.take(MAX_OUTCOME_BYTES).read_to_end(&mut text));
    read.map_err(|error| wrong(&format!("{shown}: {error}")))?;
    let recorded: Recorded = serde_json::from_slice(&text)
        .map_err(|error| wrong(&format!("{shown} is no Outcome of --json: {error}")))?;
    let request = recorded.request.ok_or_else(|| {
        wrong("holds no request: save what \"belljar run --record --json\" prints")
    })?;
    Ok((request, recorded.outcome))
}

/// A run of the audit trail, by its id.
fn recall(args: &Learn) -> Result<(RunRequest, Outcome), Failure> {
    let shown = args.outcome.display();
    let id = args.outcome.to_str().unwrap_or_default();
    let found = super::audit::find(args.state.as_deref(), id).map_err(|trouble| {
        wrong(&format!("{shown} is no file, and no recorded run: {}", trouble.text()))
    })?;
    let request = found.request().map_err(|why| {
        let words = "save what \"belljar run --record --json\" prints, and give that";
        wrong(&format!("{shown} cannot be run again from the trail: {why}; {words}"))
    })?;
    let outcome = found.outcome().ok_or_else(|| wrong(&format!("{shown} has no Outcome")))?;
    Ok((request, outcome))
}

fn wrong(reason: &str) -> Failure {
    Error::from(SpecError::new("OUTCOME", reason)).into()
}
