//! `belljar evolve`: the loop in the terminal, and what is done with its store afterwards.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar::{Config, Engine, Error, SpecError};
use belljar_evolve::{Budget, Evolution, Line, Record, Summary, Task};
use belljar_server::places;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::evolve::{Best, Evolve, EvolveCommand, Export, Place, Promote, Resume, Show};
use crate::render;
use crate::render::evolution;

/// The exit code when the target was not reached.
const NOT_REACHED: u8 = 1;
/// How often the terminal's line is drawn anew while nothing happens.
const TICK: Duration = Duration::from_millis(200);

pub(crate) async fn evolve(args: Evolve) -> u8 {
    let as_json = wants_json(&args);
    match carry_out(args).await {
        Ok(code) => code,
        Err(error) => {
            if as_json {
                render::json(&render::error_json(&error));
            } else {
                render::trouble(&error.to_string(), 0);
            }
            render::error_code(&error)
        }
    }
}

fn wants_json(args: &Evolve) -> bool {
    match &args.command {
        None => args.json,
        Some(EvolveCommand::List(one)) => one.json,
        Some(EvolveCommand::Show(one)) => one.json,
        Some(EvolveCommand::Resume(one)) => one.json,
        Some(EvolveCommand::Best(one)) => one.json,
        Some(EvolveCommand::Export(_) | EvolveCommand::Promote(_)) => false,
    }
}

async fn carry_out(args: Evolve) -> Result<u8, Error> {
    match args.command {
        Some(EvolveCommand::List(one)) => list(&root(&one.place)?, one.json),
        Some(EvolveCommand::Show(one)) => show(&one),
        Some(EvolveCommand::Resume(one)) => resume(one).await,
        Some(EvolveCommand::Export(one)) => export(&one),
        Some(EvolveCommand::Best(one)) => best(&one),
        Some(EvolveCommand::Promote(one)) => promote(&one),
        None => begin(args).await,
    }
}

/// Where evolutions are kept.
fn root(place: &Place) -> Result<PathBuf, SpecError> {
    if let Some(state) = &place.state {
        return Ok(state.clone());
    }
    let homeless = || SpecError::new("state", "has no default without HOME: give --state DIR");
    Ok(places::state().ok_or_else(homeless)?.join(places::EVOLUTIONS))
}

async fn begin(args: Evolve) -> Result<u8, Error> {
    let root = root(&args.place)?;
    let path = args.task.ok_or_else(|| SpecError::new("TASK", "is missing: give a task file"))?;
    let mut task = Task::load(&path)?;
    task.max_iterations = args.max_iterations.unwrap_or(task.max_iterations);
    task.seed = args.seed.unwrap_or(task.seed);
    let engine = Engine::open(Config::default())?;
    let evolution = Evolution::begin(&engine, &root, task)?;
    run(&engine, evolution, args.json, args.quiet).await
}

async fn resume(args: Resume) -> Result<u8, Error> {
    let root = root(&args.place)?;
    let engine = Engine::open(Config::default())?;
    let budget = Budget {
        executions: args.budget_executions,
        seconds: args.budget_seconds,
        tokens: args.budget_tokens,
        money: args.budget_money,
    };
    let evolution = Evolution::resume(&root, &args.id, args.max_iterations, budget)?;
    run(&engine, evolution, args.json, args.quiet).await
}

async fn run(
    engine: &Engine,
    mut evolution: Evolution,
    as_json: bool,
    quiet: bool,
) -> Result<u8, Error> {
    let id = evolution.id().to_owned();
    let view = View::new(&evolution.summary(), as_json || quiet);
    view.say(&format!("evolution {id}"));
    let mut tell = |line: &Line, summary: &Summary| view.tell(line, summary);
    let summary = tokio::select! {
        summary = evolution.run(engine, None, &mut tell) => summary?,
        () = super::interrupted() => {
            view.bar.finish_and_clear();
            let error = super::cancelled(engine).await;
            render::trouble(&format!("go on with: belljar evolve resume {id}"), 0);
            return Err(error);
        }
    };
    view.bar.finish_and_clear();
    let printed = if as_json { render::json(&summary) } else { evolution::summary(&summary) };
    Ok(if printed != 0 { printed } else { u8::from(!summary.target_reached) * NOT_REACHED })
}

/// What is seen while it runs: lines, and below them a bar where there is a terminal.
struct View {
    bar: ProgressBar,
    quiet: bool,
}

impl View {
    fn new(summary: &Summary, quiet: bool) -> Self {
        let bar = ProgressBar::new(u64::from(summary.max_iterations));
        let hidden = quiet || !std::io::stderr().is_terminal();
        bar.set_draw_target(if hidden {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        });
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {bar:30} {pos}/{len}  {msg}  {elapsed}")
        {
            bar.set_style(style);
        }
        bar.set_position(u64::from(summary.iterations));
        if !hidden {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, quiet }
    }

    fn tell(&self, line: &Line, summary: &Summary) {
        self.bar.set_position(u64::from(summary.iterations));
        self.bar.set_message(evolution::state(summary));
        if let Record::Graded(graded) = &line.record {
            self.say(&evolution::step(graded, summary));
        }
    }

    fn say(&self, words: &str) {
        if self.quiet {
            return;
        }
        // Above the bar, which is then drawn again.
        self.bar.suspend(|| render::words(words));
    }
}

fn list(root: &Path, as_json: bool) -> Result<u8, Error> {
    let all = belljar_evolve::list(root)?;
    let read = |id: &String| Evolution::summary_of(root, id);
    let summaries = all.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(if as_json { render::json(&summaries) } else { evolution::list(&summaries) })
}

fn show(args: &Show) -> Result<u8, Error> {
    let summary = Evolution::summary_of(&root(&args.place)?, &args.id)?;
    if args.json {
        return Ok(render::json(&summary));
    }
    let printed = evolution::steps(&summary);
    Ok(if printed != 0 { printed } else { evolution::summary(&summary) })
}

fn export(args: &Export) -> Result<u8, Error> {
    let root = root(&args.place)?;
    let write = |field: &str, path: &Path, text: &str| {
        std::fs::write(path, text)
            .map_err(|error| SpecError::new(field, format!("{}: {error}", path.display())))
    };
    if let Some(path) = &args.report {
        write("report", path, &belljar_evolve::page(&root, &args.id)?)?;
    }
    if let Some(path) = &args.recording {
        write("recording", path, &Evolution::recording_of(&root, &args.id)?)?;
    }
    if args.report.is_some() || args.recording.is_some() {
        return Ok(0);
    }
    for line in Evolution::lines(&root, &args.id)? {
        let text = render::compact(&line)
            .map_err(|error| Error::Backend { operation: "write JSON", source: error.into() })?;
        let printed = render::line(&text);
        if printed != 0 {
            return Ok(printed);
        }
    }
    Ok(0)
}

fn best(args: &Best) -> Result<u8, Error> {
    let root = root(&args.place)?;
    let (step, code) = Evolution::program_of(&root, &args.id, args.step)?;
    let summary = Evolution::summary_of(&root, &args.id)?;
    let about = summary.steps.iter().find(|one| one.step == step);
    if args.json {
        return Ok(render::json(&serde_json::json!({ "step": about, "code": code })));
    }
    Ok(evolution::program(step, about.and_then(|one| one.score), &code))
}

fn promote(args: &Promote) -> Result<u8, Error> {
    let root = root(&args.place)?;
    let step = Evolution::promote(&root, &args.id, args.step, &args.out)?;
    Ok(render::trouble(&format!("wrote step {step} to {}", args.out.display()), 0))
}
