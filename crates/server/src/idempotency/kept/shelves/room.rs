//! What goes to make room: answers first, then keys, and whatever is too old.

use rusqlite::{OptionalExtension, TransactionBehavior, params};

use super::{BEGUN, LET_GO, Shelves};

/// How often those that are too old are looked for.
const TIDY_EVERY_US: u64 = 60_000_000;
/// Keys that are let go at once to make room.
const ROOM_STEP: u64 = 64;

impl Shelves {
    /// Lets go of every answer: none may be in the file any more.
    pub(in super::super) fn let_all_answers_go(&mut self) -> rusqlite::Result<()> {
        self.within(|shelves| {
            shelves
                .connection
                .execute("UPDATE claims SET state = 2, bytes = 0 WHERE state = 1", [])?;
            shelves.connection.execute("DELETE FROM answers", []).map(drop)
        })?;
        // Neither in the log beside it.
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.count_all()
    }

    /// The oldest answers go when there are too many bytes of them, of one tenant or of all. Their keys stay: what was
    /// done is not done again.
    pub(super) fn let_answers_go(&mut self, tenant: &str) -> rusqlite::Result<()> {
        while self.tally(tenant).bytes > self.bounds.bytes {
            let of_tenant = "SELECT id, tenant, bytes FROM claims WHERE tenant = ?1 AND state = 1 \
                             ORDER BY since_us LIMIT 1";
            if !self.let_one_go(of_tenant, params![tenant])? {
                break;
            }
        }
        while self.tallies.values().map(|one| one.bytes).sum::<u64>() > self.bounds.total_bytes {
            // Whoever has most gives: nobody loses answers by what others send.
            let most = self.tallies.iter().max_by_key(|(_, one)| one.bytes);
            let Some(most) = most.map(|(name, _)| name.clone()) else { break };
            let of_most = "SELECT id, tenant, bytes FROM claims WHERE tenant = ?1 AND state = 1 \
                           ORDER BY since_us LIMIT 1";
            if !self.let_one_go(of_most, params![most])? {
                break;
            }
        }
        Ok(())
    }

    fn let_one_go(&mut self, which: &str, with: &[&dyn rusqlite::ToSql]) -> rusqlite::Result<bool> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, u64>(2)?))
        };
        let found = self.connection.prepare_cached(which)?.query_row(with, read).optional()?;
        let Some((id, tenant, bytes)) = found else { return Ok(false) };
        self.connection.prepare_cached("DELETE FROM answers WHERE id = ?1")?.execute([id])?;
        self.set(id, LET_GO, 0)?;
        let tally = self.tallies.entry(tenant).or_default();
        tally.bytes = tally.bytes.saturating_sub(bytes);
        Ok(true)
    }

    /// The oldest keys of a tenant that has too many go, except those whose work goes on; says whether there is room.
    pub(super) fn make_room(&mut self, tenant: &str) -> rusqlite::Result<bool> {
        if self.tally(tenant).keys < self.bounds.keys {
            return Ok(true);
        }
        let text = "SELECT id FROM claims WHERE tenant = ?1 AND NOT (state = ?2 AND server = ?3) \
                    ORDER BY since_us LIMIT ?4";
        let step = ROOM_STEP.min(self.bounds.keys.max(1));
        let ids: Vec<i64> = {
            let mut query = self.connection.prepare_cached(text)?;
            let rows =
                query.query_map(params![tenant, BEGUN, self.server, step], |row| row.get(0))?;
            rows.collect::<rusqlite::Result<_>>()?
        };
        for id in ids {
            self.remove(tenant, id)?;
        }
        Ok(self.tally(tenant).keys < self.bounds.keys)
    }

    pub(super) fn remove(&mut self, tenant: &str, id: i64) -> rusqlite::Result<()> {
        let text = "DELETE FROM claims WHERE id = ?1 RETURNING bytes";
        let bytes: Option<u64> =
            self.connection.prepare_cached(text)?.query_row([id], |row| row.get(0)).optional()?;
        self.connection.prepare_cached("DELETE FROM answers WHERE id = ?1")?.execute([id])?;
        let tally = self.tallies.entry(tenant.to_owned()).or_default();
        tally.keys = tally.keys.saturating_sub(u64::from(bytes.is_some()));
        tally.bytes = tally.bytes.saturating_sub(bytes.unwrap_or(0));
        Ok(())
    }

    /// Lets go of what is too old, now and then.
    pub(super) fn tidy(&mut self, now_us: u64) -> rusqlite::Result<()> {
        if self.tidied_us != 0 && now_us.saturating_sub(self.tidied_us) < TIDY_EVERY_US {
            return Ok(());
        }
        self.tidied_us = now_us.max(1);
        let age = u64::try_from(self.bounds.age.as_micros()).unwrap_or(u64::MAX);
        let before = now_us.saturating_sub(age);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let text = "DELETE FROM answers WHERE id IN (SELECT id FROM claims WHERE since_us <= ?1)";
        transaction.execute(text, [before])?;
        let gone = transaction.execute("DELETE FROM claims WHERE since_us <= ?1", [before])?;
        transaction.commit()?;
        if gone > 0 { self.count_all() } else { Ok(()) }
    }
}
