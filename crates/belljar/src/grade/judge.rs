//! From what was heard of a case to what is told of it.

use std::time::Duration;

use super::case::{Case, Kind};
use super::compare::{self, Rules};
use super::session::{Stopped, Told};
use super::show::{cut, show};
use super::value::Value;
use super::{CaseResult, CaseVerdict, Raised};
use crate::model::outcome::{FaultDomain, Outcome, Verdict};

/// Characters of an exception's message.
const MAX_MESSAGE: usize = 1000;
/// Names that are listed in a message.
const MAX_NAMES: usize = 12;

/// Exceptions whose names a hidden case may tell: one of the candidate's own making could spell its input.
const PLAIN_EXCEPTIONS: [&str; 22] = [
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "EOFError",
    "Exception",
    "FileNotFoundError",
    "ImportError",
    "IndexError",
    "KeyError",
    "KeyboardInterrupt",
    "LookupError",
    "MemoryError",
    "ModuleNotFoundError",
    "NameError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "RecursionError",
    "RuntimeError",
    "SystemExit",
    "TypeError",
    "ValueError",
];

/// What is known of a case when it has ended.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub duration: Duration,
    pub memory_bytes: Option<u64>,
    pub printed: String,
}

/// A verdict and all that belongs to it.
#[derive(Debug)]
pub(super) struct Judged {
    pub verdict: CaseVerdict,
    pub detail: String,
    pub output: Option<Value>,
    pub raised: Option<Raised>,
}

impl Judged {
    pub(super) fn new(verdict: CaseVerdict, detail: impl Into<String>) -> Self {
        Self { verdict, detail: detail.into(), output: None, raised: None }
    }

    fn with(self, output: Option<Value>, raised: Option<Raised>) -> Self {
        Self { output, raised, ..self }
    }

    /// The result as it may be told: of a hidden case hardly more than how it ended.
    pub(super) fn result(self, case: &Case, facts: Facts, show_hidden: bool) -> CaseResult {
        let expected = match case.kind() {
            Kind::Call => case.expected_output.clone(),
            Kind::Streams => case.expected_stdout.as_ref().map(|data| Value::Str(text(&data.0))),
            Kind::Assert => None,
        };
        let mut result = CaseResult {
            name: case.name.clone(),
            passed: self.verdict == CaseVerdict::Passed,
            verdict: self.verdict,
            output: self.output,
            expected,
            detail: self.detail,
            #[expect(clippy::cast_precision_loss, reason = "2^53 microseconds are 285 years")]
            duration_ms: facts.duration.as_micros() as f64 / 1000.0,
            memory_bytes: facts.memory_bytes,
            weight: case.weight,
            hidden: case.hidden,
            raised: self.raised,
            printed: facts.printed,
            timing: None,
        };
        if case.hidden && !show_hidden {
            conceal(&mut result);
        }
        result
    }
}

fn conceal(result: &mut CaseResult) {
    (result.output, result.expected, result.printed) = (None, None, String::new());
    // As many digits as these have, a candidate could spell its input with.
    result.memory_bytes = result.memory_bytes.map(u64::next_power_of_two);
    result.duration_ms = result.duration_ms.max(1.0).log2().ceil().exp2();
    if let Some(raised) = &mut result.raised {
        let plain = PLAIN_EXCEPTIONS.contains(&raised.kind.as_str());
        let kind = if plain { raised.kind.clone() } else { "Exception".to_owned() };
        *raised = Raised { kind, ..Raised::default() };
    }
    let kept = matches!(
        result.verdict,
        CaseVerdict::Infrastructure | CaseVerdict::TimeLimit | CaseVerdict::MemoryLimit
    );
    if !result.passed && !kept {
        result.detail = "a hidden case: what was asked and what came is not shown".to_owned();
    }
}

/// Judges the answer to a call.
pub(super) fn call(case: &Case, told: Told) -> Judged {
    if let Some(names) = told.missing {
        return Judged::new(CaseVerdict::NotLoaded, missing(case, &names));
    }
    if let Some(raised) = told.raised {
        return exception(case, bounded(raised));
    }
    let kind = told.kind.map(|kind| cut(&kind, 100)).unwrap_or_default();
    match told.value {
        Some(value) if value.holds_object() => {
            let why = "an object was returned, which is no value that can be passed out";
            Judged::new(CaseVerdict::NotComparable, why)
        }
        Some(value) => returned(case, value, &kind),
        None => refused(case, &told.refused.unwrap_or_default(), &kind),
    }
}

fn missing(case: &Case, names: &[String]) -> String {
    let names: Vec<String> = names.iter().take(MAX_NAMES).map(|one| cut(one, 60)).collect();
    let has = match names.as_slice() {
        [] => "it defines no function".to_owned(),
        names => format!("it defines {}", names.join(", ")),
    };
    match &case.func_name {
        Some(name) => format!("the candidate has no function \"{name}\"; {has}"),
        None => format!("which function is to be called? {has}: give func_name"),
    }
}

fn exception(case: &Case, raised: Raised) -> Judged {
    let told = one_line(&raised);
    let Some(expected) = &case.expected_exception else {
        return Judged::new(CaseVerdict::Raised, told).with(None, Some(raised));
    };
    // `json.JSONDecodeError` as well as `JSONDecodeError`, and any base of it, as `except` takes them.
    let wanted = expected.rsplit('.').next().unwrap_or(expected);
    let met = raised.kind == wanted || raised.bases.iter().any(|base| base == wanted);
    let judged = if met {
        Judged::new(CaseVerdict::Passed, "")
    } else {
        Judged::new(
            CaseVerdict::WrongAnswer,
            format!("expected {expected} to be raised, got {told}"),
        )
    };
    judged.with(None, Some(raised))
}

/// An exception in one line.
pub(super) fn one_line(raised: &Raised) -> String {
    let at = raised.line.map_or_else(String::new, |line| format!(" (line {line})"));
    match raised.message.as_str() {
        "" => format!("{}{at}", raised.kind),
        message => format!("{}: {message}{at}", raised.kind),
    }
}

/// An exception with bounds on what it may say.
pub(super) fn bounded(raised: Raised) -> Raised {
    Raised {
        kind: cut(&raised.kind, 100),
        bases: raised.bases.iter().take(8).map(|base| cut(base, 100)).collect(),
        message: cut(&raised.message, MAX_MESSAGE),
        line: raised.line,
    }
}

fn returned(case: &Case, value: Value, kind: &str) -> Judged {
    if let Some(expected) = &case.expected_exception {
        let why = format!("expected {expected} to be raised, got {}", show(&value));
        return Judged::new(CaseVerdict::WrongAnswer, why).with(Some(value), None);
    }
    // The name of a class is the candidate's own word: it makes no value of a built-in type.
    let found = value.type_name();
    if let Some(wanted) = &case.expected_type
        && wanted != found
        && (Value::TYPES.contains(&wanted.as_str()) || wanted != kind)
    {
        let shown = show(&value);
        let why = format!("expected type {wanted}, got {shown}, of type {found}");
        return Judged::new(CaseVerdict::WrongAnswer, why).with(Some(value), None);
    }
    let rules = Rules { tolerance: case.tolerance, unordered: case.unordered };
    let differs =
        case.expected_output.as_ref().and_then(|one| compare::difference(one, &value, rules));
    let judged = match differs {
        None => Judged::new(CaseVerdict::Passed, ""),
        Some(why) => Judged::new(CaseVerdict::WrongAnswer, why),
    };
    judged.with(Some(value), None)
}

/// What was returned cannot be passed out. Its type may be all that is expected.
fn refused(case: &Case, why: &str, kind: &str) -> Judged {
    let only_type = case.expected_output.is_none() && case.expected_exception.is_none();
    if only_type && case.expected_type.as_deref() == Some(kind) {
        return Judged::new(CaseVerdict::Passed, "");
    }
    let why = format!("what was returned {}", cut(why, MAX_MESSAGE));
    Judged::new(CaseVerdict::NotComparable, why)
}

/// Judges an output.
pub(super) fn output(case: &Case, outcome: &Outcome, stdout: &[u8]) -> Judged {
    let found = Value::Str(text(stdout));
    let judged = match limit(outcome) {
        Some(judged) => judged,
        None if outcome.stdout_truncated => {
            Judged::new(CaseVerdict::OutputLimit, "wrote more than was kept of its output")
        }
        None if !outcome.ok() => {
            let what = match outcome.signal {
                Some(signal) => format!("was ended by signal {signal}"),
                None => format!("exited with code {}", outcome.exit_code.unwrap_or(-1)),
            };
            let said = last_line(&outcome.stderr);
            let why = if said.is_empty() { what } else { format!("{what}: {said}") };
            Judged::new(CaseVerdict::Ended, why)
        }
        None => {
            let expected = case.expected_stdout.as_ref().map_or(&[][..], |data| &data.0);
            match super::text::difference(expected, stdout, case) {
                None => Judged::new(CaseVerdict::Passed, ""),
                Some(why) => Judged::new(CaseVerdict::WrongAnswer, why),
            }
        }
    };
    judged.with(Some(found), None)
}

/// The beginning of what was printed.
pub(super) fn beginning(text: &str) -> String {
    cut(text, 4096)
}

fn last_line(text: &str) -> String {
    cut(text.trim_end().lines().next_back().unwrap_or_default(), 200)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A case during which its sandbox came to an end.
pub(super) fn stopped(stopped: &Stopped, limit_of_case: Duration) -> Judged {
    match stopped {
        Stopped::Time => {
            let why = format!("gave no answer within {} ms", limit_of_case.as_millis());
            Judged::new(CaseVerdict::TimeLimit, why)
        }
        Stopped::Tampered(why) => Judged::new(CaseVerdict::Tampered, *why),
        Stopped::Ours(error) => Judged::new(CaseVerdict::Infrastructure, error.to_string()),
        Stopped::Ended(outcome) => limit(outcome).unwrap_or_else(|| {
            ended(outcome.signal.map_or(outcome.exit_code.unwrap_or(-1), |signal| -signal))
        }),
    }
}

/// A case whose process ended with this code, or by this signal if it is negative.
pub(super) fn ended(code: i32) -> Judged {
    let why = if code < 0 {
        format!("its process was ended by signal {} without an answer", -code)
    } else {
        format!("its process exited with code {code} without an answer")
    };
    Judged::new(CaseVerdict::Ended, why)
}

/// The verdict of a run that met a limit, or failed because of us.
pub(super) fn limit(outcome: &Outcome) -> Option<Judged> {
    if outcome.fault_domain == FaultDomain::Infrastructure {
        let why = outcome.evidence.iter().map(|one| one.found.as_str()).collect::<Vec<_>>();
        return Some(Judged::new(CaseVerdict::Infrastructure, why.join("; ")));
    }
    let (verdict, why) = match &outcome.verdict {
        Verdict::Exited { .. } | Verdict::Signaled { .. } => return None,
        Verdict::WallTimeLimit { limit_ms } => {
            (CaseVerdict::TimeLimit, format!("did not end within {limit_ms} ms"))
        }
        Verdict::CpuTimeLimit { limit_ms } => {
            (CaseVerdict::TimeLimit, format!("used more than {limit_ms} ms of CPU time"))
        }
        Verdict::MemoryLimit { limit_bytes } => {
            let size = crate::model::units::show_bytes(*limit_bytes);
            (CaseVerdict::MemoryLimit, format!("used more than {size} of memory"))
        }
        Verdict::OutputLimit { limit_bytes, .. } => {
            let size = crate::model::units::show_bytes(*limit_bytes);
            (CaseVerdict::OutputLimit, format!("wrote more than {size}"))
        }
        Verdict::DiskLimit { .. } => (CaseVerdict::DiskLimit, "filled its disk".to_owned()),
        Verdict::SyscallDenied { .. } => {
            (CaseVerdict::Refused, "made a system call that ends a program".to_owned())
        }
        Verdict::StartFailed { errno } => {
            (CaseVerdict::Infrastructure, format!("could not be started: {errno}"))
        }
    };
    Some(Judged::new(verdict, why))
}
