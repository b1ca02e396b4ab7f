//! `cargo xtask bench idle`: what a thousand sandboxes that wait weigh, and whether they slow a run down.
//!
//! The thousand burden the whole host, so a run without them can only be measured while they are not there. The two
//! sides take turns: few waiting, many waiting, and the same again, so that a drift of the machine falls on both.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::load;
use super::peers::CODE;
use super::server::{self, RUNS, Server};
use super::{Scratch, Targets, Times, memory, traces};
use crate::{IdleArgs, Passed, shell};

/// The pool of the server that has next to nothing waiting.
const FEW: usize = 4;
/// How often each side has its turn.
const TURNS: u32 = 2;
const WARM_UP: u32 = 10;
/// What we promise: mebibytes for each sandbox that waits.
const TARGET_MIB: f64 = 4.0;
/// And how many times as long a run takes beside a thousand of them, at the median.
const TARGET_SLOWER: f64 = 1.5;
const MANY_NAME: &str = "many waiting";
const FEW_NAME: &str = "few waiting";

/// Where the memory of the waiting is, in MiB.
#[derive(Debug)]
struct Weight {
    /// A server without a pool.
    base: f64,
    total: f64,
    processes: usize,
    /// By which what the host has available fell: with the kernel's own part, which no process shows.
    available: f64,
    /// Seconds until all of them waited.
    filled: f64,
}

pub(crate) fn idle(args: &IdleArgs) -> Result<Passed> {
    ensure!(shell::is_root(), "only root may look at the memory of all our processes. hint: sudo");
    let belljar = super::binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let sandboxes = usize::try_from(args.sandboxes)?;
    let base = {
        let alone = Server::start(&belljar, &scratch.directory, "alone", &["--pool", "0"])?;
        memory::Share::read(alone.pid()).context("the server's memory cannot be read")?.pss
    };
    let mut sides = [Times::of(FEW_NAME), Times::of(MANY_NAME)];
    let [beside_few, beside_many] = &mut sides;
    let mut weights = Vec::new();
    for _ in 0..TURNS {
        let share = args.runs.div_ceil(TURNS);
        let (few, _) = with_pool(&belljar, &scratch.directory, "few", FEW)?;
        measure(&few, FEW, share, beside_few)?;
        drop(few);
        let available = available_mib()?;
        let (many, filled) = with_pool(&belljar, &scratch.directory, "many", sandboxes)?;
        weights.push(weigh(&many, mib(base), available, filled)?);
        measure(&many, sandboxes, share, beside_many)?;
    }
    sides.iter_mut().for_each(|side| side.sorted_ms.sort_by(f64::total_cmp));
    let [beside_few, beside_many] = &sides;
    // The heavier of the turns: a promise is about the worst that was seen.
    let weight = weights.into_iter().max_by(|one, other| one.total.total_cmp(&other.total));
    let weight = weight.context("nothing was weighed")?;
    let each = (weight.total - weight.base) / f64::from(args.sandboxes);
    let each_available = weight.available / f64::from(args.sandboxes);
    shell::say(format!(
        "{sandboxes} sandboxes wait after {:.1} s: {} processes, PSS {:.0} MiB, of which {:.1} MiB are a server \
         without a pool; {each:.2} MiB each\nwhat the host has available fell by {:.0} MiB, {each_available:.2} \
         MiB each: that holds the kernel's part too",
        weight.filled, weight.processes, weight.total, weight.base, weight.available,
    ));
    for one in &sides {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| one.percentile(percent));
        shell::say(format!("{}: p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms", one.name));
    }
    let mut targets = Targets::default();
    targets.at_most("MiB for each sandbox that waits", each, TARGET_MIB);
    let slower = beside_many.percentile(50) / beside_few.percentile(50);
    targets.at_most("p50 with many waiting, times that with few", slower, TARGET_SLOWER);
    let figures = |one: &Times| json!({"p50_ms": one.percentile(50), "p90_ms": one.percentile(90), "p99_ms": one.percentile(99)});
    let record = json!({
        "bench": "idle", "machine": super::machine(), "sandboxes": sandboxes, "few": FEW, "runs": args.runs,
        "fill_seconds": weight.filled, "processes": weight.processes, "pss_mib": weight.total,
        "server_without_pool_pss_mib": weight.base, "each_mib": each,
        "available_fell_mib": weight.available, "each_available_mib": each_available,
        "beside_many": figures(beside_many), "beside_few": figures(beside_few), "targets": targets.record(),
    });
    if args.keep {
        super::keep("idle.json", &record)?;
    }
    Ok(targets.passed())
}

/// Started and full, and the seconds that it took.
fn with_pool(belljar: &Path, scratch: &Path, name: &str, size: usize) -> Result<(Server, f64)> {
    let words = size.to_string();
    let options = ["--pool", &words, "--pool-floor", &words, "--warm", "python"];
    let started = Instant::now();
    let server = Server::start(belljar, scratch, name, &options)?;
    server.settle(size)?;
    Ok((server, started.elapsed().as_secs_f64()))
}

fn weigh(server: &Server, base: f64, available_before: f64, filled: f64) -> Result<Weight> {
    let family = traces::family(server.pid())?;
    let (pss, unreadable) = traces::pss(&family);
    ensure!(unreadable == 0, "{unreadable} of our processes could not be looked at");
    let available = available_before - available_mib()?;
    Ok(Weight { base, total: mib(pss), processes: family.len(), available, filled })
}

/// Runs one after another, each when the pool is full again.
fn measure(server: &Server, waiting: usize, runs: u32, times: &mut Times) -> Result<()> {
    let body = json!({"language": "python", "code": CODE}).to_string();
    super::calm();
    // Not before: the server closes a connection on which nothing came for half a minute.
    let (mut client, mut watch) = (server.tcp()?, server.unix()?);
    for round in 0..WARM_UP + runs {
        server::settle(&mut watch, waiting)?;
        let started = Instant::now();
        let answer = client.post(RUNS, &body)?;
        let took = started.elapsed();
        let outcome = answer.json()?;
        load::check(&outcome, "")?;
        ensure!(outcome["start"] == "warm", "it was not warm: {outcome}");
        if round >= WARM_UP {
            times.sorted_ms.push(took.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

fn available_mib() -> Result<f64> {
    let meminfo = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    Ok(mib(memory::kib(&meminfo, "MemAvailable:").context("no MemAvailable")?))
}

fn mib(kib: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "memory in KiB is far below 2^52")]
    let kib = kib as f64;
    kib / 1024.0
}
