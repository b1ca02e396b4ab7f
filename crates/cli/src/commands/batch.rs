//! `belljar batch`: many requests in parallel under one budget, one result a line, in input order.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar::{Budget, Config, Engine, Error, RunRequest, SpecError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::mpsc;

use super::audit::Recorder;
use crate::args::Batch;
use crate::render;

/// One request with its code and files; more belongs in a workspace.
const MAX_LINE_BYTES: u64 = 64 << 20;

pub(crate) async fn batch(args: Batch) -> u8 {
    match carry_out(args).await {
        Ok(code) => code,
        Err(error) => render::trouble(&error.to_string(), render::error_code(&error)),
    }
}

async fn carry_out(args: Batch) -> Result<u8, Error> {
    let total = count_lines(&args.file)?;
    let requests = read_requests(&args.file)?;
    let audit = super::audit::config(&args.audit, Recorder::Batch)?;
    let secrets = super::secret::places(args.audit.state.as_deref());
    let engine = Arc::new(Engine::open(Config { audit, secrets, ..Config::default() })?);
    let progress = progress(total, args.quiet);
    let mut worst = 0;
    let tell = |_, result: Result<belljar::Outcome, Error>| {
        worst = worst.max(tell_one(&result));
        progress.inc(1);
    };
    let budget = budget(&args)?;
    tokio::select! {
        () = engine.run_batch(requests, budget, tell) => {}
        () = super::interrupted() => return Err(super::cancelled(&engine).await),
    }
    progress.finish_and_clear();
    Ok(worst)
}

fn budget(args: &Batch) -> Result<Budget, SpecError> {
    let mut budget = Budget::default();
    if let Some(asked) = args.parallel {
        budget.parallel = NonZeroUsize::new(asked)
            .ok_or_else(|| SpecError::new("parallel", "is 0; at least one run at a time"))?;
    }
    budget.cpu = args.budget_cpu_time.map(Duration::from_millis);
    budget.wall = args.budget_time.map(Duration::from_millis);
    Ok(budget)
}

/// Prints one result and says how bad it is as an exit code.
fn tell_one(result: &Result<belljar::Outcome, Error>) -> u8 {
    let (text, code) = match result {
        Ok(outcome) => (render::compact(outcome), 0),
        Err(error) => (render::compact(&render::error_json(error)), render::error_code(error)),
    };
    match text {
        Ok(text) => code.max(render::line(&text)),
        Err(error) => render::trouble(&format!("cannot write JSON: {error}"), 125),
    }
}

fn progress(total: Option<u64>, quiet: bool) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let hidden = quiet || !std::io::stderr().is_terminal();
    bar.set_draw_target(if hidden {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    });
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {per_sec}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

/// How many requests there are; only a regular file says so beforehand.
fn count_lines(path: &Path) -> Result<Option<u64>, SpecError> {
    let is_file = std::fs::metadata(path).is_ok_and(|one| one.is_file());
    if path == Path::new("-") || !is_file {
        return Ok(None); // a pipe can be read only once
    }
    let mut reader = BufReader::new(open(path)?);
    let (mut lines, mut filled) = (0, false);
    loop {
        let wrong = |error: std::io::Error| SpecError::new("FILE", error.to_string());
        let bytes = reader.fill_buf().map_err(wrong)?;
        if bytes.is_empty() {
            return Ok(Some(lines + u64::from(filled)));
        }
        for byte in bytes {
            if *byte == b'\n' {
                lines += u64::from(std::mem::take(&mut filled));
            } else {
                filled |= !byte.is_ascii_whitespace();
            }
        }
        let length = bytes.len();
        reader.consume(length);
    }
}

fn open(path: &Path) -> Result<File, SpecError> {
    let wrong = |why: String| SpecError::new("FILE", format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let is_directory = file.metadata().is_ok_and(|one| one.is_dir());
    if is_directory { Err(wrong("is a directory".to_owned())) } else { Ok(file) }
}

/// Reads the requests on a thread of its own, as fast as they are wanted: a slow producer must not keep
/// us from the runs that go on.
fn read_requests(path: &Path) -> Result<mpsc::Receiver<Result<RunRequest, SpecError>>, SpecError> {
    let from_stdin = path == Path::new("-");
    let file = if from_stdin { None } else { Some(open(path)?) };
    let (sender, requests) = mpsc::channel(1);
    std::thread::spawn(move || {
        let source: Box<dyn Read> = match file {
            Some(file) => Box::new(file),
            None => Box::new(std::io::stdin()),
        };
        let mut lines = Lines { reader: BufReader::new(source), number: 0, broken: false };
        // Nobody listens any more when the batch was cancelled.
        while lines.next_request().is_some_and(|request| sender.blocking_send(request).is_ok()) {}
    });
    Ok(requests)
}

struct Lines {
    reader: BufReader<Box<dyn Read>>,
    number: u64,
    broken: bool,
}

impl Lines {
    fn next_request(&mut self) -> Option<Result<RunRequest, SpecError>> {
        loop {
            if self.broken {
                return None;
            }
            self.number += 1;
            let mut line = Vec::new();
            let read = self.reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
            let wrong = |why: String| SpecError::new(format!("line {}", self.number), why);
            if let Err(error) = read {
                self.broken = true;
                return Some(Err(wrong(error.to_string())));
            }
            if line.is_empty() {
                return None;
            }
            if line.len() as u64 == MAX_LINE_BYTES && !line.ends_with(b"\n") {
                let error = wrong(format!("is longer than {MAX_LINE_BYTES} bytes"));
                self.broken = self.reader.skip_until(b'\n').is_err();
                return Some(Err(error));
            }
            if !line.trim_ascii().is_empty() {
                return Some(
                    serde_json::from_slice(&line).map_err(|error| wrong(error.to_string())),
                );
            }
        }
    }
}
