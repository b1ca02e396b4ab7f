//! `Idempotency-Key`: a request that is sent again is not carried out again; it gets the first one's answer, also while
//! that is still being made. With a key the work no longer belongs to the connection: who loses it comes back with the
//! same key and reads on.
//!
//! Kept in memory: for a day, a number of keys and of bytes for each tenant, and until the server ends.

mod recorded;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{ACCEPT, HeaderValue};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::http::{Server, body};
use crate::principal::Principal;
use crate::problem::Problem;
use recorded::{Reader, Recorded};

pub(crate) const HEADER: &str = "idempotency-key";
const REPLAYED: &str = "idempotent-replayed";
const LAST_EVENT: &str = "last-event-id";
/// The longest key.
const MOST_KEY: usize = 255;
/// How long an answer is given again.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Of each tenant; the oldest that have ended make room.
const MOST_KEYS: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;
/// Bodies that are read at once: with a key they are read before there is a place for them.
const MOST_BODIES: usize = 32;

#[derive(Debug)]
struct Entry {
    digest: [u8; 32],
    since: Instant,
    answer: Arc<Recorded>,
}

/// The keys of one tenant.
#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    /// In the order in which they came; those that were let go earlier are passed over.
    order: VecDeque<(String, Instant)>,
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
}

/// What was answered to whom.
#[derive(Debug)]
pub(crate) struct Memory {
    tenants: Mutex<HashMap<String, Shelf>>,
    bodies: Semaphore,
}

impl Default for Memory {
    fn default() -> Self {
        Self { tenants: Mutex::default(), bodies: Semaphore::new(MOST_BODIES) }
    }
}

/// What is known of a key.
enum Known {
    /// Nothing: it is carried out now.
    New(Arc<Recorded>),
    Before(Arc<Recorded>),
}

impl Memory {
    fn look(&self, tenant: &str, key: &str, digest: [u8; 32]) -> Result<Known, Problem> {
        let now = Instant::now();
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = tenants.entry(tenant.to_owned()).or_default();
        shelf.tidy(now);
        if let Some(entry) = shelf.entries.get(key) {
            if !crate::token::same(&entry.digest, &digest) {
                let detail =
                    "this Idempotency-Key came before with another method, path, Accept or body";
                return Err(Problem::coded("idempotency_mismatch", detail));
            }
            return Ok(Known::Before(Arc::clone(&entry.answer)));
        }
        if shelf.entries.len() >= MOST_KEYS {
            let detail = format!("{MOST_KEYS} requests with keys go on");
            return Err(Problem::coded("busy", detail));
        }
        let answer = Arc::new(Recorded::default());
        let entry = Entry { digest, since: now, answer: Arc::clone(&answer) };
        shelf.entries.insert(key.to_owned(), entry);
        shelf.order.push_back((key.to_owned(), now));
        Ok(Known::New(answer))
    }

    /// What did not happen may be tried again.
    fn forget(&self, tenant: &str, key: &str) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shelf) = tenants.get_mut(tenant) {
            shelf.entries.remove(key);
        }
    }

    /// How many answers are kept, for whoever counts them.
    pub(crate) fn count(&self) -> usize {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.values().map(|shelf| shelf.entries.len()).sum()
    }
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
    let reading = server.memory.bodies.try_acquire();
    let reading = reading.map_err(|_| Problem::coded("busy", "too many bodies are being read"))?;
    let (head, body) = request.into_parts();
    let bytes = body::whole(body).await?;
    drop(reading);
    let mut hasher = Sha256::new();
    let accept = head.headers.get(ACCEPT).map_or(&b""[..], HeaderValue::as_bytes);
    let target = head.uri.path_and_query().map_or("", |one| one.as_str());
    for part in [head.method.as_str().as_bytes(), target.as_bytes(), accept, &bytes] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let tenant = principal.tenant.name();
    let resume =
        head.headers.get(LAST_EVENT).and_then(|id| id.to_str().ok()).map(ToOwned::to_owned);
    let (answer, before) = match server.memory.look(tenant, &key, hasher.finalize().into())? {
        Known::Before(answer) => (answer, true),
        Known::New(answer) => {
            let request = Request::from_parts(head, Body::from(bytes));
            let (server, tenant) = (Arc::clone(server), tenant.to_owned());
            let recording = Arc::clone(&answer);
            tokio::spawn(async move {
                let heard = |status: hyper::StatusCode| {
                    // Nothing was begun: the same request may be tried, not only asked for.
                    if matches!(status.as_u16(), 408 | 429 | 503) {
                        server.memory.forget(&tenant, &key);
                    }
                };
                recording.record(next.run(request), heard).await;
            });
            (answer, false)
        }
    };
    if before {
        server.metrics.replayed.fetch_add(1, Ordering::Relaxed);
    }
    let mut response = Reader::response(answer, before, resume).await?;
    if before {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn check(key: &HeaderValue) -> Result<String, Problem> {
    let text = key.to_str().ok().filter(|text| !text.is_empty() && text.len() <= MOST_KEY);
    text.map(ToOwned::to_owned).ok_or_else(|| {
        let reason = format!("must be 1 to {MOST_KEY} visible ASCII characters");
        Problem::field("Idempotency-Key", &reason)
    })
}
