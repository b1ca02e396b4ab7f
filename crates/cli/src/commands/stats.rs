//! `belljar stats`: what a running server keeps ready, and how it served the runs so far.

use belljar::PoolStats;

use crate::args::Stats;
use crate::{remote, render};

pub(crate) async fn stats(args: Stats) -> u8 {
    let stats: PoolStats = match remote::pool(args.server).await {
        Ok(stats) => stats,
        Err(failure) => {
            if args.json {
                render::json(&failure.json());
            } else {
                render::trouble(&failure.text(), 0);
            }
            return failure.code();
        }
    };
    if args.json { render::json(&stats) } else { render::line(text(&stats).trim_end()) }
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
