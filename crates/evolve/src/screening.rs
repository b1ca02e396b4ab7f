//! Reading a candidate before it is run. Advice, which is kept with the step; a task may make it a gate.

use belljar::{Engine, Finding, ScreenMode, Screening};

use crate::task::Task;

/// Findings that are kept of one candidate.
const MAX_FINDINGS: usize = 8;

/// What is said of a candidate; the error is why it is not run.
pub(crate) fn screen(engine: &Engine, task: &Task, code: &str) -> Result<Vec<String>, String> {
    if task.screen == ScreenMode::Off {
        return Ok(Vec::new());
    }
    let found = engine.screener().screen(&task.language, "code", code);
    let grave = engine.screener().refuses_at();
    if task.screen == ScreenMode::Refuse && found.findings.iter().any(|one| one.severity >= grave) {
        return Err(words(&found));
    }
    Ok(found.findings.iter().take(MAX_FINDINGS).map(line).collect())
}

/// Why a candidate was refused, for the next prompt.
pub(crate) fn words(screening: &Screening) -> String {
    let faults = screening.syntax_errors.iter().map(|one| one.message.clone());
    let all: Vec<String> =
        faults.chain(screening.findings.iter().map(line)).take(MAX_FINDINGS).collect();
    format!("not run, for what it would do: {}", all.join("; "))
}

fn line(finding: &Finding) -> String {
    format!("{} in line {}: {}", finding.name, finding.line, finding.reason)
}
