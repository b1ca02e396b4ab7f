//! HTTP to a server of the test, one connection for each request.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::http::Connection;

/// Whom to ask.
pub(crate) struct Client {
    socket: PathBuf,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Spoken {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Spoken {
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        self
    }

    /// A problem of this status and kind.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, kind: &str) -> Value {
        let problem = self.is(status).json();
        assert_eq!(problem["kind"], kind, "{problem}");
        problem
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &[u8]) -> Spoken {
        let mut connection = self.connect(method, path, body);
        let head = connection.head();
        Self::read(connection, head)
    }

    fn connect(&self, method: &str, path: &str, body: &[u8]) -> Connection {
        let mut connection = Connection::unix(&self.socket);
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        connection.write(head.as_bytes()).expect("the server reads");
        connection.write(body).ok(); // one that refuses early need not read it
        connection
    }

    fn read(mut connection: Connection, head: crate::http::Answer) -> Spoken {
        let mut body = Vec::new();
        if head.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = connection.chunk() {
                body.extend(chunk);
            }
        } else if let Some(length) = head.header("content-length") {
            let length: usize = length.parse().expect("a number");
            body = connection.bytes(length);
        }
        Spoken { status: head.status, body }
    }

    /// A request whose answer goes on: its head, and the connection on which the rest comes. One that is refused is
    /// read to its end.
    pub(crate) fn begin(&self, path: &str) -> (Spoken, Connection) {
        let mut connection = self.connect("GET", path, b"");
        let head = connection.head();
        if head.status < 300 {
            return (Spoken { status: head.status, body: Vec::new() }, connection);
        }
        let spare = Connection::unix(&self.socket);
        (Self::read(connection, head), spare)
    }

    pub(crate) fn get(&self, path: &str) -> Spoken {
        self.ask("GET", path, b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Spoken {
        self.ask("POST", path, body.to_string().as_bytes())
    }

    pub(crate) fn put(&self, path: &str, body: &[u8]) -> Spoken {
        self.ask("PUT", path, body)
    }

    pub(crate) fn delete(&self, path: &str) -> Spoken {
        self.ask("DELETE", path, b"")
    }
}
