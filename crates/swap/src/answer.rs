//! One answer's head, read strictly and written anew without the values that its host was sent.

use belljar_jail::redact::Patterns;

use crate::carry::Trouble;
use crate::head::{Body, MAX_HEADERS, is, is_token};
use crate::records::Records;

/// A head on its way in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    first: Vec<u8>,
    /// But for those that say how long the body is.
    lines: Vec<Vec<u8>>,
    pub body: Body,
    /// By what the body is compressed, if it is.
    coding: Option<String>,
    /// What the body is a stream of, if it is one that a client waits for piece by piece.
    pub records: Option<Records>,
}

impl Answer {
    /// Reads one that is whole. `to_head` says that it answers a request for the head alone.
    pub(crate) fn read(bytes: &[u8], to_head: bool) -> Result<Self, Trouble> {
        let wrong = |what: &'static str| Trouble::Answer(what.to_owned());
        let text = bytes.strip_suffix(b"\r\n\r\n").ok_or(Trouble::NotHttp1)?;
        let mut lines = split_lines(text);
        let first = lines.next().unwrap_or_default();
        let (status, minor) = status_line(first).ok_or(Trouble::NotHttp1)?;
        let mut headers = Vec::new();
        for line in lines {
            let header = header(line).ok_or_else(|| wrong("a header line that is none"))?;
            headers.push(header);
        }
        if headers.len() > MAX_HEADERS {
            return Err(wrong("too many headers"));
        }
        if status == 101 {
            return Err(wrong("a change to another protocol"));
        }
        let has_none = to_head || status < 200 || status == 204 || status == 304;
        let body = body(&headers, minor).ok_or_else(|| wrong("a body whose end is not certain"))?;
        let coding = coding(&headers).filter(|_| !has_none);
        let frames = |name: &str| {
            ["transfer-encoding", "trailer"].iter().any(|known| is(name, known))
                // With a body it is said anew; to a request for the head it tells what there would be.
                || is(name, "content-length") && !has_none
        };
        let kept = headers.iter().filter(|(name, _)| !frames(name));
        let lines = kept.map(|(name, value)| [name.as_bytes(), b": ", value].concat()).collect();
        let body = if has_none { Body::Length(0) } else { body };
        let records = match all(&headers, "content-type").as_slice() {
            [kind] => Records::of(kind),
            _ => None,
        };
        Ok(Self { status, first: first.to_vec(), lines, body, coding, records })
    }

    /// What is compressed could hold a value that nobody sees.
    pub(crate) fn check_coding(&self, hidden: &Patterns) -> Result<(), Trouble> {
        match &self.coding {
            Some(coding) if !hidden.is_empty() => {
                Err(Trouble::Encoded(format!("it is encoded as {coding}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether another follows to the same request.
    pub(crate) fn is_interim(&self) -> bool {
        self.status < 200
    }

    pub(crate) fn has_no_body(&self, to_head: bool) -> bool {
        to_head || self.is_interim() || self.status == 204 || self.status == 304
    }

    /// As the program gets it. What hides a value is as long as that was, so the length of the body stays true.
    pub(crate) fn written(&self, hidden: &Patterns, to_head: bool) -> Vec<u8> {
        let mut out = hidden.mask(&self.first);
        out.extend_from_slice(b"\r\n");
        for line in &self.lines {
            out.extend(hidden.mask(line));
            out.extend_from_slice(b"\r\n");
        }
        match self.body {
            _ if self.has_no_body(to_head) => {}
            Body::Length(length) => {
                out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
            }
            Body::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Body::UntilClosed => out.extend_from_slice(b"Connection: close\r\n"),
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

fn split_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let all = rest?;
        match all.windows(2).position(|two| two == b"\r\n") {
            Some(at) => {
                rest = Some(&all[at + 2..]);
                Some(&all[..at])
            }
            None => {
                rest = None;
                Some(all)
            }
        }
    })
}

/// A line's end that only some take for one would make two headers of it.
fn is_visible(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

/// The status, and the version behind the point.
fn status_line(line: &[u8]) -> Option<(u16, u8)> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let (minor, rest) = rest.split_first()?;
    let minor = matches!(minor, b'0' | b'1').then(|| minor - b'0')?;
    let rest = rest.strip_prefix(b" ")?;
    let digits = rest.get(..3)?;
    let ends = rest.get(3).is_none_or(|byte| *byte == b' ');
    let plain = digits.iter().all(u8::is_ascii_digit) && rest.iter().all(|one| is_visible(*one));
    let status: u16 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (plain && ends && (100..=599).contains(&status)).then_some((status, minor))
}

fn header(line: &[u8]) -> Option<(String, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]);
    let plain = !name.is_empty()
        && name.bytes().all(is_token)
        && value.iter().all(|byte| is_visible(*byte));
    plain.then(|| (name.to_owned(), value.trim_ascii()))
}

fn all<'a>(headers: &'a [(String, &[u8])], known: &str) -> Vec<&'a str> {
    let found = headers.iter().filter(|(name, _)| is(name, known));
    found.map(|(_, value)| std::str::from_utf8(value).unwrap_or("?")).collect()
}

fn body(headers: &[(String, &[u8])], minor: u8) -> Option<Body> {
    let codings = all(headers, "transfer-encoding");
    match (codings.as_slice(), all(headers, "content-length").as_slice()) {
        ([], []) => Some(Body::UntilClosed),
        ([coding], []) if minor == 1 && coding.eq_ignore_ascii_case("chunked") => {
            Some(Body::Chunked)
        }
        ([], [length])
            if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            length.parse().ok().map(Body::Length)
        }
        _ => None,
    }
}

fn coding(headers: &[(String, &[u8])]) -> Option<String> {
    let codings = all(headers, "content-encoding");
    let words = codings.iter().flat_map(|one| one.split(',')).map(str::trim);
    let mut used = words.filter(|one| !one.is_empty() && !one.eq_ignore_ascii_case("identity"));
    used.next().map(|coding| coding.chars().take(32).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "sk-real-value-0123456789";

    fn read(text: &str) -> Result<Answer, Trouble> {
        Answer::read(text.as_bytes(), false)
    }

    #[test]
    fn bodies_of_answers_are_told_in_one_way() {
        for (text, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Body::Length(5)),
            ("HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n", Body::Chunked),
            ("HTTP/1.0 200 OK\r\nX: y\r\n\r\n", Body::UntilClosed),
            ("HTTP/1.1 204 None\r\nX: y\r\n\r\n", Body::Length(0)),
            ("HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n", Body::Length(0)),
            ("HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n", Body::Length(0)),
        ] {
            assert_eq!(read(text).unwrap().body, body, "{text}");
        }
        for wrong in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
        ] {
            assert!(matches!(read(wrong), Err(Trouble::Answer(_))), "{wrong:?}");
        }
        for none in
            ["HTTP/2 200\r\n\r\n", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1 999 x\r\n\r\n", "x\r\n\r\n"]
        {
            assert_eq!(read(none), Err(Trouble::NotHttp1), "{none:?}");
        }
    }

    #[test]
    fn compressed_answers_are_refused_where_there_is_a_body() {
        let (mut hidden, none) = (Patterns::default(), Patterns::default());
        hidden.add_outside(VALUE);
        for coding in ["gzip", "br", "identity, deflate"] {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n");
            let checked = read(&text).unwrap().check_coding(&hidden);
            assert!(matches!(checked, Err(Trouble::Encoded(_))), "{coding}");
            let without = Answer::read(text.as_bytes(), true).unwrap();
            assert_eq!(without.check_coding(&hidden), Ok(()), "{coding}: there is no body");
            assert_eq!(read(&text).unwrap().check_coding(&none), Ok(()), "nothing is looked for");
        }
        let plain = read("HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\n\r\n").unwrap();
        assert_eq!(plain.check_coding(&hidden), Ok(()));
    }

    #[test]
    fn values_in_heads_are_hidden_and_framing_is_said_anew() {
        let mut hidden = Patterns::default();
        hidden.add_outside(VALUE);
        let text = format!(
            "HTTP/1.1 200 {VALUE}\r\nX-Echo: Bearer {VALUE}\r\nX-Part: sk-real-val\r\n\
             Content-Length: 3\r\n\r\n"
        );
        let written = read(&text).unwrap().written(&hidden, false);
        let mask = "[secret]****************";
        let wanted = format!(
            "HTTP/1.1 200 {mask}\r\nX-Echo: Bearer {mask}\r\nX-Part: sk-real-val\r\n\
             Content-Length: 3\r\n\r\n"
        );
        assert_eq!(String::from_utf8(written).unwrap(), wanted);
        let to_head = Answer::read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true).unwrap();
        assert_eq!(to_head.body, Body::Length(0));
        assert!(to_head.written(&hidden, true).ends_with(b"Content-Length: 3\r\n\r\n"));
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let whole = [b"HTTP/1.1 200 OK\r\n", &bytes[..], b"\r\n\r\n"].concat();
            Answer::read(&bytes, false).ok();
            Answer::read(&whole, false).ok();
        }
    }
}
