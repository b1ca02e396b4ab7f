//! `kill -9` at any moment: the chain holds, and nothing that was told is missing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use belljar_tests::{Program, Running};
use rustix::process::Signal;
use serde_json::Value;

use crate::{Place, id};

/// Moments at which an engine is killed.
const KILLS: u32 = 200;
/// And a run on its own, three at once.
const LONE_KILLS: u32 = 60;
/// Runs that an engine is given; it is killed long before it has done them all.
const RUNS: usize = 400;
/// The latest moment after the first answer.
const LATEST: Duration = Duration::from_millis(60);
/// The trail is verified after so many kills, and at the end.
const LOOK_EVERY: u32 = 20;

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn load(place: &Place) -> Running {
    let line =
        r#"{"language": "bash", "level": "none", "code": "echo $$", "labels": {"load": "yes"}}"#;
    let input = format!("{line}\n").repeat(RUNS);
    place.belljar().args(["batch", "-", "--quiet", "--parallel", "4"]).stdin(input).start()
}

/// The ids in whole lines: what was told.
fn told(output: &str) -> Vec<String> {
    let whole = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole
        .map(|line| {
            let outcome: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            id(&outcome).to_owned()
        })
        .collect()
}

#[test]
fn two_hundred_kills_lose_nothing_that_was_told() {
    let place = Place::new();
    let (mut dice, mut acknowledged) = (Dice(4), BTreeSet::new());
    for kill in 1..=KILLS {
        let mut load = load(&place);
        // Half of them before the first answer: while the trail is opened, a start is recorded, a run begins.
        let first = if kill % 2 == 0 { load.read_line() } else { String::new() };
        let latest = u64::try_from(LATEST.as_micros()).expect("short");
        let moment = Instant::now() + Duration::from_micros(dice.next(latest));
        while Instant::now() < moment {
            std::thread::park_timeout(moment.saturating_duration_since(Instant::now()));
        }
        load.signal(Signal::KILL);
        acknowledged.extend(told(&first));
        acknowledged.extend(told(&load.wait().out()));
        if kill % LOOK_EVERY == 0 {
            place.verified();
        }
    }
    assert!(acknowledged.len() > 100, "there was hardly any load: {}", acknowledged.len());
    // Another engine closes what the dead ones left.
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    let recorded = place.list(&["--label", "load=yes"]);
    let ended = recorded.iter().filter(|run| run["state"] == "ended");
    let ended: BTreeSet<String> = ended.map(|run| id(run).to_owned()).collect();
    let missing: Vec<_> = acknowledged.difference(&ended).collect();
    assert!(
        missing.is_empty(),
        "{} of {} are missing: {missing:?}",
        missing.len(),
        acknowledged.len()
    );
    assert_eq!(place.verified()["unfinished"], 0);
    let unfinished = recorded.iter().filter(|run| run["verdict"] == "unfinished").count();
    assert!(unfinished > 0, "no kill met a run");
}

/// The same for runs on their own, which add to the spool; now and then somebody looks and takes it over.
#[test]
fn kills_of_lone_runs_lose_nothing_that_was_told() {
    let place = Place::new();
    let (mut dice, mut acknowledged) = (Dice(5), BTreeSet::new());
    let arguments = ["run", "--json", "--level", "none", "-l", "bash", "-c", "echo $$"];
    acknowledged.insert(id(&place.belljar().args(arguments).run().json()).to_owned());
    for kill in 1..=LONE_KILLS {
        let all: Vec<Running> = (0..3).map(|_| place.belljar().args(arguments).start()).collect();
        let moment = Instant::now() + Duration::from_micros(dice.next(40_000));
        while Instant::now() < moment {
            std::thread::park_timeout(moment.saturating_duration_since(Instant::now()));
        }
        for one in all {
            one.signal(Signal::KILL);
            // Written at once when its end is recorded: whole, or not at all.
            if let Ok(outcome) = serde_json::from_str::<Value>(&one.wait().out()) {
                acknowledged.insert(id(&outcome).to_owned());
            }
        }
        if kill % 10 == 0 {
            place.verified();
        }
    }
    let recorded = place.list(&[]);
    let ended = recorded.iter().filter(|run| run["state"] == "ended");
    let ended: BTreeSet<String> = ended.map(|run| id(run).to_owned()).collect();
    let missing: Vec<_> = acknowledged.difference(&ended).collect();
    assert!(missing.is_empty(), "of {}: {missing:?}", acknowledged.len());
    assert_eq!(place.verified()["unfinished"], 0, "whoever looks closes them");
    let unfinished = recorded.iter().filter(|run| run["verdict"] == "unfinished").count();
    assert!(unfinished > 0 && acknowledged.len() > 5, "{unfinished} {}", acknowledged.len());
}

#[test]
fn killed_run_is_closed_as_unfinished_by_whoever_looks_next() {
    let place = Place::new();
    let code = "import time\nprint('up', flush=True)\ntime.sleep(90)";
    let mut running = place.belljar().args(["run", "-c", code]).start();
    assert_eq!(running.read_line(), "up\n");
    let runs = place.list(&[]);
    assert_eq!((runs.len(), &runs[0]["state"]), (1, &"running".into()));
    let of = id(&runs[0]).to_owned();
    // While its engine lives, nobody closes it.
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    assert_eq!(place.show(&of)["state"], "running");
    running.signal(Signal::KILL);
    running.wait();
    let closed = place.show(&of);
    assert_eq!(
        (&closed["state"], &closed["verdict"]),
        (&"unfinished".into(), &"unfinished".into())
    );
    let explained = place.belljar().args(["explain", &of]).run().out();
    assert!(explained.contains("the engine died before it could tell"), "{explained}");
    place.verified();
}

#[test]
fn interrupted_run_is_recorded_as_cancelled() {
    let place = Place::new();
    let code = "import time\nprint('up', flush=True)\ntime.sleep(90)";
    let mut running = place.belljar().args(["run", "-c", code]).start();
    assert_eq!(running.read_line(), "up\n");
    running.signal(Signal::INT);
    assert_eq!(running.wait().code, Some(130));
    assert_eq!(place.list(&["--verdict", "cancelled"]).len(), 1);
}

#[test]
fn many_processes_write_one_chain() {
    let place = Place::new();
    let (rounds, at_once) = (3, 12);
    for _ in 0..rounds {
        let all: Vec<Running> = (0..at_once)
            .map(|_| {
                place
                    .belljar()
                    .args(["run", "--level", "none", "-l", "bash", "-c", "echo hi"])
                    .start()
            })
            .collect();
        for one in all {
            let ended = one.wait();
            assert_eq!((ended.code, ended.out().as_str()), (Some(0), "hi\n"), "{ended:?}");
        }
    }
    assert_eq!(place.verified()["records"], rounds * at_once * 2);
}

#[test]
fn run_by_a_server_is_recorded_once_by_the_server() {
    let place = Place::new();
    let socket = place.directory().join("s");
    let serve = Program::new("/bin/sh")
        .args(["-c", "exec \"$@\" 2>&1", "sh"])
        .arg(belljar_tests::belljar_bin());
    let mut server = serve
        .args(["serve", "--listen", "none", "--pool", "0", "--socket"])
        .arg(&socket)
        .arg("--state")
        .arg(place.state())
        .start();
    while !server.read_line().contains("try: ") {}
    let ended = place
        .belljar()
        .env("BELLJAR_SOCKET", &socket)
        .args(["run", "--json", "-c", "print(1)"])
        .run();
    let runs = place.list(&[]);
    assert_eq!((runs.len(), id(&runs[0])), (1, id(&ended.json())));
    assert_eq!(
        (&runs[0]["peer"], &runs[0]["uid"]),
        (&"socket".into(), &rustix::process::geteuid().as_raw().into())
    );
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code, Some(0));
    place.verified();
}
