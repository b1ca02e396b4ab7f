//! What happens when two want something of the same sandbox at once, or its keeper does not answer.

use std::time::Instant;

use belljar_tests::{DEADLINE, Running, wait_until};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::http::Connection;
use crate::rounds::keeper_of;
use crate::speaking::Client;
use crate::trees::Served;
use crate::verbs::Desk;

const SCRIPT: &str = "/v1/sandboxes/one/shell";

fn runs_well(client: &Client, script: &str) {
    let told = client.post(SCRIPT, &json!({ "script": script })).is(200).json();
    assert_eq!(told["end"]["exit_code"], 0, "{told}");
}

#[test]
fn execs_of_a_sandbox_that_can_undo_do_not_end_each_other() {
    let served = Served::new(json!({"undo": true}));
    std::thread::scope(|scope| {
        for one in 0..4 {
            let client = &served.client;
            scope.spawn(move || {
                for two in 0..8 {
                    runs_well(client, &format!("echo {one} > file-{one}-{two}"));
                }
            });
        }
    });
    assert_eq!(served.shell("cat file-* | wc -l"), "32\n");
}

#[test]
fn a_snapshot_neither_ends_nor_refuses_what_begins_meanwhile() {
    let served = Served::new(json!({}));
    let client = &served.client;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..20 {
                let tag = json!({"tag": format!("t{number}")});
                client.post(&Served::at("/snapshots"), &tag).is(201);
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let rest = || !done.load(std::sync::atomic::Ordering::SeqCst);
        scope.spawn(move || {
            while rest() {
                runs_well(client, "echo x >> log")
            }
        });
        scope.spawn(move || {
            while rest() {
                client.put(&Served::at("/files/workspace/file"), b"x").is(204);
            }
        });
        scope.spawn(move || {
            while rest() {
                let made = client.post(&Served::at("/contexts"), &json!({"language": "bash"}));
                let id = made.is(201).json()["id"].as_str().expect("an id").to_owned();
                let told =
                    client.post(&Served::at("/code"), &json!({"context": id, "code": "echo hi"}));
                assert_eq!(told.is(200).json()["stdout"], "hi\n");
                client.delete(&Served::at(&format!("/contexts/{id}"))).is(204);
            }
        });
    });
}

#[test]
fn two_that_take_each_others_names_do_not_wait_for_ever() {
    let desk = Desk::new();
    let server = desk.serve();
    let client = Client::new(&desk.socket);
    client.post("/v1/sandboxes", &json!({ "name": "parent" })).is(201);
    for name in ["one", "two"] {
        client.post("/v1/sandboxes/parent/fork", &json!({ "as": name })).is(201);
        let deaf = json!({ "script": "trap '' TERM; echo deaf; sleep 600", "background": true });
        let path = format!("/v1/sandboxes/{name}");
        let begun = client.post(&format!("{path}/shell"), &deaf).is(202).json();
        let exec = begun["id"].as_str().expect("an id").to_owned();
        wait_until("it hears nothing", || {
            let told = client.get(&format!("{path}/execs/{exec}")).is(200).json();
            told["stdout_bytes"].as_u64() > Some(0)
        });
    }
    std::thread::scope(|scope| {
        let client = &client;
        // Who stops one has its turn for so long; both who take a name wait for theirs meanwhile, and go on at once.
        for name in ["one", "two"] {
            let path = format!("/v1/sandboxes/{name}/stop");
            scope.spawn(move || client.post(&path, &json!({ "grace_ms": 3000 })).is(200));
        }
        crate::rig::pause(std::time::Duration::from_secs(1));
        let taking = [("one", "two"), ("two", "one")].map(|(from, to)| {
            let path = format!("/v1/sandboxes/{from}/promote");
            scope.spawn(move || client.post(&path, &json!({ "as": to })).status)
        });
        let mut told = taking.map(|one| one.join().expect("it is answered"));
        told.sort_unstable();
        assert!(told[0] == 200 && [200, 404, 409].contains(&told[1]), "{told:?}");
    });
    let all = client.get("/v1/sandboxes").is(200).json();
    let names = all["sandboxes"].as_array().expect("all");
    assert_eq!(names.len(), 2, "the parent, and whoever was last: {all}");
    drop(server);
}

/// The keeper of the one sandbox, which stands still itself.
fn stopped_keeper(served: &Served) -> rustix::process::Pid {
    let info = served.client.get("/v1/sandboxes/one").is(200).json();
    let id = info["id"].as_str().expect("an id");
    let keeper = keeper_of(&served.desk.state().join("sandboxes").join(id)).expect("it stands");
    kill_process(keeper, Signal::STOP).expect("it is stopped");
    keeper
}

#[test]
fn a_keeper_that_does_not_answer_holds_nobody_up_and_can_be_ended() {
    let mut served = Served::new(json!({}));
    served.shell("echo kept > file");
    served.client.post("/v1/sandboxes", &json!({"name": "two"})).is(201);
    stopped_keeper(&served);
    let began = Instant::now();
    let listed = served.client.get("/v1/sandboxes").is(200).json();
    let error = listed["sandboxes"][0]["error"].as_str().unwrap_or_else(|| panic!("{listed}"));
    assert!(error.contains("does not answer") && error.contains("sandbox kill one"), "{error}");
    assert_eq!(listed["sandboxes"][1]["error"], Value::Null, "{listed}");
    // A server that starts meanwhile finds the others.
    let server: Running = served.server.take().expect("it runs");
    server.signal(Signal::KILL);
    server.wait();
    served.server = Some(served.desk.serve());
    let told = served.client.post("/v1/sandboxes/two/shell", &json!({"script": "echo here"}));
    assert_eq!(told.is(200).json()["stdout"], "here\n");
    served.client.post(&Served::at("/kill"), &json!({})).is(200);
    assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
    served.client.post(&Served::at("/start"), &json!({})).is(200);
    assert_eq!(served.shell("cat file"), "kept\n");
    stopped_keeper(&served);
    served.client.delete(&Served::at("?force=true")).is(204);
}

#[test]
fn a_context_that_began_under_a_killed_server_is_known_to_the_next() {
    let mut served = Served::new(json!({}));
    let mut running = Connection::unix(&served.desk.socket);
    let code = json!({"code": "import time\nkept = 41\nprint('go', flush=True)\ntime.sleep(1000)"});
    running.send(&Served::at("/code"), &[("Accept", "application/x-ndjson")], &code);
    assert_eq!(running.head().status, 200);
    let mut heard = String::new();
    while !heard.contains("\"go") {
        heard += &String::from_utf8(running.chunk().expect("it runs")).expect("text");
    }
    let server: Running = served.server.take().expect("it runs");
    server.signal(Signal::KILL);
    server.wait();
    drop(running);
    served.server = Some(served.desk.serve());
    let listed = served.client.get(&Served::at("/contexts")).is(200).json();
    assert_eq!(listed["contexts"][0]["id"], "python", "{listed}");
    let told = served.client.post(&Served::at("/code"), &json!({"code": "kept"})).is(200).json();
    assert_eq!(told["results"][0]["data"]["text/plain"], "41", "{told}");
    let usage = served.client.get("/v1/sandboxes/one").is(200).json()["usage"]["execs"].clone();
    assert_eq!(usage, 1, "the one that began then, and no other");
}

#[test]
fn lists_are_whole_however_long() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    // More than two parts of what a command asks for, and each of its lists is asked for like this one.
    desk.ok(&["shell", "one", "-c", "mkdir many; cd many; touch $(seq 2100)"]);
    let found = desk.json(&["ls", "one", "/workspace/many"]);
    assert_eq!(found["entries"].as_array().expect("all").len(), 2100);
}

#[test]
fn what_is_the_only_one_may_be_named() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--image", "host"]);
    desk.refused(&["create", "two", "--image", "debian"], "image");
    assert_eq!(desk.ok(&["exec", "one", "--user", "sandbox", "--", "id", "-un"]), "sandbox\n");
    desk.refused(&["exec", "one", "--user", "root", "--", "true"], "user");
    wait_until("it is listed", || {
        desk.json(&["list", "--in-state", "removing"])["sandboxes"] == json!([])
    });
}

#[test]
fn a_diff_of_files_that_move_is_whole() {
    let served = Served::new(json!({}));
    let busy = "while :; do mkdir -p a{1..40}/b/c; touch a{1..40}/b/c/f; rm -rf a*; done";
    served.client.post(SCRIPT, &json!({"script": busy, "background": true})).is(202);
    for _ in 0..60 {
        served.client.get(&Served::at("/diff")).is(200);
    }
}
