//! Every mistake is a problem that names the field and the fix.

use serde_json::{Value, json};

use crate::http::Answer;
use crate::running::{Server, bash};

fn assert_problem(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let problem = answer.json();
    assert_eq!((&problem["status"], &problem["kind"]), (&json!(status), &json!(kind)), "{problem}");
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
}

#[test]
fn wrong_requests_are_told_by_field() {
    let server = Server::start();
    let with = |field: &str, value: Value| {
        let mut request = bash("echo must not run");
        request[field] = value;
        request
    };
    for (request, field, word) in [
        (json!({ "language": "python" }), "code", "code"),
        (with("cod", json!("x")), "cod", "expected one of"),
        (with("code", json!(7)), "code", "string"),
        (with("code", json!("")), "code", "empty"),
        (with("language", json!("cobol")), "language", "python, bash, node"),
        (with("level", json!("high")), "level", "standard"),
        (with("limits", json!({ "ram": 1 })), "limits.ram", "memory_bytes"),
        (with("limits", json!({ "memory_bytes": 1 })), "limits.memory_bytes", "between"),
        (with("limits", json!({ "wall_ms": -1 })), "limits.wall_ms", "-1"),
        (with("env", json!({ "LD_PRELOAD": "x" })), "env", "never passed"),
        (with("files", json!({ "../x": "" })), "files", ".."),
        (with("stdin", json!(7)), "stdin", "cannot be read"),
        (with("copies", json!({ "a": "/etc/passwd" })), "copies", "send them in files"),
        (with("workspace", json!({ "path": "/home" })), "workspace", "send files"),
        (json!({ "entry": "a.py" }), "entry", "send code"),
        (with("allow_missing", json!(["seccomp"])), "allow_missing", "may be missing"),
    ] {
        let answer = server.run(&request);
        assert_problem(&answer, 400, "spec");
        let problem = answer.json();
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains(word)), "{problem}");
    }
}

#[test]
fn body_that_is_not_one_json_object_is_refused() {
    let server = Server::start();
    for body in ["", "nothing", "[]", "{\"code\": \"1\"", "{} {}", "\u{0}"] {
        let mut connection = server.unix();
        let head = format!("POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: {}", body.len());
        connection.write(format!("{head}\r\n\r\n{body}").as_bytes()).expect("it reads");
        assert_problem(&connection.answer(), 400, "spec");
    }
}

#[test]
fn level_that_this_host_cannot_keep_is_unavailable() {
    let server = Server::start();
    for accept in ["application/json", "application/x-ndjson", "text/event-stream"] {
        let mut request = bash("echo must not run");
        request["level"] = "maximum".into();
        let answer = server.unix().post("/v1/runs", &[("Accept", accept)], &request);
        assert_problem(&answer, 503, "unavailable");
        assert!(answer.text().contains("second kernel"), "{answer:?}");
    }
}

#[test]
fn unknown_paths_and_methods_are_problems() {
    let server = Server::start();
    assert_problem(&server.unix().get("/v1/nothing", &[]), 404, "not_found");
    for (path, allowed) in [("/v1/runs", "POST"), ("/v1/batches", "POST")] {
        let answer = server.unix().get(path, &[]);
        assert_problem(&answer, 405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some(allowed));
    }
    assert_problem(&server.unix().post("/healthz", &[], &json!({})), 405, "method_not_allowed");
}

#[test]
fn body_beyond_the_bound_is_refused() {
    const BOUND: usize = 64 << 20;
    let server = Server::start();
    // Announced: nothing of it is waited for.
    let mut connection = server.unix();
    let head = "POST /v1/runs HTTP/1.1\r\nHost: x\r\n";
    let announced = format!("{head}Content-Length: {}\r\n\r\n", BOUND + 1);
    connection.write(announced.as_bytes()).expect("it reads");
    let answer = connection.answer();
    assert_problem(&answer, 413, "too_large");
    assert!(answer.text().contains("67108864"), "{answer:?}");
    // Not announced: it is read up to the bound and no further.
    let mut connection = server.unix();
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    connection.write(chunked.as_bytes()).expect("it reads");
    let megabyte = [b"100000\r\n".to_vec(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..=BOUND >> 20 {
        if connection.write(&megabyte).is_err() {
            break; // it has answered
        }
    }
    assert_problem(&connection.answer(), 413, "too_large");
}

#[test]
fn root_that_was_closed_is_told_as_the_state_of_the_sandbox() {
    let server = Server::start();
    let at = |rest: &str| format!("/v1/sandboxes/a{rest}");
    assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({ "name": "a" })).status, 201);
    let snapshot = || server.unix().post(&at("/snapshots"), &[], &json!({}));
    assert_eq!(snapshot().status, 201, "the control");
    let mode = |bits: u32| {
        server.unix().ask("POST", &at(&format!("/files/?mode={bits}")), &[], b"").status
    };
    assert_eq!(mode(0), 204);
    let told = snapshot();
    // Root reads what is closed.
    if belljar_tests::is_root() {
        assert_eq!(told.status, 201, "{told:?}");
    } else {
        assert_problem(&told, 409, "conflict");
        assert!(told.text().contains("rollback"), "{told:?}");
    }
    let back = server.unix().post(&at("/rollback"), &[], &json!({ "tag": "s1" }));
    assert_eq!(back.status, 200, "{back:?}");
    assert_eq!(snapshot().status, 201, "once it is open again");
}

#[test]
fn what_a_program_lacks_is_told_as_its_state() {
    let server = Server::start();
    assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({ "name": "a" })).status, 201);
    let begun = json!({ "cmd": ["sleep", "600"], "background": true });
    let exec = server.unix().post("/v1/sandboxes/a/exec", &[], &begun).json();
    let at = format!("/v1/sandboxes/a/execs/{}", exec["id"].as_str().expect("an id"));
    let size = json!({ "rows": 3, "columns": 4 });
    let resized = server.unix().post(&format!("{at}/resize"), &[], &size);
    assert_problem(&resized, 409, "conflict");
    assert!(resized.text().contains("no terminal"), "{resized:?}");
    let fed = server.unix().ask("POST", &format!("{at}/stdin"), &[], b"words");
    assert_problem(&fed, 409, "conflict");
    assert!(fed.text().contains("input is closed"), "{fed:?}");
}

#[test]
fn questions_with_two_answers_are_mistakes() {
    let server = Server::start();
    assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({ "name": "a" })).status, 201);
    for (path, field) in [
        ("/v1/sandboxes?limit=1&limit=2", "limit"),
        ("/v1/sandboxes/a/files/?stat=true&stat=false", "stat"),
        ("/v1/sandboxes/a/execs/x?wait_ms=3600001", "wait_ms"),
    ] {
        let answer = server.unix().get(path, &[]);
        assert_problem(&answer, 400, "spec");
        assert_eq!(answer.json()["field"], field);
    }
}

#[test]
fn what_is_not_http_is_answered_and_closed() {
    let server = Server::start();
    let mut connection = server.unix();
    connection.write(b"\x16\x03\x01 hello\r\n\r\n").expect("it reads");
    let text = String::from_utf8_lossy(&connection.rest()).into_owned();
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{text}");
    assert_eq!(server.run(&bash("echo on")).json()["stdout"], "on\n");
}
