//! One candidate: asked for, looked at, run.

use std::time::Instant;

use belljar::Error;

use crate::answer;
use crate::cascade::{Grader, Judged, milliseconds};
use crate::chance::Chance;
use crate::history::History;
use crate::prompt;
use crate::proposer::{Ask, NoAnswer, Proposer};
use crate::regions;
use crate::screening;
use crate::step::{End, Graded, Measures, Proposal, Status, StepId, Usage};

/// Asks for one proposal. An error ends the evolution.
pub(crate) async fn propose(
    history: &History,
    proposer: &Proposer,
    step: StepId,
) -> Result<Proposal, (End, Option<String>)> {
    let task = &history.task;
    let choice = history.population.choose(task.seed, step);
    let situation = history.situation(&choice);
    let prompt = prompt::write(task, &situation);
    let words = [0, u64::from(step.iteration), u64::from(step.slot)];
    let seed = Chance::of(task.seed, &words).next();
    let context = prompt::context(task, &situation, &prompt, step, seed);
    let started = Instant::now();
    let ask = Ask { prompt: &prompt, context, index: history.index(step), seed };
    let (text, usage, mut error) = match proposer.propose(&ask).await {
        Ok(answer) => (answer.text, answer.usage, None),
        Err(NoAnswer::Failed { why, usage }) => (String::new(), usage, Some(why)),
        Err(NoAnswer::Fatal { why }) => return Err((End::Proposer, Some(why))),
        Err(NoAnswer::NoMore) => return Err((End::Recording, None)),
    };
    let parent = choice.parent.and_then(|parent| history.code(parent));
    let mut code = None;
    if error.is_none() {
        match answer::program(&text, task.answers, &task.language, parent) {
            Ok(program) => code = Some(program),
            Err(why) => error = Some(why),
        }
    }
    let paid = if text.is_empty() && usage == (Usage { retries: usage.retries, ..Usage::default() })
    {
        0.0
    } else {
        task.proposer.cost(&usage)
    };
    Ok(Proposal {
        step,
        parent: choice.parent,
        island: choice.island,
        diff: code
            .as_deref()
            .map(|code| diff(parent.unwrap_or_default(), code))
            .unwrap_or_default(),
        prompt,
        answer: text,
        code,
        error,
        usage,
        cost: paid,
        elapsed_ms: milliseconds(started.elapsed()),
    })
}

/// Looks at a program before it is run: whether it is one, keeps what is protected, and is new.
pub(crate) fn screen(
    history: &History,
    new: &[(StepId, String)],
    step: StepId,
) -> Result<String, (Status, String)> {
    let task = &history.task;
    let error = history.proposals.get(&step).and_then(|one| one.error.clone());
    let Some(code) = history.code(step) else {
        return Err((Status::NoProgram, error.unwrap_or_else(|| "no program came".to_owned())));
    };
    if code.len() > belljar::MAX_CODE_BYTES {
        let why = format!("the program is longer than {} bytes", belljar::MAX_CODE_BYTES);
        return Err((Status::NoProgram, why));
    }
    if let Some(seed) = task.program.as_deref().filter(|_| step != StepId::SEED) {
        regions::kept(seed, code, &task.language).map_err(|why| (Status::Protected, why))?;
    }
    let digest = crate::syntax::digest(&task.language, code);
    let same = new.iter().find(|(_, other)| *other == digest).map(|(step, _)| *step);
    match same.or_else(|| history.seen(code)) {
        Some(before) => {
            Err((Status::Duplicate, format!("the same program as {before}, but for its layout")))
        }
        None => Ok(digest),
    }
}

/// Reads a program, and then runs it.
pub(crate) async fn judge(
    grader: Grader<'_>,
    step: StepId,
    code: Option<&str>,
    best: Option<&Measures>,
) -> Result<Graded, Error> {
    let code = code.unwrap_or_default();
    let findings = match screening::screen(grader.engine, grader.task, code) {
        Ok(findings) => findings,
        Err(why) => return Ok(refused(step, Status::Screened, why)),
    };
    match grader.judge(code, best).await {
        Ok(one) => Ok(Graded { findings, ..judged(step, one) }),
        // The owner of the engine insists on it, whatever the task says.
        Err(Error::Screened(found)) => {
            Ok(refused(step, Status::Screened, screening::words(&found)))
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn refused(step: StepId, status: Status, why: String) -> Graded {
    Graded { status, error: Some(why), ..judged(step, Judged::default()) }
}

fn judged(step: StepId, judged: Judged) -> Graded {
    let lost = judged.measures.is_none();
    Graded {
        step,
        status: if lost { Status::Infrastructure } else { Status::Scored },
        score: judged.measures.map(|one| one.score),
        accepted: false,
        measures: judged.measures,
        stages: judged.stages,
        results: judged.results,
        findings: Vec::new(),
        feedback: judged.feedback,
        error: lost.then(|| "we could not grade it; it has no score".to_owned()),
        executions: judged.executions,
        elapsed_ms: 0.0,
    }
}

/// The difference of two programs, as people read it.
pub(crate) fn diff(before: &str, after: &str) -> String {
    similar::TextDiff::from_lines(before, after).unified_diff().context_radius(2).to_string()
}
