//! How `belljar sandbox` reaches the routes: those of the running server, or the same ones inside this process.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use belljar::{Config, Error, SpecError};
use belljar_server::{Local, Problem, places, wire};
use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::{Failure, cannot_reach, connect, escaped};

/// An answer that is one document: a list, or an exec with what was kept of its output.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// One line of a stream; output comes in pieces far smaller than this.
const MAX_LINE_BYTES: usize = 16 << 20;
/// The longest that a command stays for what it has to clear away; a time limit ends what is left.
const WINDING_UP: Duration = Duration::from_secs(10);
/// Asked for of a list at once, and how often: no list of a sandbox is as long.
const PART: usize = 1000;
const MOST_PARTS: usize = 1000;
/// Read of a file at once.
const PIECE_BYTES: usize = 128 << 10;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The way to the sandboxes.
#[derive(Debug)]
pub(crate) enum Way {
    Server(PathBuf),
    Here(Box<Local>),
}

impl Way {
    /// The server at this socket, or the user's own, or ourselves.
    pub(crate) async fn find(server: Option<&Path>, state: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = server {
            return match connect(path) {
                Ok(_) => Ok(Self::Server(path.to_owned())),
                Err(error) => Err(cannot_reach(path, &error).into()),
            };
        }
        // A state directory that was named need not be the server's.
        if let Some(path) = places::socket().filter(|path| state.is_none() && connect(path).is_ok())
        {
            return Ok(Self::Server(path));
        }
        let homeless = || SpecError::new("state", "has no default without HOME: give --state DIR");
        let state = state.map(Path::to_owned).or_else(places::state).ok_or_else(homeless)?;
        Ok(Self::Here(Box::new(Local::open(Config::default(), state).await?)))
    }

    /// Nothing is changed any more for a while: others may.
    pub(crate) fn let_go(&self) {
        if let Self::Here(local) = self {
            local.let_go();
        }
    }

    /// Before this process ends: what it began and follows no more is ended too. A server sees to that by itself.
    pub(crate) async fn wind_up(&self) {
        if let Self::Here(local) = self {
            tokio::time::timeout(WINDING_UP, local.wind_up()).await.ok();
        }
    }

    /// One request on a connection of its own.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, wire::JSON)
            .body(body)
            .map_err(|error| lost(io::Error::other(error)))?;
        let response = match self {
            Self::Server(socket) => {
                let stream = connect(socket).and_then(UnixStream::from_std);
                let stream = stream.map_err(|error| cannot_reach(socket, &error))?;
                converse(stream, request).await
            }
            Self::Here(local) => converse(local.connect(), request).await,
        };
        let response = response.map_err(|error| lost(io::Error::other(error)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let text = collect(response).await?;
        let problem: Problem = serde_json::from_slice(&text).map_err(|error| lost(error.into()))?;
        Err(Failure::Told(problem))
    }

    /// Asks for a document.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read(self.send(Method::GET, path, wire::JSON, empty()).await?).await
    }

    /// Asks for a whole list, part by part: what the document has under `key`. The path has a question mark already.
    pub(crate) async fn all<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
    ) -> Result<Vec<T>, Failure> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        for _ in 0..MOST_PARTS {
            let part = format!("{path}&limit={PART}{cursor}");
            let mut document: serde_json::Value = self.get(&part).await?;
            let items: Vec<T> =
                serde_json::from_value(document[key].take()).map_err(|error| lost(error.into()))?;
            all.extend(items);
            match document["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={}", escaped(next)),
                None => return Ok(all),
            }
        }
        Err(lost(io::Error::other("the list has no end")))
    }

    /// Says something, and is answered with a document.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        said: &impl Serialize,
    ) -> Result<T, Failure> {
        read(self.send(Method::POST, path, wire::JSON, json(said)?).await?).await
    }

    /// Says something to which there is nothing to answer.
    pub(crate) async fn tell(&self, method: Method, path: &str, body: Body) -> Result<(), Failure> {
        self.send(method, path, wire::JSON, body).await.map(drop)
    }
}

async fn converse<S>(stream: S, request: Request<Body>) -> hyper::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer; how is told there.
    tokio::spawn(connection);
    sender.send_request(request).await
}

pub(crate) fn empty() -> Body {
    bytes(Bytes::new())
}

pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// What a file holds, read as it is sent.
pub(crate) fn contents(source: impl Read + Send + Unpin + 'static) -> Body {
    Contents(source).boxed_unsync()
}

struct Contents<R>(R);

impl<R: Read + Unpin> hyper::body::Body for Contents<R> {
    type Data = Bytes;
    type Error = io::Error;

    /// Reads where it stands: nothing else of ours waits meanwhile.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut piece = vec![0; PIECE_BYTES];
        Poll::Ready(match self.0.read(&mut piece) {
            Ok(0) => None,
            Ok(length) => {
                piece.truncate(length);
                Some(Ok(Frame::data(piece.into())))
            }
            Err(error) => Some(Err(error)),
        })
    }
}

/// What comes out of a pipe, until its end.
pub(crate) fn piped(source: impl AsyncRead + Send + Unpin + 'static) -> Body {
    Piped(source).boxed_unsync()
}

struct Piped<R>(R);

impl<R: AsyncRead + Unpin> hyper::body::Body for Piped<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut room = ReadBuf::new(&mut piece);
        let read = ready!(Pin::new(&mut self.0).poll_read(context, &mut room));
        let length = room.filled().len();
        piece.truncate(length);
        Poll::Ready(match read {
            Ok(()) => (length > 0).then(|| Ok(Frame::data(piece.into()))),
            Err(error) => Some(Err(error)),
        })
    }
}

pub(crate) fn json(said: &impl Serialize) -> Result<Body, Failure> {
    serde_json::to_vec(said).map(bytes).map_err(|error| lost(error.into()))
}

pub(crate) async fn read<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Failure> {
    serde_json::from_slice(&collect(response).await?).map_err(|error| lost(error.into()))
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = http_body_util::Limited::new(response.into_body(), MAX_DOCUMENT_BYTES);
    body.collect()
        .await
        .map(|whole| whole.to_bytes())
        .map_err(|error| lost(io::Error::other(error)))
}

pub(crate) fn lost(source: io::Error) -> Failure {
    Failure::Here(Error::Backend { operation: "hear the server", source })
}

/// An answer line by line.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Incoming,
    waiting: BytesMut,
}

impl Lines {
    pub(crate) fn of(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), waiting: BytesMut::new() }
    }

    /// The next line; nothing at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        loop {
            if let Some(end) = self.waiting.iter().position(|byte| *byte == b'\n') {
                let line = self.waiting.split_to(end + 1);
                return serde_json::from_slice(&line).map(Some).map_err(|error| lost(error.into()));
            }
            if self.waiting.len() > MAX_LINE_BYTES {
                return Err(lost(io::Error::other("a line without an end")));
            }
            match self.body.frame().await {
                None if self.waiting.is_empty() => return Ok(None),
                None => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Some(Err(error)) => return Err(lost(io::Error::other(error))),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.waiting.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
