//! One request's head, read strictly and written anew with values in place of placeholders.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::asks::asks;
use crate::carry::{Peer, Trouble};
use crate::swap::Swap;

/// Headers by which hosts are shown who asks. In others a value could be put where a host keeps it for everybody to read:
/// the metadata of an object, the name of a client.
const AUTHORIZING: [&str; 16] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "apikey",
    "x-apikey",
    "x-api-token",
    "x-auth-key",
    "x-auth-token",
    "x-access-token",
    "private-token",
    "job-token",
    "x-goog-api-key",
    "x-vault-token",
    "dd-api-key",
    "x-subscription-token",
];

/// The longest head, and the most headers.
pub(crate) const MAX_HEAD: usize = 64 << 10;
pub(crate) const MAX_HEADERS: usize = 256;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Length(u64),
    Chunked,
    /// Of answers alone.
    UntilClosed,
}

/// A head on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub method: String,
    pub target: String,
    /// What a server may take it for: methods and paths.
    pub asks: Vec<(String, String)>,
    /// As the server gets them, but for what says how long the body is.
    lines: Vec<String>,
    pub body: Body,
    /// It waits to be told to go on before it sends the body. We tell it; the host is not asked.
    pub waits: bool,
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
        if ["TRACE", "TRACK"].iter().any(|known| is(method, known)) {
            // The answer to it is the request, with all that it holds.
            let path = target.split('?').next().unwrap_or_default();
            return Err(Trouble::Refused(format!("{method} {path}")));
        }
        if headers.iter().any(|(name, _)| is(name, "upgrade")) {
            return Err(Trouble::Framing("an upgrade to what cannot be looked at"));
        }
        let body = body(&headers).ok_or(Trouble::Framing("a body whose end is not certain"))?;
        // Without the query, which may hold a value by now.
        let path = target.split('?').next().unwrap_or_default();
        let named = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let asks = asks(method, path, named).ok_or(Trouble::Framing("too many methods"))?;
        let target = swapped_target(target, host, swap)?;
        let mut out = Vec::new();
        let is_sent = swap.is_sent_to(host);
        for (name, value) in &headers {
            let drops = ["content-length", "expect", "transfer-encoding", "te", "trailer"];
            if drops.iter().any(|drop| is(name, drop)) || is_sent && is(name, "accept-encoding") {
                continue;
            }
            let value = swapped_value(name, value, host, swap)?;
            swap.check(name.as_bytes()).map_err(Trouble::Stray)?;
            out.push(format!("{name}: {value}"));
        }
        if is_sent {
            // What comes back compressed could not be looked at.
            out.push("Accept-Encoding: identity".to_owned());
        }
        let waits =
            headers.iter().any(|(name, value)| is(name, "expect") && is(value, "100-continue"));
        let method = method.to_owned();
        Ok(Some(Self { method, target, asks, lines: out, body, waits, length: end + 4 }))
    }

    /// As the server gets it, with a body of this kind.
    pub(crate) fn written(&self, body: Body) -> Vec<u8> {
        let framing = match body {
            Body::Length(0) if self.body == Body::Length(0) && !self.may_have_body() => {
                String::new()
            }
            Body::Length(length) => format!("Content-Length: {length}\r\n"),
            Body::Chunked | Body::UntilClosed => "Transfer-Encoding: chunked\r\n".to_owned(),
        };
        let lines = self.lines.iter().map(|line| format!("{line}\r\n")).collect::<String>();
        format!("{} {} HTTP/1.1\r\n{lines}{framing}\r\n", self.method, self.target).into_bytes()
    }

    fn may_have_body(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }
}

pub(crate) fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

pub(crate) fn is_token(byte: u8) -> bool {
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

/// A header's value: where it authorizes, a placeholder that is all of it, all behind a scheme, all of a scheme's parameter, or
/// the name or the password of Basic authorization, becomes its secret. One that stands anywhere else is stray.
fn swapped_value(name: &str, value: &str, host: &str, swap: &Swap) -> Result<String, Trouble> {
    let (scheme, rest) = match value.split_once(' ') {
        Some((scheme, rest)) if scheme.bytes().all(is_token) => (scheme, rest.trim_start()),
        _ => ("", value),
    };
    let decoded = is(scheme, "basic").then(|| STANDARD.decode(rest.trim()).ok()).flatten();
    let inner = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let swapped = match &inner {
        Some(inner) => {
            let (user, password) = inner.split_once(':').unwrap_or((inner, ""));
            let user = put_in(name, user, host, swap)?;
            let password = put_in(name, password, host, swap)?;
            let whole = if inner.contains(':') { format!("{user}:{password}") } else { user };
            (whole != *inner).then(|| format!("{scheme} {}", STANDARD.encode(whole)))
        }
        None => {
            let put = match put_in_parameter(name, rest, host, swap)? {
                Some(put) => put,
                None => put_in(name, rest, host, swap)?,
            };
            let space = if scheme.is_empty() { "" } else { " " };
            (put != rest).then(|| format!("{scheme}{space}{put}"))
        }
    };
    // Where nothing was put in, none may stand across its parts either.
    swap.check(if swapped.is_some() { scheme } else { value }.as_bytes())
        .map_err(Trouble::Stray)?;
    let value = swapped.unwrap_or_else(|| value.to_owned());
    // A value of many lines would say more than one header.
    let visible = value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control());
    if visible {
        Ok(value)
    } else {
        Err(Trouble::Framing("a secret of more than one line in a header"))
    }
}

/// The value of the placeholder that this is, or the text itself, which holds none.
fn put_in(name: &str, text: &str, host: &str, swap: &Swap) -> Result<String, Trouble> {
    if let Some(value) = value_of(name, text, host, swap) {
        return Ok(value.to_owned());
    }
    swap.check(text.as_bytes()).map_err(Trouble::Stray)?;
    Ok(text.to_owned())
}

fn value_of<'a>(name: &str, text: &str, host: &str, swap: &'a Swap) -> Option<&'a str> {
    let known = |headers: &[String]| headers.iter().any(|own| is(name, own));
    let usual = AUTHORIZING.iter().any(|own| is(name, own));
    let mut own = swap.bindings().iter().filter(|one| one.is_for(host));
    let found = own.find(|one| one.placeholder == text && (usual || known(&one.headers)));
    found.map(|one| one.value.as_str())
}

/// The same for parameters, as in `Token token="…", id=7`; `None` where no parameter is a placeholder.
fn put_in_parameter(
    name: &str,
    text: &str,
    host: &str,
    swap: &Swap,
) -> Result<Option<String>, Trouble> {
    if !["authorization", "proxy-authorization"].iter().any(|own| is(name, own)) {
        return Ok(None);
    }
    let (mut whole, mut rest, mut found) = (Vec::new(), Vec::new(), false);
    for part in text.split(',') {
        let (key, said) = part.split_once('=').unwrap_or(("", ""));
        let bare = said.strip_prefix('"').and_then(|one| one.strip_suffix('"')).unwrap_or(said);
        let plain = !key.is_empty() && key.trim_start().bytes().all(is_token);
        let Some(value) = value_of(name, bare, host, swap).filter(|_| plain) else {
            rest.push(part.to_owned());
            whole.push(part.to_owned());
            continue;
        };
        // It must stay one parameter.
        let breaks = if said == bare { "\"\\, ;" } else { "\"\\" };
        if value.contains(|one| breaks.contains(one)) {
            return Err(Trouble::Framing("a secret that cannot be a parameter of a header"));
        }
        found = true;
        rest.push(key.to_owned());
        whole.push(format!("{key}={}", said.replace(bare, value)));
    }
    if !found {
        return Ok(None);
    }
    swap.check(rest.join(",").as_bytes()).map_err(Trouble::Stray)?;
    Ok(Some(whole.join(",")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::swap::{Binding, Stray};

    const TOKEN: &str = "bjph_abcdefghijkmnpqrstuvwxyz23456789abcdefgh";

    const PEER: Peer<'_> = Peer { host: "a.example", port: 443 };

    fn swap(in_query: bool) -> Swap {
        let hosts = vec!["a.example".to_owned()];
        let value = "s3c/r3t &x".to_owned();
        let placeholder = TOKEN.to_owned();
        let headers = vec!["x-own-key".to_owned()];
        let own = Binding { placeholder, value, hosts, in_query, headers, ..Binding::default() };
        Swap::new(vec![own], &[])
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
        let wanted = "GET /x HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer s3c/r3t &x\r\nAccept-Encoding: identity\r\n\r\n";
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
    fn a_value_stands_only_where_it_authorizes_and_alone() {
        let basic = |inner: &str| format!("Basic {}", STANDARD.encode(inner));
        for (name, value, wanted) in [
            ("Authorization", TOKEN.to_owned(), "s3c/r3t &x".to_owned()),
            ("X-Api-Key", TOKEN.to_owned(), "s3c/r3t &x".to_owned()),
            ("PRIVATE-TOKEN", TOKEN.to_owned(), "s3c/r3t &x".to_owned()),
            ("X-Own-Key", TOKEN.to_owned(), "s3c/r3t &x".to_owned()),
            ("Authorization", format!("token  {TOKEN}"), "token s3c/r3t &x".to_owned()),
            ("Authorization", basic(&format!("{TOKEN}:x")), basic("s3c/r3t &x:x")),
            ("Authorization", basic(TOKEN), basic("s3c/r3t &x")),
            ("User-Agent", "curl/8 (x; y)".to_owned(), "curl/8 (x; y)".to_owned()),
        ] {
            let sent = read(&get("/", &format!("{name}: {value}\r\n")), false).unwrap();
            assert!(sent.contains(&format!("{name}: {wanted}\r\n")), "{name} {value}: {sent}");
        }
        for (name, value) in [
            ("User-Agent", TOKEN.to_owned()),
            ("Cookie", format!("session={TOKEN}")),
            ("X-Amz-Meta-Note", TOKEN.to_owned()),
            ("X-Goog-Meta-Note", format!("Bearer {TOKEN}")),
            ("Referer", format!("https://a.example/{TOKEN}")),
            ("Authorization", format!("Bearer x{TOKEN}")),
            ("Authorization", format!("Bearer {TOKEN} {TOKEN}")),
            ("Authorization", format!("{TOKEN} x")),
            ("Authorization", basic(&format!("user:x{TOKEN}"))),
            ("X-Amz-Meta-Note", basic(&format!("user:{TOKEN}"))),
        ] {
            let sent = read(&get("/", &format!("{name}: {value}\r\n")), false);
            assert_eq!(sent, Err(Trouble::Stray(Stray::Token(0))), "{name}: {value}");
        }
    }

    #[test]
    fn a_value_is_all_of_a_parameter_of_what_authorizes() {
        let put = |text: &str| read(&get("/", &format!("Authorization: {text}\r\n")), false);
        let found = put(&format!("Token id=7, token=\"{TOKEN}\"")).unwrap();
        assert!(found.contains("Authorization: Token id=7, token=\"s3c/r3t &x\"\r\n"), "{found}");
        let framing = "a secret that cannot be a parameter of a header";
        assert_eq!(put(&format!("Token token={TOKEN}")), Err(Trouble::Framing(framing)));
        for stray in [
            format!("Token token=x{TOKEN}"),
            format!("Token token=\"{TOKEN}\", note=x{TOKEN}"),
            format!("Token token=\"{TOKEN}\", {TOKEN}"),
            format!("Token token=\"{TOKEN}"),
        ] {
            assert_eq!(put(&stray), Err(Trouble::Stray(Stray::Token(0))), "{stray}");
        }
        let other = get("/", &format!("X-Api-Key: token=\"{TOKEN}\"\r\n"));
        assert_eq!(read(&other, false), Err(Trouble::Stray(Stray::Token(0))), "no such header");
    }

    #[test]
    fn requests_that_are_answered_by_themselves_are_refused() {
        for method in ["TRACE", "TRACK", "trace"] {
            let text = get("/x?y", "").replace("GET", method);
            assert_eq!(read(&text, false), Err(Trouble::Refused(format!("{method} /x"))));
        }
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
