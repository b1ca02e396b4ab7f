//! Names that are none, wherever one can be given, and errors that are kept until they are over.

use belljar_tests::{DEADLINE, name_of, processes_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::trees::Served;
use crate::verbs::Desk;

#[test]
fn names_that_are_none_are_refused_wherever_one_is_given() {
    let served = Served::new(json!({}));
    let client = &served.client;
    let long = "a".repeat(300);
    for name in
        ["../x", "", long.as_str(), "ünï", "A", "-x", "a b", "a\0b", "a/b", ".", "a_b", "import"]
    {
        let create = json!({"name": name});
        let told = client.post("/v1/sandboxes", &create).refused(400, "spec");
        assert_eq!(told["field"], "name", "{name:?}: {told}");
        let fork = json!({"as": name});
        let told = client.post(&Served::at("/fork"), &fork).refused(400, "spec");
        assert_eq!(told["field"], "name", "{name:?}: {told}");
        let told = client.post(&Served::at("/promote"), &fork).refused(400, "spec");
        assert_eq!(told["field"], "name", "{name:?}: {told}");
        let volume = json!({"name": "two", "workspace": {"volume": name, "mode": "read_write"}});
        let told = client.post("/v1/sandboxes", &volume).refused(400, "spec");
        assert_eq!(told["field"], "workspace.volume", "{name:?}: {told}");
        let tag = json!({"tag": if name == "a_b" || name == "import" { "A" } else { name }});
        let told = client.post(&Served::at("/snapshots"), &tag).refused(400, "spec");
        assert_eq!(told["field"], "tag", "{name:?}: {told}");
    }
    // In an address they are names that nobody has.
    for name in ["..%2Fx", &long, "%C3%BCn%C3%AF", "A", "a%20b", "a%00b"] {
        client.get(&format!("/v1/sandboxes/{name}")).refused(404, "not_found");
        client.delete(&format!("/v1/sandboxes/{name}")).refused(404, "not_found");
        client.post(&format!("/v1/sandboxes/{name}/start"), &json!({})).refused(404, "not_found");
    }
    client.post("/v1/sandboxes", &json!({"name": "one"})).refused(409, "conflict");
    client.post(&Served::at("/fork"), &json!({"as": "one"})).refused(409, "conflict");
    let all = client.get("/v1/sandboxes").json();
    assert_eq!(all["sandboxes"].as_array().map(Vec::len), Some(1), "{all}");
}

#[test]
fn unknown_words_are_mistakes_and_not_wishes() {
    let served = Served::new(json!({}));
    let client = &served.client;
    client.post("/v1/sandboxes", &json!({"nmae": "x"})).refused(400, "spec");
    client.post(&Served::at("/shell"), &json!({"script": "true", "bogus": 1})).refused(400, "spec");
    client.post(&Served::at("/shell"), &json!({"cmd": ["true"]})).refused(400, "spec");
    client.post(&Served::at("/exec"), &json!({"cmd": ["true"], "bogus": 1})).refused(400, "spec");
    client.post(&Served::at("/stop"), &json!({"bogus": 1})).refused(400, "spec");
    client.get("/v1/sandboxes?state=asleep").refused(400, "spec");
    client.get("/v1/sandboxes?label=x").refused(400, "spec");
    client.get(&Served::at("/logs?bogus=1")).refused(400, "spec");
    client.ask("PATCH", &Served::at(""), b"").refused(405, "method_not_allowed");
    client.post(&Served::at("/nothing"), &json!({})).refused(404, "not_found");
}

#[test]
fn every_error_is_kept_until_it_is_over() {
    let desk = Desk::new();
    let home = desk.directory.join("home");
    std::fs::create_dir(&home).expect("a directory");
    desk.ok(&["create", "one", "--workspace", home.to_str().expect("a name")]);
    let error = || desk.json(&["info", "one"])["error"].clone();
    assert_eq!(error(), json!(null));
    desk.ok(&["stop", "one"]);
    assert_eq!(error(), json!(null), "a stop is no error");
    std::fs::remove_dir(&home).expect("it is there");
    let failed = desk.run(&["start", "one"]);
    assert_ne!(failed.code, Some(0), "{failed:?}");
    assert_eq!(desk.state_of("one"), "failed");
    let told = error();
    let told = told.as_str().expect("an error");
    assert!(failed.err().contains(told), "{told}: {failed:?}");
    desk.refused(&["exec", "one", "--", "true"], told);
    assert!(desk.ok(&["list"]).contains("failed"));
    std::fs::create_dir(&home).expect("a directory");
    desk.ok(&["start", "one"]);
    assert_eq!((desk.state_of("one").as_str(), error()), ("running", json!(null)));
    kill_keeper(&desk);
    wait_for(&desk, "stopped");
    assert!(error().as_str().is_some_and(|told| told.contains("its keeper was killed")));
    desk.ok(&["start", "one"]);
    assert_eq!(error(), json!(null));
}

#[test]
fn a_sandbox_that_was_stopped_for_idleness_says_so() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--idle", "200ms"]);
    wait_for(&desk, "stopped");
    let told = desk.json(&["info", "one"])["error"].clone();
    assert!(told.as_str().is_some_and(|told| told.contains("--idle")), "{told}");
}

fn wait_for(desk: &Desk, state: &str) {
    let deadline = std::time::Instant::now() + DEADLINE;
    while desk.state_of("one") != state {
        assert!(std::time::Instant::now() < deadline, "never {state}");
    }
}

/// Kills the keeper: the first of its name above a program inside.
fn kill_keeper(desk: &Desk) {
    desk.ok(&["exec", "one", "--background", "--", "sleep", "98769"]);
    let inside = processes_with("98769");
    let (pid, _) = inside.first().expect("a process inside");
    let mut at = pid.as_raw_nonzero().get().cast_unsigned();
    while name_of(at) != "belljar-keeper" {
        assert_ne!(at, 1, "no keeper above {pid:?}");
        let stat = std::fs::read_to_string(format!("/proc/{at}/stat")).expect("a parent");
        let rest = &stat[stat.rfind(')').expect("a name") + 1..];
        let parent = rest.split_ascii_whitespace().nth(1).and_then(|one| one.parse().ok());
        at = parent.expect("a number");
    }
    let keeper = Pid::from_raw(at.cast_signed()).expect("a process");
    kill_process(keeper, Signal::KILL).expect("it is killed");
}
