//! Egress processes that a server keeps ready: used once, looked at before they are given anything, missed by nobody.

use belljar::StartRequest;
use belljar_tests::{
    Layer, Running, Sandbox, Server, Start, TempDir, children, name_of, wait_for, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::Stopped;
use crate::rig::{Web, World, prints};

/// Prints the first status, then goes on asking for as long as it is let.
const FETCH: &str = "
import sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def get():
    try: return opener.open(sys.argv[1], timeout=60).status
    except OSError: return 0
print(get(), flush=True)
while len(sys.argv) > 2: get(); time.sleep(0.05)";

struct Place {
    #[expect(dead_code, reason = "held, not read: its name server ends with it")]
    world: World,
    web: Web,
    server: Server,
}

impl Place {
    /// A server whose operator has named a set of hosts, so that one is ready before anybody asks.
    fn new() -> Self {
        let (world, web) = (World::with(&["a.test"]), Web::start());
        let settings = world.settings(&world.rule(&["a.test"], &[web.port], ""));
        let variables = [("BELLJAR_CONFIG", settings.to_str().expect("UTF-8"))];
        let options = ["--warm", "python", "--pool-floor", "1", "--pool", "4"];
        let server = Server::started(TempDir::new(), &options, &variables);
        Self { world, web, server }
    }

    fn sandbox(&self) -> Sandbox {
        let url = format!("http://a.test:{}/", self.web.port);
        let sandbox = Sandbox::standard().through(&self.server, StartRequest::Warm);
        sandbox.with(["--egress", "@test", "--timeout", "100s"]).args([url])
    }

    /// One that goes on, and has been served.
    fn started(&self) -> Running {
        let mut running = self.sandbox().args(["on"]).start("python", FETCH);
        assert_eq!(running.read_line().trim(), "200");
        running
    }

    /// Those that are the server's own children: kept ready, or taken from there.
    fn exits(&self) -> Vec<u32> {
        let all = children(self.server.id());
        all.into_iter().filter(|pid| name_of(*pid).trim() == "belljar-egress").collect()
    }

    fn ready(&self) -> u32 {
        self.server.wait_until("one is ready", |stats| stats.exits > 0 && stats.exits_wanted == 0);
        // It takes its name when it starts.
        wait_for("it has its name", || self.exits().first().copied())
    }
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is ours to kill");
}

fn gone(pid: u32) {
    let path = format!("/proc/{pid}");
    wait_until("it is gone", || !std::path::Path::new(&path).exists());
}

#[test]
fn egress_process_that_was_kept_ready_serves_one_run_and_is_gone_with_it() {
    let place = Place::new();
    let first = place.ready();
    let running = place.started();
    let keepers = children(place.server.id());
    let own: Vec<u32> = keepers
        .into_iter()
        .flat_map(children)
        .filter(|pid| name_of(*pid).trim() == "belljar-egress")
        .collect();
    assert_eq!(own, Vec::<u32>::new(), "no keeper has started one of its own");
    assert!(place.exits().contains(&first));
    running.signal(Signal::TERM);
    running.wait();
    gone(first);
    // Another waits in its place, and the receipt says what was found of it.
    let second = place.ready();
    assert_ne!(first, second);
    let outcome = place.sandbox().run_python(FETCH);
    prints(&outcome, "200");
    assert_eq!(outcome.start, Start::Warm);
    let layer = outcome.receipt.layers.iter().find(|layer| layer.name == Layer::Egress);
    assert!(layer.is_some_and(|layer| layer.verified), "{outcome:#?}");
    let reached = outcome.reached.iter().map(|line| (line.host.as_str(), line.connections));
    assert_eq!(reached.collect::<Vec<_>>(), [("a.test", 1)]);
}

#[test]
fn egress_process_that_dies_while_it_waits_or_serves_is_missed_by_no_run() {
    let place = Place::new();
    kill(place.ready());
    prints(&place.sandbox().run_python(FETCH), "200");
    let running = place.started();
    // The one that serves, and those that wait.
    place.exits().into_iter().for_each(kill);
    let own = || children(place.server.id()).into_iter().flat_map(children);
    wait_until("its keeper has started another", || {
        own().any(|pid| name_of(pid).trim() == "belljar-egress")
    });
    let before = place.web.requests().len();
    wait_until("that one serves on", || place.web.requests().len() > before + 1);
    running.signal(Signal::TERM);
    running.wait();
    prints(&place.sandbox().run_python(FETCH), "200");
}

#[test]
fn egress_processes_are_gone_when_the_server_is_killed() {
    // One that waits for somebody, then one that serves.
    let place = Place::new();
    let waiting = place.ready();
    place.server.signal(Signal::KILL);
    gone(waiting);
    let place = Place::new();
    let (first, running) = (place.ready(), place.started());
    place.server.signal(Signal::KILL);
    gone(first);
    running.wait();
}

#[test]
fn egress_process_that_was_kept_ready_and_is_stopped_does_not_outlive_its_keeper() {
    let place = Place::new();
    let (first, running) = (place.ready(), place.started());
    let stopped = Stopped::new(first);
    // Whichever of them it was.
    let all = children(place.server.id()).into_iter();
    all.filter(|pid| name_of(*pid).trim() != "belljar-egress").for_each(kill);
    running.wait();
    wait_until("it is gone", || stopped.is_gone());
}
