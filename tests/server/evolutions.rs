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
