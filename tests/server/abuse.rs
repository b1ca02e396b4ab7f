//! Clients that mean no good: each gets a clear answer or none, memory stays bounded, and others are served meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use belljar_tests::wait_until;
use serde_json::json;

use crate::http::Connection;
use crate::running::{LINES, Server, bash};

const MIB: u64 = 1 << 20;

fn is_served(server: &Server) {
    assert_eq!(server.run(&bash("echo in")).json()["stdout"], "in\n");
    let answer = server.tcp().get("/healthz", &[("Host", "localhost")]);
    assert_eq!(answer.status, 200);
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_keep_nobody_out() {
    let server = Server::start();
    is_served(&server);
    let before = server.peak_memory();
    // Those that were let go are closed by the server; as many as it holds stay open.
    let mut open = std::collections::VecDeque::new();
    for number in 0..10_000 {
        open.push_back(TcpStream::connect(("127.0.0.1", server.port)).expect("it accepts"));
        if number % 3 == 0 {
            // Some begin a request, and never end it.
            let stream = open.back_mut().expect("one");
            stream.write_all(b"POST /v1/runs HTTP/1.1\r\nHost: loc").ok();
        }
        if open.len() > 2000 {
            open.pop_front();
        }
        if number % 2500 == 2499 {
            is_served(&server);
        }
    }
    is_served(&server);
    let grown = server.peak_memory() - before;
    assert!(grown < 128 * MIB, "{} MiB", grown / MIB);
}

#[test]
fn slow_heads_and_bodies_hold_nobody_up() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "1"]);
    let key = server.key("slow", &[]);
    // Without a key a body is not even waited for.
    let mut nobody = server.tcp();
    nobody
        .write(b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        .expect("read");
    assert_eq!(nobody.answer().status, 401);
    let mut loris: Vec<Connection> = (0..50)
        .map(|_| {
            let mut one = server.tcp();
            one.write(b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").expect("read");
            one
        })
        .collect();
    for one in &mut loris {
        one.write(b"a").ok();
    }
    let look = || server.as_key(&key, "GET", "/v1/levels", &serde_json::Value::Null).status;
    assert_eq!(look(), 200);
    // A body that does not come has a place, and no more than one.
    let mut slow = server.tcp();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: 50\r\n\r\n{{"
    );
    slow.write(head.as_bytes()).expect("read");
    assert_eq!(server.run(&bash("echo in")).json()["stdout"], "in\n");
}

#[test]
fn slow_bodies_of_one_tenant_keep_no_other_out() {
    let server = Server::with(&["--max-runs", "2", "--max-queue", "6", "--rate", "off"]);
    let (slow, other) = (server.key("slow", &[]), server.key("other", &[]));
    // With a key and without: half of the places can be held by bodies that do not come, and no more.
    let open = |number: u32| {
        let key = format!("Idempotency-Key: k{number}\r\n");
        let mut one = server.tcp();
        let head = format!(
            "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {slow}\r\n{}\
             Content-Length: 50\r\n\r\n{{",
            if number.is_multiple_of(2) { key.as_str() } else { "" }
        );
        one.write(head.as_bytes()).expect("read");
        one
    };
    let held: Vec<Connection> = (0..4).map(open).collect();
    // The one that asks for the number is in it.
    wait_until("four are waited for", || server.gauge("belljar_http_in_flight") == 5);
    for number in 4..40 {
        let told = open(number).answer();
        assert_eq!((told.status, &told.json()["code"]), (429, &json!("busy")), "{told:?}");
    }
    for key in ["", "k"] {
        let bearer = format!("Bearer {other}");
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend((!key.is_empty()).then_some(("Idempotency-Key", key)));
        let answer = server.tcp().post("/v1/runs", &headers, &bash("echo in"));
        assert_eq!(answer.json()["stdout"], "in\n", "{answer:?}");
    }
    drop(held);
}

#[test]
fn archive_without_an_end_is_not_taken_in() {
    let server = Server::start();
    let mut connection = server.unix();
    let head =
        "POST /v1/sandboxes/import HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    connection.write(head.as_bytes()).expect("it reads");
    let megabyte = [b"100000\r\n".to_vec(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    // A disk of 100 MiB, and what an archive has beside it.
    let sent = (0..1000).take_while(|_| connection.write(&megabyte).is_ok()).count();
    assert!((356..1000).contains(&sent), "{sent} MiB were taken in");
    let told = connection.answer();
    assert_eq!((told.status, &told.json()["code"]), (413, &json!("too_large")), "{told:?}");
    is_served(&server);
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let server = Server::start();
    let long = "x".repeat(80 << 10);
    for head in [
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X-Many: 1\r\n".repeat(1000)),
    ] {
        let mut connection = server.unix();
        connection.write(head.as_bytes()).ok();
        let status = connection.answer().status;
        assert!(matches!(status, 400 | 414 | 431), "{status}");
    }
    is_served(&server);
}

#[test]
fn bodies_that_are_no_json_of_ours_are_told() {
    let server = Server::start();
    let deep = "[".repeat(100_000);
    let nested = format!("{{\"labels\": {}", "{\"a\":".repeat(10_000));
    let numbers = format!("{{\"limits\": {{\"wall_ms\": {}}}}}", "9".repeat(10_000));
    let bodies: [&[u8]; 9] = [
        deep.as_bytes(),
        nested.as_bytes(),
        numbers.as_bytes(),
        b"\xff\xfe{\"code\": \"1\"}",
        b"{\"language\": \"python\", \"code\": \"\xc3\x28\"}",
        b"{\"language\": \"python\", \"code\": \"\\ud800\"}",
        b"{\"code\": 1e999}",
        b"{} {}",
        b"\0",
    ];
    for path in ["/v1/runs", "/v1/batches", "/v1/grades", "/v1/evolutions", "/v1/sandboxes"] {
        for body in bodies {
            let answer = server.unix().ask("POST", path, &[], body);
            assert_eq!(
                answer.status,
                400,
                "{path}: {}: {answer:?}",
                String::from_utf8_lossy(&body[..body.len().min(40)])
            );
            assert_eq!(answer.json()["code"], "spec");
        }
    }
    for path in
        ["/v1/runs/%ff", "/v1/runs/%00", "/v1/sandboxes/%2e%2e%2f", "/v1/sandboxes/a%0d%0aX:1"]
    {
        let status = server.unix().get(path, &[]).status;
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
    is_served(&server);
}

#[test]
fn encoded_bodies_are_never_unpacked() {
    let server = Server::start();
    // What gzip makes of many noughts; the head alone would do, as it is not looked at.
    let bomb = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x"] {
        let answer =
            server.unix().ask("POST", "/v1/runs", &[("Content-Encoding", encoding)], &bomb);
        assert_eq!((answer.status, &answer.json()["code"]), (415, &json!("unsupported_encoding")));
    }
    let plain = bash("echo in").to_string();
    let answer = server.unix().ask(
        "POST",
        "/v1/runs",
        &[("Content-Encoding", "identity")],
        plain.as_bytes(),
    );
    assert_eq!(answer.status, 200);
}

#[test]
fn requests_cannot_be_hidden_in_others() {
    let server = Server::start();
    let smuggled = "GET /v1/levels HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for head in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 60\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 4, 60\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length : 4\r\n",
    ] {
        let mut connection = server.unix();
        let text =
            format!("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\n{head}\r\n0\r\n\r\n{smuggled}");
        connection.write(text.as_bytes()).ok();
        let answered = String::from_utf8_lossy(&connection.rest()).into_owned();
        let statuses: Vec<&str> =
            answered.lines().filter(|line| line.starts_with("HTTP/1.1 ")).collect();
        assert!(statuses.len() <= 1, "{head:?}: {statuses:?}");
        assert!(!answered.contains("\"levels\""), "{head:?}: {answered}");
    }
    is_served(&server);
}

#[test]
fn streams_that_are_left_end_what_they_asked_for() {
    let server = Server::with(&["--max-runs", "4", "--max-queue", "40"]);
    for _ in 0..5 {
        let mut all: Vec<Connection> = (0..20)
            .map(|_| {
                let mut one = server.unix();
                one.send("/v1/runs", &[LINES], &bash("while echo x; do :; done"));
                one
            })
            .collect();
        all[0].head();
        drop(all);
    }
    wait_until("nothing of them is left", || server.children().is_empty());
    is_served(&server);
}

#[test]
fn bytes_that_are_no_http_are_answered_or_closed() {
    let server = Server::start();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n",
        b"GET\0/ HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(40))).expect("a limit");
        stream.write_all(bytes).expect("it reads");
        stream.shutdown(std::net::Shutdown::Write).expect("ours");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    is_served(&server);
}
