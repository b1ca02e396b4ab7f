//! Advice for the next attempt, from any run or grade that failed: what happened, where, and what to do.

mod traces;

use std::fmt::Write as _;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::Deserialize;

use super::show::cut;
use super::{CaseResult, CaseVerdict, Feedback, FeedbackKind, Raised};
use crate::model::event::{Event, Severity};
use crate::model::outcome::Outcome;

pub(super) use traces::find_error;

/// Pieces of advice, and cases that one piece names.
const MAX_PIECES: usize = 12;
const MAX_CASES: usize = 8;
/// Lines of code around the one that failed.
const AROUND: usize = 2;

/// One entry of the table.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Entry {
    language: String,
    error: String,
    #[serde(default)]
    word: String,
    advice: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Table {
    advice: Vec<Entry>,
}

static TABLE: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    // A table that cannot be read is found by its test; no advice is better than no grade.
    toml::from_str::<Table>(include_str!("advice.toml"))
        .map_or_else(|_| Vec::new(), |one| one.advice)
});

fn advice_for(language: &str, raised: &Raised) -> String {
    let names = std::iter::once(&raised.kind).chain(&raised.bases);
    let found = names.into_iter().find_map(|name| {
        TABLE.iter().find(|entry| {
            entry.language == language
                && entry.error == *name
                && (entry.word.is_empty() || raised.message.contains(&entry.word))
        })
    });
    found.map_or_else(
        || "The code raises an exception. Handle the input that causes it.".to_owned(),
        |entry| entry.advice.clone(),
    )
}

/// Advice from a grade.
pub(super) fn of_grade(
    code: &str,
    language: &str,
    results: &[CaseResult],
    events: &[Event],
) -> Vec<Feedback> {
    let mut all: Vec<Feedback> = Vec::new();
    for result in results.iter().filter(|one| !one.passed) {
        let piece = of_case(code, language, result);
        let same = all.iter_mut().find(|one| {
            (one.kind, &one.error_type, one.line) == (piece.kind, &piece.error_type, piece.line)
                && (one.message == piece.message || (one.advice == WRONG && piece.advice == WRONG))
        });
        match same {
            Some(one) => one.cases.extend(piece.cases),
            None => all.push(piece),
        }
    }
    all.extend(of_events(events));
    // What broke first is worth the most: errors before wrong answers before limits.
    all.sort_by_key(|one| one.kind);
    all.truncate(MAX_PIECES);
    all
}

/// For all wrong answers together; the first of them is shown.
const WRONG: &str =
    "The answer is not the one expected. Follow the failing input through the code by hand.";

fn of_case(code: &str, language: &str, result: &CaseResult) -> Feedback {
    let piece = |kind, advice: &str| Feedback {
        kind,
        error_type: None,
        message: result.detail.clone(),
        line: None,
        excerpt: None,
        cases: vec![result.name.clone()],
        advice: advice.to_owned(),
    };
    match result.verdict {
        CaseVerdict::WrongAnswer | CaseVerdict::Passed => piece(FeedbackKind::WrongAnswer, WRONG),
        CaseVerdict::Raised | CaseVerdict::NotLoaded | CaseVerdict::Ended
            if result.raised.is_some() =>
        {
            let raised = result.raised.clone().unwrap_or_default();
            let mut one = of_error(code, language, &raised);
            one.cases = vec![result.name.clone()];
            one
        }
        CaseVerdict::Raised | CaseVerdict::NotLoaded => {
            piece(FeedbackKind::Error, "Define the function by the name that the task asks for.")
        }
        CaseVerdict::Ended => piece(
            FeedbackKind::Error,
            "The program ended without an answer. Return the result, and end with exit code 0.",
        ),
        CaseVerdict::NotComparable => piece(
            FeedbackKind::WrongAnswer,
            "Return plain values: numbers, strings, lists, tuples, sets, dicts. A generator or an \
             object of a class is none.",
        ),
        CaseVerdict::TimeLimit => piece(
            FeedbackKind::Limit,
            "It takes too long. Look for a loop that does not end, or use a faster algorithm.",
        ),
        CaseVerdict::MemoryLimit => piece(
            FeedbackKind::Limit,
            "It needs too much memory. Do not hold everything at once; look for growth without end.",
        ),
        CaseVerdict::OutputLimit => {
            piece(FeedbackKind::Limit, "It writes too much. Print only what is asked for.")
        }
        CaseVerdict::DiskLimit => piece(
            FeedbackKind::Limit,
            "It fills its disk. Write less, and remove what is done with.",
        ),
        CaseVerdict::Refused => piece(
            FeedbackKind::Blocked,
            "It does what the sandbox refuses. Solve the task without it.",
        ),
        CaseVerdict::Tampered => piece(
            FeedbackKind::Tampered,
            "It interfered with its own testing. Only the returned value counts.",
        ),
        CaseVerdict::Infrastructure => piece(
            FeedbackKind::Infrastructure,
            "Nothing is known about this case: the sandbox failed, not the code. Ask again.",
        ),
    }
}

fn of_error(code: &str, language: &str, raised: &Raised) -> Feedback {
    Feedback {
        kind: FeedbackKind::Error,
        error_type: Some(raised.kind.clone()),
        message: raised.message.clone(),
        line: raised.line,
        excerpt: raised.line.and_then(|line| excerpt(code, line)),
        cases: Vec::new(),
        advice: advice_for(language, raised),
    }
}

/// The code around a line, numbered, with a mark at the line itself.
fn excerpt(code: &str, line: u32) -> Option<String> {
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    let lines: Vec<&str> = code.lines().collect();
    lines.get(at)?;
    let mut text = String::new();
    let last = (at + AROUND + 1).min(lines.len());
    for (index, content) in lines.iter().enumerate().take(last).skip(at.saturating_sub(AROUND)) {
        let mark = if index == at { '>' } else { ' ' };
        // Writing to a String cannot fail.
        writeln!(text, "{mark} {:>3} | {}", index + 1, cut(content, 160)).ok();
    }
    Some(text)
}

fn of_events(events: &[Event]) -> Vec<Feedback> {
    let mut all: Vec<Feedback> = Vec::new();
    // What innocent software tries by the way is no news.
    for event in events.iter().filter(|event| event.severity > Severity::Info) {
        if all.iter().all(|one| one.message != event.detail) {
            all.push(Feedback {
                kind: FeedbackKind::Blocked,
                error_type: None,
                message: event.detail.clone(),
                line: None,
                excerpt: None,
                cases: Vec::new(),
                advice: "The sandbox refused or limited this. Solve the task without it."
                    .to_owned(),
            });
        }
    }
    all
}

/// Advice from a run that was not graded; none if it ended well.
pub fn of_outcome(outcome: &Outcome, code: &str, language: &str) -> Vec<Feedback> {
    let mut all = Vec::new();
    if let Some(judged) = super::judge::limit(outcome) {
        let kind = if judged.verdict == CaseVerdict::Infrastructure {
            FeedbackKind::Infrastructure
        } else if judged.verdict == CaseVerdict::Refused {
            FeedbackKind::Blocked
        } else {
            FeedbackKind::Limit
        };
        let fix = outcome.events.first().map_or("", |event| event.fix.as_str());
        let advice = if fix.is_empty() {
            "Use less of it.".to_owned()
        } else {
            format!("Use less of it; or allow more: {fix}")
        };
        all.push(Feedback {
            kind,
            error_type: None,
            message: judged.detail,
            line: None,
            excerpt: None,
            cases: Vec::new(),
            advice,
        });
    }
    if outcome.ok() {
        return all;
    }
    if let Some(raised) = find_error(language, &outcome.stderr) {
        all.push(of_error(code, language, &raised));
    } else if all.is_empty() {
        let what = match outcome.signal {
            Some(signal) => format!("ended by signal {signal}"),
            None => format!("exit code {}", outcome.exit_code.unwrap_or(-1)),
        };
        let said = outcome.stderr.trim_end().lines().next_back().unwrap_or_default();
        all.push(Feedback {
            kind: FeedbackKind::Error,
            error_type: None,
            message: format!("{what}: {}", cut(said, 300)),
            line: None,
            excerpt: None,
            cases: Vec::new(),
            advice: "The program says that it failed. Its last words are above.".to_owned(),
        });
    }
    all
}

/// Advice as text for a prompt, no longer than so many characters. What does not fit is left out whole,
/// with a word that it is.
pub fn text(feedback: &[Feedback], most_chars: usize) -> String {
    let mut whole = String::new();
    for (index, piece) in feedback.iter().enumerate() {
        let next = one_piece(piece);
        let left_out = format!("({} more)\n", feedback.len() - index);
        let last = index + 1 == feedback.len();
        let needed = next.chars().count() + if last { 0 } else { left_out.chars().count() };
        if whole.chars().count() + needed > most_chars {
            let room = most_chars.saturating_sub(whole.chars().count());
            if whole.is_empty() {
                // Better the beginning of the first than nothing.
                return next.chars().take(room).collect();
            }
            if left_out.chars().count() <= room {
                whole.push_str(&left_out);
            }
            return whole;
        }
        whole.push_str(&next);
    }
    whole
}

fn one_piece(piece: &Feedback) -> String {
    let mut text = String::from("- ");
    if let Some(kind) = &piece.error_type {
        text.push_str(kind);
        text.push_str(if piece.message.is_empty() { "" } else { ": " });
    }
    text.push_str(&cut(&piece.message, 400));
    if let Some(line) = piece.line {
        write!(text, " (line {line})").ok();
    }
    if !piece.cases.is_empty() {
        let named: Vec<String> =
            piece.cases.iter().take(MAX_CASES).map(|one| cut(one, 80)).collect();
        let more = piece.cases.len().saturating_sub(MAX_CASES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        write!(text, " [failing: {}{more}]", named.join(", ")).ok();
    }
    text.push('\n');
    for line in piece.excerpt.iter().flat_map(|one| one.lines()) {
        writeln!(text, "    {line}").ok();
    }
    writeln!(text, "  {}", piece.advice).ok();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(kind: &str, message: &str) -> Raised {
        Raised { kind: kind.into(), message: message.into(), line: Some(2), ..Raised::default() }
    }

    #[test]
    fn the_table_is_read_and_has_every_error_that_was_promised() {
        for name in [
            "NameError",
            "TypeError",
            "ValueError",
            "IndexError",
            "KeyError",
            "AttributeError",
            "ImportError",
            "SyntaxError",
            "ZeroDivisionError",
            "RecursionError",
            "TimeoutError",
        ] {
            assert!(
                TABLE.iter().any(|one| one.language == "python" && one.error == name),
                "{name}"
            );
        }
        for language in ["node", "bash"] {
            assert!(TABLE.iter().filter(|one| one.language == language).count() > 5);
        }
    }

    #[test]
    fn a_message_chooses_between_entries_and_a_base_stands_in() {
        let none = advice_for("python", &raised("TypeError", "'NoneType' object is not iterable"));
        assert!(none.contains("None") && none != advice_for("python", &raised("TypeError", "x")));
        let own = Raised { bases: vec!["KeyError".into()], ..raised("MissingThing", "") };
        assert_eq!(advice_for("python", &own), advice_for("python", &raised("KeyError", "")));
    }

    #[test]
    fn advice_has_the_line_and_the_code_around_it() {
        let code = "def f(x):\n    return y\n\nprint(f(1))\n";
        let one = of_error(code, "python", &raised("NameError", "name 'y' is not defined"));
        let excerpt = one.excerpt.unwrap();
        assert!(
            excerpt.contains(">   2 |     return y") && excerpt.contains("1 | def f(x):"),
            "{excerpt}"
        );
    }

    #[test]
    fn text_keeps_to_its_budget() {
        let code = "def f(x):\n    return y\n";
        let one = of_error(code, "python", &raised("NameError", &"long ".repeat(500)));
        let many: Vec<Feedback> = (0..10).map(|_| one.clone()).collect();
        for budget in [0, 1, 10, 100, 1000, 5000] {
            assert!(text(&many, budget).chars().count() <= budget, "{budget}");
        }
        assert!(text(&many, 1500).ends_with("more)\n"), "{}", text(&many, 1500));
        assert_eq!(text(&[], 100), "");
    }
}
