//! Bodies of requests: where they end, and placeholders in them.

use belljar_jail::redact::{Mark, Scanner};

use crate::carry::Trouble;
use crate::head::Body;
use crate::swap::Swap;

/// Where a body ends.
pub(crate) enum BodyReader {
    Length(u64),
    /// Before a chunk's size.
    Size,
    /// So much of a chunk is left, and then its line's end.
    Chunk(u64),
    End,
}

pub(crate) enum Taken {
    Piece(Vec<u8>),
    More,
    End,
}

impl BodyReader {
    pub(crate) fn new(body: Body) -> Self {
        match body {
            Body::Length(length) => Self::Length(length),
            Body::Chunked => Self::Size,
        }
    }

    pub(crate) fn take(&mut self, bytes: &mut Vec<u8>) -> Result<Taken, Trouble> {
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
