//! The life of a server: listen, accept, drain, end.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use belljar::audit::Bodies;
use belljar::living::{SandboxLimits, Sandboxes};
use belljar::{Config, Engine, Error, Queue, SpecError};
use belljar_evolve::ProposerSpec;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::activation::{self, Inherited};
use crate::admission::{Admission, AdmissionOptions};
use crate::connections::{Room, converse, full};
use crate::door::{Door, Peer};
use crate::http::evolutions::Evolutions;
use crate::http::{self, Server};
use crate::idempotency::Memory;
use crate::idempotency::kept::{Bounds, Kept};
use crate::journal::{Journal, LogForm, LogLevel};
use crate::keys::Keys;
use crate::limits::{LimitOptions, Limits};
use crate::listen::{self, Socket};
use crate::metrics::Metrics;
use crate::places;
use crate::policy::Policy;
use crate::stop::Stop;
use crate::tending;
use crate::token::{self, Origin, Token};
use crate::trace::{Collector, Spans};

/// How long cancelled requests may take to be told so.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the last sandboxes may take to be gone; they take milliseconds.
const SETTLE: Duration = Duration::from_secs(10);
/// Out of descriptors: some must be closed before the next connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What a server is asked to be.
#[derive(Debug)]
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
    /// The operator's policy.
    pub policy: Option<PathBuf>,
    pub admission: AdmissionOptions,
    /// Connections of each listener.
    pub max_connections: usize,
    pub log_level: LogLevel,
    pub log_form: LogForm,
    /// Where spans are sent.
    pub collector: Option<Collector>,
    /// Listening sockets that were handed to us; they stand in for our own.
    pub inherited: Vec<OwnedFd>,
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
    mut options: Options,
    tell: impl FnOnce(&Listening),
) -> Result<(), Error> {
    let state = options.state.clone().or_else(places::state);
    let socket = options.socket.clone().or_else(places::socket);
    let homeless = || SpecError::new("state", "has no default without HOME: give --state DIR");
    let (state, socket) = (state.ok_or_else(homeless)?, socket.ok_or_else(homeless)?);
    token::state_directory(&state)?;
    config.secrets.state = Some(state.clone());
    let keys = Keys::new(state.clone());
    let inherited = Inherited::of(std::mem::take(&mut options.inherited))?;
    let asked = inherited.address().or(options.listen);
    check(asked, options.listen_anywhere, keys.any())?;
    // Before we listen: a signal that comes now must not find us without an answer.
    let mut signals = Signals::new()?;
    let (token, token_file) = match asked {
        None => (None, None),
        Some(_) => match Token::provide(&state)? {
            (token, Origin::File(path)) => (Some(token), Some(path)),
            (token, Origin::Variable) => (Some(token), None),
        },
    };
    let tcp = match (inherited.tcp, options.listen) {
        (Some(listener), _) => Some(listener),
        // A unit that hands over a socket says where to listen.
        (None, Some(address)) if inherited.unix.is_none() => Some(listen::tcp(address)?),
        (None, _) => None,
    };
    let unix = match inherited.unix {
        Some(listener) => listener,
        None => listen::unix(&socket)?,
    };
    let socket = unix.path().map_or(socket, std::path::Path::to_path_buf);
    let address = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
    let token_file = token_file.filter(|_| address.is_some());
    let door = Door { own_uid: rustix::process::geteuid().as_raw(), token, keys };
    let (server, router) = open(config, &options, state, door).await?;
    let tender = tokio::spawn(tending::tend(Arc::clone(&server)));
    tell(&Listening { socket, address, token_file });
    activation::notify("READY=1");
    let mut connections = Connections::new(&server, router, options.max_connections);
    connections.accept(unix, tcp, &mut signals).await;
    activation::notify("STOPPING=1");
    connections.end(options.drain, &mut signals).await;
    tender.abort();
    server.engine.empty_pool();
    if server.engine.settle(SETTLE).await {
        return Ok(());
    }
    Err(Error::Lost { what: "sandboxes did not end in time; the next start removes what is left" })
}

/// Makes all that requests share, and the routes in front of it.
async fn open(
    config: Config,
    options: &Options,
    state: PathBuf,
    door: Door,
) -> Result<(Arc<Server>, Router), Error> {
    let policy = Policy::open(policy_file(options, &state))?;
    let audit = config.audit.as_ref().map(|audit| audit.directory.clone());
    let bodies = config.audit.as_ref().is_some_and(|audit| audit.bodies == Bodies::Kept);
    let kept = Kept::open(&state, bodies, Bounds::default())?;
    let engine = Arc::new(Engine::open(config)?);
    // A trail that cannot be written is told now, not to the first who wants to run something.
    engine.recorded().await?;
    let all_sandboxes = Sandboxes::open_within(&engine, &state, options.sandboxes).await?;
    let (routes, table) = http::api().finish();
    let metrics = Arc::new(Metrics::new(table.listed.len()));
    let spans = options.collector.clone().map(|to| Spans::start(to, &metrics));
    let server = Arc::new(Server {
        engine,
        all_sandboxes,
        queue: Queue::new(options.max_runs, options.max_queue),
        door,
        stop: Stop::new(),
        evolutions: Evolutions::new(state.join(places::EVOLUTIONS), options.proposers.clone()),
        limits: Limits::new(&options.limits, audit.as_deref()),
        audit,
        policy,
        admission: Admission::new(options.admission.clone()),
        memory: Memory::new(Some(kept)),
        table,
        journal: Journal::start(options.log_level, options.log_form, Arc::clone(&metrics)),
        metrics,
        spans,
        making: tokio::sync::Mutex::default(),
        terminals: http::terminals(),
        bodies: http::body::Bodies::new(options.max_runs.get().saturating_add(options.max_queue)),
    });
    let router = http::router(routes, Arc::clone(&server));
    Ok((server, router))
}

/// The file that was named, or the one that lies in the state directory.
fn policy_file(options: &Options, state: &std::path::Path) -> Option<PathBuf> {
    let usual = state.join(places::POLICY);
    options.policy.clone().or_else(|| usual.exists().then_some(usual))
}

fn check(listen: Option<SocketAddr>, anywhere: bool, has_keys: bool) -> Result<(), SpecError> {
    let Some(address) = listen.filter(|address| !address.ip().is_loopback()) else {
        return Ok(());
    };
    if !anywhere {
        let reason = format!(
            "is {address}, which others can reach, and whoever has a key can run programs: listen \
             on 127.0.0.1, or say --listen-anywhere if that is meant (there is no TLS: put a proxy in \
             front)"
        );
        return Err(SpecError::new("listen", reason));
    }
    if !has_keys {
        let reason = format!(
            "is {address}, which others can reach, and there is no key that they could show: make one \
             with belljar key create NAME"
        );
        return Err(SpecError::new("listen", reason));
    }
    Ok(())
}

/// The signals that end a server. The first drains it, the second ends it. With a policy SIGHUP only has it read again.
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

    /// The next signal that ends.
    async fn next(&mut self, server: &Server) {
        let [terminate, interrupt, hangup] = &mut self.0;
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                _ = hangup.recv() => {
                    if !server.policy.has_file() {
                        return;
                    }
                    tending::report(server, server.policy.reload());
                }
            }
        }
    }
}

/// The connections of a server.
struct Connections {
    server: Arc<Server>,
    router: Router,
    all: JoinSet<()>,
    unix_room: Room,
    tcp_room: Room,
}

impl Connections {
    fn new(server: &Arc<Server>, router: Router, most: usize) -> Self {
        let (unix_room, tcp_room) = (Room::new(most), Room::new(most));
        Self { server: Arc::clone(server), router, all: JoinSet::new(), unix_room, tcp_room }
    }

    /// Accepts until a signal comes. Dropping the listeners then is what makes new clients look elsewhere.
    async fn accept(&mut self, unix: Socket, tcp: Option<TcpListener>, signals: &mut Signals) {
        let server = Arc::clone(&self.server);
        loop {
            let from_tcp = async {
                match &tcp {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = signals.next(&server) => break,
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
        // A peer that is gone already has no credentials.
        if let Ok(credentials) = stream.peer_cred() {
            let room = self.unix_room.clone();
            self.serve(stream, Peer::Local { uid: credentials.uid() }, room, |stream, bytes| {
                stream.try_write(bytes)
            });
        }
    }

    fn accepted_tcp(&mut self, stream: TcpStream) {
        let Ok(local) = stream.local_addr() else { return };
        // An answer is one write, and waiting for more would only delay it.
        stream.set_nodelay(true).ok();
        let peer = if local.ip().is_loopback() {
            Peer::Loopback { port: local.port() }
        } else {
            Peer::Anywhere
        };
        let room = self.tcp_room.clone();
        self.serve(stream, peer, room, |stream, bytes| stream.try_write(bytes));
    }

    fn serve<S>(
        &mut self,
        stream: S,
        peer: Peer,
        room: Room,
        refuse: fn(&S, &[u8]) -> io::Result<usize>,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (router, server) = (self.router.clone(), Arc::clone(&self.server));
        self.all.spawn(async move {
            let Some(place) = room.enter().await else {
                server.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
                // One that cannot take even this much misses nothing.
                refuse(&stream, &full()).ok();
                return;
            };
            server.metrics.connections.fetch_add(1, Ordering::Relaxed);
            converse(stream, peer, router, server.stop.clone(), Some(place)).await;
            server.metrics.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Lets requests that are under way end: all of them for a while, then those that can be told that
    /// they were cancelled, then none.
    async fn end(&mut self, drain: Duration, signals: &mut Signals) {
        let server = Arc::clone(&self.server);
        server.stop.drain();
        tokio::select! {
            () = self.finished() => return,
            () = tokio::time::sleep(drain) => {}
            () = signals.next(&server) => {}
        }
        server.stop.cancel();
        // Those that do not take their answer are closed below.
        tokio::time::timeout(FAREWELL, self.finished()).await.ok();
        self.all.shutdown().await;
        server.memory.shut_down().await;
    }

    /// Until all connections are closed, and all is done that does not end with its connection.
    async fn finished(&mut self) {
        while self.all.join_next().await.is_some() {}
        self.server.memory.finished().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_can_reach_must_be_meant_and_needs_a_key() {
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let open = open.parse().ok();
            let error = check(open, false, true).unwrap_err().to_string();
            assert!(error.contains("127.0.0.1") && error.contains("--listen-anywhere"), "{error}");
            let error = check(open, true, false).unwrap_err().to_string();
            assert!(error.contains("belljar key create"), "{error}");
            assert!(check(open, true, true).is_ok());
        }
        for closed in ["127.0.0.1:0", "[::1]:7070", "none"] {
            assert!(check(closed.parse().ok(), false, false).is_ok());
        }
    }
}
