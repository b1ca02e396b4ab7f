//! `cargo xtask bench idle`: what a thousand sandboxes that wait weigh, and whether they slow a run down.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::http::Client;
use super::load;
use super::peers::CODE;
use super::server::{self, RUNS, Server};
use super::{Scratch, Targets, Times, memory, traces};
use crate::{IdleArgs, Passed, shell};

/// The pool of the server that has next to nothing waiting.
const FEW: usize = 4;
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
    let available = available_mib()?;
    let (many, filled) = with_pool(&belljar, &scratch.directory, "many", sandboxes)?;
    let weight = weigh(&many, mib(base), available)?;
    let each = (weight.total - weight.base) / f64::from(args.sandboxes);
    let each_available = weight.available / f64::from(args.sandboxes);
    shell::say(format!(
        "{sandboxes} sandboxes wait after {filled:.1} s: {} processes, PSS {:.0} MiB, of which {:.1} MiB are a \
         server without a pool; {each:.2} MiB each\nwhat the host has available fell by {:.0} MiB, {each_available:.2} \
         MiB each: that holds the kernel's part too",
        weight.processes, weight.total, weight.base, weight.available,
    ));
    let (few, _) = with_pool(&belljar, &scratch.directory, "few", FEW)?;
    let times = measure(&many, sandboxes, &few, args.runs)?;
    let [beside_many, beside_few] = &times;
    for one in &times {
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
        "fill_seconds": filled, "processes": weight.processes, "pss_mib": weight.total,
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

fn weigh(server: &Server, base: f64, available_before: f64) -> Result<Weight> {
    let family = traces::family(server.pid())?;
    let (pss, unreadable) = traces::pss(&family);
    ensure!(unreadable == 0, "{unreadable} of our processes could not be looked at");
    let available = available_before - available_mib()?;
    Ok(Weight { base, total: mib(pss), processes: family.len(), available })
}

/// Alternating, and in turn first, so that neither always finds what the other left in the caches. Both servers
/// are up all the time: only what waits in the one that is asked differs for its own part, and the host is the same.
fn measure(many: &Server, sandboxes: usize, few: &Server, runs: u32) -> Result<[Times; 2]> {
    let mut sides = [Side::new(MANY_NAME, many, sandboxes)?, Side::new(FEW_NAME, few, FEW)?];
    for round in 0..WARM_UP + runs {
        for side in &mut sides {
            let took_ms = side.time()?;
            if round >= WARM_UP {
                side.times.sorted_ms.push(took_ms);
            }
        }
        sides.reverse();
    }
    sides.sort_by_key(|side| side.times.name != MANY_NAME);
    Ok(sides.map(|mut side| {
        side.times.sorted_ms.sort_by(f64::total_cmp);
        side.times
    }))
}

struct Side {
    client: Client,
    watch: Client,
    waiting: usize,
    times: Times,
}

impl Side {
    fn new(name: &'static str, server: &Server, waiting: usize) -> Result<Self> {
        let times = Times { name, sorted_ms: Vec::new() };
        Ok(Self { client: server.tcp()?, watch: server.unix()?, waiting, times })
    }

    fn time(&mut self) -> Result<f64> {
        server::settle(&mut self.watch, self.waiting)?;
        let body = json!({"language": "python", "code": CODE}).to_string();
        let started = Instant::now();
        let answer = self.client.post(RUNS, &body)?;
        let took = started.elapsed();
        let outcome = answer.json()?;
        load::check(&outcome, "")?;
        ensure!(outcome["start"] == "warm", "it was not warm: {outcome}");
        Ok(took.as_secs_f64() * 1e3)
    }
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
