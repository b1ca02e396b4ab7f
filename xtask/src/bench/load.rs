//! Many clients at once against one server, back to back, with every answer checked.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::Times;
use super::server::{RUNS, Server};
use crate::shell;

/// Failures that are shown; the rest are counted.
const SHOWN: usize = 5;

/// What came of it.
#[derive(Debug)]
pub(super) struct Load {
    clients: usize,
    took: Duration,
    times: Times,
    warm: usize,
    failures: Vec<String>,
}

/// How one client fared.
#[derive(Debug, Default)]
struct Share {
    times_ms: Vec<f64>,
    warm: usize,
    failures: Vec<String>,
}

/// As many clients as said, each with a connection of its own, for as long as said.
pub(super) fn press(server: &Server, clients: usize, time: Duration) -> Result<Load> {
    let shares = Mutex::new(Vec::new());
    let started = Instant::now();
    let deadline = started + time;
    std::thread::scope(|scope| {
        for number in 0..clients {
            let shares = &shares;
            scope.spawn(move || {
                let mut share = Share::default();
                if let Err(error) = press_alone(server, number, deadline, &mut share) {
                    share.failures.push(format!("client {number}: {error:#}"));
                }
                shares.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(share);
            });
        }
    });
    let took = started.elapsed();
    let mut load = Load { clients, took, times: Times::of("load"), warm: 0, failures: Vec::new() };
    for share in shares.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        load.times.sorted_ms.extend(share.times_ms);
        load.warm += share.warm;
        load.failures.extend(share.failures);
    }
    load.times.sorted_ms.sort_by(f64::total_cmp);
    Ok(load)
}

/// An answer of its own for each run, so that one that belongs to another would be noticed.
fn press_alone(server: &Server, number: usize, deadline: Instant, share: &mut Share) -> Result<()> {
    let mut client = server.tcp()?;
    for count in 0.. {
        if Instant::now() >= deadline {
            break;
        }
        let word = format!("{number}-{count}");
        let body = json!({"language": "python", "code": format!("print('{word}')")}).to_string();
        let started = Instant::now();
        let answer = client.post(RUNS, &body);
        let took = started.elapsed();
        let outcome = answer.and_then(|answer| answer.json());
        match outcome.and_then(|outcome| check(&outcome, &format!("{word}\n")).map(|()| outcome)) {
            Ok(outcome) => {
                share.times_ms.push(took.as_secs_f64() * 1e3);
                share.warm += usize::from(outcome["start"] == "warm");
            }
            Err(error) => {
                share.failures.push(format!("{error:#}"));
                client = server.tcp()?; // nobody knows where the old connection stands
            }
        }
    }
    Ok(())
}

/// The program ran to its end and wrote this.
pub(super) fn check(outcome: &Value, stdout: &str) -> Result<()> {
    ensure!(outcome["verdict"] == json!({"kind": "exited", "code": 0}), "not well: {outcome}");
    ensure!(outcome["stdout"] == stdout, "not {stdout:?}: {outcome}");
    Ok(())
}

impl Load {
    pub(super) fn runs(&self) -> usize {
        self.times.sorted_ms.len()
    }

    pub(super) fn per_second(&self) -> f64 {
        super::count(self.runs()) / self.took.as_secs_f64()
    }

    pub(super) fn failed(&self) -> f64 {
        super::count(self.failures.len())
    }

    fn warm_share(&self) -> f64 {
        super::count(self.warm) / super::count(self.runs().max(1))
    }

    pub(super) fn say(&self) {
        shell::say(format!(
            "{} clients, {:.1} s: {} runs, {:.0}/s, {} failed, {:.1} % warm, p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms",
            self.clients,
            self.took.as_secs_f64(),
            self.runs(),
            self.per_second(),
            self.failures.len(),
            100.0 * self.warm_share(),
            self.times.percentile(50),
            self.times.percentile(90),
            self.times.percentile(99),
        ));
        for failure in self.failures.iter().take(SHOWN) {
            shell::say(format!("  failed: {failure}"));
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "clients": self.clients, "seconds": self.took.as_secs_f64(), "runs": self.runs(),
            "runs_per_second": self.per_second(), "failed": self.failures.len(),
            "warm_share": self.warm_share(), "p50_ms": self.times.percentile(50),
            "p90_ms": self.times.percentile(90), "p99_ms": self.times.percentile(99),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_end_with_the_right_output_passes() {
        let outcome = |verdict: Value, stdout: &str| json!({"verdict": verdict, "stdout": stdout});
        let exited = |code| json!({"kind": "exited", "code": code});
        assert!(check(&outcome(exited(0), "1\n"), "1\n").is_ok());
        assert!(check(&outcome(exited(1), "1\n"), "1\n").is_err());
        assert!(check(&outcome(exited(0), "2\n"), "1\n").is_err());
        assert!(check(&outcome(json!({"kind": "signaled", "signal": 9}), "1\n"), "1\n").is_err());
    }
}
