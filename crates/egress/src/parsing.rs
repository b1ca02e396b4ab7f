//! What reads bytes that hostile programs wrote, as targets of `cargo xtask fuzz`; the tests replay its corpus.

use crate::http::Chunks;
use crate::{http, message, tls};

/// A name, and what reads bytes of that kind.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 4] =
    [("dns", dns), ("http_head", http_head), ("chunks", chunks), ("client_hello", client_hello)];

/// A question from inside, and an answer from outside.
fn dns(bytes: &[u8]) {
    if let Some(Ok(question)) = message::Question::read(bytes) {
        let answer = question.answer(message::Code::NoSuchName, None);
        assert!(answer.len() >= 12, "an answer has a header");
        question.is_reverse();
    }
    let id = bytes.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    drop(message::read_answer(bytes, id, "a.example", 1));
}

/// What is passed on is read the same way again: nobody behind us can be told something else.
fn http_head(bytes: &[u8]) {
    http::is_undecided(bytes);
    let http::Read::Whole(head) = http::read_head(bytes) else { return };
    let again = head.for_server("a.example");
    if !head.path().is_empty() {
        assert!(matches!(http::read_head(&again), http::Read::Whole(_)), "{again:?}");
    }
    head.upgrades_to("websocket");
}

/// However the bytes are cut, the body ends at the same place.
fn chunks(bytes: &[u8]) {
    let mut whole = Chunks::START;
    let taken = whole.take(bytes);
    let (mut parts, mut sum) = (Chunks::START, Some(0));
    for byte in bytes {
        sum = sum.and_then(|sum| parts.take(std::slice::from_ref(byte)).map(|one| sum + one));
    }
    if taken.is_some() {
        assert_eq!((taken, whole), (sum, parts));
    }
}

/// What is a whole hello stays one, whatever follows it.
fn client_hello(bytes: &[u8]) {
    tls::is_tls(bytes);
    if matches!(tls::read_hello(bytes), tls::Read::Whole(_)) {
        let longer = [bytes, b"more"].concat();
        assert!(matches!(tls::read_hello(&longer), tls::Read::Whole(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fuzzer_kept_is_read() {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        for (name, target) in TARGETS {
            let files = std::fs::read_dir(std::path::Path::new(place).join(name)).unwrap();
            let all: Vec<Vec<u8>> =
                files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
            assert!(!all.is_empty(), "{name}");
            all.iter().for_each(|bytes| target(bytes));
        }
    }
}
