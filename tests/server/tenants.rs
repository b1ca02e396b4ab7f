//! Tenants: no operation tells one of them of another. Every operation of the document is tried.

use std::collections::{BTreeMap, BTreeSet};

use belljar_tests::wait_until;
use serde_json::{Value, json};

use crate::http::Answer;
use crate::running::{Server, bash};

/// An operation of the document.
struct Operation {
    id: String,
    method: String,
    path: String,
    scope: Option<String>,
    open: bool,
}

fn operations(server: &Server) -> Vec<Operation> {
    let document = server.unix().get("/openapi.json", &[("Host", "localhost")]).json();
    let paths = document["paths"].as_object().expect("paths").clone();
    let mut all = Vec::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            all.push(Operation {
                id: operation["operationId"].as_str().expect("an id").to_owned(),
                method: method.to_uppercase(),
                path: path.clone(),
                scope: operation["x-scope"].as_str().map(ToOwned::to_owned),
                open: operation["security"] == json!([]),
            });
        }
    }
    assert!(all.len() > 50, "{}", all.len());
    all
}

/// The least that an operation takes.
fn body(id: &str) -> Value {
    match id {
        "exec" => json!({ "cmd": ["true"] }),
        "shell" => json!({ "script": "true" }),
        "code" => json!({ "code": "1" }),
        "exec_signal" => json!({ "signal": "TERM" }),
        "exec_resize" => json!({ "rows": 3, "columns": 4 }),
        "rollback" => json!({ "tag": "t" }),
        "promote" => json!({ "as": "other" }),
        "run" => bash("true"),
        "batch" => json!({ "requests": [] }),
        _ => Value::Null,
    }
}

fn query(id: &str) -> &'static str {
    match id {
        "file_change" | "root_change" => "?make=directory",
        "file_read" | "root_read" => "?stat=true",
        _ => "",
    }
}

fn filled(operation: &Operation, names: &BTreeMap<&str, String>) -> String {
    let mut path = operation.path.clone();
    for (name, value) in names {
        path = path.replace(&format!("{{{name}}}"), value);
    }
    path + query(&operation.id)
}

fn ask(server: &Server, key: &str, operation: &Operation, path: &str) -> Answer {
    server.as_key(key, &operation.method, path, &body(&operation.id))
}

#[test]
fn every_operation_needs_a_key_and_its_scope() {
    let server = Server::start();
    let scopes = ["runs", "sandboxes:read", "sandboxes:write", "audit:read"];
    let keys: BTreeMap<&str, String> = scopes
        .iter()
        .map(|scope| (*scope, server.key(&scope.replace(':', "-"), &["--scope", scope])))
        .collect();
    let names =
        ["name", "id", "tag", "path", "code", "key"].map(|name| (name, "nothing".to_owned()));
    let names = BTreeMap::from(names);
    for operation in operations(&server) {
        let path = filled(&operation, &names);
        let body = body(&operation.id).to_string();
        let bare = server.tcp().ask(&operation.method, &path, &[], body.as_bytes());
        if operation.open {
            assert!(matches!(bare.status, 200 | 503), "{}: {bare:?}", operation.id);
            continue;
        }
        for wrong in ["", "Bearer ", "Bearer bj_0123456789ab_00", "Bearer x", "Basic eDp5"] {
            let headers = [("Authorization", wrong)];
            let answer = server.tcp().ask(&operation.method, &path, &headers, body.as_bytes());
            assert_eq!(answer.status, 401, "{} with {wrong:?}", operation.id);
            assert_eq!(answer.json()["code"], "unauthorized");
        }
        let Some(needed) = &operation.scope else { continue };
        for (scope, key) in &keys {
            let covers =
                scope == needed || (*scope == "sandboxes:write" && needed == "sandboxes:read");
            let answer = ask(&server, key, &operation, &path);
            let refused = answer.status == 403 && answer.json()["code"] == "scope";
            assert_eq!(refused, !covers, "{} with {scope}: {answer:?}", operation.id);
            if refused {
                let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
                assert!(detail.contains(needed.as_str()), "{detail}");
            }
        }
    }
}

/// What is the same in the answers to two requests that differ in a name.
fn comparable(answer: &Answer, name: &str) -> (u16, String) {
    let mut problem = answer.json();
    for own in ["request_id", "instance"] {
        problem.as_object_mut().expect("a problem").remove(own);
    }
    (answer.status, problem.to_string().replace(name, "NAME"))
}

#[test]
fn what_is_anothers_is_as_unknown_as_what_is_nobodys() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let make = |key: &str, name: &str| {
        server.as_key(key, "POST", "/v1/sandboxes", &json!({ "name": name }))
    };
    let made = make(&one, "mine");
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    let started = json!({ "cmd": ["sleep", "600"], "background": true });
    let exec = server.as_key(&one, "POST", "/v1/sandboxes/mine/exec", &started).json();
    let exec = exec["id"].as_str().expect("an id").to_owned();
    let taken = json!({ "tag": "first" });
    assert_eq!(server.as_key(&one, "POST", "/v1/sandboxes/mine/snapshots", &taken).status, 201);
    let run = server.as_key(&one, "POST", "/v1/runs", &bash("echo secret")).json();
    let run = run["execution_id"].as_str().expect("an id").to_owned();
    let mut tried = 0;
    for operation in operations(&server) {
        if operation.open || !operation.path.contains('{') || operation.path.contains("{code}") {
            continue;
        }
        // By its name, and by its id.
        let is_run =
            operation.path.starts_with("/v1/runs") || operation.path.contains("evolutions");
        let pairs = if is_run {
            vec![(run.clone(), run.replace(|c: char| c.is_ascii_digit(), "Z"))]
        } else {
            vec![("mine".to_owned(), "none".to_owned()), (id.clone(), id.replace('0', "Z"))]
        };
        for (foreign, unknown) in pairs {
            let names = |name: &str| {
                let inner = if is_run { name.to_owned() } else { exec.clone() };
                BTreeMap::from([
                    ("name", name.to_owned()),
                    ("id", inner),
                    ("tag", "first".to_owned()),
                    ("path", "workspace".to_owned()),
                ])
            };
            let at =
                |name: &str| ask(&server, &other, &operation, &filled(&operation, &names(name)));
            let (seen, unseen) = (at(&foreign), at(&unknown));
            assert_eq!(
                comparable(&seen, &foreign),
                comparable(&unseen, &unknown),
                "{}: {foreign}",
                operation.id
            );
            assert_eq!(seen.status, 404, "{}: {seen:?}", operation.id);
            tried += 1;
        }
    }
    assert!(tried > 60, "{tried}");
    let info = server.as_key(&one, "GET", "/v1/sandboxes/mine", &Value::Null);
    assert_eq!(
        (info.status, &info.json()["state"]),
        (200, &json!("running")),
        "nothing was done to it"
    );
}

#[test]
fn key_that_was_used_for_one_tenant_is_not_answered_for_another() {
    let server = Server::start();
    let make = |tenant: &str, key: &str| {
        let headers = [("Belljar-Tenant", tenant), ("Idempotency-Key", key)];
        server.unix().post("/v1/sandboxes", &headers, &json!({ "name": "a" }))
    };
    assert_eq!(make("one", "k").status, 201);
    assert_eq!(make("one", "k").header("idempotent-replayed"), Some("true"));
    let told = make("other", "k");
    assert_eq!((told.status, &told.json()["code"]), (422, &json!("idempotency_mismatch")));
    assert_eq!(make("other", "k2").status, 201);
    for strange in ["../x", "A", "a b", "\u{e9}"] {
        let told = server.unix().get("/v1/sandboxes", &[("Belljar-Tenant", strange)]);
        assert_eq!(
            (told.status, &told.json()["field"]),
            (400, &json!("Belljar-Tenant")),
            "{strange}"
        );
    }
    assert_eq!(server.unix().get("/v1/sandboxes", &[("Belljar-Tenant", "")]).status, 200);
}

#[test]
fn names_lists_and_records_are_each_tenants_own() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let same = server.key("one-2", &["--tenant", "one"]);
    let make = |key: &str| server.as_key(key, "POST", "/v1/sandboxes", &json!({ "name": "a" }));
    assert_eq!((make(&one).status, make(&other).status), (201, 201), "both may have the name");
    assert_eq!(make(&same).status, 409, "which the first tenant has");
    let ids = |key: &str| {
        let all = server.as_key(key, "GET", "/v1/sandboxes", &Value::Null).json();
        let all = all["sandboxes"].as_array().expect("a list").clone();
        all.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&one), ids(&same), "keys of one tenant see the same");
    assert_eq!((ids(&one).len(), ids(&other).len()), (1, 1));
    assert_ne!(ids(&one), ids(&other));
    // The owner's are apart, and the owner may look at a tenant's.
    let all = server.unix().get("/v1/sandboxes", &[]).json();
    assert_eq!(all["sandboxes"], json!([]));
    let theirs = server.unix().get("/v1/sandboxes", &[("Belljar-Tenant", "one")]).json();
    assert_eq!(theirs["sandboxes"][0]["id"], json!(ids(&one)[0]));
    let bearer = format!("Bearer {other}");
    let headers =
        [("Authorization", bearer.as_str()), ("Belljar-Tenant", "one"), ("Host", "localhost")];
    assert_eq!(server.tcp().get("/v1/sandboxes", &headers).status, 403);
    // Volumes of one name are two.
    let volume = json!({ "name": "v", "workspace": { "volume": "data", "mode": "read_write" } });
    for (key, text) in [(&one, "one"), (&other, "two")] {
        assert_eq!(server.as_key(key, "POST", "/v1/sandboxes", &volume).status, 201);
        let script =
            json!({ "script": format!("cat /workspace/x 2>&1; echo {text} > /workspace/x") });
        let wrote = server.as_key(key, "POST", "/v1/sandboxes/v/shell", &script).json();
        assert!(
            wrote["stdout"].as_str().is_some_and(|out| out.contains("No such file")),
            "{wrote}"
        );
    }
    records_are_apart(&server, [&one, &same, &other]);
}

fn records_are_apart(server: &Server, [one, same, other]: [&str; 3]) {
    for key in [one, same, other] {
        assert_eq!(server.as_key(key, "POST", "/v1/runs", &bash("true")).status, 200);
    }
    let runs = |key: &str| {
        let told = server.as_key(key, "GET", "/v1/audit", &Value::Null).json();
        told["runs"].as_array().expect("a list").len()
    };
    wait_until("all are recorded", || runs(one) == 2 && runs(other) == 1);
    assert_eq!(runs(same), 2);
    let stats = server.as_key(other, "GET", "/v1/stats", &Value::Null).json();
    assert_eq!((&stats["runs"]["runs"], &stats["pool"]), (&json!(1), &Value::Null), "{stats}");
    let by_name = server.as_key(other, "GET", "/v1/audit?user=one", &Value::Null).json();
    assert_eq!(by_name["runs"], json!([]), "asking for another's name does not help");
    let lines = [
        ("Authorization", &*format!("Bearer {other}")),
        ("Accept", "application/x-ndjson"),
        ("Host", "localhost"),
    ];
    let exported = server.tcp().get("/v1/audit", &lines).text();
    assert!(!exported.contains("\"one\"") && !exported.contains("one/one-2"), "{exported}");
    let all = server.unix().get("/v1/audit", &[]).json();
    assert_eq!(all["runs"].as_array().map(Vec::len), Some(3), "the owner sees all");
}

#[test]
fn what_a_tenant_reads_says_nothing_of_how_much_others_do() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    // A name that begins like another's, and one that sorts right behind it.
    let (near, behind) = (server.key("one-more", &[]), server.key("one0", &[]));
    for key in [&other, &one, &near, &one, &behind, &other, &one, &other] {
        assert_eq!(server.as_key(key, "POST", "/v1/runs", &bash("true")).status, 200);
    }
    let owners = server.unix().get("/v1/audit", &[]).json();
    assert!(owners["runs"][0]["seq"].is_u64(), "the owner is told: {owners}");
    let get = |path: &str| server.as_key(&one, "GET", path, &Value::Null);
    let (mut told, mut cursor) = (Vec::new(), String::new());
    for part in 0..3 {
        let answer = get(&format!("/v1/audit?limit=1{cursor}"));
        assert!(!answer.text().contains("\"seq\""), "{answer:?}");
        let page = answer.json();
        told.push(page["runs"][0]["execution_id"].as_str().expect("an id").to_owned());
        let next = page["next_cursor"].as_str();
        assert_eq!(next.is_some(), part < 2, "{page}");
        cursor = next.map(|next| format!("&cursor={next}")).unwrap_or_default();
    }
    let once: BTreeSet<&String> = told.iter().collect();
    assert_eq!(once.len(), 3, "each of its own, once: {told:?}");
    let page = get("/v1/audit?limit=1").json();
    let cursor = page["next_cursor"].as_str().expect("more");
    let foreign = server.as_key(&other, "GET", &format!("/v1/audit?cursor={cursor}"), &Value::Null);
    assert_eq!((foreign.status, foreign.json()), (200, json!({ "runs": [] })), "as one of nobody");
    let strange = server.as_key(&other, "GET", "/v1/audit?cursor=c3RyYW5nZQ", &Value::Null);
    assert_eq!((strange.status, &strange.json()["field"]), (400, &json!("cursor")), "{strange:?}");
    let before = get("/v1/audit?before=3");
    assert_eq!((before.status, &before.json()["field"]), (400, &json!("before")));
    let run = get(&format!("/v1/runs/{}", told[0])).json();
    assert_eq!((&run["state"], run.get("records")), (&json!("ended"), None), "{run}");
    let bearer = format!("Bearer {one}");
    let headers = [("Authorization", bearer.as_str()), ("Accept", "application/x-ndjson")];
    let lines = server.tcp().get("/v1/audit", &headers).lines();
    assert_eq!((lines.len(), &lines[0]), (7, &json!({ "belljar_audit": 1, "of_tenant": true })));
    for line in &lines[1..] {
        let names: Vec<&String> = line.as_object().expect("a record").keys().collect();
        assert_eq!(names, ["detail", "kind", "run", "summary", "time"], "{line}");
        assert_eq!(line["summary"]["key"], "one");
    }
}

#[test]
fn grades_and_evolutions_are_recorded_under_their_key() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let code = "def add(a, b):\n    return a + b\n";
    let cases = json!([{ "input_args": [2, 3], "expected_output": 5 }]);
    let graded = json!({ "code": code, "cases": cases });
    let streams = json!({ "language": "python", "code": "print(input())",
        "cases": [{ "stdin": "1\n", "expected_stdout": "1\n" }] });
    let mut ids = Vec::new();
    for asked in [&graded, &streams] {
        let grade = server.as_key(&one, "POST", "/v1/grades", asked).json();
        let id = grade["executions"][0].as_str().unwrap_or_else(|| panic!("{grade:#}"));
        ids.push(id.to_owned());
    }
    let task = json!({ "prompt": "add", "func": "add", "cases": cases, "max_iterations": 1,
        "proposer": { "kind": "replay", "answers": [code] } });
    let begun = server.as_key(&one, "POST", "/v1/evolutions", &task);
    assert_eq!(begun.status, 202, "{begun:?}");
    let runs = |key: &str| {
        let told = server.as_key(key, "GET", "/v1/audit", &Value::Null).json();
        told["runs"].as_array().expect("a list").clone()
    };
    wait_until("the evolution's runs are recorded", || runs(&one).len() >= 3);
    for run in runs(&one) {
        assert_eq!((&run["key"], &run["peer"]), (&json!("one"), &json!("tcp")), "{run}");
        assert!(run["request_id"].as_str().is_some_and(|id| id.starts_with("req_")), "{run}");
    }
    assert_eq!(runs(&other), [Value::Null; 0], "they are nobody else's");
    for id in ids {
        let at = format!("/v1/runs/{id}");
        assert_eq!(server.as_key(&one, "GET", &at, &Value::Null).status, 200);
        assert_eq!(server.as_key(&other, "GET", &at, &Value::Null).status, 404);
    }
}
