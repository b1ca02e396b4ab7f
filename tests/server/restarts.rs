//! `Idempotency-Key` across the end of a server: what was begun under a key is never begun again, however the server went.

use std::os::unix::fs::PermissionsExt;

use belljar_tests::{Program, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::Answer;
use crate::running::{LINES, Server, bash, python};

fn post(server: &Server, key: &str, path: &str, body: &Value) -> Answer {
    server.unix().post(path, &[("Idempotency-Key", key)], body)
}

fn run_as(server: &Server, bearer: &str, key: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {bearer}");
    let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", key)];
    server.tcp().post("/v1/runs", &headers, body)
}

/// The same state under a new server.
fn again(server: Server, signal: Signal, options: &[&str]) -> Server {
    server.signal(signal);
    let (_, directory) = server.wait();
    Server::started(directory, options, &[])
}

fn recorded(server: &Server) -> Vec<Value> {
    let told = server.unix().get("/v1/audit", &[]).json();
    told["runs"].as_array().expect("a list").clone()
}

#[test]
fn what_was_answered_is_answered_again_after_a_restart_and_after_kill_9() {
    let mut server = Server::start();
    let request = python("import os; print(os.urandom(8).hex())");
    let boxed = json!({ "name": "only" });
    let stream = [("Idempotency-Key", "lines"), LINES];
    let firsts = |server: &Server| {
        let run = post(server, "run", "/v1/runs", &request);
        let made = post(server, "box", "/v1/sandboxes", &boxed);
        let lines = server.unix().post("/v1/runs", &stream, &request);
        let wrong = post(server, "wrong", "/v1/runs", &json!({ "language": "python" }));
        [run, made, lines, wrong]
    };
    let first = firsts(&server);
    assert_eq!(first.each_ref().map(|one| one.status), [200, 201, 200, 400], "{first:?}");
    assert_eq!(first[0].header("idempotent-replayed"), None);
    for signal in [Signal::KILL, Signal::TERM] {
        server = again(server, signal, &[]);
        let told = firsts(&server);
        for (then, now) in first[..3].iter().zip(&told) {
            assert_eq!((then.status, then.text()), (now.status, now.text()));
            assert_eq!(now.header("idempotent-replayed"), Some("true"));
            assert_eq!(then.header("content-type"), now.header("content-type"));
            assert_eq!(then.header("location"), now.header("location"));
        }
        let (then, now) = (first[3].json(), told[3].json());
        assert_eq!((&then["detail"], told[3].status), (&now["detail"], 400), "a mistake stays one");
        assert_ne!(then["request_id"], now["request_id"], "each request has its own name");
        let other = post(&server, "run", "/v1/runs", &bash("echo other"));
        assert_eq!((other.status, &other.json()["code"]), (422, &json!("idempotency_mismatch")));
        assert_eq!(recorded(&server).len(), 2, "nothing ran again");
    }
}

#[test]
fn what_was_under_way_at_kill_9_is_told_and_not_done_again() {
    let server = Server::start();
    let key = server.key("one", &[]);
    let request = bash("echo up; sleep 300");
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", "k"), LINES];
    let mut connection = server.tcp();
    connection.send("/v1/runs", &headers, &request);
    assert_eq!(connection.head().status, 200);
    connection.chunk().expect("it runs");
    let server = again(server, Signal::KILL, &[]);
    for _ in 0..2 {
        let told = server.tcp().post("/v1/runs", &headers, &request);
        let problem = told.json();
        assert_eq!((told.status, &problem["code"]), (409, &json!("outcome_unknown")), "{told:?}");
        assert_eq!(problem["retryable"], json!(false));
        let all = problem["executions"].as_array().expect("what was begun");
        let [id] = &all[..] else { panic!("one run was begun: {problem}") };
        let path = format!("/v1/runs/{}", id.as_str().expect("an id"));
        wait_until("its end is closed", || {
            server.as_key(&key, "GET", &path, &Value::Null).json()["state"] == "unfinished"
        });
    }
    let mismatch = run_as(&server, &key, "k", &bash("echo other"));
    assert_eq!(mismatch.status, 422, "{mismatch:?}");
    // Another tenant's key of the same name is another key.
    let other = server.key("other", &[]);
    assert_eq!(run_as(&server, &other, "k", &bash("echo other")).status, 200);
    assert_eq!(recorded(&server).len(), 2, "once each");
    // And so is a new key of the same tenant.
    assert_eq!(run_as(&server, &key, "k2", &bash("echo new")).json()["stdout"], "new\n");
}

#[test]
fn what_a_stop_broke_off_is_told_and_what_it_kept_from_beginning_is_done() {
    let options = ["--drain", "200ms", "--max-runs", "5", "--max-queue", "8"];
    let server = Server::with(&options);
    let long = bash("sleep 300");
    let case = json!({ "stdin": "", "expected_stdout": "" });
    let graded = json!({ "language": "bash", "code": "sleep 300", "cases": [case] });
    let batch = json!({ "requests": [long] });
    let lines = &[LINES][..];
    let all = [
        ("/v1/runs", &[][..], &long),
        ("/v1/runs", lines, &long),
        ("/v1/grades", &[][..], &graded),
        ("/v1/grades", lines, &graded),
        ("/v1/batches", lines, &batch),
    ];
    let send = |server: &Server, number: usize| {
        let (path, more, body) = all[number];
        let key = format!("k{number}");
        let mut connection = server.unix();
        connection.send(path, &[&[("Idempotency-Key", key.as_str())], more].concat(), body);
        connection
    };
    let mut begun: Vec<_> = (0..all.len()).map(|number| send(&server, number)).collect();
    wait_until("all of them run", || recorded(&server).len() == all.len());
    let mut waits = server.unix();
    waits.send("/v1/runs", &[("Idempotency-Key", "waits")], &bash("echo in turn"));
    wait_until("one more waits", || server.gauge("belljar_queue_places") == all.len() + 1);
    server.signal(Signal::TERM);
    for (number, connection) in begun.iter_mut().enumerate() {
        let told = connection.answer();
        assert!(told.text().contains("\"cancelled\""), "{number}: {told:?}");
    }
    let told = waits.answer();
    assert_eq!((told.status, &told.json()["code"]), (503, &json!("draining")), "{told:?}");
    let (_, directory) = server.wait();
    let server = Server::started(directory, &options, &[]);
    let before = recorded(&server).len();
    for number in 0..all.len() {
        let told = send(&server, number).answer();
        let problem = told.json();
        assert_eq!((told.status, &problem["code"]), (409, &json!("outcome_unknown")), "{number}");
        assert_eq!(problem["executions"].as_array().map(Vec::len), Some(1), "{number}: {problem}");
    }
    assert_eq!(recorded(&server).len(), before, "none of them ran again");
    let done = post(&server, "waits", "/v1/runs", &bash("echo in turn"));
    assert_eq!((done.status, &done.json()["stdout"]), (200, &json!("in turn\n")), "{done:?}");
}

#[test]
fn draining_waits_for_work_whose_client_has_left() {
    let server = Server::start();
    let request = bash("sleep 2; echo done");
    let mut leaves = server.unix();
    leaves.send("/v1/runs", &[("Idempotency-Key", "k")], &request);
    wait_until("it runs", || !server.children().is_empty());
    drop(leaves);
    let server = again(server, Signal::TERM, &[]);
    let told = post(&server, "k", "/v1/runs", &request);
    assert_eq!((told.status, told.header("idempotent-replayed")), (200, Some("true")), "{told:?}");
    assert_eq!(told.json()["stdout"], "done\n");
}

#[test]
fn answers_of_before_are_let_go_where_bodies_may_not_be() {
    let server = Server::start();
    let request = bash("echo a-word-of-$((6 * 7))-before");
    assert_eq!(post(&server, "k", "/v1/runs", &request).json()["stdout"], "a-word-of-42-before\n");
    let server = again(server, Signal::KILL, &["--audit-digests"]);
    assert_eq!(server.gauge("belljar_idempotency_keys"), 1, "counted before anybody asks");
    for name in ["idempotency.db", "idempotency.db-wal"] {
        let bytes = std::fs::read(server.path().join("state").join(name)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains("a-word-of-42-before"), "{name}");
    }
    let told = post(&server, "k", "/v1/runs", &request);
    assert_eq!((told.status, &told.json()["code"]), (409, &json!("idempotency_lost")), "{told:?}");
}

#[test]
fn answers_are_on_the_disk_only_where_bodies_may_be() {
    let options = ["--audit-digests"];
    let server = Server::with(&options);
    let request = bash("echo a-word-that-is-not-kept");
    let first = post(&server, "a-key-that-is-not-kept", "/v1/runs", &request);
    assert_eq!(first.status, 200);
    let again_here = post(&server, "a-key-that-is-not-kept", "/v1/runs", &request);
    assert_eq!(first.text(), again_here.text(), "from memory");
    let file = server.path().join("state/idempotency.db");
    let mode = std::fs::metadata(&file).expect("the keys").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let server = again(server, Signal::TERM, &options);
    for name in ["idempotency.db", "idempotency.db-wal"] {
        let bytes = std::fs::read(server.path().join("state").join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("that-is-not-kept"), "{name}");
    }
    let told = post(&server, "a-key-that-is-not-kept", "/v1/runs", &request);
    assert_eq!((told.status, &told.json()["code"]), (409, &json!("idempotency_lost")), "{told:?}");
    assert_eq!(recorded(&server).len(), 1);
}

#[test]
fn keys_that_cannot_be_kept_begin_nothing() {
    let server = Server::start();
    let file = server.path().join("state/idempotency.db");
    let sql = |text: &str| {
        let code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=30); c.executescript(sys.argv[2])";
        let ended = Program::new("/usr/bin/python3").args(["-c", code]).arg(&file).arg(text).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    assert_eq!(post(&server, "before", "/v1/runs", &bash("echo 1")).status, 200);
    sql("ALTER TABLE claims RENAME TO elsewhere");
    let told = post(&server, "k", "/v1/runs", &bash("echo 1"));
    assert_eq!((told.status, &told.json()["code"]), (503, &json!("idempotency_unavailable")));
    assert!(told.header("retry-after").is_some(), "{told:?}");
    assert_eq!(server.run(&bash("echo 1")).status, 200, "without a key nothing has to be kept");
    assert_eq!(recorded(&server).len(), 2);
    sql("ALTER TABLE elsewhere RENAME TO claims");
    assert_eq!(post(&server, "k", "/v1/runs", &bash("echo 1")).status, 200);
}
