//! Telling a program's own output from what our program beside it says on the same stream.
//!
//! A message is cut into frames of at most [`MAX_FRAME_BYTES`], each written at once, which a pipe keeps whole:
//! `\x1e`, 32 digits that this context alone knows, 8 of the call, `m` or `e` (more, or the end), 4 of the
//! length, and the bytes. So threads and other processes may write meanwhile, and what looks like a frame but has
//! other digits is output. Who finds the digits out can lie about that code's own result, and about nothing else.

/// With a frame's head: below what a pipe writes at once (pipe(7): PIPE_BUF).
pub(super) const MAX_FRAME_BYTES: usize = 4000;
/// A message. What is longer is dropped and told.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;
pub(super) const NONCE_DIGITS: usize = 32;
pub(super) const CALL_DIGITS: usize = 8;
const MARK: u8 = 0x1e;
const CALL_AT: usize = 1 + NONCE_DIGITS;
const KIND_AT: usize = CALL_AT + CALL_DIGITS;
const HEAD_BYTES: usize = KIND_AT + 5;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Output(Vec<u8>),
    Message {
        call: String,
        json: Vec<u8>,
    },
    /// A message that was too long to keep.
    TooLong {
        call: String,
    },
}

/// One stream of a context.
#[derive(Debug)]
pub(super) struct Frames {
    /// The mark and the digits.
    begin: Vec<u8>,
    held: Vec<u8>,
    message: Vec<u8>,
    is_too_long: bool,
}

/// What stands at a mark.
enum At {
    Frame {
        call: String,
        is_last: bool,
        len: usize,
    },
    /// It could be one, when more has come.
    Unknown,
    Output,
}

impl Frames {
    pub(super) fn new(nonce: &str) -> Self {
        let begin = [&[MARK], nonce.as_bytes()].concat();
        Self { begin, held: Vec::new(), message: Vec::new(), is_too_long: false }
    }

    /// Cuts what came into output and messages.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let (mut pieces, mut output, mut at) = (Vec::new(), Vec::new(), 0);
        while at < held.len() {
            let Some(mark) = held[at..].iter().position(|byte| *byte == MARK) else {
                output.extend_from_slice(&held[at..]);
                break;
            };
            output.extend_from_slice(&held[at..at + mark]);
            at += mark;
            match self.look(&held[at..]) {
                At::Output => {
                    output.push(MARK);
                    at += 1;
                }
                At::Unknown => {
                    self.held = held[at..].to_vec();
                    break;
                }
                At::Frame { call, is_last, len } => {
                    let payload = &held[at + HEAD_BYTES..at + HEAD_BYTES + len];
                    at += HEAD_BYTES + len;
                    if let Some(piece) = self.take(call, is_last, payload) {
                        flush(&mut output, &mut pieces);
                        pieces.push(piece);
                    }
                }
            }
        }
        flush(&mut output, &mut pieces);
        pieces
    }

    /// What is held back as the beginning of a frame that never came.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.message.clear();
        self.is_too_long = false;
        std::mem::take(&mut self.held)
    }

    fn look(&self, from: &[u8]) -> At {
        let known = from.len().min(self.begin.len());
        if from[..known] != self.begin[..known] {
            return At::Output;
        }
        if from.len() < HEAD_BYTES {
            return At::Unknown;
        }
        let is_hex = |digits: &[u8]| digits.iter().all(|digit| digit.is_ascii_hexdigit());
        let (call, len) = (&from[CALL_AT..KIND_AT], &from[KIND_AT + 1..HEAD_BYTES]);
        let kind = from[KIND_AT];
        if !is_hex(call) || !is_hex(len) || !matches!(kind, b'm' | b'e') {
            return At::Output;
        }
        let len = std::str::from_utf8(len).ok().and_then(|len| usize::from_str_radix(len, 16).ok());
        match len {
            Some(len) if len <= MAX_FRAME_BYTES && from.len() < HEAD_BYTES + len => At::Unknown,
            Some(len) if len <= MAX_FRAME_BYTES => At::Frame {
                call: String::from_utf8_lossy(call).into_owned(),
                is_last: kind == b'e',
                len,
            },
            _ => At::Output,
        }
    }

    fn take(&mut self, call: String, is_last: bool, payload: &[u8]) -> Option<Piece> {
        if self.message.len() + payload.len() > MAX_MESSAGE_BYTES {
            self.is_too_long = true;
            self.message = Vec::new();
        }
        if !self.is_too_long {
            self.message.extend_from_slice(payload);
        }
        if !is_last {
            return None;
        }
        let json = std::mem::take(&mut self.message);
        let is_too_long = std::mem::take(&mut self.is_too_long);
        Some(if is_too_long { Piece::TooLong { call } } else { Piece::Message { call, json } })
    }
}

fn flush(output: &mut Vec<u8>, pieces: &mut Vec<Piece>) {
    if !output.is_empty() {
        pieces.push(Piece::Output(std::mem::take(output)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &str = "0123456789abcdef0123456789abcdef";

    fn frame(call: &str, kind: char, payload: &[u8]) -> Vec<u8> {
        let head = format!("\x1e{NONCE}{call}{kind}{:04x}", payload.len());
        [head.as_bytes(), payload].concat()
    }

    fn message(call: &str, json: &str) -> Piece {
        Piece::Message { call: call.to_owned(), json: json.as_bytes().to_vec() }
    }

    fn output(bytes: &[u8]) -> Piece {
        Piece::Output(bytes.to_vec())
    }

    #[test]
    fn output_and_messages_come_in_their_order_however_they_are_cut() {
        let stream = [
            b"before",
            frame("0000000a", 'm', b"{\"a\"").as_slice(),
            b"between",
            &frame("0000000a", 'e', b":1}"),
            b"after",
        ]
        .concat();
        let whole = Frames::new(NONCE).push(&stream);
        let expected =
            [output(b"beforebetween"), message("0000000a", "{\"a\":1}"), output(b"after")];
        assert_eq!(whole, expected);
        let mut frames = Frames::new(NONCE);
        let single: Vec<_> = stream.iter().flat_map(|byte| frames.push(&[*byte])).collect();
        let text = |pieces: &[Piece]| {
            let outputs = pieces.iter().filter_map(|piece| match piece {
                Piece::Output(bytes) => Some(bytes.clone()),
                Piece::Message { .. } | Piece::TooLong { .. } => None,
            });
            outputs.flatten().collect::<Vec<u8>>()
        };
        assert_eq!(text(&single), b"beforebetweenafter");
        assert!(single.contains(&message("0000000a", "{\"a\":1}")));
    }

    #[test]
    fn what_only_looks_like_a_frame_is_output() {
        let other = frame("0000000a", 'e', b"{}");
        let other: Vec<u8> =
            other.into_iter().map(|byte| if byte == b'f' { b'e' } else { byte }).collect();
        assert_eq!(Frames::new(NONCE).push(&other), [output(&other)]);
        for bad in ["0000000ae0fff", "0000000ax0002{}", "0000000gex002{}", "zzzzzzzze0002{}"] {
            let bad = format!("\x1e{NONCE}{bad}").into_bytes();
            let mut frames = Frames::new(NONCE);
            assert_eq!(frames.push(&bad), [output(&bad)], "{}", String::from_utf8_lossy(&bad));
        }
        let marks = [MARK; 1000];
        let mut frames = Frames::new(NONCE);
        let told = frames.push(&marks);
        assert_eq!((told, frames.rest()), (vec![output(&marks[1..])], vec![MARK]));
    }

    #[test]
    fn long_messages_cost_no_memory_and_are_told() {
        let mut frames = Frames::new(NONCE);
        let part = frame("0000000a", 'm', &[b'x'; MAX_FRAME_BYTES]);
        for _ in 0..=2 * MAX_MESSAGE_BYTES / MAX_FRAME_BYTES {
            assert_eq!(frames.push(&part), []);
        }
        assert!(frames.message.capacity() <= 2 * MAX_MESSAGE_BYTES);
        let last = frames.push(&frame("0000000a", 'e', b"x"));
        assert_eq!(last, [Piece::TooLong { call: "0000000a".to_owned() }]);
        assert_eq!(frames.push(&frame("0000000b", 'e', b"{}")), [message("0000000b", "{}")]);
    }
}
