//! What happens to one candidate, from its proposal to its score. These are the records of the store.

use std::fmt;

use belljar::grade::CaseResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which candidate: the iteration, and its place among those proposed side by side. 0.0 is the seed program.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(into = "String", try_from = "String")]
pub struct StepId {
    pub iteration: u32,
    pub slot: u32,
}

impl StepId {
    pub const SEED: Self = Self { iteration: 0, slot: 0 };
}

impl fmt::Display for StepId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.iteration, self.slot)
    }
}

impl From<StepId> for String {
    fn from(step: StepId) -> Self {
        step.to_string()
    }
}

impl TryFrom<String> for StepId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.split_once('.');
        let parsed = parts.and_then(|(one, two)| Some((one.parse().ok()?, two.parse().ok()?)));
        let (iteration, slot) =
            parsed.ok_or_else(|| format!("\"{text}\" is no step, as 3.1 is"))?;
        Ok(Self { iteration, slot })
    }
}

/// What was asked, and what came. Stored before anything is done with it: it was paid for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Proposal {
    pub step: StepId,
    pub parent: Option<StepId>,
    pub island: u32,
    pub prompt: Prompt,
    /// The proposer's words, as they came.
    pub answer: String,
    /// The program that they make; none if they make none.
    pub code: Option<String>,
    /// The difference to the parent.
    pub diff: String,
    /// Why there is no answer, or no program in it.
    pub error: Option<String>,
    pub usage: Usage,
    /// In the currency of the task's prices.
    pub cost: f64,
    pub elapsed_ms: f64,
}

/// What a proposer is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Prompt {
    pub system: String,
    pub user: String,
}

/// What a proposal used, as the proposer tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Times that it had to be asked again.
    pub retries: u32,
}

/// What came of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Graded {
    pub step: StepId,
    pub status: Status,
    /// The share of the whole weight that passed; none if it was not to be judged.
    pub score: Option<f64>,
    /// Whether it was kept: as the best so far, or as the best of its kind.
    pub accepted: bool,
    pub measures: Option<Measures>,
    pub stages: Vec<Stage>,
    /// Every case that was asked; of hidden ones hardly more than how it ended.
    pub results: Vec<CaseResult>,
    /// What reading it before it was run found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
    /// What the next prompt says of it.
    pub feedback: String,
    pub error: Option<String>,
    /// Sandboxes used.
    pub executions: u64,
    pub elapsed_ms: f64,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It has a score.
    Scored,
    /// The proposer gave no program.
    NoProgram,
    /// It changed what is protected.
    Protected,
    /// Screening refused it.
    Screened,
    /// The same program was there before; it was not run again.
    Duplicate,
    /// We failed, not the candidate. It has no score.
    Infrastructure,
}

impl Status {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Scored => "scored",
            Self::NoProgram => "no program",
            Self::Protected => "protected",
            Self::Screened => "screened",
            Self::Duplicate => "duplicate",
            Self::Infrastructure => "infrastructure",
        }
    }
}

/// One stage of the cascade.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    pub name: StageName,
    pub passed: usize,
    pub cases: usize,
    pub elapsed_ms: f64,
}

/// The stages, in their order. `syntax` stands for a smoke test that could not even begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    Syntax,
    Smoke,
    Public,
    Hidden,
    Timing,
}

impl StageName {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::Smoke => "smoke",
            Self::Public => "public",
            Self::Hidden => "hidden",
            Self::Timing => "timing",
        }
    }
}

/// What candidates are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measures {
    /// More is better; of all others, less is.
    pub score: f64,
    /// CPU time of all public cases where it was measured, else their real time.
    pub time_ms: f64,
    /// Whether that time was measured well enough to decide by it.
    pub time_measured: bool,
    /// How far the true time may lie above or below.
    pub time_slack_ms: f64,
    /// The most that a public case held.
    pub memory_bytes: u64,
    pub size_bytes: u64,
}

impl Measures {
    /// Whether it is better in one respect and worse in none.
    pub fn dominates(&self, other: &Self) -> bool {
        let worse = self.score < other.score
            || self.time_ms > other.time_ms
            || self.memory_bytes > other.memory_bytes
            || self.size_bytes > other.size_bytes;
        let better = self.score > other.score
            || self.time_ms < other.time_ms
            || self.memory_bytes < other.memory_bytes
            || self.size_bytes < other.size_bytes;
        better && !worse
    }

    /// Whether it is to be preferred: by its score, and among equals by a time that is surely shorter.
    pub fn beats(&self, other: &Self) -> bool {
        let faster = self.time_measured
            && other.time_measured
            && self.time_ms + self.time_slack_ms < other.time_ms - other.time_slack_ms;
        self.score > other.score || (self.score >= other.score && faster)
    }
}

/// Why an evolution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Target,
    Iterations,
    Executions,
    Seconds,
    Tokens,
    Money,
    /// The proposer does not answer, or refuses.
    Proposer,
    /// A recording has no more answers.
    Recording,
}

impl End {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Target => "the target score was reached",
            Self::Iterations => "all iterations were made",
            Self::Executions => "the budget of executions is used up",
            Self::Seconds => "the budget of time is used up",
            Self::Tokens => "the budget of tokens is used up",
            Self::Money => "the budget of money is used up",
            Self::Proposer => "the proposer gives no answers",
            Self::Recording => "the recording has no more answers",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_it_is_written() {
        let step = StepId { iteration: 12, slot: 3 };
        let json = serde_json::to_string(&step).unwrap();
        assert_eq!(json, "\"12.3\"");
        assert_eq!(serde_json::from_str::<StepId>(&json).unwrap(), step);
        assert!(serde_json::from_str::<StepId>("\"12\"").is_err());
    }

    #[test]
    fn time_decides_only_among_equals_and_only_when_it_is_sure() {
        let one = Measures {
            score: 0.5,
            time_ms: 10.0,
            time_measured: true,
            time_slack_ms: 1.0,
            memory_bytes: 1,
            size_bytes: 1,
        };
        let faster = Measures { time_ms: 5.0, ..one };
        assert!(faster.beats(&one) && !one.beats(&faster));
        assert!(!Measures { time_ms: 8.5, ..one }.beats(&one));
        assert!(!Measures { time_measured: false, ..faster }.beats(&one));
        assert!(!Measures { score: 0.4, ..faster }.beats(&one));
        assert!(Measures { score: 0.6, time_ms: 99.0, ..one }.beats(&one));
        assert!(faster.dominates(&one) && !one.dominates(&one));
        assert!(!Measures { size_bytes: 2, ..faster }.dominates(&one));
    }
}
