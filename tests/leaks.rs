//! The leaks suite: after every kind of end nothing is left, neither on the host nor in a process that
//! has run a hundred sandboxes. Its tests run one at a time.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use belljar::{Engine, Error, LimitsRequest, RunRequest};
use belljar_tests::{
    LEVELS, Level, Sandbox, Token, Verdict, asked, block_on, children, directories_of, engine, warm,
};
use rustix::process::{Pid, Signal, kill_process};

/// What this process has open, and what runs that began in it have on the host. Others may be at work
/// on the same host: a run's directories carry the process id of whoever asked for it.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    /// What each one leads to.
    descriptors: Vec<PathBuf>,
    children: BTreeSet<u32>,
    mounts: usize,
    directories: BTreeSet<PathBuf>,
}

impl Traces {
    /// Of runs that these processes asked for, and our own.
    fn take(askers: &[u32]) -> Self {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
        let all = askers.iter().copied().chain([std::process::id()]);
        Self {
            descriptors: descriptors(),
            children: children(std::process::id()).into_iter().collect(),
            mounts: mountinfo.lines().count(),
            directories: all.flat_map(directories_of).collect(),
        }
    }

    /// Every trace is as it was. What is ended without a wait may take a moment, and no longer.
    fn assert_unchanged(&self, askers: &[u32]) {
        for _ in 0..1000 {
            if Self::take(askers) == *self {
                return;
            }
            // No event tells that a thread of ours has reaped a keeper.
            std::thread::park_timeout(Duration::from_millis(10));
        }
        assert_eq!(Self::take(askers), *self);
    }
}

/// Sorted, without the one that lists them; sockets and pipes without their numbers.
fn descriptors() -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").expect("our own").flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut all: Vec<PathBuf> = links.filter(|link| !link.starts_with("/proc")).collect();
    all.sort();
    all
}

fn limited(level: Level, code: &str, limits: LimitsRequest) -> RunRequest {
    asked(RunRequest { level, limits, ..RunRequest::code("python", code) })
}

/// Lets go of what a pool holds, and looks only then: it is kept on purpose.
fn assert_nothing_left(engine: &Engine, before: &Traces) {
    engine.empty_pool();
    assert!(block_on(engine.settle(Duration::from_secs(30))), "sandboxes stay");
    before.assert_unchanged(&[]);
}

fn none() -> LimitsRequest {
    LimitsRequest::default()
}

/// One run of every kind of end that a level has.
fn all_ends(engine: &Engine, level: Level) {
    let kind = |request: RunRequest| {
        let outcome = block_on(engine.run(request)).expect("an outcome");
        outcome.verdict.kind()
    };
    assert_eq!(kind(limited(level, "print(1)", none())), "exited");
    assert_eq!(kind(limited(level, "import os; os.abort()", none())), "signaled");
    let short = LimitsRequest { wall_ms: Some(200), ..none() };
    assert_eq!(kind(limited(level, "import time; time.sleep(99)", short)), "wall_time_limit");
    let loud =
        LimitsRequest { output_bytes: Some(1 << 10), output_total_bytes: Some(1 << 20), ..none() };
    let flood = "import os\nwhile True: os.write(1, b'x' * 65536)";
    assert_eq!(kind(limited(level, flood, loud)), "output_limit");
    let missing = RunRequest { level, ..RunRequest::command(["/usr/bin/no-such-program"]) };
    assert_eq!(kind(asked(missing)), "start_failed");
    if level.has_namespaces() {
        let small = LimitsRequest { memory_bytes: Some(32 << 20), ..none() };
        let bomb = "x = []\nwhile True: x.append(bytearray(1 << 20))";
        assert_eq!(kind(limited(level, bomb, small)), "memory_limit");
        let full = "open('a', 'wb').write(b'x' * (200 << 20))";
        assert!(["disk_limit", "exited"].contains(&kind(limited(level, full, none()))));
    }
}

#[test]
fn nothing_is_left_after_any_end_at_any_level() {
    let engine = engine();
    let before = Traces::take(&[]);
    for level in LEVELS {
        all_ends(&engine, level);
    }
    assert_nothing_left(&engine, &before);
}

#[test]
fn a_hundred_runs_open_nothing_that_stays_open() {
    let engine = engine();
    let at_first = Traces::take(&[]);
    let run = || {
        let request = asked(RunRequest::code("bash", "echo x"));
        let outcome = block_on(engine.run(request)).expect("an outcome");
        assert_eq!(outcome.verdict, Verdict::Exited { code: 0 });
    };
    run();
    // A warm run's keeper may still be on its way out.
    assert!(block_on(engine.settle(Duration::from_secs(30))), "its keeper stays");
    let before = Traces::take(&[]);
    for _ in 0..100 {
        run();
    }
    if warm::server().is_some() {
        // The answer does not wait for a keeper that has nothing left to do but end.
        before.assert_unchanged(&[]);
    }
    // At once: a run that has an Outcome has nothing else any more.
    assert_eq!(Traces::take(&[]), before);
    assert_nothing_left(&engine, &at_first);
}

#[test]
fn a_dropped_run_leaves_nothing() {
    let engine = engine();
    let before = Traces::take(&[]);
    for level in LEVELS {
        // Dropped at moments from before the start to well into the program.
        for after_ms in [0, 1, 2, 5, 10, 20, 40, 80, 160] {
            let run = engine.run(limited(level, "import time; time.sleep(99)", none()));
            let ended = block_on(async {
                tokio::time::timeout(Duration::from_millis(after_ms), run).await
            });
            assert!(ended.is_err(), "{level}: {ended:?}");
        }
    }
    assert_nothing_left(&engine, &before);
}

#[test]
fn a_refused_request_leaves_nothing() {
    let engine = engine();
    let before = Traces::take(&[]);
    for request in [
        limited(Level::Maximum, "print(1)", none()),
        RunRequest::code("cobol", "x"),
        RunRequest {
            copies: [("a".to_owned(), PathBuf::from("/nonexistent"))].into(),
            ..RunRequest::code("python", "print(1)")
        },
    ] {
        let error = block_on(engine.run(request)).expect_err("refused");
        let plain = matches!(error, Error::Spec(_) | Error::Unavailable { .. });
        assert!(plain, "{error:?}");
    }
    assert_eq!(Traces::take(&[]), before);
}

/// The processes of a run that `belljar` started: belljar, keeper, init.
fn chain(belljar: u32) -> Vec<u32> {
    let mut all = vec![belljar];
    while let Some(last) = all.last() {
        match children(*last).first() {
            Some(child) => all.push(*child),
            None => break,
        }
    }
    all
}

#[test]
fn killing_any_of_our_processes_leaves_nothing() {
    let before = Traces::take(&[]);
    let mut askers = Vec::new();
    for level in LEVELS {
        for victim in 0..3 {
            let token = Token::new();
            // A daemon in a session of its own, beside the program.
            let code = format!(
                "import os, time\nif os.fork() == 0:\n os.setsid()\n \
                 if os.fork() == 0: os.execv('/bin/sleep', ['{}', '99'])\n time.sleep(99)\n\
                 print('up', flush=True)\ntime.sleep(99)",
                token.as_str()
            );
            let sandbox = Sandbox::at(level).alone(); // its own process has the chain below it
            let mut run = sandbox.with(["--timeout", "90s"]).start("python", &code);
            askers.push(run.id());
            assert_eq!(run.read_line(), "up\n");
            let pids = chain(run.id());
            assert!(pids.len() >= 4, "{level}: {pids:?}");
            let pid = Pid::from_raw(pids[victim].cast_signed()).expect("a process");
            kill_process(pid, Signal::KILL).expect("it runs");
            let ended = run.wait();
            // Ours, never the program's: no Outcome is made up for a run that was lost.
            if victim > 0 {
                assert_eq!(ended.code, Some(125), "{level} {victim}: {ended:?}");
            }
            token.wait_until_gone();
            // The next start sweeps what a killed belljar and keeper could not.
            assert!(Sandbox::at(level).alone().run_python("print(1)").ok());
        }
    }
    before.assert_unchanged(&askers);
}

#[test]
fn interrupting_belljar_leaves_nothing() {
    let before = Traces::take(&[]);
    let mut askers = Vec::new();
    for level in LEVELS {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let code = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n\
                        print('up', flush=True)\ntime.sleep(99)";
            let mut run = Sandbox::at(level).with(["--timeout", "90s"]).start("python", code);
            askers.push(run.id());
            assert_eq!(run.read_line(), "up\n");
            run.signal(signal);
            let ended = run.wait();
            assert_ne!(ended.code, Some(0), "{ended:?}");
        }
    }
    before.assert_unchanged(&askers);
}
