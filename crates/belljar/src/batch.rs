//! Many requests at once, under one budget, told in the order they came.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::model::error::{Error, SpecError};
use crate::model::outcome::Outcome;
use crate::model::request::RunRequest;

/// Results that wait for an earlier one are kept in memory: no more than this many for each run that
/// may go on at once. A slow first request then holds back the rest instead of piling up results.
const WINDOW: usize = 8;

/// What a whole batch may use.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Runs at once.
    pub parallel: NonZeroUsize,
    /// CPU time of all runs together. A request is started only when its own limit still fits, so
    /// the budget is never exceeded and no limit is ever changed.
    pub cpu: Option<Duration>,
    /// Real time. When it is over, running programs are ended and the rest is not started.
    pub wall: Option<Duration>,
}

impl Default for Budget {
    /// One run for each core, no other bound than those of the requests.
    fn default() -> Self {
        let parallel = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { parallel, cpu: None, wall: None }
    }
}

impl Engine {
    /// Runs every request; `tell` gets each result with its place in the input, in that order.
    ///
    /// A request that is itself a mistake (a line that could not be read) is passed through as such.
    pub async fn run_batch(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = Result<RunRequest, SpecError>>,
        budget: Budget,
        mut tell: impl FnMut(usize, Result<Outcome, Error>),
    ) {
        let mut batch = Batch::new(self, budget);
        let mut requests = requests.into_iter().enumerate().peekable();
        while requests.peek().is_some() || !batch.running.is_empty() {
            while batch.has_room() {
                let Some((index, request)) = requests.next_if(|(_, one)| batch.fits(one)) else {
                    break;
                };
                batch.start(index, request);
            }
            if batch.running.is_empty() {
                // Nothing runs and the next does not fit: it never will.
                if let Some((index, request)) = requests.next() {
                    let error = batch.cannot_start(request);
                    batch.results.insert(index, Err(error));
                }
            } else {
                batch.wait().await;
            }
            batch.tell_in_order(&mut tell);
        }
        batch.tell_in_order(&mut tell);
    }
}

struct Batch {
    engine: Arc<Engine>,
    budget: Budget,
    deadline: Option<Instant>,
    running: JoinSet<(usize, u64, Result<Outcome, Error>)>,
    results: BTreeMap<usize, Result<Outcome, Error>>,
    next_told: usize,
    cpu_used_ms: u64,
    cpu_reserved_ms: u64,
}

impl Batch {
    fn new(engine: &Arc<Engine>, budget: Budget) -> Self {
        Self {
            engine: Arc::clone(engine),
            budget,
            deadline: budget.wall.map(|wall| Instant::now() + wall),
            running: JoinSet::new(),
            results: BTreeMap::new(),
            next_told: 0,
            cpu_used_ms: 0,
            cpu_reserved_ms: 0,
        }
    }

    fn has_room(&self) -> bool {
        let parallel = self.budget.parallel.get();
        self.running.len() < parallel && self.results.len() < parallel * WINDOW
    }

    /// Whether the budget holds even if the request uses all it may.
    fn fits(&self, request: &Result<RunRequest, SpecError>) -> bool {
        let Some(cpu) = self.budget.cpu else {
            return true;
        };
        let taken = self.cpu_used_ms.saturating_add(self.cpu_reserved_ms);
        u128::from(taken.saturating_add(cpu_limit(request))) <= cpu.as_millis()
    }

    /// Why a request that does not fit is not run; its own mistake, if it has one, is told first.
    fn cannot_start(&self, request: Result<RunRequest, SpecError>) -> Error {
        let asked = cpu_limit(&request);
        let mistake = match request {
            Ok(request) => self.engine.prepare(request).err(),
            Err(mistake) => Some(mistake.into()),
        };
        let total = self.budget.cpu.map_or(0, |cpu| cpu.as_millis());
        let left = total.saturating_sub(u128::from(self.cpu_used_ms));
        mistake.unwrap_or_else(|| Error::Budget {
            what: format!(
                "limits.cpu_ms is {asked}, more than the {left} ms that are left of the batch's \
                 {total} ms of CPU time"
            ),
        })
    }

    fn start(&mut self, index: usize, request: Result<RunRequest, SpecError>) {
        let reserved = cpu_limit(&request);
        self.cpu_reserved_ms = self.cpu_reserved_ms.saturating_add(reserved);
        let (engine, deadline) = (Arc::clone(&self.engine), self.deadline);
        self.running.spawn(async move {
            let run = async {
                match request {
                    Ok(request) => engine.run(request).await,
                    Err(mistake) => Err(mistake.into()),
                }
            };
            let over = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                biased;
                () = over => Err(Error::Budget { what: "the batch's time is over".to_owned() }),
                result = run => result,
            };
            (index, reserved, result)
        });
    }

    async fn wait(&mut self) {
        // A task that panicked cannot be told by its place; the place then shows as lost below.
        if let Some(Ok((index, reserved, result))) = self.running.join_next().await {
            self.cpu_reserved_ms -= reserved;
            let used = result.as_ref().map_or(0, |outcome| {
                outcome.limits.get("cpu_ms").and_then(|one| one.used).unwrap_or(reserved)
            });
            self.cpu_used_ms = self.cpu_used_ms.saturating_add(used);
            self.results.insert(index, result);
        }
    }

    fn tell_in_order(&mut self, tell: &mut impl FnMut(usize, Result<Outcome, Error>)) {
        while let Some(result) = self.results.remove(&self.next_told) {
            tell(self.next_told, result);
            self.next_told += 1;
        }
    }
}

/// The most CPU time that a request can use; one that cannot be resolved uses none.
fn cpu_limit(request: &Result<RunRequest, SpecError>) -> u64 {
    let limits = request.as_ref().ok().and_then(|request| request.limits.resolve().ok());
    limits.map_or(0, |limits| limits.cpu_ms)
}
