//! One connection whose host and port are known: what is spoken is found out, checked, and passed on.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use belljar_jail::egress::Why;
use tokio::net::TcpStream;

use crate::address::may_be_dialled;
use crate::door::{Refusal, Shared};
use crate::names::{self, Target};
use crate::policy::Grant;
use crate::relay::{Meter, Way, pump, read_some, relay, send, write_all};
use crate::tls;
use crate::{ended, http};

use far::Far;
use line::FirstLine;

mod far;
mod line;
pub(crate) mod requests;

/// How long a client may take to say what it speaks.
const FIRST_WORDS: Duration = Duration::from_secs(30);
/// A fatal alert, `unrecognized_name`: what TLS clients understand.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Where a connection wants to go.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub target: Target,
    pub port: u16,
}

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Tls,
    /// TLS that ends here.
    Ended,
    Http,
    Raw,
}

/// Carries a connection from its first byte to its last. With its server, and what it was granted, if that was dialled already.
pub(crate) async fn carry(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    dialled: Option<(TcpStream, Grant)>,
) -> Result<(), Refusal> {
    let (server, grant) = match dialled {
        Some((server, grant)) => (Some(server), grant),
        None => (None, shared.grant(asked)?),
    };
    let mut early = Vec::new();
    if !grant.is_raw() {
        let spoken = listen(client, &mut early, &grant).await?;
        let spoken = ended_or(shared, asked, &grant, spoken);
        check(shared, client, asked, &grant, spoken, &mut early).await?;
        let server = dial(shared, client, asked, &grant, server, spoken).await?;
        let far = Far::reached(shared, asked, server);
        return pass(shared, client, far, asked, &grant, spoken, early).await;
    }
    // Some servers speak first, so it is dialled before the client has said anything.
    let server = match server {
        Some(server) => server,
        None => shared.dial(asked, &grant).await?,
    };
    let mut far = Far::reached(shared, asked, server);
    let spoken = first_words(shared, client, &mut far, asked, &grant, &mut early).await?;
    let spoken = ended_or(shared, asked, &grant, spoken);
    check(shared, client, asked, &grant, spoken, &mut early).await?;
    pass(shared, client, far, asked, &grant, spoken, early).await
}

/// What the client speaks, however much its server has said before: servers of HTTP/2 speak first, too.
async fn first_words(
    shared: &Rc<Shared>,
    client: &TcpStream,
    far: &mut Far,
    asked: &Asked,
    grant: &Grant,
    early: &mut Vec<u8>,
) -> Result<Spoken, Refusal> {
    let meter = Meter::blind(shared, Rc::clone(&far.line));
    loop {
        tokio::select! {
            biased;
            () = shared.withdrawn(asked, grant, Grant::is_raw) => {
                return Err(Refusal::new(Why::Tightened, ""));
            }
            spoken = listen(client, early, grant) => return spoken,
            passed = far.greet(client, &meter), if far.may_greet() => {
                passed.map_err(Refusal::broken)?;
            }
            () = meter.idle(shared.budget.idle) => {
                return Err(Refusal::broken(io::ErrorKind::TimedOut.into()));
            }
        }
        // Nobody of the web says so much unasked. A word that has begun is heard to its end all the same.
        if far.has_said_much() && early.is_empty() {
            return Ok(Spoken::Raw);
        }
    }
}

/// TLS that we end, where a secret is to be put in or the policy wants to look.
fn ended_or(shared: &Shared, asked: &Asked, grant: &Grant, spoken: Spoken) -> Spoken {
    match (&asked.target, spoken) {
        (Target::Name(name), Spoken::Tls) if grant.inspects() || shared.ended.concerns(name) => {
            Spoken::Ended
        }
        _ => spoken,
    }
}

async fn dial(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    grant: &Grant,
    server: Option<TcpStream>,
    spoken: Spoken,
) -> Result<TcpStream, Refusal> {
    if let Some(server) = server {
        return Ok(server);
    }
    match (shared.dial(asked, grant).await, spoken) {
        (Err(refusal), Spoken::Http) => {
            Err(requests::refuse(shared, client, asked, "502 Bad Gateway", refusal).await)
        }
        (server, _) => server,
    }
}

/// Reads until it is clear what is spoken. The client's end is as good as a word.
async fn listen(client: &TcpStream, early: &mut Vec<u8>, grant: &Grant) -> Result<Spoken, Refusal> {
    let until_clear = async {
        let mut came = early.len();
        loop {
            let is_worth_it = early.len() <= http::MAX_METHOD || http::is_news(early, came);
            if let Some(spoken) = is_worth_it.then(|| spoken(early, grant)).flatten() {
                return Ok(spoken);
            }
            came = read_some(client, early).await?;
            if came == 0 {
                return Ok::<_, io::Error>(Spoken::Raw);
            }
        }
    };
    if grant.is_raw() {
        // It may wait for the server to speak, for as long as anybody may be idle.
        return until_clear.await.map_err(Refusal::broken);
    }
    match tokio::time::timeout(FIRST_WORDS, until_clear).await {
        Ok(spoken) => spoken.map_err(Refusal::broken),
        Err(_) => Err(Refusal::new(Why::Protocol, "nothing was said")),
    }
}

fn spoken(early: &[u8], grant: &Grant) -> Option<Spoken> {
    if early.is_empty() {
        return None;
    }
    if tls::is_tls(early) {
        return Some(Spoken::Tls);
    }
    if !http::is_http(early) {
        return Some(Spoken::Raw);
    }
    if http::is_undecided(early) {
        return None;
    }
    if !grant.is_raw() {
        return Some(Spoken::Http);
    }
    // Other protocols begin with a word in capitals too; the first line tells.
    match early.iter().position(|one| *one == b'\n') {
        Some(end) => {
            let line = &early[..end];
            let named = http::find(line, b" HTTP/").is_some();
            Some(if named { Spoken::Http } else { Spoken::Raw })
        }
        None if early.len() > http::MAX_HEAD => Some(Spoken::Http), // which refuses it
        None => None,
    }
}

/// What can be said before a byte has passed.
async fn check(
    shared: &Rc<Shared>,
    client: &TcpStream,
    asked: &Asked,
    grant: &Grant,
    spoken: Spoken,
    early: &mut Vec<u8>,
) -> Result<(), Refusal> {
    match spoken {
        Spoken::Tls | Spoken::Ended => {
            let Err(refusal) = check_hello(shared, client, asked, (spoken, grant), early).await
            else {
                return Ok(());
            };
            shared.note(client, asked, &refusal).await;
            // For its error message; the connection ends either way.
            write_all(client, &ALERT).await.ok();
            Err(Refusal::broken(io::ErrorKind::ConnectionAborted.into()))
        }
        Spoken::Http => requests::first(shared, client, asked, early).await,
        Spoken::Raw if grant.is_raw() => Ok(()),
        Spoken::Raw if early.is_empty() => {
            Err(Refusal::broken(io::ErrorKind::UnexpectedEof.into()))
        }
        Spoken::Raw => Err(Refusal::new(Why::Protocol, "neither TLS nor HTTP")),
    }
}

async fn check_hello(
    shared: &Shared,
    client: &TcpStream,
    asked: &Asked,
    (spoken, grant): (Spoken, &Grant),
    early: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let whole = async {
        loop {
            match tls::read_hello(early) {
                tls::Read::Whole(hello) => return Ok(hello),
                tls::Read::Wrong => return Err(Refusal::new(Why::Protocol, "a TLS handshake")),
                tls::Read::Part => {}
            }
            if read_some(client, early).await.map_err(Refusal::broken)? == 0 {
                return Err(Refusal::broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    };
    let hello = match tokio::time::timeout(FIRST_WORDS, whole).await {
        Ok(hello) => hello?,
        Err(_) => return Err(Refusal::new(Why::Protocol, "a TLS handshake that does not end")),
    };
    if let Some(said) = &hello.name {
        shared.check_words(asked, said.as_bytes())?;
    }
    // Where TLS ends here there is one name, the one that is seen. Browsers send that extension to everybody.
    if hello.hidden && spoken == Spoken::Tls {
        return Err(Refusal::new(Why::Sni, "an encrypted name"));
    }
    match (&asked.target, &hello.name) {
        (Target::Name(name), Some(said)) if names::name(said).as_ref() == Some(name) => {}
        (Target::Address(_), None) => {}
        (_, Some(said)) => return Err(Refusal::new(Why::Sni, said)),
        (Target::Name(_), None) => return Err(Refusal::new(Why::Sni, "no name")),
    }
    if spoken == Spoken::Ended || grant.allows_tls() {
        return Ok(());
    }
    Err(Refusal::new(Why::Protocol, "TLS, inside which methods and paths cannot be seen"))
}

/// From here on bytes pass: until both sides have ended, it was idle for too long, or it is no longer allowed.
async fn pass(
    shared: &Rc<Shared>,
    client: &TcpStream,
    far: Far,
    asked: &Asked,
    grant: &Grant,
    spoken: Spoken,
    early: Vec<u8>,
) -> Result<(), Refusal> {
    let Far { server, line, unsent, .. } = far;
    let server = &server;
    let meter = match spoken {
        Spoken::Tls | Spoken::Ended => Meter::blind(shared, line),
        Spoken::Http | Spoken::Raw => Meter::new(shared, line, &asked.target.to_string()),
    };
    let carried = async {
        send(client, &unsent, &meter, Way::In).await.map_err(Refusal::broken)?;
        drop(unsent);
        if spoken == Spoken::Http {
            return requests::serve(shared, client, server, asked, early, &meter).await;
        }
        if spoken == Spoken::Ended {
            return ended::serve(shared, client, server, asked, early, &meter).await;
        }
        if spoken == Spoken::Raw {
            return any(client, server, early, &meter).await;
        }
        let sent = send(server, &early, &meter, Way::Out).await;
        drop(early);
        sent.map_err(Refusal::broken)?;
        relay(client, server, &meter).await.map_err(Refusal::broken)
    };
    let may_go_on = |now: &Grant| {
        let spoken = match spoken {
            Spoken::Tls => now.allows_tls(),
            Spoken::Http | Spoken::Ended => meter.may_go_on(now),
            Spoken::Raw => now.is_raw(),
        };
        spoken && leads_where_it_may(server, now)
    };
    tokio::select! {
        biased; // before the first byte passes
        () = shared.withdrawn(asked, grant, may_go_on) => Err(Refusal::new(Why::Tightened, "")),
        ended = carried => ended,
        () = meter.idle(shared.budget.idle) => Err(Refusal::broken(io::ErrorKind::TimedOut.into())),
    }
}

/// Whatever it is, unless its first line turns out to be one of HTTP.
async fn any(
    client: &TcpStream,
    server: &TcpStream,
    early: Vec<u8>,
    meter: &Meter,
) -> Result<(), Refusal> {
    let refused = || {
        // Broken off rather than ended: there are servers to which the end of what is said ends a line.
        rustix::net::sockopt::set_socket_linger(server, Some(Duration::ZERO)).ok();
        Refusal::new(Why::Protocol, "a request that is not written as one")
    };
    let out = async {
        let (mut line, mut bytes) = (FirstLine::default(), early);
        while line.is_open() {
            if line.ends_a_request(&bytes) {
                return Err(refused());
            }
            send(server, &bytes, meter, Way::Out).await.map_err(Refusal::broken)?;
            bytes.clear();
            if line.is_open() && read_some(client, &mut bytes).await.map_err(Refusal::broken)? == 0
            {
                if line.ends_a_request(b"\n") {
                    return Err(refused());
                }
                break;
            }
        }
        drop(bytes);
        pump(client, server, meter, Way::Out).await.map_err(Refusal::broken)
    };
    let back = async { pump(server, client, meter, Way::In).await.map_err(Refusal::broken) };
    tokio::try_join!(out, back)?;
    Ok(())
}

/// Whether the host that was dialled might be dialled now.
pub(crate) fn leads_where_it_may(server: &TcpStream, now: &Grant) -> bool {
    server.peer_addr().is_ok_and(|peer| may_be_dialled(peer.ip(), &now.ranges()))
}
