//! The life of a server: listen, accept, drain, end.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use belljar::living::{SandboxLimits, Sandboxes};
use belljar::{Config, Engine, Error, Queue, SpecError};
use belljar_evolve::ProposerSpec;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower_service::Service;

use crate::door::{Door, Peer};
use crate::http::evolutions::Evolutions;
use crate::http::{self, Server};
use crate::limits::{LimitOptions, Limits};
use crate::listen::{self, Socket};
use crate::places;
use crate::stall::Impatient;
use crate::stop::Stop;
use crate::token::{self, Origin, Token};

/// A request's head must have come within this time; an idle connection is closed after it too.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Connections beside those that have a place in the queue: health checks, answers that are being read.
const MORE_CONNECTIONS: usize = 64;
/// How long a connection without a request is kept after the first signal.
const LAST_REQUEST: Duration = Duration::from_millis(100);
/// How long cancelled requests may take to be told so.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the last sandboxes may take to be gone; they take milliseconds.
const SETTLE: Duration = Duration::from_secs(10);
/// Out of descriptors: some must be closed before the next connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What a server is asked to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The TCP address; none turns TCP off.
    pub listen: Option<SocketAddr>,
    /// Whether that address may be one that others can reach.
    pub listen_anywhere: bool,
    /// The Unix socket, unless it is the default one.
    pub socket: Option<PathBuf>,
    /// The state directory, unless it is the default one.
    pub state: Option<PathBuf>,
    pub max_runs: NonZeroUsize,
    pub max_queue: usize,
    /// How long running programs may go on after the first signal.
    pub drain: Duration,
    /// Who may be asked to propose, by the names that callers use.
    pub proposers: BTreeMap<String, ProposerSpec>,
    pub limits: LimitOptions,
    pub sandboxes: SandboxLimits,
}

/// Where a server listens, for its user.
#[derive(Clone, Debug)]
pub struct Listening {
    pub socket: PathBuf,
    pub address: Option<SocketAddr>,
    /// The file that holds the token; none when the environment has it, or when there is no TCP.
    pub token_file: Option<PathBuf>,
}

/// Serves until a signal says to stop, and then until what runs has ended. `tell` hears once where.
pub async fn serve(
    mut config: Config,
    options: Options,
    tell: impl FnOnce(&Listening),
) -> Result<(), Error> {
    check(&options)?;
    let state = options.state.clone().or_else(places::state);
    let socket = options.socket.clone().or_else(places::socket);
    let homeless = || SpecError::new("state", "has no default without HOME: give --state DIR");
    let (state, socket) = (state.ok_or_else(homeless)?, socket.ok_or_else(homeless)?);
    token::state_directory(&state)?;
    config.secrets.state = Some(state.clone());
    // Before we listen: a signal that comes now must not find us without an answer.
    let mut signals = Signals::new()?;
    let (token, token_file) = match options.listen {
        None => (None, None),
        Some(_) => match Token::provide(&state)? {
            (token, Origin::File(path)) => (Some(token), Some(path)),
            (token, Origin::Variable) => (Some(token), None),
        },
    };
    let tcp = match options.listen {
        Some(address) => Some(listen::tcp(address).await?),
        None => None,
    };
    let unix = listen::unix(&socket)?;
    let address = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
    let audit = config.audit.as_ref().map(|audit| audit.directory.clone());
    let engine = Arc::new(Engine::open(config)?);
    // A trail that cannot be written is told now, not to the first who wants to run something.
    engine.recorded().await?;
    let sandboxes = Sandboxes::open_within(&engine, &state, options.sandboxes).await?;
    let server = Arc::new(Server {
        engine,
        sandboxes,
        queue: Queue::new(options.max_runs, options.max_queue),
        door: Door { own_uid: rustix::process::geteuid().as_raw(), token },
        stop: Stop::new(),
        evolutions: Evolutions::new(state.join(places::EVOLUTIONS), options.proposers.clone()),
        limits: Limits::new(&options.limits, audit.as_deref()),
        audit,
    });
    let tender = tokio::spawn({
        let engine = Arc::clone(&server.engine);
        let sandboxes = server.sandboxes.clone();
        async move { tokio::join!(engine.tend_pool(), sandboxes.tend()) }
    });
    tell(&Listening { socket, address, token_file });
    let most = options.max_runs.get().saturating_add(options.max_queue);
    let mut connections = Connections::new(&server, most.saturating_add(MORE_CONNECTIONS));
    connections.accept(unix, tcp, &mut signals).await;
    connections.end(options.drain, &mut signals).await;
    tender.abort();
    server.engine.empty_pool();
    if server.engine.settle(SETTLE).await {
        return Ok(());
    }
    Err(Error::Lost { what: "sandboxes did not end in time; the next start removes what is left" })
}

fn check(options: &Options) -> Result<(), SpecError> {
    let Some(address) = options.listen else { return Ok(()) };
    if address.ip().is_loopback() || options.listen_anywhere {
        return Ok(());
    }
    let reason = format!(
        "is {address}, which others can reach, and whoever has the token can run programs: listen \
         on 127.0.0.1, or say --listen-anywhere if that is meant (there is no TLS: put a proxy in \
         front)"
    );
    Err(SpecError::new("listen", reason))
}

/// The signals that end a server. The first drains it, the second ends it.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self, Error> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [Ok(terminate), Ok(interrupt), Ok(hangup)] = kinds.map(signal) else {
            let source = io::Error::last_os_error();
            return Err(Error::Backend { operation: "wait for signals", source });
        };
        Ok(Self([terminate, interrupt, hangup]))
    }

    async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// The connections of a server, bounded in number for each listener: whoever fills TCP without a token
/// does not keep the owner from the socket.
struct Connections {
    server: Arc<Server>,
    router: Router,
    all: JoinSet<()>,
    unix_room: Arc<Semaphore>,
    tcp_room: Arc<Semaphore>,
}

impl Connections {
    fn new(server: &Arc<Server>, most: usize) -> Self {
        let router = http::router(Arc::clone(server));
        let room = || Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self {
            server: Arc::clone(server),
            router,
            all: JoinSet::new(),
            unix_room: room(),
            tcp_room: room(),
        }
    }

    /// Accepts until a signal comes. Dropping the listeners then is what makes new clients look elsewhere.
    async fn accept(&mut self, unix: Socket, tcp: Option<TcpListener>, signals: &mut Signals) {
        loop {
            let from_tcp = async {
                match &tcp {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = signals.next() => break,
                Some(_) = self.all.join_next() => {}
                accepted = unix.listener.accept() => match accepted {
                    Ok((stream, _)) => self.accepted_unix(stream),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                accepted = from_tcp => match accepted {
                    Ok((stream, _)) => self.accepted_tcp(stream),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        }
        // Who was let in by the kernel before we stopped has a right to be heard.
        while let Some((stream, _)) = at_once(|context| unix.listener.poll_accept(context)).await {
            self.accepted_unix(stream);
        }
        if let Some(tcp) = tcp {
            while let Some((stream, _)) = at_once(|context| tcp.poll_accept(context)).await {
                self.accepted_tcp(stream);
            }
        }
    }

    fn accepted_unix(&mut self, stream: UnixStream) {
        let Ok(room) = Arc::clone(&self.unix_room).try_acquire_owned() else {
            // One that cannot take even this much misses nothing.
            stream.try_write(FULL).ok();
            return;
        };
        // A peer that is gone already has no credentials.
        if let Ok(credentials) = stream.peer_cred() {
            self.serve(stream, Peer::Local { uid: credentials.uid() }, room);
        }
    }

    fn accepted_tcp(&mut self, stream: TcpStream) {
        let Ok(room) = Arc::clone(&self.tcp_room).try_acquire_owned() else {
            stream.try_write(FULL).ok();
            return;
        };
        let Ok(local) = stream.local_addr() else { return };
        // An answer is one write, and waiting for more would only delay it.
        stream.set_nodelay(true).ok();
        let peer = if local.ip().is_loopback() {
            Peer::Loopback { port: local.port() }
        } else {
            Peer::Anywhere
        };
        self.serve(stream, peer, room);
    }

    fn serve<S>(&mut self, stream: S, peer: Peer, room: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (router, stop) = (self.router.clone(), self.server.stop.clone());
        self.all.spawn(async move {
            converse(stream, peer, router, stop).await;
            drop(room);
        });
    }

    /// Lets requests that are under way end: all of them for a while, then those that can be told that
    /// they were cancelled, then none.
    async fn end(&mut self, drain: Duration, signals: &mut Signals) {
        self.server.stop.drain();
        tokio::select! {
            () = finished(&mut self.all) => return,
            () = tokio::time::sleep(drain) => {}
            () = signals.next() => {}
        }
        self.server.stop.cancel();
        // Those that do not take their answer are closed below.
        tokio::time::timeout(FAREWELL, finished(&mut self.all)).await.ok();
        self.all.shutdown().await;
    }
}

/// What there is now, without waiting for more.
async fn at_once<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>) -> Option<T> {
    std::future::poll_fn(|context| match poll(context) {
        Poll::Ready(result) => Poll::Ready(result.ok()),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

async fn finished(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// What a client gets for which there is no room.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n\
    Retry-After: 1\r\nConnection: close\r\nContent-Length: 90\r\n\r\n\
    {\"status\":503,\"title\":\"Service Unavailable\",\"kind\":\"busy\",\
    \"detail\":\"too many connections\"}";

/// One connection to its end. When the client goes away this ends too, and with it what it asked for.
pub(crate) async fn converse<S>(stream: S, peer: Peer, router: Router, stop: Stop)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let asked = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        // A router is always ready.
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(Impatient::new(stream)), service);
    tokio::pin!(connection);
    // Whatever ends a connection is told to the client by the end of the connection.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.draining() => {}
    }
    connection.as_mut().graceful_shutdown();
    if !asked.load(Ordering::Relaxed) {
        // Its request may be on the way; one that has none is not waited for.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = tokio::time::sleep(LAST_REQUEST) => {}
        }
    }
    if asked.load(Ordering::Relaxed) {
        connection.await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_can_reach_must_be_meant() {
        let options = |listen: &str, listen_anywhere| Options {
            listen: listen.parse().ok(),
            listen_anywhere,
            socket: None,
            state: None,
            max_runs: NonZeroUsize::MIN,
            max_queue: 0,
            drain: Duration::ZERO,
            proposers: BTreeMap::new(),
            limits: LimitOptions::default(),
            sandboxes: SandboxLimits::default(),
        };
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let error = check(&options(open, false)).unwrap_err().to_string();
            assert!(error.contains("127.0.0.1") && error.contains("--listen-anywhere"), "{error}");
            assert!(check(&options(open, true)).is_ok());
        }
        for closed in ["127.0.0.1:0", "[::1]:7070", "none"] {
            assert!(check(&options(closed, false)).is_ok());
        }
    }

    #[test]
    fn the_answer_of_a_full_server_has_the_length_it_says() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
        let problem: crate::Problem = serde_json::from_str(body).unwrap();
        assert_eq!(&*problem.kind, "busy");
    }
}
