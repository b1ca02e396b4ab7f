//! `cargo xtask fuzz`: libFuzzer over everything that reads bytes of strangers. It needs no nightly compiler: coverage is
//! a pass of LLVM, which stable takes by name.

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::{FuzzArgs, Passed, prereqs, shell};

/// What libFuzzer's own part is compiled with.
const COMPILER: prereqs::Package = ("g++", "/usr/bin/g++");

/// In the order in which all are run. The names are those of the tables `TARGETS` in the crates.
const TARGETS: [&str; 11] = [
    "bodies",
    "headers",
    "questions",
    "policy",
    "keys",
    "frames",
    "resuming",
    "dns",
    "http_head",
    "chunks",
    "client_hello",
];

/// Counters on every edge, the table of places that belongs to them, and what comparisons compare with.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";

/// No input of ours is longer than this before it is cut off.
const MAX_LENGTH: &str = "-max_len=4096";
/// Seconds for one input: beyond it something grows faster than its input.
const SLOW: &str = "-timeout=5";
const MEMORY: &str = "-rss_limit_mb=1024";

pub(crate) fn fuzz(args: &FuzzArgs) -> Result<Passed> {
    let wanted = match &args.target {
        None => TARGETS.to_vec(),
        Some(name) => match TARGETS.iter().find(|one| *one == name) {
            Some(found) => vec![*found],
            None => bail!("no target {name}: there are {}", TARGETS.join(", ")),
        },
    };
    prereqs::provide_these(&[COMPILER])?;
    let root = shell::repo_root();
    let place = root.join("fuzz");
    let built = root.join("target/fuzz");
    let said = shell::output(shell::command("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not say what it builds for")?;
    let mut build = shell::cargo();
    build.arg("build").arg("--manifest-path").arg(place.join("Cargo.toml"));
    build.arg("--target-dir").arg(&built).args(["--target", host]);
    build.env("RUSTFLAGS", COVERAGE);
    shell::run(&mut build)?;
    let program = built.join(host).join("debug/belljar-fuzz");
    for name in wanted {
        let grown = root.join("target/fuzz-corpus").join(name);
        let found = root.join("target/fuzz-found").join(name);
        fs::create_dir_all(&grown)?;
        fs::create_dir_all(&found)?;
        let mut command = shell::command(&program);
        command.env("BELLJAR_FUZZ", name).args([MAX_LENGTH, SLOW, MEMORY]);
        command.arg(format!("-max_total_time={}", args.seconds));
        command.arg(format!("-artifact_prefix={}/", found.display()));
        command.args(["-print_final_stats=1", "-verbosity=0"]);
        // What is new goes to the first directory; the second is ours, and is changed by hand.
        command.arg(&grown).arg(place.join("corpus").join(name));
        shell::say(format!("{name}: {} s", args.seconds));
        let ended = shell::run(&mut command);
        ensure!(ended.is_ok(), "{name} fell over: the input is in {}", found.display());
    }
    Ok(Passed::Yes)
}
