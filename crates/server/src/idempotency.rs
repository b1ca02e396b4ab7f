//! `Idempotency-Key`: a request that is sent again is not carried out again; it gets the first one's answer, also while
//! that is still being made. With a key the work no longer belongs to the connection: who loses it comes back with the
//! same key and reads on.
//!
//! In memory is what goes on, and what may not be on the disk; all else is in [`kept`], which outlives the server.

pub(crate) mod kept;
mod recorded;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar::audit::{self, Filter};
use belljar::store::Store;
use hyper::header::{ACCEPT, HeaderValue};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::front::RequestId;
use crate::http::body::{self, Reading};
use crate::http::{Server, TENANT};
use crate::principal::Principal;
use crate::problem::Problem;
use crate::wire::MAX_BODY_BYTES;
use kept::{Claim, Ending, Found, Kept};
use recorded::{Came, Reader, Recorded};

pub(crate) const HEADER: &str = "idempotency-key";
const REPLAYED: &str = "idempotent-replayed";
const LAST_EVENT: &str = "last-event-id";
/// The longest key.
const MOST_KEY: usize = 255;
/// How long an answer is given again.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// In memory, of each tenant; the oldest that have ended make room.
const MOST_KEYS: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;
/// How many more may be remembered in their order than there are, before those that are gone are left out.
const SLACK: usize = 64;
/// Of two requests with one key the second waits until the first is claimed; others hardly ever do.
const TURNS: usize = 64;
/// Runs of a lost request that are named.
const MOST_NAMED: usize = 100;

#[derive(Debug)]
struct Entry {
    digest: [u8; 32],
    since: Instant,
    answer: Arc<Recorded>,
}

/// The keys of one tenant.
#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<[u8; 32], Entry>,
    /// In the order in which they came; those that were let go earlier are passed over.
    order: VecDeque<([u8; 32], Instant)>,
}

impl Shelf {
    /// Lets go of what is too old or too much. What goes on stays.
    fn tidy(&mut self, now: Instant) {
        let mut bytes: usize = self.entries.values().map(|entry| entry.answer.kept_bytes()).sum();
        for _ in 0..self.order.len() {
            let Some((key, since)) = self.order.pop_front() else { return };
            let Some(entry) = self.entries.get(&key).filter(|entry| entry.since == since) else {
                continue;
            };
            let old = now.duration_since(since) >= WINDOW;
            let much = self.entries.len() >= MOST_KEYS || bytes > MOST_BYTES;
            if !old && !much {
                self.order.push_front((key, since));
                return;
            }
            if entry.answer.goes_on() {
                self.order.push_back((key, since));
                continue;
            }
            bytes -= entry.answer.kept_bytes();
            self.entries.remove(&key);
        }
    }

    fn remove(&mut self, key: &[u8; 32]) {
        self.entries.remove(key);
        // Those that came before one that goes on are never at the front, and would be passed over for ever.
        if self.order.len() > 2 * self.entries.len() + SLACK {
            let entries = &self.entries;
            let is_there = |(key, since): &([u8; 32], Instant)| {
                entries.get(key).is_some_and(|entry| entry.since == *since)
            };
            self.order.retain(is_there);
        }
    }
}

/// What was answered to whom.
#[derive(Debug)]
pub(crate) struct Memory {
    tenants: Mutex<HashMap<String, Shelf>>,
    turns: [tokio::sync::Mutex<()>; TURNS],
    /// Nothing for who is gone after one request.
    kept: Option<Kept>,
    /// What is carried out: it ends with no connection, so that whoever ends the server has to wait for it here.
    under_way: Mutex<JoinSet<()>>,
}

/// What is known of a key.
enum Known {
    /// Nothing: it is carried out now.
    New(Arc<Recorded>),
    Before(Arc<Recorded>),
}

impl Memory {
    pub(crate) fn new(kept: Option<Kept>) -> Self {
        let turns = std::array::from_fn(|_| tokio::sync::Mutex::default());
        let (tenants, under_way) = (Mutex::default(), Mutex::default());
        Self { tenants, turns, kept, under_way }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut all = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        while all.try_join_next().is_some() {}
        all.spawn(work);
    }

    /// Waits until nothing is carried out any more. Who does not wait to the end can come back.
    pub(crate) async fn finished(&self) {
        std::future::poll_fn(|context| {
            let mut all = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match ready!(all.poll_join_next(context)) {
                    Some(_) => {}
                    None => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    /// Ends what is still carried out; its claims stay, and are told as unknown.
    pub(crate) async fn shut_down(&self) {
        let mut all =
            std::mem::take(&mut *self.under_way.lock().unwrap_or_else(PoisonError::into_inner));
        all.shutdown().await;
    }

    /// Looks a key up, and claims it if it is new.
    async fn begin(&self, server: &Server, claim: &Claim) -> Result<Known, Problem> {
        let turn = self.turn(claim).await;
        if let Some(before) = self.look(claim)? {
            return Ok(Known::Before(before));
        }
        let found = match &self.kept {
            Some(kept) => kept.claim(claim.clone()).await?,
            None => Found::Claimed,
        };
        match found {
            Found::Claimed => Ok(Known::New(self.enter(claim))),
            Found::Other => Err(mismatch()),
            Found::Answered(answer) => Ok(Known::Before(Arc::new(Recorded::whole(answer)))),
            Found::LetGo => {
                let detail =
                    "what was asked for with this key has ended, and its answer is not kept";
                Err(Problem::coded("idempotency_lost", detail))
            }
            Found::Full => {
                let detail = "all keys that are kept for this caller are of what goes on";
                Err(Problem::coded("busy", detail))
            }
            Found::Unknown { since_us, request_id } => {
                // Looking takes its time, and others have keys too.
                drop(turn);
                Err(unknown(server, &claim.tenant, since_us, request_id).await)
            }
        }
    }

    /// What is in memory of a key. There is room for one more afterwards.
    fn look(&self, claim: &Claim) -> Result<Option<Arc<Recorded>>, Problem> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shelf) = tenants.get_mut(&claim.tenant) else { return Ok(None) };
        shelf.tidy(Instant::now());
        match shelf.entries.get(&claim.key) {
            Some(entry) if crate::token::same(&entry.digest, &claim.request) => {
                Ok(Some(Arc::clone(&entry.answer)))
            }
            Some(_) => Err(mismatch()),
            None if shelf.entries.len() >= MOST_KEYS => {
                let detail = format!("{MOST_KEYS} requests with keys go on");
                Err(Problem::coded("busy", detail))
            }
            None => Ok(None),
        }
    }

    fn enter(&self, claim: &Claim) -> Arc<Recorded> {
        let (since, answer) = (Instant::now(), Arc::new(Recorded::default()));
        let entry = Entry { digest: claim.request, since, answer: Arc::clone(&answer) };
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = tenants.entry(claim.tenant.clone()).or_default();
        shelf.entries.insert(claim.key, entry);
        shelf.order.push_back((claim.key, since));
        answer
    }

    /// Ends what goes on under a tenant's key; says whether anything did. On return it is gone.
    pub(crate) async fn end(&self, tenant: &str, key: &str) -> bool {
        let claim = Claim::new(tenant, key, &[], "");
        // Whoever has just sent it may be claiming it still.
        let turn = self.turn(&claim).await;
        let found = {
            let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = tenants.get(tenant).and_then(|shelf| shelf.entries.get(&claim.key));
            entry.map(|entry| Arc::clone(&entry.answer)).filter(|answer| answer.goes_on())
        };
        drop(turn);
        match found {
            Some(answer) => answer.end().await,
            None => false,
        }
    }

    /// The turn of whoever claims this key.
    async fn turn(&self, claim: &Claim) -> tokio::sync::MutexGuard<'_, ()> {
        self.turns[usize::from(claim.key[0]) % TURNS].lock().await
    }

    fn forget(&self, claim: &Claim) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shelf) = tenants.get_mut(&claim.tenant) else { return };
        shelf.remove(&claim.key);
        if shelf.entries.is_empty() {
            tenants.remove(&claim.tenant);
        }
    }

    /// Carries a request out and keeps its answer.
    async fn carry_out(&self, claim: &Claim, answer: &Recorded, request: Request, next: Next) {
        let keep = async |came: Came| {
            let ending = match came {
                Came::NotBegun => Ending::Forgotten,
                // The claim stays as it is: whoever comes to the next server is told that the end is unknown.
                Came::BrokenOff => return,
                Came::Answer(Some(whole)) if self.kept.as_ref().is_some_and(|kept| kept.bodies) => {
                    Ending::Answered(whole)
                }
                Came::Answer(_) => Ending::LetGo,
            };
            let (is_forgotten, is_in_memory_alone) =
                (matches!(ending, Ending::Forgotten), matches!(ending, Ending::LetGo));
            let ended = match &self.kept {
                Some(kept) => kept.end(&claim.tenant, claim.key, ending).await,
                None => Ok(()),
            };
            // What did not reach the disk is told from memory while there is one, and let go afterwards.
            if is_forgotten || (ended.is_ok() && !is_in_memory_alone) {
                self.forget(claim);
            }
        };
        let ended = tokio::select! {
            biased;
            () = answer.is_to_end() => true,
            () = answer.record(next.run(request), keep) => false,
        };
        if ended {
            self.let_go(claim).await;
            answer.ended();
        }
    }

    /// What its caller ended is over, and whoever asks again is told that it has no answer.
    async fn let_go(&self, claim: &Claim) {
        let Some(kept) = &self.kept else { return };
        // What could not be written is told from memory, as what was cut off.
        if kept.end(&claim.tenant, claim.key, Ending::LetGo).await.is_ok() {
            self.forget(claim);
        }
    }

    /// How many answers are kept, for whoever counts them.
    pub(crate) fn count(&self) -> usize {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let in_memory = tenants.values().map(|shelf| shelf.entries.len()).sum();
        self.kept.as_ref().map_or(in_memory, Kept::count)
    }
}

fn mismatch() -> Problem {
    let detail = "this Idempotency-Key came before with another method, path, Accept or body";
    Problem::coded("idempotency_mismatch", detail)
}

/// What is told of a request whose server ended before its answer was kept.
async fn unknown(server: &Server, tenant: &str, since_us: u64, request_id: String) -> Problem {
    let filter = Filter {
        since_us: Some(since_us),
        tenant: (!tenant.is_empty()).then(|| tenant.to_owned()),
        request_id: Some(request_id.clone()),
        ..Filter::default()
    };
    let named = match server.audit.clone() {
        Some(directory) => {
            let read = tokio::task::spawn_blocking(move || runs_of(&directory, &filter)).await;
            read.unwrap_or_default()
        }
        None => Vec::new(),
    };
    let began = audit::show_time(since_us);
    let look = if named.is_empty() {
        "no run is recorded of it: look at what there is".to_owned()
    } else {
        format!("look at GET /v1/runs/ID of {}", named.join(", "))
    };
    let detail = format!(
        "what was asked for with this key at {began} was under way when the server ended, and is not done \
         again; {look}"
    );
    let mut problem = Problem::coded("outcome_unknown", detail);
    problem.executions = Some(named.into());
    problem
}

/// The runs that a request began, as far as they are recorded.
fn runs_of(directory: &Path, filter: &Filter) -> Vec<String> {
    let read =
        Store::read(directory).and_then(|store| audit::list(&store, filter, None, MOST_NAMED));
    read.unwrap_or_default().into_iter().map(|line| line.execution_id).collect()
}

/// Answers a request that has a key.
pub(crate) async fn answer(
    server: &Arc<Server>,
    principal: &Principal,
    key: &HeaderValue,
    request: Request,
    next: Next,
) -> Response {
    match try_answer(server, principal, key, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn try_answer(
    server: &Arc<Server>,
    principal: &Principal,
    key: &HeaderValue,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let key = check(key)?;
    let (head, body) = request.into_parts();
    let reading = head.extensions.get::<Reading>();
    let reading = reading.ok_or_else(|| Problem::coded("ours", "nobody asked"))?;
    let bytes = body::whole(body, reading, MAX_BODY_BYTES).await?;
    let accept = head.headers.get(ACCEPT).map_or(&b""[..], HeaderValue::as_bytes);
    let target = head.uri.path_and_query().map_or("", |one| one.as_str());
    let named = head.extensions.get::<RequestId>();
    let request_id = named.map_or("", |id| id.0.as_str());
    // In whose name is a part of what is asked.
    let tenant = head.headers.get(TENANT).map_or(&b""[..], HeaderValue::as_bytes);
    let asked: [&[u8]; 5] =
        [head.method.as_str().as_bytes(), target.as_bytes(), accept, tenant, &bytes];
    let claim = Claim::new(principal.tenant.name(), &key, &asked, request_id);
    let resume =
        head.headers.get(LAST_EVENT).and_then(|id| id.to_str().ok()).map(ToOwned::to_owned);
    let request = Request::from_parts(head, Body::from(bytes));
    // From here on nothing ends with the connection: a claim without its work would never be answered.
    let (told, known) = oneshot::channel();
    let theirs = Arc::clone(server);
    server.memory.spawn(async move {
        let (new, reader) = match theirs.memory.begin(&theirs, &claim).await {
            Ok(Known::New(answer)) => (Some(Arc::clone(&answer)), Ok(Reader::first(answer))),
            Ok(Known::Before(answer)) => (None, Ok(Reader::later(answer, resume))),
            Err(problem) => (None, Err(problem)),
        };
        // Whoever asked may be gone, and the reader with it; the work is done all the same.
        drop(told.send(reader));
        if let Some(answer) = new {
            theirs.memory.carry_out(&claim, &answer, request, next).await;
        }
    });
    let lost = |_| Problem::coded("ours", "what looks after keys broke");
    let reader = known.await.map_err(lost)??;
    let before = !reader.is_first();
    if before {
        server.metrics.replayed.fetch_add(1, Ordering::Relaxed);
    }
    let mut response = reader.response().await?;
    if before {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn resumed(answer: &[u8], id: &str) {
    recorded::resumed(answer, id);
}

pub(crate) fn check(key: &HeaderValue) -> Result<String, Problem> {
    let text = key.to_str().ok().filter(|text| !text.is_empty() && text.len() <= MOST_KEY);
    text.map(ToOwned::to_owned).ok_or_else(|| {
        let reason = format!("must be 1 to {MOST_KEY} visible ASCII characters");
        Problem::field("Idempotency-Key", &reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_not_remembered_in_its_order() {
        let memory = Memory::new(None);
        let claim = |number: u64| Claim::new("t", &number.to_string(), &[b"x"], "req_1");
        memory.enter(&claim(0));
        for number in 1..10_000 {
            memory.enter(&claim(number));
            memory.forget(&claim(number));
        }
        let tenants = memory.tenants.lock().unwrap();
        let shelf = &tenants["t"];
        assert_eq!(shelf.entries.len(), 1, "one goes on");
        assert!(shelf.order.len() <= 2 + SLACK, "{}", shelf.order.len());
        assert!(shelf.order.iter().any(|(key, _)| *key == claim(0).key), "it stays in its order");
    }

    #[tokio::test]
    async fn the_end_of_what_is_carried_out_is_waited_for_without_its_connection() {
        let memory = Memory::new(None);
        let (go, gone) = oneshot::channel::<()>();
        memory.spawn(async move { drop(gone.await) });
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, memory.finished()).await.is_err(), "it goes on");
        drop(go);
        memory.finished().await;
        memory.spawn(std::future::pending());
        memory.shut_down().await;
        memory.finished().await;
    }
}
