//! Events come while the program runs: in the streams of a server, before the outcome that holds them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use belljar_tests::{DEADLINE, Server};
use serde_json::Value;

use super::calling;

/// Asks a server for one run in a form, and reads all of the answer.
fn answer(server: &Server, accept: &str, code: &str) -> String {
    let body = serde_json::json!({ "language": "python", "code": code }).to_string();
    let mut socket = UnixStream::connect(server.socket()).expect("the server listens");
    socket.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let head = format!(
        "POST /v1/runs HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).expect("it takes the request");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers to the end");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains(" 200 "), "{text}");
    body.to_owned()
}

#[test]
fn events_come_as_lines_before_what_follows_them() {
    let server = Server::with(&["--pool", "0"]);
    // The output after the call is sent when the reader of the first event may have it already.
    let code = calling("call(161, b'/tmp'); print('after', flush=True); call(161, b'/tmp')");
    let text = answer(&server, "application/x-ndjson", &code);
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds: Vec<&str> =
        lines.iter().map(|line| line["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "event").count(), 1, "{text}");
    assert_eq!(kinds.last(), Some(&"outcome"));
    let event = lines.iter().find(|line| line["type"] == "event").expect("an event");
    assert_eq!(event["kind"], "escape_attempt");
    assert_eq!(event["detail"], "chroot(path=\"/tmp\")");
    let outcome = lines.last().expect("a last line");
    assert_eq!(outcome["events"][0]["count"], 2, "told once, counted in the end");
    assert_eq!(outcome["risk"], "high");
}

#[test]
fn events_are_server_sent_events_too() {
    let server = Server::with(&["--pool", "0"]);
    let text = answer(&server, "text/event-stream", &calling("call(161, b'/tmp')"));
    assert!(
        text.contains("event: event\ndata: {\"type\":\"event\",\"kind\":\"escape_attempt\""),
        "{text}"
    );
}
