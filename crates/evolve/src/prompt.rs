//! What a proposer is told. Of hidden cases it hears how many passed, and their names; nothing that they hold is
//! here to be told.

use std::fmt::Write as _;

use serde_json::json;

use crate::regions::Regions;
use crate::step::{Graded, Prompt, StepId};
use crate::task::{AnswerForm, Task};

/// Characters of public cases that are shown.
const CASES_CHARS: usize = 3000;
/// Characters of another attempt's feedback.
const ATTEMPT_CHARS: usize = 400;
/// Attempts that are told of.
pub(crate) const MAX_ATTEMPTS: usize = 3;

/// A program that has been graded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    pub step: StepId,
    pub code: &'a str,
    pub graded: &'a Graded,
}

/// What a proposal starts from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Situation<'a> {
    pub parent: Option<Known<'a>>,
    pub inspirations: Vec<Known<'a>>,
    /// What was tried from the same parent and was not kept, the newest last.
    pub attempts: Vec<&'a Graded>,
}

pub(crate) fn write(task: &Task, situation: &Situation<'_>) -> Prompt {
    let language = &task.language;
    let mut user = format!("# Task\n{}\n\nLanguage: {language}.\n", task.prompt.trim());
    if let Some(func) = &task.func {
        add(&mut user, format_args!("The tests call the function `{func}`.\n"));
    }
    add(&mut user, format_args!("\n# Some of the tests\n{}\n", shown_cases(task)));
    if !task.hidden.is_empty() {
        add(
            &mut user,
            format_args!("There are {} more tests, which are not shown.\n", task.hidden.len()),
        );
    }
    if let Some(parent) = &situation.parent {
        let score = parent.graded.score.unwrap_or_default();
        let code = fence(language, parent.code);
        add(
            &mut user,
            format_args!(
                "\n# The program to improve (score {score:.3} of {:.3})\n{code}\n",
                task.target_score
            ),
        );
        if !parent.graded.feedback.is_empty() {
            add(&mut user, format_args!("\n# What is wrong with it\n{}\n", parent.graded.feedback));
        }
    }
    for one in &situation.inspirations {
        let score = one.graded.score.unwrap_or_default();
        let code = fence(language, one.code);
        add(&mut user, format_args!("\n# Another program, for ideas (score {score:.3})\n{code}\n"));
    }
    if !situation.attempts.is_empty() {
        user += "\n# Attempts that were not better\n";
    }
    for one in &situation.attempts {
        let score = one
            .score
            .map_or_else(|| one.status.word().to_owned(), |score| format!("score {score:.3}"));
        let words = one.error.as_deref().unwrap_or(&one.feedback);
        add(&mut user, format_args!("- {score}: {}\n", cut(words, ATTEMPT_CHARS)));
    }
    add(&mut user, format_args!("\n# Answer\n{}", form(task, situation.parent.is_some())));
    Prompt { system: SYSTEM.to_owned(), user }
}

const SYSTEM: &str = "You improve programs. Each of your answers is run against tests in a sandbox, and the share of tests that \
it passes is its score. Answer with code; keep explanations short.";

fn form(task: &Task, has_parent: bool) -> String {
    let rewrite = format!("the whole program in one ```{} block", task.language);
    let edit = "edits of the program above, each exactly in this form, where the text to search for stands \
                in the program exactly once:\n<<<<<<< SEARCH\nold lines\n=======\nnew lines\n>>>>>>> REPLACE";
    let mut text = match (task.answers, has_parent) {
        (AnswerForm::Edit, true) => format!("Give {edit}\n"),
        (AnswerForm::Any, true) => format!("Give {rewrite}; or, for a small change, {edit}\n"),
        _ => format!("Give {rewrite}.\n"),
    };
    let marked = task.program.as_deref().and_then(|code| Regions::of(code).ok());
    if marked.is_some_and(|regions| regions.any()) {
        text += "Change nothing outside of EVOLVE-BLOCK-START and EVOLVE-BLOCK-END, nothing between \
                 PROTECTED-START and PROTECTED-END, and no such marker: an answer that does is refused.\n";
    }
    text
}

/// As many public cases as fit, as JSON.
fn shown_cases(task: &Task) -> String {
    let mut text = String::new();
    for (index, case) in task.cases.iter().enumerate() {
        let line = serde_json::to_string(case).unwrap_or_default();
        if text.len() + line.len() > CASES_CHARS {
            add(&mut text, format_args!("… and {} more\n", task.cases.len() - index));
            break;
        }
        text += &line;
        text.push('\n');
    }
    text
}

/// The same for programs that propose.
pub(crate) fn context(
    task: &Task,
    situation: &Situation<'_>,
    prompt: &Prompt,
    step: StepId,
    seed: u64,
) -> serde_json::Value {
    let known = |one: &Known<'_>| {
        json!({
            "step": one.step,
            "code": one.code,
            "score": one.graded.score,
            "feedback": one.graded.feedback,
        })
    };
    json!({
        "prompt": prompt.user,
        "system": prompt.system,
        "task": task.prompt,
        "language": task.language,
        "func": task.func,
        "step": step,
        "iteration": step.iteration,
        "seed": seed,
        "answers": task.answers,
        "target_score": task.target_score,
        "parent": situation.parent.as_ref().map(known),
        "inspirations": situation.inspirations.iter().map(known).collect::<Vec<_>>(),
    })
}

/// A fence that nothing in the code closes.
fn fence(language: &str, code: &str) -> String {
    let longest = code.lines().map(|line| line.trim_start()).filter(|line| line.starts_with("```"));
    let longest = longest.map(|line| line.chars().take_while(|one| *one == '`').count()).max();
    let ticks = "`".repeat(longest.map_or(3, |count| count + 1));
    format!("{ticks}{language}\n{}\n{ticks}", code.trim_end_matches('\n'))
}

/// The beginning of a text, in one line.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

fn add(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    text.write_fmt(words).ok();
}
