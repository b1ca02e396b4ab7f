//! Three planes that never mix: the caller's mistake, the program's end (a Verdict), and our fault.

use belljar_jail::layer::Check;
use belljar_jail::report::Step;
use serde::Serialize;

use super::event::Severity;
use super::screening::Screening;

/// The request is wrong; nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{field} {reason}")]
pub struct SpecError {
    /// The field as the request spells it.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub reason: String,
}

impl SpecError {
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// A run that has no Outcome: the request was wrong, or we could not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Spec(#[from] SpecError),

    /// The request asked not to be run if its code looks like this. Nothing was started.
    #[error("code is refused by screening: {}. hint: --screen advise runs it in the sandbox all the same", refusal(.0))]
    Screened(Box<Screening>),

    /// A set-up action failed. Nothing of the program ran.
    #[error("cannot set up the sandbox: {errno} at {what} (step {}){}", step_name(*.step), hint_text(.hint))]
    Setup { step: Step, errno: String, what: String, hint: Option<String> },

    /// A barrier was not found as planned. Nothing of the program ran.
    #[error("not released: {} could not be verified (step read_back)", unverified(.checks))]
    NotVerified { checks: Vec<Check> },

    /// This host lacks something that the level needs.
    #[error("level {level} needs {missing}. hint: {hint}")]
    Unavailable { level: super::level::Level, missing: String, hint: String },

    /// Our own machinery broke.
    #[error("cannot {operation}: {source}")]
    Backend { operation: &'static str, source: std::io::Error },

    /// The sandbox was lost: nobody knows how the program would have ended, if it had started at all.
    #[error("the sandbox was lost: {what}")]
    Lost { what: &'static str },

    /// The batch's budget was used up before this request could be run, or while it ran.
    #[error("not run to its end: {what}")]
    Budget { what: String },

    /// All that may run runs, and all that may wait waits. Nothing was started.
    #[error("busy: {running} run and {waiting} wait, which is all that may. hint: try again soon")]
    Busy { running: usize, waiting: usize },

    /// What happened could not be recorded, and nothing runs unrecorded.
    #[error(
        "cannot record this run: {what}. hint: nothing runs unrecorded; mend that, give another place with --state DIR, or turn the audit trail off with --no-audit"
    )]
    Audit { what: String },

    /// No sandbox, exec, snapshot, context or file is called so.
    #[error("{what}")]
    NotFound { what: String },

    /// What was asked does not fit the state that something is in; nothing was changed.
    #[error("{what}")]
    Conflict { what: String },

    /// The run was cancelled by its caller.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    pub(crate) fn backend(operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Backend { operation, source }
    }

    /// The error's name on the wire.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Spec(_) => "spec",
            Self::Screened(_) => "screened",
            Self::Setup { .. } => "setup",
            Self::NotVerified { .. } => "not_verified",
            Self::Unavailable { .. } => "unavailable",
            Self::Backend { .. } => "backend",
            Self::Lost { .. } => "lost",
            Self::Budget { .. } => "budget",
            Self::Busy { .. } => "busy",
            Self::Audit { .. } => "audit",
            Self::NotFound { .. } => "not_found",
            Self::Conflict { .. } => "conflict",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The step's name as it is written everywhere else.
pub fn step_name(step: Step) -> String {
    match serde_json::to_value(step) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{step:?}"),
    }
}

fn hint_text(hint: &Option<String>) -> String {
    hint.as_ref().map_or_else(String::new, |hint| format!(". hint: {hint}"))
}

fn refusal(screening: &Screening) -> String {
    screening.headline(Severity::Info).unwrap_or_default()
}

fn unverified(checks: &[Check]) -> String {
    let failed = checks.iter().filter(|check| !check.verified);
    let named = failed.map(|check| format!("{} ({})", check.name, check.mechanism));
    named.collect::<Vec<_>>().join(", ")
}
