//! Letting go of old records. The chain stays verifiable: where it begins now is kept, and a record in
//! the chain itself vouches for that place.

use rusqlite::{OptionalExtension, params};
use serde::Serialize;

use super::{RunIs, Store, StoreError, insert};
use crate::audit::chain::{Position, Record};

/// Where the records begin.
pub type Anchor = Position;

/// What was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pruned {
    pub records: u64,
    /// The last record that is gone.
    pub begins_after: Anchor,
}

impl Store {
    /// Removes the records that are older than this moment, from the first on. A run that has no end yet
    /// keeps its start, and with it all that came later.
    pub fn prune(
        &mut self,
        before_us: u64,
        at_us: u64,
        by: &str,
    ) -> Result<Option<Pruned>, StoreError> {
        self.write(|transaction, end| {
            // The first that stays: the first young one, or the first start without an end.
            let young = "SELECT min(seq) FROM records WHERE at_us >= ?1";
            let young: Option<u64> =
                transaction.query_row(young, params![before_us], |row| row.get(0))?;
            let open = "SELECT min(seq) FROM records WHERE run IN (SELECT run FROM open_runs)";
            let open: Option<u64> = transaction.query_row(open, [], |row| row.get(0))?;
            let stays = [young, open].into_iter().flatten().min().unwrap_or(end.seq + 1);
            let gone = "SELECT seq, hash FROM records WHERE seq < ?1 ORDER BY seq DESC LIMIT 1";
            let gone = transaction.query_row(gone, params![stays], super::position).optional()?;
            let Some(anchor) = gone else { return Ok((None, end)) };
            let records =
                transaction.execute("DELETE FROM records WHERE seq <= ?1", params![anchor.seq])?;
            let keep = "INSERT INTO anchor (one, seq, hash) VALUES (1, ?1, ?2) \
                        ON CONFLICT (one) DO UPDATE SET seq = excluded.seq, hash = excluded.hash";
            transaction.execute(keep, params![anchor.seq, &anchor.hash.0[..]])?;
            let pruned = Pruned { records: records as u64, begins_after: anchor };
            let entry = crate::audit::prune_entry(at_us, &pruned, by);
            let record = Record::after(end, entry);
            insert(transaction, &record, &RunIs::Untouched)?;
            Ok((Some(pruned), record.position()))
        })
    }
}
