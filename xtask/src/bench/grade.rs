//! `cargo xtask bench grade`: 164 small problems with their cases, sealed, beside a plain `python3` for each of them;
//! and how many tiny cases are judged in a second.
//!
//! The plain loop is what most evaluation scripts do: one process for a problem, which loads the candidate, runs the
//! asserts and exits. Rounds alternate, so that a slow moment of the machine slows both alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::server::Server;
use super::{Scratch, Targets, Times};
use crate::{GradeArgs, Passed, shell};

const GRADES: &str = "/v1/grades";
const PROBLEMS: usize = 164;
const CASES: usize = 7;
const TINY_CASES: usize = 2000;
const POOL: usize = 16;

/// What we promise.
const TARGET_SHARE: f64 = 0.5;
const TARGET_VERDICTS_PER_S: f64 = 1000.0;

/// A function, the names of its parameters, what it returns, and a value for each case.
struct Family {
    body: &'static str,
    args: fn(i64) -> Value,
    answer: fn(i64, i64) -> Value,
}

/// Kinds of problem; each is made several times with another number in it.
const FAMILIES: [Family; 4] = [
    Family {
        body: "def solve(n):\n    return sum(i * i for i in range(n)) + K\n",
        args: |case| json!([case]),
        answer: |case, k| json!((0..case).map(|i| i * i).sum::<i64>() + k),
    },
    Family {
        body: "def solve(items):\n    return sorted(items, reverse=True)[:K]\n",
        args: |case| json!([[case, 3, 1, case * 2, 7]]),
        answer: |case, k| {
            let mut all = vec![case, 3, 1, case * 2, 7];
            all.sort_unstable_by(|a, b| b.cmp(a));
            json!(all.into_iter().take(usize::try_from(k).unwrap_or(0)).collect::<Vec<_>>())
        },
    },
    Family {
        body: "def solve(text):\n    return {letter: text.count(letter) * K for letter in sorted(set(text))}\n",
        args: |case| json!([format!("ab{}", "c".repeat(usize::try_from(case).unwrap_or(0)))]),
        answer: |case, k| {
            if case == 0 { json!({"a": k, "b": k}) } else { json!({"a": k, "b": k, "c": case * k}) }
        },
    },
    Family {
        body: "def solve(a, b):\n    while b:\n        a, b = b, a % b\n    return a + K\n",
        args: |case| json!([case * 12, 18]),
        answer: |case, k| {
            let (mut a, mut b) = (case * 12, 18);
            while b != 0 {
                (a, b) = (b, a % b);
            }
            json!(a + k)
        },
    },
];

/// One problem in both forms.
struct Problem {
    /// A program with the candidate and its asserts.
    plain: PathBuf,
    /// The body of a request.
    sealed: String,
}

pub(crate) fn grade(args: &GradeArgs) -> Result<Passed> {
    let belljar = super::binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let problems = problems(&scratch.directory)?;
    let size = POOL.to_string();
    let options = ["--pool", &size, "--pool-floor", &size, "--warm", "python"];
    let server = Server::start(&belljar, &scratch.directory, "grade", &options)?;
    server.settle(POOL)?;
    // More than there are cores: each waits for answers now and then.
    let clients = 2 * thread::available_parallelism().map_or(1, std::num::NonZero::get);
    super::calm();
    let (mut plain, mut alone, mut sealed) =
        (Times::of("python3 for each"), Times::of("sealed, one at a time"), Times::of("sealed"));
    let mut tiny = Vec::new();
    for round in 0..=args.rounds {
        let took = [
            timed(|| problems.iter().try_for_each(|one| run_plain(&one.plain)))?,
            timed(|| run_sealed(&server, &problems, 1))?,
            timed(|| run_sealed(&server, &problems, clients))?,
        ];
        let per_second = tiny_cases(&server)?;
        if round > 0 {
            // The first is to warm up.
            for (times, took) in [&mut plain, &mut alone, &mut sealed].into_iter().zip(took) {
                times.sorted_ms.push(took);
            }
            tiny.push(per_second);
        }
    }
    for times in [&mut plain, &mut alone, &mut sealed] {
        times.sorted_ms.sort_by(f64::total_cmp);
        let (low, middle) = (times.percentile(0), times.percentile(50));
        shell::say(format!(
            "{:<24} {low:>9.0} ms at best, {middle:>9.0} ms at the median",
            times.name
        ));
    }
    tiny.sort_by(f64::total_cmp);
    let verdicts = tiny.get(tiny.len() / 2).copied().unwrap_or(0.0);
    let mut targets = Targets::default();
    let share = sealed.percentile(50) / plain.percentile(50);
    targets.at_most("sealed, as a share of the plain loop's time", share, TARGET_SHARE);
    targets.at_least("verdicts on tiny cases in a second", verdicts, TARGET_VERDICTS_PER_S);
    let record = json!({
        "bench": "grade", "machine": super::machine(), "problems": PROBLEMS, "cases": CASES, "clients": clients,
        "rounds": args.rounds, "plain_ms": plain.sorted_ms, "sealed_one_at_a_time_ms": alone.sorted_ms,
        "sealed_ms": sealed.sorted_ms, "tiny_verdicts_per_second": tiny, "targets": targets.record(),
    });
    if args.keep {
        super::keep("grade.json", &record)?;
    }
    Ok(targets.passed())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

fn problems(directory: &Path) -> Result<Vec<Problem>> {
    (0..PROBLEMS)
        .map(|index| {
            let family = &FAMILIES[index % FAMILIES.len()];
            let k = i64::try_from(index / FAMILIES.len() % 5)? + 1;
            let code = format!("K = {k}\n{}", family.body);
            let cases: Vec<(Value, Value)> = (0..i64::try_from(CASES)?)
                .map(|case| ((family.args)(case), (family.answer)(case, k)))
                .collect();
            let asserts: String = cases
                .iter()
                // Numbers, strings, lists and dicts are written alike in JSON and Python.
                .map(|(args, answer)| format!("assert solve(*{args}) == {answer}\n"))
                .collect();
            let plain = directory.join(format!("problem-{index}.py"));
            fs::write(&plain, format!("{code}\n{asserts}"))?;
            let cases: Vec<Value> = cases
                .into_iter()
                .map(|(args, answer)| json!({"input_args": args, "expected_output": answer}))
                .collect();
            let sealed = json!({"code": code, "func_name": "solve", "cases": cases}).to_string();
            Ok(Problem { plain, sealed })
        })
        .collect()
}

fn run_plain(program: &Path) -> Result<()> {
    let mut command = shell::command("/usr/bin/python3");
    command.arg(program).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("cannot start python3")?;
    ensure!(status.success(), "{} ended with {status}", program.display());
    Ok(())
}

/// Grades all problems over so many connections; each must pass.
fn run_sealed(server: &Server, problems: &[Problem], clients: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let client = || -> Result<()> {
        let mut client = server.unix()?;
        while let Some(problem) = problems.get(next.fetch_add(1, Ordering::Relaxed)) {
            let grade = client.post(GRADES, &problem.sealed)?.json()?;
            ensure!(grade["all_passed"] == true && grade["score_trustworthy"] == true, "{grade:#}");
        }
        Ok(())
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        all.into_iter()
            .try_for_each(|one| one.join().map_err(|_| anyhow::anyhow!("a client broke"))?)
    })
}

/// Verdicts in a second when there is next to nothing to do for each.
fn tiny_cases(server: &Server) -> Result<f64> {
    let cases: Vec<Value> = (0..TINY_CASES)
        .map(|one| json!({"input_args": [one, 1], "expected_output": one + 1}))
        .collect();
    let body = json!({"code": "def add(a, b):\n    return a + b\n", "cases": cases}).to_string();
    let mut client = server.unix()?;
    let started = Instant::now();
    let answer = client.post(GRADES, &body)?;
    let took = started.elapsed().as_secs_f64();
    let grade = answer.json()?;
    ensure!(grade["all_passed"] == true, "a tiny case failed: {}", grade["feedback_text"]);
    Ok(super::count(TINY_CASES) / took)
}
