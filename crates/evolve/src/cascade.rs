//! Grading a candidate in stages, the cheap ones first: what fails early costs little.
//!
//! Public and hidden cases are graded apart, and what is said of a candidate is made from the public grade alone, plus
//! a count and the names of the hidden cases. So nothing that a hidden case holds can come into a prompt.

use std::time::{Duration, Instant};

use belljar::audit::Caller;
use belljar::grade::{Case, CaseResult, CaseVerdict, Grade, GradeRequest};
use belljar::{Engine, Error, Queue};

use crate::step::{Measures, Stage, StageName};
use crate::task::Task;

/// Times that a grade is asked for again which failed through us.
const MAX_REGRADES: usize = 2;
/// How long a full server is waited for.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
const MAX_BUSY_PAUSES: usize = 3000;
/// Hidden cases that are named.
const MAX_NAMES: usize = 8;
const SYNTAX_ERRORS: [&str; 3] = ["SyntaxError", "IndentationError", "TabError"];

/// What grades: an engine, and whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grader<'a> {
    pub engine: &'a Engine,
    pub queue: Option<&'a Queue>,
    /// Who asked for it.
    pub caller: &'a Caller,
    pub task: &'a Task,
}

/// What came of all stages.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// None when we failed.
    pub measures: Option<Measures>,
    pub stages: Vec<Stage>,
    pub results: Vec<CaseResult>,
    pub feedback: String,
    pub executions: u64,
}

impl Grader<'_> {
    /// Says what is wrong with the task's cases, language and limits, without running anything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let code = self.task.program.as_deref().unwrap_or("pass");
        let mut request = self.task.request(code);
        request.cases.clone_from(&self.task.cases);
        request.hidden.clone_from(&self.task.hidden);
        self.engine.check_grade(&request)
    }

    /// Grades a candidate; `best` is what it has to beat.
    pub(crate) async fn judge(&self, code: &str, best: Option<&Measures>) -> Result<Judged, Error> {
        let task = self.task;
        let mut judged = Judged::default();
        let (smoke, rest) = task.cases.split_at(task.cascade.smoke.min(task.cases.len()));
        let mut advice = Vec::new();
        if !smoke.is_empty() {
            let grade = self.stage(&mut judged, StageName::Smoke, self.public(code, smoke)).await?;
            if !grade.score_trustworthy {
                return Ok(judged);
            }
            let passed = grade.test_results.iter().any(|one| one.passed);
            advice.push(grade.feedback_text.clone());
            if !passed {
                if let Some(stage) = judged.stages.last_mut().filter(|_| is_syntax(&grade)) {
                    stage.name = StageName::Syntax;
                }
                return Ok(self.sum_up(judged, code, &advice, None));
            }
        }
        if !rest.is_empty() {
            let grade = self.stage(&mut judged, StageName::Public, self.public(code, rest)).await?;
            if !grade.score_trustworthy {
                return Ok(judged);
            }
            advice.push(grade.feedback_text);
        }
        let public = share(&judged.results, &task.cases);
        if !task.hidden.is_empty() && public >= task.cascade.hidden_from {
            let request = GradeRequest { hidden: task.hidden.clone(), ..task.request(code) };
            let grade = self.stage(&mut judged, StageName::Hidden, request).await?;
            if !grade.score_trustworthy {
                return Ok(judged);
            }
            advice.push(hidden_words(&grade.test_results));
        }
        let score = self.score(&judged.results);
        let worthy = score > 0.0 && best.is_none_or(|best| score >= best.score);
        let time =
            if task.cascade.timing && worthy { self.time(&mut judged, code).await? } else { None };
        Ok(self.sum_up(judged, code, &advice, time))
    }

    fn public(&self, code: &str, cases: &[Case]) -> GradeRequest {
        GradeRequest { cases: cases.to_vec(), ..self.task.request(code) }
    }

    async fn stage(
        &self,
        judged: &mut Judged,
        name: StageName,
        request: GradeRequest,
    ) -> Result<Grade, Error> {
        let started = Instant::now();
        let mut grade = self.grade(request.clone()).await?;
        judged.executions += grade.executions.len() as u64;
        for _ in 0..MAX_REGRADES {
            if grade.score_trustworthy {
                break;
            }
            grade = self.grade(request.clone()).await?;
            judged.executions += grade.executions.len() as u64;
        }
        judged.stages.push(Stage {
            name,
            passed: grade.test_results.iter().filter(|one| one.passed).count(),
            cases: grade.test_results.len(),
            elapsed_ms: milliseconds(started.elapsed()),
        });
        if name != StageName::Timing {
            judged.results.extend(grade.test_results.iter().cloned());
        }
        Ok(grade)
    }

    async fn grade(&self, request: GradeRequest) -> Result<Grade, Error> {
        let caller = self.caller.clone();
        let Some(queue) = self.queue else {
            return self.engine.grade_with(request, caller, None, &mut |_| {}).await;
        };
        let mut pauses = 0;
        let place = loop {
            match queue.enter() {
                Err(Error::Busy { .. }) if pauses < MAX_BUSY_PAUSES => pauses += 1,
                entered => break entered?,
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        };
        self.engine.grade_with(request, caller, Some(place), &mut |_| {}).await
    }

    /// Measures the public cases that passed: the time, and how far it may be off.
    async fn time(&self, judged: &mut Judged, code: &str) -> Result<Option<(f64, f64)>, Error> {
        let passed = |case: &&Case| {
            judged.results.iter().any(|one| one.passed && !one.hidden && one.name == case.name)
        };
        let cases: Vec<Case> = self.task.cases.iter().filter(passed).cloned().collect();
        if cases.is_empty() {
            return Ok(None);
        }
        let request = GradeRequest { timing: true, ..self.public(code, &cases) };
        let grade = self.stage(judged, StageName::Timing, request).await?;
        let timings: Vec<_> =
            grade.test_results.iter().filter_map(|one| one.timing.as_ref()).collect();
        // A case that cannot be timed, or not well, decides nothing.
        if timings.len() < cases.len() || timings.iter().any(|one| one.noisy) {
            return Ok(None);
        }
        let time = timings.iter().map(|one| one.cpu_ms).sum();
        let slack = timings.iter().map(|one| (one.high_ms - one.low_ms) / 2.0).sum();
        Ok(Some((time, slack)))
    }

    /// The share of the whole weight that passed; what was not asked has not passed.
    fn score(&self, results: &[CaseResult]) -> f64 {
        let all = self.task.cases.iter().chain(&self.task.hidden);
        let whole: f64 = all.map(|case| case.weight).sum();
        let won: f64 = results.iter().filter(|one| one.passed).map(|one| one.weight).sum();
        // A sum of shares may be a hair more or less than the whole.
        let every = results.len() == self.task.cases.len() + self.task.hidden.len()
            && results.iter().all(|one| one.passed);
        if every {
            1.0
        } else if whole > 0.0 {
            (won / whole).clamp(0.0, 1.0) + 0.0 // a sum of nothing is -0
        } else {
            0.0
        }
    }

    fn sum_up(
        &self,
        mut judged: Judged,
        code: &str,
        advice: &[String],
        time: Option<(f64, f64)>,
    ) -> Judged {
        // Of hidden cases both are told roughly, and not every candidate gets to them.
        let public = || judged.results.iter().filter(|one| !one.hidden);
        let real = public().map(|one| one.duration_ms).sum();
        let (time_ms, time_slack_ms) = time.unwrap_or((real, 0.0));
        judged.measures = Some(Measures {
            score: self.score(&judged.results),
            time_ms,
            time_measured: time.is_some(),
            time_slack_ms,
            memory_bytes: public().filter_map(|one| one.memory_bytes).max().unwrap_or(0),
            size_bytes: code.len() as u64,
        });
        let words = advice.iter().map(|one| one.trim()).filter(|one| !one.is_empty());
        let text = words.collect::<Vec<_>>().join("\n");
        judged.feedback = text.chars().take(self.task.feedback_chars).collect();
        judged
    }
}

fn is_syntax(grade: &Grade) -> bool {
    grade.test_results.iter().all(|one| one.verdict == CaseVerdict::NotLoaded)
        && grade
            .feedback
            .iter()
            .any(|one| one.error_type.as_deref().is_some_and(|kind| SYNTAX_ERRORS.contains(&kind)))
}

fn share(results: &[CaseResult], cases: &[Case]) -> f64 {
    let whole: f64 = cases.iter().map(|case| case.weight).sum();
    let won: f64 = results.iter().filter(|one| one.passed).map(|one| one.weight).sum();
    if whole > 0.0 { won / whole } else { 1.0 }
}

/// What may be said of hidden cases.
fn hidden_words(results: &[CaseResult]) -> String {
    let failed: Vec<&str> =
        results.iter().filter(|one| !one.passed).map(|one| one.name.as_str()).collect();
    if failed.is_empty() {
        return String::new();
    }
    let names = failed[..failed.len().min(MAX_NAMES)].join(", ");
    let more = if failed.len() > MAX_NAMES { " …" } else { "" };
    let passed = results.len() - failed.len();
    format!("Hidden tests: {passed} of {} passed. Failing: {names}{more}", results.len())
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
