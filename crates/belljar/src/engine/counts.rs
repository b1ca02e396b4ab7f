//! How runs ended, and what was refused in them, since the engine was opened: for those who watch a server.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::model::error::Error;
use crate::model::outcome::Outcome;

/// Numbers by word. There are as many words as verdicts, errors and kinds of events.
pub type ByWord = BTreeMap<&'static str, u64>;

/// What was counted.
#[derive(Debug, Default)]
pub struct RunCounts(Mutex<(ByWord, ByWord)>);

impl RunCounts {
    /// Runs by the word of their verdict, or of the error that there was in place of one.
    pub fn runs(&self) -> ByWord {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Events by kind.
    pub fn events(&self) -> ByWord {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    pub(super) fn ended(&self, result: &Result<Outcome, Error>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let word = result.as_ref().map_or_else(Error::kind, |outcome| outcome.verdict.kind());
        *counts.0.entry(word).or_default() += 1;
        for event in result.iter().flat_map(|outcome| &outcome.events) {
            *counts.1.entry(event.kind.name()).or_default() += event.count;
        }
    }
}
