//! `cargo xtask bench audit`: what recording costs. Warm throughput with the audit trail and without, in turns, so that
//! a slow moment of the machine slows both alike; and cold runs of the command both ways.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::server::Server;
use super::{Scratch, Times, load};
use crate::{AuditBenchArgs, Passed, shell};

const CLIENTS: usize = 8;
/// What we promise: the share of warm throughput that recording may cost.
const TARGET_COST: f64 = 0.05;

pub(crate) fn audit(args: &AuditBenchArgs) -> Result<Passed> {
    let belljar = super::binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let with = Server::start(&belljar, &scratch.directory, "with", &[])?;
    let without = Server::start(&belljar, &scratch.directory, "without", &["--no-audit"])?;
    let time = Duration::from_secs(args.seconds);
    // The first press of each warms up.
    for server in [&with, &without] {
        load::press(server, CLIENTS, Duration::from_secs(1))?;
    }
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        for (server, rates) in [(&with, &mut on), (&without, &mut off)] {
            let load = load::press(server, CLIENTS, time)?;
            ensure!(load.failed() == 0.0, "runs failed");
            rates.push(load.per_second());
        }
    }
    let cost = 1.0 - median(&mut on) / median(&mut off);
    shell::say(format!(
        "warm, {CLIENTS} clients: {:.1} runs a second recorded, {:.1} not: recording costs {:.1} % (target {:.0} %)",
        median(&mut on),
        median(&mut off),
        100.0 * cost,
        100.0 * TARGET_COST
    ));
    drop((with, without));
    let (recorded, bare) = cold(&belljar, &scratch.directory, args.runs)?;
    shell::say(format!(
        "cold, belljar run: p50 {:.2} ms recorded, {:.2} ms not",
        recorded.percentile(50),
        bare.percentile(50)
    ));
    if args.keep {
        let record = json!({
            "clients": CLIENTS, "rounds": args.rounds, "seconds": args.seconds,
            "recorded_runs_per_second": on, "unrecorded_runs_per_second": off, "cost_share": cost,
            "cold_recorded_p50_ms": recorded.percentile(50), "cold_unrecorded_p50_ms": bare.percentile(50),
        });
        super::keep("audit.json", &record)?;
    }
    Ok(if cost <= TARGET_COST { Passed::Yes } else { Passed::No })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The command itself, in turns.
fn cold(belljar: &Path, scratch: &Path, runs: u32) -> Result<(Times, Times)> {
    let mut all = (Times::of("recorded"), Times::of("not recorded"));
    for round in 0..=runs {
        for (how, times) in [("on", &mut all.0), ("off", &mut all.1)] {
            let mut command = shell::command(belljar);
            command.args(["run", "--no-server", "-c", "pass"]);
            command.env("BELLJAR_STATE", scratch.join("cold")).env("BELLJAR_AUDIT", how);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let started = Instant::now();
            let status = command.status()?;
            let took = started.elapsed();
            ensure!(status.success(), "belljar run ended with {status}");
            if round > 0 {
                times.sorted_ms.push(took.as_secs_f64() * 1e3);
            }
        }
    }
    all.0.sorted_ms.sort_by(f64::total_cmp);
    all.1.sorted_ms.sort_by(f64::total_cmp);
    Ok(all)
}
