//! Bodies: where they end, and placeholders in those of requests.

use belljar_jail::redact::{Mark, Scanner};

use crate::carry::Trouble;
use crate::head::Body;
use crate::inflow::Inflow;
use crate::swap::Swap;

/// The line of a chunk's size, with what servers write behind it.
const MAX_SIZE_LINE: usize = 256;
/// What a server says behind its last chunk, which nobody is told.
const MAX_TRAILERS: usize = 8 << 10;

/// Where a body ends.
#[derive(Debug)]
pub(crate) struct BodyReader {
    at: Place,
    /// Of an answer: it is framed anew for the program, so that extensions and trailers, which go, do no harm. In a request
    /// they would change what it says after it was looked at.
    is_answer: bool,
}

#[derive(Debug)]
enum Place {
    Length(u64),
    /// Before a chunk's size.
    Size,
    /// So much of a chunk is left, and then its line's end.
    Chunk(u64),
    /// Behind the last chunk.
    Last,
    UntilClosed,
    End,
}

pub(crate) enum Taken {
    Piece(Vec<u8>),
    More,
    End,
}

impl BodyReader {
    pub(crate) fn new(body: Body) -> Self {
        let at = match body {
            Body::Length(length) => Place::Length(length),
            Body::Chunked => Place::Size,
            Body::UntilClosed => Place::UntilClosed,
        };
        Self { at, is_answer: false }
    }

    pub(crate) fn of_answer(body: Body) -> Self {
        Self { is_answer: true, ..Self::new(body) }
    }

    pub(crate) fn take(&mut self, bytes: &mut Inflow) -> Result<Taken, Trouble> {
        loop {
            match &mut self.at {
                Place::Length(0) | Place::End => return Ok(Taken::End),
                _ if bytes.rest().is_empty() => return Ok(Taken::More),
                Place::Length(left) => return Ok(some(left, bytes)),
                Place::Chunk(left) if *left > 0 => return Ok(some(left, bytes)),
                Place::UntilClosed => return Ok(Taken::Piece(bytes.take(u64::MAX))),
                Place::Chunk(_) => match bytes.rest().get(..2) {
                    None => return Ok(Taken::More),
                    Some(b"\r\n") => {
                        bytes.consume(2);
                        self.at = Place::Size;
                    }
                    Some(_) => return Err(wrong()),
                },
                Place::Size => match self.size(bytes)? {
                    Some(size) => self.at = if size > 0 { Place::Chunk(size) } else { Place::Last },
                    None => return Ok(Taken::More),
                },
                Place::Last => {
                    if !self.ended(bytes)? {
                        return Ok(Taken::More);
                    }
                    self.at = Place::End;
                }
            }
        }
    }

    fn size(&self, bytes: &mut Inflow) -> Result<Option<u64>, Trouble> {
        let most = if self.is_answer { MAX_SIZE_LINE } else { 32 };
        let rest = bytes.rest();
        let look = &rest[..rest.len().min(most + 2)];
        let Some(end) = look.windows(2).position(|two| two == b"\r\n") else {
            return if rest.len() > most { Err(wrong()) } else { Ok(None) };
        };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| wrong())?;
        let digits = if self.is_answer {
            line.split(';').next().unwrap_or_default().trim_end_matches([' ', '\t'])
        } else {
            line
        };
        let plain =
            (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = u64::from_str_radix(digits, 16).ok().filter(|_| plain);
        let size = size.ok_or_else(wrong)?;
        bytes.consume(end + 2);
        Ok(Some(size))
    }

    /// Whether all of it was there, behind the last chunk.
    fn ended(&self, bytes: &mut Inflow) -> Result<bool, Trouble> {
        match bytes.rest().get(..2) {
            None => return Ok(false),
            Some(b"\r\n") => {
                bytes.consume(2);
                return Ok(true);
            }
            Some(_) if !self.is_answer => return Err(wrong()),
            Some(_) => {}
        }
        match bytes.head_end() {
            Some(end) => {
                bytes.consume(end);
                Ok(true)
            }
            None if bytes.rest().len() > MAX_TRAILERS => Err(wrong()),
            None => Ok(false),
        }
    }
}

fn wrong() -> Trouble {
    Trouble::Framing("chunks that cannot be told apart")
}

fn some(left: &mut u64, bytes: &mut Inflow) -> Taken {
    let piece = bytes.take(*left);
    *left -= piece.len() as u64;
    Taken::Piece(piece)
}
/// Replaces in a body that comes in pieces.
pub(crate) struct Replacer<'a> {
    swap: &'a Swap,
    pairs: Vec<(&'a [u8], &'a [u8])>,
    held: Vec<u8>,
    scanner: Scanner,
}

impl<'a> Replacer<'a> {
    pub(crate) fn new(swap: &'a Swap, host: &str) -> Self {
        let own = swap.bindings().iter().filter(|one| one.in_body && one.is_for(host));
        let pairs = own.map(|one| (one.placeholder.as_bytes(), one.value.as_bytes())).collect();
        Self { swap, pairs, held: Vec::new(), scanner: Scanner::default() }
    }

    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<Vec<u8>, Trouble> {
        self.held.extend_from_slice(piece);
        let longest = self.pairs.iter().map(|(token, _)| token.len()).max().unwrap_or(1);
        self.give(longest - 1)
    }

    pub(crate) fn finish(&mut self) -> Result<Vec<u8>, Trouble> {
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
        self.scanner.feed(self.swap.watched(), &self.held[from..to], &mut marks);
        let stray = |mark: &Mark| Err(Trouble::Stray(self.swap.stray(mark.value)));
        marks.first().map_or(Ok(()), stray)
    }
}
