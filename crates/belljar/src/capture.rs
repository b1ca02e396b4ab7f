//! Keeping the beginning and the end of a stream of any length in bounded memory.

use std::collections::VecDeque;

use crate::model::outcome::Captured;

/// A stream as it comes in. Memory stays at the cap, whatever the program writes.
#[derive(Debug)]
pub(crate) struct Capture {
    head_cap: usize,
    tail_cap: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total_bytes: u64,
}

impl Capture {
    pub(crate) fn new(cap_bytes: u64) -> Self {
        let cap = usize::try_from(cap_bytes).unwrap_or(usize::MAX);
        let tail_cap = cap / 2;
        Self {
            head_cap: cap - tail_cap,
            tail_cap,
            head: Vec::new(),
            tail: VecDeque::new(),
            total_bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total_bytes = self.total_bytes.saturating_add(bytes.len() as u64);
        let room = self.head_cap - self.head.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(first);
        // Only the last part of a long chunk can stay; the rest would be pushed out again.
        let rest = &rest[rest.len().saturating_sub(self.tail_cap)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_cap);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Counts bytes that nobody has any more.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.total_bytes = self.total_bytes.saturating_add(bytes);
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub(crate) fn finish(self) -> Captured {
        let kept = (self.head.len() + self.tail.len()) as u64;
        Captured { head: self.head, tail: self.tail.into(), dropped_bytes: self.total_bytes - kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(cap: u64, chunks: &[&[u8]]) -> Captured {
        let mut capture = Capture::new(cap);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        capture.finish()
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let kept = keep(10, &[b"hello", b"world"]);
        assert_eq!([kept.head, kept.tail].concat(), b"helloworld");
        assert_eq!(kept.dropped_bytes, 0);
    }

    #[test]
    fn head_and_tail_survive_and_the_middle_is_counted() {
        let kept = keep(6, &[b"abcdef", b"ghij", b"klmnopqrstuvwxyz"]);
        assert_eq!((kept.head.as_slice(), kept.tail.as_slice()), (&b"abc"[..], &b"xyz"[..]));
        assert_eq!(kept.dropped_bytes, 20);
    }

    #[test]
    fn memory_stays_at_the_cap() {
        let mut capture = Capture::new(1000);
        for _ in 0..1000 {
            capture.push(&[b'x'; 10_000]);
        }
        assert!(capture.tail.capacity() <= 2048 && capture.head.capacity() <= 2048);
        assert_eq!(capture.total_bytes(), 10_000_000);
    }

    #[test]
    fn a_cap_of_one_byte_keeps_the_first() {
        let kept = keep(1, &[b"xyz"]);
        assert_eq!((kept.head.as_slice(), kept.dropped_bytes), (&b"x"[..], 2));
    }
}
