//! The little of D-Bus that one method call needs: log in, send a call, read what comes back.
//!
//! Written by hand because a client library brings an async executor, a macro crate and an XML parser
//! for what is two messages here. See the D-Bus specification, "Message Protocol" and
//! "Authentication Protocol".

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The specification allows 128 MiB; no answer to our questions has a hundredth of this.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// One line of the login: `OK` and 32 hex digits, or a list of mechanisms.
const MAX_LINE_BYTES: usize = 512;
/// Messages that belong to others (signals, mostly) and may come before the answer.
const MAX_STRANGERS: usize = 64;
const FIXED_HEADER_BYTES: usize = 16;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other side answered with an error of its own.
    #[error("{name}: {text}")]
    Refused { name: String, text: String },
}

/// A method call, before it has a serial number.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Absent when the other side is no bus but the service itself.
    pub destination: Option<&'a str>,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
    pub signature: &'a str,
    pub body: Vec<u8>,
}

/// What came in: the fields that decide, and the body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub kind: u8,
    pub reply_to: Option<u32>,
    pub error: Option<String>,
    pub member: Option<String>,
    pub signature: String,
    body: Vec<u8>,
    big_endian: bool,
}

impl Message {
    pub(super) const ERROR: u8 = 3;
    pub(super) const SIGNAL: u8 = 4;

    pub(super) fn body(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0, big_endian: self.big_endian }
    }
}

/// A logged-in connection. Everything on it ends by the deadline.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    deadline: Instant,
    serial: u32,
}

impl Connection {
    /// Connects and proves who we are: EXTERNAL, where the kernel vouches for the uid.
    pub(super) fn open(path: &Path, uid: u32, deadline: Instant) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Bounds the connect too: a listener with a full backlog would hold us for ever.
        set_socket_timeout(&socket, Timeout::Send, Some(left(deadline)?))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let mut connection = Self { stream: UnixStream::from(socket), deadline, serial: 0 };
        connection.log_in(uid)?;
        Ok(connection)
    }

    fn log_in(&mut self, uid: u32) -> io::Result<()> {
        let id: String = uid.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
        self.send(format!("\0AUTH EXTERNAL {id}\r\n").as_bytes())?;
        let answer = self.read_line()?;
        if !answer.starts_with("OK ") {
            let what = format!("login as uid {uid} was answered with {answer:?}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        self.send(b"BEGIN\r\n")
    }

    /// Sends a call and waits for its answer.
    pub(super) fn call(&mut self, call: &Call<'_>) -> Result<Message, Trouble> {
        self.serial += 1;
        self.send(&encode(call, self.serial))?;
        for _ in 0..MAX_STRANGERS {
            let message = self.read_message(left(self.deadline)?)?;
            let Some(message) = message.filter(|one| one.reply_to == Some(self.serial)) else {
                continue;
            };
            if message.kind == Message::ERROR {
                let text = message.body().string().unwrap_or_default().to_owned();
                let name = message.error.unwrap_or_default();
                return Err(Trouble::Refused { name, text });
            }
            return Ok(message);
        }
        Err(malformed("many messages and no answer among them").into())
    }

    /// The next message, whatever it is; `None` when none begins within `wait`.
    pub(super) fn read_message(&mut self, wait: Duration) -> io::Result<Option<Message>> {
        let mut head = [0; FIXED_HEADER_BYTES];
        let wait = wait.min(left(self.deadline)?);
        self.stream.set_read_timeout(Some(wait))?;
        match self.stream.read(&mut head[..1]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if is_timeout(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        self.read_exact(&mut head[1..])?;
        let length = length_after(&head)?;
        let mut bytes = head.to_vec();
        bytes.resize(FIXED_HEADER_BYTES + length, 0);
        self.read_exact(&mut bytes[FIXED_HEADER_BYTES..])?;
        decode(&bytes).map(Some)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream
            .set_write_timeout(Some(left(self.deadline)?))
            .and_then(|()| self.stream.write_all(bytes))
    }

    fn read_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        // Not the library's: its time limit is for each read, and a slow drip would outlast ours.
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(left(self.deadline)?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while line.len() < MAX_LINE_BYTES {
            let mut byte = [0];
            self.read_exact(&mut byte)?;
            line.push(byte[0]);
            if line.ends_with(b"\r\n") {
                line.truncate(line.len() - 2);
                return String::from_utf8(line).map_err(|_| malformed("a login line not in UTF-8"));
            }
        }
        Err(malformed("an endless login line"))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
    }
    Ok(left)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the bus sent {what}"))
}

/// Values in D-Bus's own form, little-endian, each aligned to its size.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.align(4);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(u32::from(value))
    }

    /// Also an object path, which has the same form.
    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        self.u32(size(text.len()));
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        self
    }

    pub(super) fn signature(&mut self, text: &str) -> &mut Self {
        self.bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        self
    }

    /// An array: its length in bytes does not count the padding before the first element.
    pub(super) fn array(&mut self, alignment: usize, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.u32(0);
        let length_at = self.bytes.len() - 4;
        self.align(alignment);
        let start = self.bytes.len();
        fill(self);
        let length = size(self.bytes.len() - start);
        self.bytes[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        self
    }

    /// Begins a structure.
    pub(super) fn structure(&mut self) -> &mut Self {
        self.align(8);
        self
    }
}

/// Only our own short texts are written, so this never saturates.
fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn encode(call: &Call<'_>, serial: u32) -> Vec<u8> {
    const METHOD_CALL: u8 = 1;
    const PROTOCOL_VERSION: u8 = 1;
    // Who is not there is not to be started: a systemd cannot be.
    const NO_AUTO_START: u8 = 2;
    let mut header = Writer { bytes: vec![b'l', METHOD_CALL, NO_AUTO_START, PROTOCOL_VERSION] };
    header.u32(size(call.body.len())).u32(serial);
    header.array(8, |fields| {
        let mut field = |code: u8, kind: &str, value: &str| {
            fields.structure().bytes.push(code);
            fields.signature(kind);
            match kind {
                "g" => fields.signature(value),
                _ => fields.string(value),
            };
        };
        field(1, "o", call.path);
        field(2, "s", call.interface);
        field(3, "s", call.member);
        if let Some(destination) = call.destination {
            field(6, "s", destination);
        }
        if !call.signature.is_empty() {
            field(8, "g", call.signature);
        }
    });
    header.align(8);
    let mut bytes = header.finish();
    bytes.extend(&call.body);
    bytes
}

/// How many bytes follow the fixed header.
fn length_after(head: &[u8; FIXED_HEADER_BYTES]) -> io::Result<usize> {
    let big_endian = match head[0] {
        b'l' => false,
        b'B' => true,
        _ => return Err(malformed("something that is no message")),
    };
    let mut reader = Reader { bytes: head, at: 4, big_endian };
    let (body, _serial, fields) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let fields = u64::from(fields).next_multiple_of(8);
    let length = usize::try_from(u64::from(body) + fields).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(malformed("a message of absurd length"));
    }
    Ok(length)
}

fn decode(bytes: &[u8]) -> io::Result<Message> {
    let mut reader = Reader { bytes, at: 0, big_endian: bytes.first() == Some(&b'B') };
    let mut message = Message { big_endian: reader.big_endian, ..Message::default() };
    message.kind = *reader.take(4)?.get(1).unwrap_or(&0);
    let (_body, _serial, fields) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let end = reader.at + usize::try_from(fields).unwrap_or(usize::MAX);
    while reader.at < end {
        reader.align(8)?;
        let code = reader.take(1)?[0];
        let value = reader.field()?;
        match (code, value) {
            (3, Field::Text(text)) => message.member = Some(text),
            (4, Field::Text(text)) => message.error = Some(text),
            (5, Field::Number(serial)) => message.reply_to = Some(serial),
            (8, Field::Text(text)) => message.signature = text,
            _ => {} // sender, destination, path: nothing is decided by them
        }
    }
    reader.align(8)?;
    message.body = bytes[reader.at..].to_vec();
    Ok(message)
}

/// The value of a header field: the specification knows only these forms.
enum Field {
    Text(String),
    Number(u32),
}

/// Reads values, and never past the end.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| malformed("a message cut short"))?;
        self.at += length;
        Ok(taken)
    }

    fn align(&mut self, to: usize) -> io::Result<()> {
        self.take(self.at.next_multiple_of(to) - self.at).map(|_| ())
    }

    pub(super) fn u32(&mut self) -> io::Result<u32> {
        self.align(4)?;
        let bytes = self.take(4)?;
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        Ok(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    pub(super) fn string(&mut self) -> io::Result<&'a str> {
        let length = self.u32()?;
        self.text(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn signature(&mut self) -> io::Result<&'a str> {
        let length = self.take(1)?[0];
        self.text(usize::from(length))
    }

    fn text(&mut self, length: usize) -> io::Result<&'a str> {
        let text = self.take(length)?;
        self.take(1)?; // the zero at its end
        std::str::from_utf8(text).map_err(|_| malformed("a text that is not UTF-8"))
    }

    fn field(&mut self) -> io::Result<Field> {
        match self.signature()? {
            "u" => self.u32().map(Field::Number),
            "s" | "o" => self.string().map(|text| Field::Text(text.to_owned())),
            "g" => self.signature().map(|text| Field::Text(text.to_owned())),
            _ => Err(malformed("a header field of unknown form")),
        }
    }
}

#[cfg(test)]
mod tests;
