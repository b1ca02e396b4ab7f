//! One connection: two TLS sessions, and between them requests that are looked at and answers that are cleaned.

use std::io;
use std::time::Duration;

use belljar_jail::redact::{Redactor, Scanner};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio_rustls::TlsAcceptor;

use crate::authority::Authority;
use crate::head::{Body, Head};
use crate::outside::Outside;
use crate::swap::{Stray, Swap};

const READ_BYTES: usize = 16 << 10;
/// A body in which placeholders are replaced is kept whole up to this, so that its length can be told; a longer one goes
/// in chunks.
const WHOLE_BODY: u64 = 1 << 20;
/// How long a handshake may take, on either side.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// What could be the beginning of a value on its way back is held for so long.
const HELD_BACK: Duration = Duration::from_millis(20);

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
    /// A placeholder where it may not go: an attempt.
    Stray(Stray),
    /// A request for another host.
    Host(String),
    /// What could be read in two ways, or not at all.
    Framing(&'static str),
    /// What the policy says no to.
    Refused(String),
    /// The real host does not show that it is who it should be.
    Unverified(String),
    /// The program does not believe us, or speaks no TLS: exempt the host if it pins certificates.
    Distrusted(String),
    Broken(io::ErrorKind),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.kind())
    }
}

/// Whether a request may pass: its method and its target.
pub type Check<'a> = dyn FnMut(&str, &str) -> Result<(), String> + Send + 'a;

/// Carries a connection from a client that means `host` to its end. `server` is connected to an address that was checked.
pub async fn carry<C, S>(
    client: C,
    server: S,
    host: &str,
    (authority, outside, swap): (&Authority, &Outside, &Swap),
    check: &mut Check<'_>,
) -> Result<Carried, Trouble>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let late = |_| Trouble::Broken(io::ErrorKind::TimedOut);
    let outer = tokio::time::timeout(HANDSHAKE, outside.greet(server, host)).await.map_err(late)?;
    let outer = outer.map_err(|error| Trouble::Unverified(error.to_string()))?;
    let config = authority.server(host).map_err(Trouble::Unverified)?;
    let inner = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(client)).await;
    let inner = inner.map_err(late)?.map_err(|error| Trouble::Distrusted(error.to_string()))?;
    let (from_client, to_client) = split(inner);
    let (from_server, to_server) = split(outer);
    let mut counted = Carried::default();
    let mut requests =
        Requests { from: from_client, to: to_server, bytes: Vec::new(), out: 0, count: 0 };
    let answers = answers(from_server, to_client, swap, host);
    let asked = requests.run(host, swap, check);
    tokio::pin!(answers);
    let ended = tokio::select! {
        asked = asked => match asked {
            // The answers to what was asked are still to come.
            Ok(()) => answers.await,
            Err(trouble) => return Err(trouble),
        },
        answered = &mut answers => answered,
    };
    counted.bytes_in = ended?;
    (counted.requests, counted.bytes_out) = (requests.count, requests.out);
    Ok(counted)
}

/// What the client says, request by request.
struct Requests<C, S> {
    from: ReadHalf<C>,
    to: WriteHalf<S>,
    bytes: Vec<u8>,
    out: u64,
    count: u64,
}

impl<C: AsyncRead + AsyncWrite + Unpin, S: AsyncRead + AsyncWrite + Unpin> Requests<C, S> {
    async fn run(&mut self, host: &str, swap: &Swap, check: &mut Check<'_>) -> Result<(), Trouble> {
        loop {
            let head = loop {
                if let Some(head) = Head::read(&self.bytes, host, swap)? {
                    break head;
                }
                if !self.read().await? {
                    self.to.shutdown().await.ok(); // whoever has gone already does not mind
                    return Ok(());
                }
            };
            check(&head.method, &head.target).map_err(Trouble::Refused)?;
            self.bytes.drain(..head.length);
            self.count += 1;
            let replaces = swap.bindings().iter().any(|one| one.in_body && one.is_for(host));
            if replaces {
                self.replaced_body(&head, host, swap).await?;
            } else {
                self.send(&head.written(head.body)).await?;
                self.body(head.body, swap).await?;
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
            scanner.feed(swap.tokens(), &piece, &mut marks);
            if let Some(mark) = marks.first() {
                return Err(Trouble::Stray(Stray(mark.value)));
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

/// Where a body ends.
enum BodyReader {
    Length(u64),
    /// Before a chunk's size.
    Size,
    /// So much of a chunk is left, and then its line's end.
    Chunk(u64),
    End,
}

enum Taken {
    Piece(Vec<u8>),
    More,
    End,
}

impl BodyReader {
    fn new(body: Body) -> Self {
        match body {
            Body::Length(length) => Self::Length(length),
            Body::Chunked => Self::Size,
        }
    }

    fn take(&mut self, bytes: &mut Vec<u8>) -> Result<Taken, Trouble> {
        let wrong = || Trouble::Framing("chunks that cannot be told apart");
        loop {
            match self {
                Self::Length(0) | Self::End => return Ok(Taken::End),
                Self::Length(left) => {
                    if bytes.is_empty() {
                        return Ok(Taken::More);
                    }
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= count as u64;
                    return Ok(Taken::Piece(bytes.drain(..count).collect()));
                }
                Self::Size => {
                    let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
                        return if bytes.len() > 32 { Err(wrong()) } else { Ok(Taken::More) };
                    };
                    let digits = std::str::from_utf8(&bytes[..end]).unwrap_or_default();
                    let plain = (1..=16).contains(&digits.len())
                        && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                    let size = u64::from_str_radix(digits, 16).ok().filter(|_| plain);
                    let size = size.ok_or_else(wrong)?;
                    if size > 0 {
                        bytes.drain(..end + 2);
                        *self = Self::Chunk(size);
                        return self.take(bytes);
                    }
                    // Trailers would change what a request says after it was looked at.
                    match bytes.get(end + 2..end + 4) {
                        None => return Ok(Taken::More),
                        Some(b"\r\n") => {
                            bytes.drain(..end + 4);
                            *self = Self::End;
                        }
                        Some(_) => return Err(wrong()),
                    }
                }
                Self::Chunk(0) => match bytes.get(..2) {
                    None => return Ok(Taken::More),
                    Some(b"\r\n") => {
                        bytes.drain(..2);
                        *self = Self::Size;
                    }
                    Some(_) => return Err(wrong()),
                },
                Self::Chunk(left) => {
                    if bytes.is_empty() {
                        return Ok(Taken::More);
                    }
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= count as u64;
                    return Ok(Taken::Piece(bytes.drain(..count).collect()));
                }
            }
        }
    }
}

/// Replaces in a body that comes in pieces.
struct Replacer<'a> {
    swap: &'a Swap,
    pairs: Vec<(&'a [u8], &'a [u8])>,
    held: Vec<u8>,
    scanner: Scanner,
}

impl<'a> Replacer<'a> {
    fn new(swap: &'a Swap, host: &str) -> Self {
        let own = swap.bindings().iter().filter(|one| one.in_body && one.is_for(host));
        let pairs = own.map(|one| (one.placeholder.as_bytes(), one.value.as_bytes())).collect();
        Self { swap, pairs, held: Vec::new(), scanner: Scanner::default() }
    }

    fn push(&mut self, piece: &[u8]) -> Result<Vec<u8>, Trouble> {
        self.held.extend_from_slice(piece);
        let longest = self.pairs.iter().map(|(token, _)| token.len()).max().unwrap_or(1);
        self.give(longest - 1)
    }

    fn finish(&mut self) -> Result<Vec<u8>, Trouble> {
        self.give(0)
    }

    /// All but the last bytes, which may be the beginning of a placeholder.
    fn give(&mut self, but: usize) -> Result<Vec<u8>, Trouble> {
        let (mut out, mut at) = (Vec::new(), 0);
        let mut plain = 0;
        while at < self.held.len() {
            let rest = &self.held[at..];
            let found = self.pairs.iter().find(|(token, _)| rest.starts_with(token)).copied();
            let is_last = rest.len() <= but;
            if let Some((token, value)) = found {
                self.look(plain, at)?;
                out.extend_from_slice(&self.held[plain..at]);
                out.extend_from_slice(value);
                at += token.len();
                plain = at;
            } else if is_last {
                break;
            } else {
                at += 1;
            }
        }
        self.look(plain, at)?;
        out.extend_from_slice(&self.held[plain..at]);
        self.held.drain(..at);
        Ok(out)
    }

    /// No other placeholder may be in what is left.
    fn look(&mut self, from: usize, to: usize) -> Result<(), Trouble> {
        let mut marks = Vec::new();
        self.scanner.feed(self.swap.tokens(), &self.held[from..to], &mut marks);
        marks.first().map_or(Ok(()), |mark| Err(Trouble::Stray(Stray(mark.value))))
    }
}

/// What the server says, with the values that it was sent hidden again: a page may repeat them.
async fn answers<C: AsyncRead + AsyncWrite + Unpin, S: AsyncRead + AsyncWrite + Unpin>(
    mut from: ReadHalf<S>,
    mut to: WriteHalf<C>,
    swap: &Swap,
    host: &str,
) -> Result<u64, Trouble> {
    let hidden = swap.returning(host);
    let (mut redactor, mut bytes, mut shown) =
        (Redactor::default(), vec![0; READ_BYTES], Vec::new());
    let mut total = 0;
    loop {
        shown.clear();
        let read = tokio::select! {
            read = from.read(&mut bytes) => read,
            () = tokio::time::sleep(HELD_BACK), if redactor.holds_little(&hidden) => {
                redactor.release(&hidden, &mut shown);
                to.write_all(&shown).await?;
                to.flush().await?;
                continue;
            }
        };
        let read = match read {
            // Many servers leave without a word.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            read => read?,
        };
        total += read as u64;
        if read == 0 {
            redactor.finish(&hidden, &mut shown);
            to.write_all(&shown).await?;
            to.shutdown().await.ok(); // whoever has gone already does not mind
            return Ok(total);
        }
        redactor.push(&hidden, &bytes[..read], &mut shown);
        to.write_all(&shown).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests;
