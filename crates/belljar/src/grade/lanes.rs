//! Cases on their way through sandboxes: who takes which, how many at once, and what is tried again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::case::{Case, Kind};
use super::checked::Checked;
use super::judge::{Facts, Judged};
use super::{CaseResult, CaseVerdict, Isolate, asserts, calls, streams};
use crate::audit::Caller;
use crate::engine::Engine;
use crate::model::error::Error;
use crate::model::event::Event;
use crate::model::outcome::Outcome;
use crate::queue::{Place, Turn};

/// How often a sandbox that failed because of us is tried again.
pub(super) const RETRIES: usize = 2;
/// Another sandbox is worth starting when those that run have been at it for so long,
const PATIENCE: Duration = Duration::from_millis(100);
/// or when there are more cases than this for each.
const MANY: usize = 64;

/// Events that are kept for the feedback.
const MAX_EVENTS: usize = 64;

/// What all lanes share.
pub(super) struct Shared {
    pub engine: Engine,
    pub checked: Checked,
    /// Who asked for it: what runs is recorded as theirs.
    pub caller: Caller,
    place: Option<Place>,
    results: mpsc::UnboundedSender<(usize, CaseResult)>,
    executions: Mutex<Vec<String>>,
    events: Mutex<Vec<Event>>,
}

/// Cases that may share a sandbox: of one kind, and either all hidden or none.
pub(super) struct Group {
    kind: Kind,
    pub hidden: bool,
    waiting: Mutex<VecDeque<usize>>,
}

impl Group {
    /// The next case, taken.
    pub(super) fn next(&self) -> Option<usize> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Shared {
    pub(super) fn case(&self, index: usize) -> &Case {
        &self.checked.cases[index]
    }

    /// Waits for the right to run a sandbox, and the one beside it.
    pub(super) async fn turn(&self) -> Result<Option<Turn>, Error> {
        match &self.place {
            Some(place) => place.turn().await.map(Some),
            None => Ok(None),
        }
    }

    /// Keeps what is worth knowing of a run that has ended. The words of an event are the candidate's (a path, a host):
    /// of hidden cases only the kind is kept.
    pub(super) fn note(&self, outcome: &Outcome, hidden: bool) {
        let id = outcome.execution_id.clone();
        self.executions.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        let conceal = self.conceals(hidden);
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_EVENTS.saturating_sub(events.len());
        events.extend(outcome.events.iter().take(room).cloned().map(|event| {
            if conceal {
                let detail = format!("in a hidden case: {}", event.kind.name());
                return Event { process: None, syscall: None, detail, ..event };
            }
            event
        }));
    }

    /// Whether nothing may be told of a sandbox, by whether its cases are hidden.
    pub(super) fn conceals(&self, hidden: bool) -> bool {
        hidden && !self.checked.request.show_hidden
    }

    /// What was refused or limited in any of the sandboxes.
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells what came of a case. There are no more of these than cases.
    pub(super) fn tell(&self, index: usize, judged: Judged, facts: Facts) {
        let result = judged.result(self.case(index), facts, self.checked.request.show_hidden);
        // Nobody listens when the grade was dropped.
        self.results.send((index, result)).ok();
    }

    /// Tells one, and all that are left of its group where nothing better can come of them: loading will not
    /// go better for the next; nothing that a tampering candidate says counts any more; and a host on which
    /// a sandbox failed so often will not do better at once.
    pub(super) fn tell_in_group(
        &self,
        group: &Group,
        index: usize,
        judged: Judged,
        facts: Facts,
        loads: bool,
    ) {
        let (verdict, detail) = (judged.verdict, judged.detail.clone());
        let raised = judged.raised.clone();
        self.tell(index, judged, facts);
        if !loads {
            self.tell_rest(group, || Judged {
                raised: raised.clone(),
                ..Judged::new(verdict, detail.clone())
            });
        } else if matches!(verdict, CaseVerdict::Tampered | CaseVerdict::Infrastructure) {
            self.tell_rest(group, || Judged::new(verdict, format!("not run: {detail}")));
        }
    }

    /// Tells the same of every case that a group still has.
    pub(super) fn tell_rest(&self, group: &Group, judged: impl Fn() -> Judged) {
        while let Some(index) = group.next() {
            self.tell(index, judged(), Facts::default());
        }
    }

    /// When a case that begins now must have ended.
    pub(super) fn deadline(&self, limit: Duration) -> Instant {
        (Instant::now() + limit).min(self.checked.deadline)
    }

    pub(super) fn is_over(&self) -> bool {
        self.checked.left().is_zero()
    }
}

/// Whether an error is the caller's, or of this host as such: then there is no grade.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Spec(_) | Error::Screened(_) | Error::Unavailable { .. } | Error::Cancelled
    )
}

/// Runs all cases. The results are in the order of the cases.
pub(super) async fn carry_out(
    engine: &Engine,
    checked: Checked,
    (caller, place): (Caller, Option<Place>),
    tell: &mut (dyn FnMut(&CaseResult) + Send),
) -> Result<(Arc<Shared>, Vec<CaseResult>, Vec<String>), Error> {
    let (sender, mut results) = mpsc::unbounded_channel();
    let groups = groups(&checked);
    let shared = Arc::new(Shared {
        engine: engine.clone(),
        checked,
        caller,
        place,
        results: sender,
        executions: Mutex::default(),
        events: Mutex::default(),
    });
    let mut found: Vec<Option<CaseResult>> = shared.checked.cases.iter().map(|_| None).collect();
    let mut lanes = Lanes { all: JoinSet::new(), groups, counts: Vec::new() };
    lanes.counts = vec![0; lanes.groups.len()];
    let mut look = Instant::now() + PATIENCE;
    lanes.start_more(&shared, false);
    while !lanes.all.is_empty() {
        tokio::select! {
            Some((index, result)) = results.recv() => {
                tell(&result);
                found[index] = Some(result);
            }
            Some(ended) = lanes.all.join_next() => {
                // What broke is seen by the results that are missing.
                if let Ok((group, ended)) = ended {
                    lanes.counts[group] -= 1;
                    ended?;
                }
                lanes.start_more(&shared, false);
            }
            () = sleep_until(look) => {
                lanes.start_more(&shared, true);
                look = Instant::now() + PATIENCE;
            }
        }
    }
    while let Ok((index, result)) = results.try_recv() {
        tell(&result);
        found[index] = Some(result);
    }
    let missing = |case: &Case| {
        let judged = Judged::new(CaseVerdict::Infrastructure, "our own code broke");
        judged.result(case, Facts::default(), false)
    };
    let whole = found
        .into_iter()
        .zip(&shared.checked.cases)
        .map(|(result, case)| result.unwrap_or_else(|| missing(case)))
        .collect();
    let executions =
        std::mem::take(&mut *shared.executions.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((shared, whole, executions))
}

type LaneEnd = (usize, Result<(), Error>);

struct Lanes {
    all: JoinSet<LaneEnd>,
    groups: Vec<Arc<Group>>,
    /// Lanes of each group.
    counts: Vec<usize>,
}

impl Lanes {
    /// Starts lanes as far as that pays: a sandbox costs more than many a case.
    fn start_more(&mut self, shared: &Arc<Shared>, slow: bool) {
        while self.all.len() < shared.checked.parallel {
            let own_sandbox = shared.checked.request.isolate == Isolate::Case;
            let wanting = (0..self.groups.len()).find(|one| {
                let (group, lanes) = (&self.groups[*one], self.counts[*one]);
                let each = own_sandbox || group.kind == Kind::Streams;
                let pays = lanes == 0 || each || slow || group.len() > MANY * lanes;
                group.len() > 0 && pays
            });
            let Some(one) = wanting else { return };
            let (shared, group) = (Arc::clone(shared), Arc::clone(&self.groups[one]));
            self.counts[one] += 1;
            self.all.spawn(async move {
                let ended = match group.kind {
                    Kind::Call => calls::lane(&shared, &group).await,
                    Kind::Assert => asserts::lane(&shared, &group).await,
                    Kind::Streams => streams::lane(&shared, &group).await,
                };
                (one, ended)
            });
            if slow {
                return; // one more at a time
            }
        }
    }
}

fn groups(checked: &Checked) -> Vec<Arc<Group>> {
    let mut order: Vec<usize> = (0..checked.cases.len()).collect();
    if let Some(seed) = checked.request.shuffle {
        shuffle(&mut order, seed);
    }
    let mut groups = Vec::new();
    for hidden in [false, true] {
        for kind in [Kind::Call, Kind::Assert, Kind::Streams] {
            let own = |index: &usize| {
                let case = &checked.cases[*index];
                case.kind() == kind && case.hidden == hidden
            };
            let waiting: VecDeque<usize> = order.iter().copied().filter(own).collect();
            if !waiting.is_empty() {
                groups.push(Arc::new(Group { kind, hidden, waiting: Mutex::new(waiting) }));
            }
        }
    }
    groups
}

/// Fisher and Yates, with numbers from splitmix64: the same seed gives the same order everywhere.
fn shuffle(order: &mut [usize], seed: u64) {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for last in (1..order.len()).rev() {
        let range = u64::try_from(last + 1).unwrap_or(u64::MAX);
        let other = usize::try_from(next() % range).unwrap_or(0);
        order.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_an_order_and_loses_no_case() {
        let shuffled = |seed| {
            let mut order: Vec<usize> = (0..100).collect();
            shuffle(&mut order, seed);
            order
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut back = shuffled(7);
        back.sort_unstable();
        assert_eq!(back, (0..100).collect::<Vec<_>>());
    }
}
