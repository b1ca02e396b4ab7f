//! The way out: requests, one after the other.

use std::io;

use belljar_jail::redact::Scanner;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::answers::Asked;
use super::{Judge, Peer, Trouble};
use crate::body::{BodyReader, Replacer, Taken};
use crate::head::{Body, Head, MAX_HEAD};
use crate::inflow::Inflow;
use crate::swap::{Binding, Current, Swap};

/// A body in which placeholders are replaced is kept whole up to this, so that its length can be told; a longer one goes
/// in chunks.
const WHOLE_BODY: u64 = 1 << 20;

/// What the client says, request by request.
pub(super) struct Requests<'a, C, S> {
    pub(super) from: &'a mut ReadHalf<C>,
    pub(super) to: WriteHalf<S>,
    pub(super) bytes: Inflow,
    /// Where it is said that an answer is to come.
    pub(super) asked: mpsc::Sender<Asked>,
    pub(super) out: u64,
    pub(super) count: u64,
}

impl<C: AsyncRead + AsyncWrite + Unpin, S: AsyncRead + AsyncWrite + Unpin> Requests<'_, C, S> {
    pub(super) async fn run(
        &mut self,
        peer: Peer<'_>,
        current: &Current,
        judge: &mut dyn Judge,
    ) -> Result<(), Trouble> {
        loop {
            let (head, swap) = loop {
                if let Some(end) = self.bytes.head_end() {
                    // As the secrets are now, not when the connection was made.
                    let swap = current.now();
                    let head = Head::read(&self.bytes.rest()[..end], peer, &swap)?;
                    let head = head.ok_or(Trouble::Framing("a head that does not end"))?;
                    break (head, swap);
                }
                if self.bytes.rest().len() > MAX_HEAD {
                    return Err(Trouble::Framing("a head that does not end"));
                }
                if !self.read().await? {
                    self.to.shutdown().await.ok(); // whoever has gone already does not mind
                    return Ok(());
                }
            };
            for (method, path) in &head.asks {
                judge.allows(method, path).map_err(Trouble::Refused)?;
            }
            self.bytes.consume(head.length);
            self.count += 1;
            let asked = Asked { to_head: head.method == "HEAD", waits: head.waits };
            // Whoever reads the answers ends only with the connection.
            self.asked.send(asked).await.map_err(|_| Trouble::Broken(io::ErrorKind::BrokenPipe))?;
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
        match self.bytes.read(self.from).await {
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
                Body::Chunked | Body::UntilClosed => self.chunk(&piece).await?,
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
