//! A client that measures: HTTP/1.1 over one connection that stays open, blocking, with nothing between it and
//! the socket that could be slow or hide a failure.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// No answer takes longer, unless something is wrong: programs of the benchmarks end at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// An Outcome is a few kilobytes; more is not ours.
const LONGEST_ANSWER: usize = 16 << 20;
const MOST_HEADERS: usize = 100;

/// One connection to a server, kept open over many requests.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<Stream>,
    /// What every request says besides its length.
    headers: String,
}

/// As it came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    body: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Client {
    pub(super) fn tcp(port: u16, token: &str) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .with_context(|| format!("cannot connect to port {port}"))?;
        // A request is one write, so there is nothing that Nagle's wait could save.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let headers = format!("Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n");
        Ok(Self { stream: BufReader::new(Stream::Tcp(stream)), headers })
    }

    pub(super) fn unix(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let headers = "Host: localhost\r\n".to_owned();
        Ok(Self { stream: BufReader::new(Stream::Unix(stream)), headers })
    }

    /// Sends a request and reads the whole answer, not yet looked into: that is our time, not the server's.
    pub(super) fn post(&mut self, path: &str, body: &str) -> Result<Answer> {
        self.send(path, body)?;
        read_answer(&mut self.stream)
    }

    pub(super) fn get(&mut self, path: &str) -> Result<Value> {
        let head = format!("GET {path} HTTP/1.1\r\n{}\r\n", self.headers);
        self.stream.get_mut().write_all(head.as_bytes()).context("cannot send a request")?;
        read_answer(&mut self.stream)?.json()
    }

    /// Removes something that is there.
    pub(super) fn delete(&mut self, path: &str) -> Result<()> {
        let head = format!("DELETE {path} HTTP/1.1\r\n{}\r\n", self.headers);
        self.stream.get_mut().write_all(head.as_bytes()).context("cannot send a request")?;
        let answer = read_answer(&mut self.stream)?;
        ensure!(answer.status == 204, "{path} was not removed: {}", answer.status);
        Ok(())
    }

    /// Sends a request and does not wait. To drop the client afterwards cancels the run.
    pub(super) fn send(&mut self, path: &str, body: &str) -> Result<()> {
        let request = format!(
            "POST {path} HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.headers,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).context("cannot send a request")
    }
}

impl Answer {
    /// What it says; anything but 200 is an error.
    pub(super) fn json(&self) -> Result<Value> {
        let text = || String::from_utf8_lossy(&self.body);
        ensure!(self.status == 200, "the server answered {}: {}", self.status, text());
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {}", text()))
    }

    /// The same where something may have been made.
    pub(super) fn json_of_success(&self) -> Result<Value> {
        let text = || String::from_utf8_lossy(&self.body);
        ensure!(
            (200..300).contains(&self.status),
            "the server answered {}: {}",
            self.status,
            text()
        );
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {}", text()))
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The status and the whole body, however its length is told.
fn read_answer(stream: &mut impl BufRead) -> Result<Answer> {
    let first = line(stream)?;
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.with_context(|| format!("no status in {first:?}"))?;
    let (mut length, mut chunked) = (0, false);
    for count in 0.. {
        ensure!(count < MOST_HEADERS, "more than {MOST_HEADERS} headers");
        let header = line(stream)?;
        let Some((name, value)) = header.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().context("no length")?,
            "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
            _ => {}
        }
    }
    let mut body = Vec::new();
    if !chunked {
        read_more(stream, length, &mut body)?;
        return Ok(Answer { status, body });
    }
    loop {
        let size = usize::from_str_radix(&line(stream)?, 16).context("no size of a chunk")?;
        read_more(stream, size, &mut body)?;
        ensure!(line(stream)?.is_empty(), "a chunk is longer than it said");
        if size == 0 {
            return Ok(Answer { status, body });
        }
    }
}

fn read_more(stream: &mut impl BufRead, length: usize, body: &mut Vec<u8>) -> Result<()> {
    let begin = body.len();
    if length.saturating_add(begin) > LONGEST_ANSWER {
        bail!("an answer of more than {LONGEST_ANSWER} bytes");
    }
    body.resize(begin + length, 0);
    stream.read_exact(&mut body[begin..]).context("the answer was cut off")
}

fn line(stream: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).context("no answer")?;
    ensure!(read > 0, "the server closed the connection");
    line.truncate(line.trim_end().len());
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_where_they_say_and_the_next_one_follows() {
        let mut wire = &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}\
            HTTP/1.1 429 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"[..];
        let answer = |status, body: &str| Answer { status, body: body.into() };
        assert_eq!(read_answer(&mut wire).unwrap(), answer(200, "{}"));
        assert_eq!(read_answer(&mut wire).unwrap(), answer(429, "abc0123456789"));
        assert!(read_answer(&mut wire).is_err(), "nothing is left");
    }

    #[test]
    fn answers_that_are_cut_off_are_errors() {
        for wire in
            ["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", "HTTP/1.1 200 OK\r\n", "", "x\r\n"]
        {
            assert!(read_answer(&mut wire.as_bytes()).is_err(), "{wire:?}");
        }
    }
}
