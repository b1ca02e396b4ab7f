//! Where the audit trail is kept: one SQLite file in the state directory, and beside it the head of the
//! chain, so that a cut end is seen too. Many processes may write at once: each append is a transaction
//! that holds the writer's lock from before it reads the head until after it has written the records.
//!
//! What is durable when: a record that was appended survives `kill -9` of every process of ours, for the
//! kernel has it. A power failure can take the records of the last moments, never those before
//! ([`SYNC_EVERY`](crate::audit) says how long that is), and never the file: it is a write-ahead log.

mod directory;
mod head;
mod prune;
mod scan;
pub(crate) mod spool;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};

use serde::{Deserialize, Serialize};

use crate::audit::chain::{Broken, ChainHash, Damage, Entry, Position, Record, Walk};

pub use directory::own_directory;
pub(crate) use head::Head;
use head::{Kept, Left};
pub use prune::{Anchor, Pruned};
pub(crate) use scan::Tally;
pub use scan::{Line, Rows, Scan, Verified};
use spool::Spool;

pub(crate) const FILE: &str = "audit.db";

/// How long one process waits for another's transaction, which takes well below a millisecond.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// Tries to begin a new file while others do the same.
const MOST_TRIES: u32 = 50;
/// The layout of the file. A newer one is another program's.
const SCHEMA_VERSION: i64 = 1;
/// Marks the file as ours: "bell".
const APPLICATION_ID: i64 = 0x6265_6c6c;

const SCHEMA: &str = "
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    at_us INTEGER NOT NULL,
    kind TEXT NOT NULL,
    run TEXT NOT NULL,
    summary TEXT NOT NULL,
    detail TEXT NOT NULL,
    prev BLOB NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX records_of_run ON records (run) WHERE run <> '';
-- Runs without an end, and the engine that has them.
CREATE TABLE open_runs (run TEXT PRIMARY KEY, engine TEXT NOT NULL) STRICT, WITHOUT ROWID;
-- Where the records begin since they were last pruned.
CREATE TABLE anchor (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash BLOB NOT NULL) STRICT;
";

/// By the key that asked, so that what one tenant asks for does not take longer by what others did. Made for older
/// files too: they have no other layout without it.
const INDEX_BY_KEY: &str = "CREATE INDEX IF NOT EXISTS records_of_key ON records \
    (CASE WHEN json_valid(summary) THEN json_extract(summary, '$.key') END, seq)";

/// Why the trail cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}: {what}", .path.display())]
    Sqlite { path: PathBuf, what: String, source: rusqlite::Error },

    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },

    #[error("{} was made by a newer belljar (layout {found}, this one knows {SCHEMA_VERSION}): use that one", .path.display())]
    Newer { path: PathBuf, found: i64 },

    #[error("{} is not an audit trail: move it away", .path.display())]
    Foreign { path: PathBuf },

    #[error("there is no audit trail at {}: nothing was recorded yet, or elsewhere (--state DIR)", .path.display())]
    Absent { path: PathBuf },

    /// The trail is not what it was. Nothing is added to it, so that the evidence stays.
    #[error("the audit trail {} is damaged: {broken}. hint: look with \"belljar audit verify\", keep a copy, then move {} and {} away to begin a new one", .path.display(), FILE, head::FILE)]
    Damaged { path: PathBuf, broken: Broken },
}

impl StoreError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let full = source.kind() == io::ErrorKind::StorageFull;
            let words = "no room is left on its disk";
            let source = if full { io::Error::new(source.kind(), words) } else { source };
            Self::Io { path: path.to_owned(), source }
        }
    }
}

/// An open trail.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    /// Device and inode of the file that is open.
    file: (u64, u64),
    head: Head,
    /// What the head said when we last held its lock. Others may have moved it on since, into the spool.
    kept: Option<Kept>,
    spool: Spool,
    /// Where the trail was seen to reach when it was opened for reading, and what was wrong with its spool.
    seen: Result<Option<Position>, Broken>,
}

/// What is to be appended, and what that does to the list of runs that have no end yet.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub entry: Entry,
    pub run_is: RunIs,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunIs {
    /// Begun, by this engine.
    Begun {
        engine: String,
    },
    Ended,
    Untouched,
}

impl Store {
    /// Opens the trail of a state directory for adding to it; makes both if they are not there.
    pub(crate) fn open(directory: &Path, at_us: u64) -> Result<Self, StoreError> {
        own_directory(directory)?;
        let path = directory.join(FILE);
        if !path.try_exists().map_err(StoreError::io(&path))? {
            refuse_anew(directory, &path)?;
        }
        // With its own mode: the log and the index beside it get the same.
        let made = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let status = made.and_then(|made| made.metadata()).map_err(StoreError::io(&path))?;
        let file = (status.dev(), status.ino());
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)
            .map_err(sqlite(&path))?;
        prepare(&connection, &path)?;
        let head = Head::open(directory)?;
        let (spool, seen) = (Spool::of(directory), Ok(None));
        let mut store = Self { connection, path, file, head, kept: None, spool, seen };
        store.begin()?;
        store.write(|_, end| Ok(((), end)))?;
        store.check_head(at_us)?;
        Ok(store)
    }

    /// Opens the trail of a state directory for reading.
    pub fn read(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        if !path.try_exists().map_err(StoreError::io(&path))? && Head::kept(directory)?.is_none() {
            return Err(StoreError::Absent { path });
        }
        // A reader takes part in the locks of the log, so it opens as a writer would.
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)
            .map_err(sqlite(&path))?;
        connection.busy_timeout(BUSY_LIMIT).map_err(sqlite(&path))?;
        let head = Head::open(directory)?;
        let (spool, seen) = (Spool::of(directory), Ok(None));
        let mut store = Self { connection, path, file: (0, 0), head, kept: None, spool, seen };
        match store.version()? {
            0 => Err(StoreError::Absent { path: store.path }),
            SCHEMA_VERSION => {
                store.settle()?;
                Ok(store)
            }
            found if found > SCHEMA_VERSION => Err(StoreError::Newer { path: store.path, found }),
            _ => Err(StoreError::Foreign { path: store.path }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends in one transaction; all of it is kept or nothing.
    pub(crate) fn append(&mut self, all: Vec<Append>) -> Result<Position, StoreError> {
        self.write(|transaction, mut head| {
            for one in all {
                let record = Record::after(head, one.entry);
                insert(transaction, &record, &one.run_is)?;
                head = record.position();
            }
            Ok((head, head))
        })
    }

    /// The one way to change the trail: takes the spool over, acts from the end of the chain on, and says where
    /// the end is now. Nobody else changes anything meanwhile.
    fn write<T>(
        &mut self,
        act: impl FnOnce(&Connection, Position) -> rusqlite::Result<(T, Position)>,
    ) -> Result<T, StoreError> {
        let path = &self.path;
        let lock = self.head.lock()?;
        self.kept = lock.kept()?;
        let kept = self.kept.as_ref().map_or(0, |kept| kept.position.seq);
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sqlite(path))?;
        lock.begin()?;
        let drained = self.spool.drain(&transaction)?;
        let end = last(&transaction).map_err(sqlite(path))?;
        let (result, end) = act(&transaction, end).map_err(sqlite(path))?;
        transaction.commit().map_err(sqlite(path))?;
        if drained {
            self.spool.empty()?;
        }
        // A head beyond the end is for `check_head` to judge; until then nothing is whole.
        if end.seq >= kept {
            lock.finish(end, self.left())?;
        }
        Ok(result)
    }

    /// How we leave the files.
    fn left(&self) -> Left {
        Left { spool_bytes: 0, looks: Left::looks_of(self.path.parent().unwrap_or(&self.path)) }
    }

    /// For a reader: takes the spool over, and remembers how far the trail reaches. A spool that is damaged is
    /// told by `verify`; what is in the file can be read all the same.
    fn settle(&mut self) -> Result<(), StoreError> {
        if !self.spool.is_empty() {
            match self.write(|_, end| Ok(((), end))) {
                Err(StoreError::Damaged { broken, .. }) => {
                    self.seen = Err(broken);
                    return Ok(());
                }
                result => result?,
            }
        }
        let lock = self.head.lock()?;
        // Somebody may have spooled more since; what the file has is looked at then.
        let spooled = !self.spool.is_empty();
        let kept = lock.kept()?.map(|kept| kept.position);
        self.seen = Ok(if spooled { Some(self.end()?) } else { kept });
        drop(lock);
        Ok(())
    }

    /// Appends the end of a run, unless it has one by now.
    pub(crate) fn append_if_open(&mut self, run: &str, one: Append) -> Result<(), StoreError> {
        self.write(|transaction, head| {
            let query = "SELECT 1 FROM open_runs WHERE run = ?1";
            if transaction.query_row(query, params![run], |_| Ok(())).optional()?.is_none() {
                return Ok(((), head));
            }
            let record = Record::after(head, one.entry);
            insert(transaction, &record, &one.run_is)?;
            Ok(((), record.position()))
        })
    }

    /// Whether the file that was opened is still the one in its place: what is written to a file that was
    /// removed is lost.
    pub(crate) fn is_there(&self) -> bool {
        let found = std::fs::metadata(&self.path).map(|status| (status.dev(), status.ino()));
        found.is_ok_and(|found| found == self.file)
    }

    /// Runs that have no end, with the engines that have them.
    pub(crate) fn open_runs(&self) -> Result<Vec<(String, String)>, StoreError> {
        let wrong = sqlite(&self.path);
        let read = || {
            let mut query = self.connection.prepare("SELECT run, engine FROM open_runs")?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(wrong)
    }

    /// Brings what is in the log into the file and both to the disk. Others may write meanwhile.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.checkpoint("PASSIVE")
    }

    /// The same, and begins the log anew, unless somebody reads.
    pub(crate) fn shorten(&self) -> Result<(), StoreError> {
        let patience = |time| self.connection.busy_timeout(time).map_err(sqlite(&self.path));
        patience(Duration::ZERO)?; // a reader may take long, and runs wait for us
        let done = self.checkpoint("TRUNCATE");
        patience(BUSY_LIMIT)?;
        done
    }

    /// It is the same trail afterwards, and only looks different. The lock is not held meanwhile: runs wait for
    /// it, and the disk is slow.
    fn checkpoint(&self, how: &str) -> Result<(), StoreError> {
        let was_known =
            self.head.lock()?.left()?.is_some_and(|left| left.looks == self.left().looks);
        let done = self.checkpoint_now(how);
        let lock = self.head.lock()?;
        if let (true, Some(left), Some(kept)) = (was_known, lock.left()?, lock.kept()?) {
            lock.finish(kept.position, Left { looks: self.left().looks, ..left })?;
        }
        done
    }

    fn checkpoint_now(&self, how: &str) -> Result<(), StoreError> {
        let statement = format!("PRAGMA wal_checkpoint({how})");
        // Its row says whether it was whole; the next one does the rest.
        let done = self.connection.query_row(&statement, [], |_| Ok(()));
        done.map_err(sqlite(&self.path))
    }

    fn version(&self) -> Result<i64, StoreError> {
        let number = |name: &str| self.connection.pragma_query_value(None, name, |row| row.get(0));
        let version: i64 = number("user_version").map_err(sqlite(&self.path))?;
        let application: i64 = number("application_id").map_err(sqlite(&self.path))?;
        if version != 0 && application != APPLICATION_ID {
            return Err(StoreError::Foreign { path: self.path.clone() });
        }
        Ok(version)
    }

    /// Makes the tables, unless they are there.
    fn begin(&mut self) -> Result<(), StoreError> {
        match self.version()? {
            SCHEMA_VERSION => {
                return self.connection.execute_batch(INDEX_BY_KEY).map_err(sqlite(&self.path));
            }
            0 => {}
            found if found > SCHEMA_VERSION => {
                return Err(StoreError::Newer { path: self.path.clone(), found });
            }
            _ => return Err(StoreError::Foreign { path: self.path.clone() }),
        }
        let make = |connection: &mut Connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let version: i64 =
                transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
            if version == 0 {
                transaction.execute_batch(SCHEMA)?;
                transaction.execute_batch(INDEX_BY_KEY)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            }
            transaction.commit()
        };
        make(&mut self.connection).map_err(sqlite(&self.path))
    }

    /// The trail must reach as far as its head says. After a power failure it may not, and then it says so
    /// in a record; at any other time somebody cut it.
    fn check_head(&mut self, at_us: u64) -> Result<(), StoreError> {
        let Some(kept) = self.kept.clone() else { return Ok(()) };
        let found = last(&self.connection).map_err(sqlite(&self.path))?;
        if found.seq >= kept.position.seq {
            return self.check_hash(kept.position);
        }
        let lost_power = kept.boot != crate::native::boot() && found.seq > 0;
        if !lost_power {
            let walk = Walk::from(found, found.seq, Some(kept.position));
            let damaged = |broken| StoreError::Damaged { path: self.path.clone(), broken };
            return walk.finish().map(drop).map_err(damaged);
        }
        let entry = crate::audit::gap(at_us, kept.position, found);
        self.head.force(found)?;
        self.append(vec![Append { entry, run_is: RunIs::Untouched }]).map(drop)
    }

    fn check_hash(&self, kept: Position) -> Result<(), StoreError> {
        let query = "SELECT hash FROM records WHERE seq = ?1";
        let found = self.connection.query_row(query, params![kept.seq], |row| row.get(0));
        let found: Option<Vec<u8>> = found.optional().map_err(sqlite(&self.path))?;
        let found = found.as_deref().and_then(ChainHash::from_slice);
        let pruned = || self.anchor().map(|anchor| anchor.seq >= kept.seq);
        if found == Some(kept.hash) || (found.is_none() && pruned()?) {
            return Ok(());
        }
        let broken = Broken {
            seq: kept.seq,
            damage: Damage::Changed,
            why: "the head that was kept beside the trail has another hash for it".to_owned(),
        };
        Err(StoreError::Damaged { path: self.path.clone(), broken })
    }
}

/// A head without its trail: somebody took the trail away, and a new one would hide that.
fn refuse_anew(directory: &Path, path: &Path) -> Result<(), StoreError> {
    let Some(kept) = Head::kept(directory)?.filter(|kept| kept.position.seq > 0) else {
        return Ok(());
    };
    let walk = Walk::from(Position::BEGINNING, 0, Some(kept.position));
    let damaged = |broken| StoreError::Damaged { path: path.to_owned(), broken };
    walk.finish().map(drop).map_err(damaged)
}

/// How a connection of ours behaves.
fn prepare(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let wrong = || sqlite(path);
    connection.busy_timeout(BUSY_LIMIT).map_err(wrong())?;
    // To change the kind of journal needs the file alone, for which the timeout above does not count.
    let mut tries = 0;
    while let Err(error) = connection.pragma_update(None, "journal_mode", "WAL") {
        tries += 1;
        if !is_busy(&error) || tries == MOST_TRIES {
            return Err(wrong()(error));
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    for (name, value) in
        [("synchronous", "NORMAL"), ("wal_autocheckpoint", "0"), ("trusted_schema", "0")]
    {
        connection.pragma_update(None, name, value).map_err(wrong())?;
    }
    // Whoever closes last would bring the log to the disk, and its user would wait for that.
    let close = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    close.map(drop).map_err(wrong())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// What to say of an error of SQLite, whose own words do not say what to do.
fn sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    move |source| {
        let what = match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => "no room is left on its disk".to_owned(),
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                format!("cannot be written ({source})")
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                format!("another process has held it for {} s", BUSY_LIMIT.as_secs())
            }
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                format!("is not a whole SQLite file ({source}): keep a copy, then move it away")
            }
            _ => source.to_string(),
        };
        StoreError::Sqlite { path: path.to_owned(), what, source }
    }
}

/// The end of the chain, as it is in the file.
fn last(connection: &Connection) -> rusqlite::Result<Position> {
    let mut query =
        connection.prepare_cached("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1")?;
    if let Some(found) = query.query_row([], position).optional()? {
        return Ok(found);
    }
    let mut query = connection.prepare_cached("SELECT seq, hash FROM anchor")?;
    Ok(query.query_row([], position).optional()?.unwrap_or(Position::BEGINNING))
}

fn position(row: &rusqlite::Row<'_>) -> rusqlite::Result<Position> {
    let hash: Vec<u8> = row.get(1)?;
    let hash = ChainHash::from_slice(&hash).unwrap_or(ChainHash::BEGINNING);
    Ok(Position { seq: row.get(0)?, hash })
}

fn insert(connection: &Connection, record: &Record, run_is: &RunIs) -> rusqlite::Result<()> {
    let Record { seq, entry, prev, hash } = record;
    let text = "INSERT INTO records (seq, at_us, kind, run, summary, detail, prev, hash) \
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    connection.prepare_cached(text)?.execute(params![
        seq,
        entry.at_us,
        entry.kind,
        entry.run,
        entry.summary,
        entry.detail,
        &prev.0[..],
        &hash.0[..]
    ])?;
    match run_is {
        RunIs::Begun { engine } => {
            let text = "INSERT INTO open_runs (run, engine) VALUES (?1, ?2)";
            connection.prepare_cached(text)?.execute(params![entry.run, engine])?;
        }
        RunIs::Ended => {
            let text = "DELETE FROM open_runs WHERE run = ?1";
            connection.prepare_cached(text)?.execute(params![entry.run])?;
        }
        RunIs::Untouched => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
