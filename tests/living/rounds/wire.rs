//! HTTP to a server that may die at any moment: whatever breaks off is told, not panicked about.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use belljar_tests::DEADLINE;
use serde_json::Value;

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    pub(super) fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Who is asked.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub socket: PathBuf,
}

impl Server {
    pub(super) fn ask(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
        let mut stream = open(&self.socket, method, path, body)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        parse(&bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// What must succeed.
    #[track_caller]
    pub(super) fn must(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answer = self.ask(method, path, body);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!(answer.is_ok(), "{method} {path}: {} {}", answer.status, answer.text());
        answer
    }

    /// Reads an answer that has no end until it holds these words.
    #[track_caller]
    pub(super) fn read_until(&self, path: &str, is_enough: impl Fn(&str) -> bool) -> String {
        let mut stream = open(&self.socket, "GET", path, b"").expect("a server listens");
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let length = stream.read(&mut piece).unwrap_or_else(|error| {
                panic!("GET {path}: {error}: {}", String::from_utf8_lossy(&bytes))
            });
            bytes.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if is_enough(&text) {
                return text;
            }
            assert!(length > 0, "GET {path} ended: {text}");
        }
    }
}

fn open(socket: &Path, method: &str, path: &str, body: &[u8]) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    Ok(stream)
}

/// Nothing for an answer that was cut off.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|some| some == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let rest = &bytes[end + 4..];
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let body = if header("transfer-encoding: chunked").is_some() {
        unchunk(rest)?
    } else {
        let length = header("content-length: ").map_or(Some(0), |text| text.parse().ok())?;
        rest.get(..length)?.to_vec()
    };
    Some(Answer { status, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|some| some == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 4 + size..)?;
    }
}
