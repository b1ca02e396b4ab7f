//! `cargo xtask bench cold`: what one cold run costs, against nothing at all and against others. And what all
//! benchmarks share: times, targets, and where their figures are kept.
//!
//! Every round runs each contender once, so that a slow moment of the machine slows all of them alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{ColdArgs, Passed};
use crate::{shell, suites};

pub(crate) mod audit;
mod contenders;
pub(crate) mod egress;
pub(crate) mod engine;
pub(crate) mod grade;
mod http;
pub(crate) mod idle;
pub(crate) mod living;
mod load;
mod memory;
pub(crate) mod overhead;
pub(crate) mod peers;
mod server;
pub(crate) mod soak;
mod traces;
pub(crate) mod web;

use contenders::{Contender, Field};

const PYTHON: &str = "python3";
const STANDARD: &str = "belljar standard";
const BWRAP: &str = "bwrap";
/// What we promise: milliseconds that `standard` adds to bare python3, at the median.
const TARGET_ADDED_MS: f64 = 8.0;
/// What we promise: mebibytes that our own processes take around one run.
const TARGET_MEMORY_MIB: f64 = 12.0;

/// How long a busy machine is waited for, how long each look takes, and what share of it counts as idle.
const CALM_LIMIT: Duration = Duration::from_secs(15);
const CALM_LOOK: Duration = Duration::from_secs(1);
const CALM_BUSY: f64 = 0.15;

/// The times of one contender, sorted.
#[derive(Debug)]
struct Times {
    name: &'static str,
    sorted_ms: Vec<f64>,
}

pub(crate) fn cold(args: &ColdArgs) -> Result<()> {
    let belljar = binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let _engine = engine::provide(&scratch.directory);
    let field = Field::gather(&belljar, &scratch.directory)?;
    for (name, why) in &field.absent {
        shell::say(format!("absent: {name}: {why}"));
    }
    shell::say(format!("{} rounds after {} to warm up", args.runs, args.warm_up));
    let times = measure(&field.present, args)?;
    table(&times);
    targets(&times);
    let memory = memory::weigh(&belljar, &scratch.directory)?;
    memory.say(TARGET_MEMORY_MIB);
    if let Some(path) = &args.json {
        write_json(path, args, &field, &times, &memory)?;
    }
    Ok(())
}

/// The one that was named, or the release build of this tree.
fn binary(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) => fs::canonicalize(path).with_context(|| format!("no {}", path.display())),
        None => build_release(),
    }
}

fn build_release() -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    let made = suites::executables(cargo.args(["build", "--release", "--package", "belljar-cli"]))?;
    let belljar = made.into_iter().find(|one| one.name == "belljar");
    Ok(belljar.context("cargo made no belljar")?.path)
}

fn measure(contenders: &[Contender], args: &ColdArgs) -> Result<Vec<Times>> {
    let mut all: Vec<Times> =
        contenders.iter().map(|contender| Times::of(contender.name)).collect();
    for round in 0..args.warm_up + args.runs {
        for (contender, times) in contenders.iter().zip(&mut all) {
            let took_ms = time(contender)?;
            if round >= args.warm_up {
                times.sorted_ms.push(took_ms);
            }
        }
    }
    all.iter_mut().for_each(|times| times.sorted_ms.sort_by(f64::total_cmp));
    Ok(all)
}

/// From the start of the process to its reaped end.
fn time(contender: &Contender) -> Result<f64> {
    let mut command = contender.command();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let status = command.status().with_context(|| format!("cannot start {}", contender.name))?;
    let took = started.elapsed();
    if !status.success() {
        bail!("{} ended with {status} in the middle of the measurement", contender.name);
    }
    Ok(took.as_secs_f64() * 1e3)
}

impl Times {
    /// None yet.
    fn of(name: &'static str) -> Self {
        Self { name, sorted_ms: Vec::new() }
    }

    /// The smallest time that at least this share of the runs did not exceed.
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.sorted_ms.len() * percent).div_ceil(100).max(1);
        self.sorted_ms.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    /// How many would fit into a second, one after another.
    fn per_second(&self) -> f64 {
        1e3 * count(self.sorted_ms.len()) / self.sorted_ms.iter().sum::<f64>()
    }
}

/// A number of things as a number to calculate with.
fn count(number: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "nothing here is counted up to 2^52")]
    let number = number as f64;
    number
}

/// What was promised and what was found, one line each.
#[derive(Debug, Default)]
struct Targets {
    all: Vec<Target>,
}

#[derive(Debug)]
struct Target {
    what: String,
    found: f64,
    bound: f64,
    met: bool,
}

impl Targets {
    fn at_most(&mut self, what: &str, found: f64, bound: f64) {
        self.note(
            what,
            "at most",
            Target { what: what.to_owned(), found, bound, met: found <= bound },
        );
    }

    fn at_least(&mut self, what: &str, found: f64, bound: f64) {
        self.note(
            what,
            "at least",
            Target { what: what.to_owned(), found, bound, met: found >= bound },
        );
    }

    fn note(&mut self, what: &str, side: &str, target: Target) {
        let word = if target.met { "met" } else { "MISSED" };
        shell::say(format!(
            "target {word}: {what}: {:.2}, {side} {:.2}",
            target.found, target.bound
        ));
        self.all.push(target);
    }

    fn record(&self) -> Vec<Value> {
        let one = |target: &Target| {
            let Target { what, found, bound, met } = target;
            json!({"what": what, "found": found, "bound": bound, "met": met})
        };
        self.all.iter().map(one).collect()
    }

    fn passed(&self) -> Passed {
        if self.all.iter().all(|target| target.met) { Passed::Yes } else { Passed::No }
    }
}

/// Where the figures were taken, as far as it decides what they mean.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "processor": model.map(|(_, name)| name), "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "root": shell::is_root(),
    })
}

/// Waits until the machine has next to nothing to do, or says that it measures all the same. A thousand sandboxes
/// that end leave the kernel seconds of work, which would be counted as the next one's.
fn calm() {
    let deadline = Instant::now() + CALM_LIMIT;
    loop {
        let before = processor_time();
        std::thread::park_timeout(CALM_LOOK);
        let after = processor_time();
        let (busy, all) = (after.0 - before.0, after.1 - before.1);
        if busy <= all * CALM_BUSY {
            return;
        }
        if Instant::now() > deadline {
            shell::say(format!("the machine is not idle: {:.0} % busy", 100.0 * busy / all));
            return;
        }
    }
}

/// Of all processors since the start, in ticks: what was worked, and all.
fn processor_time() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> =
        first.split_whitespace().skip(1).filter_map(|one| one.parse().ok()).collect();
    let all: f64 = ticks.iter().take(8).sum();
    // proc(5): user nice system idle iowait …
    (all - ticks.iter().skip(3).take(2).sum::<f64>(), all)
}

/// Keeps the figures of a benchmark in the repository.
fn keep(name: &str, record: &Value) -> Result<()> {
    let path = shell::repo_root().join("bench-results").join(name);
    let text = serde_json::to_string_pretty(record)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    shell::say(format!("wrote {}", path.display()));
    Ok(())
}

fn median(times: &[Times], name: &str) -> Option<f64> {
    times.iter().find(|times| times.name == name).map(|times| times.percentile(50))
}

/// Times as they are, without anything to compare them with.
fn table_of(times: &[Times], unit: &str) {
    let head = ["min", "p50", "p90", "p99"].map(|word| format!("{word:>9}")).concat();
    shell::say(format!("{unit:<18}{head}"));
    for one in times {
        let shown = [0, 50, 90, 99].map(|percent| format!("{:>9.2}", one.percentile(percent)));
        shell::say(format!("{:<18}{}", one.name, shown.concat()));
    }
}

fn table(times: &[Times]) {
    let (python, bwrap) = (median(times, PYTHON), median(times, BWRAP));
    shell::say(format!(
        "\n{:<18}{:>9}{:>9}{:>9}{:>9}{:>11}{:>10}{:>9}",
        "ms", "min", "p50", "p90", "p99", "added p50", "× python3", "× bwrap"
    ));
    for one in times {
        let p50 = one.percentile(50);
        let ratio = |to: Option<f64>| to.map_or("-".into(), |to| format!("{:.2}", p50 / to));
        let added = python.map_or("-".into(), |python| format!("{:+.2}", p50 - python));
        shell::say(format!(
            "{:<18}{:>9.2}{p50:>9.2}{:>9.2}{:>9.2}{added:>11}{:>10}{:>9}",
            one.name,
            one.percentile(0),
            one.percentile(90),
            one.percentile(99),
            ratio(python),
            ratio(bwrap),
        ));
    }
}

fn targets(times: &[Times]) {
    let added = |name| Some(median(times, name)? - median(times, PYTHON)?);
    let Some(ours) = added(STANDARD) else { return };
    let word = if ours <= TARGET_ADDED_MS { "met" } else { "MISSED" };
    shell::say(format!(
        "\ntarget {word}: {STANDARD} adds {ours:.2} ms to bare python3 at p50, at most {TARGET_ADDED_MS} promised"
    ));
    if let Some(bwrap) = added(BWRAP) {
        let word = if ours <= bwrap { "reached" } else { "not reached" };
        shell::say(format!("aim {word}: bwrap with namespaces alone adds {bwrap:.2} ms"));
    }
}

fn write_json(
    path: &Path,
    args: &ColdArgs,
    field: &Field,
    times: &[Times],
    memory: &memory::Weight,
) -> Result<()> {
    let bare_name = path.parent().is_none_or(|parent| parent.as_os_str().is_empty());
    let path =
        if bare_name { shell::repo_root().join("bench-results").join(path) } else { path.into() };
    let contenders: Vec<_> = times
        .iter()
        .map(|one| {
            let at = |percent| one.percentile(percent);
            json!({
                "name": one.name, "min_ms": at(0), "p50_ms": at(50), "p90_ms": at(90), "p99_ms": at(99),
                "added_p50_ms": median(times, PYTHON).map(|python| at(50) - python),
                "times_ms": one.sorted_ms,
            })
        })
        .collect();
    let absent: Vec<_> =
        field.absent.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
    let text = serde_json::to_string_pretty(&json!({
        "bench": "cold", "runs": args.runs, "warm_up": args.warm_up,
        "target": {"added_p50_ms": TARGET_ADDED_MS, "memory_mib": TARGET_MEMORY_MIB},
        "contenders": contenders, "absent": absent, "memory": memory.json(),
    }))?;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    shell::say(format!("wrote {}", path.display()));
    Ok(())
}

/// A directory for the programs to run, gone at the end.
#[derive(Debug)]
struct Scratch {
    directory: PathBuf,
}

impl Scratch {
    fn make() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self { directory })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            shell::complain(format!("cannot remove {}: {error}", self.directory.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times = Times { name: PYTHON, sorted_ms: (1..=200).map(f64::from).collect() };
        let shown = [0, 50, 90, 99, 100].map(|percent| times.percentile(percent));
        assert_eq!(shown, [1.0, 100.0, 180.0, 198.0, 200.0]);
        let one = Times { name: PYTHON, sorted_ms: vec![7.0] };
        assert_eq!([one.percentile(0), one.percentile(99)], [7.0, 7.0]);
    }
}
