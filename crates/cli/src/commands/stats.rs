//! `belljar stats`: what the audit trail says in numbers, what a running server keeps ready, and how it
//! served the runs so far.

use belljar::PoolStats;
use belljar::audit::{self, Count, Stats as RunStats};
use belljar::visible::visible_line;
use belljar_server::wire;
use serde::{Deserialize, Serialize};

use super::audit::{Trouble, filter, open, words};
use crate::args::audit::Stats;
use crate::{remote, render};

/// As `GET /v1/stats` tells it.
#[derive(Deserialize)]
struct Told {
    runs: Option<RunStats>,
    pool: Option<PoolStats>,
}

/// As it is printed: the pool's numbers at the top, where they have always been.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    pool: Option<&'a PoolStats>,
    runs: Option<&'a RunStats>,
}

pub(crate) async fn stats(args: Stats) -> u8 {
    let told = if args.state.is_some() { Ok(None) } else { ask(&args).await };
    let told = match told {
        Ok(Some(told)) => told,
        Ok(None) => match recorded(&args) {
            Ok(runs) => Told { runs: Some(runs), pool: None },
            Err(trouble) => return trouble.tell(),
        },
        Err(failure) => {
            if args.json {
                render::json(&failure.json());
            } else {
                render::trouble(&failure.text(), 0);
            }
            return failure.code();
        }
    };
    if args.json {
        return render::json(&Shown { pool: told.pool.as_ref(), runs: told.runs.as_ref() });
    }
    let parts = [told.runs.as_ref().map(runs_text), told.pool.as_ref().map(text)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    render::line(parts.join("\n").trim_end())
}

async fn ask(args: &Stats) -> Result<Option<Told>, remote::Failure> {
    let query: Vec<String> = words(&args.filter)
        .map(|(name, value)| format!("{name}={}", remote::escaped(value)))
        .collect();
    let question = format!("{}?{}", wire::STATS, query.join("&"));
    remote::ask(args.server.as_deref(), &question).await
}

fn recorded(args: &Stats) -> Result<RunStats, Trouble> {
    let filter = filter(&args.filter)?;
    Ok(audit::statistics(&open(args.state.as_deref())?, &filter)?)
}

/// Names of each table that are printed; JSON has all.
const SHOWN: usize = 10;
/// Days that are printed.
const SHOWN_DAYS: usize = 14;
/// The longest bar of a day.
const BAR: u64 = 40;

fn runs_text(stats: &RunStats) -> String {
    let (Some(first), Some(last)) = (&stats.first, &stats.last) else {
        return "no recorded run matches\n".to_owned();
    };
    let mut text = format!(
        "{} recorded runs, {} of them going on, from {} to {}\n{:.1} s of CPU time, {:.1} s in all\n",
        stats.runs,
        stats.running,
        first.get(..19).unwrap_or(first),
        last.get(..19).unwrap_or(last),
        stats.cpu_ms / 1000.0,
        stats.elapsed_ms / 1000.0
    );
    for (title, counts) in [
        ("by verdict", &stats.by_verdict),
        ("by risk", &stats.by_risk),
        ("events", &stats.by_event),
        ("by language", &stats.by_language),
        ("by level", &stats.by_level),
        ("by label", &stats.by_label),
        ("by user", &stats.by_user),
        ("by start", &stats.by_start),
    ] {
        if !counts.is_empty() {
            text += &format!("{title:<12} {}\n", in_one_line(counts));
        }
    }
    let days = &stats.by_day[stats.by_day.len().saturating_sub(SHOWN_DAYS)..];
    let most = days.iter().map(|day| day.count).max().unwrap_or(1).max(1);
    for day in days {
        let bar = "#".repeat(usize::try_from((day.count * BAR).div_ceil(most)).unwrap_or(0));
        text += &format!("{:<12} {:>7} {bar}\n", day.name, day.count);
    }
    text
}

fn in_one_line(counts: &[Count]) -> String {
    let shown = counts.iter().take(SHOWN);
    let mut parts: Vec<String> =
        shown.map(|one| format!("{} {}", visible_line(&one.name), one.count)).collect();
    if counts.len() > SHOWN {
        parts.push(format!("and {} more", counts.len() - SHOWN));
    }
    parts.join(", ")
}

fn text(stats: &PoolStats) -> String {
    let served = stats.hits + stats.misses;
    let share = (stats.hits * 100).checked_div(served).unwrap_or(0);
    let mut text = format!(
        "waiting {} of at most {}, being made {}\n\
         runs that found one ready: {} of {served} ({share} %)\n\
         made {}, failed {}, let go unused {}\n",
        stats.waiting,
        stats.ceiling,
        stats.making,
        stats.hits,
        stats.made,
        stats.failed,
        stats.let_go
    );
    if stats.memory_short {
        text += "memory is short: nothing is kept ready\n";
    }
    if !stats.shelves.is_empty() {
        text += "\nLANGUAGE    LEVEL      HOLDS     WAITING  TARGET  FOUND  MISSED\n";
    }
    for shelf in &stats.shelves {
        let holds = format!("{:?}", shelf.hold).to_lowercase();
        text += &format!(
            "{:<11} {:<10} {holds:<9} {:>7}  {:>6}  {:>5}  {:>6}\n",
            shelf.language,
            shelf.level.name(),
            shelf.waiting,
            shelf.target,
            shelf.hits,
            shelf.misses
        );
        if let Some(error) = &shelf.last_error {
            text += &format!("            last error: {error}\n");
        }
    }
    for zygote in &stats.zygotes {
        let state = match (zygote.process_id, &zygote.last_error) {
            (Some(id), _) => format!("process {id}, copied {} times", zygote.copies),
            (None, Some(error)) => format!("none: {error}"),
            (None, None) => "none yet".to_owned(),
        };
        text += &format!("\nzygote of {}: {state}\n", zygote.language);
    }
    text
}
