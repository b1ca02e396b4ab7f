//! Many runs at once, and hostile neighbours: nobody's result changes.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

use std::sync::Arc;

use belljar::{LimitsRequest, RunRequest};
use belljar_tests::{Level, Outcome, Running, Sandbox, Token, Verdict, block_on, engine, outcome};
use tokio::task::JoinSet;

const MANY: usize = 200;

/// Says one word many times on both streams, and a number that takes some work.
const CHATTER: &str = "import sys
word = sys.argv[1]
for _ in range(200):
    print(word, flush=True); print(word[::-1], file=sys.stderr, flush=True)
print(sum(i * i for i in range(10_000)))";

fn assert_own_words(outcome: &Outcome, word: &str) {
    assert!(outcome.ok(), "{outcome:?}");
    let reversed: String = word.chars().rev().collect();
    let said = format!("{word}\n").repeat(200) + "333283335000\n";
    assert_eq!(outcome.stdout, said);
    assert_eq!(outcome.stderr, format!("{reversed}\n").repeat(200));
}

#[test]
fn two_hundred_commands_at_once_keep_their_outputs_apart() {
    let runs: Vec<(Token, Running)> = (0..MANY)
        .map(|index| {
            let level = [Level::Standard, Level::Strict][index % 2];
            let token = Token::new();
            let sandbox = Sandbox::at(level).with(["--timeout", "100s"]).args([token.as_str()]);
            let running = sandbox.start_json("python", CHATTER);
            (token, running)
        })
        .collect();
    let mut ids = std::collections::BTreeSet::new();
    for (token, running) in runs {
        let outcome = outcome(&running.wait());
        assert_own_words(&outcome, token.as_str());
        token.assert_gone();
        ids.insert(outcome.execution_id);
    }
    assert_eq!(ids.len(), MANY);
}

#[test]
fn two_hundred_runs_of_one_engine_keep_their_outputs_apart() {
    let engine = Arc::new(engine());
    let outcomes: Vec<(String, Outcome)> = block_on(async {
        let mut runs = JoinSet::new();
        for index in 0..MANY {
            let engine = Arc::clone(&engine);
            runs.spawn(async move {
                let word = format!("word-{index}");
                let request = RunRequest {
                    args: vec![word.clone()],
                    limits: LimitsRequest { wall_ms: Some(100_000), ..LimitsRequest::default() },
                    ..RunRequest::code("python", CHATTER)
                };
                (word, engine.run(request).await.expect("an outcome"))
            });
        }
        runs.join_all().await
    });
    assert_eq!(outcomes.len(), MANY);
    for (word, outcome) in &outcomes {
        assert_own_words(outcome, word);
    }
}

const INNOCENT: &str = "import hashlib, os, subprocess
open('work', 'wb').write(b'x' * (5 << 20))
print(hashlib.sha256(open('work', 'rb').read()).hexdigest()[:16])
print(subprocess.check_output(['echo', 'child']).decode().strip(), len(bytearray(64 << 20)))";

/// The result of an innocent run: everything but how long it took.
fn innocent() -> (Verdict, String, String) {
    let sandbox = Sandbox::standard().with(["--memory", "200m", "--pids", "8"]);
    let outcome = sandbox.run_python(INNOCENT);
    assert!(outcome.ok(), "{outcome:?}");
    assert!(outcome.events.is_empty(), "{:?}", outcome.events);
    (outcome.verdict, outcome.stdout, outcome.stderr)
}

const FORK_BOMB: &str = "import os
while True:
    try: os.fork()
    except OSError: pass";

const MEMORY_BOMB: &str = "import os
keep = []
while True: keep.append(os.urandom(1 << 16) * 64)";

/// Ten gigabytes, one megabyte at a time.
const OUTPUT_BOMB: &str = "import os
chunk = b'x' * (1 << 20)
for _ in range(10_000):
    left = memoryview(chunk)
    while left: left = left[os.write(1, left):]";

fn bomb(code: &str, token: &Token, options: &[&str]) -> Running {
    Sandbox::standard()
        .with(options.iter().copied())
        .args([token.as_str()])
        .start_json("python", code)
}

/// More than a run that says nothing holds: the size of the program itself is no concern here, and debug builds are large.
const FLAT_BYTES: u64 = 8 << 20;
/// So much longer than a look at it takes that it is seen at work.
const QUIET: &str = "import time; time.sleep(2)";

#[test]
fn bombs_change_nothing_for_a_neighbour_and_memory_stays_flat() {
    let alone = innocent();
    let tokens: Vec<Token> = (0..4).map(|_| Token::new()).collect();
    let (quiet, mut usual) = (bomb(QUIET, &tokens[3], &[]), 0);
    while quiet.is_running() {
        usual = usual.max(quiet.peak_memory().unwrap_or(0));
        std::thread::yield_now();
    }
    assert!(outcome(&quiet.wait()).ok() && usual > 0);
    let forks = bomb(FORK_BOMB, &tokens[0], &["--timeout", "15s", "--pids", "200"]);
    let memory = bomb(MEMORY_BOMB, &tokens[1], &["--memory", "2g"]);
    // What is kept fits a pipe: it is read only when the bombs are over.
    let limits =
        ["--output", "10k", "--output-total", "16g", "--timeout", "100s", "--cpu-time", "100s"];
    let output = bomb(OUTPUT_BOMB, &tokens[2], &limits);
    let (mut peak, mut rounds) = (0, 0);
    while output.is_running() || forks.is_running() || memory.is_running() {
        assert_eq!(innocent(), alone);
        peak = peak.max(output.peak_memory().unwrap_or(0));
        rounds += 1;
    }
    assert!(rounds > 1, "the bombs were over before a neighbour ran");
    assert!((1..usual + FLAT_BYTES).contains(&peak), "belljar held {peak} bytes, usually {usual}");
    let forks = outcome(&forks.wait());
    assert_eq!(forks.verdict, Verdict::WallTimeLimit { limit_ms: 15_000 });
    assert!(forks.processes_peak.is_some_and(|peak| peak <= 201), "{forks:?}");
    let memory = outcome(&memory.wait());
    assert_eq!(memory.verdict, Verdict::MemoryLimit { limit_bytes: 2 << 30 });
    let output = outcome(&output.wait());
    assert!(output.ok(), "{output:?}");
    assert_eq!(output.limits["output_total_bytes"].used, Some(10_000 << 20));
    assert_eq!(output.stdout_dropped_bytes, (10_000 << 20) - (10 << 10));
    tokens.iter().for_each(Token::assert_gone);
}
