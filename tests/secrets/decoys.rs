//! Decoys of sandboxes that stay: made up with them, looked for in all that their programs say and send, and kept.

use belljar_tests::{Program, Server, TempDir, wait_for};
use serde_json::Value;

use crate::Host;
use crate::hall::Hall;
use crate::placeholders::{ASK, Stays};
use crate::rig::Web;

const BAIT: &str = "bait=canary:BAIT";

/// Says the decoy in every way that is looked for, once on one stream and three times on the other.
const SPILL: &str = "
import base64, os, sys
bait = os.environ['BAIT']
print('it is', bait, file=sys.stderr)
print(base64.b64encode(b'x' + bait.encode()).decode(), bait.encode().hex())
for letter in bait: print(letter, end='', flush=True)
";

/// The decoys that were told of in a list of execs, each with how often.
fn told(execs: &Value) -> Vec<(String, u64)> {
    let execs = execs["execs"].as_array().expect("execs");
    let events =
        execs.iter().flat_map(|exec| exec["events"].as_array().cloned().unwrap_or_default());
    let found = events.filter(|event| event["rule"] == "pattern/canary").map(|event| {
        assert_eq!(event["severity"], "critical", "{event}");
        let detail = event["detail"].as_str().unwrap_or_default().to_owned();
        (detail, event["count"].as_u64().unwrap_or(0))
    });
    found.collect()
}

fn wanted(stdout: u64, stderr: u64) -> Vec<(String, u64)> {
    let mut all = vec![
        ("canary 1 appeared in standard error".to_owned(), stderr),
        ("canary 1 appeared in standard output".to_owned(), stdout),
    ];
    all.retain(|(_, count)| *count > 0);
    all
}

/// A host with a sandbox `box`, removed with the test.
struct Kept(Host);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.belljar().args(["sandbox", "rm", "--force", "box"]).run();
    }
}

impl Kept {
    fn exec(&self, code: &str) -> String {
        self.0.ok(&["sandbox", "exec", "box", "--", "python3", "-c", code]).out()
    }

    /// Those of the last exec.
    fn told(&self) -> Vec<(String, u64)> {
        let mut execs = self.0.ok(&["sandbox", "execs", "box", "--json"]).json();
        let last = execs["execs"].as_array().and_then(|all| all.last().cloned());
        execs["execs"] = last.into_iter().collect();
        let mut told = told(&execs);
        told.sort();
        told
    }
}

#[test]
fn decoy_that_an_exec_or_code_says_is_critical_and_stays_what_it_is() {
    let kept = Kept(Host::new());
    let host = &kept.0;
    host.set("key", "first-value-of-the-key");
    host.ok(&["sandbox", "create", "box", "--secret", BAIT, "--secret", "key"]);
    let own = "import os; print(os.environ['BAIT'])";
    let bait = kept.exec(own).trim().to_owned();
    assert_eq!((bait.len(), kept.told()), (40, wanted(1, 0)));
    // The control: as long, and no decoy.
    kept.exec(&format!("print({:?}, 'x' * 40)", bait.chars().rev().collect::<String>()));
    assert_eq!(kept.told(), []);
    kept.exec(SPILL);
    assert_eq!(kept.told(), wanted(3, 1));
    host.ok(&["sandbox", "code", "box", "-c", own]);
    let execs = host.ok(&["sandbox", "execs", "box", "--json"]).json();
    assert_eq!(
        told(&execs).iter().filter(|one| **one == wanted(1, 0)[0]).count(),
        2,
        "in a context, too: {execs}"
    );
    // Another value of another secret, and another start.
    host.set("key", "second-value-of-the-key");
    assert_eq!(kept.exec(own).trim(), bait);
    host.ok(&["sandbox", "stop", "box"]);
    host.ok(&["sandbox", "start", "box"]);
    assert_eq!(kept.exec(own).trim(), bait, "it may stand in its files");
    assert_eq!(kept.told(), wanted(1, 0));
    let given = host.belljar().args(["sandbox", "exec", "box", "--env", "BAIT=x", "--", "true"]);
    let given = given.run();
    assert!(given.code == Some(2) && given.err().contains("a secret of the sandbox"), "{given:?}");
}

#[test]
fn decoy_that_leaves_a_living_sandbox_is_critical_after_renewals_and_restarts() {
    let (hall, web) = (Hall::new(), Web::start());
    hall.host.set("key", "first-value-of-the-key");
    hall.allow("", &[web.port]);
    let made = ["sandbox", "create", "box", "--egress", "@test", "--secret", BAIT];
    hall.ok(&[&made[..], &["--secret", "key@a.test"]].concat());
    let _stays = Stays(&hall);
    let ask = |what: &str| {
        let url = format!("http://b.test:{}/", web.port);
        let code = format!("{ASK}\nbait = os.environ['BAIT']\nprint(ask('{url}', X={what}))");
        hall.ok(&["sandbox", "exec", "box", "--", "python3", "-c", &code]).out()
    };
    let hex = "bait.encode().hex()";
    assert!(ask("bait[::-1]").starts_with("hello from"), "the control");
    assert!(ask(hex).starts_with("403 belljar: a decoy"));
    wait_for("the event", || {
        let told = hall.ok(&["net", "explain", "box", "--json"]).json();
        let refused = told["refused"].as_array().cloned().unwrap_or_default();
        let found = refused.iter().find(|event| event["rule"] == "egress/canary").cloned();
        found.map(|event| assert_eq!(event["severity"], "critical", "{event}"))
    });
    hall.host.set("key", "second-value-of-the-key");
    assert!(ask(hex).starts_with("403 belljar: a decoy"), "after a renewal");
    hall.ok(&["sandbox", "stop", "box"]);
    hall.ok(&["sandbox", "start", "box"]);
    assert!(ask(hex).starts_with("403 belljar: a decoy"), "after a restart");
}

/// What an HTTP client gets of a server.
fn asked(server: &Server, method: &str, path: &str, body: &str) -> Value {
    let curl = Program::new("/usr/bin/curl").args(["-sS", "-m", "100", "-X", method]);
    let curl = curl.arg("--unix-socket").arg(server.socket());
    let curl = curl.args(["-H", "content-type: application/json", "--data-binary", body]);
    curl.arg(format!("http://belljar/v1/sandboxes{path}")).run().json()
}

#[test]
fn decoys_are_told_over_http_and_outlive_the_server() {
    let mut server = Server::with(&[]);
    let body = format!("{{\"name\": \"box\", \"secrets\": [{BAIT:?}]}}");
    let made = asked(&server, "POST", "", &body);
    assert_eq!(made["name"], "box", "{made}");
    let body = "{\"cmd\": [\"/bin/sh\", \"-c\", \"echo $BAIT\"], \"background\": true}";
    let spill = |server: &Server, times: usize| {
        let begun = asked(server, "POST", "/box/exec", body);
        wait_for("the events", || {
            let told = told(&asked(server, "GET", "/box/execs", ""));
            (told == vec![wanted(1, 0)[0].clone(); times]).then_some(())
        });
        begun
    };
    spill(&server, 1);
    server.signal(rustix::process::Signal::KILL);
    let (_, directory): (_, TempDir) = server.wait();
    server = Server::in_directory(directory, &[]);
    spill(&server, 2);
}
