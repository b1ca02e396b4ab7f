//! An evolution as one page of HTML that needs nothing else: the score as it grew, who descends from whom, and every
//! change. All that candidates and proposers wrote is text in it, never markup.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use belljar::Error;
use belljar::units::show_bytes;

use crate::candidate::diff;
use crate::evolution::Evolution;
use crate::history::History;
use crate::step::{Graded, Status, StepId};
use crate::summary::Summary;

/// Steps that are drawn and told; of a longer evolution the last ones, and the best.
const MAX_STEPS: usize = 1000;
/// Characters of one text.
const MAX_TEXT_CHARS: usize = 20_000;
/// The drawings, in pixels.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 40.0;
const ROW: f64 = 34.0;

const STYLE: &str = "
:root{--ink:#1d2330;--soft:#667085;--line:#d5dae3;--good:#12805c;--bad:#b42318;--back:#fff;--panel:#f6f7f9;--accent:#3538cd}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ee;--soft:#98a2b3;--line:#3a4050;--good:#4bd3a4;--bad:#ff8a80;--back:#14171d;--panel:#1d212a;--accent:#a4a7ff}}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:980px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p.sub{color:var(--soft);margin:.2rem 0 1rem}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:.5rem;margin:0}dl div{background:var(--panel);border-radius:8px;padding:.6rem .8rem}dt{color:var(--soft);font-size:.8rem}dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}.scroll{overflow-x:auto}.scroll svg{width:auto;min-width:100%}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:500}
details{border:1px solid var(--line);border-radius:8px;margin:.4rem 0;padding:.4rem .8rem}summary{cursor:pointer;font-variant-numeric:tabular-nums}summary b{font-weight:600}
pre{background:var(--panel);border-radius:8px;padding:.7rem;overflow-x:auto;font:13px/1.45 ui-monospace,monospace;white-space:pre}
.add{color:var(--good)}.del{color:var(--bad)}.at{color:var(--accent)}.kept{color:var(--good)}.not{color:var(--soft)}.wrong{color:var(--bad)}";

/// The report of an evolution.
pub fn page(root: &Path, id: &str) -> Result<String, Error> {
    let history = Evolution::history_of(root, id)?;
    let summary = Summary::of(&history, crate::store::is_running(root, id));
    Ok(write_page(&history, &summary))
}

fn write_page(history: &History, summary: &Summary) -> String {
    let mut out = String::new();
    let title = escape(&format!("{} · evolution {}", summary.name, summary.id));
    put(
        &mut out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>\n\
         <h1>{}</h1><p class=\"sub\">{}</p>\n",
            escape(if summary.name.is_empty() { "Evolution" } else { &summary.name }),
            escape(&ending(summary)),
        ),
    );
    facts(&mut out, history, summary);
    let shown = shown(history);
    put(&mut out, format_args!("<h2>Score</h2>{}\n", curve(history, summary, &shown)));
    put(
        &mut out,
        format_args!("<h2>Lineage</h2><div class=\"scroll\">{}</div>\n", lineage(history, &shown)),
    );
    front(&mut out, history, summary);
    best(&mut out, history);
    out += "<h2>Steps</h2>\n";
    if shown.len() < history.graded.len() {
        put(
            &mut out,
            format_args!(
                "<p class=\"sub\">The last {} of {}.</p>",
                shown.len(),
                history.graded.len()
            ),
        );
    }
    for graded in &shown {
        step(&mut out, history, graded);
    }
    out + "</body></html>\n"
}

fn ending(summary: &Summary) -> String {
    let state = match (summary.running, summary.end) {
        (true, _) => "still running".to_owned(),
        (false, Some(end)) => format!("ended: {}", end.words()),
        (false, None) => "cut short; it can be resumed".to_owned(),
    };
    let why = summary.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("evolution {} · {state}{why}", summary.id)
}

fn facts(out: &mut String, history: &History, summary: &Summary) {
    let best = summary.best.as_ref();
    let score =
        best.and_then(|one| one.score).map_or("–".to_owned(), |score| format!("{score:.4}"));
    let spent = &summary.spent;
    *out += "<dl>";
    for (name, value) in [
        ("best score", score),
        ("best step", best.map_or("–".to_owned(), |one| one.step.to_string())),
        ("iterations", format!("{} of {}", summary.iterations, summary.max_iterations)),
        (
            "candidates graded",
            history.graded.values().filter(|one| one.status == Status::Scored).count().to_string(),
        ),
        ("sandboxes", spent.executions.to_string()),
        ("time", format!("{:.1} s", spent.seconds())),
        ("tokens", (spent.input_tokens + spent.output_tokens).to_string()),
        ("cost", format!("{:.4}", spent.money)),
    ] {
        put(out, format_args!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value)));
    }
    *out += "</dl>\n";
}

/// The steps that are told, in their order.
fn shown(history: &History) -> Vec<&Graded> {
    let best = history.best().map(|(step, _)| step);
    let skip = history.graded.len().saturating_sub(MAX_STEPS);
    let all = history.graded.values().enumerate();
    all.filter(|(index, one)| *index >= skip || Some(one.step) == best)
        .map(|(_, one)| one)
        .collect()
}

/// Every score as a dot, and the best so far as a line.
#[expect(clippy::cast_precision_loss, reason = "a thousand steps")]
fn curve(history: &History, summary: &Summary, shown: &[&Graded]) -> String {
    let last = shown.len().saturating_sub(1).max(1) as f64;
    let x = |index: usize| MARGIN + index as f64 / last * (WIDTH - 2.0 * MARGIN);
    let y = |score: f64| HEIGHT - MARGIN - score * (HEIGHT - 2.0 * MARGIN);
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"score by step\">");
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (left, right, at) = (MARGIN, WIDTH - MARGIN, y(tick));
        put(
            &mut out,
            format_args!(
                "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"var(--line)\"/>\
             <text x=\"4\" y=\"{:.1}\">{tick}</text>",
                at + 4.0
            ),
        );
    }
    let target = y(summary.target_score);
    put(
        &mut out,
        format_args!(
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{target:.1}\" y2=\"{target:.1}\" stroke=\"var(--good)\" stroke-dasharray=\"4 4\"/>",
            WIDTH - MARGIN
        ),
    );
    let line = best_line(shown, x, y);
    put(
        &mut out,
        format_args!(
            "<path d=\"{line}\" fill=\"none\" stroke=\"var(--accent)\" stroke-width=\"2\"/>"
        ),
    );
    for (index, one) in shown.iter().enumerate() {
        let (at, colour) = match one.score {
            Some(score) => (y(score), if one.accepted { "var(--accent)" } else { "var(--soft)" }),
            None => (y(0.0), "var(--bad)"),
        };
        put(
            &mut out,
            format_args!(
                "<circle cx=\"{:.1}\" cy=\"{at:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}</title></circle>",
                x(index),
                escape(&heading(history, one))
            ),
        );
    }
    put(
        &mut out,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"{}\">steps, in their order</text></svg>",
            HEIGHT - 8.0
        ),
    );
    out
}

/// The best score so far, as the path of a line.
fn best_line(shown: &[&Graded], x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) -> String {
    let (mut line, mut best) = (String::new(), None::<f64>);
    for (index, one) in shown.iter().enumerate() {
        if let Some(score) = one.score {
            let higher = best.is_none_or(|best| score > best);
            if higher {
                // A step in the line, not a slope: between two candidates there is nothing.
                let from = best.unwrap_or(score);
                let word = if best.is_none() { "M" } else { "L" };
                put(
                    &mut line,
                    format_args!(
                        "{word}{:.1} {:.1} L{:.1} {:.1} ",
                        x(index),
                        y(from),
                        x(index),
                        y(score)
                    ),
                );
                best = Some(score);
            }
        }
        if let (Some(best), true) = (best, index + 1 == shown.len()) {
            put(&mut line, format_args!("L{:.1} {:.1}", x(index), y(best)));
        }
    }
    line
}

/// Iterations from left to right, a line from each parent to its child.
#[expect(clippy::cast_precision_loss, reason = "a thousand steps")]
fn lineage(history: &History, shown: &[&Graded]) -> String {
    let columns: Vec<u32> = {
        let mut all: Vec<u32> = shown.iter().map(|one| one.step.iteration).collect();
        all.dedup();
        all
    };
    let at: BTreeMap<StepId, (f64, f64)> = shown
        .iter()
        .map(|one| {
            let column =
                columns.iter().position(|it| *it == one.step.iteration).unwrap_or(0) as f64;
            (one.step, (MARGIN + column * ROW * 1.4, ROW * (f64::from(one.step.slot) + 0.8)))
        })
        .collect();
    let width = MARGIN * 2.0 + columns.len().saturating_sub(1) as f64 * ROW * 1.4;
    let rows = shown.iter().map(|one| one.step.slot).max().unwrap_or(0);
    let height = ROW * (f64::from(rows) + 1.6);
    let best = history.best().map(|(step, _)| step);
    let mut out = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"who descends from whom\">"
    );
    for one in shown {
        let parent = history.proposals.get(&one.step).and_then(|it| it.parent);
        if let (Some((x1, y1)), Some((x2, y2))) =
            (parent.and_then(|it| at.get(&it)), at.get(&one.step))
        {
            let colour = if one.accepted { "var(--accent)" } else { "var(--line)" };
            put(
                &mut out,
                format_args!(
                    "<path d=\"M{x1:.1} {y1:.1} C{:.1} {y1:.1} {:.1} {y2:.1} {x2:.1} {y2:.1}\" fill=\"none\" stroke=\"{colour}\"/>",
                    x1 + 20.0,
                    x2 - 20.0
                ),
            );
        }
    }
    for one in shown {
        let Some((x, y)) = at.get(&one.step) else { continue };
        let fill = match one.status {
            Status::Scored if one.accepted => "var(--accent)",
            Status::Scored => "var(--soft)",
            Status::NoProgram
            | Status::Protected
            | Status::Screened
            | Status::Duplicate
            | Status::Infrastructure => "var(--bad)",
        };
        let radius = if Some(one.step) == best { 9.0 } else { 5.0 };
        put(
            &mut out,
            format_args!(
                "<a href=\"#s{0}\"><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\"><title>{1}</title></circle></a>",
                one.step,
                escape(&heading(history, one))
            ),
        );
    }
    out + "</svg>"
}

fn front(out: &mut String, history: &History, summary: &Summary) {
    *out += "<h2>Best in some respect</h2><table><tr><th>step</th><th>score</th><th>time</th><th>memory</th><th>size</th></tr>";
    for step in &summary.front {
        let Some(measures) = history.graded.get(step).and_then(|one| one.measures) else {
            continue;
        };
        put(
            out,
            format_args!(
                "<tr><td><a href=\"#s{step}\">{step}</a></td><td>{:.4}</td><td>{:.2} ms</td><td>{}</td><td>{}</td></tr>",
                measures.score,
                measures.time_ms,
                show_bytes(measures.memory_bytes),
                show_bytes(measures.size_bytes)
            ),
        );
    }
    *out += "</table>\n";
}

fn best(out: &mut String, history: &History) {
    let Some((step, _)) = history.best() else { return };
    let code = history.code(step).unwrap_or_default();
    put(out, format_args!("<h2>The best program, {step}</h2><pre>{}</pre>\n", text(code)));
    if let Some(seed) = history.task.program.as_deref().filter(|_| step != StepId::SEED) {
        put(
            out,
            format_args!(
                "<details><summary>against the seed program</summary><pre>{}</pre></details>\n",
                coloured(&diff(seed, code))
            ),
        );
    }
}

fn heading(history: &History, graded: &Graded) -> String {
    let score =
        graded.score.map_or_else(|| graded.status.word().to_owned(), |score| format!("{score:.4}"));
    let parent = history.proposals.get(&graded.step).and_then(|one| one.parent);
    let from = parent.map(|parent| format!(" from {parent}")).unwrap_or_default();
    format!("{}{from}: {score}", graded.step)
}

fn step(out: &mut String, history: &History, graded: &Graded) {
    let id = graded.step;
    let class = match graded.status {
        Status::Scored if graded.accepted => "kept",
        Status::Scored => "not",
        Status::NoProgram
        | Status::Protected
        | Status::Screened
        | Status::Duplicate
        | Status::Infrastructure => "wrong",
    };
    let kept = if graded.accepted { " · kept" } else { "" };
    let stages: Vec<String> = graded
        .stages
        .iter()
        .map(|one| format!("{} {}/{}", one.name.word(), one.passed, one.cases))
        .collect();
    put(
        out,
        format_args!(
            "<details id=\"s{id}\"><summary class=\"{class}\"><b>{}</b>{kept} <span class=\"not\">{}</span></summary>",
            escape(&heading(history, graded)),
            escape(&stages.join(" · "))
        ),
    );
    let proposal = history.proposals.get(&id);
    let error = graded.error.as_ref().or(proposal.and_then(|one| one.error.as_ref()));
    if let Some(error) = error {
        put(out, format_args!("<p class=\"wrong\">{}</p>", text(error)));
    }
    if !graded.feedback.is_empty() {
        put(out, format_args!("<pre>{}</pre>", text(&graded.feedback)));
    }
    if let Some(one) = proposal {
        put(out, format_args!("<pre>{}</pre>", coloured(&one.diff)));
        put(
            out,
            format_args!(
                "<details><summary>prompt and answer ({} + {} tokens, cost {:.4}, {:.1} s)</summary><pre>{}</pre><pre>{}</pre></details>",
                one.usage.input_tokens,
                one.usage.output_tokens,
                one.cost,
                one.elapsed_ms / 1000.0,
                text(&one.prompt.user),
                text(&one.answer)
            ),
        );
    }
    *out += "</details>\n";
}

/// A difference, with its lines in colour.
fn coloured(diff: &str) -> String {
    let mut out = String::new();
    for line in clipped(diff).lines() {
        let class = match line.as_bytes().first() {
            Some(b'+') => "add",
            Some(b'-') => "del",
            Some(b'@') => "at",
            Some(_) | None => "",
        };
        put(&mut out, format_args!("<span class=\"{class}\">{}</span>\n", escape(line)));
    }
    out
}

fn text(words: &str) -> String {
    escape(&clipped(words))
}

fn clipped(words: &str) -> String {
    let mut all = words.chars();
    let mut kept: String = all.by_ref().take(MAX_TEXT_CHARS).collect();
    if all.next().is_some() {
        kept += "\n…";
    }
    kept
}

/// Text that is only text in HTML, in attributes too.
fn escape(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for one in words.chars() {
        match one {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' | '\t' => out.push(one),
            // Neither control characters nor those that turn the direction of what follows.
            _ if one.is_control()
                || matches!(one, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                out.push('\u{fffd}')
            }
            _ => out.push(one),
        }
    }
    out
}

fn put(out: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    out.write_fmt(words).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_markup_that_somebody_else_wrote() {
        let hostile = "<script>alert(1)</script>\" onload='x' &amp; \u{202e}\u{0}";
        let shown = escape(hostile);
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{0}', '\u{202e}']), "{shown}");
        assert!(coloured("+<b>\n-</pre>").contains("&lt;b&gt;"));
        assert!(clipped(&"x".repeat(MAX_TEXT_CHARS + 5)).ends_with('…'));
    }
}
