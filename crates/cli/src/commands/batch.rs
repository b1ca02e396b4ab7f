//! `belljar batch`: many requests in parallel under one budget, one result a line, in input order.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar::{Budget, Config, Engine, Error, RunRequest, SpecError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
    let engine = Arc::new(Engine::open(Config::default())?);
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
    let lines = BufReader::new(open(path)?).split(b'\n');
    let filled = lines.map_while(Result::ok).filter(|line| !line.trim_ascii().is_empty());
    Ok(Some(filled.count() as u64))
}

fn open(path: &Path) -> Result<File, SpecError> {
    let wrong = |why: String| SpecError::new("FILE", format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let is_directory = file.metadata().is_ok_and(|one| one.is_dir());
    if is_directory { Err(wrong("is a directory".to_owned())) } else { Ok(file) }
}

/// The requests, read as they are wanted.
fn read_requests(
    path: &Path,
) -> Result<impl Iterator<Item = Result<RunRequest, SpecError>>, SpecError> {
    let source: Box<dyn Read> =
        if path == Path::new("-") { Box::new(std::io::stdin()) } else { Box::new(open(path)?) };
    let mut reader = BufReader::new(source);
    let mut number = 0;
    Ok(std::iter::from_fn(move || {
        loop {
            number += 1;
            let mut line = Vec::new();
            let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
            let wrong = |why: String| Some(Err(SpecError::new(format!("line {number}"), why)));
            match read {
                Err(error) => return wrong(error.to_string()),
                Ok(0) => return None,
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => {
                    return serde_json::from_slice(&line).map_or_else(
                        |error| wrong(error.to_string()),
                        |request| Some(Ok(request)),
                    );
                }
            }
        }
    }))
}
