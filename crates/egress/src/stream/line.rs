//! The first line of what is neither TLS nor HTTP, as it passes.
//!
//! Requests that are written as they should be are read by [`crate::http`] before a byte of them passes. There are servers that
//! take others too: with empty lines before them, tabs for blanks, methods in small letters. The end of such a line is refused, be it
//! the end of all that is said, and the connection broken off, after which nobody acts on it. Its beginning is not held back: other
//! protocols begin with a word and wait for an answer.

/// Lines that are longer are no server's request line.
const MAX_LINE: usize = 2 << 20;
/// Longer than any version.
const MAX_WORD: usize = 32;

/// How far a client's first line has come.
#[derive(Debug, Default)]
pub(super) struct FirstLine {
    /// The word that is being said, as far as it matters, and the one before it.
    word: Vec<u8>,
    before: Vec<u8>,
    length: usize,
    ended: bool,
}

impl FirstLine {
    /// Whether it goes on.
    pub(super) fn is_open(&self) -> bool {
        !self.ended
    }

    /// Looks at what comes next: whether it ends a line whose last word is a version of HTTP.
    pub(super) fn ends_a_request(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            if self.ended {
                return false;
            }
            match byte {
                // Empty lines before it do not count.
                b'\r' | b'\n' if self.length == 0 => continue,
                b'\n' => {
                    self.ended = true;
                    let last = if self.word.is_empty() { &self.before } else { &self.word };
                    return is_version(last);
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.end_word(),
                other if self.word.len() < MAX_WORD => self.word.push(*other),
                _ => {}
            }
            self.length += 1;
            self.ended = self.length > MAX_LINE;
        }
        false
    }

    fn end_word(&mut self) {
        if !self.word.is_empty() {
            self.before = std::mem::take(&mut self.word);
        }
    }
}

fn is_version(word: &[u8]) -> bool {
    let number = word.strip_prefix(b"HTTP/");
    number.is_some_and(|number| number.iter().all(|one| one.is_ascii_digit() || *one == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In one piece and byte by byte.
    fn is_request(bytes: &[u8]) -> bool {
        let mut line = FirstLine::default();
        let byte_by_byte = bytes.iter().any(|byte| line.ends_a_request(&[*byte]));
        assert_eq!(FirstLine::default().ends_a_request(bytes), byte_by_byte, "{bytes:?}");
        byte_by_byte
    }

    #[test]
    fn requests_that_are_written_otherwise_are_seen() {
        for request in [
            &b"\r\n\r\nGET / HTTP/1.1\r\n"[..],
            b"get / HTTP/1.1\n",
            b"GET\t/\tHTTP/1.10\t\r\n",
            b"\nPRI * HTTP/2.0\r\n",
            b"GET /\0\xff HTTP/1.0\r\r\n",
            b"x /\x0bHTTP/1.1 \x0c\r\nHost: a.test\r\n",
        ] {
            assert!(is_request(request), "{request:?}");
        }
        let long = [b"get /", &vec![b'x'; 1 << 20][..], b" HTTP/1.1\r\n"].concat();
        assert!(FirstLine::default().ends_a_request(&long));
    }

    #[test]
    fn other_words_are_none() {
        for other in [
            &b""[..],
            b"\r\n",
            b"ping",
            b"GET / HTTP/1.1",
            b"EHLO me\r\nGET / HTTP/1.1\r\n",
            b"192.0.2.1 \"GET / HTTP/1.1\" 200\n",
            b"192.0.2.1 GET / HTTP/1.1 200\n",
            b"OPTIONS rtsp://a.test RTSP/1.0\r\n",
        ] {
            assert!(!is_request(other), "{other:?}");
        }
    }

    #[test]
    fn a_line_that_does_not_end_is_looked_at_no_longer() {
        let mut line = FirstLine::default();
        assert!(!line.ends_a_request(&vec![b'x'; MAX_LINE]) && line.is_open());
        assert!(!line.ends_a_request(b"x HTTP/1.1\r\n") && !line.is_open());
    }
}
