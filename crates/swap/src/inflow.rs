//! What was read of one side and not yet dealt with. Nothing in it is looked at twice for the same thing, and what is done
//! with is not moved for every piece: a peer that sends byte by byte costs as much as one that sends all at once.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

const READ_BYTES: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct Inflow {
    bytes: Vec<u8>,
    /// Before this everything is done with.
    start: usize,
    /// So much behind that was searched for the end of a head.
    searched: usize,
}

impl Inflow {
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Reads once, and says how much came. Nothing is lost when this is dropped half-way.
    pub(crate) async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        if self.start > 0 && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.reserve(READ_BYTES);
        let mut limited = from.take(READ_BYTES as u64);
        limited.read_buf(&mut self.bytes).await
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.bytes.len());
        self.searched = 0;
    }

    /// Takes so many of the first.
    pub(crate) fn take(&mut self, most: u64) -> Vec<u8> {
        let count = usize::try_from(most).unwrap_or(usize::MAX).min(self.rest().len());
        let taken = self.rest()[..count].to_vec();
        self.consume(count);
        taken
    }

    /// Where a head ends, behind its empty line.
    pub(crate) fn head_end(&mut self) -> Option<usize> {
        let from = self.searched.saturating_sub(3);
        let found = self.rest()[from..].windows(4).position(|four| four == b"\r\n\r\n");
        self.searched = self.rest().len();
        found.map(|at| from + at + 4)
    }
}

#[cfg(test)]
impl Inflow {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

#[cfg(test)]
impl From<&[u8]> for Inflow {
    fn from(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_head_that_comes_byte_by_byte_is_searched_once() {
        let head = [&b"GET / HTTP/1.1\r\n"[..], &[b'x'; 60_000], b"\r\n\r\nrest"].concat();
        let mut inflow = Inflow::default();
        let mut looked = 0;
        for (at, byte) in head.iter().enumerate() {
            assert_eq!(inflow.read(&mut &[*byte][..]).await.unwrap(), 1);
            let before = inflow.searched;
            let found = inflow.head_end();
            looked += inflow.searched - before.saturating_sub(3);
            assert_eq!(found.is_some(), at + 5 > head.len() || head[..=at].ends_with(b"\r\n\r\n"));
            if found.is_some() {
                break;
            }
        }
        assert!(looked <= 4 * head.len(), "{looked}");
        assert_eq!(inflow.head_end(), None, "it is found once");
    }

    #[tokio::test]
    async fn what_is_done_with_is_not_kept() {
        let mut inflow = Inflow::default();
        for _ in 0..100 {
            inflow.read(&mut &[1u8; 10_000][..]).await.unwrap();
            assert_eq!(inflow.take(u64::MAX).len(), 10_000);
        }
        assert!(inflow.rest().is_empty() && inflow.bytes.capacity() < 100_000);
        assert_eq!(Inflow::from(&b"abc"[..]).take(2), b"ab");
    }
}
