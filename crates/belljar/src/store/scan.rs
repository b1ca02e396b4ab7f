//! Reading the trail: record by record in order, newest first, or those of one run; and walking the whole
//! chain.

use std::collections::HashSet;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};
use serde::Serialize;

use super::{Store, StoreError, last, position, sqlite};
use crate::audit::Kind;
use crate::audit::chain::{Broken, ChainHash, Damage, Entry, Position, Record, Walk};
use crate::audit::prune_of;

/// A trail that is as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    pub records: u64,
    /// Where it ends. Keep this elsewhere, and nobody can rewrite the trail unseen.
    pub head: Position,
    /// Where it begins, when what was before has been pruned.
    pub begins_after: Option<Position>,
    /// Runs that have a start and no end: they go on, or their engine died and none was started since.
    pub unfinished: u64,
    /// How often records were lost with the power.
    pub gaps: u64,
}

/// A row, as far as lists and statistics need it.
#[derive(Clone, Debug)]
pub struct Line {
    pub seq: u64,
    pub at_us: u64,
    pub kind: String,
    pub run: String,
    pub summary: String,
    /// It has no end yet.
    pub is_open: bool,
}

/// Which rows a scan is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows<'a> {
    /// Those that keys of this tenant asked for.
    pub tenant: Option<&'a str>,
    /// Those before this one.
    pub before: Option<u64>,
    /// None that were written long before this: nothing that began since then is among them.
    pub since_us: Option<u64>,
}

/// How far a clock may have been set back while records were written.
const SLACK_US: u64 = 3_600_000_000;

/// Whether a scan goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    On,
    Stop,
}

const COLUMNS: &str = "seq, at_us, kind, run, summary, detail, prev, hash";

impl Store {
    /// Walks the whole chain, as it is at this moment.
    pub fn verify(&self) -> Result<Result<Verified, Broken>, StoreError> {
        // As it was when the trail was opened: what is appended meanwhile makes it longer, never shorter.
        let kept = match &self.seen {
            Ok(kept) => *kept,
            Err(broken) => return Ok(Err(broken.clone())),
        };
        let transaction = self.connection.unchecked_transaction().map_err(sqlite(&self.path))?;
        let anchor = self.anchor()?;
        let most = last(&transaction).map_err(sqlite(&self.path))?.seq;
        let mut walk = Walk::from(anchor, most, kept);
        let mut tally = Tally::default();
        let mut broken = None;
        self.each_record(|record| {
            let taken = record.and_then(|record| walk.step(&record).map(|()| record));
            match taken {
                Ok(record) => tally.take(&record),
                Err(found) => broken = Some(found),
            }
            if broken.is_some() { Scan::Stop } else { Scan::On }
        })?;
        drop(transaction);
        Ok(match broken {
            Some(broken) => Err(broken),
            None => walk.finish().and_then(|head| tally.close(anchor, head)),
        })
    }

    /// Every record from the oldest on; those that cannot be read are told as what they are.
    pub fn each_record(
        &self,
        mut take: impl FnMut(Result<Record, Broken>) -> Scan,
    ) -> Result<(), StoreError> {
        let text = format!("SELECT {COLUMNS} FROM records ORDER BY seq");
        let wrong = sqlite(&self.path);
        let mut query = self.connection.prepare(&text).map_err(&wrong)?;
        let mut rows = query.query([]).map_err(&wrong)?;
        while let Some(row) = rows.next().map_err(&wrong)? {
            if take(record(row)) == Scan::Stop {
                break;
            }
        }
        Ok(())
    }

    /// Rows from the newest on, without what is long.
    pub fn each_line_back(
        &self,
        which: Rows<'_>,
        mut take: impl FnMut(Line) -> Scan,
    ) -> Result<(), StoreError> {
        let wrong = sqlite(&self.path);
        let before = which.before.unwrap_or(i64::MAX.unsigned_abs());
        // Keys are recorded as `tenant` or `tenant/key`; '0' is what comes after '/'.
        let tenant = which.tenant.unwrap_or_default();
        let (least, beyond) = (format!("{tenant}/"), format!("{tenant}0"));
        let text = if which.tenant.is_some() { lines_of_tenant() } else { all_lines() };
        let mut query = self.connection.prepare(&text).map_err(&wrong)?;
        let mut rows = match which.tenant {
            Some(_) => query.query(params![before, tenant, least, beyond]),
            None => query.query(params![before]),
        }
        .map_err(&wrong)?;
        while let Some(row) = rows.next().map_err(&wrong)? {
            let line = Line {
                seq: row.get(0).map_err(&wrong)?,
                at_us: row.get(1).map_err(&wrong)?,
                kind: row.get(2).map_err(&wrong)?,
                run: row.get(3).map_err(&wrong)?,
                summary: row.get(4).map_err(&wrong)?,
                is_open: row.get(5).map_err(&wrong)?,
            };
            let is_past = |since: u64| line.at_us.saturating_add(SLACK_US) < since;
            if which.since_us.is_some_and(is_past) || take(line) == Scan::Stop {
                break;
            }
        }
        Ok(())
    }

    /// The records of one run, in order.
    pub fn of_run(&self, run: &str) -> Result<Vec<Record>, StoreError> {
        let text =
            format!("SELECT {COLUMNS} FROM records WHERE run = ?1 AND run <> '' ORDER BY seq");
        let wrong = sqlite(&self.path);
        let mut query = self.connection.prepare(&text).map_err(&wrong)?;
        let mut rows = query.query(params![run]).map_err(&wrong)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(&wrong)? {
            let damaged = |broken| StoreError::Damaged { path: self.path.clone(), broken };
            found.push(record(row).map_err(damaged)?);
        }
        Ok(found)
    }

    /// The execution ids that begin so; no more of them than `most`.
    pub fn runs_like(&self, beginning: &str, most: usize) -> Result<Vec<String>, StoreError> {
        let text =
            "SELECT DISTINCT run FROM records WHERE run <> '' AND run >= ?1 AND run < ?2 LIMIT ?3";
        let wrong = sqlite(&self.path);
        let read = || {
            let mut query = self.connection.prepare(text)?;
            // No digit of an execution id comes after this.
            let beyond = format!("{beginning}~");
            let rows =
                query.query_map(params![beginning, beyond, most as u64], |row| row.get(0))?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(wrong)
    }

    /// Where the records begin.
    pub fn anchor(&self) -> Result<Position, StoreError> {
        let read = self.connection.query_row("SELECT seq, hash FROM anchor", [], position);
        let found = read.optional().map_err(sqlite(&self.path))?;
        Ok(found.unwrap_or(Position::BEGINNING))
    }

    /// Where the records end.
    pub fn end(&self) -> Result<Position, StoreError> {
        last(&self.connection).map_err(sqlite(&self.path))
    }
}

const LINE_COLUMNS: &str = "seq, at_us, kind, run, summary, \
    kind = 'start' AND EXISTS (SELECT 1 FROM open_runs WHERE open_runs.run = records.run)";
/// As the index has it.
const KEY: &str = "CASE WHEN json_valid(summary) THEN json_extract(summary, '$.key') END";

fn all_lines() -> String {
    format!("SELECT {LINE_COLUMNS} FROM records WHERE seq < ?1 ORDER BY seq DESC")
}

pub(super) fn lines_of_tenant() -> String {
    format!(
        "SELECT {LINE_COLUMNS} FROM records WHERE seq < ?1 AND seq IN (\
         SELECT seq FROM records WHERE {KEY} = ?2 UNION ALL \
         SELECT seq FROM records WHERE {KEY} >= ?3 AND {KEY} < ?4) ORDER BY seq DESC"
    )
}

/// What a walk counts on its way.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    records: u64,
    gaps: u64,
    open: HashSet<String>,
    /// The places where the trail was pruned to, as records say.
    pruned: Vec<Position>,
}

impl Tally {
    pub(crate) fn take(&mut self, record: &Record) {
        self.records += 1;
        match Kind::named(&record.entry.kind) {
            Some(Kind::Start) => drop(self.open.insert(record.entry.run.clone())),
            Some(Kind::End | Kind::Closed) => drop(self.open.remove(&record.entry.run)),
            Some(Kind::Prune) => self.pruned.extend(prune_of(&record.entry)),
            Some(Kind::Gap) => self.gaps += 1,
            None => {}
        }
    }

    /// For a file that holds only some of the records: nothing is said of the rest.
    pub(crate) fn some_of(self, head: Position) -> Verified {
        let (records, gaps) = (self.records, self.gaps);
        Verified { records, head, begins_after: None, unfinished: 0, gaps }
    }

    /// A beginning that no record vouches for is a beginning that was cut.
    pub(crate) fn close(self, anchor: Position, head: Position) -> Result<Verified, Broken> {
        if anchor.seq > 0 && !self.pruned.contains(&anchor) {
            let why = format!(
                "the trail begins after record {}, and no record says that it was pruned",
                anchor.seq
            );
            return Err(Broken { seq: anchor.seq, damage: Damage::Removed, why });
        }
        Ok(Verified {
            records: self.records,
            head,
            begins_after: Some(anchor).filter(|anchor| anchor.seq > 0),
            unfinished: self.open.len() as u64,
            gaps: self.gaps,
        })
    }
}

/// A row as a record. Whoever writes to the file by hand can put anything into it.
fn record(row: &Row<'_>) -> Result<Record, Broken> {
    let seq = row.get(0).unwrap_or(0);
    let strange = |name: &str| {
        let why = format!("its {name} is not what a record has there");
        Broken { seq, damage: Damage::Changed, why }
    };
    let text = |index: usize, name: &str| match row.get(index) {
        Ok(Value::Text(text)) => Ok(text),
        Ok(_) | Err(_) => Err(strange(name)),
    };
    let hash = |index: usize, name: &str| match row.get(index) {
        Ok(Value::Blob(bytes)) => ChainHash::from_slice(&bytes).ok_or_else(|| strange(name)),
        Ok(_) | Err(_) => Err(strange(name)),
    };
    let entry = Entry {
        at_us: row.get(1).map_err(|_| strange("time"))?,
        kind: text(2, "kind")?,
        run: text(3, "run")?,
        summary: text(4, "summary")?,
        detail: text(5, "detail")?,
    };
    Ok(Record { seq, entry, prev: hash(6, "prev")?, hash: hash(7, "hash")? })
}
