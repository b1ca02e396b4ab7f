//! Clients that want a proxy: HTTP CONNECT, requests for a whole address, and SOCKS5, on one port.
//!
//! They say where they want to go, in words that are checked by the same parser as everything else; from there on a
//! connection is like any other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use belljar_jail::egress::Why;
use tokio::net::TcpStream;

use crate::door::{Refusal, Shared, stream_of};
use crate::http::{self, Form, Head, Read};
use crate::names::Target;
use crate::policy::Grant;
use crate::relay::{Meter, Way, pump, read_some, send, write_all};
use crate::stream::{self, Asked};

/// How long a client may take to say where it wants to go.
const GREETING: Duration = Duration::from_secs(30);
const SOCKS5: u8 = 5;

pub(crate) async fn serve(shared: &Rc<Shared>, client: &TcpStream) {
    let mut bytes = Vec::new();
    let greeted = tokio::time::timeout(GREETING, read_some(client, &mut bytes)).await;
    if !matches!(greeted, Ok(Ok(length)) if length > 0) {
        return;
    }
    if bytes.first() == Some(&SOCKS5) {
        socks(shared, client, bytes).await;
    } else {
        words(shared, client, bytes).await;
    }
}

async fn words(shared: &Rc<Shared>, client: &TcpStream, mut bytes: Vec<u8>) {
    let head = async {
        let mut came = bytes.len();
        loop {
            if http::is_news(&bytes, came) {
                match http::read_head(&bytes) {
                    Read::Whole(head) => return Ok(head),
                    Read::Wrong(why, what) => return Err(Some((why, what))),
                    Read::Part => {}
                }
            }
            match read_some(client, &mut bytes).await {
                Ok(length) if length > 0 => came = length,
                Ok(_) | Err(_) => return Err(None),
            }
        }
    };
    let head = match tokio::time::timeout(GREETING, head).await {
        Ok(Ok(head)) => head,
        Ok(Err(None)) | Err(_) => return,
        Ok(Err(Some((why, what)))) => {
            shared.ledger.refuse(stream_of(client), ("", 0, why, what)).await;
            return say_no(client, "400 Bad Request", what).await;
        }
    };
    let rest = bytes.split_off(head.length);
    let said = authority(&bytes);
    match &head.form {
        Form::Authority(target, port) => {
            let asked = Asked { target: target.clone(), port: *port };
            // Bytes before the answer would be for whom nobody has agreed to yet.
            if !rest.is_empty() {
                let refusal = Refusal::new(Why::Framing, "bytes before it was answered");
                shared.note(client, &asked, &refusal).await;
                return say_no(client, "400 Bad Request", &refusal.words(&asked)).await;
            }
            connect(shared, client, &asked, said).await;
        }
        Form::Absolute(target, port, _) => {
            let asked = Asked { target: target.clone(), port: *port };
            let ended = match shared.check_words(&asked, said) {
                Ok(()) => request(shared, client, &asked, &head, rest).await,
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = ended {
                shared.note(client, &asked, &refusal).await;
                if !refusal.is_broken() {
                    say_no(client, "403 Forbidden", &refusal.words(&asked)).await;
                }
            }
        }
        Form::Origin(_) => {
            let words = "this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT";
            say_no(client, "400 Bad Request", words).await;
        }
    }
}

/// The host of a request line as it was written: all that is neither method nor path.
fn authority(head: &[u8]) -> &[u8] {
    let target = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let start = http::find(target, b"://").map_or(0, |at| at + 3);
    target[start..].split(|byte| b"/?#".contains(byte)).next().unwrap_or_default()
}

async fn connect(shared: &Rc<Shared>, client: &TcpStream, asked: &Asked, said: &[u8]) {
    let server = match dial(shared, asked, said).await {
        Ok(server) => server,
        Err(refusal) => {
            shared.note(client, asked, &refusal).await;
            let status = if refusal.why() == Some(Why::Unreachable) {
                "502 Bad Gateway"
            } else {
                "403 Forbidden"
            };
            return say_no(client, status, &refusal.words(asked)).await;
        }
    };
    if write_all(client, b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_err() {
        return;
    }
    finish(shared, client, asked, server).await;
}

/// `said` is in which words it was asked for.
async fn dial(
    shared: &Rc<Shared>,
    asked: &Asked,
    said: &[u8],
) -> Result<(TcpStream, Grant), Refusal> {
    shared.check_words(asked, said)?;
    let grant = shared.grant(asked)?;
    Ok((shared.dial(asked, &grant).await?, grant))
}

async fn finish(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    server: (TcpStream, Grant),
) {
    if let Err(refusal) = stream::carry(shared, client, asked, Some(server)).await {
        shared.note(client, asked, &refusal).await;
    }
}

/// One request, on a connection of its own: the next may be for another host.
async fn request(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    head: &Head,
    mut rest: Vec<u8>,
) -> Result<(), Refusal> {
    if !head.agrees(&asked.target, asked.port) {
        return Err(Refusal::new(Why::Host, "another Host than the target's"));
    }
    if head.upgrade {
        return Err(Refusal::new(Why::Protocol, "an upgrade through a proxy: use CONNECT"));
    }
    let grant = shared.grant(asked)?;
    stream::requests::may_ask(&grant, head)?;
    let server = shared.dial(asked, &grant).await?;
    let line = shared.ledger.reach(&asked.target.to_string(), asked.port);
    let meter = Meter::new(shared, line, &asked.target.to_string());
    head.asks().iter().flatten().for_each(|(method, path)| meter.ask(method, path));
    let may_go_on = |now: &Grant| meter.may_go_on(now) && stream::leads_where_it_may(&server, now);
    let host = match asked.port {
        80 => asked.target.to_string(),
        port => format!("{}:{port}", asked.target),
    };
    let carried = async {
        let head_bytes = head.for_server(&host);
        send(&server, &head_bytes, &meter, Way::Out).await.map_err(Refusal::broken)?;
        let asking = stream::requests::body(client, &server, head.body, &mut rest, &meter);
        let answering = pump(&server, client, &meter, Way::In);
        tokio::pin!(asking, answering);
        tokio::select! {
            sent = &mut asking => sent?,
            // A server may answer before it has read all.
            answered = &mut answering => return answered.map_err(Refusal::broken),
        }
        answering.await.map_err(Refusal::broken)
    };
    tokio::select! {
        biased; // before the first byte passes
        () = shared.withdrawn(asked, &grant, may_go_on) => Err(Refusal::new(Why::Tightened, "")),
        ended = carried => ended,
        () = meter.idle(shared.budget.idle) => Err(Refusal::broken(io::ErrorKind::TimedOut.into())),
    }
}

async fn say_no(client: &TcpStream, status: &str, words: &str) {
    stream::requests::say_no(client, status, words).await;
}

/// What a SOCKS request asks for; the error is the reply that it gets.
fn socks_target(bytes: &[u8]) -> Option<Result<(Asked, usize), u8>> {
    const NOT_SUPPORTED: u8 = 7;
    const NO_SUCH_KIND: u8 = 8;
    const NOT_ALLOWED: u8 = 2;
    let [version, command, _, kind] = *bytes.first_chunk::<4>()?;
    if version != SOCKS5 || command != 1 {
        return Some(Err(NOT_SUPPORTED));
    }
    let rest = &bytes[4..];
    let (target, length) = match kind {
        1 => (Some(Target::Address(IpAddr::from(Ipv4Addr::from(*rest.first_chunk::<4>()?)))), 4),
        4 => (Some(Target::Address(IpAddr::from(Ipv6Addr::from(*rest.first_chunk::<16>()?)))), 16),
        3 => {
            let length = usize::from(*rest.first()?);
            let name = std::str::from_utf8(rest.get(1..=length)?).ok();
            (name.and_then(Target::parse), 1 + length)
        }
        _ => return Some(Err(NO_SUCH_KIND)),
    };
    let port = u16::from_be_bytes(*rest.get(length..)?.first_chunk::<2>()?);
    Some(target.map(|target| (Asked { target, port }, 4 + length + 2)).ok_or(NOT_ALLOWED))
}

async fn socks(shared: &Rc<Shared>, client: &TcpStream, mut bytes: Vec<u8>) {
    let greeted = tokio::time::timeout(GREETING, greet(client, &mut bytes)).await;
    let asked = match greeted {
        Ok(Ok(Ok(asked))) => asked,
        Ok(Ok(Err(reply))) => {
            let what = ("", 0, Why::Protocol, "a SOCKS request");
            shared.ledger.refuse(stream_of(client), what).await;
            write_all(client, &socks_reply(reply)).await.ok();
            return;
        }
        Ok(Err(_)) | Err(_) => return,
    };
    let server = match dial(shared, &asked, &bytes).await {
        Ok(server) => server,
        Err(refusal) => {
            shared.note(client, &asked, &refusal).await;
            let reply = if refusal.why() == Some(Why::Unreachable) { 4 } else { 2 };
            write_all(client, &socks_reply(reply)).await.ok();
            return;
        }
    };
    if write_all(client, &socks_reply(0)).await.is_ok() {
        finish(shared, client, &asked, server).await;
    }
}

fn socks_reply(code: u8) -> [u8; 10] {
    [SOCKS5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The methods, of which we take "none needed", then the request.
async fn greet(client: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<Result<Asked, u8>> {
    let end = loop {
        if let Some(count) = bytes.get(1)
            && bytes.len() >= 2 + usize::from(*count)
        {
            break 2 + usize::from(*count);
        }
        more(client, bytes).await?;
    };
    if !bytes[2..end].contains(&0) {
        write_all(client, &[SOCKS5, 0xff]).await?;
        return Err(io::ErrorKind::Unsupported.into());
    }
    write_all(client, &[SOCKS5, 0]).await?;
    bytes.drain(..end);
    loop {
        match socks_target(bytes) {
            // Bytes before the answer would be for whom nobody has agreed to yet.
            Some(Ok((asked, length))) if length == bytes.len() => return Ok(Ok(asked)),
            Some(Ok(_)) => return Ok(Err(1)),
            Some(Err(reply)) => return Ok(Err(reply)),
            None => more(client, bytes).await?,
        }
    }
}

async fn more(client: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    match read_some(client, bytes).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_name(name: &[u8]) -> Vec<u8> {
        [&[5, 1, 0, 3, u8::try_from(name.len()).unwrap()][..], name, &[1, 187]].concat()
    }

    #[test]
    fn the_host_of_a_request_line_is_taken_as_it_was_written() {
        for (head, wanted) in [
            ("CONNECT A.example:443 HTTP/1.1\r\nX: y\r\n\r\n", "A.example:443"),
            ("GET http://A.example:80/b?c://d HTTP/1.1\r\n\r\n", "A.example:80"),
            ("GET http://A.example?x HTTP/1.1\r\n\r\n", "A.example"),
            ("", ""),
        ] {
            assert_eq!(authority(head.as_bytes()), wanted.as_bytes(), "{head}");
        }
    }

    #[test]
    fn socks_names_are_read_like_all_others() {
        let target = |bytes: &[u8]| {
            socks_target(bytes).map(|found| found.map(|(asked, _)| asked.target.to_string()))
        };
        assert_eq!(target(&by_name(b"A.example")), Some(Ok("a.example".to_owned())));
        for wrong in [&b"a.example\0.evil.org"[..], b"127.1", b"0x7f000001", b"", b"\xff"] {
            assert_eq!(target(&by_name(wrong)), Some(Err(2)), "{wrong:?}");
        }
        assert_eq!(target(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80]), Some(Ok("127.0.0.1".to_owned())));
        assert_eq!(target(&[5, 2, 0, 1, 127, 0, 0, 1, 0, 80]), Some(Err(7)));
        let whole = by_name(b"a.example");
        for cut in 0..whole.len() {
            assert_eq!(target(&whole[..cut]), None, "{cut}");
        }
    }
}
