//! One-shots: what they come to, and that nothing of them is ever left.

use std::time::Duration;

use belljar::living::Sandboxes;
use belljar::sandbox::{OneShotRequest, SandboxRequest};
use belljar::{LimitsRequest, Verdict};
use belljar_tests::{DEADLINE, TempDir, block_on, engine, processes_with};
use serde_json::json;

use crate::http::Connection;
use crate::speaking::Client;
use crate::verbs::{Desk, text};

/// No sandbox, no process, no file.
fn nothing_is_left(desk: &Desk) {
    let left = desk.json(&["list"]);
    assert_eq!(left["sandboxes"], json!([]), "{left}");
    let disks = std::fs::read_dir(desk.state().join("disks")).expect("a directory");
    assert_eq!(disks.count(), 0);
}

#[test]
fn one_shots_pass_output_input_and_codes_on_and_are_gone() {
    let desk = Desk::new();
    let code = "import os, sys; print(input(), os.environ['A'], os.getcwd()); sys.exit(3)";
    let words = ["run-python", "-c", code, "--env", "A=b", "--cwd", "/tmp", "--stdin", "-"];
    let ended = desk.program().arg("sandbox").args(words).stdin("in\n").run();
    assert_eq!((text(&ended.stdout).as_str(), ended.code), ("in b /tmp\n", Some(3)), "{ended:?}");
    let script = desk.directory.file("script.sh", "echo out; echo err >&2; uname -n");
    let ended = desk.run(&["run_shell", script.to_str().expect("a name")]);
    assert!(text(&ended.stdout).starts_with("out\nsandbox-"), "{ended:?}");
    assert_eq!((text(&ended.stderr).as_str(), ended.code), ("err\n", Some(0)), "{ended:?}");
    let told = desk.run(&["run-shell", "-c", "echo one; exit 4", "--json"]);
    assert_eq!(told.code, Some(4), "{told:?}");
    assert_eq!(
        (&told.json()["stdout"], &told.json()["end"]["exit_code"]),
        (&json!("one\n"), &json!(4))
    );
    nothing_is_left(&desk);
}

#[test]
fn one_shots_are_torn_down_after_time_limits_and_errors() {
    let desk = Desk::new();
    let late = desk.run(&["run-shell", "-c", "echo up; sleep 60", "--timeout", "300ms"]);
    assert_eq!((text(&late.stdout).as_str(), late.code), ("up\n", Some(124)), "{late:?}");
    let eats = "x = bytearray(500 << 20)";
    let dead = desk.run(&["run-python", "-c", eats, "--memory", "64m"]);
    assert_eq!(dead.code, Some(137), "{dead:?}");
    desk.refused(&["run-shell", "-c", "true", "--cwd", "/no/such"], "cwd");
    desk.refused(&["run-shell", "-c", "true", "--memory", "1"], "memory");
    desk.refused(&["run-shell", "-c", ""], "is empty");
    desk.refused(&["run-python", "/no/such/file"], "/no/such/file");
    let interrupted = desk.program().args(["sandbox", "run-shell", "-c", "echo up; sleep 60"]);
    let mut interrupted = interrupted.start();
    assert_eq!(interrupted.read_line(), "up\n");
    interrupted.signal(rustix::process::Signal::INT);
    assert_eq!(interrupted.wait().code, Some(130));
    let deadline = std::time::Instant::now() + DEADLINE;
    while desk.json(&["list"])["sandboxes"] != json!([]) {
        assert!(std::time::Instant::now() < deadline, "{}", desk.json(&["list"]));
    }
    nothing_is_left(&desk);
}

#[test]
fn an_interrupted_command_ends_its_program() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    let words = ["sandbox", "exec", "one", "--", "bash", "-c", "echo up; sleep 94322"];
    let mut running = desk.program().args(words).start();
    assert_eq!(running.read_line(), "up\n");
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.wait().code, Some(130));
    belljar_tests::wait_until("it is ended", || processes_with("94322").is_empty());
    let execs = desk.json(&["execs", "one"]);
    assert_eq!(execs["execs"][0]["state"], "ended", "{execs}");
}

#[test]
fn one_shots_over_http_end_with_their_caller() {
    let desk = Desk::new();
    let server = desk.serve();
    let client = Client::new(&desk.socket);
    let at = |verb: &str| format!("/v1/sandboxes/{verb}");
    let told = client.post(&at("run_python"), &json!({"code": "print(6 * 7)"})).is(200).json();
    assert_eq!((&told["stdout"], &told["end"]["exit_code"]), (&json!("42\n"), &json!(0)), "{told}");
    let told = client.post(&at("run_shell"), &json!({"script": "exit 3"})).is(200).json();
    assert_eq!(told["end"]["exit_code"], 3, "{told}");
    let late = json!({"script": "sleep 60", "timeout_ms": 200});
    let told = client.post(&at("run_shell"), &late).is(200).json();
    assert_eq!(told["end"]["verdict"]["kind"], "wall_time_limit", "{told}");
    client.post(&at("run_shell"), &json!({"script": "x", "bogus": 1})).refused(400, "spec");
    client
        .post(&at("run_shell"), &json!({"sandbox": {"level": "basic"}, "script": "x"}))
        .refused(400, "spec");
    client.get(&at("run_shell")).refused(405, "method_not_allowed");
    let mut connection = Connection::unix(&desk.socket);
    let lines = ("Accept", "application/x-ndjson");
    connection.send(&at("run_shell"), &[lines], &json!({"script": "echo up; sleep 94321"}));
    assert_eq!(connection.head().status, 200);
    let mut heard = String::new();
    while !heard.contains("output") {
        heard += &String::from_utf8(connection.chunk().expect("it runs")).expect("text");
    }
    let all = client.get("/v1/sandboxes").json();
    // Should the server be killed, it is removed all the same.
    assert!(all["sandboxes"][0]["expires_at"].is_string(), "{all}");
    drop(connection);
    let deadline = std::time::Instant::now() + DEADLINE;
    while client.get("/v1/sandboxes").json()["sandboxes"] != json!([]) {
        assert!(std::time::Instant::now() < deadline, "it outlives its caller");
    }
    assert!(processes_with("94321").is_empty());
    drop(server);
    nothing_is_left(&desk);
}

/// Waits until a state directory holds no sandbox.
async fn empty(all: &Sandboxes) {
    let look = async {
        while !all.list(None, None).await.expect("a list").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.expect("it is torn down");
}

#[test]
fn a_one_shot_that_nobody_waits_for_is_torn_down_wherever_it_was() {
    let directory = TempDir::new();
    block_on(async {
        let all = Sandboxes::open(&engine(), &directory.join("state")).await.expect("opened");
        let ran = all.run_python(OneShotRequest::new("print(6 * 7)")).await.expect("it runs");
        assert_eq!(
            (ran.stdout.text().as_str(), ran.exec.end.expect("an end").verdict),
            ("42\n", Verdict::Exited { code: 0 })
        );
        assert!(all.list(None, None).await.expect("a list").is_empty(), "gone when it is told");
        let ran = all.run_shell(OneShotRequest::new("exit 5")).await.expect("it runs");
        assert_eq!(ran.exec.end.expect("an end").exit_code, Some(5));
        // Dropped while the sandbox is made, while it starts, and while the program runs.
        for patience in [0, 1, 3, 10, 30, 100, 300] {
            let once = all.run_shell(OneShotRequest::new("sleep 300"));
            let patience = Duration::from_millis(patience);
            tokio::time::timeout(patience, once).await.expect_err("it sleeps");
            empty(&all).await;
        }
        let limits = LimitsRequest { wall_ms: Some(200), ..LimitsRequest::default() };
        let sandbox = SandboxRequest { limits, ..SandboxRequest::default() };
        let request = OneShotRequest { sandbox, ..OneShotRequest::new("sleep 300") };
        let ran = all.run_shell(request).await.expect("it ends");
        assert_eq!(ran.exec.end.expect("an end").verdict, Verdict::WallTimeLimit { limit_ms: 200 });
        let absent = OneShotRequest { cwd: Some("/no/such".into()), ..OneShotRequest::new("true") };
        assert_eq!(all.run_shell(absent).await.expect_err("no such place").kind(), "spec");
        assert!(all.list(None, None).await.expect("a list").is_empty());
    });
}
