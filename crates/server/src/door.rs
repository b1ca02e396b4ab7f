//! Who may speak to the server. Pure: it looks at the head of a request and at who sent it.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};

use crate::keys::{self, Keys};
use crate::principal::Principal;
use crate::problem::Problem;
use crate::token::Token;

/// The paths that answer everybody: something must be able to ask whether the server lives.
pub(crate) const HEALTH: &str = "/healthz";
pub(crate) const READY: &str = "/readyz";
/// What there is to ask for, which anybody may know.
pub(crate) const DOCUMENT: &str = "/openapi.json";
pub(crate) const PAGE: &str = "/docs";

/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The Unix socket; the kernel vouches for the user.
    Local { uid: u32 },
    /// A listener on loopback, with its port.
    Loopback { port: u16 },
    /// A listener that others can reach, which an operator asked for.
    Anywhere,
}

#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) own_uid: u32,
    pub(crate) token: Option<Token>,
    pub(crate) keys: Keys,
}

impl Door {
    /// Lets a request in, or says why not. Nobody is who asks only whether the server lives.
    pub(crate) fn admit(
        &self,
        peer: Peer,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<Principal>, Problem> {
        let refused = |detail: &str| Problem::coded("forbidden", detail);
        match peer {
            Peer::Local { uid } if uid == self.own_uid || uid == 0 => {
                return self.local(uid, headers).map(Some);
            }
            Peer::Local { uid } => {
                return Err(refused(&format!(
                    "this server serves uid {} and root, not uid {uid}: start one of your own \
                     with belljar serve",
                    self.own_uid
                )));
            }
            Peer::Loopback { port } if !names_loopback(uri, headers, port) => {
                // A page in a browser can point a name of its own at 127.0.0.1 and then speak to us as
                // if we were its own site; what it cannot change is the name it used.
                return Err(refused(&format!(
                    "the Host header must name this server: localhost:{port} or 127.0.0.1:{port}"
                )));
            }
            Peer::Loopback { .. } | Peer::Anywhere => {}
        }
        if matches!(uri.path(), HEALTH | READY | DOCUMENT | PAGE) {
            return Ok(None);
        }
        let shown = shown(headers);
        // The token is the owner's own, and stays on this host.
        let at_home = matches!(peer, Peer::Loopback { .. });
        let found = shown.and_then(|shown| self.knows(shown, at_home, "tcp"));
        found.map(Some).ok_or_else(unknown)
    }

    /// The kernel vouches for the user. One that shows a key acts as that key, and no further.
    fn local(&self, uid: u32, headers: &HeaderMap) -> Result<Principal, Problem> {
        match shown(headers) {
            Some(shown) if shown.starts_with(keys::PREFIX.as_bytes()) => {
                self.knows(shown, false, "socket").ok_or_else(unknown)
            }
            Some(_) | None => Ok(Principal::local(uid)),
        }
    }

    fn knows(&self, shown: &[u8], with_token: bool, peer: &'static str) -> Option<Principal> {
        let token = self.token.as_ref().filter(|_| with_token);
        if token.is_some_and(|token| token.is(shown)) {
            return Some(Principal::token(peer));
        }
        self.keys.find(shown).map(|key| Principal::key(&key, peer))
    }
}

fn unknown() -> Problem {
    let detail = "needs the header Authorization: Bearer KEY, with a key of belljar key create, or on \
                  loopback the token; belljar serve said at its start where that is";
    Problem::coded("unauthorized", detail)
}

/// The key or token that a request shows: as Authorization, or as the header that clients of others send. One alone.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let mut keys = headers.get_all("x-api-key").iter();
    let value = match (given.next(), keys.next(), given.next(), keys.next()) {
        (Some(value), None, None, None) => {
            // The scheme's name has no case (RFC 9110), the token has.
            let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)?
        }
        (None, Some(value), None, None) => value.as_bytes(),
        _ => return None,
    };
    Some(value.trim_ascii()).filter(|value| !value.is_empty())
}

/// Whether every name by which the request calls us is loopback's. None at all is fine: browsers always
/// send one.
fn names_loopback(uri: &Uri, headers: &HeaderMap, port: u16) -> bool {
    let headers = headers.get_all(HOST).iter().map(|value| {
        let text = value.to_str().ok();
        text.and_then(|text| text.parse::<Authority>().ok())
    });
    let absolute = uri.authority().map(|one| Some(one.clone()));
    let mut names = headers.chain(absolute);
    names.all(|name| name.is_some_and(|name| is_loopback(&name, port)))
}

fn is_loopback(name: &Authority, port: u16) -> bool {
    let host = name.host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let ours = host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|one| match one {
            IpAddr::V4(one) => one.is_loopback(),
            IpAddr::V6(one) => one == Ipv6Addr::LOCALHOST,
        });
    // Compared whole, so that neither a user's name nor a port that is none passes.
    let text = name.as_str();
    ours && (text == host || text == format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";
    const LOOPBACK: Peer = Peer::Loopback { port: 7070 };

    fn answer(peer: Peer, path: &str, headers: &[(&str, &str)]) -> u16 {
        let keys = Keys::new("/nonexistent".into());
        let door = Door { own_uid: 1000, token: Token::check("test", TOKEN).ok(), keys };
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        door.admit(peer, &head.uri, &head.headers).map_or_else(|problem| problem.status, |_| 200)
    }

    #[test]
    fn the_socket_serves_its_owner_and_root() {
        let of = |uid| answer(Peer::Local { uid }, "/v1/runs", &[]);
        assert_eq!([of(1000), of(0), of(1001), of(65534)], [200, 200, 403, 403]);
        assert_eq!(answer(Peer::Local { uid: 1001 }, HEALTH, &[]), 403);
    }

    #[test]
    fn tcp_needs_the_token() {
        let with = |value: &str| answer(LOOPBACK, "/v1/runs", &[("authorization", value)]);
        assert_eq!(with("Bearer 0123456789abcdef"), 200);
        assert_eq!(with("bearer 0123456789abcdef"), 200);
        for wrong in ["", "Bearer", "Bearer ", "Bearer x", "Basic 0123456789abcdef", TOKEN, "é"] {
            assert_eq!(with(wrong), 401, "{wrong}");
        }
        assert_eq!(answer(LOOPBACK, "/v1/runs", &[]), 401);
        assert_eq!(answer(LOOPBACK, "/nowhere", &[]), 401);
        let twice = [("authorization", "Bearer 0123456789abcdef"), ("authorization", "Bearer x")];
        assert_eq!(answer(LOOPBACK, "/v1/runs", &twice), 401);
        assert_eq!(answer(Peer::Anywhere, "/v1/runs", &[]), 401);
        let right = ("authorization", "Bearer 0123456789abcdef");
        assert_eq!(answer(Peer::Anywhere, "/v1/runs", &[right]), 401, "the token stays at home");
        assert_eq!(answer(LOOPBACK, "/v1/runs", &[("x-api-key", TOKEN)]), 200);
        assert_eq!(answer(LOOPBACK, "/v1/runs", &[("x-api-key", TOKEN), right]), 401, "one alone");
        assert_eq!(answer(LOOPBACK, HEALTH, &[]), 200);
        assert_eq!(answer(LOOPBACK, "/healthz/../v1/runs", &[]), 401);
    }

    #[test]
    fn a_name_that_is_not_loopbacks_is_refused_before_anything_else() {
        let host = |name: &str| answer(LOOPBACK, HEALTH, &[("host", name)]);
        for fine in
            ["localhost:7070", "LOCALHOST", "127.0.0.1:7070", "127.1.2.3", "[::1]:7070", "[::1]"]
        {
            assert_eq!(host(fine), 200, "{fine}");
        }
        for wrong in [
            "evil.example:7070",
            "localhost.evil.example",
            "localhost:7071",
            "evil@localhost:7070",
            "localhost:7070@evil",
            "127.0.0.1.evil.example",
            "10.0.0.1:7070",
            "[::ffff:127.0.0.1]",
            "localhost:07070",
            "",
        ] {
            assert_eq!(host(wrong), 403, "{wrong}");
        }
        assert_eq!(answer(LOOPBACK, "http://evil.example/healthz", &[("host", "localhost")]), 403);
        assert_eq!(answer(LOOPBACK, HEALTH, &[("host", "localhost"), ("host", "evil")]), 403);
    }
}
