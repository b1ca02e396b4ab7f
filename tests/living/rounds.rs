//! Rounds of `kill -9` at random moments under mixed load, each followed by a look at everything that must hold.
//!
//! A round goes on in a process of its own, which takes in whatever loses its parent: so every process that was ever
//! started here is known, and none can hide.
#![allow(
    clippy::print_stderr,
    reason = "shown of a test that failed, so that it can be done again"
)]

#[path = "rounds/check.rs"]
mod check;
#[path = "rounds/load.rs"]
mod load;
#[path = "rounds/wire.rs"]
mod wire;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use belljar_tests::{Program, Running, TempDir, children, name_of, wait_until};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

use load::Client;
use wire::Server;

const NAME: &str = "rounds::fifty_rounds_of_kill_9_under_load_lose_nothing_and_leave_nothing";
/// Set for the process that does the rounds.
const SEED: &str = "BELLJAR_ROUNDS_SEED";
/// In each of two processes.
const ROUNDS: usize = 25;
const CLIENTS: [&str; 3] = ["ada", "bob", "cleo"];
/// So many requests at most are answered before something is killed, and then up to so much time passes.
const MOST_ANSWERS: usize = 24;
const MOMENT_MS: usize = 40;
/// Where the server still stands, the load goes on for so many more.
const MORE_ANSWERS: usize = 6;
/// A round in which nothing comes to an end goes on after this all the same.
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn fifty_rounds_of_kill_9_under_load_lose_nothing_and_leave_nothing() {
    if let Ok(seed) = std::env::var(SEED) {
        return rounds(seed.parse().expect("a number"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos();
    let mut chance = Chance(u64::try_from(now & u128::from(u64::MAX)).expect("64 bits"));
    let own = std::env::current_exe().expect("our own name");
    let begun: Vec<_> = [chance.next(), chance.next()]
        .map(|seed| {
            let rounds = Program::new(&own)
                .args([NAME, "--exact", "--nocapture"])
                .env(SEED, seed.to_string());
            (seed, rounds.start())
        })
        .into();
    // All of them to their ends: one that is killed leaves its server, and its sandboxes.
    let ended: Vec<_> = begun.into_iter().map(|(seed, rounds)| (seed, rounds.wait())).collect();
    for (seed, ended) in ended {
        assert_eq!(ended.code, Some(0), "{SEED}={seed}: {ended:?}");
    }
}

/// Half of them, in the process that the test starts, or by hand with a seed that failed.
fn rounds(seed: u64) {
    set_child_subreaper(Some(rustix::process::getpid())).expect("we take orphans in");
    let mut chance = Chance(seed);
    let mut field = Field::new();
    let mut clients: Vec<_> =
        CLIENTS.iter().map(|name| Client::new(name, Chance(chance.next()))).collect();
    for number in 0..ROUNDS {
        let killed = field.round(&mut clients, &mut chance);
        eprintln!("round {number}: {killed:?} after {} requests", count(&clients));
        for client in &mut clients {
            eprintln!("  {}: {:?}", client.name, client.told.last());
        }
        field.check(&mut clients, &killed);
    }
    field.check_points(&clients);
    field.finish();
}

fn count(clients: &[Client]) -> usize {
    clients.iter().map(|client| client.told.len()).sum()
}

/// Numbers that follow from a seed.
#[derive(Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(most).expect("a number")).expect("small")
    }
}

/// What was killed in a round.
#[derive(Debug, Default)]
struct Killed {
    server: bool,
    /// Names of sandboxes whose keepers were.
    keepers: BTreeSet<String>,
}

/// What the clients of a round must know.
#[derive(Debug, Default)]
struct Round {
    over: AtomicBool,
    /// Requests that were answered.
    answers: AtomicUsize,
    killed: Mutex<Killed>,
}

impl Round {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn await_answers(&self, wanted: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.answers.load(Ordering::SeqCst) < wanted && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }

    /// A sandbox whose keeper was killed has another name from now on.
    fn renamed(&self, touches: &[String]) {
        let mut killed = self.killed.lock().expect("nobody panics with it");
        if touches.iter().any(|name| killed.keepers.contains(name)) {
            killed.keepers.extend(touches.iter().cloned());
        }
    }

    /// Whether a request that touches these may fail.
    fn excuses(&self, names: &[String]) -> bool {
        let killed = self.killed.lock().expect("nobody panics with it");
        killed.server || names.iter().any(|name| killed.keepers.contains(name))
    }
}

/// The state directory, and the server in it.
struct Field {
    directory: TempDir,
    server: Option<Running>,
    /// Every sandbox that was ever there.
    ids: BTreeSet<String>,
}

impl Field {
    fn new() -> Self {
        let mut field = Self { directory: TempDir::new(), server: None, ids: BTreeSet::new() };
        field.serve();
        field
    }

    fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    fn wire(&self) -> Server {
        Server { socket: self.directory.join("socket") }
    }

    /// Starts the server, unless it stands, and waits until it has taken the sandboxes over.
    fn serve(&mut self) {
        if self.server.is_some() {
            return;
        }
        let socket = self.directory.join("socket");
        let program = Program::belljar().env("BELLJAR_STATE", self.state());
        let program = program.args(["serve", "--listen", "none", "--pool", "0", "--socket"]);
        let server = program.arg(&socket).arg("--state").arg(self.state()).start();
        wait_until("the server listens", || {
            assert!(server.is_running(), "the server does not start");
            self.wire().ask("GET", "/v1/sandboxes", b"").is_ok_and(|answer| answer.is_ok())
        });
        self.server = Some(server);
    }

    /// Load, and in the middle of it the end of something.
    fn round(&mut self, clients: &mut [Client], chance: &mut Chance) -> Killed {
        let (round, wire) = (Round::default(), self.wire());
        let (answers, moment) = (chance.below(MOST_ANSWERS), chance.below(MOMENT_MS));
        let kind = chance.below(4);
        std::thread::scope(|scope| {
            for client in &mut *clients {
                let (wire, round) = (&wire, &round);
                scope.spawn(move || client.work(wire, round));
            }
            round.await_answers(answers);
            crate::rig::pause(Duration::from_millis(moment as u64));
            // Two of four kill the server, one a keeper, one both.
            if kind >= 2 {
                self.kill_a_keeper(&round, chance);
            }
            if kind != 2 {
                self.kill_server(&round);
            } else {
                let more = round.answers.load(Ordering::SeqCst) + chance.below(MORE_ANSWERS);
                round.await_answers(more);
            }
            round.over.store(true, Ordering::SeqCst);
        });
        self.ids.extend(entries(&self.state().join("sandboxes")));
        round.killed.into_inner().expect("nobody panicked")
    }

    fn kill_server(&mut self, round: &Round) {
        round.killed.lock().expect("nobody panics with it").server = true;
        let server = self.server.take().expect("it runs");
        server.signal(Signal::KILL);
        server.wait();
    }

    /// Kills one that stands now, if one does.
    fn kill_a_keeper(&self, round: &Round, chance: &mut Chance) {
        let sandboxes = self.state().join("sandboxes");
        let ids = entries(&sandboxes);
        let mut standing: Vec<_> =
            ids.iter().filter_map(|id| Some((id, keeper_of(&sandboxes.join(id))?))).collect();
        if standing.is_empty() {
            return;
        }
        let (id, keeper) = standing.swap_remove(chance.below(standing.len()));
        let named = || {
            let record = std::fs::read(sandboxes.join(id).join("record.json")).unwrap_or_default();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap_or_default();
            let name = record["name"].as_str().map(ToOwned::to_owned);
            let mut killed = round.killed.lock().expect("nobody panics with it");
            killed.keepers.extend(name);
        };
        named();
        // It may have ended by itself just now.
        kill_process(keeper, Signal::KILL).ok();
        named(); // it may have another name by now
    }

    /// Reaps what died as ours, and gives the rest.
    fn orphans(&self) -> Vec<u32> {
        let server = self.server.as_ref().map(Running::id);
        let others = children(std::process::id()).into_iter().filter(|pid| Some(*pid) != server);
        let lives = |pid: &u32| {
            let pid = Pid::from_raw(pid.cast_signed());
            matches!(waitpid(pid, WaitOptions::NOHANG), Ok(None))
        };
        others.filter(lives).collect()
    }

    /// Removes everything, and looks that nothing is left.
    fn finish(mut self) {
        let wire = self.wire();
        let all = wire.must("GET", "/v1/sandboxes", b"").json();
        for one in all["sandboxes"].as_array().expect("a list") {
            let name = one["name"].as_str().expect("a name");
            wire.must("DELETE", &load::at(name, "?force=true"), b"");
        }
        self.check_leftovers();
        assert_eq!(entries(&self.state().join("disks")), BTreeSet::new());
        let server = self.server.take().expect("it runs");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code, Some(0));
        assert_eq!(self.orphans(), [] as [u32; 0]);
    }
}

impl Drop for Field {
    /// A test that failed leaves no sandbox behind.
    fn drop(&mut self) {
        for pid in self.orphans() {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}

/// Names in a directory that are not ours alone.
fn entries(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "lock").collect()
}

/// Who listens in a sandbox's directory.
pub(crate) fn keeper_of(directory: &Path) -> Option<Pid> {
    let name = SocketAddrUnix::new(directory.join("keeper.sock")).expect("a short path");
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    connect(&socket, &name).ok()?;
    let keeper = rustix::net::sockopt::socket_peercred(&socket).expect("a peer").pid;
    assert_eq!(name_of(keeper.as_raw_nonzero().get().cast_unsigned()), "belljar-keeper");
    Some(keeper)
}
