//! Many requests at once, under one budget, told in the order they came.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tokio::time::Instant;

use crate::engine::Engine;
use crate::model::error::{Error, SpecError};
use crate::model::outcome::Outcome;
use crate::model::request::RunRequest;
use crate::queue::Place;

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
    /// Runs every request as it comes; `tell` gets each result with its place in the input, in that
    /// order. The batch is over when the sender is gone and everything has been told.
    ///
    /// A request that is itself a mistake (a line that could not be read) is passed through as such.
    pub async fn run_batch(
        self: &Arc<Self>,
        requests: mpsc::Receiver<Result<RunRequest, SpecError>>,
        budget: Budget,
        tell: impl FnMut(usize, Result<Outcome, Error>),
    ) {
        Batch::new(self, budget, None).carry_out(requests, tell).await;
    }

    /// The same among others: each run of the batch waits for its turn in a [`Queue`](crate::Queue).
    pub async fn run_batch_in(
        self: &Arc<Self>,
        place: Place,
        requests: mpsc::Receiver<Result<RunRequest, SpecError>>,
        budget: Budget,
        tell: impl FnMut(usize, Result<Outcome, Error>),
    ) {
        Batch::new(self, budget, Some(place)).carry_out(requests, tell).await;
    }
}

type Ended = Result<(task::Id, Result<Outcome, Error>), task::JoinError>;

/// A run that goes on: its place in the input, and the CPU time that is kept free for it.
struct Started {
    index: usize,
    reserved_ms: u64,
}

struct Batch {
    engine: Arc<Engine>,
    budget: Budget,
    place: Option<Place>,
    deadline: Option<Instant>,
    running: JoinSet<Result<Outcome, Error>>,
    started: HashMap<task::Id, Started>,
    results: BTreeMap<usize, Result<Outcome, Error>>,
    next_index: usize,
    next_told: usize,
    cpu_used_ms: u64,
    cpu_reserved_ms: u64,
}

impl Batch {
    fn new(engine: &Arc<Engine>, budget: Budget, place: Option<Place>) -> Self {
        Self {
            engine: Arc::clone(engine),
            budget,
            place,
            deadline: budget.wall.map(|wall| Instant::now() + wall),
            running: JoinSet::new(),
            started: HashMap::new(),
            results: BTreeMap::new(),
            next_index: 0,
            next_told: 0,
            cpu_used_ms: 0,
            cpu_reserved_ms: 0,
        }
    }

    async fn carry_out(
        mut self,
        mut requests: mpsc::Receiver<Result<RunRequest, SpecError>>,
        mut tell: impl FnMut(usize, Result<Outcome, Error>),
    ) {
        let mut coming = true;
        let mut waiting = None;
        while coming || waiting.is_some() || !self.running.is_empty() {
            waiting = waiting.and_then(|request| self.admit(request));
            let wants_more = coming && waiting.is_none() && self.has_room();
            tokio::select! {
                request = requests.recv(), if wants_more => match request {
                    Some(request) => waiting = Some(request),
                    None => coming = false,
                },
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                else => {}
            }
            self.tell_in_order(&mut tell);
        }
    }

    fn has_room(&self) -> bool {
        let parallel = self.budget.parallel.get();
        self.running.len() < parallel && self.results.len() < parallel * WINDOW
    }

    /// Starts a request if the budget holds even if it uses all that it may. One that never will is
    /// answered; one that may yet is given back.
    fn admit(
        &mut self,
        request: Result<RunRequest, SpecError>,
    ) -> Option<Result<RunRequest, SpecError>> {
        let asked = cpu_limit(&request);
        let taken = self.cpu_used_ms.saturating_add(self.cpu_reserved_ms);
        let fits = self
            .budget
            .cpu
            .is_none_or(|cpu| u128::from(taken.saturating_add(asked)) <= cpu.as_millis());
        if fits {
            self.start(request, asked);
        } else if self.running.is_empty() {
            let error = self.cannot_start(request, asked);
            self.results.insert(self.next_index, Err(error));
            self.next_index += 1;
        } else {
            return Some(request);
        }
        None
    }

    /// Why a request that does not fit is not run; its own mistake, if it has one, is told first.
    fn cannot_start(&self, request: Result<RunRequest, SpecError>, asked: u64) -> Error {
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

    fn start(&mut self, request: Result<RunRequest, SpecError>, reserved_ms: u64) {
        let (engine, deadline) = (Arc::clone(&self.engine), self.deadline);
        let place = self.place.clone();
        let task = self.running.spawn(async move {
            let run = async {
                // A mistake is told without a turn.
                let run = engine.prepare(request?)?.screen().await?;
                let _turn = match &place {
                    Some(place) => Some(place.turn().await?),
                    None => None,
                };
                run.run(&mut |_, _| {}).await
            };
            let over = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = over => Err(Error::Budget { what: "the batch's time is over".to_owned() }),
                result = run => result,
            }
        });
        self.cpu_reserved_ms = self.cpu_reserved_ms.saturating_add(reserved_ms);
        self.started.insert(task.id(), Started { index: self.next_index, reserved_ms });
        self.next_index += 1;
    }

    fn ended(&mut self, ended: Ended) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(broken) => (broken.id(), Err(Error::Lost { what: "our own code broke" })),
        };
        let Some(Started { index, reserved_ms }) = self.started.remove(&id) else { return };
        self.cpu_reserved_ms -= reserved_ms;
        let used = match &result {
            Ok(outcome) => outcome.limits.get("cpu_ms").and_then(|one| one.used),
            // Nothing ran.
            Err(
                Error::Spec(_)
                | Error::Screened(_)
                | Error::Setup { .. }
                | Error::Unavailable { .. }
                | Error::Busy { .. },
            ) => Some(0),
            // Nobody knows what was used: all that could have been.
            Err(_) => None,
        };
        self.cpu_used_ms = self.cpu_used_ms.saturating_add(used.unwrap_or(reserved_ms));
        self.results.insert(index, result);
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
