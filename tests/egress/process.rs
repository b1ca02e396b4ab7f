//! The egress process itself: confined, and started again when it is killed.

use std::os::fd::OwnedFd;

use belljar_tests::{Sandbox, TempDir, is_root, wait_for, wait_until};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::rig::{Web, World, egress_of};

/// Asks once, and then waits for a file.
const WAIT: &str = "
import os, sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=20).status, flush=True)
while not os.path.exists('go'): time.sleep(0.02)";

pub(crate) fn status(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.trim_start_matches(':').trim().to_owned()
}

/// A run that has been served, with the directory in which it waits for `go`.
fn started(world: &World, web: &Web) -> (belljar_tests::Running, TempDir) {
    let workspace = TempDir::new();
    let shared = workspace.path().display().to_string();
    let sandbox: Sandbox = world.sandbox(&["a.test"], &[web.port]);
    let sandbox = sandbox.with(["--timeout", "100s", "--workspace", &shared]);
    let mut running = sandbox.args([format!("http://a.test:{}/", web.port)]).start("python", WAIT);
    assert_eq!(running.read_line().trim(), "200");
    (running, workspace)
}

#[test]
fn egress_process_has_no_privileges_no_files_and_a_filter() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let (running, _workspace) = started(&world, &web);
    let egress = wait_for("the egress process", || egress_of(running.id()));
    assert_eq!(status(egress, "NoNewPrivs"), "1");
    assert_eq!(status(egress, "Seccomp"), "2");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let bits = status(egress, set);
        assert!(
            bits.bytes().all(|one| one == b'0') || set == "CapBnd" && !is_root(),
            "{set} {bits}"
        );
    }
    let limits = std::fs::read_to_string(format!("/proc/{egress}/limits")).unwrap_or_default();
    let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap_or_default();
    let own = 512 << 20;
    let bytes: Vec<&str> = data.split_whitespace().skip(3).take(2).collect();
    assert_eq!(bytes, [own.to_string(), own.to_string()], "{limits}");
    let uid: u32 = status(egress, "Uid")
        .split_whitespace()
        .next()
        .and_then(|one| one.parse().ok())
        .expect("a uid");
    let own = rustix::process::getuid().as_raw();
    assert!(if is_root() { uid > 0x7000_0000 } else { uid == own }, "{uid}");
    running.signal(Signal::TERM);
    running.wait();
    wait_until("it is gone", || !std::path::Path::new(&format!("/proc/{egress}")).exists());
}

#[test]
fn killed_egress_process_fails_closed_and_another_takes_its_place() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let code = "
import sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def get():
    try: return opener.open(sys.argv[1], timeout=20).status
    except Exception: return 0
print(get(), flush=True)
end = time.time() + 60
while time.time() < end:
    if get() == 200: print('again', flush=True)
    time.sleep(0.05)";
    let sandbox = world.sandbox(&["a.test"], &[web.port]).with(["--timeout", "60s"]);
    let mut running = sandbox.args([format!("http://a.test:{}/", web.port)]).start("python", code);
    assert_eq!(running.read_line().trim(), "200");
    let first = wait_for("the egress process", || egress_of(running.id()));
    let pid = Pid::from_raw(first.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is ours to kill");
    let second =
        wait_for("the egress process", || egress_of(running.id()).filter(|pid| *pid != first));
    assert_ne!(first, second);
    let before = web.requests().len();
    wait_until("the second one serves", || web.requests().len() > before + 1);
    running.signal(Signal::TERM);
    running.wait();
}

/// Ends a process that should have ended by itself, also when its test has failed.
pub(crate) struct Stopped {
    pid: u32,
    pidfd: OwnedFd,
}

impl Stopped {
    /// Stops it: it hears nothing any more, and dies of a signal alone.
    pub(crate) fn new(pid: u32) -> Self {
        let raw = Pid::from_raw(pid.cast_signed()).expect("a process");
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).expect("it lives");
        kill_process(raw, Signal::STOP).expect("it is ours to stop");
        wait_until("it is stopped", || status(pid, "State").starts_with('T'));
        Self { pid, pidfd }
    }

    pub(crate) fn is_gone(&self) -> bool {
        !std::path::Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        pidfd_send_signal(&self.pidfd, Signal::KILL).ok();
    }
}

#[test]
fn egress_process_that_is_stopped_does_not_outlive_its_keeper() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let (running, _workspace) = started(&world, &web);
    let egress = wait_for("the egress process", || egress_of(running.id()));
    let keeper: i32 = status(egress, "PPid").parse().expect("a parent");
    let stopped = Stopped::new(egress);
    kill_process(Pid::from_raw(keeper).expect("a process"), Signal::KILL).expect("it is ours");
    running.wait();
    wait_until("it is gone", || stopped.is_gone());
}

#[test]
fn run_ends_in_time_though_its_egress_process_is_stopped() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let (running, workspace) = started(&world, &web);
    let stopped = Stopped::new(wait_for("the egress process", || egress_of(running.id())));
    let began = std::time::Instant::now();
    workspace.file("go", "");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    wait_until("it is gone", || stopped.is_gone());
}

#[test]
fn nothing_is_left_when_the_keeper_is_killed() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    let (running, _workspace) = started(&world, &web);
    let egress = wait_for("the egress process", || egress_of(running.id()));
    running.signal(Signal::KILL);
    running.wait();
    wait_until("it is gone", || !std::path::Path::new(&format!("/proc/{egress}")).exists());
}
