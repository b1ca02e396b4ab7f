//! `Idempotency-Key`: what is sent twice happens once.

use belljar_tests::wait_until;
use serde_json::{Value, json};

use crate::http::Answer;
use crate::running::{LINES, Server, bash, python};

fn post(server: &Server, key: &str, path: &str, more: &[(&str, &str)], body: &Value) -> Answer {
    let headers = [&[("Idempotency-Key", key)], more].concat();
    server.unix().post(path, &headers, body)
}

#[test]
fn run_that_is_sent_again_has_the_first_ones_outcome() {
    let server = Server::start();
    let request = python("import os; print(os.urandom(8).hex())");
    let first = post(&server, "k1", "/v1/runs", &[], &request);
    let again = post(&server, "k1", "/v1/runs", &[], &request);
    assert_eq!((first.status, again.status), (200, 200));
    assert_eq!(first.json(), again.json(), "to the execution id");
    assert_eq!(
        (first.header("idempotent-replayed"), again.header("idempotent-replayed")),
        (None, Some("true"))
    );
    assert_ne!(first.header("x-request-id"), again.header("x-request-id"));
    let other = post(&server, "k2", "/v1/runs", &[], &request);
    assert_ne!(first.json()["stdout"], other.json()["stdout"]);
    wait_until("two are recorded", || {
        server.unix().get("/v1/audit", &[]).json()["runs"].as_array().map(Vec::len) == Some(2)
    });
}

#[test]
fn undo_and_redo_that_are_sent_again_go_one_step() {
    let server = Server::start();
    let made = server.unix().post("/v1/sandboxes", &[], &json!({ "name": "u", "undo": true }));
    assert_eq!(made.status, 201, "{made:?}");
    let shell = |script: &str| {
        let asked = json!({ "script": script });
        server.unix().post("/v1/sandboxes/u/shell", &[], &asked).json()["stdout"].clone()
    };
    for number in 1..=4 {
        shell(&format!("echo {number} > file"));
    }
    // To look is no change that could be undone.
    let step = |verb: &str, key: &str| {
        let told = post(&server, key, &format!("/v1/sandboxes/u/{verb}"), &[], &json!({}));
        assert_eq!(told.status, 200, "{told:?}");
        let file = server.unix().get("/v1/sandboxes/u/files/workspace/file", &[]).text();
        (told.header("idempotent-replayed") == Some("true"), file)
    };
    assert_eq!(step("undo", "k1"), (false, "3\n".to_owned()));
    assert_eq!(step("undo", "k1"), (true, "3\n".to_owned()), "the same is done once");
    assert_eq!(step("undo", "k2"), (false, "2\n".to_owned()), "another goes further");
    assert_eq!(step("redo", "k3"), (false, "3\n".to_owned()));
    assert_eq!(step("redo", "k3"), (true, "3\n".to_owned()));
    assert_eq!(step("redo", "k4"), (false, "4\n".to_owned()));
}

#[test]
fn same_key_with_another_request_is_refused() {
    let server = Server::start();
    assert_eq!(post(&server, "k", "/v1/runs", &[], &bash("echo 1")).status, 200);
    for (path, more, body) in [
        ("/v1/runs", &[][..], bash("echo 2")),
        ("/v1/runs", &[LINES][..], bash("echo 1")),
        ("/v1/batches", &[][..], bash("echo 1")),
    ] {
        let told = post(&server, "k", path, more, &body);
        assert_eq!(
            (told.status, &told.json()["code"]),
            (422, &json!("idempotency_mismatch")),
            "{told:?}"
        );
    }
    for strange in ["", &"x".repeat(256)] {
        let told = post(&server, strange, "/v1/runs", &[], &bash("echo 1"));
        assert_eq!((told.status, &told.json()["field"]), (400, &json!("Idempotency-Key")));
    }
}

#[test]
fn many_at_once_are_carried_out_once() {
    let server = Server::with(&["--max-runs", "8"]);
    let request = python("import os, time; time.sleep(0.3); print(os.urandom(8).hex())");
    let mut all: Vec<_> = (0..8)
        .map(|_| {
            let mut connection = server.unix();
            connection.send("/v1/runs", &[("Idempotency-Key", "same")], &request);
            connection
        })
        .collect();
    let answers: Vec<Value> =
        all.iter_mut().map(|one| one.answer().json()["stdout"].clone()).collect();
    assert!(answers.iter().all(|one| *one == answers[0] && one.is_string()), "{answers:?}");
    let made: Vec<u16> = (0..4)
        .map(|_| post(&server, "box", "/v1/sandboxes", &[], &json!({ "name": "only" })).status)
        .collect();
    assert_eq!(made, [201; 4], "one was made, and told to all");
}

#[test]
fn who_lost_the_connection_finds_the_outcome() {
    let server = Server::start();
    let request = bash("echo up; sleep 1; echo down");
    let headers = [("Idempotency-Key", "lost"), LINES];
    let mut lost = server.unix();
    lost.send("/v1/runs", &headers, &request);
    assert_eq!(lost.head().status, 200);
    lost.chunk().expect("it runs");
    drop(lost);
    let again = server.unix().post("/v1/runs", &headers, &request);
    let events = again.lines();
    assert_eq!(events[0]["data"], "up\n", "from the beginning: {events:?}");
    let last = events.last().expect("an end");
    assert_eq!(
        (&last["type"], &last["stdout"]),
        (&json!("outcome"), &json!("up\ndown\n")),
        "{last}"
    );
}

#[test]
fn events_go_on_after_the_last_that_was_seen() {
    let server = Server::start();
    let request = bash("echo one; sleep 0.2; echo two");
    let headers = [("Idempotency-Key", "sse"), ("Accept", "text/event-stream")];
    let whole = server.unix().post("/v1/runs", &headers, &request).text();
    let blocks: Vec<&str> = whole.split_terminator("\n\n").collect();
    assert!(blocks.len() >= 3, "{whole}");
    for seen in 1..=blocks.len() {
        let id = seen.to_string();
        let resumed = [headers[0], headers[1], ("Last-Event-ID", id.as_str())];
        let rest = server.unix().post("/v1/runs", &resumed, &request).text();
        assert_eq!(rest.split_terminator("\n\n").collect::<Vec<_>>(), blocks[seen..], "after {id}");
    }
}

#[test]
fn what_was_not_begun_may_be_tried_again() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "0"]);
    let mut occupied = server.unix();
    occupied.send("/v1/runs", &[LINES], &bash("echo up; sleep 60"));
    occupied.head();
    occupied.chunk().expect("it runs");
    assert_eq!(post(&server, "k", "/v1/runs", &[], &bash("echo in")).status, 429);
    drop(occupied);
    wait_until("there is a place", || {
        post(&server, "k", "/v1/runs", &[], &bash("echo in")).status == 200
    });
    // But a mistake stays one.
    let wrong = json!({ "language": "python" });
    for _ in 0..2 {
        assert_eq!(post(&server, "wrong", "/v1/runs", &[], &wrong).status, 400);
    }
}

#[test]
fn keys_of_one_tenant_are_not_those_of_another() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let run = |key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", "same")];
        server
            .tcp()
            .post("/v1/runs", &headers, &python("import os; print(os.urandom(8).hex())"))
            .json()
    };
    assert_ne!(run(&one)["stdout"], run(&other)["stdout"]);
    assert_eq!(run(&one), run(&one));
}

#[test]
fn what_goes_on_under_a_key_is_ended_by_its_tenant_alone() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let bearer = format!("Bearer {one}");
    let end = |key: &str, name: &str| {
        server.as_key(key, "DELETE", &format!("/v1/requests/{name}"), &Value::Null)
    };
    let request = bash("echo up; sleep 600");
    for lines in [&[][..], &[LINES]] {
        let name = format!("a/{}", lines.len());
        let at = name.replace('/', "%2F");
        let key = [("Authorization", bearer.as_str()), ("Idempotency-Key", name.as_str())];
        let mut leaves = server.tcp();
        leaves.send("/v1/runs", &[&key[..], lines].concat(), &request);
        wait_until("it runs", || !server.children().is_empty());
        drop(leaves);
        let (foreign, unknown) = (end(&other, &at), end(&other, "nobodys"));
        assert_eq!((foreign.status, unknown.status), (404, 404));
        assert_eq!(foreign.json()["detail"], unknown.json()["detail"], "as what is nobody's");
        assert!(!server.children().is_empty(), "it goes on without its client");
        assert_eq!(end(&one, &at).status, 204);
        wait_until("it is gone", || server.children().is_empty());
        assert_eq!(end(&one, &at).status, 404, "nothing goes on any more");
        let told = server.tcp().post("/v1/runs", &[&key[..], lines].concat(), &request);
        assert_eq!((told.status, &told.json()["code"]), (409, &json!("idempotency_lost")));
    }
    let runs = server.as_key(&one, "GET", "/v1/audit", &Value::Null).json()["runs"].clone();
    let verdicts: Vec<&str> =
        runs.as_array().expect("a list").iter().filter_map(|run| run["verdict"].as_str()).collect();
    assert_eq!(verdicts, ["cancelled", "cancelled"], "once each: {runs}");
}

#[test]
fn who_leaves_before_a_long_answer_begins_holds_nothing() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "1"]);
    let mut occupied = server.unix();
    occupied.send("/v1/runs", &[LINES], &bash("echo up; sleep 60"));
    occupied.head();
    occupied.chunk().expect("it runs");
    // More than is kept of an answer, so that it would wait for who asked first.
    let request = bash("head -c 6000000 /dev/zero | tr '\\0' x");
    let mut leaves = server.unix();
    leaves.send("/v1/runs", &[("Idempotency-Key", "long"), LINES], &request);
    let places = || server.gauge("belljar_queue_places");
    wait_until("it waits for its turn", || places() == 2);
    drop((leaves, occupied));
    wait_until("it has ended without its client", || places() == 0);
    let told = post(&server, "long", "/v1/runs", &[LINES], &request);
    assert_eq!((told.status, &told.json()["code"]), (409, &json!("idempotency_lost")), "{told:?}");
}
