//! What forks have in common: files, and nothing else. And the test of it that users can run, which must be able to fail.

use serde_json::{Value, json};

use crate::verbs::{Desk, text};

/// The checks of a report that are not passed, and the exit code.
fn check(desk: &Desk, words: &[&str]) -> (Vec<String>, Option<i32>) {
    let words = [&["check-fork"], words, &["--json"]].concat();
    let ended = desk.run(&words);
    let report: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    let checks = report["checks"].as_array().unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(checks.len(), 7, "{report}");
    let broken = checks.iter().filter(|one| one["ok"] == json!(false));
    assert!(broken.clone().all(|one| one["fix"].is_string()), "{report}");
    let names = broken.map(|one| one["name"].as_str().expect("a name").to_owned());
    (names.collect(), ended.code)
}

fn names(desk: &Desk) -> usize {
    desk.json(&["list"])["sandboxes"].as_array().expect("a list").len()
}

#[test]
fn forks_pass_the_test_and_none_that_it_made_is_left() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--env", "PLAIN=1", "--env", "API_TOKEN=secret"]);
    desk.ok(&["shell", "one", "-c", "echo x > file; echo y > /dev/shm/file"]);
    assert_eq!(check(&desk, &["one"]), (Vec::new(), Some(0)));
    assert_eq!(names(&desk), 1);
    desk.ok(&["fork", "one", "-n", "2", "--as", "try"]);
    assert_eq!(check(&desk, &["one", "try-1", "try-2"]), (Vec::new(), Some(0)));
    assert_eq!(names(&desk), 3);
    let told = desk.ok(&["check-fork", "one"]);
    assert!(told.starts_with("ok  host_name   one, sandbox-"), "{told}");
    desk.refused(&["check-fork", "none"], "there is no sandbox none");
    desk.ok(&["stop", "one"]);
    desk.refused(&["check-fork", "one"], "belljar sandbox start one");
}

#[test]
fn the_test_of_forks_fails_when_something_is_shared() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--env", "API_TOKEN=secret"]);
    desk.ok(&["shell", "one", "-c", "echo 0123456789abcdef > /etc/machine-id"]);
    let (broken, code) = check(&desk, &["one"]);
    assert_eq!((broken, code), (vec!["identity".to_owned()], Some(1)));
    assert_eq!(names(&desk), 1, "forks are removed though the test failed");
    let plain = desk.run(&["check-fork", "one"]);
    let (out, err) = (text(&plain.stdout), text(&plain.stderr));
    assert!(out.contains("SHARED  identity") && out.contains("/etc/machine-id"), "{out}");
    assert!(err.contains("identity: remove these files before forking"), "{err}");
    desk.ok(&["shell", "one", "-c", "rm /etc/machine-id"]);
    desk.ok(&["fork", "one", "--as", "kept", "--keep-env", "API_TOKEN"]);
    assert_eq!(check(&desk, &["one", "kept"]), (vec!["secrets".to_owned()], Some(1)));
    // A sandbox has everything in common with itself.
    let (broken, code) = check(&desk, &["one", "one"]);
    assert_eq!(broken, ["host_name", "namespaces", "secrets", "leases"]);
    assert_eq!(code, Some(1));
    desk.ok(&["create", "two", "--volume", "data"]);
    assert_eq!(check(&desk, &["two"]), (vec!["leases".to_owned()], Some(1)));
}

#[test]
fn secrets_are_handed_on_to_forks_only_by_name() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--env", "PLAIN=1", "--env", "API_TOKEN=t", "--env", "DB_KEY=k"]);
    let show = |name: &str| desk.ok(&["shell", name, "-c", "echo $PLAIN.$API_TOKEN.$DB_KEY"]);
    assert_eq!(show("one"), "1.t.k\n");
    let forked = desk.run(&["fork", "one", "--as", "bare"]);
    let told = text(&forked.stderr);
    assert!(told.contains("not handed on: API_TOKEN") && told.contains("--keep-env"), "{told}");
    assert_eq!(show("bare"), "1..\n");
    let forked = desk.json(&["fork", "one", "--as", "kept", "--keep-env", "DB_KEY"]);
    assert_eq!(forked["withheld"], json!(["API_TOKEN"]), "{forked}");
    assert_eq!(show("kept"), "1..k\n");
    desk.refused(&["fork", "one", "--keep-env", "NONE"], "which is no variable of one");
    assert_eq!(names(&desk), 3, "none is made when one cannot be");
}

/// Holds a port, sockets of both kinds, and a lock; then tries to have them, and to reach them.
const HOLD: &str = "
import fcntl, socket, time
tcp = socket.create_server(('127.0.0.1', 7777))
unix = socket.socket(socket.AF_UNIX); unix.bind('socket'); unix.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0name'); abstract.listen()
lock = open('lock', 'r'); fcntl.flock(lock, fcntl.LOCK_EX)
print('held', flush=True)
time.sleep(300)
";
const TRY: &str = "
import fcntl, socket
def told(act):
    try: act(); return 'done'
    except OSError as error: return type(error).__name__
def reach(kind, place):
    one = socket.socket(kind); one.settimeout(5); one.connect(place)
print(told(lambda: reach(socket.AF_INET, ('127.0.0.1', 7777))))
print(told(lambda: reach(socket.AF_UNIX, 'socket')))
print(told(lambda: reach(socket.AF_UNIX, '\\0name')))
print(told(lambda: fcntl.flock(open('lock'), fcntl.LOCK_EX | fcntl.LOCK_NB)))
print(told(lambda: socket.create_server(('127.0.0.1', 7777)).close()))
";

#[test]
fn a_fork_has_no_port_socket_or_lock_of_its_parent() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    desk.ok(&["shell", "one", "-c", "touch lock"]);
    desk.ok(&["snapshot", "one"]); // the file of the lock is one that both have from here on
    desk.ok(&["exec", "one", "--background", "--", "python3", "-c", HOLD]);
    let deadline = std::time::Instant::now() + belljar_tests::DEADLINE;
    while !desk.ok(&["logs", "one"]).contains("held") {
        assert!(std::time::Instant::now() < deadline, "{}", desk.ok(&["logs", "one"]));
    }
    desk.ok(&["fork", "one", "--as", "two"]);
    let try_in = |name: &str| desk.ok(&["exec", name, "--", "python3", "-c", TRY]);
    // Inside the one that holds them they are there, and taken.
    assert_eq!(try_in("one"), "done\ndone\ndone\nBlockingIOError\nOSError\n");
    let refused = "ConnectionRefusedError\n".repeat(3);
    assert_eq!(try_in("two"), format!("{refused}done\ndone\n"));
}

#[test]
fn a_promoted_fork_has_its_new_host_name_at_once() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    desk.ok(&["fork", "one", "--as", "two"]);
    let script = "uname -n; read line; uname -n";
    let words = ["exec", "two", "--background", "--keep-stdin", "--", "bash", "-c", script];
    let id = desk.ok(&words).trim().to_owned();
    while !desk.ok(&["logs", "two"]).contains("two") {}
    desk.ok(&["promote", "two", "one"]);
    let attach = ["sandbox", "attach", "one", &id, "--stdin"];
    let ended = desk.program().args(attach).stdin("go\n").run();
    assert_eq!(text(&ended.stdout), "two\none\n", "what ran goes on: {ended:?}");
    assert_eq!(check(&desk, &["one"]), (Vec::new(), Some(0)));
}
