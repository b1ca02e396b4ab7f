//! The requests of one connection: each is for the host that was allowed, or it is the last.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use belljar_jail::egress::Why;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::{Asked, FIRST_WORDS};
use crate::door::{Refusal, Shared};
use crate::http::{self, Body, Chunks, Form, Head, Read};
use crate::policy::Grant;
use crate::relay::{Meter, Way, pump, read_some, send, write_all};

/// How long a refusal may take to be written to somebody who does not read.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// As much of an answer as its status line needs.
const STATUS: usize = 12;

/// Whether a request to speak something else was granted by the server.
#[derive(Debug, Default)]
struct Upgrade {
    answer: Cell<Option<bool>>,
    answered: Notify,
    wanted: Cell<bool>,
}

/// Reads the first request, and answers it if it is refused.
pub(super) async fn first(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    early: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let read = tokio::time::timeout(FIRST_WORDS, next(shared, client, asked, early)).await;
    let read = read.unwrap_or_else(|_| Err(Refusal::new(Why::Framing, "a head that does not end")));
    match read {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Refusal::broken(io::ErrorKind::UnexpectedEof.into())),
        Err(refusal) => Err(refuse(shared, client, asked, "403 Forbidden", refusal).await),
    }
}

/// The next head, checked; `None` at the end.
async fn next(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    bytes: &mut Vec<u8>,
) -> Result<Option<Head>, Refusal> {
    let mut came = bytes.len();
    loop {
        if !bytes.is_empty() && http::is_news(bytes, came) {
            match http::read_head(bytes) {
                Read::Whole(head) => return check(shared, asked, &head).map(|()| Some(*head)),
                Read::Wrong(why, what) => return Err(Refusal::new(why, what)),
                Read::Part => {}
            }
        }
        came = read_some(client, bytes).await.map_err(Refusal::broken)?;
        if came == 0 {
            return Ok(None);
        }
    }
}

fn check(shared: &Rc<Shared>, asked: &Asked, head: &Head) -> Result<(), Refusal> {
    if !head.agrees(&asked.target, asked.port) {
        let said = match (&head.form, &head.host) {
            (Form::Absolute(host, port, _) | Form::Authority(host, port), _) => {
                format!("{host}:{port}")
            }
            (Form::Origin(_), Some((host, None))) => host.to_string(),
            (Form::Origin(_), Some((host, Some(port)))) => format!("{host}:{port}"),
            (Form::Origin(_), None) => String::new(),
        };
        return Err(Refusal::new(Why::Host, &said));
    }
    // As the policy is now: it may have been tightened since the connection was made.
    may_ask(&shared.grant_again(asked)?, head)
}

/// Whether a grant allows all that a request may be taken for.
pub(crate) fn may_ask(grant: &Grant, head: &Head) -> Result<(), Refusal> {
    let asks = head.asks().ok_or_else(|| Refusal::new(Why::Framing, "too many methods"))?;
    asks.iter().try_for_each(|(method, path)| {
        let allowed = grant.allows_request(method, path);
        allowed.map_err(|why| Refusal::new(why, &format!("{method} {path}")))
    })
}

/// All requests, and whatever comes back.
pub(super) async fn serve(
    shared: &Rc<Shared>,
    client: &TcpStream,
    server: &TcpStream,
    asked: &Asked,
    early: Vec<u8>,
    meter: &Meter,
) -> Result<(), Refusal> {
    let upgrade = Upgrade::default();
    let refusal = {
        let asking = forward(shared, client, server, asked, early, meter, &upgrade);
        let answering = answers(client, server, meter, &upgrade);
        tokio::pin!(asking, answering);
        let mut asks = true;
        loop {
            tokio::select! {
                asked = &mut asking, if asks => match asked {
                    Ok(()) => asks = false,
                    Err(refusal) => break refusal,
                },
                answered = &mut answering => return answered.map_err(Refusal::broken),
            }
        }
    };
    if refusal.is_broken() {
        return Err(refusal);
    }
    Err(refuse(shared, client, asked, "403 Forbidden", refusal).await)
}

/// Requests, one after the other, each looked at before it passes.
async fn forward(
    shared: &Rc<Shared>,
    client: &TcpStream,
    server: &TcpStream,
    asked: &Asked,
    mut bytes: Vec<u8>,
    meter: &Meter,
    upgrade: &Upgrade,
) -> Result<(), Refusal> {
    let mut is_first = true;
    while let Some(head) = next(shared, client, asked, &mut bytes).await? {
        if head.upgrade {
            may_upgrade(&head, is_first)?;
            upgrade.wanted.set(true);
        }
        is_first = false;
        head.asks().iter().flatten().for_each(|(method, path)| meter.ask(method, path));
        let rest = bytes.split_off(head.length);
        send(server, &bytes, meter, Way::Out).await.map_err(Refusal::broken)?;
        bytes = rest;
        body(client, server, head.body, &mut bytes, meter).await?;
        if head.upgrade && upgrade.granted().await {
            send(server, &bytes, meter, Way::Out).await.map_err(Refusal::broken)?;
            return pump(client, server, meter, Way::Out).await.map_err(Refusal::broken);
        }
    }
    // Whoever has gone already does not mind.
    rustix::net::shutdown(server, rustix::net::Shutdown::Write).ok();
    Ok(())
}

/// Only where the answer can be told from others, and only to what names no other host.
fn may_upgrade(head: &Head, is_first: bool) -> Result<(), Refusal> {
    if !head.upgrades_to("websocket") {
        return Err(Refusal::new(Why::Protocol, "an upgrade to what cannot be looked at"));
    }
    match is_first {
        true => Ok(()),
        false => Err(Refusal::new(Why::Protocol, "an upgrade of a kept connection")),
    }
}

impl Upgrade {
    async fn granted(&self) -> bool {
        loop {
            if let Some(answer) = self.answer.get() {
                return answer;
            }
            self.answered.notified().await;
        }
    }
}

/// Passes a body on. What is left in `bytes` is behind it.
pub(crate) async fn body(
    client: &TcpStream,
    server: &TcpStream,
    body: Body,
    bytes: &mut Vec<u8>,
    meter: &Meter,
) -> Result<(), Refusal> {
    let (mut left, mut chunks) = match body {
        Body::Length(length) => (length, Chunks::Done),
        Body::Chunked => (0, Chunks::START),
    };
    while left > 0 || chunks != Chunks::Done {
        if bytes.is_empty() && read_some(client, bytes).await.map_err(Refusal::broken)? == 0 {
            return Err(Refusal::broken(io::ErrorKind::UnexpectedEof.into()));
        }
        let taken = if left > 0 {
            let part = left.min(bytes.len() as u64);
            left -= part;
            usize::try_from(part).unwrap_or(usize::MAX)
        } else {
            let taken = chunks.take(bytes);
            taken.ok_or_else(|| Refusal::new(Why::Framing, "chunks that cannot be told apart"))?
        };
        let rest = bytes.split_off(taken);
        send(server, bytes, meter, Way::Out).await.map_err(Refusal::broken)?;
        *bytes = rest;
    }
    Ok(())
}

/// What the server says. It is not looked at, but for whether it agreed to an upgrade.
async fn answers(
    client: &TcpStream,
    server: &TcpStream,
    meter: &Meter,
    upgrade: &Upgrade,
) -> io::Result<()> {
    let mut first = Vec::new();
    while first.len() < STATUS {
        if read_some(server, &mut first).await? == 0 {
            break;
        }
    }
    // Only one that was the first on its connection may be granted, so this is its answer.
    let agreed = upgrade.wanted.get() && first.starts_with(b"HTTP/1.1 101");
    upgrade.answer.set(Some(agreed));
    upgrade.answered.notify_one();
    send(client, &first, meter, Way::In).await?;
    drop(first);
    pump(server, client, meter, Way::In).await
}

/// Notes a refusal and then tells it: who was told may end at once, and the note would come too late. What is returned
/// is noted.
pub(crate) async fn refuse(
    shared: &Shared,
    client: &TcpStream,
    asked: &Asked,
    status: &str,
    refusal: Refusal,
) -> Refusal {
    shared.note(client, asked, &refusal).await;
    say_no(client, status, &refusal.words(asked)).await;
    Refusal::broken(io::ErrorKind::ConnectionAborted.into())
}

/// An answer of our own, after which the connection ends.
pub(crate) async fn say_no(client: &TcpStream, status: &str, words: &str) {
    let length = words.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         X-Belljar-Egress: refused\r\nConnection: close\r\n\r\n{words}\n"
    );
    let write = async {
        write_all(client, answer.as_bytes()).await?;
        rustix::net::shutdown(client, rustix::net::Shutdown::Write)?;
        // What it still sends is read, for a while: a reset would take the answer away.
        let mut discarded = Vec::new();
        while read_some(client, &mut discarded).await? > 0 {
            discarded.clear();
        }
        Ok::<_, io::Error>(())
    };
    // Who does not read it does not get it.
    tokio::time::timeout(LAST_WORDS, write).await.ok();
}
