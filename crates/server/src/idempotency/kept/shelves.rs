//! The file itself, and what may be in it. Only the thread of [`super::Kept`] has it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};

use super::{Answer, Bounds, Claim, Ending, Found, Job, Told, said};

const SCHEMA_VERSION: i64 = 1;
/// Marks the file as ours: "once".
const APPLICATION_ID: i64 = 0x6f6e_6365;
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// How often those that are too old are looked for.
const TIDY_EVERY_US: u64 = 60_000_000;
/// Keys that are let go at once to make room.
const ROOM_STEP: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// Room for keys beside the answers.
const KEY_PAGES: u64 = 65_536;

const SCHEMA: &str = "
CREATE TABLE claims (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    key BLOB NOT NULL,
    request BLOB NOT NULL,
    since_us INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    server TEXT NOT NULL,
    state INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX claims_by_key ON claims (tenant, key);
CREATE INDEX claims_by_age ON claims (tenant, since_us);
CREATE TABLE answers (id INTEGER PRIMARY KEY, head TEXT NOT NULL, body BLOB NOT NULL) STRICT;
";

/// How far a claim came.
const BEGUN: u8 = 0;
const ANSWERED: u8 = 1;
/// Answered, and the answer is not here: too long, or let go to make room.
const LET_GO: u8 = 2;

/// What a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    keys: u64,
    bytes: u64,
}

/// The file.
#[derive(Debug)]
pub(super) struct Shelves {
    connection: Connection,
    bounds: Bounds,
    tallies: HashMap<String, Tally>,
    /// Tells our own claims from those of servers that are gone.
    server: String,
    tidied_us: u64,
    count: Arc<AtomicUsize>,
}

enum Reply {
    Found(Told<Found>, Found),
    Done(Told<()>),
}

impl Shelves {
    pub(super) fn open(
        path: &Path,
        bounds: Bounds,
        count: Arc<AtomicUsize>,
        now_us: u64,
    ) -> rusqlite::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let made = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        made.map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(BUSY_LIMIT)?;
        for (name, value) in [("journal_mode", "WAL"), ("trusted_schema", "0")] {
            connection.pragma_update(None, name, value)?;
        }
        // What is let go is not to be read in the file any more.
        connection.pragma_update(None, "secure_delete", "1")?;
        // Keys need room beside the answers.
        let pages = (bounds.total_bytes / PAGE_BYTES).saturating_mul(2).saturating_add(KEY_PAGES);
        connection.pragma_update(
            None,
            "max_page_count",
            i64::try_from(pages).unwrap_or(i64::MAX),
        )?;
        begin(&mut connection)?;
        let server = crate::front::RequestId::new().0;
        let (tallies, tidied_us) = (HashMap::new(), 0);
        let mut shelves = Self { connection, bounds, tallies, server, tidied_us, count };
        shelves.count_all()?;
        shelves.tidy(now_us)?;
        Ok(shelves)
    }

    /// All of them in one transaction, and through to the disk if one of them is a claim; then each is told.
    pub(super) fn carry_out(&mut self, together: Vec<Job>, now_us: u64) {
        let claims = together.iter().any(|job| matches!(job, Job::Claim(..)));
        match self.try_all(&together, claims, now_us) {
            Ok(found) => {
                for reply in together.into_iter().zip(found).map(paired) {
                    // Whoever asked may be gone.
                    match reply {
                        Reply::Found(told, found) => drop(told.send(Ok(found))),
                        Reply::Done(told) => drop(told.send(Ok(()))),
                    }
                }
            }
            Err(error) => {
                let why = said(&error);
                // The numbers are those of a transaction that did not happen.
                self.count_all().ok();
                for job in together {
                    match job {
                        Job::Claim(_, told) => drop(told.send(Err(why.clone()))),
                        Job::End { told, .. } => drop(told.send(Err(why.clone()))),
                    }
                }
            }
        }
        self.count.store(
            usize::try_from(self.tallies.values().map(|one| one.keys).sum::<u64>()).unwrap_or(0),
            Ordering::Relaxed,
        );
    }

    fn try_all(
        &mut self,
        together: &[Job],
        durable: bool,
        now_us: u64,
    ) -> rusqlite::Result<Vec<Option<Found>>> {
        let how = if durable { "FULL" } else { "NORMAL" };
        self.connection.pragma_update(None, "synchronous", how)?;
        self.tidy(now_us)?;
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut act = || -> rusqlite::Result<Vec<Option<Found>>> {
            let mut all = Vec::with_capacity(together.len());
            for job in together {
                all.push(match job {
                    Job::Claim(claim, _) => Some(self.claim(claim, now_us)?),
                    Job::End { tenant, key, ending, .. } => {
                        self.end(tenant, key, ending)?;
                        None
                    }
                });
            }
            Ok(all)
        };
        let done = act().and_then(|all| {
            self.connection.execute_batch("COMMIT")?;
            Ok(all)
        });
        if done.is_err() && !self.connection.is_autocommit() {
            // What cannot even be taken back is taken back by whoever opens the file next.
            self.connection.execute_batch("ROLLBACK").ok();
        }
        done
    }

    fn claim(&mut self, claim: &Claim, now_us: u64) -> rusqlite::Result<Found> {
        if let Some(found) = self.look(claim, now_us)? {
            return Ok(found);
        }
        self.make_room(&claim.tenant)?;
        let text = "INSERT INTO claims (tenant, key, request, since_us, request_id, server, state, bytes) \
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)";
        self.connection.prepare_cached(text)?.execute(params![
            claim.tenant,
            &claim.key[..],
            &claim.request[..],
            now_us,
            claim.request_id,
            self.server,
            BEGUN
        ])?;
        self.tallies.entry(claim.tenant.clone()).or_default().keys += 1;
        Ok(Found::Claimed)
    }

    /// What is known of a key that is not too old.
    fn look(&mut self, claim: &Claim, now_us: u64) -> rusqlite::Result<Option<Found>> {
        let text = "SELECT id, request, since_us, request_id, state FROM claims \
                    WHERE tenant = ?1 AND key = ?2";
        let row = self
            .connection
            .prepare_cached(text)?
            .query_row(params![claim.tenant, &claim.key[..]], |row| {
                let request: Vec<u8> = row.get(1)?;
                let (id, since_us): (i64, u64) = (row.get(0)?, row.get(2)?);
                Ok((id, request, since_us, row.get::<_, String>(3)?, row.get::<_, u8>(4)?))
            })
            .optional()?;
        let Some((id, request, since_us, request_id, state)) = row else { return Ok(None) };
        if self.is_old(since_us, now_us) {
            self.remove(&claim.tenant, id)?;
            return Ok(None);
        }
        if !crate::token::same(&request, &claim.request) {
            return Ok(Some(Found::Other));
        }
        Ok(Some(match state {
            ANSWERED => self.answer(id)?.map_or(Found::LetGo, Found::Answered),
            LET_GO => Found::LetGo,
            _ => Found::Unknown { since_us, request_id },
        }))
    }

    fn answer(&self, id: i64) -> rusqlite::Result<Option<Answer>> {
        let text = "SELECT head, body FROM answers WHERE id = ?1";
        let read =
            |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?));
        let found = self.connection.prepare_cached(text)?.query_row([id], read).optional()?;
        // One of another version is as one that is not here.
        Ok(found.and_then(|(head, body)| {
            Some(Answer { head: serde_json::from_str(&head).ok()?, body: body.into() })
        }))
    }

    fn end(&mut self, tenant: &str, key: &[u8; 32], ending: &Ending) -> rusqlite::Result<()> {
        let text = "SELECT id FROM claims WHERE tenant = ?1 AND key = ?2 AND state = ?3";
        let found: Option<i64> = self
            .connection
            .prepare_cached(text)?
            .query_row(params![tenant, &key[..], BEGUN], |row| row.get(0))
            .optional()?;
        let Some(id) = found else { return Ok(()) };
        match ending {
            Ending::Forgotten => self.remove(tenant, id),
            Ending::LetGo => self.set(id, LET_GO, 0),
            Ending::Answered(answer) => {
                let head = serde_json::to_string(&answer.head).unwrap_or_default();
                let bytes = (head.len() + answer.body.len()) as u64;
                if bytes > self.bounds.bytes {
                    return self.set(id, LET_GO, 0);
                }
                let text = "INSERT INTO answers (id, head, body) VALUES (?1, ?2, ?3)";
                self.connection.prepare_cached(text)?.execute(params![
                    id,
                    head,
                    &answer.body[..]
                ])?;
                self.set(id, ANSWERED, bytes)?;
                self.tallies.entry(tenant.to_owned()).or_default().bytes += bytes;
                self.let_answers_go(tenant)
            }
        }
    }

    fn set(&self, id: i64, state: u8, bytes: u64) -> rusqlite::Result<()> {
        let text = "UPDATE claims SET state = ?2, bytes = ?3 WHERE id = ?1";
        self.connection.prepare_cached(text)?.execute(params![id, state, bytes]).map(drop)
    }

    /// The oldest answers go when there are too many bytes of them, of one tenant or of all. Their keys stay: what was
    /// done is not done again.
    fn let_answers_go(&mut self, tenant: &str) -> rusqlite::Result<()> {
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

    /// The oldest keys of a tenant that has too many go, except those whose work goes on.
    fn make_room(&mut self, tenant: &str) -> rusqlite::Result<()> {
        if self.tally(tenant).keys < self.bounds.keys {
            return Ok(());
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
        Ok(())
    }

    fn remove(&mut self, tenant: &str, id: i64) -> rusqlite::Result<()> {
        let text = "DELETE FROM claims WHERE id = ?1 RETURNING bytes";
        let bytes: Option<u64> =
            self.connection.prepare_cached(text)?.query_row([id], |row| row.get(0)).optional()?;
        self.connection.prepare_cached("DELETE FROM answers WHERE id = ?1")?.execute([id])?;
        let tally = self.tallies.entry(tenant.to_owned()).or_default();
        tally.keys = tally.keys.saturating_sub(u64::from(bytes.is_some()));
        tally.bytes = tally.bytes.saturating_sub(bytes.unwrap_or(0));
        Ok(())
    }

    fn tally(&self, tenant: &str) -> Tally {
        self.tallies.get(tenant).copied().unwrap_or_default()
    }

    /// A clock that was set back makes nothing old.
    fn is_old(&self, since_us: u64, now_us: u64) -> bool {
        let age = u64::try_from(self.bounds.age.as_micros()).unwrap_or(u64::MAX);
        now_us.saturating_sub(since_us) >= age
    }

    /// Lets go of what is too old, now and then.
    fn tidy(&mut self, now_us: u64) -> rusqlite::Result<()> {
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

    fn count_all(&mut self) -> rusqlite::Result<()> {
        let text = "SELECT tenant, count(*), sum(bytes) FROM claims GROUP BY tenant";
        let mut query = self.connection.prepare_cached(text)?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, String>(0)?, Tally { keys: row.get(1)?, bytes: row.get(2)? }))
        };
        self.tallies = query.query_map([], read)?.collect::<rusqlite::Result<_>>()?;
        Ok(())
    }
}

fn paired((job, found): (Job, Option<Found>)) -> Reply {
    match job {
        // A claim always finds something; what would be missing is taken for what must not be repeated.
        Job::Claim(_, told) => Reply::Found(told, found.unwrap_or(Found::LetGo)),
        Job::End { told, .. } => Reply::Done(told),
    }
}

/// Makes the tables, unless they are there.
fn begin(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let number =
        |name: &str| transaction.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (version, application) = (number("user_version")?, number("application_id")?);
    match (version, application) {
        (0, 0) => {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        (SCHEMA_VERSION, APPLICATION_ID) => {}
        _ => {
            let what = format!("it has layout {version}, and this belljar knows {SCHEMA_VERSION}");
            return Err(rusqlite::Error::ToSqlConversionFailure(what.into()));
        }
    }
    transaction.commit()
}

#[cfg(test)]
mod tests;
