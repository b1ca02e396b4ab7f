//! `POST /v1/runs`: one Outcome, or the output as it comes and then the Outcome.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_tests::{LEVELS, Outcome, Verdict};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::running::{LINES, Server, bash, python};

/// What an output event carries.
fn bytes(event: &Value) -> Vec<u8> {
    match event["data"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => STANDARD.decode(event["data"]["base64"].as_str().expect("base64")).expect("base64"),
    }
}

/// All that a stream says of one output, and the Outcome at its end.
fn gathered(events: &[Value], stream: &str) -> (Vec<u8>, Value) {
    let (last, before) = events.split_last().expect("events");
    assert_eq!(last["type"], "outcome", "{last}");
    let of_it = before.iter().filter(|event| event["type"] == stream);
    (of_it.flat_map(bytes).collect(), last.clone())
}

#[test]
fn run_is_answered_with_its_outcome_at_every_level() {
    let server = Server::start();
    for level in LEVELS {
        let mut request = python("import sys; print(6 * 7); print('e', file=sys.stderr)");
        request["level"] = level.name().into();
        request["labels"] = json!({ "who": "me" });
        let answer = server.run(&request);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let outcome: Outcome = serde_json::from_slice(&answer.body).expect("an Outcome");
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("42\n", "e\n"));
        assert_eq!((outcome.receipt.level, outcome.labels["who"].as_str()), (level, "me"));
    }
}

#[test]
fn one_connection_serves_many_runs() {
    let server = Server::start();
    let token = format!("Bearer {}", server.token());
    for mut connection in [server.unix(), server.tcp()] {
        for number in 0..5 {
            let headers = [("Authorization", token.as_str())];
            let request = bash(&format!("echo {number}"));
            let answer = connection.post("/v1/runs", &headers, &request);
            assert_eq!(answer.json()["stdout"], format!("{number}\n"), "{answer:?}");
        }
    }
}

#[test]
fn input_files_and_environment_arrive() {
    let server = Server::start();
    let request = json!({
        "command": ["sh", "-c", "cat; cat a/b.txt; echo $GREETING $1", "sh", "arg"],
        "stdin": "in\n",
        "files": { "a/b.txt": { "base64": STANDARD.encode(b"file\n") } },
        "env": { "GREETING": "hi" },
    });
    assert_eq!(server.run(&request).json()["stdout"], "in\nfile\nhi arg\n");
}

#[test]
fn how_a_program_ends_is_no_error_of_http() {
    let server = Server::start();
    let mut slow = bash("sleep 60");
    slow["limits"] = json!({ "wall_ms": 300 });
    for (request, kind) in [
        (bash("exit 3"), "exited"),
        (bash("kill -SEGV $$"), "signaled"),
        (slow, "wall_time_limit"),
        (json!({ "command": ["/usr/bin/no-such-program"] }), "start_failed"),
    ] {
        let answer = server.run(&request);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["verdict"]["kind"], kind);
    }
}

#[test]
fn lines_come_while_the_program_runs() {
    let server = Server::start();
    let mut connection = server.unix();
    let code = "import signal\nprint('first', flush=True)\nsignal.pause()";
    connection.send("/v1/runs", &[LINES], &python(code));
    let head = connection.head();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("application/x-ndjson"));
    // The program waits for ever, so whatever comes, comes before its end.
    let mut text = String::new();
    while !text.contains("first") {
        let chunk = connection.chunk().expect("an event");
        text += std::str::from_utf8(&chunk).expect("text");
    }
    assert!(text.starts_with(r#"{"type":"stdout","data":"#), "{text}");
}

#[test]
fn stream_ends_with_the_same_outcome_as_the_document() {
    let server = Server::start();
    let request = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)");
    let answer = server.unix().post("/v1/runs", &[LINES], &request);
    let events = answer.lines();
    let (out, last) = gathered(&events, "stdout");
    assert_eq!((out, gathered(&events, "stderr").0), (b"out\n".to_vec(), b"err\n".to_vec()));
    let streamed: Outcome = serde_json::from_value(last).expect("an Outcome beside its type");
    let document: Outcome = serde_json::from_slice(&server.run(&request).body).expect("an Outcome");
    assert_eq!(streamed.verdict, Verdict::Exited { code: 3 });
    assert_eq!(streamed.stdout, document.stdout);
    assert_eq!(streamed.receipt.spec_digest, document.receipt.spec_digest);
}

#[test]
fn server_sent_events_carry_the_same() {
    let server = Server::start();
    let accept = [("Accept", "text/event-stream")];
    let answer = server.unix().post("/v1/runs", &accept, &bash("echo one; echo two >&2"));
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = answer.text();
    let mut events = Vec::new();
    for (index, block) in text.split_terminator("\n\n").enumerate() {
        let (name, data) = block.split_once("\ndata: ").expect("a name and data");
        let event: Value = serde_json::from_str(data).expect("JSON on one line");
        let kind = event["type"].as_str().expect("a type");
        assert_eq!(name, format!("id: {}\nevent: {kind}", index + 1));
        events.push(event);
    }
    assert_eq!(gathered(&events, "stdout").0, b"one\n");
    assert_eq!(gathered(&events, "stderr").0, b"two\n");
}

#[test]
fn bytes_of_every_kind_are_streamed_without_loss() {
    let server = Server::start();
    let code = "import os\ndata = bytes(range(256)) * 2000 + 'é€😀'.encode() * 30000\n\
                for at in range(0, len(data), 4999): os.write(1, data[at:at + 4999])";
    let answer = server.unix().post("/v1/runs", &[LINES], &python(code));
    let (out, outcome) = gathered(&answer.lines(), "stdout");
    let all: Vec<u8> = (0..=255).cycle().take(256 * 2000).collect();
    let expected = [all, "é€😀".repeat(30000).into_bytes()].concat();
    assert!(out == expected, "{} bytes of {}", out.len(), expected.len());
    assert_eq!(outcome["stdout_truncated"], true);
}

#[test]
fn text_is_streamed_as_text_wherever_it_is_cut() {
    let server = Server::start();
    let code = "import os\nfor byte in 'aé€😀'.encode(): os.write(1, bytes([byte]))";
    let answer = server.unix().post("/v1/runs", &[LINES], &python(code));
    let events = answer.lines();
    assert_eq!(gathered(&events, "stdout").0, "aé€😀".as_bytes());
    let outputs = events.iter().filter(|event| event["type"] == "stdout");
    assert!(outputs.clone().all(|event| event["data"].is_string()), "{events:?}");
}

#[test]
fn slow_reader_costs_no_memory_and_loses_nothing() {
    let server = Server::start();
    const MIB: usize = 48;
    // What a run costs however little it writes: the code that serves it, which is mapped in as it is used.
    let mut short = server.unix();
    short.send("/v1/runs", &[LINES], &python("print(1)"));
    assert_eq!(short.head().status, 200);
    while short.chunk().is_some() {}
    let before = server.peak_memory();
    let code = format!("import os\nfor _ in range({MIB} * 16): os.write(1, b'x' * 65536)");
    let mut connection = server.unix();
    connection.send("/v1/runs", &[LINES], &python(&code));
    // Nothing is read until the program cannot go on: its output is many times what is on the way.
    assert_eq!(connection.head().status, 200);
    let (mut total, mut line) = (0, Vec::new());
    while let Some(chunk) = connection.chunk() {
        line.extend(chunk);
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let event: Value = serde_json::from_slice(&line[..end]).expect("JSON");
            total += if event["type"] == "stdout" { bytes(&event).len() } else { 0 };
            line.drain(..=end);
        }
    }
    assert_eq!(total, MIB << 20);
    let more = server.peak_memory() - before;
    assert!(more < 8 << 20, "{more} bytes more for a stream of {MIB} MiB");
}

#[test]
fn error_after_the_stream_began_is_its_last_event() {
    let server = Server::start();
    let mut connection = server.unix();
    let code = "import time; print('up', flush=True); time.sleep(60)";
    connection.send("/v1/runs", &[LINES], &python(code));
    assert_eq!(connection.head().status, 200);
    connection.chunk().expect("it runs");
    let children = server.children();
    let [keeper] = children[..] else { panic!("not one keeper: {children:?}") };
    let keeper = Pid::from_raw(keeper.cast_signed()).expect("a process");
    kill_process(keeper, Signal::KILL).expect("it runs");
    let mut rest = Vec::new();
    while let Some(chunk) = connection.chunk() {
        rest.extend(chunk);
    }
    let text = String::from_utf8(rest).expect("text");
    let last: Value = serde_json::from_str(text.lines().last().expect("an event")).expect("JSON");
    assert_eq!((&last["type"], &last["status"]), (&json!("error"), &json!(500)), "{last}");
    assert_eq!(last["kind"], "lost", "{last}");
}
