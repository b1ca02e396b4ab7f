//! A server under test: started with a directory of its own, stopped with the test.

use std::fs;
use std::ops::Deref;

use belljar_tests::{Ended, Program, TempDir};
use serde_json::{Value, json};

use crate::http::{Answer, Connection};

/// A [`belljar_tests::Server`] that is spoken to by HTTP.
pub(crate) struct Server {
    server: belljar_tests::Server,
    /// Nought without TCP.
    pub(crate) port: u16,
}

impl Deref for Server {
    type Target = belljar_tests::Server;

    fn deref(&self) -> &Self::Target {
        &self.server
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with more options and waits until it listens.
    pub(crate) fn with(options: &[&str]) -> Self {
        Self::started(TempDir::new(), options, &[])
    }

    pub(crate) fn started(
        directory: TempDir,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let server = belljar_tests::Server::started(directory, &with_usual(options), variables);
        let said = server.lines().iter().find_map(|line| line.split("http://127.0.0.1:").nth(1));
        let port = said.map_or(0, |address| {
            let digits: String = address.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().expect("a port")
        });
        Self { server, port }
    }

    pub(crate) fn unix(&self) -> Connection {
        Connection::unix(&self.socket())
    }

    pub(crate) fn tcp(&self) -> Connection {
        Connection::tcp(self.port)
    }

    pub(crate) fn token(&self) -> String {
        let text = fs::read_to_string(self.path().join("state/token")).expect("a token");
        text.trim().to_owned()
    }

    /// Makes a key beside the server, and says how it is shown.
    pub(crate) fn key(&self, name: &str, more: &[&str]) -> String {
        let made = self.keys(&["create", name]).args(more).run();
        assert_eq!(made.code, Some(0), "{made:?}");
        made.out().trim().to_owned()
    }

    /// `belljar key` for this server.
    pub(crate) fn keys(&self, words: &[&str]) -> Program {
        let state = self.path().join("state");
        Program::belljar().arg("key").args(words).arg("--state").arg(state)
    }

    /// One request over TCP with a key.
    pub(crate) fn as_key(&self, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {key}");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.tcp().ask(method, path, &[("Authorization", &bearer)], body.as_bytes())
    }

    /// One run over the Unix socket.
    pub(crate) fn run(&self, request: &Value) -> Answer {
        self.unix().post("/v1/runs", &[], request)
    }

    /// One of the numbers that it tells of itself.
    pub(crate) fn gauge(&self, name: &str) -> usize {
        let text = self.unix().get("/metrics", &[]).text();
        let mut found =
            text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.next().expect("a number")
    }

    /// Waits for its end. What it left in its directory can be looked at afterwards.
    pub(crate) fn wait(self) -> (Ended, TempDir) {
        self.server.wait()
    }
}

/// One that is expected not to begin.
pub(crate) fn program(directory: &TempDir, options: &[&str]) -> Program {
    belljar_tests::Server::program(directory, &with_usual(options))
}

/// This suite speaks TCP, and the children of its servers are those of their runs: the suite `warm` has the
/// pool.
fn with_usual<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let usual = [["--listen", "127.0.0.1:0"], ["--pool", "0"]];
    let missing = usual.into_iter().filter(|[name, _]| !options.contains(name)).flatten();
    options.iter().copied().chain(missing).collect()
}

pub(crate) fn python(code: &str) -> Value {
    json!({ "language": "python", "code": code })
}

pub(crate) fn bash(code: &str) -> Value {
    json!({ "language": "bash", "code": code })
}

pub(crate) const LINES: (&str, &str) = ("Accept", "application/x-ndjson");
