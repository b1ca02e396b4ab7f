//! `cargo xtask test`: every check in order, each with its time, and one line of counts at the end.
//!
//! A failing step does not stop the next one, so one run tells everything; a step that cannot run has failed.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::shell::{self, End};
use crate::suites;
use crate::{Passed, TestArgs, r#gen, packages, prereqs, tidy, vm};

/// Compiling everything and running the unit tests on a slow machine with a cold cache.
const CARGO_LIMIT: Duration = Duration::from_secs(1200);
/// The steps that need no kernel feature, in order. The real-kernel suites follow.
const STEPS: [&str; 6] = ["prereqs", "format", "clippy", "tidy", "unit", "docs"];

/// How many tests held, and what is to be said of those that did not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) why: Vec<String>,
}

impl Counts {
    /// A check that is not made of tests counts as one.
    pub(crate) fn one() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    fn add(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.why.extend(more.why);
    }

    pub(crate) fn failure(why: impl Into<String>) -> Self {
        Self { failed: 1, why: vec![why.into()], ..Self::default() }
    }
}

/// What all steps together came to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u32,
    failed: u32,
    failures: Vec<String>,
}

impl Tally {
    /// Runs one step: a line when it begins, a line with its time when it ends.
    pub(crate) fn step(&mut self, name: &str, body: impl FnOnce() -> Result<Counts>) {
        shell::say(format!("== {name}"));
        let started = Instant::now();
        let counts = body().unwrap_or_else(|error| Counts::failure(format!("{error:#}")));
        let took = started.elapsed().as_secs_f64();
        let word = if counts.failed == 0 { "ok" } else { "FAILED" };
        shell::say(format!(
            "== {name}: {word}, {} passed, {} failed ({took:.1} s)",
            counts.passed, counts.failed
        ));
        self.passed += counts.passed;
        self.failed += counts.failed;
        for why in &counts.why {
            shell::say(format!("   {why}"));
        }
        self.failures.extend(counts.why.into_iter().map(|why| format!("{name}: {why}")));
    }

    /// Says what failed again, where it is seen, and then the counts as the very last line.
    fn close(&self) -> Passed {
        if !self.failures.is_empty() {
            shell::say("\nfailures:");
            self.failures.iter().for_each(|failure| shell::say(format!("  {failure}")));
        }
        shell::say(format!("{} passed, {} failed", self.passed, self.failed));
        if self.failed == 0 && self.passed > 0 { Passed::Yes } else { Passed::No }
    }
}

/// `cargo xtask test`.
pub(crate) fn run(args: &TestArgs) -> Result<Passed> {
    let wanted = wanted(&args.suites)?;
    shell::adopt_orphans()?;
    let started = Instant::now();
    let mut tally = Tally::default();
    // Suites name programs by path, so a selected suite needs the prerequisites too.
    if wanted.contains("prereqs") || suites::SUITES.iter().any(|suite| wanted.contains(suite)) {
        tally.step("prereqs", || {
            prereqs::provide()?;
            packages::provide(&wanted)?;
            Ok(Counts::one())
        });
    }
    for name in STEPS.into_iter().skip(1).filter(|name| wanted.contains(name)) {
        tally.step(name, || match name {
            "format" => cargo_check(&["fmt", "--all", "--check"]),
            "clippy" => cargo_check(&CLIPPY),
            "tidy" => tidy::check(),
            "unit" => unit(),
            "docs" => r#gen::check().map(|()| Counts::one()),
            unknown => bail!("no step is called {unknown}"),
        });
    }
    suites::run(&args.scope, &wanted, &mut tally);
    if wanted.contains(vm::NAME) {
        tally.step(vm::NAME, || vm::run(&args.scope.libtest));
    }
    shell::say(format!("\nall steps took {:.0} s", started.elapsed().as_secs_f64()));
    Ok(tally.close())
}

const CLIPPY: [&str; 6] = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];

/// `cargo xtask check`: what to run before each commit.
pub(crate) fn check() -> Result<Passed> {
    let mut tally = Tally::default();
    tally.step("format", || cargo_check(&["fmt", "--all", "--check"]));
    tally.step("clippy", || cargo_check(&CLIPPY));
    tally.step("tidy", tidy::check);
    Ok(tally.close())
}

/// Runs a program made with libtest and reads its counts.
pub(crate) fn libtest(command: Command, limit: Duration) -> Result<Counts> {
    let watched = shell::watch(command, limit)?;
    Ok(read_counts(&watched.output, &watched.end))
}

/// The names asked for, or all of them.
fn wanted(asked: &[String]) -> Result<BTreeSet<&'static str>> {
    let known: Vec<_> = STEPS.into_iter().chain(suites::SUITES).chain([vm::NAME]).collect();
    if asked.is_empty() {
        return Ok(known.into_iter().collect());
    }
    let find = |name: &String| match known.iter().find(|known| *known == name) {
        Some(known) => Ok(*known),
        None => bail!("no suite is called {name}; there are: {}", known.join(", ")),
    };
    asked.iter().map(find).collect()
}

fn cargo_check(arguments: &[&str]) -> Result<Counts> {
    shell::run(shell::cargo().args(arguments)).map(|()| Counts::one())
}

/// Unit, golden and documentation tests: everything that needs no real sandbox.
fn unit() -> Result<Counts> {
    let beside = suites::BESIDE_BELLJAR;
    let mut counts = Counts::default();
    for kinds in [&["--lib", "--bins", "--test", beside][..], &["--doc"]] {
        let mut cargo = shell::cargo();
        cargo.args(suites::SELECTED).arg("--no-fail-fast").args(kinds);
        counts.add(libtest(cargo, CARGO_LIMIT)?);
    }
    Ok(counts)
}

/// libtest prints `test result: ok. 3 passed; 0 failed; …` once per binary, and `test NAME ... FAILED` per failure.
///
/// An ignored test is a failure: what does not run proves nothing. So is a program without any counts.
fn read_counts(output: &str, end: &End) -> Counts {
    let mut counts = Counts::default();
    let mut results = 0;
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("test result: ") {
            results += 1;
            let number = |word: &str| number_before(rest, word);
            counts.passed += number("passed");
            counts.failed += number("failed") + number("ignored");
        } else if let Some(name) = failed_test(line) {
            counts.why.push(name.to_owned());
        }
    }
    match end {
        End::Success if results == 0 => return Counts::failure("it ran no tests"),
        End::Success => {}
        // A binary that died part-way prints no result; a compile error prints none at all.
        End::Failure(how) if counts.failed == 0 => {
            counts.failed = 1;
            counts.why.push(how.clone());
        }
        End::Failure(_) => {}
    }
    if counts.failed > 0 && counts.why.is_empty() {
        counts.why.push(format!("{} failed or ignored", counts.failed));
    }
    counts
}

fn number_before(text: &str, word: &str) -> u32 {
    let mut words = text.split([' ', ';', '.']).filter(|word| !word.is_empty()).peekable();
    while let Some(number) = words.next() {
        if words.peek() == Some(&word) {
            return number.parse().unwrap_or(0);
        }
    }
    0
}

fn failed_test(line: &str) -> Option<&str> {
    let (name, end) = line.strip_prefix("test ")?.split_once(" ... ")?;
    (end.starts_with("FAILED") || end.starts_with("ignored")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "test a ... ok\ntest b::c ... FAILED\n\
        test result: FAILED. 7 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\
        test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";

    #[test]
    fn counts_are_summed_over_binaries_and_failures_named() {
        let counts = read_counts(TWO, &End::Failure("exit code 101".into()));
        assert_eq!(counts, Counts { passed: 37, failed: 1, why: vec!["b::c".into()] });
    }

    #[test]
    fn a_binary_that_dies_without_a_result_failed() {
        let counts = read_counts("test a ... ok\n", &End::Failure("killed by signal 9".into()));
        assert_eq!(counts, Counts::failure("killed by signal 9"));
        assert_eq!(read_counts("", &End::Success).failed, 1);
    }

    #[test]
    fn an_ignored_test_is_a_failure() {
        let output = "test a ... ignored, slow\ntest result: ok. 1 passed; 0 failed; 1 ignored; 0 measured\n";
        let counts = read_counts(output, &End::Success);
        assert_eq!((counts.passed, counts.failed, counts.why), (1, 1, vec!["a".to_owned()]));
    }

    #[test]
    fn an_unknown_suite_is_refused_by_name() {
        assert!(wanted(&["escape".into(), "tidy".into()]).unwrap().contains("escape"));
        let error = wanted(&["escapes".into()]).unwrap_err().to_string();
        assert!(error.contains("escapes") && error.contains("conformance"), "{error}");
        assert_eq!(wanted(&[]).unwrap().len(), STEPS.len() + suites::SUITES.len() + 1);
    }
}
