//! The way in: answers, read strictly, without the values that their host was sent, framed anew.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_jail::redact::{Patterns, Redactor};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::{Trouble, of_server};
use crate::answer::Answer;
use crate::body::{BodyReader, Taken};
use crate::head::{Body, MAX_HEAD};
use crate::inflow::Inflow;
use crate::records::RecordReader;
use crate::swap::{Current, Swap};

/// Requests that wait for their answers; who sends more waits.
pub(super) const MAX_ASKED: usize = 32;
/// Answers that are none yet, to one request.
const MAX_INTERIM: u32 = 16;
/// Every answer of HTTP/1 begins so.
const ANSWER: &[u8] = b"HTTP/1.";

/// A request that went out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// For the head alone.
    pub to_head: bool,
    /// The program waits to be told to go on.
    pub waits: bool,
}

/// What the server says.
pub(super) struct Answers<'a, C, S> {
    pub(super) from: ReadHalf<S>,
    pub(super) to: &'a mut WriteHalf<C>,
    pub(super) host: &'a str,
    pub(super) current: &'a Current,
    pub(super) asked: mpsc::Receiver<Asked>,
    /// Whether the program has a part of an answer: words of ours would be taken for the rest.
    pub(super) midway: &'a AtomicBool,
}

/// The values as they were when last looked at.
struct Hidden {
    swap: Arc<Swap>,
    patterns: Arc<Patterns>,
}

impl<C: AsyncRead + AsyncWrite + Unpin, S: AsyncRead + AsyncWrite + Unpin> Answers<'_, C, S> {
    /// To the end of the connection; the bytes that came.
    pub(super) async fn run(mut self) -> Result<u64, Trouble> {
        let (mut bytes, mut total) = (Inflow::default(), 0u64);
        let mut waiting = VecDeque::new();
        let swap = self.current.now();
        let mut hidden = Hidden { patterns: swap.returning(self.host), swap };
        let mut interim = 0;
        loop {
            let Some(end) = self.head(&mut bytes, &mut waiting, &mut total).await? else {
                self.to.shutdown().await.ok(); // whoever has gone already does not mind
                return Ok(total);
            };
            let Some(Asked { to_head, .. }) = waiting.front().copied() else {
                // Nobody asked: a server that tells why it closes. The program hears that it does.
                self.to.shutdown().await.ok();
                return Ok(total);
            };
            let answer = Answer::read(&bytes.rest()[..end], to_head)?;
            bytes.consume(end);
            hidden.refresh(self.current, self.host);
            answer.check_coding(&hidden.patterns)?;
            if answer.is_interim() {
                interim += 1;
                if interim > MAX_INTERIM {
                    return Err(Trouble::Answer("too many that are none yet".to_owned()));
                }
                self.to.write_all(&answer.written(&hidden.patterns, to_head)).await?;
                self.to.flush().await?;
                continue;
            }
            interim = 0;
            self.midway.store(true, Ordering::Relaxed);
            self.to.write_all(&answer.written(&hidden.patterns, to_head)).await?;
            self.body(&answer, &mut bytes, &mut hidden, &mut total).await?;
            self.midway.store(false, Ordering::Relaxed);
            waiting.pop_front();
            if answer.body == Body::UntilClosed {
                self.to.shutdown().await.ok();
                return Ok(total);
            }
            self.go_on(&mut waiting).await?;
        }
    }

    /// Waits for a whole head, and hears meanwhile what is asked; `None` at the end.
    async fn head(
        &mut self,
        bytes: &mut Inflow,
        waiting: &mut VecDeque<Asked>,
        total: &mut u64,
    ) -> Result<Option<usize>, Trouble> {
        loop {
            while let Ok(asked) = self.asked.try_recv() {
                self.take(asked, waiting).await?;
            }
            let length = bytes.rest().len().min(ANSWER.len());
            if bytes.rest()[..length] != ANSWER[..length] {
                return Err(Trouble::NotHttp1);
            }
            if let Some(end) = bytes.head_end() {
                return Ok(Some(end));
            }
            if bytes.rest().len() > MAX_HEAD {
                return Err(Trouble::Answer("a head that does not end".to_owned()));
            }
            tokio::select! {
                read = bytes.read(&mut self.from) => {
                    let read = ended(read)?;
                    *total += read.unwrap_or(0) as u64;
                    match read {
                        Some(1..) => {}
                        // Many servers leave without a word.
                        _ if bytes.rest().is_empty() => return Ok(None),
                        _ => return Err(Trouble::Broken(io::ErrorKind::UnexpectedEof)),
                    }
                }
                Some(asked) = self.asked.recv() => self.take(asked, waiting).await?,
            }
        }
    }

    async fn take(&mut self, asked: Asked, waiting: &mut VecDeque<Asked>) -> Result<(), Trouble> {
        waiting.push_back(asked);
        if waiting.len() == 1 { self.go_on(waiting).await } else { Ok(()) }
    }

    /// Tells the program to go on, when its turn has come.
    async fn go_on(&mut self, waiting: &mut VecDeque<Asked>) -> Result<(), Trouble> {
        if let Some(first) = waiting.front_mut()
            && std::mem::take(&mut first.waits)
        {
            self.to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        self.to.flush().await?;
        Ok(())
    }

    /// A body, of which the last bytes are always held back until more has come, or it or a record of it has ended: what
    /// stands there may be the beginning of a value, and whether it is must not show.
    async fn body(
        &mut self,
        answer: &Answer,
        bytes: &mut Inflow,
        hidden: &mut Hidden,
        total: &mut u64,
    ) -> Result<(), Trouble> {
        let body = answer.body;
        let (mut reader, mut records) =
            (BodyReader::of_answer(body), RecordReader::new(answer.records));
        let (mut redactor, mut shown) = (Redactor::default(), Vec::new());
        loop {
            let last = match reader.take(bytes)? {
                Taken::Piece(piece) => {
                    if hidden.refresh(self.current, self.host) {
                        redactor.renew(&hidden.patterns);
                    }
                    let end = records.end(&piece, &hidden.patterns).unwrap_or(0);
                    redactor.push(&hidden.patterns, &piece[..end], &mut shown);
                    if end > 0 {
                        redactor.release(&hidden.patterns, &mut shown);
                    }
                    redactor.push(&hidden.patterns, &piece[end..], &mut shown);
                    false
                }
                Taken::End => true,
                Taken::More => {
                    let read = ended(bytes.read(&mut self.from).await)?;
                    *total += read.unwrap_or(0) as u64;
                    match read {
                        Some(1..) => continue,
                        Some(0) if body == Body::UntilClosed => true,
                        // Cut short: the program gets what there was, and no end.
                        _ => return Err(Trouble::Broken(io::ErrorKind::UnexpectedEof)),
                    }
                }
            };
            if last {
                redactor.finish(&hidden.patterns, &mut shown);
            }
            self.give(body, &shown).await?;
            shown.clear();
            if last {
                if body == Body::Chunked {
                    self.to.write_all(b"0\r\n\r\n").await?;
                }
                return Ok(self.to.flush().await?);
            }
        }
    }

    async fn give(&mut self, body: Body, piece: &[u8]) -> Result<(), Trouble> {
        if piece.is_empty() {
            return Ok(());
        }
        if body == Body::Chunked {
            let size = format!("{:x}\r\n", piece.len());
            self.to.write_all(&[size.as_bytes(), piece, b"\r\n"].concat()).await?;
        } else {
            self.to.write_all(piece).await?;
        }
        Ok(self.to.flush().await?)
    }
}

impl Hidden {
    /// As the secrets are now; whether they were others.
    fn refresh(&mut self, current: &Current, host: &str) -> bool {
        let now = current.now();
        if Arc::ptr_eq(&now, &self.swap) {
            return false;
        }
        *self = Self { patterns: now.returning(host), swap: now };
        true
    }
}

/// How much came; `None` at an end without a word.
fn ended(read: io::Result<usize>) -> Result<Option<usize>, Trouble> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(of_server(&error)),
        read => Ok(Some(read?)),
    }
}

#[cfg(test)]
mod tests;
