//! How runs and servers end: nothing outlives the one who asked for it.

use std::fs;

use belljar_tests::{LEVELS, Level, TempDir, Token, directories_of, processes_with, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::Connection;
use crate::running::{self, LINES, Server, bash};

/// A program that becomes a process with this word in its arguments, and a daemon with it too.
fn marked(token: &Token, level: Level) -> Value {
    let code = format!(
        "import os, time\nif os.fork() == 0:\n os.setsid()\n os.execv('/bin/sleep', ['{0}', '99'])\n\
         print('up', flush=True)\nos.execv('/bin/sleep', ['{0}', '99'])",
        token.as_str()
    );
    json!({ "language": "python", "code": code, "level": level.name(), "limits": { "wall_ms": 90_000 } })
}

fn started(server: &Server, request: &Value) -> Connection {
    let mut connection = server.unix();
    connection.send("/v1/runs", &[LINES], request);
    assert_eq!(connection.head().status, 200);
    let chunk = connection.chunk().expect("it runs");
    assert!(String::from_utf8_lossy(&chunk).contains("up"));
    connection
}

/// The last event of a stream that goes on.
fn last_event(mut connection: Connection) -> Value {
    let mut rest = Vec::new();
    while let Some(chunk) = connection.chunk() {
        rest.extend(chunk);
    }
    let text = String::from_utf8(rest).expect("text");
    serde_json::from_str(text.lines().last().expect("an event")).expect("JSON")
}

#[test]
fn client_that_goes_away_ends_its_run() {
    let server = Server::start();
    for level in LEVELS {
        let token = Token::new();
        let connection = started(&server, &marked(&token, level));
        wait_until("it runs", || processes_with(token.as_str()).len() == 2);
        drop(connection);
        token.wait_until_gone();
    }
    // A document has said nothing yet when its client goes.
    let token = Token::new();
    let mut connection = server.unix();
    connection.send("/v1/runs", &[], &marked(&token, Level::Standard));
    wait_until("it runs", || processes_with(token.as_str()).len() == 2);
    drop(connection);
    token.wait_until_gone();
    // And a batch takes all of its runs along.
    let tokens = [Token::new(), Token::new()];
    let requests = tokens.each_ref().map(|token| marked(token, Level::Standard));
    let mut connection = server.unix();
    connection.send("/v1/batches", &[], &json!({ "requests": requests, "parallel": 2 }));
    for token in &tokens {
        wait_until("it runs", || processes_with(token.as_str()).len() == 2);
    }
    drop(connection);
    tokens.iter().for_each(Token::wait_until_gone);
    wait_until("the keepers are reaped", || server.children().is_empty());
}

#[test]
fn first_signal_lets_runs_end_and_the_exit_code_is_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start();
        let connection = started(&server, &bash("echo up; sleep 1; echo done"));
        let idle = server.unix();
        server.signal(signal);
        wait_until("nobody can connect any more", || !server.socket().exists());
        let last = last_event(connection);
        assert_eq!((&last["type"], &last["stdout"]), (&json!("outcome"), &json!("up\ndone\n")));
        assert_eq!(idle.rest(), b"", "who had asked for nothing is not waited for");
        let (ended, _) = server.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn second_signal_does_not_wait() {
    let server = Server::start();
    let token = Token::new();
    let connection = started(&server, &marked(&token, Level::Standard));
    server.signal(Signal::TERM);
    wait_until("it drains", || !server.socket().exists());
    server.signal(Signal::TERM);
    let last = last_event(connection);
    assert_eq!((&last["type"], &last["kind"]), (&json!("error"), &json!("cancelled")), "{last}");
    let (ended, _) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    token.assert_gone();
}

#[test]
fn draining_takes_no_longer_than_asked() {
    let server = Server::with(&["--drain", "200ms"]);
    let token = Token::new();
    let connection = started(&server, &marked(&token, Level::Standard));
    let mut document = server.unix();
    let other = Token::new();
    document.send("/v1/runs", &[], &marked(&other, Level::Standard));
    wait_until("it runs", || processes_with(other.as_str()).len() == 2);
    server.signal(Signal::TERM);
    assert_eq!(last_event(connection)["kind"], "cancelled");
    let answer = document.answer();
    assert_eq!((answer.status, &answer.json()["kind"]), (503, &json!("cancelled")));
    let (ended, _) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    token.assert_gone();
    other.assert_gone();
}

/// What stays outlives its server.
fn remove_sandbox(directory: TempDir) {
    let server = Server::started(directory, &[], &[]);
    let gone = server.unix().ask("DELETE", "/v1/sandboxes/a?force=true", &[], b"");
    assert_eq!(gone.status, 204, "{gone:?}");
}

#[test]
fn who_only_looks_on_does_not_hold_the_end_up() {
    let server = Server::with(&["--drain", "300s"]);
    let ask = |path: &str, body: Value| server.unix().post(path, &[], &body);
    assert_eq!(ask("/v1/sandboxes", json!({ "name": "a" })).status, 201);
    let begun = json!({ "cmd": ["sleep", "600"], "background": true });
    let exec = ask("/v1/sandboxes/a/exec", begun).json()["id"].as_str().expect("an id").to_owned();
    let paths = [
        "/v1/sandboxes/a/watch/workspace".to_owned(),
        "/v1/sandboxes/a/logs?follow=true".to_owned(),
        format!("/v1/sandboxes/a/execs/{exec}/events"),
    ];
    let looking: Vec<Connection> = paths
        .iter()
        .map(|path| {
            let mut one = server.unix();
            one.write(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("read");
            assert_eq!(one.head().status, 200, "{path}");
            one
        })
        .collect();
    server.signal(Signal::TERM);
    for (connection, path) in looking.into_iter().zip(&paths) {
        let last = last_event(connection);
        assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("draining")), "{path}");
    }
    let (ended, directory) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    remove_sandbox(directory);
}

#[test]
fn who_waits_for_a_program_in_a_sandbox_is_told_of_the_end() {
    let server = Server::with(&["--drain", "200ms"]);
    let made = server.unix().post("/v1/sandboxes", &[], &json!({ "name": "a" }));
    assert_eq!(made.status, 201);
    let lines = ("Accept", "application/x-ndjson");
    let all = [
        ("/v1/sandboxes/a/exec", json!({ "cmd": ["sleep", "600"] })),
        ("/v1/sandboxes/a/code", json!({ "code": "import time; time.sleep(600)" })),
        ("/v1/sandboxes/run_shell", json!({ "code": "sleep 600" })),
    ];
    let mut streams: Vec<Connection> = Vec::new();
    for (path, body) in &all {
        let mut one = server.unix();
        one.send(path, &[lines], body);
        assert_eq!(one.head().status, 200, "{path}");
        one.chunk().expect("it runs");
        streams.push(one);
    }
    let mut document = server.unix();
    document.send(all[0].0, &[], &all[0].1);
    wait_until("it runs", || {
        let execs = server.unix().get("/v1/sandboxes/a/execs?limit=10", &[]).json();
        execs["execs"].as_array().is_some_and(|all| all.len() >= 2)
    });
    server.signal(Signal::TERM);
    for (one, (path, _)) in streams.into_iter().zip(&all) {
        assert_eq!(last_event(one)["code"], "cancelled", "{path}");
    }
    let told = document.answer();
    assert_eq!((told.status, &told.json()["code"]), (503, &json!("cancelled")), "{told:?}");
    let (ended, directory) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    remove_sandbox(directory);
}

#[test]
fn killed_server_leaves_nothing() {
    let server = Server::start();
    let tokens = LEVELS.map(|_| Token::new());
    let runs: Vec<Connection> = LEVELS
        .iter()
        .zip(&tokens)
        .map(|(level, token)| started(&server, &marked(token, *level)))
        .collect();
    let pid = server.id();
    assert!(!directories_of(pid).is_empty(), "there is something that could be left");
    server.signal(Signal::KILL);
    let (ended, directory) = server.wait();
    assert_eq!(ended.signal, Some(9), "{ended:?}");
    tokens.iter().for_each(Token::wait_until_gone);
    wait_until("its directories are gone", || directories_of(pid).is_empty());
    drop(runs);
    // Its socket is still there, and the next one takes its place.
    assert!(directory.join("belljar.sock").exists());
    let next = Server::started(directory, &[], &[]);
    assert_eq!(next.run(&bash("echo next")).json()["stdout"], "next\n");
}

#[test]
fn living_server_is_not_pushed_aside() {
    let server = Server::start();
    let directory = TempDir::new();
    let socket = server.socket().display().to_string();
    let other = running::program(&directory, &["--socket", &socket]).run();
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(other.out().contains("has a server already"), "{other:?}");
    assert_eq!(server.run(&bash("echo still here")).status, 200);
}

#[test]
fn file_that_is_no_socket_is_left_alone() {
    let directory = TempDir::new();
    let file = directory.file("belljar.sock", "precious");
    let ended = running::program(&directory, &[]).run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out().contains("is no socket"), "{ended:?}");
    assert_eq!(fs::read_to_string(file).expect("it is there"), "precious");
}

#[test]
fn sandboxes_of_a_live_server_survive_the_start_of_another() {
    let server = Server::start();
    let token = Token::new();
    let connection = started(&server, &marked(&token, Level::Standard));
    let other = Server::start();
    assert_eq!(other.run(&bash("echo other")).status, 200);
    assert_eq!(processes_with(token.as_str()).len(), 2, "the sweep took only what is dead");
    drop(connection);
    token.wait_until_gone();
}
