//! The file itself, and what may be in it. Only the thread of [`super::Kept`] has it.

mod room;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};

use super::{Answer, Bounds, Claim, Ending, Found, Job, said};

const SCHEMA_VERSION: i64 = 1;
/// Marks the file as ours: "once".
const APPLICATION_ID: i64 = 0x6f6e_6365;
const BUSY_LIMIT: Duration = Duration::from_secs(10);
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

/// Those of older files too, which have no other layout without them: what makes room is found by them at once, however
/// many keys there are.
const INDICES: &str = "
CREATE INDEX IF NOT EXISTS claims_with_answers ON claims (tenant, since_us) WHERE state = 1;
CREATE INDEX IF NOT EXISTS claims_by_time ON claims (since_us);
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
    /// How claims ended whose end could not be written; at most one for each claim.
    owed: HashMap<(String, [u8; 32]), Owed>,
}

/// An end without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    LetGo,
    Forgotten,
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
        let (tallies, tidied_us, owed) = (HashMap::new(), 0, HashMap::new());
        let mut shelves = Self { connection, bounds, tallies, server, tidied_us, count, owed };
        shelves.count_all()?;
        shelves.tidy(now_us)?;
        shelves.tell_count();
        Ok(shelves)
    }

    fn tell_count(&self) {
        let keys = self.tallies.values().map(|one| one.keys).sum::<u64>();
        self.count.store(usize::try_from(keys).unwrap_or(0), Ordering::Relaxed);
    }

    /// All of them in one transaction, and through to the disk if one of them is a claim; then each is told. If one
    /// fails, each has a transaction of its own: nobody fails by what others ask for.
    pub(super) fn carry_out(&mut self, together: Vec<Job>, now_us: u64) {
        // What cannot be written now is tried again with the next.
        self.settle().ok();
        match self.try_all(&together, now_us) {
            Ok(found) => together.into_iter().zip(found).for_each(tell),
            Err(error) if together.len() == 1 => {
                together.into_iter().for_each(|job| self.refuse(job, &error));
            }
            Err(_) => {
                for job in together {
                    match self.try_all(std::slice::from_ref(&job), now_us) {
                        Ok(mut found) => tell((job, found.pop().flatten())),
                        Err(error) => self.refuse(job, &error),
                    }
                }
            }
        }
        self.tell_count();
    }

    /// Says why, and remembers what has to be written all the same.
    fn refuse(&mut self, job: Job, error: &rusqlite::Error) {
        let why = said(error);
        // Whoever asked may be gone.
        match job {
            Job::Claim(_, told) => drop(told.send(Err(why))),
            Job::End { tenant, key, ending, told } => {
                let owed = match ending {
                    Ending::Forgotten => Owed::Forgotten,
                    Ending::LetGo | Ending::Answered(_) => Owed::LetGo,
                };
                self.owed.insert((tenant, key), owed);
                drop(told.send(Err(why)));
            }
        }
    }

    /// Writes the ends that are owed.
    fn settle(&mut self) -> rusqlite::Result<()> {
        if self.owed.is_empty() {
            return Ok(());
        }
        let owed: Vec<_> = self.owed.iter().map(|(of, how)| (of.clone(), *how)).collect();
        self.within(|shelves| {
            for ((tenant, key), how) in &owed {
                let ending = match how {
                    Owed::LetGo => Ending::LetGo,
                    Owed::Forgotten => Ending::Forgotten,
                };
                shelves.end(tenant, key, &ending)?;
            }
            Ok(())
        })?;
        self.owed.clear();
        Ok(())
    }

    fn try_all(&mut self, together: &[Job], now_us: u64) -> rusqlite::Result<Vec<Option<Found>>> {
        let is_durable = together.iter().any(|job| matches!(job, Job::Claim(..)));
        let how = if is_durable { "FULL" } else { "NORMAL" };
        self.connection.pragma_update(None, "synchronous", how)?;
        self.tidy(now_us)?;
        self.within(|shelves| {
            let act = |job: &Job| match job {
                Job::Claim(claim, _) => shelves.claim(claim, now_us).map(Some),
                Job::End { tenant, key, ending, .. } => {
                    shelves.end(tenant, key, ending).map(|()| None)
                }
            };
            together.iter().map(act).collect()
        })
    }

    /// Acts in one transaction; what fails has changed nothing, the numbers neither.
    fn within<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let tallies = self.tallies.clone();
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let done = act(self).and_then(|done| {
            self.connection.execute_batch("COMMIT")?;
            Ok(done)
        });
        if done.is_err() {
            self.tallies = tallies;
            if !self.connection.is_autocommit() {
                // What cannot even be taken back is taken back by whoever opens the file next.
                self.connection.execute_batch("ROLLBACK").ok();
            }
        }
        done
    }

    fn claim(&mut self, claim: &Claim, now_us: u64) -> rusqlite::Result<Found> {
        if !self.owed.is_empty() && self.owed.contains_key(&(claim.tenant.clone(), claim.key)) {
            let what = "the end of what came before with this key is not written yet";
            return Err(rusqlite::Error::ToSqlConversionFailure(what.into()));
        }
        if let Some(found) = self.look(claim, now_us)? {
            return Ok(found);
        }
        if !self.make_room(&claim.tenant)? {
            return Ok(Found::Full);
        }
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

    fn tally(&self, tenant: &str) -> Tally {
        self.tallies.get(tenant).copied().unwrap_or_default()
    }

    /// A clock that was set back makes nothing old.
    fn is_old(&self, since_us: u64, now_us: u64) -> bool {
        let age = u64::try_from(self.bounds.age.as_micros()).unwrap_or(u64::MAX);
        now_us.saturating_sub(since_us) >= age
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

/// Whoever asked may be gone.
fn tell((job, found): (Job, Option<Found>)) {
    match job {
        // A claim always finds something; what would be missing is taken for what must not be repeated.
        Job::Claim(_, told) => drop(told.send(Ok(found.unwrap_or(Found::LetGo)))),
        Job::End { told, .. } => drop(told.send(Ok(()))),
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
    transaction.execute_batch(INDICES)?;
    transaction.commit()
}

#[cfg(test)]
mod tests;
