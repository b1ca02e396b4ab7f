//! One request's head, read strictly and written anew with values in place of placeholders.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::carry::{Peer, Trouble};
use crate::swap::{Binding, Swap};

/// The longest head, and the most headers.
pub(crate) const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 256;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Length(u64),
    Chunked,
}

/// A head on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub method: String,
    pub target: String,
    /// As the server gets them, but for what says how long the body is.
    lines: Vec<String>,
    pub body: Body,
    /// Where it ended in what was read.
    pub length: usize,
}

impl Head {
    /// Reads one, if it is whole.
    pub(crate) fn read(bytes: &[u8], peer: Peer<'_>, swap: &Swap) -> Result<Option<Self>, Trouble> {
        let host = peer.host;
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if bytes.len() > MAX_HEAD {
                Err(Trouble::Framing("a head that does not end"))
            } else {
                Ok(None)
            };
        };
        let text = std::str::from_utf8(&bytes[..end])
            .map_err(|_| Trouble::Framing("a head that is no text"))?;
        let is_bare = |line: &str| line.contains(['\r', '\n', '\0']);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let (method, target) = request_line(first).ok_or(Trouble::Framing("a request line"))?;
        let mut headers = Vec::new();
        for line in lines {
            let header = header(line).filter(|_| !is_bare(line));
            headers.push(header.ok_or(Trouble::Framing("a header line"))?);
        }
        if headers.len() > MAX_HEADERS || is_bare(first) {
            return Err(Trouble::Framing("too many headers"));
        }
        check_host(&headers, peer)?;
        if headers.iter().any(|(name, _)| is(name, "upgrade")) {
            return Err(Trouble::Framing("an upgrade to what cannot be looked at"));
        }
        let body = body(&headers).ok_or(Trouble::Framing("a body whose end is not certain"))?;
        let target = swapped_target(target, host, swap)?;
        let mut out = Vec::new();
        for (name, value) in &headers {
            // What comes back compressed could not be looked at.
            let drops = ["accept-encoding", "content-length", "transfer-encoding", "te", "trailer"];
            if drops.iter().any(|drop| is(name, drop)) {
                continue;
            }
            let value = swapped_value(name, value, host, swap)?;
            swap.check(name.as_bytes()).map_err(Trouble::Stray)?;
            out.push(format!("{name}: {value}"));
        }
        let method = method.to_owned();
        Ok(Some(Self { method, target, lines: out, body, length: end + 4 }))
    }

    /// As the server gets it, with a body of this kind.
    pub(crate) fn written(&self, body: Body) -> Vec<u8> {
        let framing = match body {
            Body::Length(0) if self.body == Body::Length(0) && !self.may_have_body() => {
                String::new()
            }
            Body::Length(length) => format!("Content-Length: {length}\r\n"),
            Body::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        };
        let lines = self.lines.iter().map(|line| format!("{line}\r\n")).collect::<String>();
        format!("{} {} HTTP/1.1\r\n{lines}{framing}\r\n", self.method, self.target).into_bytes()
    }

    fn may_have_body(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }
}

fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn request_line(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.split(' ');
    let (method, target) = (parts.next()?, parts.next()?);
    let plain = !method.is_empty() && method.len() <= 32 && method.bytes().all(is_token);
    let visible = (target.starts_with('/') || target == "*")
        && target.bytes().all(|byte| byte.is_ascii_graphic());
    let whole = parts.next() == Some("HTTP/1.1") && parts.next().is_none();
    (plain && visible && whole && method != "CONNECT").then_some((method, target))
}

/// A name that a colon follows at once; a line that continues another is none.
fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let visible = |byte: u8| byte == b'\t' || !byte.is_ascii_control();
    let plain = !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(visible);
    plain.then(|| (name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

/// Said once, and the one that was dialled.
fn check_host(headers: &[(String, String)], peer: Peer<'_>) -> Result<(), Trouble> {
    let mut hosts = headers.iter().filter(|(name, _)| is(name, "host"));
    let (first, second) = (hosts.next(), hosts.next());
    let said = first.filter(|_| second.is_none()).map(|(_, value)| value.as_str());
    let said = said.ok_or(Trouble::Host(String::new()))?;
    let (bare, port) = match said.rsplit_once(':') {
        Some((bare, port)) => (bare, Some(port)),
        None => (said, None),
    };
    let same = bare.eq_ignore_ascii_case(peer.host)
        && port.is_none_or(|port| port == peer.port.to_string());
    if same { Ok(()) } else { Err(Trouble::Host(said.to_owned())) }
}

fn body(headers: &[(String, String)]) -> Option<Body> {
    let all = |known: &str| {
        let found = headers.iter().filter(|(name, _)| is(name, known));
        found.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    match (all("transfer-encoding").as_slice(), all("content-length").as_slice()) {
        ([], []) => Some(Body::Length(0)),
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => Some(Body::Chunked),
        ([], [length])
            if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            length.parse().ok().map(Body::Length)
        }
        _ => None,
    }
}

/// In the query only, and only where asked; there a value is escaped.
fn swapped_target(target: &str, host: &str, swap: &Swap) -> Result<String, Trouble> {
    let (path, query) =
        target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    swap.check(path.as_bytes()).map_err(Trouble::Stray)?;
    let Some(query) = query else { return Ok(path.to_owned()) };
    let mut query = query.to_owned();
    for one in swap.bindings().iter().filter(|one| one.in_query && one.is_for(host)) {
        query = query.replace(&one.placeholder, &escaped(&one.value));
    }
    swap.check(query.as_bytes()).map_err(Trouble::Stray)?;
    Ok(format!("{path}?{query}"))
}

fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    value.bytes().map(one).collect()
}

/// A header's value; also inside of what Basic authorization encodes.
fn swapped_value(name: &str, value: &str, host: &str, swap: &Swap) -> Result<String, Trouble> {
    let everywhere = |_: &Binding| true;
    let authorizes = is(name, "authorization") || is(name, "proxy-authorization");
    let basic = value.get(..6).filter(|word| authorizes && word.eq_ignore_ascii_case("basic "));
    let decoded = basic.and_then(|_| STANDARD.decode(value.get(6..)?.trim()).ok());
    let value = match decoded.and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(inner) => {
            let inner = swap.replace(host, &inner, everywhere).map_err(Trouble::Stray)?;
            format!("Basic {}", STANDARD.encode(inner))
        }
        None => swap.replace(host, value, everywhere).map_err(Trouble::Stray)?,
    };
    // A value of many lines would say more than one header.
    let visible = value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control());
    if visible {
        Ok(value)
    } else {
        Err(Trouble::Framing("a secret of more than one line in a header"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::swap::Stray;

    const TOKEN: &str = "bjph_abcdefghijkmnpqrstuvwxyz23456789abcdefgh";

    const PEER: Peer<'_> = Peer { host: "a.example", port: 443 };

    fn swap(in_query: bool) -> Swap {
        let hosts = vec!["a.example".to_owned()];
        let value = "s3c/r3t &x".to_owned();
        let placeholder = TOKEN.to_owned();
        Swap::new(vec![Binding { placeholder, value, hosts, in_query, ..Binding::default() }], &[])
    }

    fn read(text: &str, in_query: bool) -> Result<String, Trouble> {
        let head = Head::read(text.as_bytes(), PEER, &swap(in_query))?.unwrap();
        Ok(String::from_utf8(head.written(head.body)).unwrap())
    }

    fn get(target: &str, headers: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n")
    }

    #[test]
    fn values_stand_in_headers_and_where_else_it_was_asked() {
        let sent = read(
            &get("/x", &format!("Authorization: Bearer {TOKEN}\r\nAccept-Encoding: gzip\r\n")),
            false,
        );
        let wanted =
            "GET /x HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer s3c/r3t &x\r\n\r\n";
        assert_eq!(sent.unwrap(), wanted);
        let basic = STANDARD.encode(format!("user:{TOKEN}"));
        let sent = read(&get("/", &format!("Authorization: Basic {basic}\r\n")), false).unwrap();
        let wanted = STANDARD.encode("user:s3c/r3t &x");
        assert!(sent.contains(&format!("Authorization: Basic {wanted}\r\n")), "{sent}");
        let sent = read(&get(&format!("/p?k={TOKEN}&l=1"), ""), true).unwrap();
        assert!(sent.starts_with("GET /p?k=s3c%2Fr3t%20%26x&l=1 HTTP/1.1"), "{sent}");
        for target in [format!("/p?k={TOKEN}"), format!("/{TOKEN}")] {
            assert_eq!(
                read(&get(&target, ""), false),
                Err(Trouble::Stray(Stray::Token(0))),
                "{target}"
            );
        }
        assert_eq!(
            read(&get(&format!("/{TOKEN}?a"), ""), true),
            Err(Trouble::Stray(Stray::Token(0)))
        );
        let hidden = format!("X: {}\r\n", STANDARD.encode(TOKEN));
        assert_eq!(
            read(&get("/", &hidden), false),
            Err(Trouble::Stray(Stray::Token(0))),
            "in disguise"
        );
    }

    #[test]
    fn bodies_are_told_in_one_way() {
        let post =
            |headers: &str| format!("POST / HTTP/1.1\r\nHost: a.example:443\r\n{headers}\r\n");
        assert!(
            read(&post("Content-Length: 12\r\n"), false)
                .unwrap()
                .contains("Content-Length: 12\r\n")
        );
        assert!(
            read(&post("Transfer-Encoding: chunked\r\n"), false)
                .unwrap()
                .contains("Transfer-Encoding: chunked")
        );
        assert!(read(&post(""), false).unwrap().contains("Content-Length: 0\r\n"));
        for wrong in [
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: +1\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Upgrade: websocket\r\n",
            "X: 1\r\n folded\r\n",
            "X : 1\r\n",
            "X: a\nb\r\n",
        ] {
            assert!(matches!(read(&post(wrong), false), Err(Trouble::Framing(_))), "{wrong:?}");
        }
    }

    #[test]
    fn every_request_is_for_the_host_that_was_dialled() {
        for text in [
            "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example:8443\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
        ] {
            assert!(matches!(read(text, false), Err(Trouble::Host(_))), "{text:?}");
        }
        for text in [
            "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a.example\r\n\r\n",
        ] {
            assert!(matches!(read(text, false), Err(Trouble::Framing(_))), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let whole = [b"GET / HTTP/1.1\r\nHost: a.example\r\n", &bytes[..], b"\r\n\r\n"].concat();
            Head::read(&bytes, PEER, &swap(true)).ok();
            Head::read(&whole, PEER, &swap(true)).ok();
        }
    }
}
