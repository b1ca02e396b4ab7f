//! `POST /v1/batches`: answers in the order of the input.

use serde_json::{Value, json};

use crate::running::{LINES, Server, bash, python};

fn three() -> Value {
    let slow = python("import time; time.sleep(0.5); print(0)");
    json!({ "requests": [slow, { "language": "cobol", "code": "1" }, bash("echo 2")] })
}

fn assert_three(all: &[Value]) {
    assert_eq!(all.len(), 3);
    assert_eq!((&all[0]["stdout"], &all[2]["stdout"]), (&json!("0\n"), &json!("2\n")));
    assert_eq!(all[1]["error"]["kind"], "spec", "{}", all[1]);
    assert_eq!(
        (&all[1]["error"]["field"], &all[1]["error"]["status"]),
        (&json!("language"), &json!(400))
    );
}

#[test]
fn batch_is_answered_in_the_order_of_the_input() {
    let server = Server::start();
    let answer = server.unix().post("/v1/batches", &[], &three());
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_three(answer.json().as_array().expect("a list"));
    let lines = server.unix().post("/v1/batches", &[LINES], &three());
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    assert_three(&lines.lines());
}

#[test]
fn empty_batch_is_an_empty_list() {
    let server = Server::start();
    let answer = server.unix().post("/v1/batches", &[], &json!({ "requests": [] }));
    assert_eq!(answer.json(), json!([]));
}

#[test]
fn results_come_while_later_requests_still_run() {
    let server = Server::start();
    let body = json!({ "requests": [bash("echo soon"), bash("sleep 60")], "parallel": 2 });
    let mut connection = server.unix();
    connection.send("/v1/batches", &[LINES], &body);
    assert_eq!(connection.head().status, 200);
    let chunk = connection.chunk().expect("the first result");
    let first: Value = serde_json::from_slice(&chunk).expect("JSON");
    assert_eq!(first["stdout"], "soon\n");
}

#[test]
fn budget_of_a_batch_is_kept() {
    let server = Server::start();
    let mut burn = python("while True: pass");
    burn["limits"] = json!({ "cpu_ms": 500 });
    let body = json!({ "requests": [burn, burn], "parallel": 1, "budget_cpu_ms": 600 });
    let all = server.unix().post("/v1/batches", &[], &body).json();
    assert_eq!(all[0]["verdict"]["kind"], "cpu_time_limit", "{all}");
    assert_eq!(all[1]["error"]["kind"], "budget", "{all}");
    let body = json!({ "requests": [bash("sleep 60")], "budget_wall_ms": 300 });
    let all = server.unix().post("/v1/batches", &[], &body).json();
    assert_eq!(all[0]["error"]["kind"], "budget", "{all}");
}

#[test]
fn batch_runs_no_more_at_once_than_the_server() {
    let server = Server::with(&["--max-runs", "1"]);
    // Each writes when it began and ended; two at once would overlap.
    let one =
        python("import time; print(time.monotonic()); time.sleep(0.2); print(time.monotonic())");
    let body = json!({ "requests": [one, one, one], "parallel": 3 });
    let all = server.unix().post("/v1/batches", &[], &body).json();
    let mut times: Vec<Vec<f64>> = Vec::new();
    for outcome in all.as_array().expect("a list") {
        let text = outcome["stdout"].as_str().expect("text");
        times.push(text.lines().map(|line| line.parse().expect("a time")).collect());
    }
    times.sort_by(|one, other| one[0].total_cmp(&other[0]));
    assert!(times.windows(2).all(|two| two[0][1] <= two[1][0]), "{times:?}");
}

#[test]
fn mistakes_in_a_batch_are_told_with_their_place() {
    let server = Server::start();
    for (body, field) in [
        (json!({ "requests": [bash("1"), { "colour": 1 }] }), "requests[1].colour"),
        (json!({ "requests": [{ "code": "1", "copies": { "a": "/b" } }] }), "requests[0].copies"),
        (json!({ "requests": [], "parallel": 0 }), "parallel"),
        (json!({ "requests": [], "cores": 1 }), "cores"),
        (json!({}), "body"),
        (json!({ "requests": vec![json!({}); 10_001] }), "requests"),
    ] {
        let answer = server.unix().post("/v1/batches", &[], &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["field"], field, "{answer:?}");
    }
}
