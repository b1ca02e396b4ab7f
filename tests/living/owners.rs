//! Limits on the whole: how many sandboxes and how much disk each owner may have, and time to live though no server runs.

use std::io::{Read, Write};
use std::net::TcpStream;

use belljar_tests::{Ended, Program, Server, TempDir, wait_until};
use rustix::process::Signal;

use crate::verbs::Desk;

/// `belljar sandbox` through this server.
fn run(server: &Server, words: &[&str]) -> Ended {
    Program::belljar().args(["sandbox", "--server"]).arg(server.socket()).args(words).run()
}

#[track_caller]
fn ok(server: &Server, words: &[&str]) -> String {
    let ended = run(server, words);
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    ended.out()
}

#[track_caller]
fn refused(server: &Server, words: &[&str], why: &str) {
    let ended = run(server, words);
    assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
    assert!(ended.err().contains(why), "{words:?}: {ended:?}");
}

/// What a server says to a request over TCP with its token.
fn by_token(server: &Server, method: &str, path: &str, body: &str) -> (u16, String) {
    let said = server.lines().iter().find_map(|line| line.split("http://127.0.0.1:").nth(1));
    let port: u16 = said.expect("a port").trim().parse().expect("a number");
    let token = std::fs::read_to_string(server.path().join("state/token")).expect("a token");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        token.trim(),
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.expect("a status"), answer)
}

#[test]
fn an_owner_has_so_many_sandboxes_and_a_key_its_own() {
    let options = ["--listen", "127.0.0.1:0", "--pool", "0", "--owner-sandboxes", "2"];
    let server = Server::with(&options);
    let me = format!("uid {}", rustix::process::geteuid().as_raw());
    ok(&server, &["create", "one"]);
    assert!(ok(&server, &["info", "one"]).contains(&format!("owner     {me}\n")));
    let beyond = format!("{me} has 2 sandboxes: at most 2 (--owner-sandboxes). hint: remove one");
    // All forks or none, and each counts.
    refused(&server, &["fork", "one", "-n", "2"], &beyond);
    ok(&server, &["fork", "one", "--as", "two"]);
    refused(&server, &["create", "three"], &beyond);
    let directory = TempDir::new();
    let file = directory.join("one.tar");
    let file = file.to_str().expect("a name");
    ok(&server, &["export", "one", file]);
    refused(&server, &["import", file, "three"], &beyond);
    // Who comes with the token is somebody else.
    let (status, told) = by_token(&server, "POST", "/v1/sandboxes", r#"{"name": "theirs"}"#);
    assert_eq!(status, 201, "{told}");
    assert!(told.contains(r#""owner":"key token""#), "{told}");
    let (status, told) =
        by_token(&server, "POST", "/v1/sandboxes/one/fork", r#"{"count": 2, "as": "x"}"#);
    assert_eq!(status, 409, "{told}");
    assert!(told.contains("key token has 2 sandboxes: at most 2"), "{told}");
    ok(&server, &["rm", "two"]);
    ok(&server, &["create", "three"]);
    ok(&server, &["rm", "--force", "one", "three", "theirs"]);
}

#[test]
fn the_disks_of_an_owner_are_bounded_together_and_survive_a_restart() {
    let options = ["--pool", "0", "--owner-disk", "100m", "--sandbox-disk", "150m"];
    let server = Server::with(&options);
    ok(&server, &["create", "one", "--disk", "60m"]);
    server.signal(Signal::KILL);
    let (_, directory) = server.wait();
    let server = Server::in_directory(directory, &options);
    refused(&server, &["create", "two", "--disk", "60m"], "(--owner-disk). hint: remove a sandbox");
    ok(&server, &["create", "two", "--disk", "40m"]);
    refused(&server, &["fork", "two"], "would have 146800640 bytes of disk: at most 104857600");
    ok(&server, &["rm", "--force", "one", "two"]);
    drop(server);
}

#[test]
fn time_to_live_is_kept_though_the_server_was_down() {
    let desk = Desk::new();
    let server = desk.serve();
    desk.ok(&["create", "stopped", "--ttl", "2s"]);
    desk.ok(&["create", "running", "--ttl", "2s"]);
    desk.ok(&["create", "stays", "--ttl", "1h"]);
    desk.ok(&["stop", "stopped"]);
    drop(server); // by SIGKILL
    let sandboxes = desk.state().join("sandboxes");
    let ended = || {
        let all = std::fs::read_dir(&sandboxes).expect("a directory").flatten();
        all.filter(|one| one.path().join("ended.json").exists()).count()
    };
    wait_until("the keeper of the running one has ended it", || ended() == 2);
    let _server = desk.serve();
    desk.refused(&["info", "stopped"], "there is no sandbox stopped");
    desk.refused(&["info", "running"], "there is no sandbox running");
    desk.ok(&["info", "stays"]);
}
