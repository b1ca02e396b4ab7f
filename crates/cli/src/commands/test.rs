//! `belljar test`: a candidate and its cases, or a set of problems and candidates for them.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar::audit::Caller;
use belljar::grade::formats::{self, Graded, Problem};
use belljar::grade::{CaseResult, Grade, GradeRequest, Isolate, junit};
use belljar::{Config, Engine, Error, MAX_CODE_BYTES, SpecError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinSet;

use crate::args::Test;
use crate::commands::run;
use crate::remote::{Failure, grades};
use crate::render;
use crate::render::tests_table;

/// The exit code when a candidate does not pass.
const NOT_PASSED: u8 = 1;

pub(crate) async fn test(args: Test) -> u8 {
    let as_json = args.json;
    match carry_out(args).await {
        Ok(code) => code,
        Err(failure) => {
            if as_json {
                render::json(&failure.json());
            } else {
                render::trouble(&failure.text(), 0);
            }
            failure.code()
        }
    }
}

/// One candidate that is to be graded.
struct Entry {
    id: String,
    request: GradeRequest,
}

async fn carry_out(args: Test) -> Result<u8, Failure> {
    let entries = entries(&args)?;
    let total: usize =
        entries.iter().map(|one| one.request.cases.len() + one.request.hidden.len()).sum();
    let bar = progress(total, args.quiet || args.json);
    let here = args.no_server || args.fault.is_some();
    let server = if here { None } else { grades::server(args.server.clone())? };
    let place = match server {
        Some(path) => Where::Server(path),
        None => {
            let config = Config { fault: fault(&args)?, ..Config::default() };
            Where::Here(Box::new(Engine::open(config)?))
        }
    };
    let place = Arc::new(place);
    let parallel = args.parallel.unwrap_or_else(cores).get();
    let graded = tokio::select! {
        graded = grade_all(&place, entries, parallel, &bar) => graded?,
        () = super::interrupted() => {
            return Err(match &*place {
                Where::Here(engine) => super::cancelled(engine).await.into(),
                Where::Server(_) => Error::Cancelled.into(),
            });
        }
    };
    bar.finish_and_clear();
    if let Some(path) = &args.junit {
        write_junit(path, &args, &graded)?;
    }
    Ok(show(&args, &graded))
}

/// Where grading is done.
enum Where {
    Here(Box<Engine>),
    Server(PathBuf),
}

impl Where {
    async fn grade(
        &self,
        request: GradeRequest,
        tell: &mut (dyn FnMut(&CaseResult) + Send),
    ) -> Result<Grade, Failure> {
        match self {
            Self::Here(engine) => Ok(engine.grade_with(request, Caller::own(), None, tell).await?),
            Self::Server(path) => grades::grade(path, &request, tell).await,
        }
    }
}

async fn grade_all(
    place: &Arc<Where>,
    entries: Vec<Entry>,
    parallel: usize,
    bar: &ProgressBar,
) -> Result<Vec<Graded>, Failure> {
    let mut found: Vec<Option<Graded>> = entries.iter().map(|_| None).collect();
    let mut waiting = entries.into_iter().enumerate();
    let mut running = JoinSet::new();
    loop {
        while running.len() < parallel
            && let Some((index, entry)) = waiting.next()
        {
            let (place, bar) = (Arc::clone(place), bar.clone());
            running.spawn(async move {
                let mut tell = |_: &CaseResult| bar.inc(1);
                let grade = place.grade(entry.request, &mut tell).await;
                (index, grade.map(|grade| Graded { task_id: entry.id, grade }))
            });
        }
        match running.join_next().await {
            Some(Ok((index, graded))) => found[index] = Some(graded?),
            Some(Err(_)) => return Err(Error::Lost { what: "our own code broke" }.into()),
            None => return Ok(found.into_iter().flatten().collect()),
        }
    }
}

fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

fn fault(args: &Test) -> Result<Option<belljar::Fault>, SpecError> {
    args.fault.as_deref().map(run::parse_fault).transpose()
}

/// What is to be graded: one candidate, or one for each problem of a set.
fn entries(args: &Test) -> Result<Vec<Entry>, Error> {
    let mut problems = formats::read(&args.cases, args.format)?;
    if let Some(id) = &args.task {
        problems.retain(|one| one.id == *id);
        if problems.is_empty() {
            let reason = format!("{} has no problem \"{id}\"", args.cases.display());
            return Err(SpecError::new("task", reason).into());
        }
    }
    let candidates: Vec<(Problem, String)> = match &args.file {
        None => canonical(args, problems)?,
        Some(file) if is_samples(file) => samples(file, problems)?,
        Some(file) => {
            let [problem] = problems.try_into().map_err(|all: Vec<Problem>| {
                let reason = format!(
                    "is one candidate, and {} holds {} problems: choose one with --task, give \
                     completions as .jsonl, or leave FILE out and say --canonical",
                    args.cases.display(),
                    all.len()
                );
                SpecError::new("FILE", reason)
            })?;
            vec![(problem, read_code(file)?)]
        }
    };
    let hidden = args.hidden.as_deref().map(|path| formats::read(path, None)).transpose()?;
    let with_hidden = |(mut problem, code): (Problem, String)| {
        if let Some(hidden) = &hidden {
            hide(&mut problem, hidden, args.hidden.as_deref().unwrap_or(Path::new("")))?;
        }
        entry(args, &problem, code)
    };
    candidates.into_iter().map(with_hidden).collect()
}

/// Adds the hidden cases of the same problem; a file that is no set of problems is for all.
fn hide(problem: &mut Problem, hidden: &[Problem], path: &Path) -> Result<(), SpecError> {
    let only = hidden.len() == 1 && problem.id.is_empty();
    let own = |one: &&Problem| only || one.id.is_empty() || one.id == problem.id;
    let found: Vec<Problem> = hidden.iter().filter(own).cloned().collect();
    if found.is_empty() {
        let reason = format!("{} has no problem \"{}\"", path.display(), problem.id);
        return Err(SpecError::new("hidden", reason));
    }
    found.into_iter().for_each(|one| problem.hide(one));
    Ok(())
}

fn canonical(args: &Test, problems: Vec<Problem>) -> Result<Vec<(Problem, String)>, SpecError> {
    if !args.canonical {
        return Err(SpecError::new("FILE", "is missing: give the candidate, or --canonical"));
    }
    let with_code = |one: Problem| {
        let code = one.canonical.clone().ok_or_else(|| {
            let reason = format!("has no canonical solution for \"{}\"", one.id);
            SpecError::new("cases", reason)
        })?;
        Ok((one, code))
    };
    problems.into_iter().map(with_code).collect()
}

fn is_samples(file: &Path) -> bool {
    file.extension().is_some_and(|one| one == "jsonl" || one == "ndjson")
}

fn samples(file: &Path, problems: Vec<Problem>) -> Result<Vec<(Problem, String)>, SpecError> {
    let by_id: HashMap<String, Problem> =
        problems.into_iter().map(|one| (one.id.clone(), one)).collect();
    formats::read_samples(file)?
        .into_iter()
        .map(|sample| {
            let problem = by_id.get(&sample.task_id.0).ok_or_else(|| {
                let reason =
                    format!("completes \"{}\", which is no problem here", sample.task_id.0);
                SpecError::new("FILE", reason)
            })?;
            Ok((problem.clone(), problem.complete(&sample.completion)))
        })
        .collect()
}

fn entry(args: &Test, problem: &Problem, code: String) -> Result<Entry, Error> {
    let mut request = problem.request(code);
    let file_name = args.file.as_deref().filter(|file| !is_samples(file));
    request.file_name =
        file_name.and_then(Path::file_name).and_then(|name| name.to_str()).map(ToOwned::to_owned);
    request.language.clone_from(&args.language);
    if request.language.is_none() && request.file_name.is_none() {
        request.language = Some("python".to_owned());
    }
    request.func_name = args.func.clone().or(request.func_name);
    if let Some(path) = &args.setup {
        request.setup_code = Some(read_code(path)?);
    }
    request.level = args.level;
    request.limits = run::limits(&args.limits);
    request.isolate = args.isolate;
    request.shuffle = args.shuffle;
    request.parallel = args.parallel;
    request.total_ms = args.total_time;
    request.timing = args.timing;
    request.show_hidden = args.show_hidden;
    request.feedback_chars = args.feedback;
    request.start = args.start;
    Ok(Entry { id: problem.id.clone(), request })
}

fn read_code(path: &Path) -> Result<String, SpecError> {
    let wrong = |why: String| SpecError::new("FILE", format!("{}: {why}", path.display()));
    let status = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !status.is_file() {
        return Err(wrong("is not a file".to_owned()));
    }
    if status.len() > MAX_CODE_BYTES as u64 {
        return Err(wrong(format!("is longer than {MAX_CODE_BYTES} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))
}

fn progress(total: usize, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    let hidden = quiet || !std::io::stderr().is_terminal();
    bar.set_draw_target(if hidden {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    });
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {per_sec}") {
        bar.set_style(style);
    }
    bar
}

fn write_junit(path: &Path, args: &Test, graded: &[Graded]) -> Result<(), Error> {
    let file =
        args.file.as_ref().map_or_else(|| "candidate".to_owned(), |one| one.display().to_string());
    let name =
        |one: &Graded| if one.task_id.is_empty() { file.clone() } else { one.task_id.clone() };
    let names: Vec<String> = graded.iter().map(name).collect();
    let suites = names.iter().map(String::as_str).zip(graded.iter().map(|one| &one.grade));
    std::fs::write(path, junit(suites))
        .map_err(|error| SpecError::new("junit", format!("{}: {error}", path.display())).into())
}

/// Prints what came of it; the answer is the exit code.
fn show(args: &Test, graded: &[Graded]) -> u8 {
    let one = match graded {
        [one] if one.task_id.is_empty() || args.task.is_some() => Some(one),
        _ => None,
    };
    let printed = match (args.json, one) {
        (true, Some(one)) => render::json(&one.grade),
        (true, None) => render::json(&tests_table::summary(graded)),
        (false, Some(one)) => tests_table::one(&one.grade, args.quiet),
        (false, None) => tests_table::many(graded, args.quiet),
    };
    if printed != 0 {
        return printed;
    }
    let trusted = graded.iter().all(|one| one.grade.score_trustworthy);
    match graded.iter().all(|one| one.grade.all_passed) {
        true => 0,
        false if trusted => NOT_PASSED,
        false => render::OURS,
    }
}

/// The word of `--isolate`.
pub(crate) fn isolate(word: &str) -> Result<Isolate, String> {
    match word {
        "process" => Ok(Isolate::Process),
        "case" => Ok(Isolate::Case),
        _ => Err("is none of process, case".to_owned()),
    }
}
