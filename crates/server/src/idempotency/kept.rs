//! Keys on the disk: what was begun under a key, and what was answered, outlives the server. A claim is on the disk,
//! through every cache, before the work begins; an answer is in the kernel's hands before its reader hears the end of it.
//! So `kill -9` at any moment leaves a key either unknown (nothing was begun), answered, or claimed: and what is only
//! claimed is told, never done again.
//!
//! Of a request only digests are here, of the key too. The answer is as it was sent: it is in the file only where the
//! audit trail may hold bodies as well.

mod shelves;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belljar::Error;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};

use crate::problem::Problem;
use shelves::Shelves;

pub(crate) const FILE: &str = "idempotency.db";
/// Claims and answers that wait for the disk; whoever comes then waits with its connection.
const MOST_WAITING: usize = 1024;
/// Of them in one transaction.
const MOST_TOGETHER: usize = 128;
/// What may be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) age: Duration,
    /// Of each tenant: the oldest that have ended make room.
    pub(crate) keys: u64,
    /// Of each tenant: the oldest answers are let go, their keys stay.
    pub(crate) bytes: u64,
    /// Of all tenants.
    pub(crate) total_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        let age = super::WINDOW;
        Self { age, keys: 100_000, bytes: 64 << 20, total_bytes: 1 << 30 }
    }
}

/// A request with a key, as far as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) tenant: String,
    pub(super) key: [u8; 32],
    pub(super) request: [u8; 32],
    pub(super) request_id: String,
}

impl Claim {
    /// Of the key and of all that the request is made of only digests are in it.
    pub(super) fn new(tenant: &str, key: &str, request: &[&[u8]], request_id: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            key: digest(&[key.as_bytes()]),
            request: digest(request),
            request_id: request_id.to_owned(),
        }
    }
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// An answer as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) head: AnswerHead,
    pub(super) body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AnswerHead {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) problem: Option<Problem>,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    /// Nothing, and now it is claimed.
    Claimed,
    /// It came with another request.
    Other,
    Answered(Answer),
    /// It has ended, and the answer is not here.
    LetGo,
    /// Nothing, and there is no room for it: all others go on.
    Full,
    /// It was begun under another life of a server, which did not tell the end.
    Unknown {
        since_us: u64,
        request_id: String,
    },
}

/// How something ends that was claimed.
#[derive(Debug)]
pub(super) enum Ending {
    Answered(Answer),
    LetGo,
    /// Nothing was begun.
    Forgotten,
}

type Told<T> = oneshot::Sender<Result<T, String>>;

enum Job {
    Claim(Claim, Told<Found>),
    End { tenant: String, key: [u8; 32], ending: Ending, told: Told<()> },
}

/// The way to the thread that has the file.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    jobs: mpsc::Sender<Job>,
    /// Whether answers may be in the file.
    pub(super) bodies: bool,
    count: Arc<AtomicUsize>,
}

impl Kept {
    /// Opens the file in a state directory, and a thread for it.
    pub(crate) fn open(directory: &Path, bodies: bool, bounds: Bounds) -> Result<Self, Error> {
        let path = directory.join(FILE);
        let shown = path.clone();
        let wrong = move |what: String| {
            let what = format!("{}: {what}", shown.display());
            let source = std::io::Error::other(what);
            Error::Backend { operation: "open the keys of requests", source }
        };
        let count = Arc::new(AtomicUsize::new(0));
        let now_us = belljar::audit::now_us();
        let shelves = Shelves::open(&path, bounds, Arc::clone(&count), now_us);
        let shelves = shelves.and_then(|mut shelves| {
            if !bodies {
                shelves.let_all_answers_go()?;
            }
            Ok(shelves)
        });
        let shelves = shelves.map_err(|error| wrong(said(&error)))?;
        let (jobs, waiting) = mpsc::channel(MOST_WAITING);
        let thread = std::thread::Builder::new().name("idempotency".to_owned());
        thread.spawn(move || serve(shelves, waiting)).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { jobs, bodies, count })
    }

    /// Looks a key up, and claims it if it is new. On return the claim is on the disk.
    pub(super) async fn claim(&self, claim: Claim) -> Result<Found, Problem> {
        let (told, answer) = oneshot::channel();
        self.ask(Job::Claim(claim, told), answer).await.map_err(|what| {
            let detail =
                format!("the Idempotency-Key cannot be kept, so nothing was begun: {what}");
            Problem::coded("idempotency_unavailable", detail)
        })
    }

    /// Says how it ended. Of what goes wrong the end is written later, without the answer.
    pub(super) async fn end(
        &self,
        tenant: &str,
        key: [u8; 32],
        ending: Ending,
    ) -> Result<(), String> {
        let (told, answer) = oneshot::channel();
        self.ask(Job::End { tenant: tenant.to_owned(), key, ending, told }, answer).await
    }

    async fn ask<T>(
        &self,
        job: Job,
        answer: oneshot::Receiver<Result<T, String>>,
    ) -> Result<T, String> {
        let gone = || "the thread that writes them has ended".to_owned();
        self.jobs.send(job).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// What to say of an error of SQLite.
fn said(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => "no room is left on its disk".to_owned(),
        Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
            format!("it is not a whole SQLite file ({error}): keep a copy, then move it away")
        }
        _ => error.to_string(),
    }
}

/// Until nobody asks any more.
fn serve(mut shelves: Shelves, mut waiting: mpsc::Receiver<Job>) {
    while let Some(first) = waiting.blocking_recv() {
        let mut together = vec![first];
        while together.len() < MOST_TOGETHER
            && let Ok(more) = waiting.try_recv()
        {
            together.push(more);
        }
        shelves.carry_out(together, belljar::audit::now_us());
    }
}
