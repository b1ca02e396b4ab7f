//! `cargo xtask bench egress`: what the way out costs. Throughput and time to the first byte through the egress process,
//! against plain loopback and against another's CONNECT proxy; and a warm run that has a way out against one without.
//!
//! As in `overhead` this very binary is the client that is measured, inside and outside alike, so that nothing is
//! compared but the way that bytes take.

mod far;
mod warm;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::contenders::reason;
use super::{Scratch, Targets, Times, binary, calm, keep, machine};
use crate::{EgressArgs, EgressWorkArgs, Passed, prereqs, shell};
use far::{Far, Proxy};

/// Connections whose first byte is waited for, and bytes that pass each way, in one round.
const CONNECTIONS: u32 = 200;
const BYTES: u64 = 512 << 20;
const CHUNK: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(60);
/// What we promise: either of these of throughput, milliseconds added to a connection, and how many times as long a
/// warm run takes.
const TARGET_GBIT: f64 = 5.0;
const TARGET_SHARE: f64 = 0.6;
const TARGET_ADDED_MS: f64 = 0.3;
const TARGET_WARM: f64 = 1.3;
const DIRECT: &str = "loopback";
const BY_NAME: &str = "egress";
const BY_CONNECT: &str = "egress, CONNECT";
const PEER: &str = "tinyproxy";
/// The name that the far side has inside.
const NAME: &str = "far.test";
/// The kinds of work, as the figures name them.
const KINDS: [&str; 4] = ["name_ms", "first_byte_ms", "received_gbit", "sent_gbit"];

/// The client: prints milliseconds to a name's answer and to a connection's first byte (medians), and gigabits in a
/// second each way.
pub(crate) fn work(args: &EgressWorkArgs) -> Result<Passed> {
    let dialled = args.proxy.as_deref().unwrap_or(&args.target);
    let dial = |at| dial(at, &args.target, args.proxy.is_some());
    let (mut names, mut waits) = (Times::of("name"), Times::of("first byte"));
    for round in 0..CONNECTIONS + CONNECTIONS / 10 {
        let begun = Instant::now();
        let at = address(dialled)?;
        let known = begun.elapsed();
        let begun = Instant::now();
        let mut stream = dial(at)?;
        stream.write_all(far::ECHO)?;
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        if round >= CONNECTIONS / 10 {
            waits.sorted_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            names.sorted_ms.push(known.as_secs_f64() * 1e3);
        }
    }
    for times in [&mut names, &mut waits] {
        times.sorted_ms.sort_by(f64::total_cmp);
    }
    let at = address(dialled)?;
    let (received, sent) = (receive(dial(at)?)?, send(dial(at)?)?);
    let (name, first) = (names.percentile(50), waits.percentile(50));
    shell::say(format!("{name:.5} {first:.5} {received:.4} {sent:.4}"));
    Ok(Passed::Yes)
}

fn address(of: &str) -> Result<SocketAddr> {
    let mut found = of.to_socket_addrs().with_context(|| format!("cannot resolve {of}"))?;
    found.next().with_context(|| format!("{of} has no address"))
}

fn dial(at: SocketAddr, target: &str, by_proxy: bool) -> Result<TcpStream> {
    let mut stream =
        TcpStream::connect(at).with_context(|| format!("cannot connect to {target}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    if by_proxy {
        write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            answer.extend(byte);
            ensure!(answer.len() < 4096, "the proxy's answer does not end");
        }
        let told = String::from_utf8_lossy(&answer);
        ensure!(told.split_whitespace().nth(1) == Some("200"), "the proxy says: {told}");
    }
    Ok(stream)
}

fn receive(mut stream: TcpStream) -> Result<f64> {
    stream.write_all(far::RECEIVE)?;
    let (mut bytes, mut left) = (vec![0; CHUNK], BYTES);
    let begun = Instant::now();
    while left > 0 {
        let length = stream.read(&mut bytes)?;
        ensure!(length > 0, "the far side ended early");
        left = left.saturating_sub(u64::try_from(length)?);
    }
    Ok(gbit(begun.elapsed()))
}

fn send(mut stream: TcpStream) -> Result<f64> {
    stream.write_all(far::SEND)?;
    let bytes = vec![7; CHUNK];
    let begun = Instant::now();
    for _ in 0..BYTES / u64::try_from(CHUNK)? {
        stream.write_all(&bytes)?;
    }
    // The far side says when it has all of it.
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    Ok(gbit(begun.elapsed()))
}

fn gbit(took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let bits = (BYTES * 8) as f64;
    bits / took.as_secs_f64() / 1e9
}

/// One way from the client to the far side.
struct Contender {
    name: &'static str,
    words: Vec<OsString>,
    settings: PathBuf,
    /// One list for each kind.
    figures: Vec<Times>,
}

impl Contender {
    fn new(name: &'static str, settings: &Path, words: &[&str]) -> Self {
        let words = words.iter().map(Into::into).collect();
        Self { name, words, settings: settings.to_owned(), figures: KINDS.map(Times::of).into() }
    }

    fn round(&self) -> Result<Vec<f64>> {
        let mut command = shell::command(&self.words[0]);
        command.args(&self.words[1..]).env("BELLJAR_CONFIG", &self.settings);
        let told = shell::output(&mut command)?;
        let figures: Vec<f64> =
            told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if figures.len() == KINDS.len() { Ok(figures) } else { bail!("{}: {told}", self.name) }
    }

    fn median(&self, kind: &str) -> f64 {
        let times = self.figures.iter().find(|times| times.name == kind);
        times.map_or(f64::NAN, |times| times.percentile(50))
    }
}

pub(crate) fn egress(args: &EgressArgs) -> Result<Passed> {
    if shell::is_root() {
        prereqs::install_what_can_be(&[(PEER, "/usr/bin/tinyproxy")]);
    }
    let belljar = binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let far = Far::start()?;
    let settings = far.settings(&scratch.directory)?;
    let proxy = Proxy::start(&scratch.directory);
    let (mut present, absent) = gather(&belljar, &scratch.directory, &settings, &far, &proxy)?;
    absent.iter().for_each(|(name, why)| shell::say(format!("absent: {name}: {why}")));
    calm();
    for _ in 0..args.rounds {
        for contender in &mut present {
            let round = contender.round()?;
            for (times, figure) in contender.figures.iter_mut().zip(round) {
                times.sorted_ms.push(figure);
            }
        }
    }
    for times in present.iter_mut().flat_map(|one| &mut one.figures) {
        times.sorted_ms.sort_by(f64::total_cmp);
    }
    table(&present);
    let warm = warm::measure(&belljar, &scratch.directory, &settings, args.runs)?;
    super::table_of(&warm, "warm run, ms");
    let targets = judge(&present, &warm);
    if args.keep {
        keep("egress.json", &record(args, &present, &absent, &warm, &targets))?;
    }
    Ok(targets.passed())
}

type Absent = Vec<(&'static str, String)>;

fn gather(
    belljar: &Path,
    scratch: &Path,
    settings: &Path,
    far: &Far,
    proxy: &Result<Proxy>,
) -> Result<(Vec<Contender>, Absent)> {
    let program = scratch.join("work");
    let own = std::env::current_exe().context("this binary has no path")?;
    std::fs::copy(own, &program).context("cannot copy this binary")?;
    let work = program.to_str().context("the scratch directory has no UTF-8 name")?;
    let belljar = belljar.to_str().context("the path of belljar is not UTF-8")?;
    let (port, inside) = (far.port, format!("{work}:work"));
    let (here, there) = (format!("127.0.0.1:{port}"), format!("{NAME}:{port}"));
    let ours = |name, more: &str| {
        let script = format!("cp work /tmp/w; chmod +x /tmp/w; /tmp/w egress-work {there}{more}");
        let limits = ["--disk", "1g", "--file-size", "1g", "--memory", "2g", "--timeout", "100s"];
        let common = ["--cpu-time", "100s", "--cpus", "2", "--language", "bash", "--file", &inside];
        let words = [
            &[belljar, "run", "--no-server", "--egress", "@bench"][..],
            &limits,
            &common,
            &["-c", &script],
        ];
        Contender::new(name, settings, &words.concat())
    };
    let present = vec![
        Contender::new(DIRECT, settings, &[work, "egress-work", &here]),
        ours(BY_NAME, ""),
        ours(BY_CONNECT, " --proxy 198.18.0.1:3128"),
    ];
    for needed in &present {
        needed.round()?;
    }
    let by_proxy = |proxy: &Proxy| {
        let at = format!("127.0.0.1:{}", proxy.port);
        let words = [work, "egress-work", &here, "--proxy", &at];
        let contender = Contender::new(PEER, settings, &words);
        contender.round().map(|_| contender)
    };
    match proxy.as_ref().map_err(reason).and_then(|one| by_proxy(one).map_err(|e| reason(&e))) {
        Ok(contender) => Ok((present.into_iter().chain([contender]).collect(), Vec::new())),
        Err(why) => Ok((present, vec![(PEER, why)])),
    }
}

fn table(present: &[Contender]) {
    shell::say(format!("{:<18}{}", "p50", KINDS.map(|kind| format!("{kind:>16}")).concat()));
    for one in present {
        let cells = KINDS.map(|kind| format!("{:>16.3}", one.median(kind)));
        shell::say(format!("{:<18}{}", one.name, cells.concat()));
    }
}

fn judge(present: &[Contender], warm: &[Times]) -> Targets {
    let mut targets = Targets::default();
    let find = |name| present.iter().find(|one| one.name == name);
    if let (Some(direct), Some(ours)) = (find(DIRECT), find(BY_NAME)) {
        for kind in &KINDS[2..] {
            let (found, plain) = (ours.median(kind), direct.median(kind));
            if found >= TARGET_GBIT {
                targets.at_least(&format!("{kind} through egress"), found, TARGET_GBIT);
            } else {
                targets.at_least(&format!("{kind}, of loopback's"), found / plain, TARGET_SHARE);
            }
        }
        let added = ours.median(KINDS[1]) - direct.median(KINDS[1]);
        targets.at_most("ms added to a connection's first byte", added, TARGET_ADDED_MS);
    }
    if let [without, with] = warm {
        let ratio = with.percentile(50) / without.percentile(50);
        targets.at_most("warm p50 with a way out, times without", ratio, TARGET_WARM);
    }
    targets
}

fn record(
    args: &EgressArgs,
    present: &[Contender],
    absent: &Absent,
    warm: &[Times],
    targets: &Targets,
) -> Value {
    let contenders = present.iter().map(|one| {
        let figures = KINDS.iter().map(|kind| ((*kind).to_owned(), json!(one.median(kind))));
        json!({"name": one.name, "p50": figures.collect::<serde_json::Map<_, _>>()})
    });
    let absent = absent.iter().map(|(name, why)| json!({"name": name, "why": why}));
    let warm = warm.iter().map(|one| {
        let at = |percent| one.percentile(percent);
        json!({"name": one.name, "p50_ms": at(50), "p90_ms": at(90), "p99_ms": at(99)})
    });
    json!({
        "bench": "egress", "machine": machine(), "rounds": args.rounds, "runs": args.runs,
        "connections": CONNECTIONS, "bytes": BYTES, "contenders": contenders.collect::<Vec<_>>(),
        "absent": absent.collect::<Vec<_>>(), "warm": warm.collect::<Vec<_>>(),
        "targets": targets.record(),
    })
}
