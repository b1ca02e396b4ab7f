//! `cargo xtask bench overhead`: what a call that is allowed costs inside, against the same call outside.
//!
//! This very binary is the program that is measured: it is started in each contender, does each kind of
//! work for a while, and prints what one piece of it took. So nothing is counted but the work, not the
//! start of a sandbox nor of an interpreter.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use belljar_sys::seccomp::{Instruction, install};
use serde_json::{Value, json};

use super::contenders::reason;
use super::{Scratch, Targets, Times, binary, calm, keep, machine};
use crate::{OverheadArgs, Passed, WorkArgs, shell};

/// How long each kind of work is done in one round.
const SLICE: Duration = Duration::from_millis(150);
/// Pieces between two looks at the clock.
const BATCH: u32 = 16;
/// What is opened and read: in every root, and small.
const FILE: &str = "/usr/bin/true";
/// What we promise for work on files and processes at standard and strict.
const TARGET_RATIO: f64 = 1.03;

/// The kinds of work, as the figures name them.
const KINDS: [&str; 4] = ["getpid", "open_read_close", "fork_exec", "connect"];
/// Those that the promise is about.
const PROMISED: [&str; 2] = ["open_read_close", "fork_exec"];
const BARE: &str = "bare";
/// What no sandbox with a filter can fall below.
const FILTER: &str = "any filter";

/// Does the work and prints microseconds for one piece of each kind.
pub(crate) fn work(args: &WorkArgs) -> Result<Passed> {
    if args.filter {
        rustix::thread::set_no_new_privs(true)?;
        // BPF_RET | BPF_K of SECCOMP_RET_ALLOW.
        install(&[Instruction { code: 0x06, jump_true: 0, jump_false: 0, k: 0x7fff_0000 }])?;
    }
    let took = [
        piece(|| {
            std::hint::black_box(std::process::id());
            Ok(())
        })?,
        piece(|| {
            let mut bytes = [0; 4096];
            File::open(FILE)?.read_exact(&mut bytes)?;
            Ok(())
        })?,
        piece(|| {
            let status = shell::command("/bin/true").status()?;
            if status.success() { Ok(()) } else { bail!("/bin/true: {status}") }
        })?,
        connections()?,
    ];
    shell::say(took.map(|micros| format!("{micros:.4}")).join(" "));
    Ok(Passed::Yes)
}

fn connections() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    piece(|| {
        let client = TcpStream::connect(address)?;
        drop((client, listener.accept()?));
        Ok(())
    })
}

fn piece(mut one: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..BATCH {
        one()?;
    }
    let (begun, mut pieces) = (Instant::now(), 0);
    while begun.elapsed() < SLICE {
        for _ in 0..BATCH {
            one()?;
        }
        pieces += BATCH;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(pieces))
}

struct Contender {
    name: &'static str,
    words: Vec<OsString>,
    /// One list of times for each kind.
    times: Vec<Times>,
}

impl Contender {
    fn new(name: &'static str, words: &[&str]) -> Self {
        let times = KINDS.map(Times::of).into();
        Self { name, words: words.iter().map(Into::into).collect(), times }
    }

    /// One round: microseconds for one piece of each kind.
    fn round(&self) -> Result<Vec<f64>> {
        let told = shell::output(shell::command(&self.words[0]).args(&self.words[1..]))?;
        let figures: Vec<f64> =
            told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if figures.len() == KINDS.len() { Ok(figures) } else { bail!("{}: {told}", self.name) }
    }

    fn median(&self, kind: &str) -> f64 {
        let times = self.times.iter().find(|times| times.name == kind);
        times.map_or(f64::NAN, |times| times.percentile(50))
    }
}

pub(crate) fn overhead(args: &OverheadArgs) -> Result<Passed> {
    let belljar = binary(args.belljar.as_deref())?;
    let scratch = Scratch::make()?;
    let (mut present, absent) = gather(&belljar, &scratch.directory)?;
    for (name, why) in &absent {
        shell::say(format!("absent: {name}: {why}"));
    }
    calm();
    for _ in 0..args.rounds {
        for contender in &mut present {
            let figures = contender.round()?;
            for (times, figure) in contender.times.iter_mut().zip(figures) {
                times.sorted_ms.push(figure);
            }
        }
    }
    for times in present.iter_mut().flat_map(|one| &mut one.times) {
        times.sorted_ms.sort_by(f64::total_cmp);
    }
    table(&present);
    let targets = judge(&present);
    if args.keep {
        keep("overhead.json", &record(args, &present, &absent, &targets))?;
    }
    Ok(targets.passed())
}

type Absent = Vec<(&'static str, String)>;

fn gather(belljar: &Path, scratch: &Path) -> Result<(Vec<Contender>, Absent)> {
    let program = scratch.join("work");
    let own = std::env::current_exe().context("this binary has no path")?;
    std::fs::copy(own, &program).context("cannot copy this binary")?;
    let work = program.to_str().context("the scratch directory has no UTF-8 name")?;
    let belljar = belljar.to_str().context("the path of belljar is not UTF-8")?;
    let (inside, script) = (format!("{work}:work"), "cp work /tmp/w; chmod +x /tmp/w; /tmp/w work");
    let ours = |name, options: &[&str]| {
        let limits = ["--disk", "1g", "--file-size", "1g", "--memory", "2g", "--timeout", "100s"];
        let common = ["--cpu-time", "100s", "--cpus", "2", "--language", "bash", "--file", &inside];
        let words = [&[belljar, "run", "--no-server"], options, &limits, &common, &["-c", script]];
        Contender::new(name, &words.concat())
    };
    let mut present = Vec::new();
    for needed in [
        Contender::new(BARE, &[work, "work"]),
        Contender::new(FILTER, &[work, "work", "--filter"]),
        ours("standard", &["--level", "standard"]),
        ours("strict", &["--level", "strict"]),
        ours("standard, recorded", &["--level", "standard", "--record"]),
    ] {
        needed.round()?;
        present.push(needed);
    }
    let mut absent = Vec::new();
    let bwrap = super::contenders::bwrap(&["--ro-bind", work, "/tmp/w", "/tmp/w", "work"]);
    let bwrap = Contender { words: bwrap.words, ..Contender::new("bwrap", &[]) };
    let rootless: &[&str] = if shell::is_root() { &[] } else { &["--rootless"] };
    let runsc = [&["runsc"], rootless, &["--network=none", "do", work, "work"]].concat();
    for other in [bwrap, Contender::new("runsc", &runsc)] {
        match other.round() {
            Ok(_) => present.push(other),
            Err(error) => absent.push((other.name, reason(&error))),
        }
    }
    Ok((present, absent))
}

fn ratio(contender: &Contender, bare: &Contender, kind: &str) -> f64 {
    contender.median(kind) / bare.median(kind)
}

fn table(present: &[Contender]) {
    let Some(bare) = present.first() else { return };
    shell::say(format!(
        "\n{:<20}{}",
        "µs (× bare)",
        KINDS.map(|kind| format!("{kind:>24}")).concat()
    ));
    for one in present {
        let cell = |kind| format!("{:>15.3} ({:>5.2})", one.median(kind), ratio(one, bare, kind));
        shell::say(format!(
            "{:<20}{}",
            one.name,
            KINDS.map(|kind| format!("{:>24}", cell(kind))).concat()
        ));
    }
    shell::say("");
}

fn judge(present: &[Contender]) -> Targets {
    let mut targets = Targets::default();
    let Some(bare) = present.first() else { return targets };
    for level in ["standard", "strict"] {
        let Some(ours) = present.iter().find(|one| one.name == level) else { continue };
        for kind in PROMISED {
            let what = format!("{kind} at {level}, times bare");
            targets.at_most(&what, ratio(ours, bare, kind), TARGET_RATIO);
        }
    }
    targets
}

fn record(args: &OverheadArgs, present: &[Contender], absent: &Absent, targets: &Targets) -> Value {
    let bare = present.first();
    let contenders = present.iter().map(|one| {
        let kinds = KINDS.iter().map(|kind| {
            let times = bare.map_or(f64::NAN, |bare| ratio(one, bare, kind));
            ((*kind).to_owned(), json!({"p50_us": one.median(kind), "times_bare": times}))
        });
        json!({"name": one.name, "work": kinds.collect::<serde_json::Map<_, _>>()})
    });
    let absent = absent.iter().map(|(name, why)| json!({"name": name, "why": why}));
    json!({
        "bench": "overhead", "rounds": args.rounds, "machine": machine(),
        "contenders": contenders.collect::<Vec<_>>(), "absent": absent.collect::<Vec<_>>(),
        "targets": targets.record(),
    })
}
