//! Sealed grading: a candidate is run, its answers are compared outside of its sandbox.
//!
//! What makes it sealed is where things are. Expected values, hidden cases and the comparison never enter
//! the sandbox of the candidate. It gets one input at a time and gives back one value; whatever it does to
//! its own processes, all that it can choose is that value.

mod asserts;
mod calls;
mod case;
mod checked;
mod compare;
pub mod feedback;
pub mod formats;
mod instructions;
mod integer;
mod judge;
mod junit;
mod lanes;
mod marshal;
mod session;
mod show;
mod streams;
mod text;
mod timing;
mod value;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use case::{Case, Tolerance};
pub use integer::Integer;
pub use junit::junit;
pub use value::{MAX_DEPTH, MAX_VALUES, Value, keep_large_integers};

use crate::audit::Caller;
use crate::engine::Engine;
use crate::model::error::Error;
use crate::model::level::Level;
use crate::model::limits::LimitsRequest;
use crate::model::request::{Data, RunRequest, StartRequest};
use crate::model::screening::ScreenMode;
use crate::model::spec::WORKSPACE;
use crate::queue::Place;
use case::{is_false, present};
use checked::Checked;

/// Our own program beside candidates, for zygotes to have loaded: path and text.
pub(crate) fn program() -> (String, &'static str) {
    (format!("{WORKSPACE}/{}", session::INSIDE), calls::INSIDE)
}

/// A candidate and its cases. Fields that are left out take their defaults.
///
/// ```
/// use belljar::grade::{Case, GradeRequest};
///
/// let mut request = GradeRequest::python("def add(a, b):\n    return a + b\n");
/// request.func_name = Some("add".to_owned());
/// request.cases.push(Case {
///     name: "small".to_owned(),
///     input_args: vec![2.into(), 3.into()],
///     expected_output: Some(5.into()),
///     ..Case::default()
/// });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GradeRequest {
    /// The candidate's source text.
    pub code: String,
    /// Told by `file_name` or a `#!` line if it is left out.
    pub language: Option<String>,
    pub file_name: Option<String>,
    /// The function to call. May be left out if the candidate defines only one.
    pub func_name: Option<String>,
    /// Statements that run before the candidate, in its module.
    pub setup_code: Option<String>,
    /// Statements that run before each assert, where the assert runs.
    pub assert_setup: Option<String>,
    pub cases: Vec<Case>,
    /// More cases, which are hidden and run in a sandbox of their own.
    pub hidden: Vec<Case>,
    /// Files in the candidate's /workspace.
    pub files: BTreeMap<String, Data>,
    /// `standard` or `strict`.
    pub level: Level,
    /// Of each sandbox; `wall_ms` is the time of one case where the case has none of its own.
    pub limits: LimitsRequest,
    pub isolate: Isolate,
    /// Cases run in an order made from this number; results are told as they were asked.
    pub shuffle: Option<u64>,
    /// Sandboxes at once; one for each core unless told.
    pub parallel: Option<NonZeroUsize>,
    /// Real time for all of it.
    pub total_ms: Option<u64>,
    /// Measure each case that passes until its time is known well.
    pub timing: bool,
    /// Show what hidden cases hold, to somebody who may know.
    pub show_hidden: bool,
    /// Characters of `feedback_text`; 2000 unless told.
    pub feedback_chars: Option<usize>,
    pub labels: BTreeMap<String, String>,
    pub start: StartRequest,
    /// How candidates are read before they are run. An operator's to say, so no request does.
    #[serde(skip)]
    pub screen: ScreenMode,
}

/// What one case is kept apart from the next by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolate {
    /// A process of its own, copied from the loaded candidate.
    #[default]
    Process,
    /// A sandbox of its own.
    Case,
}

impl GradeRequest {
    /// A candidate in Python.
    pub fn python(code: impl Into<String>) -> Self {
        Self { code: code.into(), language: Some("python".to_owned()), ..Self::default() }
    }
}

/// What came of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Grade {
    /// The share of weight that passed, of all that could be judged; absent if nothing could be.
    pub score: Option<f64>,
    pub all_passed: bool,
    /// Every case was judged. If not, we failed and not the candidate: ask again.
    pub score_trustworthy: bool,
    /// In the order of the request, hidden ones after the others.
    pub test_results: Vec<CaseResult>,
    pub feedback: Vec<Feedback>,
    /// The same as text for a prompt, no longer than was asked for.
    pub feedback_text: String,
    /// Sandboxes used, those that were tried again among them.
    pub executions: Vec<String>,
    pub elapsed_ms: f64,
    pub labels: BTreeMap<String, String>,
}

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaseResult {
    pub name: String,
    pub passed: bool,
    pub verdict: CaseVerdict,
    /// What was returned, or written for a case with a standard input.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub expected: Option<Value>,
    /// Why it did not pass, for people and models.
    pub detail: String,
    pub duration_ms: f64,
    pub memory_bytes: Option<u64>,
    pub weight: f64,
    #[serde(default, skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// The exception that came, expected or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised: Option<Raised>,
    /// What the candidate printed meanwhile, its beginning.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub printed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
}

/// An exception, as the candidate's side tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Raised {
    #[serde(rename = "type")]
    pub kind: String,
    /// The names of its bases, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<String>,
    pub message: String,
    /// The last line of the candidate that was under way.
    pub line: Option<u32>,
}

/// How a case ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CaseVerdict {
    Passed,
    /// Another value, type, output or exception than expected, or an assert that does not hold.
    WrongAnswer,
    /// An exception that was not expected.
    Raised,
    /// What was returned is no value that can be passed out and compared.
    NotComparable,
    /// It ended without an answer, or with an exit code other than 0.
    Ended,
    /// The candidate could not be loaded, or lacks the function.
    NotLoaded,
    TimeLimit,
    MemoryLimit,
    OutputLimit,
    DiskLimit,
    /// It did what its level refuses.
    Refused,
    /// It spoke where only our side speaks. Nothing of that counts, nor what would have come after it.
    Tampered,
    /// We failed, not the candidate. Never scored.
    Infrastructure,
}

impl CaseVerdict {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::WrongAnswer => "wrong_answer",
            Self::Raised => "raised",
            Self::NotComparable => "not_comparable",
            Self::Ended => "ended",
            Self::NotLoaded => "not_loaded",
            Self::TimeLimit => "time_limit",
            Self::MemoryLimit => "memory_limit",
            Self::OutputLimit => "output_limit",
            Self::DiskLimit => "disk_limit",
            Self::Refused => "refused",
            Self::Tampered => "tampered",
            Self::Infrastructure => "infrastructure",
        }
    }
}

/// Advice for the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Feedback {
    pub kind: FeedbackKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The code around that line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// The cases that failed so, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<String>,
    pub advice: String,
}

/// What a piece of advice is about.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackKind {
    Error,
    WrongAnswer,
    Limit,
    Blocked,
    Tampered,
    Infrastructure,
}

/// How long a case takes, measured often enough to say how sure that is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    pub repetitions: u32,
    /// CPU time of one call: the median, and an interval that holds it with 95 % confidence.
    pub cpu_ms: f64,
    pub low_ms: f64,
    pub high_ms: f64,
    /// Machine instructions of one call, without the kernel's: the median.
    pub instructions: Option<u64>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_instructions: Option<String>,
    /// The host was too busy, or the candidate too uneven, for the interval to become narrow.
    pub noisy: bool,
}

impl Engine {
    /// Grades a candidate. A fault of ours is retried, and then told in the Grade; an error is the
    /// caller's mistake, or says that this host cannot run it at all.
    ///
    /// Must be awaited in a tokio runtime with I/O and time enabled.
    pub async fn grade(&self, request: GradeRequest) -> Result<Grade, Error> {
        self.grade_with(request, Caller::own(), None, &mut |_| {}).await
    }
    /// Says what is wrong with a request, without running anything.
    pub fn check_grade(&self, request: &GradeRequest) -> Result<(), Error> {
        Checked::new(self, request.clone())?;
        Ok(())
    }

    /// The same, recorded as asked for by this caller, and in turn with others if a place in a queue is given; `tell`
    /// hears of each case as it ends.
    pub async fn grade_with(
        &self,
        request: GradeRequest,
        caller: Caller,
        place: Option<Place>,
        tell: &mut (dyn FnMut(&CaseResult) + Send),
    ) -> Result<Grade, Error> {
        let started = Instant::now();
        let checked = Checked::new(self, request)?;
        // An owner that insists on screening insists on it for candidates. Our own program beside them,
        // which copies itself and ends what is left, is no part of that.
        let candidate = RunRequest {
            code: Some(checked.request.code.clone()),
            language: Some(checked.language.clone()),
            file_name: Some(checked.file.clone()),
            files: checked.request.files.clone(),
            screen: checked.request.screen,
            ..RunRequest::default()
        };
        self.prepare(candidate)?.screen().await?;
        let (shared, mut test_results, executions) =
            lanes::carry_out(self, checked, (caller, place), tell).await?;
        if shared.checked.request.timing {
            let passed: Vec<bool> = test_results.iter().map(|one| one.passed).collect();
            let timings = timing::measure(&shared, &passed).await?;
            let show_hidden = shared.checked.request.show_hidden;
            for (result, timing) in test_results.iter_mut().zip(timings) {
                result.timing = timing.filter(|_| show_hidden || !result.hidden);
            }
        }
        let judged = |one: &&CaseResult| one.verdict != CaseVerdict::Infrastructure;
        let weight = |passed: bool| -> f64 {
            let counted = test_results.iter().filter(judged).filter(|one| one.passed || !passed);
            counted.map(|one| one.weight).fold(0.0, |sum, one| sum + one) // a sum of none is -0.0
        };
        let (won, all) = (weight(true), weight(false));
        let checked = &shared.checked;
        let (code, language) = (&checked.request.code, &checked.language);
        let feedback = feedback::of_grade(code, language, &test_results, &shared.events());
        Ok(Grade {
            score: (all > 0.0).then(|| won / all),
            all_passed: test_results.iter().all(|one| one.passed),
            score_trustworthy: test_results.iter().all(|one| judged(&one)),
            feedback_text: feedback::text(&feedback, checked.feedback_chars),
            feedback,
            test_results,
            executions,
            #[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
            elapsed_ms: started.elapsed().as_micros() as f64 / 1000.0,
            labels: checked.request.labels.clone(),
        })
    }
}
