//! One connection: two TLS sessions, and between them requests that are looked at and answers that are cleaned.

mod answers;
mod requests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{AlertDescription, Error as TlsError};

use crate::authority::Authority;
use crate::inflow::Inflow;
use crate::outside::Outside;
use crate::swap::{Current, Stray};
use answers::{Answers, MAX_ASKED};
use requests::Requests;

const READ_BYTES: usize = 16 << 10;
/// How long a handshake may take, on either side.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// How long a program may take to hear why it is refused.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub requests: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
}

/// Why a connection was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Something that may not leave, or not here: an attempt.
    Stray(Stray),
    /// A request for another host.
    Host(String),
    /// What could be read in two ways, or not at all.
    Framing(&'static str),
    /// What the policy says no to.
    Refused(String),
    /// An answer that could be read in two ways, or not at all.
    Answer(String),
    /// An answer that is compressed, though it was asked for as it is.
    Encoded(String),
    /// The real host does not show that it is who it should be.
    Unverified(String),
    /// The real host speaks no HTTP/1.1: HTTP/2 only, or something else.
    NotHttp1,
    /// The program speaks no HTTP/1.1: HTTP/2 only, or something else.
    OtherProtocol,
    /// The program does not believe us, or speaks no TLS: exempt the host if it pins certificates.
    Distrusted(String),
    Broken(io::ErrorKind),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.kind())
    }
}

/// The host that is meant, and dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'a> {
    pub host: &'a str,
    pub port: u16,
}

/// What stands between a program and its host.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    pub authority: &'a Authority,
    pub outside: &'a Outside,
    pub swap: &'a Current,
}

/// Who decides, and is told.
pub trait Judge {
    /// Whether a request with this method and path may pass.
    fn allows(&mut self, method: &str, path: &str) -> Result<(), String>;
    /// It ends because of this; with what the program is told, if it should be.
    fn ends(&mut self, trouble: &Trouble) -> Option<String>;
}

/// Carries a connection from a client to its end. `server` is connected to an address that was checked.
pub async fn carry<C, S>(
    client: C,
    server: S,
    peer: Peer<'_>,
    between: Between<'_>,
    judge: &mut dyn Judge,
) -> Result<Carried, Trouble>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (inner, outer) = tokio::join!(
        accepted(client, peer.host, between.authority),
        greeted(server, peer.host, between.outside)
    );
    let inner = match inner {
        Ok(inner) => inner,
        Err(trouble) => {
            judge.ends(&trouble);
            return Err(trouble);
        }
    };
    let (mut from, mut to) = split(inner);
    let midway = AtomicBool::new(false);
    let carried = match outer {
        Ok(outer) => {
            converse((&mut from, &mut to), outer, peer, between.swap, judge, &midway).await
        }
        Err(trouble) => {
            // It asks before it listens.
            let mut first = [0; READ_BYTES];
            tokio::time::timeout(HANDSHAKE, from.read(&mut first)).await.ok();
            Err(trouble)
        }
    };
    if let Err(trouble) = &carried
        && let Some(words) = judge.ends(trouble)
        && !midway.load(Ordering::Relaxed)
    {
        // Who does not read it does not get it.
        tokio::time::timeout(LAST_WORDS, say_no(from, to, trouble, &words)).await.ok();
    }
    carried
}

async fn accepted<C: AsyncRead + AsyncWrite + Unpin>(
    client: C,
    host: &str,
    authority: &Authority,
) -> Result<tokio_rustls::server::TlsStream<C>, Trouble> {
    let config = authority.server(host).map_err(Trouble::Distrusted)?;
    let accepted = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(client)).await;
    let accepted = accepted.map_err(|_| Trouble::Broken(io::ErrorKind::TimedOut))?;
    accepted.map_err(|error| {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
        if let Some(TlsError::NoApplicationProtocol) = tls {
            return Trouble::OtherProtocol;
        }
        if error.kind() == io::ErrorKind::InvalidData {
            return Trouble::Distrusted(error.to_string());
        }
        error.into()
    })
}

async fn greeted<S: AsyncRead + AsyncWrite + Unpin>(
    server: S,
    host: &str,
    outside: &Outside,
) -> Result<tokio_rustls::client::TlsStream<S>, Trouble> {
    let greeted = tokio::time::timeout(HANDSHAKE, outside.greet(server, host)).await;
    let greeted = greeted.map_err(|_| Trouble::Unverified("it does not answer".to_owned()))?;
    greeted.map_err(|error| of_server(&error))
}

/// What went wrong with the real host.
fn of_server(error: &io::Error) -> Trouble {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match tls {
        Some(TlsError::AlertReceived(AlertDescription::NoApplicationProtocol)) => Trouble::NotHttp1,
        _ => Trouble::Unverified(error.to_string()),
    }
}

/// Requests one way and answers the other.
async fn converse<C, S>(
    (from, to): (&mut ReadHalf<C>, &mut WriteHalf<C>),
    outer: S,
    peer: Peer<'_>,
    swap: &Current,
    judge: &mut dyn Judge,
    midway: &AtomicBool,
) -> Result<Carried, Trouble>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (from_server, to_server) = split(outer);
    let (ask, asked) = mpsc::channel(MAX_ASKED);
    let bytes = Inflow::default();
    let mut requests = Requests { from, to: to_server, bytes, asked: ask, out: 0, count: 0 };
    let (host, current) = (peer.host, swap);
    let answers = Answers { from: from_server, to, host, current, asked, midway }.run();
    let asked = requests.run(peer, swap, judge);
    tokio::pin!(answers);
    let bytes_in = tokio::select! {
        asked = asked => match asked {
            // The answers to what was asked are still to come.
            Ok(()) => answers.await?,
            Err(trouble) => return Err(trouble),
        },
        answered = &mut answers => answered?,
    };
    Ok(Carried { requests: requests.count, bytes_out: requests.out, bytes_in })
}

/// An answer of our own, after which the connection ends.
async fn say_no<C: AsyncRead + AsyncWrite + Unpin>(
    mut from: ReadHalf<C>,
    mut to: WriteHalf<C>,
    trouble: &Trouble,
    words: &str,
) -> io::Result<()> {
    let status = match trouble {
        Trouble::Unverified(_)
        | Trouble::NotHttp1
        | Trouble::Answer(_)
        | Trouble::Encoded(_)
        | Trouble::Broken(_) => "502 Bad Gateway",
        Trouble::Stray(_)
        | Trouble::Host(_)
        | Trouble::Framing(_)
        | Trouble::Refused(_)
        | Trouble::OtherProtocol
        | Trouble::Distrusted(_) => "403 Forbidden",
    };
    let length = words.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         X-Belljar-Egress: refused\r\nConnection: close\r\n\r\n{words}\n"
    );
    to.write_all(answer.as_bytes()).await?;
    to.shutdown().await?;
    // What it still sends is read, for a while: a reset would take the answer away.
    let mut discarded = vec![0; READ_BYTES];
    while from.read(&mut discarded).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests;
