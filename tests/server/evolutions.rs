//! `/v1/evolutions`: begun by a POST, followed as it goes, and never with what is the host's.

use serde_json::{Value, json};

use belljar_tests::{TempDir, wait_until};

use crate::running::{LINES, Server};

fn task(proposer: &Value) -> Value {
    json!({
        "prompt": "Write add(a, b).",
        "func": "add",
        "max_iterations": 2,
        "cases": [{"input_args": [1, 2], "expected_output": 3}],
        "hidden": [{"input_args": [777_001, 2], "expected_output": 777_003}],
        "proposer": proposer,
    })
}

fn replay() -> Value {
    json!({"kind": "replay", "answers": ["def add(a, b):\n    return a - b", "def add(a, b):\n    return a + b"]})
}

#[test]
fn evolution_is_begun_followed_and_told() {
    let server = Server::start();
    let begun = server.unix().post("/v1/evolutions", &[], &task(&replay()));
    assert_eq!(begun.status, 202, "{}", begun.text());
    let id = begun.json()["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/evolutions/{id}");
    assert_eq!(begun.header("location"), Some(path.as_str()));
    // Followed to its end, whether it was still running or not.
    let lines = server.unix().get(&format!("{path}/events"), &[LINES]).lines();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!(kinds, ["begun", "proposed", "graded", "proposed", "graded", "ended"], "{lines:?}");
    assert_eq!(lines[5]["end"], json!("target"));
    // Whole: three digits also stand in times and digests.
    let hidden =
        |line: &Value| ["777001", "777003"].iter().any(|one| line.to_string().contains(one));
    assert!(!lines.iter().any(hidden), "a hidden value was told: {lines:?}");
    wait_until("it is told as ended", || {
        let summary = server.unix().get(&path, &[]).json();
        summary["end"] == json!("target") && summary["running"] == false
    });
    let events = server.unix().get(&format!("{path}/events"), &[("Accept", "text/event-stream")]);
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    assert!(events.text().contains("event: begun\ndata: {"), "{}", events.text());
}

#[test]
fn whole_numbers_of_any_length_stay_what_they_are() {
    let server = Server::start();
    let long = "123456789012345678901234567891";
    let answer = json!({"kind": "replay", "answers": ["def add(a, b):\n    return a + b"]});
    let text = format!(
        "{{\"prompt\": \"x\", \"func\": \"add\", \"seed\": 18446744073709551615, \"proposer\": {answer}, \
         \"cases\": [{{\"input_args\": [{long}, 0], \"expected_output\": {long}}}]}}"
    );
    let begun = server.unix().ask("POST", "/v1/evolutions", &[], text.as_bytes());
    assert_eq!(begun.status, 202, "{}", begun.text());
    let path = format!("/v1/evolutions/{}", begun.json()["id"].as_str().expect("an id"));
    let lines = server.unix().get(&format!("{path}/events"), &[LINES]).lines();
    assert!(lines[0].to_string().contains(long), "{}", lines[0]);
    assert_eq!(lines[2]["score"], json!(1.0), "{lines:?}");
}

#[test]
fn evolutions_are_listed_and_stopped_by_their_tenant_alone() {
    let directory = TempDir::new();
    let proposers =
        directory.file("p.toml", "[slow]\nkind = \"command\"\ncommand = [\"sleep\", \"600\"]\n");
    let options = ["--proposers", &proposers.display().to_string()];
    let server = Server::with(&options);
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let slow = task(&json!({ "kind": "named", "name": "slow" }));
    let begin = |key: &str| server.as_key(key, "POST", "/v1/evolutions", &slow);
    let ids: Vec<String> =
        (0..2).map(|_| begin(&one).json()["id"].as_str().expect("an id").to_owned()).collect();
    let told = begin(&one);
    assert_eq!((told.status, &told.json()["code"]), (429, &json!("busy")), "two of one tenant");
    assert_eq!(begin(&other).status, 202, "and there is room for another");
    let list = |key: &str, query: &str| {
        let told =
            server.as_key(key, "GET", &format!("/v1/evolutions{query}"), &Value::Null).json();
        let all = told["evolutions"].as_array().expect("a list").clone();
        let ids = all.iter().map(|one| one["id"].as_str().expect("an id").to_owned());
        (ids.collect::<Vec<_>>(), all, told["next_cursor"].as_str().map(ToOwned::to_owned))
    };
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    let (first, _, cursor) = list(&one, "?limit=1");
    let (second, _, none) = list(&one, &format!("?limit=1&cursor={}", cursor.expect("more")));
    assert_eq!(([first, second].concat(), none), (sorted, None));
    assert_eq!(list(&other, "").0.len(), 1);
    let stop = |key: &str, id: &str| {
        server.as_key(key, "POST", &format!("/v1/evolutions/{id}/stop"), &Value::Null)
    };
    assert_eq!(stop(&other, &ids[0]).status, 404, "not another's");
    assert_eq!(stop(&one, &ids[0]).status, 204);
    assert_eq!(stop(&one, &ids[0]).status, 409, "it has ended");
    let running: Vec<bool> =
        list(&one, "").1.iter().map(|one| one["running"] == json!(true)).collect();
    assert_eq!(running.iter().filter(|one| **one).count(), 1);
    assert_eq!(begin(&one).status, 202, "its room is free");
}

#[test]
fn evolution_that_ended_is_resumed_by_its_tenant_alone() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let ask = |key: &str, path: &str, body: &Value| {
        server.as_key(key, "POST", &format!("/v1/evolutions{path}"), body)
    };
    let mut short = task(&replay());
    short["max_iterations"] = json!(1);
    let id = ask(&one, "", &short).json()["id"].as_str().expect("an id").to_owned();
    let kinds = || -> Vec<String> {
        let bearer = format!("Bearer {one}");
        let headers = [("Authorization", bearer.as_str()), LINES];
        let lines = server.tcp().get(&format!("/v1/evolutions/{id}/events"), &headers).lines();
        lines.iter().filter_map(|line| line["type"].as_str().map(ToOwned::to_owned)).collect()
    };
    let first = ["begun", "proposed", "graded", "ended"];
    wait_until("it has ended", || kinds() == first);
    let path = format!("/{id}/resume");
    assert_eq!(ask(&other, &path, &Value::Null).status, 404, "not another's");
    assert_eq!(ask(&one, "/0123456789abcdef/resume", &Value::Null).status, 404);
    let wrong = ask(&one, &path, &json!({ "max_iterations": 0 }));
    assert_eq!((wrong.status, &wrong.json()["field"]), (400, &json!("max_iterations")));
    let resumed = ask(&one, &path, &json!({ "max_iterations": 2 }));
    assert_eq!(resumed.status, 202, "{resumed:?}");
    assert_eq!((&resumed.json()["id"], &resumed.json()["running"]), (&json!(id), &json!(true)));
    // Live, from the first line on, and to the second end.
    let all = [&first[..], &["resumed", "proposed", "graded", "ended"]].concat();
    assert_eq!(kinds(), all);
    wait_until("it is told as ended", || {
        let told = server.as_key(&one, "GET", &format!("/v1/evolutions/{id}"), &Value::Null).json();
        told["end"] == json!("target") && told["running"] == false
    });
}

#[test]
fn evolution_is_resumed_once_at_a_time_and_under_the_rules_of_today() {
    let directory = TempDir::new();
    let slow = "[slow]\nkind = \"command\"\ncommand = [\"sleep\", \"600\"]\n";
    let proposers = directory.file("p.toml", slow).display().to_string();
    let options = ["--proposers", proposers.as_str()];
    let server = Server::with(&options);
    let asked = task(&json!({ "kind": "named", "name": "slow" }));
    let begun = server.unix().post("/v1/evolutions", &[], &asked);
    let id = begun.json()["id"].as_str().expect("an id").to_owned();
    let ask = |server: &Server, verb: &str| {
        server.unix().ask("POST", &format!("/v1/evolutions/{id}/{verb}"), &[], b"")
    };
    let goes_on = ask(&server, "resume");
    assert_eq!((goes_on.status, &goes_on.json()["code"]), (409, &json!("conflict")), "{goes_on:?}");
    assert_eq!(ask(&server, "stop").status, 204);
    assert_eq!(ask(&server, "resume").status, 202);
    assert_eq!(ask(&server, "resume").status, 409, "it goes on again");
    server.signal(rustix::process::Signal::TERM);
    let (_, state) = server.wait();
    // One that is described otherwise is not what was asked for; one that is gone is not asked.
    directory.file("p.toml", slow.replace("600", "601"));
    let server = Server::started(state, &options, &[]);
    let changed = ask(&server, "resume");
    assert_eq!((changed.status, &changed.json()["code"]), (409, &json!("conflict")), "{changed:?}");
    server.signal(rustix::process::Signal::TERM);
    let (_, state) = server.wait();
    directory.file("p.toml", slow);
    let server = Server::started(state, &options, &[]);
    assert_eq!(ask(&server, "resume").status, 202, "as it was");
    assert_eq!(ask(&server, "stop").status, 204);
}

#[test]
fn request_names_nothing_of_the_host() {
    let server = Server::start();
    for (proposer, field) in [
        (json!({"kind": "command", "command": ["id"]}), "proposer.kind"),
        (
            json!({"kind": "openai", "model": "m", "key_env": "HOME", "url": "http://127.0.0.1:1"}),
            "proposer.kind",
        ),
        (json!({"kind": "replay", "file": "/etc/passwd"}), "proposer.kind"),
        (json!({"kind": "named", "name": "x"}), "proposer.name"),
    ] {
        let answer = server.unix().post("/v1/evolutions", &[], &task(&proposer));
        assert_eq!(
            (answer.status, &answer.json()["field"]),
            (400, &json!(field)),
            "{}",
            answer.text()
        );
    }
    for (field, value) in [
        ("program_file", json!("/etc/passwd")),
        ("secrets", json!({"key": {"file": "/etc/shadow"}})),
    ] {
        let mut named = task(&replay());
        named[field] = value;
        let answer = server.unix().post("/v1/evolutions", &[], &named);
        assert_eq!(
            (answer.status, &answer.json()["field"]),
            (400, &json!(field)),
            "{}",
            answer.text()
        );
    }
    for id in ["0123456789abcdef", "..%2f..%2fetc"] {
        let answer = server.unix().get(&format!("/v1/evolutions/{id}"), &[]);
        assert_eq!(answer.status, 404, "{}", answer.text());
    }
}

#[test]
fn proposers_that_the_operator_described_have_names_and_only_so_many_evolve_at_once() {
    let directory = TempDir::new();
    let file = directory
        .file("proposers.toml", "[slow]\nkind = \"command\"\ncommand = [\"sleep\", \"60\"]\n[keyed]\nkind = \"openai\"\nmodel = \"m\"\nsecret = \"key\"\n[secrets.key]\ncommand = [\"false\"]\n");
    let server = Server::with(&["--proposers", &file.display().to_string()]);
    // Its secret cannot be had: told to whoever asks, by the field that the operator has to look at.
    let keyed = task(&json!({"kind": "named", "name": "keyed"}));
    let answer = server.unix().post("/v1/evolutions", &[], &keyed);
    let field = &answer.json()["field"];
    assert_eq!((answer.status, field), (400, &json!("secrets.key.command")), "{}", answer.text());
    let slow = task(&json!({"kind": "named", "name": "slow"}));
    for _ in 0..4 {
        let answer = server.unix().post("/v1/evolutions", &[], &slow);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
    let full = server.unix().post("/v1/evolutions", &[], &slow);
    assert_eq!((full.status, &full.json()["kind"]), (429, &json!("busy")), "{}", full.text());
    // It ends at once all the same: what evolves can be resumed.
    server.signal(rustix::process::Signal::TERM);
    let (ended, _directory) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
