//! Sandboxes that stay: what they may reach is changed while they live, and told.

use belljar_tests::{Ended, Program, Running, TempDir, wait_for};
use serde_json::Value;

use crate::rig::{Web, World, echo, egress_in};

/// `belljar sandbox` in a state directory of its own; the sandbox is gone with it.
pub(crate) struct Place<'a> {
    world: &'a World,
    state: TempDir,
}

impl Place<'_> {
    pub(crate) fn new(world: &World) -> Place<'_> {
        Place { world, state: TempDir::new() }
    }

    pub(crate) fn belljar(&self, words: &[&str]) -> Program {
        Program::belljar()
            .args(words)
            .arg("--state")
            .arg(self.state.join("state"))
            .env("BELLJAR_CONFIG", self.world.directory.join("belljar.toml"))
            .env("XDG_RUNTIME_DIR", self.state.join("run"))
    }

    pub(crate) fn done(&self, words: &[&str]) -> Ended {
        let ended = self.belljar(words).run();
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        ended
    }

    pub(crate) fn exec(&self, script: &str) -> String {
        let ended = self.belljar(&["sandbox", "shell", "box", "-c", script]).run();
        ended.out().trim().to_owned()
    }

    pub(crate) fn explain(&self) -> Value {
        self.done(&["net", "explain", "box", "--json"]).json()
    }

    /// Starts a program of Python's, with these words, that says `open` first.
    pub(crate) fn open(&self, code: &str, words: &[String]) -> Running {
        let exec = ["sandbox", "exec", "box", "--", "/usr/bin/python3", "-c", code];
        let program = Program::belljar().args(&exec[..3]).arg("--state");
        let program = program.arg(self.state.join("state")).args(&exec[3..]).args(words);
        let mut running = program.env("XDG_RUNTIME_DIR", self.state.join("run")).start();
        assert_eq!(running.read_line().trim(), "open");
        running
    }

    /// Its egress process.
    pub(crate) fn egress(&self) -> u32 {
        let info = self.done(&["sandbox", "info", "box", "--json"]).json();
        let id = info["id"].as_str().expect("an id");
        egress_in(&self.state.join("state/sandboxes").join(id))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.belljar(&["sandbox", "rm", "--force", "box"]).run();
    }
}

#[test]
fn living_sandbox_is_widened_and_tightened_at_once_on_open_connections_too() {
    let (world, web) = (World::with(&["a.test", "b.test"]), Web::start());
    let raw = echo(b"");
    world.settings(&world.rule(&["a.test"], &[web.port, raw], ""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box"]);
    let get = format!(
        "curl -s -m 10 --noproxy '*' -o /dev/null -w '%{{http_code}}' http://a.test:{}/",
        web.port
    );
    assert_eq!(place.exec(&get), "000", "nothing may be reached at first");
    place.done(&["sandbox", "egress", "box", "@test"]);
    assert_eq!(place.exec(&get), "200");
    // One connection that is open when the policy is tightened.
    let hold = format!(
        "
import socket
s = socket.create_connection(('a.test', {raw}), 20); s.settimeout(100)
s.sendall(b'x'); s.recv(1); print('open', flush=True)
try: print('cut' if not s.recv(1) else 'alive')
except OSError: print('cut')"
    );
    let mut held = place
        .belljar(&["sandbox", "exec", "box"])
        .args(["--", "/usr/bin/python3", "-c", &hold])
        .start();
    assert_eq!(held.read_line().trim(), "open");
    place.done(&["sandbox", "egress", "box"]);
    assert_eq!(held.read_line().trim(), "cut");
    assert_eq!(place.exec(&get), "000");
    // What is refused is told soon, not at once.
    let told = wait_for("the refusal", || {
        let told = place.explain();
        let refused = told["refused"].as_array().expect("refusals").clone();
        refused.iter().any(|event| event["fix"] == "--egress a.test").then_some(told)
    });
    let all = told["refused"].as_array().expect("refusals").clone();
    let by = all.iter().find(|event| event["fix"] == "--egress a.test").map(|one| &one["process"]);
    assert!(
        by.and_then(|one| one["command"].as_str()).is_some_and(|it| it.starts_with("curl ")),
        "{told}"
    );
    assert!(told["egress"].as_array().is_some_and(Vec::is_empty), "{told}");
    let reached = told["reached"].as_array().expect("a ledger").clone();
    assert!(reached.iter().any(|line| line["host"] == "a.test" && line["port"] == raw), "{told}");
    let refused = told["refused"].as_array().expect("refusals").clone();
    assert!(refused.iter().any(|event| event["rule"] == "egress/tightened"), "{told}");
}

#[test]
fn what_may_be_reached_is_kept_over_a_restart() {
    let (world, web) = (World::with(&["a.test"]), Web::start());
    world.settings(&world.rule(&["a.test"], &[web.port], ""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    let get = format!("curl -s -m 10 -o /dev/null -w '%{{http_code}}' http://a.test:{}/", web.port);
    assert_eq!(place.exec(&get), "200");
    place.done(&["sandbox", "stop", "box"]);
    place.done(&["sandbox", "start", "box"]);
    assert_eq!(place.exec(&get), "200");
    let info = place.done(&["sandbox", "info", "box", "--json"]).json();
    let layers = info["receipt"]["layers"].as_array().expect("layers").clone();
    assert!(
        layers.iter().any(|layer| layer["name"] == "egress" && layer["verified"] == true),
        "{info}"
    );
}

#[test]
fn refusal_that_is_repeated_keeps_the_program_that_was_refused_first() {
    let world = World::with(&["a.test"]);
    world.settings(&world.rule(&["a.test"], &[443], ""));
    let place = Place::new(&world);
    place.done(&["sandbox", "create", "box", "--egress", "@test"]);
    let ask = |least: u64| {
        place.exec("curl -s -m 30 --noproxy '*' https://b.test/");
        wait_for("the refusal", || {
            let told = place.explain();
            let refused = told["refused"].as_array().expect("refusals").clone();
            refused.into_iter().find(|event| event["count"].as_u64() > Some(least))
        })
    };
    let first = ask(0);
    let again = ask(first["count"].as_u64().expect("a count"));
    let by = |event: &Value| event["process"]["command"].as_str().unwrap_or_default().to_owned();
    assert!(by(&first).starts_with("curl ") && by(&again) == by(&first), "{first} {again}");
}
