//! Egress processes that wait for a run that wants out: a few for all profiles, since nothing of a sandbox is in them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Pool, State};
use crate::engine::Engine;
use crate::native::exit::Exit;

/// That wait at once, at most.
const MOST: usize = 16;
/// One that nobody came for in so long is let go, and so are all when nobody wants out any more.
const OLDEST: Duration = Duration::from_secs(300);

/// Those that wait, and how many should.
#[derive(Debug, Default)]
pub(super) struct Exits {
    waiting: VecDeque<(Exit, Instant)>,
    target: usize,
    used: Option<Instant>,
    /// Somebody came in vain: what is missing is then started beside runs, too.
    missed: bool,
}

impl Exits {
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn wanted(&self) -> usize {
        self.target.saturating_sub(self.waiting.len())
    }

    /// What is dead, too old, or more than memory allows; to be dropped outside of the lock.
    pub(super) fn look_after(&mut self, short: bool) -> Vec<Exit> {
        if short || self.used.is_some_and(|used| used.elapsed() >= OLDEST) {
            self.target = 0;
        }
        let target = self.target;
        let (kept, gone): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(exit, made)| target > 0 && made.elapsed() < OLDEST && exit.lives());
        self.waiting = kept;
        gone.into_iter().map(|(exit, _)| exit).collect()
    }

    pub(super) fn clear(&mut self) -> Vec<Exit> {
        self.target = 0;
        self.waiting.drain(..).map(|(exit, _)| exit).collect()
    }
}

impl Pool {
    /// A process for a run that wants out, if one waits. Either way it is noted that one was wanted. Without one the
    /// keeper starts its own.
    pub(crate) fn take_exit(&self) -> Option<Exit> {
        let mut state = self.state();
        let exits = &mut state.exits;
        exits.used = Some(Instant::now());
        let found = std::iter::from_fn(|| exits.waiting.pop_back()).find(|(exit, _)| exit.lives());
        if found.is_none() {
            exits.target = (exits.target * 2).clamp(1, MOST);
            exits.missed = true;
        }
        drop(state);
        self.changed.notify_one();
        found.map(|(exit, _)| exit)
    }

    /// Starts what is missing: one at a time, and as for sandboxes not beside a lone run.
    pub(super) fn replace_exits(&self, engine: &Engine) {
        for _ in 0..MOST {
            let busy = self.is_busy();
            let wanted = {
                let mut state = self.state();
                let exits = &mut state.exits;
                exits.missed &= exits.waiting() * 2 < exits.target;
                exits.wanted() > 0 && (!busy || exits.missed) && !state.closed
            };
            if !wanted {
                return;
            }
            let started = Exit::start(engine.launcher(), engine.host(), engine.alive());
            let mut state = self.state();
            let gone = match started {
                Ok(exit) if !state.closed => {
                    state.exits.waiting.push_back((exit, Instant::now()));
                    None
                }
                Ok(exit) => Some(exit),
                // The next run that finds none asks for it again.
                Err(_) => {
                    state.exits.target = 0;
                    None
                }
            };
            drop(state);
            drop(gone);
        }
    }
}

/// So that a server whose operator named hosts is ready for the first who wants them.
pub(super) fn expect(state: &mut State) {
    state.exits.target = state.exits.target.max(1);
}
