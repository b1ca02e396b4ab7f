//! Secrets of sandboxes that stay: every exec has the value of the moment, and neither that nor the one before is seen.

use std::path::PathBuf;

use crate::{Host, TELLING, assert_unseen, spellings};

const FIRST: &str = "first/value+odd&bytes~~?-7f2a";
const SECOND: &str = "second/value+odd&bytes~~?-91bc";

/// Removed with the test.
struct Stays<'a>(&'a Host);

impl Drop for Stays<'_> {
    fn drop(&mut self) {
        self.0.belljar().args(["sandbox", "rm", "--force", "box"]).run();
    }
}

#[test]
fn every_exec_has_the_value_of_the_moment_and_none_is_seen() {
    let host = Host::new();
    host.set("key", FIRST);
    host.ok(&["sandbox", "create", "box", "--secret", "key"]);
    let _stays = Stays(&host);
    let tell = || host.ok(&["sandbox", "exec", "box", "--", "python3", "-c", TELLING]);
    let backwards = "import os; print(os.environ['KEY'][::-1])";
    let is = || host.ok(&["sandbox", "exec", "box", "--", "python3", "-c", backwards]).out();
    let reversed = |text: &str| text.chars().rev().collect::<String>() + "\n";
    let first = tell();
    assert!(first.out().contains("[secret]") && first.out().contains("done"), "{first:?}");
    assert_eq!(is(), reversed(FIRST));
    // One that has the first value says it when there is a second.
    let late = "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo late $KEY";
    let late = ["sandbox", "exec", "box", "--background", "--", "bash", "-c", late];
    let late = host.ok(&late).out().trim().to_owned();
    host.set("key", SECOND);
    let second = tell();
    assert_eq!(is(), reversed(SECOND));
    host.ok(&["sandbox", "exec", "box", "--", "touch", "/tmp/go"]);
    let late = host.ok(&["sandbox", "attach", "box", &late]).out();
    assert!(late.contains("late [secret]"), "{late}");
    let logs = host.ok(&["sandbox", "logs", "box"]).out();
    for secret in [FIRST, SECOND] {
        assert_unseen(secret, &format!("{first:?}{second:?}{late}{logs}"));
        for spelling in spellings(secret) {
            assert_eq!(host.files_with(&spelling), [] as [PathBuf; 0], "{spelling}");
        }
    }
    assert!(!host.files_with("[secret]").is_empty(), "control: the logs are there");
    let given = host.belljar().args(["sandbox", "exec", "box", "--env", "KEY=x", "--", "true"]);
    let given = given.run();
    assert!(given.code == Some(2) && given.err().contains("a secret of the sandbox"), "{given:?}");
}

#[test]
fn code_in_a_context_has_the_value_of_the_moment_and_its_results_are_clean() {
    let host = Host::new();
    host.set("key", FIRST);
    host.ok(&["sandbox", "create", "box", "--secret", "key"]);
    let _stays = Stays(&host);
    let run = |code: &str| {
        host.belljar().args(["sandbox", "code", "box", "--json", "-c", code]).run().json()
    };
    for (round, secret) in [FIRST, SECOND].into_iter().enumerate() {
        host.set("key", secret);
        let plain = run("import os; os.environ['KEY'][::-1]");
        let text = plain.to_string().chars().rev().collect::<String>();
        assert!(text.contains(secret), "round {round}: it has it: {plain}");
        let shown = run(
            "import os, sys; print(os.environ['KEY']); {'k': os.environ['KEY'], 'pad': 'x' * 5000}",
        );
        let broken = run("raise ValueError(os.environ['KEY'])");
        // Across the frames in which results travel.
        let long = run("'y' * 3900 + os.environ['KEY'] * 300");
        for told in [shown, broken, long] {
            let told = told.to_string();
            assert!(told.contains("[secret]"), "{told}");
            assert_unseen(secret, &told);
        }
    }
}

#[test]
fn a_name_that_nobody_knows_is_told_when_the_sandbox_is_made() {
    let host = Host::new();
    let made = host.belljar().args(["sandbox", "create", "box", "--secret", "none"]).run();
    assert!(made.code == Some(2) && made.err().contains("belljar secret set none"), "{made:?}");
    assert!(!host.ok(&["sandbox", "list"]).out().contains("box"));
}

/// What programs choose (names, arguments) is told of the network of a sandbox, too.
#[test]
fn what_is_told_of_its_network_shows_none() {
    let hall = crate::hall::Hall::new();
    let value = "inside-value-of-the-key-42";
    hall.host.set("key", value);
    hall.ok(&["sandbox", "create", "box", "--egress", "@test", "--secret", "key"]);
    let _stays = crate::placeholders::Stays(&hall);
    let ask = "import sys, urllib.request\nfor host in ['nowhere.test', sys.argv[1] + '.test']:\n    \
               try: urllib.request.urlopen(f'http://{host}/', timeout=60)\n    except OSError: pass";
    let code = format!("exec python3 -c \"{ask}\" $KEY");
    hall.ok(&["sandbox", "exec", "box", "--", "bash", "-c", &code]);
    let told = ["--json", ""].map(|form| {
        let words = ["net", "explain", "box", form];
        hall.ok(&words[..if form.is_empty() { 3 } else { 4 }]).out()
    });
    for told in &told {
        assert!(told.contains("nowhere.test") && told.contains("[secret]"), "{told}");
        assert_unseen(value, told);
    }
}
