//! What was recorded, as clients read it, and how often they may ask.

use serde_json::{Value, json};

use crate::http::Answer;
use crate::running::{LINES, Server, bash, python};

fn get(server: &Server, path: &str) -> Answer {
    server.unix().get(path, &[("Host", "localhost")])
}

fn id(outcome: &Value) -> &str {
    outcome["execution_id"].as_str().expect("an id")
}

/// A run that costs next to nothing.
fn quick(labels: &Value) -> Value {
    json!({ "language": "bash", "level": "none", "code": ":", "labels": labels })
}

#[test]
fn run_can_be_read_again_with_its_events_and_its_report() {
    let server = Server::start();
    let code =
        "import ctypes\nprint('hi')\nctypes.CDLL(None).mount(b'a', b'/tmp', b'ext4', 0, None)";
    let outcome = server.run(&python(code)).json();
    let run = get(&server, &format!("/v1/runs/{}", id(&outcome))).json();
    assert_eq!(
        (&run["state"], &run["end"]["outcome"]["stdout"]),
        (&"ended".into(), &"hi\n".into())
    );
    assert_eq!(run["summary"]["peer"], "socket");
    let events = get(&server, &format!("/v1/runs/{}/events", id(&outcome))).json();
    assert_eq!(events["events"], outcome["events"]);
    assert_eq!(events["events"][0]["syscall"], "mount", "{events}");
    let path = format!("/v1/runs/{}/report", id(&outcome));
    let report = get(&server, &path).json();
    assert_eq!((&report["risk"], &report["receipt"]), (&outcome["risk"], &outcome["receipt"]));
    let page =
        server.unix().get(&path, &[("Host", "localhost"), ("Accept", "text/html,*/*;q=0.8")]);
    assert!(
        page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")),
        "{page:?}"
    );
    assert!(page.header("content-security-policy").is_some_and(|one| one.contains("sandbox")));
    assert!(page.text().starts_with("<!DOCTYPE html>"));
    let explained = get(&server, &format!("/v1/runs/{}/explanation", id(&outcome))).json();
    assert!(explained["recommendations"].as_array().is_some_and(|all| !all.is_empty()));
    let failed = server.run(&python("def half(x):\n    return x / 0\n\nhalf(2)\n")).json();
    let explained = get(&server, &format!("/v1/runs/{}/explanation", id(&failed))).json();
    let advice = &explained["feedback"][0];
    assert_eq!(
        (&advice["error_type"], &advice["line"]),
        (&"ZeroDivisionError".into(), &2.into()),
        "{explained:#}"
    );
    assert!(advice["excerpt"].as_str().is_some_and(|text| text.contains("return x / 0")));
    let missing = get(&server, "/v1/runs/01HZZZZZZZ");
    assert_eq!((missing.status, missing.json()["kind"].clone()), (404, "not_found".into()));
}

#[test]
fn a_graded_run_is_recorded_with_the_candidate_as_its_code() {
    let server = Server::start();
    let code = "def add(a, b):\n    return a + b\n";
    let asked = json!({ "code": code, "cases": [{ "input_args": [2, 3], "expected_output": 5 }] });
    let headers = [("Host", "localhost")];
    let grade = server.unix().post("/v1/grades", &headers, &asked).json();
    let id = grade["executions"][0].as_str().unwrap_or_else(|| panic!("{grade:#}"));
    let run = get(&server, &format!("/v1/runs/{id}")).json();
    assert_eq!(run["start"]["code"], code, "{run:#}");
    let same = get(&server, &format!("/v1/runs/{}", id_of_plain(&server, code))).json();
    assert_eq!(run["summary"]["code_digest"], same["summary"]["code_digest"], "{run:#}");
}

/// The id of an ordinary run of this code.
fn id_of_plain(server: &Server, code: &str) -> String {
    id(&server.run(&python(code)).json()).to_owned()
}

#[test]
fn trail_and_numbers_are_read_with_filters() {
    let server = Server::start();
    for team in ["red", "red", "b lue&x=1"] {
        assert_eq!(server.run(&quick(&json!({ "team": team }))).status, 200);
    }
    let count = |query: &str| {
        let answer = get(&server, &format!("/v1/audit{query}")).json();
        answer["runs"].as_array().map(Vec::len).unwrap_or_else(|| panic!("{answer}"))
    };
    assert_eq!(
        [count(""), count("?label=team%3Dred"), count("?label=team%3Db%20lue%26x%3D1")],
        [3, 2, 1]
    );
    assert_eq!(
        [count("?limit=2"), count("?verdict=exited&since=1h"), count("?verdict=error")],
        [2, 3, 0]
    );
    let first = get(&server, "/v1/audit?limit=1").json()["runs"][0]["seq"].clone();
    assert_eq!(count(&format!("?before={first}")), 2);
    let stats = get(&server, "/v1/stats?label=team").json();
    assert_eq!((&stats["runs"]["runs"], &stats["pool"]), (&3.into(), &Value::Null));
    let lines = server.unix().get("/v1/audit", &[("Host", "localhost"), LINES]).lines();
    assert_eq!((lines.len(), &lines[0]["head"]["seq"]), (7, &6.into()));
    for (query, field) in [
        ("?colour=red", "colour"),
        ("?verdict=x", "verdict"),
        ("?limit=x", "limit"),
        ("?limit=9999", "limit"),
    ] {
        let answer = get(&server, &format!("/v1/audit{query}"));
        assert_eq!((answer.status, answer.json()["field"].clone()), (400, field.into()), "{query}");
    }
}

#[test]
fn run_of_a_client_that_went_away_is_recorded_as_cancelled() {
    let server = Server::start();
    let mut connection = server.unix();
    connection.send("/v1/runs", &[LINES], &bash("echo up; sleep 90"));
    assert_eq!(connection.head().status, 200);
    assert!(connection.chunk().is_some());
    drop(connection);
    belljar_tests::wait_until("recorded as cancelled", || {
        let runs = get(&server, "/v1/audit?verdict=cancelled").json();
        runs["runs"].as_array().is_some_and(|all| all.len() == 1)
    });
}

#[test]
fn without_an_audit_trail_there_is_none_to_read() {
    let server = Server::with(&["--no-audit"]);
    assert_eq!(server.run(&quick(&json!({}))).status, 200);
    for path in ["/v1/audit", "/v1/runs/last"] {
        let answer = get(&server, path);
        assert!(answer.status == 404 && answer.text().contains("--no-audit"), "{answer:?}");
    }
    assert_eq!(get(&server, "/v1/stats").json()["runs"], Value::Null);
    assert!(!server.path().join("state/audit.db").exists());
}

#[test]
fn token_has_a_rate_and_the_local_user_has_none() {
    let server = Server::with(&["--rate", "60/m:2"]);
    let bearer = format!("Bearer {}", server.token());
    let host = format!("127.0.0.1:{}", server.port);
    let run = || {
        server.tcp().post(
            "/v1/runs",
            &[("Authorization", &bearer), ("Host", &host)],
            &quick(&json!({})),
        )
    };
    let first = run();
    assert_eq!(
        (first.status, first.header("ratelimit-limit"), first.header("ratelimit-remaining")),
        (200, Some("2"), Some("1"))
    );
    assert_eq!(first.header("ratelimit-reset"), Some("1"));
    // However slow this machine is, some are refused before they are all let in.
    let all: Vec<Answer> = (0..20).map(|_| run()).collect();
    let refused = all.iter().find(|answer| answer.status == 429).expect("one too many");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("ratelimit"), Some("\"runs\";r=0;t=1"));
    assert_eq!(refused.header("ratelimit-remaining"), Some("0"));
    let told = refused.json();
    assert_eq!((&told["kind"], &told["rule"]), (&"rate_limited".into(), &"rate".into()), "{told}");
    for _ in 0..10 {
        assert_eq!(server.run(&quick(&json!({}))).status, 200, "by the socket");
    }
}

#[test]
fn labels_of_one_tenant_cost_no_other_and_tell_it_nothing() {
    let options = ["--rate-label", "sandbox=1/h", "--cpu-budget", "team=2s/h", "--rate", "off"];
    let mut server = Server::with(&options);
    let keys = [server.key("one", &[]), server.key("other", &[])];
    for key in &keys {
        let run = || server.as_key(key, "POST", "/v1/runs", &quick(&json!({ "sandbox": "same" })));
        assert_eq!(run().status, 200, "each has its own");
        assert_eq!(run().json()["rule"], "rate-label sandbox");
    }
    let spend = |server: &Server, key: &str, seconds: f64| {
        let code = format!(
            "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"
        );
        let mut request = python(&code);
        (request["labels"], request["limits"]) =
            (json!({ "team": "red" }), json!({ "cpu_ms": 1900 }));
        server.as_key(key, "POST", "/v1/runs", &request)
    };
    assert_eq!(spend(&server, &keys[0], 0.4).status, 200);
    for _ in 0..2 {
        let told = spend(&server, &keys[0], 0.0);
        assert_eq!((told.status, &told.json()["kind"]), (429, &json!("budget_spent")), "{told:?}");
        assert_eq!(spend(&server, &keys[1], 0.0).status, 200, "another's is another");
        // What was used is read back from the trail the same way.
        server.signal(rustix::process::Signal::TERM);
        let (_, directory) = server.wait();
        server = Server::started(directory, &options, &[]);
    }
}

#[test]
fn each_value_of_a_label_has_its_own_rate() {
    let server = Server::with(&["--rate-label", "sandbox=1/h"]);
    let run = |name: &str| server.run(&quick(&json!({ "sandbox": name })));
    assert_eq!((run("a").status, run("b").status), (200, 200));
    let refused = run("a");
    assert_eq!(
        (refused.status, refused.json()["rule"].clone()),
        (429, "rate-label sandbox".into())
    );
    let wait: u64 =
        refused.header("retry-after").and_then(|one| one.parse().ok()).expect("a number");
    assert!((3000..=3600).contains(&wait), "{wait}");
    assert_eq!(server.run(&quick(&json!({}))).status, 200, "without the label");
}

#[test]
fn what_begins_in_a_sandbox_counts_for_its_key_and_for_the_sandbox() {
    let server = Server::with(&["--rate", "4/h", "--rate-sandbox", "2/h"]);
    let key = server.key("ada", &[]);
    let at = |name: &str, verb: &str| format!("/v1/sandboxes/{name}/{verb}");
    let verbs = [
        ("exec", json!({ "cmd": ["/bin/true"] })),
        ("shell", json!({ "script": "true" })),
        ("code", json!({ "code": "1" })),
        ("contexts", json!({})),
    ];
    for name in ["one", "two", "three"] {
        let made = server.as_key(&key, "POST", "/v1/sandboxes", &json!({ "name": name }));
        assert_eq!(made.status, 201, "a sandbox is no program: {made:?}");
    }
    let begin = |name: &str, of: usize| {
        let (verb, body) = &verbs[of];
        server.as_key(&key, "POST", &at(name, verb), body)
    };
    let first = begin("one", 0);
    assert_eq!((first.status, first.header("ratelimit-remaining")), (200, Some("3")), "{first:?}");
    assert_eq!(begin("one", 1).status, 200);
    // Refused by the sandbox, it still counts for who asked: otherwise a loop of them would cost nothing.
    let refused = begin("one", 2);
    assert_eq!((refused.status, &refused.json()["rule"]), (429, &"rate-sandbox".into()));
    let wait: u64 =
        refused.header("retry-after").expect("when to come back").parse().expect("seconds");
    assert!((1..=1800).contains(&wait), "{wait}");
    assert_eq!(begin("two", 2).status, 200, "another sandbox");
    let refused = begin("three", 3);
    assert_eq!((refused.status, &refused.json()["rule"]), (429, &"rate".into()), "{refused:?}");
    // The owner has a sandbox of the same name, which is another, and no rate but the sandbox's.
    let made = server.unix().post("/v1/sandboxes", &[], &json!({ "name": "one" }));
    assert_eq!(made.status, 201, "{made:?}");
    let told: Vec<_> = verbs
        .iter()
        .map(|(verb, body)| server.unix().post(&at("one", verb), &[], body).status)
        .collect();
    assert_eq!(told, [200, 200, 429, 429]);
}

#[test]
fn label_has_a_budget_of_cpu_time_that_a_restart_does_not_refill() {
    let options = ["--cpu-budget", "team=2s/h"];
    let server = Server::with(&options);
    let spend = |server: &Server, cpu_ms: u64| {
        let code =
            "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass";
        let request = json!({ "language": "python", "code": code, "labels": { "team": "red" }, "limits": { "cpu_ms": cpu_ms } });
        server.run(&request)
    };
    let never = spend(&server, 3000);
    assert_eq!((never.status, never.json()["field"].clone()), (400, "limits.cpu_ms".into()));
    assert_eq!(spend(&server, 1900).status, 200);
    let refused = spend(&server, 1900);
    assert_eq!(
        (refused.status, refused.json()["rule"].clone()),
        (429, "cpu-budget team".into()),
        "{refused:?}"
    );
    assert!(refused.text().contains("has used") && refused.header("retry-after").is_some());
    assert_eq!(spend(&server, 700).status, 200, "so much is left");
    server.signal(rustix::process::Signal::TERM);
    let (_, directory) = server.wait();
    let server = Server::started(directory, &options, &[]);
    let refused = spend(&server, 1900);
    assert_eq!(refused.status, 429, "{refused:?}");
}
