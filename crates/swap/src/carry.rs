//! One connection: two TLS sessions, and between them requests that are looked at and answers that are cleaned.

use std::io;
use std::time::Duration;

use belljar_jail::redact::{Redactor, Scanner};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{AlertDescription, Error as TlsError};

use crate::authority::Authority;
use crate::body::{BodyReader, Replacer, Taken};
use crate::head::{Body, Head};
use crate::outside::Outside;
use crate::swap::{Binding, Current, Stray, Swap};

const READ_BYTES: usize = 16 << 10;
/// A body in which placeholders are replaced is kept whole up to this, so that its length can be told; a longer one goes
/// in chunks.
const WHOLE_BODY: u64 = 1 << 20;
/// How long a handshake may take, on either side.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// What could be the beginning of a value on its way back is held for so long.
const HELD_BACK: Duration = Duration::from_millis(20);
/// How long a program may take to hear why it is refused.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Every answer of HTTP/1 begins so.
const ANSWER: &[u8] = b"HTTP/1.";

/// What passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub requests: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
}

/// Why a connection was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Something that may not leave, or not here: an attempt.
    Stray(Stray),
    /// A request for another host.
    Host(String),
    /// What could be read in two ways, or not at all.
    Framing(&'static str),
    /// What the policy says no to.
    Refused(String),
    /// The real host does not show that it is who it should be.
    Unverified(String),
    /// The real host speaks no HTTP/1.1: HTTP/2 only, or something else.
    NotHttp1,
    /// The program does not believe us, or speaks no TLS: exempt the host if it pins certificates.
    Distrusted(String),
    Broken(io::ErrorKind),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.kind())
    }
}

/// The host that is meant, and dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    pub host: &'a str,
    pub port: u16,
}

/// What stands between a program and its host.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    pub authority: &'a Authority,
    pub outside: &'a Outside,
    pub swap: &'a Current,
}

/// Who decides, and is told.
pub trait Judge {
    /// Whether a request with this method and path may pass.
    fn allows(&mut self, method: &str, path: &str) -> Result<(), String>;
    /// It ends because of this; with what the program is told, if it should be.
    fn ends(&mut self, trouble: &Trouble) -> Option<String>;
}

/// Carries a connection from a client to its end. `server` is connected to an address that was checked.
pub async fn carry<C, S>(
    client: C,
    server: S,
    peer: Peer<'_>,
    between: Between<'_>,
    judge: &mut dyn Judge,
) -> Result<Carried, Trouble>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (inner, outer) = tokio::join!(
        accepted(client, peer.host, between.authority),
        greeted(server, peer.host, between.outside)
    );
    let inner = match inner {
        Ok(inner) => inner,
        Err(trouble) => {
            judge.ends(&trouble);
            return Err(trouble);
        }
    };
    let (mut from, mut to) = split(inner);
    let carried = match outer {
        Ok(outer) => converse((&mut from, &mut to), outer, peer, between.swap, judge).await,
        Err(trouble) => {
            // It asks before it listens.
            let mut first = [0; READ_BYTES];
            tokio::time::timeout(HANDSHAKE, from.read(&mut first)).await.ok();
            Err(trouble)
        }
    };
    if let Err(trouble) = &carried
        && let Some(words) = judge.ends(trouble)
    {
        // Who does not read it does not get it.
        tokio::time::timeout(LAST_WORDS, say_no(from, to, trouble, &words)).await.ok();
    }
    carried
}

async fn accepted<C: AsyncRead + AsyncWrite + Unpin>(
    client: C,
    host: &str,
    authority: &Authority,
) -> Result<tokio_rustls::server::TlsStream<C>, Trouble> {
    let config = authority.server(host).map_err(Trouble::Distrusted)?;
    let accepted = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(client)).await;
    let accepted = accepted.map_err(|_| Trouble::Broken(io::ErrorKind::TimedOut))?;
    accepted.map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidData {
            return Trouble::Distrusted(error.to_string());
        }
        error.into()
    })
}

async fn greeted<S: AsyncRead + AsyncWrite + Unpin>(
    server: S,
    host: &str,
    outside: &Outside,
) -> Result<tokio_rustls::client::TlsStream<S>, Trouble> {
    let greeted = tokio::time::timeout(HANDSHAKE, outside.greet(server, host)).await;
    let greeted = greeted.map_err(|_| Trouble::Unverified("it does not answer".to_owned()))?;
    greeted.map_err(|error| of_server(&error))
}

/// What went wrong with the real host.
fn of_server(error: &io::Error) -> Trouble {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match tls {
        Some(TlsError::AlertReceived(AlertDescription::NoApplicationProtocol)) => Trouble::NotHttp1,
        _ => Trouble::Unverified(error.to_string()),
    }
}

/// Requests one way and answers the other.
async fn converse<C, S>(
    (from, to): (&mut ReadHalf<C>, &mut WriteHalf<C>),
    outer: S,
    peer: Peer<'_>,
    swap: &Current,
    judge: &mut dyn Judge,
) -> Result<Carried, Trouble>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (from_server, to_server) = split(outer);
    let mut requests = Requests { from, to: to_server, bytes: Vec::new(), out: 0, count: 0 };
    let answers = answers(from_server, to, swap);
    let asked = requests.run(peer, swap, judge);
    tokio::pin!(answers);
    let bytes_in = tokio::select! {
        asked = asked => match asked {
            // The answers to what was asked are still to come.
            Ok(()) => answers.await?,
            Err(trouble) => return Err(trouble),
        },
        answered = &mut answers => answered?,
    };
    Ok(Carried { requests: requests.count, bytes_out: requests.out, bytes_in })
}

/// An answer of our own, after which the connection ends.
async fn say_no<C: AsyncRead + AsyncWrite + Unpin>(
    mut from: ReadHalf<C>,
    mut to: WriteHalf<C>,
    trouble: &Trouble,
    words: &str,
) -> io::Result<()> {
    let status = match trouble {
        Trouble::Unverified(_) | Trouble::NotHttp1 | Trouble::Broken(_) => "502 Bad Gateway",
        Trouble::Stray(_)
        | Trouble::Host(_)
        | Trouble::Framing(_)
        | Trouble::Refused(_)
        | Trouble::Distrusted(_) => "403 Forbidden",
    };
    let length = words.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         X-Belljar-Egress: refused\r\nConnection: close\r\n\r\n{words}\n"
    );
    to.write_all(answer.as_bytes()).await?;
    to.shutdown().await?;
    // What it still sends is read, for a while: a reset would take the answer away.
    let mut discarded = vec![0; READ_BYTES];
    while from.read(&mut discarded).await? > 0 {}
    Ok(())
}

/// What the client says, request by request.
struct Requests<'a, C, S> {
    from: &'a mut ReadHalf<C>,
    to: WriteHalf<S>,
    bytes: Vec<u8>,
    out: u64,
    count: u64,
}

impl<C: AsyncRead + AsyncWrite + Unpin, S: AsyncRead + AsyncWrite + Unpin> Requests<'_, C, S> {
    async fn run(
        &mut self,
        peer: Peer<'_>,
        current: &Current,
        judge: &mut dyn Judge,
    ) -> Result<(), Trouble> {
        loop {
            let (head, swap) = loop {
                // As the secrets are now, not when the connection was made.
                let swap = current.now();
                if let Some(head) = Head::read(&self.bytes, peer, &swap)? {
                    break (head, swap);
                }
                if !self.read().await? {
                    self.to.shutdown().await.ok(); // whoever has gone already does not mind
                    return Ok(());
                }
            };
            // Without the query, which may hold a value by now.
            let path = head.target.split('?').next().unwrap_or_default();
            judge.allows(&head.method, path).map_err(Trouble::Refused)?;
            self.bytes.drain(..head.length);
            self.count += 1;
            let replaces = |one: &Binding| one.in_body && one.is_for(peer.host);
            if swap.bindings().iter().any(replaces) {
                self.replaced_body(&head, peer.host, &swap).await?;
            } else {
                self.send(&head.written(head.body)).await?;
                self.body(head.body, &swap).await?;
            }
            self.to.flush().await?;
        }
    }

    /// Whether more came.
    async fn read(&mut self) -> Result<bool, Trouble> {
        let start = self.bytes.len();
        self.bytes.resize(start + READ_BYTES, 0);
        let read = self.from.read(&mut self.bytes[start..]).await;
        self.bytes.truncate(start + read.as_ref().map_or(0, |length| *length));
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            // An alert, which in TLS 1.3 comes only now: it does not believe the certificate.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Trouble::Distrusted(error.to_string()))
            }
            read => Ok(read? > 0),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        self.to.write_all(bytes).await?;
        self.out += bytes.len() as u64;
        Ok(())
    }

    /// A body as it is: no placeholder may be in it.
    async fn body(&mut self, body: Body, swap: &Swap) -> Result<(), Trouble> {
        let mut reader = BodyReader::new(body);
        let (mut scanner, mut marks) = (Scanner::default(), Vec::new());
        while let Some(piece) = self.piece(&mut reader).await? {
            scanner.feed(swap.watched(), &piece, &mut marks);
            if let Some(mark) = marks.first() {
                return Err(Trouble::Stray(swap.stray(mark.value)));
            }
            match body {
                Body::Length(_) => self.send(&piece).await?,
                Body::Chunked => self.chunk(&piece).await?,
            }
        }
        if body == Body::Chunked { self.send(b"0\r\n\r\n").await } else { Ok(()) }
    }

    async fn chunk(&mut self, piece: &[u8]) -> Result<(), Trouble> {
        if piece.is_empty() {
            return Ok(());
        }
        let whole = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        self.send(&whole).await
    }

    /// A body in which placeholders become values: whole, with its new length, if it is short; in chunks otherwise.
    async fn replaced_body(&mut self, head: &Head, host: &str, swap: &Swap) -> Result<(), Trouble> {
        let mut reader = BodyReader::new(head.body);
        let mut replacer = Replacer::new(swap, host);
        let is_short = matches!(head.body, Body::Length(length) if length <= WHOLE_BODY);
        let mut kept = Vec::new();
        if !is_short {
            self.send(&head.written(Body::Chunked)).await?;
        }
        while let Some(piece) = self.piece(&mut reader).await? {
            let out = replacer.push(&piece)?;
            if is_short { kept.extend(out) } else { self.chunk(&out).await? }
        }
        let out = replacer.finish()?;
        if is_short {
            kept.extend(out);
            self.send(&head.written(Body::Length(kept.len() as u64))).await?;
            return self.send(&kept).await;
        }
        self.chunk(&out).await?;
        self.send(b"0\r\n\r\n").await
    }

    /// The next of a body, without what frames it; `None` at its end.
    async fn piece(&mut self, reader: &mut BodyReader) -> Result<Option<Vec<u8>>, Trouble> {
        loop {
            match reader.take(&mut self.bytes)? {
                Taken::Piece(piece) => return Ok(Some(piece)),
                Taken::End => return Ok(None),
                Taken::More => {
                    if !self.read().await? {
                        return Err(Trouble::Broken(io::ErrorKind::UnexpectedEof));
                    }
                }
            }
        }
    }
}

/// What the server says, with the values that it was sent hidden again: a page may repeat them.
async fn answers<C: AsyncRead + AsyncWrite + Unpin, S: AsyncRead + AsyncWrite + Unpin>(
    mut from: ReadHalf<S>,
    to: &mut WriteHalf<C>,
    current: &Current,
) -> Result<u64, Trouble> {
    let mut swap = current.now();
    let (mut redactor, mut bytes, mut shown) =
        (Redactor::default(), vec![0; READ_BYTES], Vec::new());
    let (mut total, mut first) = (0u64, Vec::new());
    loop {
        shown.clear();
        let read = tokio::select! {
            read = from.read(&mut bytes) => read,
            () = tokio::time::sleep(HELD_BACK), if redactor.holds_little(swap.returning()) => {
                redactor.release(swap.returning(), &mut shown);
                to.write_all(&shown).await?;
                to.flush().await?;
                continue;
            }
        };
        let read = match read {
            // Many servers leave without a word.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(of_server(&error));
            }
            read => read?,
        };
        total += read as u64;
        if first.len() < ANSWER.len() {
            first.extend_from_slice(&bytes[..read.min(ANSWER.len())]);
            let length = first.len().min(ANSWER.len());
            if first[..length] != ANSWER[..length] {
                return Err(Trouble::NotHttp1);
            }
        }
        let now = current.now();
        if !std::sync::Arc::ptr_eq(&now, &swap) {
            // What was held back belongs to the values before; from here on both are known.
            redactor.finish(swap.returning(), &mut shown);
            (redactor, swap) = (Redactor::default(), now);
        }
        if read == 0 {
            redactor.finish(swap.returning(), &mut shown);
            to.write_all(&shown).await?;
            to.shutdown().await.ok(); // whoever has gone already does not mind
            return Ok(total);
        }
        redactor.push(swap.returning(), &bytes[..read], &mut shown);
        to.write_all(&shown).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests;
