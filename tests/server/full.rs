//! A full server says so at once, and when to come back.

use std::os::fd::AsFd;

use belljar_tests::{DEADLINE, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::http::Connection;
use crate::running::{LINES, Server, bash};

/// Starts a run that goes on until its connection is closed.
fn occupy(server: &Server) -> Connection {
    let mut connection = server.unix();
    connection.send("/v1/runs", &[LINES], &bash("echo up; sleep 60"));
    assert_eq!(connection.head().status, 200);
    connection.chunk().expect("it runs");
    connection
}

#[test]
fn beyond_the_queue_the_answer_is_busy_with_a_time_to_come_back() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "0"]);
    let occupied = occupy(&server);
    for path in ["/v1/runs", "/v1/batches"] {
        let answer = server.unix().post(path, &[], &json!({ "requests": [] }));
        assert_eq!(answer.status, 429, "{answer:?}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.json()["kind"], "busy");
    }
    assert_eq!(server.unix().get("/healthz", &[]).status, 200, "health is never busy");
    drop(occupied);
    wait_until("there is room again", || server.run(&bash("echo in")).status == 200);
}

#[test]
fn who_waits_runs_when_there_is_room() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "1"]);
    let occupied = occupy(&server);
    let mut two = [server.unix(), server.unix()];
    two.iter_mut().for_each(|one| one.send("/v1/runs", &[], &bash("echo in turn")));
    let mut ready = two.each_ref().map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN));
    let deadline = Timespec::try_from(DEADLINE).expect("a time");
    assert_eq!(poll(&mut ready, Some(&deadline)), Ok(1), "one is told at once, the other waits");
    let told = usize::from(ready[0].revents().is_empty());
    let [first, second] = two;
    let (mut refused, mut waiting) = if told == 0 { (first, second) } else { (second, first) };
    assert_eq!(refused.answer().status, 429);
    drop(occupied);
    assert_eq!(waiting.answer().json()["stdout"], "in turn\n");
}

#[test]
fn who_waits_and_goes_away_leaves_its_place() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "1"]);
    let occupied = occupy(&server);
    let mut waiting = server.unix();
    waiting.send("/v1/runs", &[], &bash("echo never"));
    wait_until("the queue is full", || {
        // A place that this very request took is given back with its connection.
        let mut asks = server.unix();
        asks.send("/v1/runs", &[], &json!({}));
        asks.answer().status == 429
    });
    drop(waiting);
    wait_until("its place is free", || server.run(&json!({})).status == 400);
    drop(occupied);
}

#[test]
fn many_clients_are_all_served() {
    let server = Server::with(&["--max-runs", "2", "--max-queue", "40"]);
    let clients: Vec<_> = (0..20)
        .map(|number| {
            let mut connection = server.unix();
            connection.send("/v1/runs", &[], &bash(&format!("echo {number}")));
            connection
        })
        .collect();
    for (number, mut connection) in clients.into_iter().enumerate() {
        assert_eq!(connection.answer().json()["stdout"], format!("{number}\n"));
    }
}

#[test]
fn connections_are_bounded_and_idle_ones_make_room() {
    let options = ["--max-runs", "1", "--max-queue", "0", "--max-connections", "8"];
    let server = Server::with(&options);
    let mut all: Vec<Connection> = (0..8).map(|_| server.unix()).collect();
    let last = all.last_mut().expect("many");
    assert_eq!(last.get("/healthz", &[]).status, 200, "the last of them is served");
    for _ in 0..20 {
        let mut beyond = server.unix();
        assert_eq!(
            beyond.get("/healthz", &[]).status,
            200,
            "one that asked for nothing makes room"
        );
        all.push(beyond);
    }
    drop(all);
    // Each has begun a request whose body does not come, and is busy with that.
    let begin = || {
        let mut connection = server.unix();
        let head = "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n";
        connection.write(head.as_bytes()).expect("it is read");
        connection
    };
    let mut busy: Vec<Connection> = (0..8).map(|_| begin()).collect();
    wait_until("all are busy", || {
        let mut beyond = server.unix();
        beyond.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").ok();
        let is_full = beyond.answer().status == 503;
        if !is_full {
            // It took the place of one that was not busy yet.
            busy.push(begin());
        }
        is_full
    });
    let answer = server.unix().answer();
    assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("busy")));
    let other = server.tcp().get("/healthz", &[("Host", "localhost")]);
    assert_eq!(other.status, 200, "the other listener has room of its own");
    drop(busy);
    wait_until("there is room again", || {
        let mut connection = server.unix();
        connection.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").ok();
        connection.answer().status == 200
    });
}
