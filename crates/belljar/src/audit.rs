//! The record of what happened: who asked for what, and what came of it. One record when a run begins and
//! one when it ends, in a hash chain ([`chain`]) that nobody inside a sandbox can reach, kept by
//! [`crate::store`].
//!
//! The rule that callers may rely on: no program is released before the start of its run is recorded, and
//! no Outcome is returned before its end is. A run whose engine died shows as one that has no end, and is
//! closed as such by the next engine.

pub mod chain;
mod entry;
mod export;
pub(crate) mod filter;
mod read;
mod redact;
mod stats;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use serde::Serialize;

use chain::{Entry, Position};

pub(crate) use entry::Asked;
pub use entry::Summary;
pub use export::{ExportHead, export, export_of_tenant, verify_export};
pub use filter::Filter;
pub use read::{RunLine, RunRecord, State, find_place, list, place_of, show, show_of};
pub use redact::REDACTED;
pub(crate) use redact::Secrets;
pub use stats::{Count, Stats, statistics};
pub(crate) use writer::{Recorder, Recording, begun};

use crate::model::error::SpecError;
use crate::store::{Pruned, Store, StoreError};

/// What an engine records, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The state directory, which holds the trail.
    pub directory: PathBuf,
    pub bodies: Bodies,
    /// For an engine that runs one program and is gone: its records go to a file beside the trail, which is not
    /// opened for them. Whoever opens it next takes them over.
    pub spooled: bool,
}

/// Whether what a program is and what it wrote is recorded, or digests and numbers only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bodies {
    /// Code and output, bounded.
    #[default]
    Kept,
    /// Digests of both.
    Digests,
}

/// Who asked for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// The user of this host, where the kernel vouches for one.
    pub uid: Option<u32>,
    /// The name of the key that was shown, where one was.
    pub key: Option<String>,
    /// Where it came from: `process`, `socket` or `tcp`.
    pub peer: &'static str,
    /// The name of the request that it came with.
    pub request_id: Option<String>,
}

impl Caller {
    /// Whoever runs this process.
    pub fn own() -> Self {
        Self {
            uid: Some(rustix::process::geteuid().as_raw()),
            key: None,
            peer: "process",
            request_id: None,
        }
    }
}

/// What a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A run begins.
    Start,
    /// A run has ended, or could not be carried out.
    End,
    /// A run whose engine died before it could tell the end.
    Closed,
    /// Older records were let go.
    Prune,
    /// Records were lost with the power.
    Gap,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Start, Self::End, Self::Closed, Self::Prune, Self::Gap];

    /// The word in the record.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::End => "end",
            Self::Closed => "closed",
            Self::Prune => "prune",
            Self::Gap => "gap",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Opens the trail of a state directory for a look at it. Runs whose engines are gone are closed first: a lone
/// run does not look after others.
pub fn open(directory: &Path) -> Result<Store, StoreError> {
    let mut store = Store::read(directory)?;
    // What cannot be closed now stays open for the next who looks.
    writer::close_dead(&mut store).ok();
    Ok(store)
}

/// Now, as records have it.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A moment as people read it: RFC 3339 in UTC, to the microsecond.
pub fn show_time(at_us: u64) -> String {
    let at = SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_micros(at_us));
    // Beyond the year 9999 the library has no words, and somebody has written to the file by hand.
    match at.filter(|_| at_us < 253_402_300_800_000_000) {
        Some(at) => humantime::format_rfc3339_micros(at).to_string(),
        None => format!("{at_us} µs after 1970"),
    }
}

/// A moment that [`show_time`] wrote.
pub(crate) fn read_time(text: &str) -> Option<u64> {
    let at = humantime::parse_rfc3339_weak(text).ok()?;
    u64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_micros()).ok()
}

/// Lets go of what is older than `before`, a moment as filters have them.
pub fn prune(
    directory: &Path,
    before: &str,
) -> Result<Result<Option<Pruned>, SpecError>, StoreError> {
    let now = now_us();
    let before_us = match filter::moment("before", before, now) {
        Ok(before_us) => before_us,
        Err(wrong) => return Ok(Err(wrong)),
    };
    // Only of a trail that is there, and as it was: what is damaged is evidence.
    drop(Store::read(directory)?);
    let uid = rustix::process::geteuid().as_raw();
    let by = user_name(uid).unwrap_or_else(|| format!("uid {uid}"));
    Store::open(directory, now)?.prune(before_us, now, &by).map(Ok)
}

/// Says that records were lost: the head was kept, the records were not.
pub(crate) fn gap(at_us: u64, kept: Position, found: Position) -> Entry {
    let detail = serde_json::json!({ "head": kept, "found": found });
    about_the_trail(at_us, Kind::Gap, &detail)
}

/// Vouches for the new beginning of a trail.
pub(crate) fn prune_entry(at_us: u64, pruned: &Pruned, by: &str) -> Entry {
    let detail = serde_json::json!({ "pruned": pruned, "by": by });
    about_the_trail(at_us, Kind::Prune, &detail)
}

/// The place that a prune record vouches for.
pub(crate) fn prune_of(entry: &Entry) -> Option<Position> {
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).ok()?;
    serde_json::from_value(detail["pruned"]["begins_after"].clone()).ok()
}

fn about_the_trail(at_us: u64, kind: Kind, detail: &serde_json::Value) -> Entry {
    let (summary, detail) = ("{}".to_owned(), detail.to_string());
    Entry { at_us, kind: kind.name().to_owned(), run: String::new(), summary, detail }
}

/// The name of a user, as /etc/passwd has it.
fn user_name(uid: u32) -> Option<String> {
    static NAMES: OnceLock<HashMap<u32, String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let named = text.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        });
        // The first one counts where two share an id, as it does for getpwuid(3).
        named.fold(HashMap::new(), |mut all, (uid, name)| {
            all.entry(uid).or_insert(name);
            all
        })
    });
    names.get(&uid).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_shown() {
        for at_us in [0, 1, 1_700_000_000_123_456, 253_402_300_799_999_999] {
            assert_eq!(read_time(&show_time(at_us)), Some(at_us), "{}", show_time(at_us));
        }
        assert_eq!(read_time(&show_time(u64::MAX)), None);
    }

    #[test]
    fn root_has_a_name() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(user_name(u32::MAX - 7), None);
    }
}
