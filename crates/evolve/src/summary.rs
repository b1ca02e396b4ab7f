//! An evolution in short: what `show` prints and HTTP answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::history::History;
use crate::step::{End, Measures, Status, StepId};

/// What has been used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spent {
    pub executions: u64,
    /// Time while it was running.
    pub clock_ms: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub money: f64,
    pub proposals: u64,
}

impl Spent {
    #[expect(
        clippy::cast_precision_loss,
        reason = "2^53 milliseconds are longer than anybody waits"
    )]
    pub fn seconds(&self) -> f64 {
        self.clock_ms as f64 / 1000.0
    }
}

/// One step in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepSummary {
    pub step: StepId,
    pub parent: Option<StepId>,
    pub island: u32,
    pub status: Option<Status>,
    pub score: Option<f64>,
    pub accepted: bool,
    pub measures: Option<Measures>,
    pub cost: f64,
    pub error: Option<String>,
}

/// All of it in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    pub id: String,
    pub name: String,
    pub begun_unix_ms: u64,
    /// Somebody is going on with it.
    pub running: bool,
    pub end: Option<End>,
    /// More about that.
    pub why: Option<String>,
    pub iterations: u32,
    pub max_iterations: u32,
    pub target_score: f64,
    pub target_reached: bool,
    pub best: Option<StepSummary>,
    pub spent: Spent,
    /// The steps that no other is better than in every respect: score, time, memory and size.
    pub front: Vec<StepId>,
    pub steps: Vec<StepSummary>,
}

impl Summary {
    pub(crate) fn of(history: &History, running: bool) -> Self {
        let seed = history.graded.contains_key(&StepId::SEED).then_some(StepId::SEED);
        let all = seed.into_iter().chain(history.proposals.keys().copied());
        let steps: Vec<StepSummary> = all.map(|step| StepSummary::of(history, step)).collect();
        let best = history.best().map(|(step, _)| StepSummary::of(history, step));
        let mut front: Vec<StepId> = history.population.front.iter().map(|one| one.step).collect();
        front.sort();
        Self {
            id: history.id.clone(),
            name: history.task.name.clone(),
            begun_unix_ms: history.begun_unix_ms,
            running,
            end: history.ended.as_ref().map(|(end, _)| *end),
            why: history.ended.as_ref().and_then(|(_, why)| why.clone()),
            iterations: history.whole,
            max_iterations: history.task.max_iterations,
            target_score: history.task.target_score,
            target_reached: best
                .as_ref()
                .and_then(|best| best.score)
                .is_some_and(|score| score >= history.task.target_score),
            best,
            spent: history.spent,
            front,
            steps,
        }
    }
}

impl StepSummary {
    fn of(history: &History, step: StepId) -> Self {
        let (proposal, graded) = (history.proposals.get(&step), history.graded.get(&step));
        Self {
            step,
            parent: proposal.and_then(|one| one.parent),
            island: proposal.map_or(0, |one| one.island),
            status: graded.map(|one| one.status),
            score: graded.and_then(|one| one.score),
            accepted: graded.is_some_and(|one| one.accepted),
            measures: graded.and_then(|one| one.measures),
            cost: proposal.map_or(0.0, |one| one.cost),
            error: graded.and_then(|one| one.error.clone()).or_else(|| proposal?.error.clone()),
        }
    }
}
