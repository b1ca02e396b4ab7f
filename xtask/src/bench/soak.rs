//! `cargo xtask bench soak`: thousands of runs of every kind against one server, which must be as small after them
//! as it was before. What grows with the number of runs would end a server that lives for months.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::http::Client;
use super::server::{RUNS, Server};
use super::traces::Traces;
use super::{Scratch, Targets};
use crate::{Passed, SoakArgs, shell};

const CLIENTS: u32 = 8;
const POOL: usize = 16;
/// Runs before the first look: caches, allocators and threads have their size by then.
const WARM_UP: u32 = 500;
/// For threads and descriptors that go a while after their work.
const SETTLE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Time to begin, for a run whose client then goes away.
const BEFORE_GOING: Duration = Duration::from_millis(10);
const SHOWN: usize = 5;

/// By how much each may be larger afterwards, named as in [`Traces::named`]. Memory, in KiB, is what an allocator may
/// keep back: a leak of a kilobyte a run would be five times as much.
const ALLOWED: [(&str, u64); 9] = [
    ("server descriptors", 2),
    ("server threads", 2),
    ("server PSS, KiB", 4096),
    ("server RSS, KiB", 4096),
    ("PSS of all, KiB", 8192),
    ("processes", 0),
    ("cgroup directories", 0),
    ("mounts of the host", 0),
    ("temporary directories", 0),
];

/// How a run of the soak goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Warm,
    Cold,
    Fails,
    TooSlow,
    Cancelled,
    Mistaken,
}

pub(crate) fn soak(args: &SoakArgs) -> Result<Passed> {
    ensure!(shell::is_root(), "only root may look at the memory of all our processes. hint: sudo");
    let belljar = super::binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let size = POOL.to_string();
    let options = ["--pool", &size, "--pool-floor", &size, "--warm", "python", "--max-runs", "8"];
    let server = Server::start(&belljar, &scratch.directory, "soak", &options)?;
    server.settle(POOL)?;
    serve(&server, WARM_UP)?;
    let before = look(&server)?;
    let started = Instant::now();
    let failures = serve(&server, args.runs)?;
    let took = started.elapsed();
    let after = settled(&server, &before)?;
    let pool = server.pool()?;
    let per_second = f64::from(args.runs) / took.as_secs_f64();
    shell::say(format!(
        "{} runs in {:.0} s, {per_second:.0}/s; pool: {pool}\n",
        args.runs,
        took.as_secs_f64()
    ));
    shell::say(format!(
        "{:<24}{:>12}{:>12}{:>10}{:>10}",
        "", "before", "after", "growth", "allowed"
    ));
    for ((name, was), (_, is)) in before.named().into_iter().zip(after.named()) {
        let growth = i128::from(is) - i128::from(was);
        shell::say(format!("{name:<24}{was:>12}{is:>12}{growth:>+10}{:>10}", allowed(name)));
    }
    for failure in failures.iter().take(SHOWN) {
        shell::say(format!("failed: {failure}"));
    }
    let mut targets = Targets::default();
    let grown = grown(&before, &after);
    grown.iter().for_each(|name| shell::say(format!("grew too much: {name}")));
    targets.at_most("runs that ended other than they should", super::count(failures.len()), 0.0);
    targets.at_most("what grew", super::count(grown.len()), 0.0);
    let record = json!({
        "bench": "soak", "machine": super::machine(), "runs": args.runs, "warm_up": WARM_UP, "clients": CLIENTS,
        "seconds": took.as_secs_f64(), "runs_per_second": per_second, "failed": failures.len(),
        "before": before.json(), "after": after.json(), "grown": grown,
        "allowed": ALLOWED.map(|(name, most)| json!({"name": name, "growth": most})),
        "pool_at_the_end": pool, "targets": targets.record(),
    });
    if args.keep {
        super::keep("soak.json", &record)?;
    }
    Ok(targets.passed())
}

/// So many runs by all clients together; what went wrong, in words.
fn serve(server: &Server, runs: u32) -> Result<Vec<String>> {
    let next = AtomicU32::new(0);
    let failures = thread::scope(|scope| -> Result<Vec<String>> {
        let start = || scope.spawn(|| serve_alone(server, &next, runs));
        let clients: Vec<_> = (0..CLIENTS).map(|_| start()).collect();
        let mut failures = Vec::new();
        for client in clients {
            let ended = client.join().ok().context("a client died")?;
            failures.extend(ended?);
        }
        Ok(failures)
    })?;
    Ok(failures)
}

fn serve_alone(server: &Server, next: &AtomicU32, runs: u32) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    let mut client = server.tcp()?;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= runs {
            return Ok(failures);
        }
        let kind = Kind::of(number);
        if let Err(error) = kind.run(&mut client, number) {
            failures.push(format!("{number}, {kind:?}: {error:#}"));
            client = server.tcp()?;
        }
        if kind == Kind::Cancelled {
            client = server.tcp()?; // to close the old connection is to cancel
        }
    }
}

impl Kind {
    /// Mostly warm: of 50 runs 2 are cold, 2 fail, and one each is too slow, cancelled and mistaken.
    fn of(number: u32) -> Self {
        match number % 50 {
            5 | 30 => Self::Cold,
            10 | 35 => Self::Fails,
            15 => Self::TooSlow,
            20 => Self::Cancelled,
            25 => Self::Mistaken,
            _ => Self::Warm,
        }
    }

    fn request(self, number: u32) -> Value {
        let sleeps = "import time; time.sleep(60)";
        let code = format!("print({number})");
        match self {
            Self::Warm => json!({"language": "python", "code": code}),
            Self::Cold => json!({"language": "python", "code": code, "start": "cold"}),
            Self::Fails => json!({"language": "python", "code": "raise SystemExit(3)"}),
            Self::TooSlow => {
                json!({"language": "python", "code": sleeps, "limits": {"wall_ms": 50}})
            }
            Self::Cancelled => json!({"language": "python", "code": sleeps}),
            Self::Mistaken => json!({"language": "cobol", "code": code}),
        }
    }

    fn run(self, client: &mut Client, number: u32) -> Result<()> {
        let body = self.request(number).to_string();
        if self == Self::Cancelled {
            client.send(RUNS, &body)?;
            thread::park_timeout(BEFORE_GOING);
            return Ok(());
        }
        let answer = client.post(RUNS, &body)?;
        if self == Self::Mistaken {
            ensure!(answer.status == 400, "a language that does not exist: {}", answer.status);
            return Ok(());
        }
        let outcome = answer.json()?;
        let (verdict, stdout) = match self {
            Self::Fails => (json!({"kind": "exited", "code": 3}), String::new()),
            Self::TooSlow => (json!({"kind": "wall_time_limit", "limit_ms": 50}), String::new()),
            Self::Warm | Self::Cold | Self::Cancelled | Self::Mistaken => {
                (json!({"kind": "exited", "code": 0}), format!("{number}\n"))
            }
        };
        ensure!(outcome["verdict"] == verdict && outcome["stdout"] == stdout, "{outcome}");
        Ok(())
    }
}

fn look(server: &Server) -> Result<Traces> {
    server.settle(POOL)?;
    Traces::of(server.pid())
}

/// What is there when everything has had its time to go.
fn settled(server: &Server, before: &Traces) -> Result<Traces> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let now = look(server)?;
        if grown(before, &now).is_empty() || Instant::now() > deadline {
            return Ok(now);
        }
        // No event tells that the last of these is gone, so we look again.
        thread::park_timeout(LOOK_AGAIN);
    }
}

fn allowed(name: &str) -> u64 {
    ALLOWED.iter().find(|(one, _)| *one == name).map_or(0, |(_, most)| *most)
}

/// What is larger than before by more than is allowed.
fn grown(before: &Traces, after: &Traces) -> Vec<&'static str> {
    let pairs = before.named().into_iter().zip(after.named());
    let too_large = pairs.filter(|((name, was), (_, is))| *is > was + allowed(name));
    too_large.map(|((name, _), _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(descriptors: u64, mounts: u64) -> Traces {
        Traces {
            descriptors,
            threads: 4,
            server_pss: 100,
            server_rss: 100,
            total_pss: 100,
            processes: 3,
            cgroups: 1,
            mounts,
            directories: 0,
        }
    }

    #[test]
    fn growth_beyond_the_allowance_is_named() {
        assert!(grown(&traces(10, 5), &traces(12, 5)).is_empty());
        assert_eq!(grown(&traces(10, 5), &traces(13, 5)), ["server descriptors"]);
        assert_eq!(grown(&traces(10, 5), &traces(9, 6)), ["mounts of the host"]);
    }

    #[test]
    fn every_trace_has_an_allowance_of_its_own() {
        let names = traces(0, 0).named().map(|(name, _)| name);
        assert_eq!(names, ALLOWED.map(|(name, _)| name));
    }

    #[test]
    fn most_runs_are_warm_and_every_kind_comes() {
        let kinds: Vec<Kind> = (0..50).map(Kind::of).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Warm).count(), 43);
    }
}
