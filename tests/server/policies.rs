//! The policy file: what keys and labels may ask for, taken over while the server runs.

use std::fs;

use belljar_tests::{TempDir, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::Answer;
use crate::running::{self, Server, bash, python};

/// A server with this policy, and a key called ci.
fn governed(policy: &str) -> (Server, String) {
    let directory = TempDir::new();
    let file = directory.file("policy.toml", policy).display().to_string();
    let server = Server::started(directory, &["--policy", &file], &[]);
    let key = server.key("ci", &[]);
    (server, key)
}

fn refused(answer: &Answer, rule: &str, field: &str) {
    let problem = answer.json();
    assert_eq!((answer.status, &problem["code"]), (403, &json!("policy")), "{problem}");
    assert_eq!((&problem["rule"], &problem["field"]), (&json!(rule), &json!(field)), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(rule)), "{problem}");
}

#[test]
fn what_is_above_a_ceiling_is_refused_by_the_rules_name_and_never_changed() {
    let (server, key) = governed(
        "[default]\nleast_level = \"standard\"\n[default.limits]\nwall_ms = 5000\n\
         [keys.ci]\nlanguages = [\"bash\"]\n[keys.ci.limits]\nmemory_bytes = 67108864\n\
         [labels.\"team=red\"]\nlimits = { processes = 8 }\n",
    );
    let run = |request: &Value| server.as_key(&key, "POST", "/v1/runs", request);
    let with = |more: Value| {
        let mut request = bash("echo in");
        for (name, value) in more.as_object().expect("an object") {
            request[name] = value.clone();
        }
        request
    };
    refused(&run(&python("1")), "keys.ci.languages", "language");
    refused(&run(&with(json!({ "level": "basic" }))), "default.least_level", "level");
    let much = json!({ "limits": { "memory_bytes": 67_108_865 } });
    refused(&run(&with(much)), "keys.ci.limits.memory_bytes", "limits.memory_bytes");
    let long = json!({ "limits": { "wall_ms": 5001 } });
    refused(&run(&with(long)), "default.limits.wall_ms", "limits.wall_ms");
    let many = json!({ "limits": { "processes": 9 }, "labels": { "team": "red" } });
    refused(&run(&with(many)), "labels.\"team=red\".limits.processes", "limits.processes");
    refused(&run(&json!({ "command": ["id"] })), "keys.ci.languages", "command");
    let batch = json!({ "requests": [bash("true"), python("1")] });
    let told = server.as_key(&key, "POST", "/v1/batches", &batch);
    refused(&told, "keys.ci.languages", "requests[1].language");
    // What is within is done, and what was left out has the ceiling where that is less.
    let outcome = run(&bash("echo in")).json();
    assert_eq!(outcome["stdout"], "in\n", "{outcome}");
    assert_eq!(outcome["limits"]["wall_ms"]["limit"], 5000);
    assert_eq!(outcome["limits"]["memory_bytes"]["limit"], 67_108_864);
    // The owner on the socket could write the file as well.
    assert_eq!(server.run(&python("print(1)")).status, 200);
}

#[test]
fn sandboxes_are_governed_too() {
    let (server, key) = governed(
        "[keys.ci]\nsandboxes = 1\nretention = \"1h\"\nwrite_paths = [\"/workspace\"]\nimages = [\"host\"]\n\
         languages = [\"python\"]\n[keys.ci.limits]\nwall_ms = 60000\n",
    );
    let make = |request: &Value| server.as_key(&key, "POST", "/v1/sandboxes", request);
    refused(&make(&json!({ "image": "debian" })), "keys.ci.images", "image");
    refused(&make(&json!({ "ttl_ms": 3_600_001 })), "keys.ci.retention", "ttl_ms");
    refused(&make(&json!({ "write_paths": ["/tmp"] })), "keys.ci.write_paths", "write_paths");
    let host = json!({ "workspace": { "path": "/usr", "mode": "read_only" } });
    let told = make(&host);
    assert_eq!((told.status, &told.json()["field"]), (400, &json!("workspace.path")), "{told:?}");
    let made = make(&json!({ "name": "a" }));
    assert_eq!(made.status, 201, "{made:?}");
    assert!(made.json()["expires_at"].is_string(), "it lives no longer than it may");
    let full = make(&json!({ "name": "b" }));
    assert_eq!((full.status, &full.json()["rule"]), (429, &json!("keys.ci.sandboxes")), "{full:?}");
    let fork = server.as_key(&key, "POST", "/v1/sandboxes/a/fork", &json!({}));
    assert_eq!((fork.status, &fork.json()["rule"]), (429, &json!("keys.ci.sandboxes")));
    let at = |rest: &str, body: &Value| {
        server.as_key(&key, "POST", &format!("/v1/sandboxes/a/{rest}"), body)
    };
    refused(&at("exec", &json!({ "cmd": ["id"] })), "keys.ci.languages", "command");
    refused(&at("shell", &json!({ "script": "id" })), "keys.ci.languages", "language");
    let long = json!({ "code": "1", "timeout_ms": 60_001 });
    refused(&at("code", &long), "keys.ci.limits.wall_ms", "timeout_ms");
    let ran = at("code", &json!({ "code": "1 + 1" })).json();
    assert_eq!(ran["ok"], true, "{ran}");
}

#[test]
fn hosts_and_secrets_are_for_keys_whose_rules_list_them() {
    let (server, key) = governed("[keys.ci]\nlanguages = [\"python\"]\n");
    let run = |rest: Value| {
        let mut asked = json!({ "language": "python", "code": "print(1)" });
        asked.as_object_mut().unwrap().append(&mut rest.as_object().unwrap().clone());
        server.as_key(&key, "POST", "/v1/runs", &asked)
    };
    // Nothing that no rule names: what the owner may have is not a tenant's.
    for (field, asked) in [
        ("egress", json!({ "egress": ["api.example.com"] })),
        ("secrets", json!({ "secrets": ["api-key"] })),
    ] {
        let told = run(asked.clone());
        assert_eq!((told.status, &told.json()["field"]), (400, &json!(field)), "{told:?}");
        let told = server.as_key(&key, "POST", "/v1/sandboxes", &asked);
        assert_eq!((told.status, &told.json()["field"]), (400, &json!(field)), "{told:?}");
    }
    let (server, key) = governed("[keys.ci]\negress = [\"api.example.com\"]\nsecrets = [\"a\"]\n");
    let make = |request: &Value| server.as_key(&key, "POST", "/v1/sandboxes", request);
    refused(&make(&json!({ "egress": ["else.example"] })), "keys.ci.egress", "egress");
    refused(&make(&json!({ "egress": ["api.example.com:22"] })), "keys.ci.egress", "egress");
    refused(&make(&json!({ "secrets": ["b"] })), "keys.ci.secrets", "secrets");
    let made = make(&json!({ "name": "a", "egress": ["api.example.com"] }));
    assert_eq!(made.status, 201, "{made:?}");
    let widened = json!({ "egress": ["else.example"] });
    let told = server.as_key(&key, "POST", "/v1/sandboxes/a/egress", &widened);
    refused(&told, "keys.ci.egress", "egress");
    let none = json!({ "egress": [] });
    let told = server.as_key(&key, "POST", "/v1/sandboxes/a/egress", &none);
    assert_eq!(told.status, 200, "{told:?}");
}

#[test]
fn workspaces_of_the_host_are_for_keys_whose_rules_list_them() {
    let shared = TempDir::new();
    shared.file("data", "from the host");
    let policy = format!("[keys.ci]\nworkspaces = [{:?}]\n", shared.path().display().to_string());
    let (server, key) = governed(&policy);
    let make = |path: &str| {
        let workspace = json!({ "path": path, "mode": "read_only" });
        server.as_key(&key, "POST", "/v1/sandboxes", &json!({ "workspace": workspace }))
    };
    let inside = shared.path().display().to_string();
    for outside in ["/", "/etc", &format!("{inside}/.."), &format!("{inside}x")] {
        refused(&make(outside), "keys.ci.workspaces", "workspace.path");
    }
    assert_eq!(make(&inside).status, 201);
}

#[test]
fn workspace_that_was_swapped_for_a_link_is_not_shown() {
    let shared = TempDir::new();
    shared.file("own/data", "meant");
    shared.file("other/data", "not meant");
    let (own, other) = (shared.join("own"), shared.join("other"));
    let policy = format!("[keys.ci]\nworkspaces = [{:?}]\n", own.display().to_string());
    let (server, key) = governed(&policy);
    let ask = |method: &str, rest: &str, body: &Value| {
        server.as_key(&key, method, &format!("/v1/sandboxes{rest}"), body)
    };
    let workspace = json!({ "path": own.display().to_string(), "mode": "read_only" });
    assert_eq!(ask("POST", "", &json!({ "name": "a", "workspace": workspace })).status, 201);
    let look = || {
        let script = json!({ "script": "cat /workspace/data" });
        ask("POST", "/a/shell", &script).json()["stdout"].clone()
    };
    assert_eq!(look(), "meant");
    assert_eq!(ask("POST", "/a/stop", &Value::Null).status, 200);
    // As somebody could do it who writes to the directory above.
    let aside = shared.join("aside");
    fs::rename(&own, &aside).expect("ours");
    std::os::unix::fs::symlink(&other, &own).expect("ours");
    let told = ask("POST", "/a/start", &Value::Null);
    assert_eq!((told.status, &told.json()["code"]), (409, &json!("conflict")), "{told:?}");
    fs::remove_file(&own).expect("ours");
    assert_eq!(ask("POST", "/a/start", &Value::Null).status, 409, "nothing is there");
    fs::rename(&aside, &own).expect("ours");
    assert_eq!(ask("POST", "/a/start", &Value::Null).status, 200);
    assert_eq!(look(), "meant");
    // And of a link that leads to what is allowed, what is kept is where it led to.
    let way = shared.join("way");
    std::os::unix::fs::symlink(&own, &way).expect("ours");
    let workspace = json!({ "path": way.display().to_string(), "mode": "read_only" });
    let made = ask("POST", "", &json!({ "name": "b", "workspace": workspace }));
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(ask("POST", "/b/stop", &Value::Null).status, 200);
    fs::remove_file(&way).expect("ours");
    std::os::unix::fs::symlink(&other, &way).expect("ours");
    assert_eq!(ask("POST", "/b/start", &Value::Null).status, 200);
    let script = json!({ "script": "cat /workspace/data" });
    assert_eq!(ask("POST", "/b/shell", &script).json()["stdout"], "meant");
}

#[test]
fn rules_of_labels_count_for_what_is_in_a_batch() {
    let (server, key) = governed(
        "[labels.\"team=red\"]\nrate = \"2/h\"\n[labels.\"team=blue\"]\nconcurrent_runs = 1\n",
    );
    let with =
        |team: &str| json!({ "language": "bash", "code": "true", "labels": { "team": team } });
    let batch = |requests: Vec<Value>, parallel: usize| {
        let asked = json!({ "requests": requests, "parallel": parallel });
        server.as_key(&key, "POST", "/v1/batches", &asked)
    };
    assert_eq!(batch(vec![with("red"), bash("true"), with("red")], 1).status, 200);
    let told = batch(vec![bash("true"), with("red")], 1);
    assert_eq!((told.status, &told.json()["rule"]), (429, &json!("labels.\"team=red\".rate")));
    let told = batch(vec![with("blue"), with("blue")], 2);
    let rule = json!("labels.\"team=blue\".concurrent_runs");
    assert_eq!((told.status, &told.json()["rule"]), (429, &rule), "{told:?}");
    assert_eq!(batch(vec![with("blue"), with("blue")], 1).status, 200);
}

#[test]
fn cases_are_held_to_the_ceiling_of_time() {
    let (server, key) = governed("[keys.ci]\nlimits = { wall_ms = 5000 }\n");
    let code = "def add(a, b):\n    return a + b\n";
    let case = |timeout_ms: u64| json!([{ "input_args": [2, 3], "expected_output": 5, "timeout_ms": timeout_ms }]);
    let grade = |field: &str, timeout_ms: u64| {
        let mut asked = json!({ "code": code, "cases": case(5000) });
        asked[field] = case(timeout_ms);
        server.as_key(&key, "POST", "/v1/grades", &asked)
    };
    for field in ["cases", "hidden"] {
        refused(&grade(field, 5001), "keys.ci.limits.wall_ms", &format!("{field}[0].timeout_ms"));
        assert_eq!(grade(field, 5000).json()["score"], 1.0);
    }
    let task = json!({ "prompt": "add", "func": "add", "cases": case(5001), "max_iterations": 1,
        "proposer": { "kind": "replay", "answers": [code] } });
    let told = server.as_key(&key, "POST", "/v1/evolutions", &task);
    refused(&told, "keys.ci.limits.wall_ms", "cases[0].timeout_ms");
}

#[test]
fn code_is_read_wherever_it_is_run() {
    let (server, key) = governed("[keys.ci]\nscreen = \"refuse\"\n");
    let ask = |path: &str, body: &Value| server.as_key(&key, "POST", path, body);
    assert_eq!(ask("/v1/sandboxes", &json!({ "name": "a" })).status, 201);
    let (bad, good) = ("import os\nos.system('id')", "print(1)");
    let graded = |code: &str| {
        let cases = json!([{ "stdin": "", "expected_stdout": "1\n" }]);
        json!({ "code": code, "language": "python", "cases": cases })
    };
    for (path, refused, taken) in [
        ("/v1/runs", python(bad), python(good)),
        ("/v1/grades", graded(bad), graded(good)),
        ("/v1/sandboxes/a/code", json!({ "code": bad }), json!({ "code": good })),
        ("/v1/sandboxes/run_python", json!({ "code": bad }), json!({ "code": good })),
        (
            "/v1/sandboxes/a/shell",
            json!({ "script": "rm -rf / --no-preserve-root" }),
            json!({ "script": "true" }),
        ),
        (
            "/v1/sandboxes/run_shell",
            json!({ "code": "rm -rf / --no-preserve-root" }),
            json!({ "code": "true" }),
        ),
    ] {
        let told = ask(path, &refused);
        assert_eq!(
            (told.status, &told.json()["code"]),
            (422, &json!("screened")),
            "{path} {told:?}"
        );
        let done = ask(path, &taken);
        assert_eq!(done.status, 200, "{path}: {done:?}");
    }
}

#[test]
fn what_runs_in_sandboxes_counts_among_the_runs() {
    let (server, key) = governed("[keys.ci]\nconcurrent_runs = 1\nsandboxes = 1\n");
    let ask = |path: &str, body: &Value| server.as_key(&key, "POST", path, body);
    let shot = json!({ "code": "true" });
    assert_eq!(ask("/v1/sandboxes/run_shell", &shot).status, 200);
    assert_eq!(ask("/v1/sandboxes", &json!({ "name": "a" })).status, 201);
    for (path, body) in
        [("/v1/sandboxes/run_shell", &shot), ("/v1/sandboxes/a/check_fork", &Value::Null)]
    {
        let told = ask(path, body);
        assert_eq!(
            (told.status, &told.json()["rule"]),
            (429, &json!("keys.ci.sandboxes")),
            "{told:?}"
        );
    }
    let bearer = format!("Bearer {key}");
    let lines = [("Authorization", bearer.as_str()), ("Accept", "application/x-ndjson")];
    for (path, body) in [
        ("/v1/sandboxes/a/exec", json!({ "cmd": ["sleep", "600"] })),
        ("/v1/sandboxes/a/shell", json!({ "script": "sleep 600" })),
        ("/v1/sandboxes/a/code", json!({ "code": "import time; time.sleep(600)" })),
    ] {
        let mut occupied = server.tcp();
        occupied.send(path, &lines, &body);
        assert_eq!(occupied.head().status, 200);
        occupied.chunk().expect("it runs");
        let told = ask("/v1/runs", &bash("true"));
        let rule = json!("keys.ci.concurrent_runs");
        assert_eq!((told.status, &told.json()["rule"]), (429, &rule), "{path}: {told:?}");
        drop(occupied);
        wait_until("there is a place", || ask("/v1/runs", &bash("true")).status == 200);
    }
}

#[test]
fn rates_and_quotas_of_runs_count_for_each_key() {
    let (server, key) = governed(
        "[keys.ci]\nrate = \"2/h\"\nconcurrent_runs = 1\n[default]\nrequests = \"1000/h\"\n",
    );
    let other = server.key("other", &[]);
    let mut occupied = server.tcp();
    let bearer = format!("Bearer {key}");
    let lines = [("Authorization", bearer.as_str()), ("Accept", "application/x-ndjson")];
    occupied.send("/v1/runs", &lines, &bash("echo up; sleep 60"));
    let first = occupied.head();
    assert_eq!(first.header("ratelimit"), Some("\"runs\";r=1;t=1800"), "{first:?}");
    assert_eq!(first.header("ratelimit-policy"), Some("\"runs\";q=2;w=3600"));
    occupied.chunk().expect("it runs");
    let run = |key: &str| server.as_key(key, "POST", "/v1/runs", &bash("true"));
    let told = run(&key);
    assert_eq!((told.status, &told.json()["rule"]), (429, &json!("keys.ci.concurrent_runs")));
    drop(occupied);
    wait_until("it has ended", || run(&key).status == 200);
    let told = run(&key);
    assert_eq!((told.status, &told.json()["rule"]), (429, &json!("keys.ci.rate")), "{told:?}");
    assert!(
        told.header("retry-after")
            .is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait > 60))
    );
    assert_eq!(run(&other).status, 200, "others have their own");
}

#[test]
fn requests_of_any_kind_can_be_counted() {
    let (server, key) = governed("[keys.ci]\nrequests = \"3/h\"\n");
    let look = || server.as_key(&key, "GET", "/v1/levels", &Value::Null);
    assert_eq!([look().status, look().status, look().status], [200; 3]);
    let told = look();
    assert_eq!((told.status, &told.json()["rule"]), (429, &json!("keys.ci.requests")), "{told:?}");
}

#[test]
fn changed_policy_is_taken_over_and_a_bad_one_is_not() {
    let (server, key) = governed("[keys.ci]\nlanguages = [\"bash\"]\n");
    let file = server.path().join("policy.toml");
    let status = || server.as_key(&key, "POST", "/v1/runs", &python("print(1)")).status;
    let state = || server.unix().get("/v1/policy", &[]).json();
    assert_eq!((status(), &state()["state"]), (403, &json!("in_force")));
    fs::write(&file, "[keys.ci\n").expect("ours");
    wait_until("it is seen", || state()["state"] == "stale");
    assert_eq!(status(), 403, "the one before holds");
    assert!(
        state()["error"].as_str().is_some_and(|error| error.contains("policy.toml")),
        "{}",
        state()
    );
    let ready = server.unix().get("/readyz", &[]);
    assert_eq!((ready.status, ready.text().contains("policy: stale")), (200, true), "{ready:?}");
    fs::write(&file, "[keys.ci]\nlanguages = [\"python\"]\n").expect("ours");
    wait_until("it is taken over", || status() == 200);
    assert_eq!(state()["state"], "in_force");
    // A signal has it read at once, and does not end the server.
    fs::write(&file, "[keys.ci]\nlanguages = [\"node\"]\n").expect("ours");
    server.signal(Signal::HUP);
    wait_until("it is taken over", || status() == 403);
    assert_eq!(server.unix().get("/healthz", &[]).status, 200);
}

#[test]
fn first_policy_with_a_mistake_is_an_error_that_names_it() {
    let directory = TempDir::new();
    let file = directory.file("policy.toml", "[default]\nleast_levle = \"strict\"\n");
    let file = file.display().to_string();
    let ended = running::program(&directory, &["--policy", &file]).run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out().contains("least_levle"), "{ended:?}");
}
