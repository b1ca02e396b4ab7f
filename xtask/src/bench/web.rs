//! `cargo xtask bench http`: the server as clients see it. Requests in a second by wrk, many streams at once, and what a
//! connection weighs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::server::{RUNS, Server};
use super::{Scratch, memory};
use crate::{HttpArgs, Passed, prereqs, shell};

const WRK: prereqs::Package = ("wrk", "/usr/bin/wrk");
const CODE: &str = r#"{\"language\":\"python\",\"code\":\"print(6*7)\"}"#;
const STREAMS: usize = 1000;
/// Connections that ask for nothing: what one weighs is told of both numbers.
const IDLE: [usize; 2] = [1000, 10_000];
/// Descriptors that the most of them need, at either end.
const DESCRIPTORS: u64 = 16_384;
/// Rules that every run is held against: what looking at them costs.
const POLICY: &str = "[default]\nleast_level = \"standard\"\n[default.limits]\nwall_ms = 60000\n\
    [keys.bench]\nlanguages = [\"python\", \"bash\"]\nconcurrent_runs = 1000\n\
    [keys.bench.limits]\nmemory_bytes = 1073741824\nprocesses = 256\n";
/// A program that writes while all of them read along.
const WRITER: &str = "for i in $(seq 20); do echo line $i; sleep 0.2; done";
const READ_LIMIT: Duration = Duration::from_secs(60);

/// What wrk says.
#[derive(Debug)]
struct Pressed {
    a_second: f64,
    p50: String,
    p99: String,
    errors: String,
}

pub(crate) fn web(args: &HttpArgs) -> Result<Passed> {
    prereqs::provide_these(&[WRK])?;
    let belljar = super::binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    more_descriptors()?;
    let options = ["--pool", "32", "--max-queue", "256", "--max-connections", "12000"];
    let server = Server::start(&belljar, &scratch.directory, "web", &options)?;
    let seconds = args.seconds.to_string();
    let health = press(&server, &["-t1", "-c32", &format!("-d{seconds}s")], "/healthz", None)?;
    let eight = ["-t1", "-c8", &format!("-d{seconds}s")];
    let script = script(&scratch, server.token())?;
    let runs = press(&server, &eight, RUNS, Some(&script))?;
    let (all_read, last) = streams(&server)?;
    let weights = IDLE.map(|many| idle(&server, many));
    drop(server);
    let ruled = ruled(&belljar, &scratch, &options, &eight)?;
    let [few, many] = weights;
    let (few, many) = (few?, many?);
    shell::say(format!(
        "/healthz        {:.0} a second, p50 {}, p99 {} {}",
        health.a_second, health.p50, health.p99, health.errors
    ));
    shell::say(format!(
        "warm runs       {:.0} a second by 8 clients, p50 {}, p99 {} {}",
        runs.a_second, runs.p50, runs.p99, runs.errors
    ));
    shell::say(format!(
        "  key, policy   {:.0} a second by 8 clients, p50 {}, p99 {} {}",
        ruled.a_second, ruled.p50, ruled.p99, ruled.errors
    ));
    shell::say(format!(
        "streams         {all_read} of {STREAMS} read to their end at once; the last {last:.2} s after the first"
    ));
    shell::say(format!(
        "connection      {few:.1} KiB each of {} idle ones, {many:.1} KiB of {}",
        IDLE[0], IDLE[1]
    ));
    if args.keep {
        let figures = json!({
            "healthz": { "a_second": health.a_second, "p50": health.p50, "p99": health.p99 },
            "warm_runs": { "a_second": runs.a_second, "p50": runs.p50, "p99": runs.p99, "clients": 8 },
            "streams": { "asked": STREAMS, "whole": all_read, "spread_s": last },
            "warm_runs_with_key_and_policy":
                { "a_second": ruled.a_second, "p50": ruled.p50, "p99": ruled.p99, "clients": 8 },
            "connection_kib": { "of_1000": few, "of_10000": many },
        });
        fs::write(shell::repo_root().join("bench-results/http.json"), format!("{figures:#}\n"))?;
    }
    Ok(if all_read == STREAMS { Passed::Yes } else { Passed::No })
}

/// As many descriptors as we may have: each connection is one here, and one in the server, which has our bound.
fn more_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < DESCRIPTORS) {
        let current = Some(maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS)));
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    }
    Ok(())
}

/// What wrk sends: one warm run after the other, for whoever has this key.
fn script(scratch: &Scratch, key: &str) -> Result<std::path::PathBuf> {
    let script = scratch.directory.join("run.lua");
    let header = format!("wrk.headers[\"Authorization\"] = \"Bearer {key}\"");
    fs::write(&script, format!("wrk.method = \"POST\"\nwrk.body = \"{CODE}\"\n{header}\n"))?;
    Ok(script)
}

/// The same runs with a key, under a policy.
fn ruled(
    belljar: &Path,
    scratch: &Scratch,
    options: &[&str],
    press_as: &[&str],
) -> Result<Pressed> {
    let policy = scratch.directory.join("policy.toml");
    fs::write(&policy, POLICY)?;
    let policy = policy.display().to_string();
    let options = [options, &["--policy", &policy]].concat();
    let server = Server::start(belljar, &scratch.directory, "ruled", &options)?;
    let mut make = shell::command(belljar);
    make.args(["key", "create", "bench", "--state"]).arg(scratch.directory.join("ruled"));
    let key = shell::output(&mut make)?;
    press(&server, press_as, RUNS, Some(&script(scratch, key.trim())?))
}

fn press(server: &Server, options: &[&str], path: &str, script: Option<&Path>) -> Result<Pressed> {
    let mut command = shell::command(WRK.1);
    command.args(options).arg("--latency");
    if let Some(script) = script {
        command.arg("-s").arg(script);
    }
    command.arg(format!("http://127.0.0.1:{}{path}", server.port()));
    let said = shell::output(&mut command)?;
    let after = |word: &str| {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(word));
        line.map(|rest| rest.trim().to_owned())
    };
    let a_second = after("Requests/sec:").and_then(|text| text.parse().ok());
    let errors = [after("Non-2xx"), after("Socket errors")].into_iter().flatten();
    Ok(Pressed {
        a_second: a_second.with_context(|| format!("wrk said no rate: {said}"))?,
        p50: after("50%").unwrap_or_default(),
        p99: after("99%").unwrap_or_default(),
        errors: errors.map(|one| format!("({one})")).collect(),
    })
}

fn connect(server: &Server) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_read_timeout(Some(READ_LIMIT))?;
    Ok(stream)
}

/// One program, and many who read along by its Idempotency-Key: how many read its end, and how far apart.
fn streams(server: &Server) -> Result<(usize, f64)> {
    let body = json!({ "language": "bash", "code": WRITER }).to_string();
    let head = format!(
        "POST {RUNS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nIdempotency-Key: bench\r\n\
         Accept: application/x-ndjson\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        server.token(),
        body.len()
    );
    let mut all = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let mut stream = connect(server)?;
        stream.write_all(head.as_bytes())?;
        all.push(stream);
    }
    let (mut whole, mut first) = (0, None::<Instant>);
    for mut stream in all {
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        first.get_or_insert_with(Instant::now);
        let text = String::from_utf8_lossy(&text);
        whole += usize::from(text.contains("line 20") && text.contains("\"type\":\"outcome\""));
    }
    Ok((whole, first.map_or(0.0, |first| first.elapsed().as_secs_f64())))
}

/// KiB by which the server grows for each connection that asks for nothing.
fn idle(server: &Server, many: usize) -> Result<f64> {
    let rss = || -> Result<u64> {
        Ok(memory::Share::read(server.pid()).context("the server's memory cannot be read")?.rss)
    };
    let before = rss()?;
    let mut held = Vec::with_capacity(many);
    for _ in 0..many {
        held.push(connect(server)?);
    }
    // The last of them was accepted when a later one is answered; it is made now, since one that says nothing is not
    // kept for long.
    let levels: Value = server.tcp()?.get("/v1/levels")?;
    ensure!(levels["levels"].is_array(), "no answer: {levels}");
    let after = rss()?;
    drop(held);
    let grown = u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX);
    Ok(f64::from(grown) / f64::from(u32::try_from(many)?))
}
