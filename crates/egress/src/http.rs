//! HTTP/1.1 requests, read strictly: whom they are for, what they ask, and where they end.
//!
//! Every request of a kept connection is read. What a server could read in two ways is refused, so that no request
//! hides in another's body.

use belljar_jail::egress::Why;

use crate::names::Target;

/// The longest head of a request.
pub(crate) const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 256;
pub(crate) const MAX_METHOD: usize = 32;
/// The beginning of HTTP/2 without TLS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// How a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Length(u64),
    Chunked,
}

/// A request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub method: String,
    pub form: Form,
    /// Of the Host header; HTTP/1.0 may have none.
    pub host: Option<(Target, Option<u16>)>,
    pub body: Body,
    /// It asks to speak something else from here on.
    pub upgrade: bool,
    /// Where it ends in what was read.
    pub length: usize,
    /// As they came, without those that are for a proxy.
    headers: Vec<(String, String)>,
    version: &'static str,
}

/// What a request line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A path, or `*`.
    Origin(String),
    /// A whole address: for a proxy, though every server must understand it.
    Absolute(Target, u16, String),
    /// CONNECT.
    Authority(Target, u16),
}

/// How far the reading came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Part,
    Whole(Box<Head>),
    Wrong(Why, &'static str),
}

/// Whether this may be the beginning of a request: a method, or as much of one as there is.
pub(crate) fn is_http(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|one| one.is_ascii_uppercase()).count();
    method > 0 && method <= MAX_METHOD && bytes.get(method).is_none_or(|one| *one == b' ')
}

/// Whether more bytes are needed to tell.
pub(crate) fn is_undecided(bytes: &[u8]) -> bool {
    bytes.len() < MAX_METHOD && bytes.iter().all(u8::is_ascii_uppercase)
}

/// Reads a head.
pub(crate) fn read_head(bytes: &[u8]) -> Read {
    if bytes.starts_with(PREFACE) {
        return Read::Wrong(Why::Protocol, "HTTP/2 without TLS");
    }
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        if bytes.len() > MAX_HEAD {
            return Read::Wrong(Why::Framing, "a head that does not end");
        }
        if bytes.iter().filter(|one| **one == b'\n').count() > MAX_HEADERS + 1 {
            return Read::Wrong(Why::Framing, "too many headers");
        }
        // A line that ends with less than CRLF ends a head for some servers.
        return match has_bare_ending(bytes) {
            true => Read::Wrong(Why::Framing, "a line that does not end with CR LF"),
            false => Read::Part,
        };
    };
    match head(&bytes[..end]) {
        Ok(head) => Read::Whole(Box::new(Head { length: end + 4, ..head })),
        Err((why, what)) => Read::Wrong(why, what),
    }
}

/// Whether a head of which all but these last bytes were read is worth reading again: when a line has ended, or too much has
/// come. Otherwise whoever sends it byte by byte has us read all of it for each.
pub(crate) fn is_news(bytes: &[u8], last: usize) -> bool {
    let new = &bytes[bytes.len() - last.min(bytes.len())..];
    bytes.len() > MAX_HEAD || bytes.len() == last || new.contains(&b'\n')
}

pub(crate) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// An LF without its CR, or a CR that is not before an LF (but for the last byte, after which one may come).
fn has_bare_ending(bytes: &[u8]) -> bool {
    let pairs = bytes.windows(2).any(|two| (two[0] == b'\r') != (two[1] == b'\n'));
    pairs || bytes.first() == Some(&b'\n') || bytes.contains(&0)
}

fn head(bytes: &[u8]) -> Result<Head, (Why, &'static str)> {
    let framing = |what| (Why::Framing, what);
    let text = std::str::from_utf8(bytes).map_err(|_| framing("a head that is not text"))?;
    // A CR right before the empty line has its LF taken by it.
    let is_bare = has_bare_ending(bytes) || bytes.ends_with(b"\r");
    if is_bare || bytes.iter().any(|one| *one < b' ' && !b"\r\n\t".contains(one)) {
        return Err(framing("a control character in a head"));
    }
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let (method, target, version) = request_line(line).ok_or(framing("a request line"))?;
    let mut headers = Vec::new();
    for line in lines {
        headers.push(header(line).ok_or(framing("a header line"))?);
    }
    if headers.len() > MAX_HEADERS {
        return Err(framing("too many headers"));
    }
    let form = form(method, target).ok_or((Why::Host, "a target that names no host"))?;
    let host = host(&headers, version)?;
    let upgrade = all(&headers, "upgrade").next().is_some();
    Ok(Head {
        method: method.to_owned(),
        form,
        host,
        body: body(&headers, version).ok_or(framing("a body whose end is not certain"))?,
        upgrade,
        length: 0,
        headers: headers
            .into_iter()
            .filter(|(name, _)| !name.to_ascii_lowercase().starts_with("proxy-"))
            .collect(),
        version,
    })
}

fn request_line(line: &str) -> Option<(&str, &str, &'static str)> {
    let mut parts = line.split(' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    let version = match version {
        "HTTP/1.1" => "HTTP/1.1",
        "HTTP/1.0" => "HTTP/1.0",
        _ => return None,
    };
    let plain = method.len() <= MAX_METHOD && method.bytes().all(is_token) && !method.is_empty();
    let visible = !target.is_empty() && target.bytes().all(|one| one.is_ascii_graphic());
    (parts.next().is_none() && plain && visible).then_some((method, target, version))
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// A name that a colon follows at once. A line that begins with a blank continues another for some, so it is none.
fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let plain = !name.is_empty() && name.bytes().all(is_token);
    plain.then(|| (name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

fn all<'a>(headers: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    headers.iter().filter(move |one| one.0.eq_ignore_ascii_case(name)).map(|one| one.1.as_str())
}

fn form(method: &str, target: &str) -> Option<Form> {
    if method == "CONNECT" {
        return Target::with_port(target).map(|(host, port)| Form::Authority(host, port));
    }
    if target.starts_with('/') || target == "*" {
        return Some(Form::Origin(target.to_owned()));
    }
    let rest = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let rest = rest.and_then(|_| target.get(7..))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (host, port) = Target::maybe_with_port(authority)?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Some(Form::Absolute(host, port.unwrap_or(80), path))
}

type Named = (Target, Option<u16>);

fn host(headers: &[(String, String)], version: &str) -> Result<Option<Named>, (Why, &'static str)> {
    let mut hosts = all(headers, "host");
    match (hosts.next(), hosts.next()) {
        (None, _) if version == "HTTP/1.0" => Ok(None),
        (None, _) => Err((Why::Host, "a request without a Host")),
        (Some(_), Some(_)) => Err((Why::Host, "a request with two Hosts")),
        (Some(host), None) => {
            let host =
                Target::maybe_with_port(host).ok_or((Why::Host, "a Host that names no host"))?;
            Ok(Some(host))
        }
    }
}

/// Its length or its chunks: one of them, said once, in one way.
fn body(headers: &[(String, String)], version: &str) -> Option<Body> {
    let mut codings = all(headers, "transfer-encoding");
    let mut lengths = all(headers, "content-length");
    match (codings.next(), codings.next(), lengths.next(), lengths.next()) {
        (None, None, None, None) => Some(Body::Length(0)),
        (Some(coding), None, None, None) if version == "HTTP/1.1" => {
            coding.eq_ignore_ascii_case("chunked").then_some(Body::Chunked)
        }
        (None, None, Some(length), None) => {
            let digits = !length.is_empty() && length.bytes().all(|one| one.is_ascii_digit());
            length.parse().ok().filter(|_| digits).map(Body::Length)
        }
        _ => None,
    }
}

impl Head {
    pub(crate) fn upgrades_to(&self, protocol: &str) -> bool {
        let mut named = all(&self.headers, "upgrade");
        named.next().is_some_and(|one| one.eq_ignore_ascii_case(protocol)) && named.next().is_none()
    }

    /// Every method and path that its server might take it for; `None` when there are too many.
    pub(crate) fn asks(&self) -> Option<Vec<(String, String)>> {
        let named = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        belljar_swap::asks(&self.method, self.path(), named)
    }

    /// What is asked for, without the host.
    pub(crate) fn path(&self) -> &str {
        match &self.form {
            Form::Origin(path) | Form::Absolute(_, _, path) => path,
            Form::Authority(..) => "",
        }
    }

    /// Whether all that it says of the host agrees with the one that was allowed.
    pub(crate) fn agrees(&self, target: &Target, port: u16) -> bool {
        let host = self
            .host
            .as_ref()
            .is_none_or(|(host, named)| host == target && named.is_none_or(|named| named == port));
        let line = match &self.form {
            Form::Origin(_) => true,
            Form::Absolute(host, named, _) => host == target && *named == port,
            Form::Authority(..) => false,
        };
        host && line
    }

    /// As a server gets it that is asked for one thing only: a path for a target, and the end with the answer.
    pub(crate) fn for_server(&self, host: &str) -> Vec<u8> {
        let mut text =
            format!("{} {} {}\r\nHost: {host}\r\n", self.method, self.path(), self.version);
        for (name, value) in &self.headers {
            let ours = ["host", "connection", "keep-alive"];
            if !ours.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        text.push_str("Connection: close\r\n\r\n");
        text.into_bytes()
    }
}

/// Finds the end of a body that comes in chunks, byte by byte. It passes on what it reads, so it must read it as every
/// server does: nothing but the plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// In the digits of a size, of which there have been so many.
    Size {
        value: u64,
        digits: u8,
    },
    SizeEnd(u64),
    Data(u64),
    DataEnd(u8),
    /// After the last chunk: at the beginning of a line of the trailer.
    Trailer {
        empty: bool,
        after_cr: bool,
    },
    Done,
}

impl Chunks {
    pub(crate) const START: Self = Self::Size { value: 0, digits: 0 };
    const MAX_DIGITS: u8 = 15;

    /// Takes what it can of `bytes`: how many belong to the body; `None` when that cannot be said.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut taken = 0;
        while taken < bytes.len() && *self != Self::Done {
            if let Self::Data(left) = self {
                let part = (*left).min((bytes.len() - taken) as u64);
                taken += usize::try_from(part).ok()?;
                *self = if *left == part { Self::DataEnd(0) } else { Self::Data(*left - part) };
                continue;
            }
            *self = self.next(bytes[taken])?;
            taken += 1;
        }
        Some(taken)
    }

    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Size { value, digits }, b'\r') if digits > 0 => Self::SizeEnd(value),
            (Self::Size { value, digits }, _) if digits < Self::MAX_DIGITS => {
                let digit = char::from(byte).to_digit(16)?;
                Self::Size { value: value * 16 + u64::from(digit), digits: digits + 1 }
            }
            (Self::SizeEnd(0), b'\n') => Self::Trailer { empty: true, after_cr: false },
            (Self::SizeEnd(size), b'\n') => Self::Data(size),
            (Self::DataEnd(0), b'\r') => Self::DataEnd(1),
            (Self::DataEnd(1), b'\n') => Self::START,
            (Self::Trailer { empty, after_cr: false }, b'\r') => {
                Self::Trailer { empty, after_cr: true }
            }
            (Self::Trailer { empty: true, after_cr: true }, b'\n') => Self::Done,
            // Trailers change what a request says after it was looked at.
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Head {
        match read_head(text.as_bytes()) {
            Read::Whole(head) => *head,
            other @ (Read::Part | Read::Wrong(..)) => panic!("{text:?}: {other:?}"),
        }
    }

    fn target(text: &str) -> Target {
        Target::parse(text).unwrap()
    }

    #[test]
    fn a_request_is_read_and_nothing_behind_it() {
        let text = "GET /a?b HTTP/1.1\r\nHost: A.example\r\nX: 1\r\n\r\nrest";
        let head = whole(text);
        assert_eq!((head.method.as_str(), head.path()), ("GET", "/a?b"));
        assert_eq!(&text[head.length..], "rest");
        assert_eq!(head.body, Body::Length(0));
        assert!(head.agrees(&target("a.example"), 80) && !head.agrees(&target("b.example"), 80));
    }

    #[test]
    fn all_that_names_a_host_must_agree() {
        let agrees = |text: &str| whole(text).agrees(&target("a.example"), 8080);
        assert!(agrees("GET / HTTP/1.1\r\nHost: a.example:8080\r\n\r\n"));
        assert!(agrees("GET http://a.example:8080/ HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert!(agrees("GET / HTTP/1.0\r\n\r\n"));
        for text in [
            "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
            "GET http://b.example:8080/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT a.example:8080 HTTP/1.1\r\nHost: a.example:8080\r\n\r\n",
        ] {
            assert!(!agrees(text), "{text:?}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let host = "Host: a.example\r\n";
        for (text, why) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), Why::Host),
            (format!("GET / HTTP/1.1\r\n{host}Host: b.example\r\n\r\n"), Why::Host),
            ("GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n".to_owned(), Why::Host),
            (format!("GET https://a.example/ HTTP/1.1\r\n{host}\r\n"), Why::Host),
            (format!("GET http://u@a.example/ HTTP/1.1\r\n{host}\r\n"), Why::Host),
            (
                format!(
                    "POST / HTTP/1.1\r\n{host}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
                ),
                Why::Framing,
            ),
            (
                format!("POST / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 1\r\n\r\n"),
                Why::Framing,
            ),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: +1\r\n\r\n"), Why::Framing),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 1, 1\r\n\r\n"), Why::Framing),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: identity\r\n\r\n"), Why::Framing),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n"), Why::Framing),
            (
                format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: gzip, chunked\r\n\r\n"),
                Why::Framing,
            ),
            (format!("POST / HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n"), Why::Framing),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding : chunked\r\n\r\n"), Why::Framing),
            (format!("GET / HTTP/1.1\r\n{host}X: 1\r\n folded\r\n\r\n"), Why::Framing),
            (format!("GET / HTTP/1.1\r\n{host}X: 1\n\r\n"), Why::Framing),
            (format!("GET / HTTP/1.1\n{host}\r\n"), Why::Framing),
            (format!("GET / HTTP/1.1\r\n{host}X: a\rb\r\n\r\n"), Why::Framing),
            (format!("GET / HTTP/1.1\r\n{host}X: a\0b\r\n\r\n"), Why::Framing),
            (format!("GET /  HTTP/1.1\r\n{host}\r\n"), Why::Framing),
            (format!("GET / HTTP/1.2\r\n{host}\r\n"), Why::Framing),
            (format!("GET / HTTP/1.1 \r\n{host}\r\n"), Why::Framing),
            (format!("G@T / HTTP/1.1\r\n{host}\r\n"), Why::Framing),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), Why::Protocol),
        ] {
            match read_head(text.as_bytes()) {
                Read::Wrong(found, _) => assert_eq!(found, why, "{text:?}"),
                other @ (Read::Part | Read::Whole(_)) => panic!("{text:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_head_ends_or_is_refused() {
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(MAX_HEAD));
        assert!(matches!(read_head(endless.as_bytes()), Read::Wrong(Why::Framing, _)));
        assert_eq!(read_head(b"GET / HT"), Read::Part);
        assert!(
            is_http(b"GET") && is_http(b"G") && is_http(b"OPTIONS *") && !is_http(b"\r\nGET /")
        );
        assert!(!is_http(b"SSH-2.0") && !is_http(b"") && !is_http(b"get /"));
        assert!(is_undecided(b"GE") && !is_undecided(b"GET ") && !is_undecided(b"SSH-"));
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_read_once_a_line() {
        let head =
            format!("GET / HTTP/1.1\r\nHost: a.example\r\nX: {}\r\n\r\n", "x".repeat(60_000));
        let bytes = head.as_bytes();
        let news = (1..=bytes.len()).filter(|end| is_news(&bytes[..*end], 1)).count();
        assert_eq!(news, 5, "the first byte, and four ends of lines");
        assert!(is_news(&bytes[..MAX_HEAD.min(bytes.len())], bytes.len()) && is_news(b"G", 1));
        let lines = "a:\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{lines}");
        assert_eq!(read_head(many.as_bytes()), Read::Wrong(Why::Framing, "too many headers"));
    }

    #[test]
    fn chunks_end_where_they_say() {
        let body = b"4\r\nabcd\r\nA\r\n0123456789\r\n0\r\n\r\nGET ";
        for step in [1, 2, 3, 100] {
            let mut chunks = Chunks::START;
            let mut taken = 0;
            for part in body.chunks(step) {
                taken += chunks.take(part).unwrap();
            }
            assert_eq!((chunks, taken), (Chunks::Done, body.len() - 4), "{step}");
        }
        for wrong in [
            &b"4;x=y\r\nabcd\r\n"[..],
            b"4\nabcd",
            b"\r\n",
            b"x\r\n",
            b"4\r\nabcde\r\n",
            b" 4\r\n",
            b"-1\r\n",
            b"0x4\r\n",
            b"0\r\nX: y\r\n\r\n",
            b"fffffffffffffffff\r\n",
            b"4\r\nabcd\n",
        ] {
            assert_eq!(
                Chunks::START.clone().take(wrong),
                None,
                "{:?}",
                String::from_utf8_lossy(wrong)
            );
        }
    }

    #[test]
    fn a_server_gets_a_path_and_no_word_for_the_proxy() {
        let head = whole(
            "GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: s\r\nA: b\r\nConnection: keep-alive\r\n\r\n",
        );
        let text = String::from_utf8(head.for_server("a.example")).unwrap();
        assert_eq!(text, "GET /x HTTP/1.1\r\nHost: a.example\r\nA: b\r\nConnection: close\r\n\r\n");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            read_head(&bytes);
            read_head(&[b"GET / HTTP/1.1\r\n", &bytes[..], b"\r\n\r\n"].concat());
            Chunks::START.clone().take(&bytes);
        }
    }
}
