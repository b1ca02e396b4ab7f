//! What all connections share, and where they come in.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use belljar_jail::egress::{EgressPlan, From, Listener, Why};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::address::may_be_dialled;
use crate::budget::Budget;
use crate::ended::{Ended, Leak};
use crate::ledger::Ledger;
use crate::names::{Book, Target};
use crate::policy::{Grant, Policy};
use crate::resolver::{Known, Resolver};
use crate::stream::Asked;
use crate::{proxy, stream};

/// How long one address has to answer, and how many of a name's are tried.
const DIALLING: Duration = Duration::from_secs(10);
const MAX_TRIED: usize = 4;
/// How long nobody is accepted after one could not be.
pub(crate) const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
/// Questions from inside that are being answered at once.
const ASKING: usize = 256;

#[derive(Debug)]
pub(crate) struct Shared {
    pub policy: RefCell<Policy>,
    pub book: RefCell<Book>,
    pub ledger: Ledger,
    pub budget: Budget,
    pub resolver: Resolver,
    pub asking: Arc<Semaphore>,
    /// What is looked into, and what must not leave.
    pub ended: Ended,
    /// Counts the changes of the policy.
    changes: watch::Sender<u64>,
}

/// Why a connection ends before its time.
#[derive(Debug)]
pub(crate) struct Refusal {
    why: Option<Why>,
    detail: String,
    /// The name of the host is what may not be told.
    in_name: bool,
}

/// What is told of a host in whose name something was about to leave.
const UNNAMED: &str = "a host in whose name it stands";

impl Refusal {
    pub(crate) fn new(why: Why, detail: &str) -> Self {
        Self { why: Some(why), detail: detail.to_owned(), in_name: false }
    }

    /// Nobody refused anything: one side has gone, or was idle for too long. A budget that is used up is refused.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn broken(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::QuotaExceeded {
            return Self::new(Why::Budget, "bytes");
        }
        if let Some(leak) = error.get_ref().and_then(|inner| inner.downcast_ref::<Leak>()) {
            return Self::leak(leak);
        }
        Self { why: None, detail: String::new(), in_name: false }
    }

    /// Something was about to leave that may not.
    pub(crate) fn leak(leak: &Leak) -> Self {
        Self::new(leak.why, &leak.detail)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.why.is_none()
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn why(&self) -> Option<Why> {
        self.why
    }

    fn host(&self, asked: &Asked) -> String {
        if self.in_name { UNNAMED.to_owned() } else { asked.target.to_string() }
    }

    /// For the program that asked.
    pub(crate) fn words(&self, asked: &Asked) -> String {
        let Asked { target, port } = asked;
        let what = match self.why {
            Some(Why::Name) => format!("{target} is not allowed. To allow it: --egress {target}"),
            Some(Why::Port) => {
                format!(
                    "port {port} of {target} is not allowed. To allow it: --egress {target}:{port}"
                )
            }
            Some(Why::Host) => format!("the request is for another host than {target}"),
            Some(Why::Method | Why::Path) => format!("{} is not allowed at {target}", self.detail),
            Some(Why::Framing) => format!("the request has {}", self.detail),
            Some(Why::Address) => {
                format!("{target} resolves to {}, which is not public", self.detail)
            }
            Some(Why::Unreachable) => format!("{target}:{port} cannot be reached: {}", self.detail),
            Some(Why::Budget) => format!("the budget of {} is used up", self.detail),
            Some(Why::Placeholder) => {
                format!("the placeholder of {} may not go to {target}", self.detail)
            }
            Some(Why::Canary) => format!("a decoy was on its way to {target}"),
            Some(Why::Certificate) => format!("{target} is not who it should be: {}", self.detail),
            Some(Why::Http2) => format!(
                "{target} speaks no HTTP/1.1, which is all that is looked into: exempt it in the secret, or allow it \
                 without inspect"
            ),
            Some(Why::Encoded) => format!(
                "the answer of {target} cannot be looked into for secrets ({}): exempt it, and it gets none",
                self.detail
            ),
            Some(Why::Protocol | Why::Sni | Why::Tightened | Why::Distrusted | Why::Crashed)
            | None => {
                format!("{target}:{port} is not allowed: {}", self.detail)
            }
        };
        format!("belljar: {what}")
    }
}

impl Shared {
    pub(crate) fn new(plan: &EgressPlan, ended: Ended) -> Self {
        let mut book = Book::default();
        book.learn(plan);
        Self {
            policy: RefCell::new(Policy::new(plan)),
            book: RefCell::new(book),
            ledger: Ledger::default(),
            budget: Budget::new(&plan.budget),
            resolver: Resolver::new(&plan.nameservers),
            asking: Arc::new(Semaphore::new(ASKING)),
            ended,
            changes: watch::Sender::new(0),
        }
    }

    /// Another policy, for what is open too.
    pub(crate) fn change(&self, plan: &EgressPlan) {
        self.book.borrow_mut().learn(plan);
        *self.policy.borrow_mut() = Policy::new(plan);
        self.changes.send_modify(|count| *count += 1);
    }

    /// A name leaves too: its host's server is asked for it, and it stands in handshakes. `said` is how it was written, for
    /// letters count here, and there is only one spelling of names.
    pub(crate) fn check_words(&self, asked: &Asked, said: &[u8]) -> Result<(), Refusal> {
        let leak = self.ended.leak_to(&asked.target.to_string(), said);
        leak.map_or(Ok(()), |leak| Err(Refusal { in_name: true, ..Refusal::leak(&leak) }))
    }

    /// What a new connection may do.
    pub(crate) fn grant(&self, asked: &Asked) -> Result<Grant, Refusal> {
        let mut grant = self.grant_again(asked)?;
        self.budget.connect().map_err(|what| Refusal::new(Why::Budget, what))?;
        grant.since = *self.changes.borrow();
        Ok(grant)
    }

    /// What one that is open may do by now.
    pub(crate) fn grant_again(&self, asked: &Asked) -> Result<Grant, Refusal> {
        let grant = self.policy.borrow().grant(&asked.target, asked.port);
        grant.map_err(|why| Refusal::new(why, ""))
    }

    /// Until it is no longer allowed. What has changed since it was granted counts too: meanwhile its host was dialled, or
    /// nothing was said.
    pub(crate) async fn withdrawn(
        &self,
        asked: &Asked,
        granted: &Grant,
        needs: impl Fn(&Grant) -> bool,
    ) {
        let (mut changes, mut known) = (self.changes.subscribe(), granted.since);
        loop {
            let now = *changes.borrow_and_update();
            if now != known && !self.grant_again(asked).is_ok_and(|grant| needs(&grant)) {
                return;
            }
            known = now;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The same without waiting until somebody has looked who it was.
    pub(crate) fn note_now(&self, client: &TcpStream, asked: &Asked, refusal: &Refusal) {
        if let Some(why) = refusal.why {
            let host = refusal.host(asked);
            self.ledger.note(stream_of(client), (&host, asked.port, why, &refusal.detail));
        }
    }

    /// Before the client hears of it.
    pub(crate) async fn note(&self, client: &TcpStream, asked: &Asked, refusal: &Refusal) {
        if let Some(why) = refusal.why {
            let host = refusal.host(asked);
            self.ledger.refuse(stream_of(client), (&host, asked.port, why, &refusal.detail)).await;
        }
    }

    /// Dials an address that was checked: the one that is checked is the one that is dialled.
    pub(crate) async fn dial(&self, asked: &Asked, grant: &Grant) -> Result<TcpStream, Refusal> {
        let unreachable = |what: &str| Refusal::new(Why::Unreachable, what);
        let found = match &asked.target {
            Target::Address(address) => vec![*address],
            Target::Name(name) => match self.resolver.look_up(name).await {
                Known::Addresses(found) => found,
                Known::NoSuchName => return Err(unreachable("no such name")),
                Known::Failed => return Err(unreachable("no name server answered")),
            },
        };
        let named = grant.ranges();
        let (fit, unfit): (Vec<IpAddr>, Vec<IpAddr>) =
            found.into_iter().partition(|address| may_be_dialled(*address, &named));
        if let (true, Some(address)) = (fit.is_empty(), unfit.first()) {
            return Err(Refusal::new(Why::Address, &address.to_string()));
        }
        let mut last = unreachable("it has no address");
        for address in fit.into_iter().take(MAX_TRIED) {
            let to = SocketAddr::new(address, asked.port);
            match tokio::time::timeout(DIALLING, TcpStream::connect(to)).await {
                Ok(Ok(server)) => {
                    // Without it small requests wait for nothing. It is a matter of speed alone.
                    server.set_nodelay(true).ok();
                    return Ok(server);
                }
                Ok(Err(error)) => last = unreachable(&error.kind().to_string()),
                Err(_) => last = unreachable("it does not answer"),
            }
        }
        Err(last)
    }
}

/// Where a client is, for who looks who it is.
pub(crate) fn stream_of(client: &TcpStream) -> Option<From> {
    client.peer_addr().ok().map(|address| From { address, datagrams: false })
}

/// Accepts for as long as there is a listener.
pub(crate) async fn accept(shared: Rc<Shared>, listener: TcpListener, kind: Listener) {
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            // It has gone already, or there is no descriptor to spare: others may follow.
            Err(_) => {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        shared.budget.opening.wait().await;
        let Ok(turn) = Arc::clone(&shared.budget.at_once).acquire_owned().await else { return };
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            let _turn = turn;
            client.set_nodelay(true).ok();
            match kind {
                Listener::Proxy => proxy::serve(&shared, &client).await,
                Listener::Port(_) | Listener::DnsTcp | Listener::DnsUdp => {
                    by_address(&shared, &client).await;
                }
            }
        });
    }
}

/// Who connected to an address of ours meant the name that it stands for.
async fn by_address(shared: &Rc<Shared>, client: &TcpStream) {
    let Ok(local) = client.local_addr() else { return };
    let target = match local.ip() {
        IpAddr::V4(address) => match shared.book.borrow().name(address) {
            Some(name) => Target::Name(name.to_owned()),
            None => Target::Address(address.into()),
        },
        address @ IpAddr::V6(_) => Target::Address(address),
    };
    let asked = Asked { target, port: local.port() };
    if let Err(refusal) = stream::carry(shared, client, &asked, None).await {
        if !refusal.is_broken() {
            shared.note(client, &asked, &refusal).await;
        }
        // At once, rather than in good order: nothing of it was meant to be.
        rustix::net::sockopt::set_socket_linger(client, Some(Duration::ZERO)).ok();
    }
}
