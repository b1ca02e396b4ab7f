//! Who may speak to the server. Pure: it looks at the head of a request and at who sent it.

use std::net::{IpAddr, Ipv6Addr};

use belljar::audit::Caller;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;

use crate::problem::Problem;
use crate::token::Token;

/// The one path that answers everybody: something must be able to ask whether the server lives.
pub(crate) const HEALTH: &str = "/healthz";

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

impl Peer {
    /// Who speaks, for records and limits, once they were let in.
    pub(crate) fn caller(self) -> Caller {
        match self {
            Self::Local { uid } => Caller { uid: Some(uid), key: None, peer: "socket" },
            // Whoever knows the one token there is.
            Self::Loopback { .. } | Self::Anywhere => {
                Caller { uid: None, key: Some("token".to_owned()), peer: "tcp" }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) own_uid: u32,
    pub(crate) token: Option<Token>,
}

impl Door {
    /// Lets a request in, or says why not.
    pub(crate) fn admit(&self, peer: Peer, head: &Parts) -> Result<(), Problem> {
        let refused = |detail: &str| Problem::new(StatusCode::FORBIDDEN, "forbidden", detail);
        match peer {
            Peer::Local { uid } if uid == self.own_uid || uid == 0 => return Ok(()),
            Peer::Local { uid } => {
                return Err(refused(&format!(
                    "this server serves uid {} and root, not uid {uid}: start one of your own \
                     with belljar serve",
                    self.own_uid
                )));
            }
            Peer::Loopback { port } if !names_loopback(head, port) => {
                // A page in a browser can point a name of its own at 127.0.0.1 and then speak to us as
                // if we were its own site; what it cannot change is the name it used.
                return Err(refused(&format!(
                    "the Host header must name this server: localhost:{port} or 127.0.0.1:{port}"
                )));
            }
            Peer::Loopback { .. } | Peer::Anywhere => {}
        }
        if head.uri.path() == HEALTH || self.token.as_ref().is_some_and(|one| knows(one, head)) {
            return Ok(());
        }
        let detail = "needs the header Authorization: Bearer TOKEN; belljar serve said at its \
                      start where the token is";
        Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail))
    }
}

fn knows(token: &Token, head: &Parts) -> bool {
    let mut given = head.headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return false };
    let bytes = value.as_bytes();
    // The scheme's name has no case (RFC 9110), the token has.
    bytes.split_at_checked(7).is_some_and(|(scheme, rest)| {
        scheme.eq_ignore_ascii_case(b"bearer ") && token.is(rest.trim_ascii())
    })
}

/// Whether every name by which the request calls us is loopback's. None at all is fine: browsers always
/// send one.
fn names_loopback(head: &Parts, port: u16) -> bool {
    let headers = head.headers.get_all(HOST).iter().map(|value| {
        let text = value.to_str().ok();
        text.and_then(|text| text.parse::<Authority>().ok())
    });
    let absolute = head.uri.authority().map(|one| Some(one.clone()));
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
        let door = Door { own_uid: 1000, token: Token::check("test", TOKEN).ok() };
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        door.admit(peer, &head).map_or_else(|problem| problem.status, |()| 200)
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
