//! Which candidate is the parent of the next, and which are kept. Strategies are plain data: a table in the task,
//! read by the one function that chooses.

use std::collections::BTreeMap;

use belljar::SpecError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::chance::Chance;
use crate::step::{Graded, Measures, Status, StepId};

const MAX_ISLANDS: u32 = 64;
/// Programs beside the parent that a prompt shows.
pub(crate) const MAX_INSPIRATIONS: usize = 2;

/// How candidates are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StrategySpec {
    /// Every proposal begins with the seed program; the best one is kept.
    BestOf,
    /// Every proposal begins with the best so far.
    #[default]
    HillClimb,
    /// Several populations, each a MAP-Elites grid: the best program of every size and speed is kept, any of them
    /// may be a parent, and the best of each island wanders to the next.
    Islands {
        #[serde(default = "islands")]
        islands: u32,
        /// Iterations between two wanderings.
        #[serde(default = "migrate_every")]
        migrate_every: u32,
        /// What the cells of the grid are told apart by.
        #[serde(default = "grid")]
        grid: Vec<Axis>,
    },
}

/// A measure by whose magnitude (powers of two) kinds of programs are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    Size,
    /// Not the same in every run: a grid by time is not deterministic.
    Time,
    Memory,
}

const fn islands() -> u32 {
    4
}

const fn migrate_every() -> u32 {
    5
}

fn grid() -> Vec<Axis> {
    vec![Axis::Size]
}

impl StrategySpec {
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let Self::Islands { islands, migrate_every, grid } = self else { return Ok(()) };
        if !(1..=MAX_ISLANDS).contains(islands) {
            let reason = format!("must be between 1 and {MAX_ISLANDS}");
            return Err(SpecError::new("strategy.islands", reason));
        }
        if *migrate_every == 0 {
            return Err(SpecError::new("strategy.migrate_every", "must be at least 1"));
        }
        let twice = grid.iter().enumerate().any(|(index, axis)| grid[..index].contains(axis));
        if grid.is_empty() || twice {
            let reason = "must name each of size, time, memory at most once, and at least one";
            return Err(SpecError::new("strategy.grid", reason));
        }
        Ok(())
    }

    fn count(&self) -> u32 {
        match self {
            Self::BestOf | Self::HillClimb => 1,
            Self::Islands { islands, .. } => *islands,
        }
    }
}

/// A candidate that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub step: StepId,
    pub measures: Measures,
}

/// Everybody who is kept, and who is the best.
#[derive(Clone, Debug)]
pub(crate) struct Population {
    spec: StrategySpec,
    pub best: Option<Kept>,
    islands: Vec<BTreeMap<Vec<u32>, Kept>>,
    /// The best that no other is better than in every respect.
    pub front: Vec<Kept>,
    seed: Option<StepId>,
}

/// Who is asked to be improved, and who may inspire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub parent: Option<StepId>,
    pub inspirations: Vec<StepId>,
    pub island: u32,
}

impl Population {
    pub(crate) fn new(spec: &StrategySpec) -> Self {
        let islands = (0..spec.count()).map(|_| BTreeMap::new()).collect();
        Self { spec: spec.clone(), best: None, islands, front: Vec::new(), seed: None }
    }

    /// Chooses the parent of a step.
    pub(crate) fn choose(&self, seed: u64, step: StepId) -> Choice {
        let best = self.best.as_ref().map(|one| one.step);
        match &self.spec {
            StrategySpec::BestOf => Choice { parent: self.seed, ..Choice::default() },
            StrategySpec::HillClimb => Choice { parent: best, ..Choice::default() },
            StrategySpec::Islands { islands, .. } => {
                let island = (step.slot.wrapping_add(step.iteration)) % islands;
                let words = [1, u64::from(step.iteration), u64::from(step.slot)];
                let mut chance = Chance::of(seed, &words);
                let cells: Vec<&Kept> = self.island(island).values().collect();
                if cells.is_empty() {
                    return Choice { parent: best, island, ..Choice::default() };
                }
                let parent = pick(&cells, &mut chance);
                let mut inspirations = Vec::new();
                for _ in 0..MAX_INSPIRATIONS {
                    let other = cells[chance.below(cells.len())].step;
                    if other != parent && !inspirations.contains(&other) {
                        inspirations.push(other);
                    }
                }
                Choice { parent: Some(parent), inspirations, island }
            }
        }
    }

    /// Takes a graded candidate in; says whether it is kept.
    pub(crate) fn admit(&mut self, step: StepId, island: u32, measures: Measures) -> bool {
        let kept = Kept { step, measures };
        if step == StepId::SEED {
            self.seed = Some(step);
        }
        if !self
            .front
            .iter()
            .any(|one| one.measures.dominates(&measures) || one.measures == measures)
        {
            self.front.retain(|one| !measures.dominates(&one.measures));
            self.front.push(kept.clone());
        }
        let is_best = self.best.as_ref().is_none_or(|best| measures.beats(&best.measures));
        if is_best {
            self.best = Some(kept.clone());
        }
        let StrategySpec::Islands { grid, .. } = &self.spec else { return is_best };
        let cell: Vec<u32> = grid.iter().map(|axis| axis.magnitude(&measures)).collect();
        // The seed program is everybody's ancestor.
        let whole = 0..self.islands.len();
        let targets = if step == StepId::SEED { whole } else { index(island)..index(island) + 1 };
        let mut entered = false;
        for cells in self.islands.get_mut(targets).unwrap_or_default() {
            let better = cells.get(&cell).is_none_or(|now| measures.beats(&now.measures));
            if better {
                cells.insert(cell.clone(), kept.clone());
                entered = true;
            }
        }
        entered || is_best
    }

    /// After an iteration: the best of each island wanders to the next.
    pub(crate) fn end_iteration(&mut self, iteration: u32) {
        let StrategySpec::Islands { migrate_every, grid, .. } = &self.spec else { return };
        if iteration == 0 || !iteration.is_multiple_of(*migrate_every) {
            return;
        }
        let best_of = |cells: &BTreeMap<Vec<u32>, Kept>| {
            cells.values().fold(None, |best: Option<Kept>, one| match best {
                Some(best) if !one.measures.beats(&best.measures) => Some(best),
                _ => Some(one.clone()),
            })
        };
        let wanderers: Vec<Option<Kept>> = self.islands.iter().map(best_of).collect();
        let count = self.islands.len();
        for (from, wanderer) in wanderers.into_iter().enumerate() {
            let Some(one) = wanderer else { continue };
            let cell: Vec<u32> = grid.iter().map(|axis| axis.magnitude(&one.measures)).collect();
            let cells = &mut self.islands[(from + 1) % count];
            if cells.get(&cell).is_none_or(|now| one.measures.beats(&now.measures)) {
                cells.insert(cell, one);
            }
        }
    }

    /// Takes in what a stored evolution says, as it was decided then.
    pub(crate) fn restore(&mut self, graded: &Graded, island: u32) {
        if let (Status::Scored, Some(measures)) = (graded.status, graded.measures) {
            self.admit(graded.step, island, measures);
        }
    }

    fn island(&self, island: u32) -> &BTreeMap<Vec<u32>, Kept> {
        &self.islands[index(island) % self.islands.len()]
    }
}

fn index(island: u32) -> usize {
    usize::try_from(island).unwrap_or_default()
}

/// The better of two that are drawn: good ones are chosen more often, and every one sometimes.
fn pick(cells: &[&Kept], chance: &mut Chance) -> StepId {
    let (one, other) = (cells[chance.below(cells.len())], cells[chance.below(cells.len())]);
    if other.measures.beats(&one.measures) { other.step } else { one.step }
}

impl Axis {
    fn magnitude(self, measures: &Measures) -> u32 {
        let value = match self {
            Self::Size => measures.size_bytes,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a float that is too large becomes the largest number"
            )]
            Self::Time => (measures.time_ms * 1000.0) as u64,
            Self::Memory => measures.memory_bytes,
        };
        value.max(1).ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measures(score: f64, size_bytes: u64) -> Measures {
        Measures {
            score,
            time_ms: 1.0,
            time_measured: false,
            time_slack_ms: 0.0,
            memory_bytes: 1,
            size_bytes,
        }
    }

    fn step(iteration: u32, slot: u32) -> StepId {
        StepId { iteration, slot }
    }

    #[test]
    fn the_climber_goes_on_from_the_best_and_the_sampler_from_the_seed() {
        for (spec, parent) in
            [(StrategySpec::HillClimb, step(1, 0)), (StrategySpec::BestOf, StepId::SEED)]
        {
            let mut all = Population::new(&spec);
            assert_eq!(all.choose(0, step(0, 0)).parent, None);
            assert!(all.admit(StepId::SEED, 0, measures(0.1, 10)));
            assert!(all.admit(step(1, 0), 0, measures(0.5, 10)));
            assert!(!all.admit(step(1, 1), 0, measures(0.4, 10)));
            assert_eq!(all.choose(0, step(2, 0)).parent, Some(parent));
            assert_eq!(all.best.as_ref().map(|best| best.step), Some(step(1, 0)));
        }
    }

    #[test]
    fn islands_keep_the_best_of_each_kind_and_let_it_wander() {
        let spec = StrategySpec::Islands { islands: 2, migrate_every: 2, grid: grid() };
        let mut all = Population::new(&spec);
        all.admit(StepId::SEED, 0, measures(0.1, 10));
        assert!(all.admit(step(1, 1), 0, measures(0.05, 100)), "worse, but of another kind");
        assert!(!all.admit(step(1, 2), 0, measures(0.04, 100)));
        assert!(all.admit(step(1, 0), 1, measures(0.9, 10)));
        let of = |all: &Population, island: u32| -> Vec<StepId> {
            all.islands[index(island)].values().map(|one| one.step).collect()
        };
        assert_eq!(of(&all, 0), [StepId::SEED, step(1, 1)]);
        assert_eq!(of(&all, 1), [step(1, 0)]);
        all.end_iteration(1);
        assert_eq!(of(&all, 0), [StepId::SEED, step(1, 1)]);
        all.end_iteration(2);
        assert_eq!(of(&all, 0), [step(1, 0), step(1, 1)]);
        assert_eq!(all.choose(3, step(2, 1)), all.choose(3, step(2, 1)));
    }

    #[test]
    fn the_front_holds_whoever_is_best_in_some_respect() {
        let mut all = Population::new(&StrategySpec::HillClimb);
        for (slot, score, size) in [(0, 0.5, 100), (1, 0.4, 50), (2, 0.4, 80), (3, 0.9, 100)] {
            all.admit(step(1, slot), 0, measures(score, size));
        }
        let front: Vec<u32> = all.front.iter().map(|one| one.step.slot).collect();
        assert_eq!(front, [1, 3]);
    }

    #[test]
    fn strategies_with_impossible_numbers_are_refused() {
        for (text, word) in [
            ("kind = \"islands\"\nislands = 0", "strategy.islands"),
            ("kind = \"islands\"\nmigrate_every = 0", "strategy.migrate_every"),
            ("kind = \"islands\"\ngrid = []", "strategy.grid"),
            ("kind = \"islands\"\ngrid = [\"size\", \"size\"]", "strategy.grid"),
        ] {
            let spec: StrategySpec = toml::from_str(text).unwrap();
            assert!(spec.check().unwrap_err().to_string().contains(word), "{text}");
        }
    }
}
