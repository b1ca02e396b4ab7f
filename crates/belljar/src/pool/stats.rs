//! What the pool tells of itself.

use belljar_jail::plan::Hold;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Brood, Shelf};
use crate::model::level::Level;

/// What the pool holds and has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStats {
    pub waiting: usize,
    pub making: usize,
    /// Egress processes that wait for a run that has a way out, and how many more should.
    #[serde(default)]
    pub exits: usize,
    #[serde(default)]
    pub exits_wanted: usize,
    pub floor: usize,
    pub ceiling: usize,
    /// Runs that found a sandbox waiting, and runs that did not.
    pub hits: u64,
    pub misses: u64,
    pub made: u64,
    pub failed: u64,
    /// Sandboxes that were never used: too old, too many, or given up for memory.
    pub let_go: u64,
    pub memory_short: bool,
    pub shelves: Vec<ShelfStats>,
    pub zygotes: Vec<ZygoteStats>,
}

/// Sandboxes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShelfStats {
    pub language: String,
    pub level: Level,
    #[schemars(with = "String")]
    pub hold: Hold,
    pub waiting: usize,
    pub making: usize,
    pub target: usize,
    pub hits: u64,
    pub misses: u64,
    pub last_error: Option<String>,
}

impl ShelfStats {
    pub(super) fn of(shelf: &Shelf) -> Self {
        Self {
            language: shelf.profile.language().to_owned(),
            level: shelf.profile.spec.level,
            hold: shelf.profile.hold,
            waiting: shelf.waiting.len(),
            making: shelf.making,
            target: shelf.target,
            hits: shelf.hits,
            misses: shelf.misses,
            last_error: shelf.last_error.clone(),
        }
    }
}

/// The zygote of a language.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZygoteStats {
    pub language: String,
    pub process_id: Option<u32>,
    pub copies: u64,
    pub last_error: Option<String>,
}

impl ZygoteStats {
    pub(super) fn of(language: &str, brood: &Brood) -> Self {
        Self {
            language: language.to_owned(),
            process_id: brood.current.as_ref().map(|one| one.process_id()),
            copies: brood.current.as_ref().map_or(0, |one| one.copies()),
            last_error: brood.broken.as_ref().map(|(_, why)| why.clone()),
        }
    }
}
