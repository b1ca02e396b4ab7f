//! A terminal over a WebSocket, frame by frame, and streams that are resumed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::http::{Answer, Connection};
use crate::running::Server;

/// Frames of RFC 6455.
struct Socket(Connection);

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;

impl Socket {
    fn open(server: &Server, path: &str) -> Self {
        let (socket, answer) = Self::ask(server.unix(), path, "");
        assert_eq!(answer.status, 101, "{answer:?}");
        socket
    }

    /// With further headers; the head of the answer too.
    fn ask(mut connection: Connection, path: &str, more: &str) -> (Self, Answer) {
        let key = STANDARD.encode([7; 16]);
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{more}\r\n"
        );
        connection.write(head.as_bytes()).expect("the server reads");
        let answer = connection.head();
        (Self(connection), answer)
    }

    fn send(&mut self, kind: u8, bytes: &[u8]) {
        // A client's frames are masked; a mask of noughts changes nothing.
        let length = u8::try_from(bytes.len()).expect("short");
        assert!(length < 126);
        let head = [0x80 | kind, 0x80 | length, 0, 0, 0, 0];
        self.0.write(&[&head, bytes].concat()).expect("the server reads");
    }

    /// The next frame that is no ping.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            let head = self.0.bytes(2);
            let length = match head[1] & 0x7f {
                126 => usize::from(u16::from_be_bytes(self.0.bytes(2).try_into().expect("two"))),
                short => usize::from(short),
            };
            let bytes = self.0.bytes(length);
            let kind = head[0] & 0x0f;
            if kind != 9 {
                return (kind, bytes);
            }
        }
    }

    /// Reads until the terminal has shown this.
    fn shows(&mut self, wanted: &str) {
        let mut shown = String::new();
        while !shown.contains(wanted) {
            let (kind, bytes) = self.frame();
            assert_ne!(kind, CLOSE, "{shown}");
            if kind == BINARY {
                shown += &String::from_utf8_lossy(&bytes);
            }
        }
    }
}

fn terminal(server: &Server, command: &Value) -> String {
    assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({ "name": "t" })).status, 201);
    let size = json!({ "rows": 24, "columns": 80 });
    let asked = json!({ "cmd": command, "background": true, "terminal": size, "keep_stdin": true });
    let started = server.unix().post("/v1/sandboxes/t/exec", &[], &asked);
    assert_eq!(started.status, 202, "{started:?}");
    let id = started.json()["id"].as_str().expect("an id").to_owned();
    format!("/v1/sandboxes/t/execs/{id}")
}

#[test]
fn terminal_is_used_over_a_websocket() {
    let server = Server::start();
    let path = terminal(&server, &json!(["/bin/bash", "--norc", "--noprofile", "-i"]));
    let mut socket = Socket::open(&server, &format!("{path}/attach"));
    socket.send(BINARY, b"echo sum $((40 + 2))\r");
    socket.shows("sum 42");
    socket.send(TEXT, br#"{"type":"resize","rows":30,"columns":100}"#);
    socket.send(BINARY, b"stty size\r");
    socket.shows("30 100");
    socket.send(TEXT, b"nonsense");
    let (kind, told) = loop {
        let frame = socket.frame();
        if frame.0 == TEXT {
            break frame;
        }
    };
    assert!(kind == TEXT && String::from_utf8_lossy(&told).contains("cannot be read"));
    socket.send(BINARY, b"exit 3\r");
    let ended = loop {
        let (kind, bytes) = socket.frame();
        if kind == TEXT {
            break serde_json::from_slice::<Value>(&bytes).expect("JSON");
        }
    };
    assert_eq!(
        (&ended["type"], &ended["end"]["exit_code"]),
        (&json!("ended"), &json!(3)),
        "{ended}"
    );
    assert_eq!(socket.frame().0, CLOSE);
}

#[test]
fn one_tenant_has_its_share_of_the_terminals_and_another_has_its_own() {
    let server = Server::with(&["--rate", "off"]);
    let keys = ["one", "other"].map(|name| server.key(name, &[]));
    let path = "/v1/sandboxes/t";
    let ids = keys.each_ref().map(|key| {
        assert_eq!(server.as_key(key, "POST", "/v1/sandboxes", &json!({ "name": "t" })).status, 201);
        let size = json!({ "rows": 24, "columns": 80 });
        let asked = json!({ "cmd": ["sleep", "600"], "background": true, "terminal": size, "keep_stdin": true });
        let begun = server.as_key(key, "POST", &format!("{path}/exec"), &asked);
        begun.json()["id"].as_str().unwrap_or_else(|| panic!("{begun:?}")).to_owned()
    });
    let open = |who: usize| {
        let bearer = format!("Authorization: Bearer {}\r\n", keys[who]);
        Socket::ask(server.tcp(), &format!("{path}/execs/{}/attach", ids[who]), &bearer)
    };
    let mut held: Vec<Socket> = (0..64)
        .map(|number| {
            let (socket, answer) = open(0);
            assert_eq!(answer.status, 101, "{number}: {answer:?}");
            socket
        })
        .collect();
    assert_eq!(open(0).1.status, 429, "as many as one may have");
    assert_eq!(open(1).1.status, 101, "another has room");
    held.pop();
    belljar_tests::wait_until("what is closed makes room", || open(0).1.status == 101);
}

#[test]
fn plain_request_for_a_terminal_is_told_to_upgrade() {
    let server = Server::start();
    let path = terminal(&server, &json!(["sleep", "60"]));
    let told = server.unix().get(&format!("{path}/attach"), &[]);
    assert_eq!((told.status, &told.json()["code"]), (426, &json!("upgrade_required")), "{told:?}");
    assert_eq!(server.unix().get("/v1/sandboxes/t/execs/none/attach", &[]).status, 404);
}

#[test]
fn output_goes_on_after_the_event_that_was_seen_last() {
    let server = Server::start();
    assert_eq!(server.unix().post("/v1/sandboxes", &[], &json!({ "name": "t" })).status, 201);
    let asked = json!({ "cmd": ["bash", "-c", "echo one; echo two >&2; sleep 0.2; echo three"] });
    let accept = ("Accept", "text/event-stream");
    let whole = server.unix().post("/v1/sandboxes/t/exec", &[accept], &asked).text();
    let blocks: Vec<&str> = whole.split_terminator("\n\n").collect();
    let started: Value =
        serde_json::from_str(blocks[0].split("data: ").nth(1).expect("data")).expect("JSON");
    let path = format!("/v1/sandboxes/t/execs/{}/events", started["id"].as_str().expect("an id"));
    let id = |block: &str| {
        block.strip_prefix("id: ").expect("an id").lines().next().expect("one").to_owned()
    };
    let last = id(blocks.last().expect("an end"));
    assert_eq!(last, "10.4", "{whole}");
    let text = |from: &str| {
        let rest = server.unix().get(&path, &[accept, ("Last-Event-ID", from)]).text();
        let data = rest.split_terminator("\n\n").filter_map(|block| block.split("data: ").nth(1));
        let events = data.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
        let output = events.filter(|event| event["type"] == "output");
        output.map(|event| event["data"].as_str().expect("text").to_owned()).collect::<String>()
    };
    assert_eq!(text("4.4"), "three\n");
    assert_eq!(text("10.4"), "");
    assert_eq!(server.unix().get(&path, &[accept, ("Last-Event-ID", "x")]).status, 400);
}
