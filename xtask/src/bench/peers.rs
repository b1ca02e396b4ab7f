//! `cargo xtask bench peers`: a warm run beside a cold one, beside nothing at all, and beside what others offer.
//!
//! One run on one machine: every round measures each contender once, so that a slow moment of the machine slows
//! all of them alike, and every second round goes backwards, so that nobody always comes after the same one. Before each measurement the server has refilled its pool, or its work would be paid for by
//! whoever comes next. What the refilling costs is in the throughput, which is measured afterwards without pauses.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::contenders::{Contender, INTERPRETER};
use super::http::Client;
use super::load::{self, Load};
use super::server::{self, RUNS, Server};
use super::{PYTHON, Scratch, Times};
use crate::{Passed, PeersArgs, prereqs, shell};

mod fork;
mod others;
mod plot;

use fork::WarmInterpreter;

const FORK: &str = "bare fork";
const HTTP: &str = "belljar warm, HTTP";
const SOCKET: &str = "belljar warm, socket";
const COMMAND: &str = "belljar run --server";
const COLD: &str = "belljar cold";
/// The program that everybody runs.
pub(super) const CODE: &str = "pass";
/// Enough for one client that waits for the refilling, and for eight that do not to be served warm often.
const POOL: usize = 16;
const CLIENTS: usize = 8;
/// Who takes longer takes part in every fifth round only, or most of the time would be spent on the slowest.
const SLOW: Duration = Duration::from_millis(100);
const SLOW_ROUNDS: u32 = 5;

/// What we promise: a warm run over HTTP takes at most this part of bare python3, at the median.
const TARGET_OF_PYTHON: f64 = 0.25;
/// And at most this many times a bare fork of the warm interpreter, which no sandbox can undercut.
const TARGET_OF_FORK: f64 = 3.0;
const TARGET_PER_SECOND: f64 = 250.0;

/// Who is measured, and how.
struct Entrant {
    name: &'static str,
    /// What limits it keeps; said beside the figures, because limits cost time.
    limits: &'static str,
    way: Way,
    every: u32,
}

enum Way {
    Process(Contender),
    Fork(WarmInterpreter),
    /// Over a connection that stays open.
    Server(Client),
}

pub(crate) fn peers(args: &PeersArgs) -> Result<Passed> {
    let belljar = super::binary(args.belljar.as_deref())?;
    if shell::is_root() {
        prereqs::install_what_can_be(&others::PACKAGES);
    }
    let scratch = Scratch::make()?;
    let _engine = super::engine::provide(&scratch.directory);
    let size = POOL.to_string();
    let options = ["--pool", &size, "--pool-floor", &size, "--warm", "python"];
    let server = Server::start(&belljar, &scratch.directory, "peers", &options)?;
    server.settle(POOL)?;
    let others = others::Others::gather(&scratch.directory)?;
    for (name, why) in &others.absent {
        shell::say(format!("absent: {name}: {why}"));
    }
    let absent = others.absent.clone();
    // Before the connections are made: the server closes one on which nothing came for half a minute.
    super::calm();
    let mut entrants = entrants(&belljar, &server, &others)?;
    shell::say(format!("{} rounds after {} to warm up", args.runs, args.warm_up));
    let (times, cold_answers) = measure(&mut entrants, &server, args)?;
    table(&entrants, &times);
    let loads = throughput(&server, args)?;
    let targets = targets(&times, &loads, cold_answers);
    let pool = server.pool()?;
    shell::say(format!("pool at the end: {pool}"));
    let record = json!({
        "bench": "peers", "program": CODE, "runs": args.runs, "warm_up": args.warm_up,
        "machine": super::machine(), "pool": POOL, "cold_answers": cold_answers,
        "contenders": record(&entrants, &times),
        "absent": absent.iter().map(|(name, why)| json!({"name": name, "why": why})).collect::<Vec<_>>(),
        "throughput": loads.iter().map(Load::json).collect::<Vec<_>>(), "pool_at_the_end": pool,
        "targets": targets.record(),
    });
    if args.keep {
        super::keep("peers.json", &record)?;
        let bars = plot::draw(&times);
        let path = shell::repo_root().join("docs/images/peers.svg");
        fs::write(&path, bars).with_context(|| format!("cannot write {}", path.display()))?;
        shell::say(format!("wrote {}", path.display()));
    }
    Ok(targets.passed())
}

fn entrants(belljar: &Path, server: &Server, others: &others::Others) -> Result<Vec<Entrant>> {
    let binary = belljar.to_str().context("the path of belljar is not UTF-8")?;
    let socket = server.socket().to_str().context("the socket's path is not UTF-8")?;
    let ours = "memory, processes, CPU, files, time, output";
    let process = |name, limits, words: &[&str]| Entrant {
        name,
        limits,
        way: Way::Process(Contender::new(name, words)),
        every: 1,
    };
    let over = |name, client| Entrant { name, limits: ours, way: Way::Server(client), every: 1 };
    let mut all = vec![
        process(PYTHON, "none", &[INTERPRETER, "-c", CODE]),
        Entrant { name: FORK, limits: "none", way: Way::Fork(WarmInterpreter::start()?), every: 1 },
        over(HTTP, server.tcp()?),
        over(SOCKET, server.unix()?),
        process(COMMAND, ours, &[binary, "run", "--server", socket, "-c", CODE]),
        process(COLD, ours, &[binary, "run", "--no-server", "-c", CODE]),
    ];
    for other in &others.present {
        let every = if other.took > SLOW { SLOW_ROUNDS } else { 1 };
        let way = Way::Process(other.contender.clone());
        all.push(Entrant { name: other.contender.name, limits: other.limits, way, every });
    }
    Ok(all)
}

/// The times of each, and how many answers of the server were not warm.
fn measure(
    entrants: &mut [Entrant],
    server: &Server,
    args: &PeersArgs,
) -> Result<(Vec<Times>, u32)> {
    let mut all: Vec<Times> = entrants.iter().map(|one| Times::of(one.name)).collect();
    let mut watch = server.unix()?;
    let mut cold = 0;
    for round in 0..args.warm_up + args.runs {
        // Forth and back: who comes after a run of the same server finds it in the processor's caches, and shall do so
        // no more often than the others.
        let mut turns: Vec<_> = entrants.iter_mut().zip(&mut all).collect();
        if !round.is_multiple_of(2) {
            turns.reverse();
        }
        for (entrant, times) in turns {
            if !round.is_multiple_of(entrant.every) {
                continue;
            }
            server::settle(&mut watch, POOL)?;
            let (took, warm) = entrant.way.time().with_context(|| entrant.name)?;
            if round >= args.warm_up {
                times.sorted_ms.push(took.as_secs_f64() * 1e3);
                cold += u32::from(!warm);
            }
        }
    }
    all.iter_mut().for_each(|times| times.sorted_ms.sort_by(f64::total_cmp));
    Ok((all, cold))
}

impl Way {
    /// One run, and whether it was as warm as it should be.
    fn time(&mut self) -> Result<(Duration, bool)> {
        match self {
            Self::Process(contender) => {
                Ok((Duration::from_secs_f64(super::time(contender)? / 1e3), true))
            }
            Self::Fork(interpreter) => Ok((interpreter.time()?, true)),
            Self::Server(client) => {
                let body = json!({"language": "python", "code": CODE}).to_string();
                let started = Instant::now();
                let answer = client.post(RUNS, &body)?;
                let took = started.elapsed();
                let outcome = answer.json()?;
                load::check(&outcome, "")?;
                Ok((took, outcome["start"] == "warm"))
            }
        }
    }
}

fn table(entrants: &[Entrant], times: &[Times]) {
    let (python, fork) = (super::median(times, PYTHON), super::median(times, FORK));
    shell::say(format!(
        "\n{:<22}{:>6}{:>9}{:>9}{:>9}{:>9}{:>11}{:>8}  limits",
        "ms", "runs", "p50", "p90", "p99", "runs/s", "× python3", "× fork"
    ));
    for (entrant, one) in entrants.iter().zip(times) {
        let p50 = one.percentile(50);
        let ratio = |to: Option<f64>| to.map_or("-".into(), |to| format!("{:.2}", p50 / to));
        shell::say(format!(
            "{:<22}{:>6}{p50:>9.2}{:>9.2}{:>9.2}{:>9.0}{:>11}{:>8}  {}",
            one.name,
            one.sorted_ms.len(),
            one.percentile(90),
            one.percentile(99),
            one.per_second(),
            ratio(python),
            ratio(fork),
            entrant.limits,
        ));
    }
}

fn record(entrants: &[Entrant], times: &[Times]) -> Vec<Value> {
    let (python, fork) = (super::median(times, PYTHON), super::median(times, FORK));
    let all = entrants.iter().zip(times).map(|(entrant, one)| {
        let p50 = one.percentile(50);
        json!({
            "name": one.name, "limits": entrant.limits, "runs": one.sorted_ms.len(),
            "min_ms": one.percentile(0), "p50_ms": p50, "p90_ms": one.percentile(90),
            "p99_ms": one.percentile(99), "runs_per_second": one.per_second(),
            "of_python3_p50": python.map(|to| p50 / to), "of_bare_fork_p50": fork.map(|to| p50 / to),
        })
    });
    all.collect()
}

/// One client back to back, then eight: nobody waits for the pool here.
fn throughput(server: &Server, args: &PeersArgs) -> Result<Vec<Load>> {
    let mut loads = Vec::new();
    shell::say("");
    for (clients, seconds) in [(1, args.seconds.div_ceil(3)), (CLIENTS, args.seconds)] {
        server.settle(POOL)?;
        let load = load::press(server, clients, Duration::from_secs(seconds))?;
        load.say();
        ensure!(load.runs() > 0, "nothing was served");
        loads.push(load);
    }
    server.settle(POOL)?;
    Ok(loads)
}

fn targets(times: &[Times], loads: &[Load], cold_answers: u32) -> super::Targets {
    let mut targets = super::Targets::default();
    let of = |name: &str, percent| {
        times.iter().find(|one| one.name == name).map_or(f64::NAN, |one| one.percentile(percent))
    };
    let (warm, python, fork) = (of(HTTP, 50), of(PYTHON, 50), of(FORK, 50));
    targets.at_most("warm p50 over HTTP, part of bare python3's", warm / python, TARGET_OF_PYTHON);
    targets.at_most("warm p50 over HTTP, times a bare fork", warm / fork, TARGET_OF_FORK);
    targets.at_most("warm p99 over HTTP, ms, against bare python3's p50", of(HTTP, 99), python);
    targets.at_most("measured answers that were not warm", f64::from(cold_answers), 0.0);
    if let Some(load) = loads.last() {
        let what = format!("runs per second, {CLIENTS} clients");
        targets.at_least(&what, load.per_second(), TARGET_PER_SECOND);
        targets.at_most("runs that failed under them", load.failed(), 0.0);
    }
    targets
}
