//! `belljar explain`: in plain words what a run was refused, and what to do about it. Pure: a recorded run
//! goes in, words come out; the English itself is in `model/wording/report.rs`.

use serde::Serialize;

use crate::audit::{RunRecord, State};
use crate::grade::{Feedback, FeedbackKind, feedback};
use crate::model::event::{Event, Risk, Severity};
use crate::model::level::Level;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::wording::report as words;
use crate::visible::{shortened, visible_line};

/// Events that a text tells one by one.
const SHOWN_EVENTS: usize = 12;
/// Of one detail, command or fix in a text.
const SHOWN_CHARACTERS: usize = 300;
/// Of the advice for the next attempt in a text.
const FEEDBACK_CHARACTERS: usize = 2000;
/// Different recommendations from events.
const MOST_FIXES: usize = 8;

/// What happened, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub execution_id: String,
    /// How it ended, in a sentence.
    pub ended: String,
    pub risk: Option<Risk>,
    pub reasons: Vec<String>,
    pub events: Vec<Event>,
    /// What to do, what weighs most first.
    pub recommendations: Vec<String>,
    /// What whoever wrote the program can do better: the error, its line, the code around it.
    pub feedback: Vec<Feedback>,
    language: Option<String>,
    level: String,
}

impl Explanation {
    pub fn of(run: &RunRecord) -> Self {
        let outcome = run.outcome();
        let level = run.summary.level.map_or("unknown", |level| level.name()).to_owned();
        let base = Self {
            execution_id: run.execution_id.clone(),
            ended: ended(run, outcome.as_ref()),
            risk: run.summary.risk,
            reasons: Vec::new(),
            events: Vec::new(),
            recommendations: Vec::new(),
            feedback: Vec::new(),
            language: run.summary.language.clone(),
            level,
        };
        let Some(outcome) = outcome else { return base };
        let mut events = outcome.events.clone();
        events.sort_by_key(|event| std::cmp::Reverse(event.severity)); // stable: then as they came
        let recommendations = recommendations(&outcome, &events);
        let code = run.start.as_ref().and_then(|start| start["code"].as_str()).unwrap_or_default();
        let language = base.language.as_deref().unwrap_or_default();
        let feedback = feedback::of_outcome(&outcome, code, language);
        Self { reasons: outcome.risk_reasons.clone(), events, recommendations, feedback, ..base }
    }

    /// Errors of the program itself. What it was refused and which limits it met is told by its events.
    fn errors(&self) -> Vec<Feedback> {
        self.feedback.iter().filter(|one| one.kind == FeedbackKind::Error).cloned().collect()
    }

    /// For people.
    pub fn text(&self) -> String {
        let language = self.language.as_deref();
        let mut lines = vec![words::subject(&self.execution_id, language, &self.level)];
        lines.push(self.ended.clone());
        lines.extend(self.risk.map(words::risk));
        lines.push(String::new());
        if self.events.is_empty() {
            lines.push(words::NOTHING_REFUSED.to_owned());
        } else {
            lines.push(words::FINDINGS.to_owned());
        }
        for event in self.events.iter().take(SHOWN_EVENTS) {
            lines.push(format!("  {}", short(&words::event_head(event))));
            let by = event.process.as_ref().map(|one| words::event_process(one.pid, &one.command));
            let more =
                [by, Some(words::event_rule(&event.rule)), Some(words::event_fix(&event.fix))];
            lines.extend(more.into_iter().flatten().map(|line| format!("      {}", short(&line))));
        }
        if let Some(left) = self.events.len().checked_sub(SHOWN_EVENTS).filter(|left| *left > 0) {
            lines.push(format!("  {}", words::more_events(left)));
        }
        lines.push(String::new());
        lines.push(words::WHAT_TO_DO.to_owned());
        for one in &self.recommendations {
            lines.push(format!("  - {}", short(one)));
        }
        if self.recommendations.is_empty() {
            lines.push(format!("  {}", words::NOTHING_TO_DO));
        }
        let advice = feedback::text(&self.errors(), FEEDBACK_CHARACTERS);
        if !advice.is_empty() {
            lines.extend([String::new(), words::NEXT_ATTEMPT.to_owned()]);
            lines.extend(advice.lines().map(|line| format!("  {}", short(line))));
        }
        lines.join("\n")
    }

    /// For a model: one paragraph, what weighs most first, in no more than so many characters.
    pub fn short(&self, most: usize) -> String {
        let mut parts = vec![visible_line(&self.ended)];
        parts.extend(self.risk.filter(|risk| *risk > Risk::Low).map(words::risk));
        for event in self.events.iter().filter(|event| event.severity > Severity::Info) {
            let head = visible_line(&words::event_head(event));
            parts.push(format!("{head} ({}).", visible_line(&words::event_fix(&event.fix))));
        }
        let advice = feedback::text(&self.errors(), most);
        parts.extend(advice.lines().map(|line| visible_line(line.trim())));
        shortened(&parts.join(" "), most)
    }
}

fn short(text: &str) -> String {
    shortened(&visible_line(text), SHOWN_CHARACTERS)
}

fn ended(run: &RunRecord, outcome: Option<&Outcome>) -> String {
    match (run.state, outcome) {
        (State::Running, _) => words::running(),
        (State::Unfinished, _) => words::unfinished(),
        (State::Ended, Some(outcome)) => {
            words::ended(&words::verdict(&outcome.verdict), outcome.elapsed_ms)
        }
        (State::Ended, None) => {
            let error = run.end.as_ref().map(|end| &end["error"]);
            let field = |name: &str| {
                error.and_then(|error| error[name].as_str()).unwrap_or("unknown").to_owned()
            };
            words::not_run(&field("kind"), &field("message"))
        }
    }
}

fn recommendations(outcome: &Outcome, events: &[Event]) -> Vec<String> {
    let mut all: Vec<String> =
        words::advice(outcome.risk).map(ToOwned::to_owned).into_iter().collect();
    let mut fixes: Vec<&str> = Vec::new();
    for event in events.iter().filter(|event| event.severity > Severity::Info) {
        if fixes.contains(&event.fix.as_str()) || fixes.len() >= MOST_FIXES {
            continue;
        }
        fixes.push(&event.fix);
        // Where nothing would allow it there is nothing to do.
        all.extend(
            (!event.fix.starts_with("nothing")).then(|| words::if_meant(&event.detail, &event.fix)),
        );
    }
    if let (Verdict::Exited { code }, true) = (&outcome.verdict, fixes.is_empty()) {
        all.extend((*code != 0).then(|| words::own_failure(*code)));
    }
    let missing = outcome.receipt.missing.iter();
    all.extend(missing.map(|one| words::ran_without(&one.name.to_string(), &one.stand_in)));
    if outcome.receipt.level < Level::Standard {
        all.push(words::weak_level(outcome.receipt.level.name()));
    }
    all
}
