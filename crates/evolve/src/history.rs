//! What has happened so far, read from the lines of the store. Pure: the same lines make the same history.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use belljar::SpecError;

use crate::prompt::{Known, MAX_ATTEMPTS, Situation};
use crate::step::{End, Graded, Measures, Proposal, Status, StepId};
use crate::store::{Line, Record};
use crate::strategy::{Choice, Population};
use crate::summary::Spent;
use crate::syntax;
use crate::task::Task;

/// Iterations in a row without a single answer after which we stop asking.
const MAX_DRY_ITERATIONS: u32 = 3;

/// An evolution as it is known.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub id: String,
    pub begun_unix_ms: u64,
    pub task: Task,
    pub proposals: BTreeMap<StepId, Proposal>,
    pub graded: BTreeMap<StepId, Graded>,
    pub population: Population,
    /// Programs that were there, by the digest of their syntax tree.
    seen: HashMap<String, StepId>,
    pub spent: Spent,
    pub ended: Option<(End, Option<String>)>,
    pub promoted: Vec<(StepId, PathBuf)>,
    /// The last iteration whose candidates are all graded.
    pub whole: u32,
    dry: u32,
}

impl History {
    /// Reads the lines of a store.
    pub(crate) fn of(lines: Vec<Line>) -> Result<Self, SpecError> {
        let mut lines = lines.into_iter();
        let Some(Line { record: Record::Begun { id, unix_ms, task, .. }, .. }) = lines.next()
        else {
            return Err(SpecError::new("id", "has a file that does not say how it began"));
        };
        let mut history = Self {
            id,
            begun_unix_ms: unix_ms,
            population: Population::new(&task.strategy),
            task: *task,
            proposals: BTreeMap::new(),
            graded: BTreeMap::new(),
            seen: HashMap::new(),
            spent: Spent::default(),
            ended: None,
            promoted: Vec::new(),
            whole: 0,
            dry: 0,
        };
        for line in lines {
            history.take(line);
        }
        Ok(history)
    }

    /// Takes a line in. Everything that is decided by it is decided here, whether it is new or read.
    pub(crate) fn take(&mut self, line: Line) {
        self.spent.clock_ms = self.spent.clock_ms.max(line.clock_ms);
        match line.record {
            Record::Begun { .. } => {}
            Record::Proposed(proposal) => {
                let usage = &proposal.usage;
                self.spent.input_tokens += usage.input_tokens;
                self.spent.output_tokens += usage.output_tokens;
                self.spent.money += proposal.cost;
                self.spent.proposals += 1;
                self.proposals.insert(proposal.step, *proposal);
            }
            Record::Graded(graded) => self.take_graded(*graded),
            Record::Resumed { max_iterations, budget, .. } => {
                self.ended = None;
                self.dry = 0;
                (self.task.max_iterations, self.task.budget) = (max_iterations, budget);
            }
            Record::Ended { end, why } => self.ended = Some((end, why)),
            Record::Promoted { step, to, .. } => self.promoted.push((step, to)),
        }
    }

    fn take_graded(&mut self, graded: Graded) {
        let step = graded.step;
        self.spent.executions += graded.executions;
        let island = self.proposals.get(&step).map_or(0, |one| one.island);
        self.population.restore(&graded, island);
        if let (Some(code), Status::Scored) = (self.code(step), graded.status) {
            let digest = syntax::digest(&self.task.language, code);
            self.seen.entry(digest).or_insert(step);
        }
        self.graded.insert(step, graded);
        let iteration = step.iteration;
        let of_it = self.steps(iteration).filter(|one| self.graded.contains_key(one)).count();
        if iteration > self.whole && of_it == self.slots() {
            self.whole = iteration;
            self.population.end_iteration(iteration);
            let answered = self.steps(iteration).any(|one| {
                self.proposals.get(&one).is_some_and(|proposal| !proposal.answer.is_empty())
            });
            self.dry = if answered { 0 } else { self.dry + 1 };
        }
    }

    fn slots(&self) -> usize {
        usize::try_from(self.task.candidates).unwrap_or(usize::MAX)
    }

    /// The steps of an iteration.
    pub(crate) fn steps(&self, iteration: u32) -> impl Iterator<Item = StepId> + use<> {
        (0..self.task.candidates).map(move |slot| StepId { iteration, slot })
    }

    /// Which proposal of the evolution a step is.
    pub(crate) fn index(&self, step: StepId) -> u64 {
        u64::from(step.iteration.saturating_sub(1)) * u64::from(self.task.candidates)
            + u64::from(step.slot)
    }

    /// The program of a step.
    pub(crate) fn code(&self, step: StepId) -> Option<&str> {
        if step == StepId::SEED {
            return self.task.program.as_deref();
        }
        self.proposals.get(&step)?.code.as_deref()
    }

    /// The step that had the same program before.
    pub(crate) fn seen(&self, code: &str) -> Option<StepId> {
        self.seen.get(&syntax::digest(&self.task.language, code)).copied()
    }

    pub(crate) fn best(&self) -> Option<(StepId, Measures)> {
        self.population.best.as_ref().map(|best| (best.step, best.measures))
    }

    pub(crate) fn known(&self, step: StepId) -> Option<Known<'_>> {
        Some(Known { step, code: self.code(step)?, graded: self.graded.get(&step)? })
    }

    /// What a proposal starts from.
    pub(crate) fn situation(&self, choice: &Choice) -> Situation<'_> {
        let mut attempts: Vec<&Graded> = self
            .graded
            .values()
            .rev()
            .filter(|one| !one.accepted && one.step != StepId::SEED)
            .filter(|one| {
                self.proposals.get(&one.step).is_some_and(|it| it.parent == choice.parent)
            })
            .take(MAX_ATTEMPTS)
            .collect();
        attempts.reverse();
        Situation {
            parent: choice.parent.and_then(|step| self.known(step)),
            inspirations: choice.inspirations.iter().filter_map(|step| self.known(*step)).collect(),
            attempts,
        }
    }

    /// Why it is to end before the next iteration, if it is.
    pub(crate) fn over(&self) -> Option<End> {
        let budget = &self.task.budget;
        let spent = &self.spent;
        let reached = self.best().is_some_and(|(_, best)| best.score >= self.task.target_score);
        let tokens = spent.input_tokens + spent.output_tokens;
        match () {
            () if reached => Some(End::Target),
            () if self.whole >= self.task.max_iterations => Some(End::Iterations),
            () if budget.executions.is_some_and(|most| spent.executions >= most) => {
                Some(End::Executions)
            }
            () if budget.seconds.is_some_and(|most| spent.seconds() >= most) => Some(End::Seconds),
            () if budget.tokens.is_some_and(|most| tokens >= most) => Some(End::Tokens),
            () if budget.money.is_some_and(|most| spent.money >= most) => Some(End::Money),
            () if self.dry >= MAX_DRY_ITERATIONS => Some(End::Proposer),
            () => None,
        }
    }
}
