//! Evolutions for people: a line for each step, a table, a program with the numbers of its lines.

use belljar_evolve::{Graded, StepId, Summary};

use super::{line, visible};

/// What is told of an error in one line.
const MAX_ERROR_CHARS: usize = 100;

/// One step, as it ends.
pub(crate) fn step(graded: &Graded, summary: &Summary) -> String {
    let stages: Vec<String> = graded
        .stages
        .iter()
        .map(|one| format!("{} {}/{}", one.name.word(), one.passed, one.cases))
        .collect();
    let score =
        graded.score.map_or_else(|| graded.status.word().to_owned(), |one| format!("{one:.4}"));
    let parent =
        summary.steps.iter().find(|one| one.step == graded.step).and_then(|one| one.parent);
    let parent = parent.map_or_else(|| "-".to_owned(), |one| one.to_string());
    let mark = if graded.accepted { "kept" } else { "" };
    let words = match &graded.error {
        Some(error) => error.chars().take(MAX_ERROR_CHARS).collect(),
        None => stages.join(", "),
    };
    let row =
        format!("{:>7}  from {parent:<7} {score:>10}  {mark:<4}  {words}", graded.step.to_string());
    row.trim_end().to_owned()
}

/// Where it stands, in a few words.
pub(crate) fn state(summary: &Summary) -> String {
    let best = summary.best.as_ref().and_then(|one| one.score);
    let best = best.map_or_else(|| "no score yet".to_owned(), |score| format!("best {score:.4}"));
    format!("{best}{}", cost(summary))
}

fn cost(summary: &Summary) -> String {
    let spent = &summary.spent;
    let tokens = spent.input_tokens + spent.output_tokens;
    let money =
        if spent.money > 0.0 { format!(", cost {:.4}", spent.money) } else { String::new() };
    if tokens > 0 { format!(", {tokens} tokens{money}") } else { money }
}

/// How it ended, and what to do next.
pub(crate) fn summary(summary: &Summary) -> u8 {
    let spent = &summary.spent;
    let ended = match (summary.running, summary.end) {
        (true, _) => "still running",
        (false, Some(end)) => end.words(),
        (false, None) => "cut short",
    };
    let why = summary.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let best = summary.best.as_ref();
    let best = best.map_or_else(
        || "none has a score".to_owned(),
        |one| {
            format!(
                "step {}, score {:.4} of {}",
                one.step,
                one.score.unwrap_or_default(),
                summary.target_score
            )
        },
    );
    let id = &summary.id;
    let text = format!(
        "evolution  {id}\nended      {ended}{why}\nbest       {best}\niterations {} of {}\nused       {} sandboxes, {:.1} s{}\n\
         \nread it    belljar evolve best {id}\nreport     belljar evolve export {id} --report report.html\nlet it out belljar evolve promote {id} --out FILE",
        summary.iterations,
        summary.max_iterations,
        spent.executions,
        spent.seconds(),
        cost(summary)
    );
    line(&visible(&text))
}

/// The steps as a table.
pub(crate) fn steps(summary: &Summary) -> u8 {
    let mut text = format!(
        "{:>7}  {:<7} {:>10}  {:<4}  {:>9}  {:>8}\n",
        "step", "parent", "score", "kept", "time", "size"
    );
    for one in &summary.steps {
        let parent = one.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string());
        let word = one.status.map_or("not graded", |status| status.word());
        let score = one.score.map_or_else(|| word.to_owned(), |score| format!("{score:.4}"));
        let kept = if one.accepted { "kept" } else { "" };
        let (time, size) = one.measures.map_or_else(Default::default, |it| {
            (format!("{:.1} ms", it.time_ms), format!("{} B", it.size_bytes))
        });
        let row = format!(
            "{:>7}  {parent:<7} {score:>10}  {kept:<4}  {time:>9}  {size:>8}",
            one.step.to_string()
        );
        let error = one.error.as_deref().unwrap_or_default();
        let error: String = error.chars().take(MAX_ERROR_CHARS).collect();
        text = text + format!("{row}  {error}").trim_end() + "\n";
    }
    line(&visible(&text))
}

pub(crate) fn list(all: &[Summary]) -> u8 {
    if all.is_empty() {
        return line("no evolutions here");
    }
    let mut text = String::new();
    for one in all {
        let best = one.best.as_ref().and_then(|best| best.score);
        let best = best.map_or_else(|| "-".to_owned(), |score| format!("{score:.4}"));
        let ended = match (one.running, one.end) {
            (true, _) => "running",
            (false, Some(end)) => end.words(),
            (false, None) => "cut short",
        };
        let progress = format!("{}/{}", one.iterations, one.max_iterations);
        text += &format!("{}  {best:>7}  {progress:>9}  {:<20} {ended}\n", one.id, one.name);
    }
    line(visible(&text).trim_end())
}

/// A program to be read: with numbers, so that nobody runs it by accident.
pub(crate) fn program(step: StepId, score: Option<f64>, code: &str) -> u8 {
    let score = score.map(|score| format!(", score {score:.4}")).unwrap_or_default();
    let mut text = format!("step {step}{score}\n");
    for (index, one) in code.lines().enumerate() {
        text += &format!("{:>5} | {}\n", index + 1, one.replace('\t', "    "));
    }
    line(visible(&text).trim_end())
}
