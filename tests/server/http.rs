//! HTTP/1.1 as a test speaks it: every byte is ours, so that what is refused is really refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use belljar_tests::DEADLINE;
use serde_json::Value;

enum Line {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Line {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

/// A connection to a server.
pub(crate) struct Connection {
    line: BufReader<Line>,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.line.get_ref() {
            Line::Unix(stream) => stream.as_fd(),
            Line::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(one, _)| one.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// One JSON value a line.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Connection {
    pub(crate) fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("a server listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a time limit");
        Self { line: BufReader::new(Line::Unix(stream)) }
    }

    pub(crate) fn tcp(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a server listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a time limit");
        Self { line: BufReader::new(Line::Tcp(stream)) }
    }

    /// Sends bytes as they are. A server that answers early may have closed its side.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self.line.get_mut() {
            Line::Unix(stream) => stream.write_all(bytes),
            Line::Tcp(stream) => stream.write_all(bytes),
        }
    }

    pub(crate) fn send(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) {
        let body = body.to_string();
        let mut head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        self.write(format!("{head}\r\n{body}").as_bytes()).expect("the server reads");
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.send(path, headers, body);
        self.answer()
    }

    pub(crate) fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut head = format!("GET {path} HTTP/1.1\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        self.write(format!("{head}\r\n").as_bytes()).expect("the server reads");
        self.answer()
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend(chunk);
            }
        } else {
            let length = answer.header("content-length").expect("a length or chunks");
            answer.body = self.bytes(length.parse().expect("a number"));
        }
        answer
    }

    /// The head of an answer, without its body.
    pub(crate) fn head(&mut self) -> Answer {
        let first = self.text_line();
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {first:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.text_line();
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_owned(), value.to_owned()));
        }
        Answer { status, headers, body: Vec::new() }
    }

    /// The next chunk of a chunked body; nothing at its end.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.text_line(), 16).expect("the size of a chunk");
        let mut chunk = vec![0; size + 2];
        self.line.read_exact(&mut chunk).expect("a whole chunk");
        assert!(chunk.ends_with(b"\r\n"));
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.line.read_exact(&mut bytes).expect("the whole body");
        bytes
    }

    /// Reads to the end of the connection.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.line.read_to_end(&mut bytes).expect("the server closes");
        bytes
    }

    fn text_line(&mut self) -> String {
        let mut line = String::new();
        self.line.read_line(&mut line).expect("an answer before the deadline");
        line.trim_end().to_owned()
    }
}
