//! The English of explanations, reports and statistics.

use crate::model::error::Error;
use crate::model::event::{Event, Risk};
use crate::model::outcome::{DiskLimit, Verdict};
use crate::model::units::{flag_ms, show_bytes};

pub(crate) const TITLE: &str = "Belljar security report";
pub(crate) const NOTHING_REFUSED: &str = "Nothing was refused, and no limit was met.";
pub(crate) const NO_REASONS: &str =
    "Nothing that it did weighs more than what innocent software does.";
pub(crate) const WHAT_TO_DO: &str = "What to do:";
pub(crate) const NOTHING_TO_DO: &str = "Nothing.";
pub(crate) const NEXT_ATTEMPT: &str = "For the next attempt:";
pub(crate) const FINDINGS: &str = "What was refused or met:";
pub(crate) const HEADINGS: [&str; 8] =
    ["Risk", "Reasons", "Recommendations", "Events", "The run", "Receipt", "Program", "Output"];

pub(crate) fn subject(id: &str, language: Option<&str>, level: &str) -> String {
    format!("Run {id} ({}, level {level})", language.unwrap_or("a command"))
}

/// How the program ended, in a sentence that goes on after "The program".
pub(crate) fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Exited { code: 0 } => "ended well, with code 0".to_owned(),
        Verdict::Exited { code } => format!("ended by itself, with code {code}"),
        Verdict::Signaled { signal } => format!("was ended by signal {signal}, not by us"),
        Verdict::WallTimeLimit { limit_ms } => {
            format!("was ended at its time limit of {}", flag_ms(*limit_ms))
        }
        Verdict::CpuTimeLimit { limit_ms } => {
            format!("was ended at its CPU time limit of {}", flag_ms(*limit_ms))
        }
        Verdict::MemoryLimit { limit_bytes } => {
            format!("was ended at its memory limit of {}", show_bytes(*limit_bytes))
        }
        Verdict::OutputLimit { limit_bytes, .. } => {
            format!("was ended after {} of output", show_bytes(*limit_bytes))
        }
        Verdict::DiskLimit { limit } => match limit {
            DiskLimit::DiskBytes => "failed with its disk full".to_owned(),
            DiskLimit::Inodes => "failed with no room for another file".to_owned(),
            DiskLimit::FileBytes => "failed with a file as long as one may be".to_owned(),
        },
        Verdict::SyscallDenied { signal } => {
            format!("was ended by the system-call filter (signal {signal})")
        }
        Verdict::StartFailed { errno } => format!("could not be started: {errno}"),
    }
}

pub(crate) fn ended(verdict: &str, elapsed_ms: f64) -> String {
    format!("The program {verdict}, after {elapsed_ms:.0} ms.")
}

pub(crate) fn running() -> String {
    "The run goes on, or its engine died and none was started since.".to_owned()
}

pub(crate) fn unfinished() -> String {
    "How the program ended is not known: the engine died before it could tell. Nothing of the program \
     outlived it."
        .to_owned()
}

pub(crate) fn not_run(kind: &str, message: &str) -> String {
    match kind {
        kind if kind == Error::Cancelled.kind() => {
            "The run was cancelled: its caller went away, or asked for it.".to_owned()
        }
        _ => format!("The program was not run to its end, and that is no fault of it: {message}"),
    }
}

pub(crate) fn times(count: u64) -> String {
    if count == 1 { String::new() } else { format!(", {count} times") }
}

pub(crate) fn event_head(event: &Event) -> String {
    let name = event.kind.name().replace('_', " ");
    format!("[{}] {name}{}: {}", event.severity.name(), times(event.count), event.detail)
}

pub(crate) fn event_process(pid: u32, command: &str) -> String {
    format!("by process {pid}: {command}")
}

pub(crate) fn event_rule(rule: &str) -> String {
    format!("refused by: {rule}")
}

pub(crate) fn event_fix(fix: &str) -> String {
    format!("to allow it: {fix}")
}

pub(crate) fn more_events(left: usize) -> String {
    format!("and {left} more; --json has all")
}

pub(crate) fn risk(risk: Risk) -> String {
    format!("Risk: {}.", risk.name())
}

/// What the risk as a whole asks for.
pub(crate) fn advice(risk: Risk) -> Option<&'static str> {
    match risk {
        Risk::Low => None,
        Risk::Medium => Some(
            "Look at what it tried before you run it with more rights; --level strict leaves it less to try.",
        ),
        Risk::High => Some(
            "Do not run this program outside of a sandbox. It tried to get at what is outside: read its code, \
             and find out who wrote it.",
        ),
        Risk::Critical => Some(
            "Treat this program as an attack. Keep the record (belljar audit export), do not run it again, \
             and look at what else came from where it came from.",
        ),
    }
}

pub(crate) fn if_meant(what: &str, fix: &str) -> String {
    format!("If this is meant ({what}): {fix}")
}

pub(crate) fn ran_without(layer: &str, stand_in: &str) -> String {
    format!("It ran without {layer} ({stand_in}): belljar doctor says what would bring it")
}

pub(crate) fn weak_level(level: &str) -> String {
    format!("Level {level} is no boundary for hostile code: use --level standard or above")
}

pub(crate) fn own_failure(code: i32) -> String {
    format!("Code {code} is the program's own: its error output tells why")
}
