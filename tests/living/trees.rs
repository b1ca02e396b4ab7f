//! Files of a sandbox through the real runtime: over HTTP, by commands, and by the library where only that can show it.

use std::io::Write;
use std::time::{Duration, Instant};

use belljar::living::{FileFault, Force, InsidePath, Sandboxes};
use belljar::sandbox::SandboxRequest;
use belljar_tests::{DEADLINE, Program, Running, TempDir, block_on, engine};
use serde_json::{Value, json};

use crate::http::Connection;
use crate::speaking::Client;
use crate::verbs::Desk;

/// An agent that does not answer is given up after so long: whoever is told sooner did not wait for one.
const AGENTS_TIME: Duration = Duration::from_secs(30);

/// A server with one sandbox, called `one`.
pub(crate) struct Served {
    pub client: Client,
    pub server: Option<Running>,
    pub desk: Desk,
}

impl Served {
    pub(crate) fn new(request: Value) -> Self {
        let desk = Desk::new();
        let server = Some(desk.serve());
        let client = Client::new(&desk.socket);
        let mut request = request;
        request["name"] = "one".into();
        client.post("/v1/sandboxes", &request).is(201);
        Self { client, server, desk }
    }

    pub(crate) fn at(rest: &str) -> String {
        format!("/v1/sandboxes/one{rest}")
    }

    /// What a script prints inside.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) -> String {
        let said = self.client.post(&Self::at("/shell"), &json!({ "script": script })).is(200);
        let told = said.json();
        assert_eq!(told["end"]["exit_code"], 0, "{told}");
        told["stdout"].as_str().expect("text").to_owned()
    }

    fn file(&self, path: &str) -> String {
        self.client.get(&Self::at(&format!("/files{path}"))).is(200).text()
    }
}

#[test]
fn files_are_read_written_appended_and_told_of() {
    let served = Served::new(json!({}));
    let (client, at) = (&served.client, |path: &str| Served::at(&format!("/files{path}")));
    client.put(&at("/workspace/deep/down/file"), b"hello").is(204);
    assert_eq!(served.shell("cat deep/down/file"), "hello", "directories are made");
    client.put(&at("/workspace/deep/down/file?append=true"), b" world").is(204);
    client.put(&at("/workspace/deep/down/file?offset=0"), b"J").is(204);
    assert_eq!(served.file("/workspace/deep/down/file"), "Jello world");
    assert_eq!(served.file("/workspace/deep/down/file?offset=6&length=3"), "wor");
    client.put(&at("/workspace/deep/down/file?exclusive=true"), b"x").refused(409, "exists");
    client.put(&at("/workspace/deep/down/file?append=true&offset=1"), b"x").refused(400, "spec");
    client.put(&at("/workspace/deep/down/file?bogus=1"), b"x").refused(400, "spec");
    client.put(&at("/workspace/run?mode=493"), b"#!/bin/sh\necho ran").is(204);
    assert_eq!(served.shell("./run"), "ran\n");
    let told = client.get(&at("/workspace/run?stat=true")).is(200).json();
    assert_eq!(
        (&told["kind"], &told["bytes"], &told["mode"]),
        (&json!("file"), &json!(18), &json!(0o755))
    );
    client.get(&at("/no/such")).refused(404, "not_found");
    client.get(&at("/workspace")).refused(409, "is_a_directory");
    let large: Vec<u8> = (0..3_000_000u32).map(|one| one.to_le_bytes()[0]).collect();
    client.put(&at("/workspace/large"), &large).is(204);
    assert_eq!(client.get(&at("/workspace/large")).is(200).body, large);
}

#[test]
fn directories_are_made_listed_moved_and_removed() {
    let served = Served::new(json!({}));
    let (client, at) = (&served.client, |path: &str| Served::at(&format!("/files{path}")));
    let none = json!({});
    client.post(&at("/workspace/a/b?make=directory"), &none).is(204);
    client.put(&at("/workspace/a/b/file"), b"1").is(204);
    served.shell("ln -s b a/link; mkfifo a/fifo");
    let listed = client.get(&at("/workspace/a?list=true")).is(200).json();
    let kinds: Vec<(&str, &str)> = listed["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|one| (one["name"].as_str().expect("a name"), one["kind"].as_str().expect("a kind")))
        .collect();
    assert_eq!(kinds, [("b", "directory"), ("fifo", "other"), ("link", "symlink")]);
    // At once, and not when somebody writes to it.
    client.get(&at("/workspace/a/fifo")).refused(409, "not_regular");
    client.post(&at("/workspace/a/b/file?move_to=/workspace/a/moved"), &none).is(204);
    client.put(&at("/workspace/other"), b"2").is(204);
    let over = at("/workspace/other?move_to=/workspace/a/moved");
    client.post(&over, &none).refused(409, "exists");
    client.post(&format!("{over}&replace=true"), &none).is(204);
    assert_eq!(served.shell("cat a/moved; ls a/b"), "2");
    let shared = at("/workspace/a/moved?move_to=/dev/shm/moved");
    client.post(&shared, &none).refused(409, "other_file_system");
    client.post(&at("/workspace/a/moved?mode=256"), &none).is(204);
    assert_eq!(served.shell("stat -c %a a/moved"), "400\n");
    client.post(&at("/workspace/a?make=file"), &none).refused(400, "spec");
    client.delete(&at("/workspace/a")).refused(409, "not_empty");
    client.delete(&at("/workspace/a?recursive=true")).is(204);
    client.delete(&at("/workspace/a")).refused(404, "not_found");
    assert_eq!(served.shell("ls"), "");
}

#[test]
fn paths_lead_where_they_lead_inside() {
    let served = Served::new(json!({}));
    let secret = served.desk.directory.file("secret", "of the host");
    let shown = secret.display().to_string();
    let (client, at) = (&served.client, |path: &str| Served::at(&format!("/files{path}")));
    client.get(&at(&shown)).refused(404, "not_found");
    served.shell(&format!("ln -s {shown} link; ln -s / root; ln -s /proc/1/root/etc/shadow s"));
    client.get(&at("/workspace/link")).refused(404, "not_found");
    client.get(&at(&format!("/workspace/root{shown}"))).refused(404, "not_found");
    client.get(&at("/workspace/s")).refused(403, "denied");
    assert!(served.file("/workspace/root/etc/passwd").contains("sandbox:x:1000"));
    assert!(served.file("/%2e%2e/%2e%2e/etc/passwd").contains("sandbox:x:1000"));
    client.put(&at("/workspace/link"), b"mine");
    assert_eq!(std::fs::read_to_string(&secret).expect("a file"), "of the host");
    client.get(&at("/a%00b")).refused(400, "spec");
}

/// The next events, until there are as many.
fn events(connection: &mut Connection, most: usize) -> Vec<(String, String)> {
    let mut told = Vec::new();
    while told.len() < most {
        let chunk = connection.chunk().expect("it goes on");
        for line in String::from_utf8(chunk).expect("text").lines() {
            let event: Value = serde_json::from_str(line).expect("JSON");
            let text = |field: &str| event[field].as_str().expect("text").to_owned();
            let next = (text("kind"), text("path"));
            // Writing and closing are told as one if they are read as one.
            if told.last() != Some(&next) {
                told.push(next);
            }
        }
    }
    told
}

#[test]
fn what_changes_is_told_while_it_is_watched_and_after_a_pause() {
    let served = Served::new(json!({}));
    served.shell("mkdir -p below");
    let (said, mut watched) = served.client.begin(&Served::at("/watch/workspace?recursive=true"));
    said.is(200);
    served.shell("echo x > below/file; mv below/file moved; rm moved");
    let expected = [
        ("created", "/workspace/below/file"),
        ("written", "/workspace/below/file"),
        ("moved_from", "/workspace/below/file"),
        ("moved_to", "/workspace/moved"),
        ("removed", "/workspace/moved"),
    ]
    .map(|(kind, path)| (kind.to_owned(), path.to_owned()));
    assert_eq!(events(&mut watched, 5), expected);
    served.client.post(&Served::at("/pause"), &json!({})).is(200);
    served.client.post(&Served::at("/resume"), &json!({})).is(200);
    served.shell("mkdir later");
    let told = events(&mut watched, 1);
    assert_eq!(told[0], ("created".to_owned(), "/workspace/later".to_owned()));
    // What runs inside may not watch: it would be told of files that are the host's own.
    let code = "import ctypes; l = ctypes.CDLL(None, use_errno=True); \
                print(l.inotify_init1(0), ctypes.get_errno())";
    assert_eq!(served.shell(&format!("python3 -c '{code}'")), "-1 1\n");
}

#[test]
fn watches_are_eight_and_a_ninth_is_refused() {
    let served = Served::new(json!({}));
    let watch = || served.client.begin(&Served::at("/watch/workspace"));
    let mut open: Vec<_> = (0..8).map(|_| watch()).collect();
    assert!(
        open.iter().all(|(said, _)| said.status == 200),
        "{:?}",
        open.iter().map(|one| &one.0).collect::<Vec<_>>()
    );
    watch().0.refused(400, "refused");
    open.pop();
    let deadline = Instant::now() + DEADLINE;
    while watch().0.status != 200 {
        assert!(Instant::now() < deadline, "a watch that is over leaves its place");
    }
}

/// An archive of a tree, by the host's tar.
fn packed(directory: &TempDir) -> Vec<u8> {
    let tree = directory.join("tree");
    std::fs::create_dir_all(tree.join("sub")).expect("a directory");
    std::fs::write(tree.join("sub/file"), "here").expect("a file");
    std::os::unix::fs::symlink("sub", tree.join("link")).expect("a link");
    let made = Program::new("tar").args(["-C"]).arg(&tree).args(["-cf", "-", "."]).run();
    assert_eq!(made.code, Some(0), "{made:?}");
    made.stdout
}

#[test]
fn trees_travel_as_archives_both_ways() {
    let served = Served::new(json!({}));
    let (client, archive) = (&served.client, packed(&served.desk.directory));
    let told = client.put(&Served::at("/tar/workspace/in"), &archive).is(200).json();
    assert_eq!((&told["files"], &told["links"]), (&json!(1), &json!(1)), "{told}");
    assert_eq!(served.shell("cat in/link/file"), "here");
    let out = client.get(&Served::at("/tar/workspace/in")).is(200).body;
    let listed = Program::new("tar").args(["-tf", "-"]).stdin(out).run();
    let listed = String::from_utf8(listed.stdout).expect("text");
    let mut names: Vec<&str> = listed.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["in/", "in/link", "in/sub/", "in/sub/file"]);
    client.put(&Served::at("/tar/workspace/x"), b"no archive").refused(400, "refused");
    let cut = &archive[..1200]; // in the middle of a header
    client.put(&Served::at("/tar/workspace/x"), cut).refused(400, "refused");
    client.get(&Served::at("/tar/no/such")).refused(404, "not_found");
}

#[test]
fn a_full_disk_is_an_error_at_once_and_can_be_cleared() {
    let served = Served::new(json!({"limits": {"disk_bytes": 32 << 20}}));
    let (client, at) = (&served.client, |path: &str| Served::at(&format!("/files{path}")));
    let large = vec![7; 48 << 20];
    client.put(&at("/workspace/large"), &large).refused(507, "disk_full");
    client.get(&at("/workspace/large")).refused(404, "not_found");
    assert_eq!(served.shell("ls -A"), "", "nothing half-written stays");
    let mut archive = Vec::new();
    let directory = served.desk.directory.join("big");
    std::fs::create_dir(&directory).expect("a directory");
    std::fs::write(directory.join("big"), &large).expect("a file");
    let made = Program::new("tar").args(["-C"]).arg(&directory).args(["-cf", "-", "."]).run();
    archive.write_all(&made.stdout).expect("memory");
    client.put(&Served::at("/tar/workspace/tree"), &archive).refused(507, "disk_full");
    client.delete(&at("/workspace/tree?recursive=true"));
    client.put(&at("/workspace/small"), b"fits").is(204);
    assert_eq!(served.file("/workspace/small"), "fits");
}

#[test]
fn whoever_is_at_it_when_the_sandbox_is_paused_is_told_at_once() {
    let served = Served::new(json!({}));
    let (client, at) = (&served.client, |path: &str| Served::at(&format!("/files{path}")));
    client.put(&at("/workspace/file"), b"before").is(204);
    // Half of a file is there, and the agent waits for the rest.
    let mut slow = Connection::unix(&served.desk.socket);
    let path = at("/workspace/slow");
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n");
    slow.write(head.as_bytes()).expect("it is read");
    // More than all that is between us and the agent could hold.
    slow.write(&[1; 3_000_000]).expect("it is read");
    client.post(&Served::at("/pause"), &json!({})).is(200);
    let begun = Instant::now();
    slow.write(&[1; 1_000_000]).ok(); // it may have been refused by now
    assert_eq!(slow.answer().status, 409);
    for refused in [
        client.get(&at("/workspace/file")),
        client.put(&at("/workspace/file"), b"x"),
        client.get(&Served::at("/tar/workspace")),
        client.begin(&Served::at("/watch/workspace")).0,
    ] {
        let problem = refused.refused(409, "conflict");
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.contains("paused") && detail.contains("resume one"), "{detail}");
    }
    assert!(begun.elapsed() < AGENTS_TIME, "{:?}", begun.elapsed());
    client.post(&Served::at("/resume"), &json!({})).is(200);
    assert_eq!(client.get(&at("/workspace/file")).is(200).text(), "before");
}

#[test]
fn files_that_were_taken_hold_of_before_a_pause_are_refused_at_once_too() {
    let directory = TempDir::new();
    block_on(async {
        let all = Sandboxes::open(&engine(), &directory.join("state")).await.expect("opened");
        let request = SandboxRequest { name: Some("one".into()), ..SandboxRequest::default() };
        all.create(request).await.expect("it is made");
        let files = all.files("one").await.expect("files");
        let path = InsidePath::new("/etc/passwd").expect("a path");
        // An agent waits for the next question from now on, and is frozen with all the rest.
        files.read(&path, 1 << 20).await.expect("it is read");
        all.pause("one").await.expect("it is paused");
        let begun = Instant::now();
        let refused = files.read(&path, 1 << 20).await.expect_err("nothing in it answers");
        assert_eq!(refused.fault, FileFault::Paused, "{refused}");
        assert!(begun.elapsed() < AGENTS_TIME, "{:?}", begun.elapsed());
        all.resume("one").await.expect("it goes on");
        files.read(&path, 1 << 20).await.expect("it is read again");
        all.remove("one", Force::Yes).await.expect("it is removed");
    });
}

#[test]
fn commands_list_watch_and_copy_and_say_why_not() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    let touch = "for i in $(seq 600); do mkdir $i; sleep 0.1; done";
    desk.ok(&["exec", "one", "--background", "--", "bash", "-c", touch]);
    let watch = |options: &[&str]| {
        let words = [&["sandbox", "watch", "one", "/workspace"], options].concat();
        desk.program().args(words).start().read_line()
    };
    let line = watch(&[]);
    assert!(line.starts_with("created") && line.ends_with("/\n"), "{line:?}");
    let told: Value = serde_json::from_str(&watch(&["--json"])).expect("JSON");
    assert_eq!((&told["kind"], &told["directory"]), (&json!("created"), &json!(true)), "{told}");
    desk.ok(&["kill", "one"]);
    desk.ok(&["start", "one"]);
    let listed = desk.json(&["ls", "one"]);
    assert_eq!(listed["entries"][0]["kind"], "directory", "{listed}");
    let file = desk.directory.file("data.csv", "1,2");
    desk.ok(&["cp", file.to_str().expect("a name"), "one:/workspace/"]);
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "data.csv"]), "1,2");
    let back = desk.directory.join("back.csv");
    let copied = desk.json(&["cp", "one:data.csv", back.to_str().expect("a name")]);
    assert_eq!((&copied["files"], &copied["bytes"]), (&json!(1), &json!(3)), "{copied}");
    let listed = desk.json(&["ls", "one", "/"]);
    assert!(listed["entries"].as_array().is_some_and(|all| all.len() > 5), "{listed}");
    desk.ok(&["cp", file.to_str().expect("a name"), "one:/home/sandbox/named.csv"]);
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "/home/sandbox/named.csv"]), "1,2");
    let large = desk.directory.file("large", vec![1; 4 << 20]);
    let large = large.to_str().expect("a name");
    desk.refused(&["cp", large, "none:/workspace/"], "there is no sandbox none");
    desk.ok(&["pause", "one"]);
    let begun = Instant::now();
    desk.refused(&["ls", "one"], "belljar sandbox resume one");
    desk.refused(&["cp", "one:data.csv", "x"], "belljar sandbox resume one");
    assert!(begun.elapsed() < AGENTS_TIME, "{:?}", begun.elapsed());
}
