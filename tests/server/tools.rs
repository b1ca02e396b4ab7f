//! `/mcp` as a part of the server: whose its sessions are, and how its calls end.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Answer, Connection};
use crate::running::Server;

const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const KIND: (&str, &str) = ("Content-Type", "application/json");

fn initialize() -> Value {
    let client = json!({ "name": "test", "version": "1" });
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })
}

fn call(name: &str, arguments: &Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params })
}

/// Begins a session, and says which.
fn begin(server: &Server, bearer: &str) -> String {
    let headers = [("Authorization", bearer), ACCEPT, KIND];
    let begun = server.tcp().post("/mcp", &headers, &initialize());
    assert_eq!(begun.status, 200, "{begun:?}");
    let id = begun.header("mcp-session-id").expect("a session").to_owned();
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let headers = [("Authorization", bearer), ACCEPT, KIND, ("Mcp-Session-Id", id.as_str())];
    assert_eq!(server.tcp().post("/mcp", &headers, &ready).status, 202);
    id
}

#[test]
fn sessions_of_one_tenant_are_unknown_to_another() {
    let server = Server::start();
    let (one, other) = (server.key("one", &[]), server.key("other", &[]));
    let [one, other] = [one, other].map(|key| format!("Bearer {key}"));
    let id = begin(&server, &one);
    let ask = |bearer: &str, method: &str, id: &str, body: &Value| -> Answer {
        let headers = [("Authorization", bearer), ACCEPT, KIND, ("Mcp-Session-Id", id)];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        server.tcp().ask(method, "/mcp", &headers, body.as_bytes())
    };
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} });
    assert!(ask(&one, "POST", &id, &list).text().contains("run_code"), "the control");
    for (method, body) in [("POST", &list), ("GET", &Value::Null), ("DELETE", &Value::Null)] {
        assert_eq!(ask(&other, method, &id, body).status, 404, "{method}");
    }
    assert!(ask(&one, "POST", &id, &list).text().contains("run_code"), "it is still there");
    assert!(matches!(ask(&one, "DELETE", &id, &Value::Null).status, 200 | 202 | 204));
    assert_eq!(ask(&one, "POST", &id, &list).status, 404);
}

#[test]
fn one_tenant_has_its_share_of_the_sessions_and_another_has_its_own() {
    let server = Server::with(&["--rate", "off"]);
    let [one, other] = ["one", "other"].map(|name| format!("Bearer {}", server.key(name, &[])));
    let ids: Vec<String> = (0..240).map(|_| begin(&server, &one)).collect();
    let ask = |bearer: &str| {
        server.tcp().post("/mcp", &[("Authorization", bearer), ACCEPT, KIND], &initialize())
    };
    // Many that come at once do not all find the last place.
    let together = std::sync::Barrier::new(40);
    let headers = [("Authorization", &*one), ACCEPT, KIND];
    let served = std::thread::scope(|scope| {
        let one_more = |mut connection: Connection| {
            together.wait();
            connection.post("/mcp", &headers, &initialize()).status
        };
        let connections = (0..40).map(|_| server.tcp());
        let asked: Vec<_> = connections.map(|one| scope.spawn(move || one_more(one))).collect();
        asked.into_iter().filter_map(|one| one.join().ok()).filter(|status| *status == 200).count()
    });
    assert!(served <= 10, "{served} more than 240");
    (served..10).for_each(|_| assert_eq!(ask(&one).status, 200));
    let told = ask(&one);
    assert_eq!((told.status, &told.json()["code"]), (429, &json!("busy")), "{told:?}");
    begin(&server, &other);
    let headers = [("Authorization", &*one), ACCEPT, KIND, ("Mcp-Session-Id", &*ids[7])];
    assert!(matches!(server.tcp().ask("DELETE", "/mcp", &headers, b"").status, 200 | 202 | 204));
    belljar_tests::wait_until("what has ended makes room", || ask(&one).status == 200);
    assert_eq!(ask(&one).status, 429, "for one");
}

#[test]
fn calls_may_end_when_the_server_is_told_to_and_idle_streams_do_not_hold_it_up() {
    let server = Server::with(&["--drain", "300s"]);
    let bearer = format!("Bearer {}", server.token());
    let id = begin(&server, &bearer);
    let session = ("Mcp-Session-Id", id.as_str());
    let mut idle = server.tcp();
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n\
         Accept: text/event-stream\r\nMcp-Session-Id: {id}\r\n\r\n"
    );
    idle.write(head.as_bytes()).expect("it reads");
    assert_eq!(idle.head().status, 200);
    let slow = call("run_command", &json!({ "command": "sleep 2; echo whole" }));
    let mut calling: Connection = server.tcp();
    calling.send("/mcp", &[("Authorization", &bearer), ACCEPT, KIND, session], &slow);
    belljar_tests::wait_until("it runs", || !server.children().is_empty());
    server.signal(Signal::TERM);
    let answer = calling.answer();
    assert!(answer.text().contains("whole\\n"), "{answer:?}");
    let (ended, _) = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
