//! `belljar run` through a server of the same user: the same output, codes and Outcome as without one,
//! only sooner. The client speaks HTTP/1.0, whose answers end with the connection: what follows the head
//! is lines, and the last line says whether they are all.

pub(crate) mod grades;
pub(crate) mod sandboxes;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};

use belljar::{Config, Data, Error, Outcome, RunRequest, SpecError, Stream};
use belljar_server::wire::{self, Event, MAX_BODY_BYTES};
use belljar_server::{Problem, places};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::args::Run;
use crate::render;

/// The head of an answer; a server of ours sends a few hundred bytes.
const MAX_HEAD_BYTES: u64 = 16 << 10;
/// An answer without an Outcome.
const MAX_PROBLEM_BYTES: u64 = 1 << 20;
/// An event without what the program wrote: receipt, evidence, labels, and room for a chunk of output.
const MAX_EVENT_BYTES: u64 = 4 << 20;
/// A kept byte takes up to six in JSON, and again up to three as base64, in each of two streams.
const BYTES_FOR_ONE_KEPT: u64 = 18;

/// Why there is no Outcome: an error of this process, or one that the server told.
#[derive(Debug)]
pub(crate) enum Failure {
    Here(Error),
    Told(Problem),
}

impl<T: Into<Error>> From<T> for Failure {
    fn from(error: T) -> Self {
        Self::Here(error.into())
    }
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Here(error) => render::error_code(error),
            Self::Told(problem)
                if matches!(&*problem.kind, "spec" | "screened" | "not_found" | "conflict") =>
            {
                render::BAD_REQUEST
            }
            Self::Told(_) => render::OURS,
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Here(error) => error.to_string(),
            Self::Told(problem) if &*problem.kind == "busy" => {
                format!("the server is {}, or run it here: --no-server", problem.detail)
            }
            Self::Told(problem) => problem.detail.to_string(),
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let problem = match self {
            Self::Here(error) => return render::error_json(error),
            Self::Told(problem) => problem,
        };
        let mut inner = serde_json::json!({ "kind": *problem.kind, "message": self.text() });
        let more = [("field", &problem.field), ("step", &problem.step), ("errno", &problem.errno)];
        for (name, value) in more {
            if let Some(value) = value {
                inner[name] = (**value).into();
            }
        }
        if let Some(screening) = &problem.screening {
            render::screened(&mut inner, screening);
        }
        serde_json::json!({ "error": inner })
    }
}

/// A server of ours that has accepted a connection.
#[derive(Debug)]
pub(crate) struct Server {
    stream: StdStream,
    path: PathBuf,
    /// Asked for by name: then nothing else will do.
    wanted: bool,
}

/// A request as it is sent.
#[derive(Debug)]
pub(crate) struct Sent {
    body: Vec<u8>,
    most_event_bytes: u64,
}

/// The server that this run can go to. Without one this costs a single call that fails.
pub(crate) fn find(args: &Run) -> Result<Option<Server>, Error> {
    if args.no_server {
        return Ok(None);
    }
    let here_only = [
        ("--workspace", args.workspace.is_some()),
        ("--out", args.out.is_some()),
        ("--break-at", args.fault.is_some()),
        // The server records what it runs, as it was told to.
        ("--no-audit", args.audit.no_audit),
        ("--audit-digests", args.audit.audit_digests),
        ("--state", args.audit.state.is_some()),
        ("--screen-rules", !args.screen_rules.is_empty()),
    ];
    let here_only = here_only.into_iter().find_map(|(name, given)| given.then_some(name));
    let wanted = args.server.is_some();
    match (here_only, &args.server) {
        (Some(name), Some(_)) => {
            let reason = format!("does not take {name}: leave one of the two out");
            return Err(SpecError::new("server", reason).into());
        }
        (Some(_), None) => return Ok(None),
        (None, _) => {}
    }
    let Some(path) = args.server.clone().or_else(places::socket) else { return Ok(None) };
    match connect(&path) {
        Ok(stream) if wanted || !has_own_languages() => Ok(Some(Server { stream, path, wanted })),
        Ok(_) => Ok(None),
        Err(error) if wanted => Err(cannot_reach(&path, &error)),
        Err(_) => Ok(None),
    }
}

/// Connects without waiting, and only to a process of this very user: it will see the code.
pub(crate) fn connect(path: &Path) -> io::Result<StdStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    let server = socket_peercred(&socket)?.uid;
    let own = rustix::process::geteuid();
    if server != own {
        let (server, own) = (server.as_raw(), own.as_raw());
        return Err(io::Error::other(format!("it runs as uid {server}, and we are uid {own}")));
    }
    Ok(socket.into())
}

/// Language files may differ from those that the server read at its start, so with any of them the run
/// stays here.
fn has_own_languages() -> bool {
    let directories = Config::default().language_directories;
    directories
        .iter()
        .filter_map(|one| std::fs::read_dir(one).ok())
        .flatten()
        .flatten()
        .any(|entry| entry.path().extension().is_some_and(|extension| extension == "toml"))
}

fn cannot_reach(path: &Path, error: &io::Error) -> Error {
    let text = format!("{}: {error}. hint: belljar serve --socket …", path.display());
    Error::Backend { operation: "reach the server", source: io::Error::new(error.kind(), text) }
}

impl Server {
    /// The request as the server takes it: files travel by content. Nothing if it cannot be sent, because
    /// a file cannot be read (which the run itself tells best) or because it is too large.
    pub(crate) fn takes(&self, request: &RunRequest) -> Result<Option<Sent>, Error> {
        let kept = request.limits.resolve().map_or(0, |limits| limits.output_bytes);
        let most_event_bytes = kept.saturating_mul(BYTES_FOR_ONE_KEPT) + MAX_EVENT_BYTES;
        let body = with_contents(request).and_then(|full| Ok(serde_json::to_vec(&full)?));
        match body {
            Ok(body) if body.len() <= MAX_BODY_BYTES => Ok(Some(Sent { body, most_event_bytes })),
            Ok(_) | Err(_) if !self.wanted => Ok(None),
            Ok(body) => {
                let reason = format!("takes {MAX_BODY_BYTES} bytes, not {}", body.len());
                Err(SpecError::new("server", reason).into())
            }
            Err(error) => Err(SpecError::new("files", error.to_string()).into()),
        }
    }

    /// Runs it there. Dropping the future closes the connection, which ends the program.
    pub(crate) async fn run(
        self,
        sent: Sent,
        as_json: bool,
        sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
    ) -> Result<Outcome, Failure> {
        let lost = |error: io::Error| {
            let text = format!("{}: {error}", self.path.display());
            let source = io::Error::new(error.kind(), text);
            Failure::Here(Error::Backend { operation: "hear the server", source })
        };
        let mut stream = BufReader::new(UnixStream::from_std(self.stream).map_err(lost)?);
        let accept = if as_json { wire::JSON } else { wire::NDJSON };
        let head = format!(
            "POST {} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Type: {}\r\n\
             Content-Length: {}\r\n\r\n",
            wire::RUNS,
            wire::JSON,
            sent.body.len()
        );
        // A server that is full answers and closes before it has read all; the answer counts.
        let written = write(&mut stream, head.as_bytes(), &sent.body).await;
        let status = read_head(&mut stream).await;
        let status = match (status, written) {
            (Ok(status), _) => status,
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(lost(error)),
        };
        if status != 200 {
            let text = read_rest(&mut stream, MAX_PROBLEM_BYTES).await.map_err(lost)?;
            let problem = serde_json::from_slice(&text).map_err(|error| lost(error.into()))?;
            return Err(Failure::Told(problem));
        }
        if as_json {
            let text = read_rest(&mut stream, sent.most_event_bytes).await.map_err(lost)?;
            return serde_json::from_slice(&text).map_err(|error| lost(error.into()));
        }
        loop {
            let line = read_line(&mut stream, sent.most_event_bytes).await.map_err(lost)?;
            match serde_json::from_slice(&line).map_err(|error| lost(error.into()))? {
                Event::Stdout { data } => sink(Stream::Stdout, &data.0),
                Event::Stderr { data } => sink(Stream::Stderr, &data.0),
                Event::Event(_) => {} // told at the end, with its count
                Event::Outcome(outcome) => return Ok(*outcome),
                Event::Error(problem) => return Err(Failure::Told(problem)),
            }
        }
    }
}

/// What a server answers to a question: the one at this socket, or the user's own. Nothing when there is
/// none and none was named.
pub(crate) async fn ask<T: DeserializeOwned>(
    named: Option<&Path>,
    question: &str,
) -> Result<Option<T>, Failure> {
    let path = named.map(Path::to_owned).or_else(places::socket).unwrap_or_default();
    let lost = |error: io::Error| Failure::Here(cannot_reach(&path, &error));
    let stream = match connect(&path).and_then(UnixStream::from_std) {
        Ok(stream) => stream,
        Err(_) if named.is_none() => return Ok(None),
        Err(error) => return Err(lost(error)),
    };
    let mut stream = BufReader::new(stream);
    let head = format!("GET {question} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    write(&mut stream, head.as_bytes(), &[]).await.map_err(lost)?;
    let status = read_head(&mut stream).await.map_err(lost)?;
    let text = read_rest(&mut stream, MAX_PROBLEM_BYTES).await.map_err(lost)?;
    if status == 200 {
        return serde_json::from_slice(&text).map(Some).map_err(|error| lost(error.into()));
    }
    let problem = serde_json::from_slice(&text).map_err(|error| lost(error.into()))?;
    Err(Failure::Told(problem))
}

/// A value as it may stand in a question: whatever is no letter or digit is spelled out.
pub(crate) fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let spelled = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    value.bytes().map(spelled).collect()
}

/// Reads what is to be copied in, here, as this process may.
fn with_contents(request: &RunRequest) -> io::Result<RunRequest> {
    let mut full = request.clone();
    let mut room = MAX_BODY_BYTES as u64 + 1;
    for (inside, path) in std::mem::take(&mut full.copies) {
        let status = std::fs::metadata(&path)?;
        if !status.is_file() {
            return Err(io::Error::other(format!("{}: is not a regular file", path.display())));
        }
        let mut bytes = Vec::new();
        File::open(&path)?.take(room).read_to_end(&mut bytes)?;
        room -= bytes.len() as u64;
        full.files.insert(inside, Data(bytes));
    }
    if room == 0 {
        return Err(io::Error::other(format!("more than {MAX_BODY_BYTES} bytes of files")));
    }
    Ok(full)
}

async fn write(stream: &mut BufReader<UnixStream>, head: &[u8], body: &[u8]) -> io::Result<()> {
    stream.write_all(head).await?;
    stream.write_all(body).await?;
    stream.flush().await
}

/// Reads the head of an answer; all that is wanted of it is the status.
async fn read_head(stream: &mut BufReader<UnixStream>) -> io::Result<u16> {
    let strange = || io::Error::other("its answer is not HTTP");
    let mut head = stream.take(MAX_HEAD_BYTES);
    let mut line = Vec::new();
    head.read_until(b'\n', &mut line).await?;
    let text = std::str::from_utf8(&line).map_err(|_| strange())?;
    let mut words = text.split(' ');
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|word| word.parse().ok());
    let status = status.filter(|_| version.starts_with("HTTP/1.")).ok_or_else(strange)?;
    while !matches!(line.as_slice(), b"\r\n" | b"\n") {
        line.clear();
        if head.read_until(b'\n', &mut line).await? == 0 {
            return Err(strange());
        }
    }
    Ok(status)
}

async fn read_rest(stream: &mut BufReader<UnixStream>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = stream.take(most).read_to_end(&mut bytes).await;
    match read {
        // The server closed while it had not read all that we sent; what it said first has arrived.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !bytes.is_empty() => {}
        result => {
            result?;
        }
    }
    Ok(bytes)
}

async fn read_line(stream: &mut BufReader<UnixStream>, most: u64) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    stream.take(most).read_until(b'\n', &mut line).await?;
    if line.ends_with(b"\n") {
        return Ok(line);
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it went away before the end of the run"))
}
