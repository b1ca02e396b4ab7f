//! Grades as tables.

use std::fmt::Write as _;

use belljar::grade::formats::Graded;
use belljar::grade::{CaseResult, CaseVerdict, Grade};
use serde_json::json;

use super::{line, visible};

/// The width of the column of names.
const MAX_NAME: usize = 40;
/// Characters of what went wrong, in a table.
const MAX_DETAIL: usize = 300;

/// One candidate: a line for each case, then the score.
pub(crate) fn one(grade: &Grade, quiet: bool) -> u8 {
    let mut text = String::new();
    let width = name_width(grade.test_results.iter().map(|one| one.name.as_str()));
    for result in &grade.test_results {
        if !quiet || !result.passed {
            case(result, width, &mut text);
        }
    }
    let passed = grade.test_results.iter().filter(|one| one.passed).count();
    // Writing to a String cannot fail, here and below.
    writeln!(text, "{passed} of {} passed, {}", grade.test_results.len(), score(grade)).ok();
    if !quiet && !grade.feedback_text.is_empty() {
        writeln!(text, "\n{}", visible(grade.feedback_text.trim_end())).ok();
    }
    line(text.trim_end())
}

fn score(grade: &Grade) -> String {
    let score = grade.score.map_or_else(|| "no score".to_owned(), |one| format!("score {one:.3}"));
    if grade.score_trustworthy {
        return score;
    }
    format!("{score}; not to be trusted: the sandbox failed for some cases, which were not judged")
}

fn case(result: &CaseResult, width: usize, text: &mut String) {
    let name = shortened(&result.name);
    let took = match &result.timing {
        None => format!("{:9.2} ms", result.duration_ms),
        Some(timing) => {
            let noisy = if timing.noisy { ", noisy" } else { "" };
            let (low, high, times) = (timing.low_ms, timing.high_ms, timing.repetitions);
            format!("{:9.2} ms cpu [{low:.2}, {high:.2}] in {times} runs{noisy}", timing.cpu_ms)
        }
    };
    let hidden = if result.hidden { " (hidden)" } else { "" };
    let word = result.verdict.word();
    write!(text, "{word:<14} {name:<width$} {took}{hidden}").ok();
    if !result.passed && !result.detail.is_empty() {
        let detail: String = result.detail.chars().take(MAX_DETAIL).collect();
        write!(text, "\n{:15}{}", "", visible(&detail).replace('\n', "\n               ")).ok();
    }
    text.push('\n');
}

/// A set of problems: those that failed, and how many passed.
pub(crate) fn many(graded: &[Graded], quiet: bool) -> u8 {
    let mut text = String::new();
    let width = name_width(graded.iter().map(|one| one.task_id.as_str()));
    for one in graded {
        if one.grade.all_passed && quiet {
            continue;
        }
        let all = &one.grade.test_results;
        let failed = all.iter().find(|one| !one.passed);
        let word = failed.map_or(CaseVerdict::Passed.word(), |one| one.verdict.word());
        let (name, passed) = (shortened(&one.task_id), all.iter().filter(|one| one.passed).count());
        write!(text, "{word:<14} {name:<width$} {passed} of {}", all.len()).ok();
        if let Some(failed) = failed {
            let detail: String = failed.detail.chars().take(MAX_DETAIL).collect();
            let detail = visible(&detail).replace('\n', " ");
            write!(text, "\n{:15}{}: {detail}", "", shortened(&failed.name)).ok();
        }
        text.push('\n');
    }
    let (passed, total) = (solved(graded), graded.len());
    let trusted = graded.iter().all(|one| one.grade.score_trustworthy);
    let doubt = if trusted { "" } else { "; not to be trusted: the sandbox failed for some cases" };
    writeln!(text, "{passed} of {total} solved ({:.1} %){doubt}", 100.0 * rate(graded)).ok();
    line(text.trim_end())
}

/// The same as JSON.
pub(crate) fn summary(graded: &[Graded]) -> serde_json::Value {
    let trusted = graded.iter().all(|one| one.grade.score_trustworthy);
    json!({
        "solved": solved(graded), "total": graded.len(), "rate": rate(graded),
        "score_trustworthy": trusted, "problems": graded,
    })
}

fn solved(graded: &[Graded]) -> usize {
    graded.iter().filter(|one| one.grade.all_passed).count()
}

#[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 problems")]
fn rate(graded: &[Graded]) -> f64 {
    solved(graded) as f64 / graded.len().max(1) as f64
}

fn name_width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(|name| shortened(name).chars().count()).max().unwrap_or(0)
}

fn shortened(name: &str) -> String {
    let name = visible(name).replace('\n', " ");
    if name.chars().count() <= MAX_NAME {
        return name;
    }
    name.chars().take(MAX_NAME - 1).chain(['…']).collect()
}
