//! `cargo xtask bench living`: what a sandbox that stays costs to make, to use, to snapshot, to roll back and to fork,
//! with few and with many files in it; beside a bare spawn of the same program, and beside docker where there is one.

mod docker;

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::contenders::reason;
use super::http::{Answer, Client};
use super::server::Server;
use super::{Scratch, Targets, Times};
use crate::{LivingArgs, Passed, shell};

const SANDBOXES: &str = "/v1/sandboxes";
/// The program of every exec: it does nothing, so that only our part is measured.
const PROGRAM: &str = "/bin/true";
const FORKS: u32 = 8;
const FILES: [u32; 3] = [10, 1_000, 50_000];
/// What we promise: milliseconds that an exec adds to a bare spawn, at the median.
const TARGET_ADDED_MS: f64 = 3.0;
/// What we promise: how much longer it takes with 50,000 files than with 10.
const TARGET_GROWTH: f64 = 2.0;

pub(crate) fn living(args: &LivingArgs) -> Result<Passed> {
    let belljar = super::binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let _engine = super::engine::provide(&scratch.directory);
    let server = Server::start(&belljar, &scratch.directory, "living", &["--pool", "0"])?;
    let mut client = server.unix()?;
    let execs = measure_execs(&mut client, args.rounds)?;
    super::table_of(&execs, "ms");
    let trees = FILES
        .iter()
        .map(|files| measure_points(&mut client, *files, args.rounds))
        .collect::<Result<Vec<_>>>()?;
    for (files, times) in FILES.iter().zip(&trees) {
        shell::say(format!("\nwith {files} files:"));
        super::table_of(times, "ms");
    }
    let beside = docker::measure(&scratch.directory, args.rounds);
    tell_docker(&beside);
    let mut targets = Targets::default();
    let p50 = |times: &[Times], name: &str| super::median(times, name).unwrap_or(f64::NAN);
    let added = p50(&execs, "next exec") - p50(&execs, "bare spawn");
    targets.at_most("ms that an exec adds to a bare spawn, p50", added, TARGET_ADDED_MS);
    for what in ["snapshot", "fork x8"] {
        let growth = p50(&trees[2], what) / p50(&trees[0], what);
        let words = format!("{what} with {} files against {}", FILES[2], FILES[0]);
        targets.at_most(&words, growth, TARGET_GROWTH);
    }
    let record = json!({
        "bench": "living", "machine": super::machine(), "rounds": args.rounds,
        "execs": execs.iter().map(shown).collect::<Vec<_>>(),
        "trees": shown_trees(&trees),
        "docker": match &beside {
            Ok(took) => json!({
                "execs": took.execs.iter().map(shown).collect::<Vec<_>>(), "trees": shown_trees(&took.trees),
            }),
            Err(error) => json!({ "absent": reason(error) }),
        },
        "targets": targets.record(),
    });
    if args.keep {
        super::keep("living.json", &record)?;
    }
    Ok(targets.passed())
}

fn shown(times: &Times) -> Value {
    let at = |percent| times.percentile(percent);
    json!({ "name": times.name, "p50_ms": at(50), "p90_ms": at(90), "p99_ms": at(99), "times_ms": times.sorted_ms })
}

fn shown_trees(trees: &[Vec<Times>]) -> Value {
    let tree = |(files, times): (&u32, &Vec<Times>)| json!({ "files": files, "times": times.iter().map(shown).collect::<Vec<_>>() });
    FILES.iter().zip(trees).map(tree).collect()
}

/// The same by docker, or why not.
fn tell_docker(beside: &Result<docker::Measured>) {
    match beside {
        Err(error) => shell::say(format!("\ndocker is not measured: {}", reason(error))),
        Ok(took) => {
            shell::say("\ndocker:");
            super::table_of(&took.execs, "ms");
            for (files, times) in FILES.iter().zip(&took.trees) {
                shell::say(format!("\ndocker with {files} files:"));
                super::table_of(times, "ms");
            }
        }
    }
}

/// In turns: a bare spawn, a new sandbox, its first exec, its next one.
fn measure_execs(client: &mut Client, rounds: u32) -> Result<Vec<Times>> {
    let names = ["bare spawn", "create", "first exec", "next exec"];
    let mut all = names.map(Times::of);
    let exec = json!({ "cmd": [PROGRAM] }).to_string();
    for round in 0..rounds {
        let name = format!("bench-{round}");
        let bare = || {
            let mut command = shell::command(PROGRAM);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            ensure!(command.status()?.success(), "{PROGRAM} failed");
            Ok(())
        };
        all[0].sorted_ms.push(timed(bare)?);
        let create = json!({ "name": name }).to_string();
        all[1].sorted_ms.push(timed(|| said(&client.post(SANDBOXES, &create)?).map(drop))?);
        let path = format!("{SANDBOXES}/{name}/exec");
        for one in &mut all[2..] {
            one.sorted_ms.push(timed(|| ended_well(&client.post(&path, &exec)?))?);
        }
        client.delete(&format!("{SANDBOXES}/{name}?force=true"))?;
    }
    all.iter_mut().for_each(|times| times.sorted_ms.sort_by(f64::total_cmp));
    Ok(all.into())
}

/// A tree of so many files that do not change; then, in turns, one small change and a snapshot, a rollback, eight forks.
fn measure_points(client: &mut Client, files: u32, rounds: u32) -> Result<Vec<Times>> {
    let name = format!("tree-{files}");
    let inodes = u64::from(files) * 2 + 10_000;
    let limits = json!({ "disk_bytes": 1u64 << 30, "inodes": inodes, "wall_ms": 600_000, "cpu_ms": 600_000 });
    let create = json!({ "name": name, "limits": limits }).to_string();
    said(&client.post(SANDBOXES, &create)?)?;
    let at = |rest: &str| format!("{SANDBOXES}/{name}/{rest}");
    let fill = format!(
        "mkdir -p tree && cd tree && for d in $(seq 0 99); do mkdir -p $d; done && \
         seq 1 {files} | while read n; do echo $n > $((n % 100))/$n; done"
    );
    let shell = |script: &str| json!({ "script": script }).to_string();
    ended_well(&client.post(&at("shell"), &shell(&fill))?)?;
    said(&client.post(&at("snapshots"), &json!({ "tag": "filled" }).to_string())?)?;
    let mut all = ["snapshot", "rollback", "fork x8"].map(Times::of);
    for round in 0..rounds {
        let change = format!("echo {round} > changed");
        ended_well(&client.post(&at("shell"), &shell(&change))?)?;
        let tag = json!({ "tag": format!("round-{round}") }).to_string();
        all[0].sorted_ms.push(timed(|| said(&client.post(&at("snapshots"), &tag)?).map(drop))?);
        all[1].sorted_ms.push(timed(|| said(&client.post(&at("rollback"), &tag)?).map(drop))?);
        let fork = json!({ "count": FORKS, "as": format!("{name}-{round}") }).to_string();
        let mut forked = Value::Null;
        all[2].sorted_ms.push(timed(|| {
            forked = said(&client.post(&at("fork"), &fork)?)?;
            Ok(())
        })?);
        for one in forked["sandboxes"].as_array().context("no forks")? {
            let fork = one["name"].as_str().context("a fork without a name")?;
            client.delete(&format!("{SANDBOXES}/{fork}?force=true"))?;
        }
    }
    client.delete(&format!("{SANDBOXES}/{name}?force=true"))?;
    all.iter_mut().for_each(|times| times.sorted_ms.sort_by(f64::total_cmp));
    Ok(all.into())
}

fn timed(act: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    act()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

fn said(answer: &Answer) -> Result<Value> {
    answer.json_of_success()
}

/// An exec that did what it should.
fn ended_well(answer: &Answer) -> Result<()> {
    let ended = said(answer)?;
    ensure!(ended["end"]["exit_code"] == json!(0), "the program failed: {ended}");
    Ok(())
}
