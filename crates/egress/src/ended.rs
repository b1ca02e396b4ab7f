//! TLS that ends here: where a secret is bound to a host, or a rule looks into it, requests are read between two sessions, and placeholders in them
//! become values. The same knowledge says what must not leave in what can be read anyway.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use belljar_jail::egress::Why;
use belljar_jail::redact::Scanner;
use belljar_swap::{
    Authority, Between, Current, Judge, Outside, Peer, Sealed, Stray, Swap, Trouble, carry,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::door::{Refusal, Shared};
use crate::names::Target;
use crate::relay::{Meter, Way};
use crate::stream::Asked;

/// What a client that offers no HTTP/1.1 is told.
const HTTP2_ALONE: &str = "HTTP/2 alone, where TLS is looked into";

/// What this process knows of secrets.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Absent where no secret is bound to a host and no rule looked into one when the sandbox was made.
    speaks: Option<(Authority, Outside)>,
    swap: Current,
}

impl Ended {
    /// The last that was said of the values counts.
    pub(crate) fn new(secrets: Vec<Sealed>) -> io::Result<Self> {
        let told = |why: String| io::Error::other(why);
        let pair = secrets.iter().find_map(|one| Some((one.authority.as_ref()?, &one.roots)));
        let speaks = pair.map(|(pair, roots)| {
            let authority = Authority::from_pair(pair).map_err(|error| told(error.to_string()))?;
            Ok::<_, io::Error>((authority, Outside::by_bundle(roots.as_bytes()).map_err(told)?))
        });
        let ended = Self { speaks: speaks.transpose()?, swap: Current::default() };
        ended.change(secrets);
        Ok(ended)
    }

    /// Other values, for the next request.
    pub(crate) fn change(&self, secrets: Vec<Sealed>) {
        for one in secrets {
            self.swap.renew(one.bindings, one.decoys);
        }
    }

    /// Whether TLS with this host ends here.
    pub(crate) fn concerns(&self, host: &str) -> bool {
        self.speaks.is_some() && self.swap.now().concerns(host)
    }

    /// What a short text that is about to leave holds and may not.
    pub(crate) fn leak_in(&self, bytes: &[u8]) -> Option<Leak> {
        self.leak_to("", bytes)
    }

    /// The same for what goes to this host.
    pub(crate) fn leak_to(&self, host: &str, bytes: &[u8]) -> Option<Leak> {
        let swap = self.swap.now();
        swap.check(bytes).err().map(|stray| leak(&swap, stray, host))
    }

    /// Somebody to look at what leaves in the open, if there is anything to look for.
    pub(crate) fn watch(&self, host: &str) -> Option<Watch> {
        let (swap, host) = (self.swap.now(), host.to_owned());
        (!swap.watched().is_empty()).then(|| Watch { swap, scanner: Scanner::default(), host })
    }
}

/// Looks at one connection's way out.
#[derive(Debug)]
pub(crate) struct Watch {
    swap: Arc<Swap>,
    scanner: Scanner,
    host: String,
}

impl Watch {
    pub(crate) fn look(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut marks = Vec::new();
        self.scanner.feed(self.swap.watched(), bytes, &mut marks);
        match marks.first() {
            Some(mark) => {
                Err(io::Error::other(leak(&self.swap, self.swap.stray(mark.value), &self.host)))
            }
            None => Ok(()),
        }
    }
}

/// What was about to leave.
#[derive(Debug)]
pub(crate) struct Leak {
    pub why: Why,
    pub detail: String,
}

impl fmt::Display for Leak {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("something was about to leave that may not")
    }
}

impl std::error::Error for Leak {}

/// With the name of the secret, and, at a host of its own, what is wrong all the same.
fn leak(swap: &Swap, stray: Stray, host: &str) -> Leak {
    match stray {
        Stray::Token(place) => {
            let detail = swap.bindings().get(place).map_or_else(String::new, |one| {
                let but = if one.is_for(host) {
                    " (only in a header that authorizes, inside TLS)"
                } else {
                    ""
                };
                format!("{}{but}", one.name)
            });
            Leak { why: Why::Placeholder, detail }
        }
        Stray::Decoy => Leak { why: Why::Canary, detail: String::new() },
    }
}

/// Serves a connection whose TLS begins with these bytes.
pub(crate) async fn serve(
    shared: &Rc<Shared>,
    client: &TcpStream,
    server: &TcpStream,
    asked: &Asked,
    early: Vec<u8>,
    meter: &Meter,
) -> Result<(), Refusal> {
    let (Some((authority, outside)), Target::Name(host)) = (&shared.ended.speaks, &asked.target)
    else {
        return Err(Refusal::new(Why::Protocol, "TLS that cannot be ended"));
    };
    let between = Between { authority, outside, swap: &shared.ended.swap };
    let peer = Peer { host, port: asked.port };
    let mut clerk = Clerk { shared, client, asked, meter, why: None };
    let client = Side { socket: client, early, meter, is_inner: true, pause: None };
    let server = Side { socket: server, early: Vec::new(), meter, is_inner: false, pause: None };
    match carry(client, server, peer, between, &mut clerk).await {
        // What there was to say has been noted, and told.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Decides about requests, and notes what is refused before it is told.
struct Clerk<'a> {
    shared: &'a Rc<Shared>,
    client: &'a TcpStream,
    asked: &'a Asked,
    meter: &'a Meter,
    why: Option<Why>,
}

impl Judge for Clerk<'_> {
    fn allows(&mut self, method: &str, path: &str) -> Result<(), String> {
        self.meter.ask(method, path);
        // As the policy is now: it may have been tightened since the connection was made.
        let allowed = self.shared.grant_again(self.asked).and_then(|grant| {
            let allowed = grant.allows_request(method, path);
            allowed.map_err(|why| Refusal::new(why, &format!("{method} {path}")))
        });
        allowed.map_err(|refusal| {
            self.why = refusal.why();
            refusal.detail().to_owned()
        })
    }

    fn ends(&mut self, trouble: &Trouble) -> Option<String> {
        let refusal = match trouble {
            Trouble::Stray(stray) => {
                let host = self.asked.target.to_string();
                let leak = leak(&self.shared.ended.swap.now(), *stray, &host);
                Refusal::new(leak.why, &leak.detail)
            }
            Trouble::Host(said) => Refusal::new(Why::Host, said),
            Trouble::Framing(what) => Refusal::new(Why::Framing, what),
            Trouble::Refused(what) => Refusal::new(self.why.unwrap_or(Why::Method), what),
            Trouble::Answer(what) => Refusal::new(Why::Encoded, what),
            Trouble::Encoded(what) => Refusal::new(Why::Encoded, what),
            Trouble::Unverified(what) => Refusal::new(Why::Certificate, what),
            Trouble::NotHttp1 => Refusal::new(Why::Http2, ""),
            Trouble::OtherProtocol => Refusal::new(Why::Protocol, HTTP2_ALONE),
            Trouble::Distrusted(what) => Refusal::new(Why::Distrusted, what),
            Trouble::Broken(kind) => Refusal::broken((*kind).into()),
        };
        if refusal.is_broken() {
            return None;
        }
        self.shared.note_now(self.client, self.asked, &refusal);
        Some(refusal.words(self.asked))
    }
}

/// One side of a connection as the TLS sessions want it: what was read of it already comes first. What passes is counted on
/// the side of the real host, and charged where there is more of it.
struct Side<'a> {
    socket: &'a TcpStream,
    early: Vec<u8>,
    meter: &'a Meter,
    is_inner: bool,
    /// Until more may pass.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Side<'_> {
    fn count(&mut self, way: Way, bytes: usize) -> io::Result<()> {
        if self.is_inner {
            return self.meter.count_inner(bytes);
        }
        let pause = self.meter.pause(bytes);
        self.pause = (!pause.is_zero()).then(|| Box::pin(tokio::time::sleep(pause)));
        self.meter.count(way, bytes)
    }

    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Side<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let length = self.early.len().min(out.remaining());
            out.put_slice(&self.early[..length]);
            self.early.drain(..length);
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_pause(context));
        loop {
            ready!(self.socket.poll_read_ready(context))?;
            match self.socket.try_read(out.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    let length = read?;
                    out.advance(length);
                    return Poll::Ready(self.count(Way::In, length));
                }
            }
        }
    }
}

impl AsyncWrite for Side<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pause(context));
        loop {
            ready!(self.socket.poll_write_ready(context))?;
            match self.socket.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    let length = written?;
                    return Poll::Ready(self.count(Way::Out, length).map(|()| length));
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whoever has gone already does not mind.
        rustix::net::shutdown(self.socket, rustix::net::Shutdown::Write).ok();
        Poll::Ready(Ok(()))
    }
}
