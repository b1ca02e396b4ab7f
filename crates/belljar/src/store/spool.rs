//! The spool: records of the chain that are not in the database yet. To open the database takes longer than a
//! whole short run may; to add a line to a file does not. Whoever opens the trail next takes them over.
//!
//! A line is a record with its place and hash, so that the chain goes on from the one file to the other. A head
//! that says "whole" is the truth about both; where it does not, or the files are not as it says, the trail itself
//! has to be looked at.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::head::{Head, Left, Locked};
use super::{Append, RunIs, StoreError, insert, last, own_directory, sqlite};
use crate::audit::chain::{Broken, ChainHash, Damage, Entry, Position, Record, Walk};
use crate::native::boot;

pub(super) const FILE: &str = "audit.spool";

/// A spool that is longer goes into the database first: whoever takes it over has to read it.
const LONGEST_BYTES: u64 = 4 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    seq: u64,
    at_us: u64,
    kind: String,
    run: String,
    summary: String,
    detail: String,
    prev: ChainHash,
    hash: ChainHash,
    run_is: RunIs,
}

/// Adds to the spool. Gives them back where the trail itself must be opened: there is none yet, it was left in
/// the middle of something, the machine was started anew, or the spool has grown long.
pub(crate) fn append(
    directory: &Path,
    all: Vec<Append>,
) -> Result<Result<Position, Vec<Append>>, StoreError> {
    own_directory(directory)?;
    if !directory.join(super::head::FILE).exists() {
        return Ok(Err(all));
    }
    let head = Head::open(directory)?;
    let lock = head.lock()?;
    let kept = lock.kept()?.filter(|kept| kept.boot == boot());
    let (Some(kept), Some(left)) = (kept, lock.left()?) else { return Ok(Err(all)) };
    let path = directory.join(FILE);
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let file = file.map_err(StoreError::io(&path))?;
    let spool_bytes = file.metadata().map_err(StoreError::io(&path))?.len();
    let found = Left { spool_bytes, looks: Left::looks_of(directory) };
    if found != left || spool_bytes > LONGEST_BYTES {
        return Ok(Err(all));
    }
    write(&lock, &file, &path, (kept.position, left), all).map(Ok)
}

fn write(
    lock: &Locked<'_>,
    mut file: &File,
    path: &Path,
    (from, left): (Position, Left),
    all: Vec<Append>,
) -> Result<Position, StoreError> {
    let (mut head, mut lines) = (from, Vec::new());
    for Append { entry, run_is } in all {
        let Record { seq, entry, prev, hash } = Record::after(head, entry);
        let Entry { at_us, kind, run, summary, detail } = entry;
        let line = Line { seq, at_us, kind, run, summary, detail, prev, hash, run_is };
        serde_json::to_writer(&mut lines, &line)
            .map_err(|error| StoreError::io(path)(io::Error::other(error)))?;
        lines.push(b'\n');
        head = Position { seq, hash };
    }
    lock.begin()?;
    if let Err(error) = file.write_all(&lines) {
        // As if it had never been tried; if not even that works, the head says "at work".
        if file.set_len(left.spool_bytes).is_ok() {
            lock.finish(from, left)?;
        }
        return Err(StoreError::io(path)(error));
    }
    let spool_bytes = left.spool_bytes + lines.len() as u64;
    lock.finish(head, Left { spool_bytes, ..left })?;
    Ok(head)
}

/// The spool of a trail that is open.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
}

impl Spool {
    pub(super) fn of(directory: &Path) -> Self {
        Self { path: directory.join(FILE) }
    }

    /// Puts what is spooled into the database, if there is anything. Whoever does so holds the lock of the head.
    pub(super) fn drain(&self, connection: &Connection) -> Result<bool, StoreError> {
        let mut text = Vec::new();
        match File::open(&self.path).and_then(|mut file| file.read_to_end(&mut text)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StoreError::io(&self.path)(error)),
        }
        let wrong = sqlite(&self.path);
        let end = last(connection).map_err(&wrong)?;
        let damaged = |broken| StoreError::Damaged { path: self.path.clone(), broken };
        let mut walk = Walk::from(end, end.seq, None);
        // A line without an end was being written when its writer was killed; nobody was told that it is kept.
        let whole =
            text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        for line in whole {
            let line: Line = serde_json::from_slice(line).map_err(|_| {
                let why = "its line in the spool is not one of a record".to_owned();
                damaged(Broken { seq: walk.position().seq + 1, damage: Damage::Changed, why })
            })?;
            // Taken over already, by somebody who was killed before the spool was emptied.
            if line.seq <= end.seq {
                continue;
            }
            let Line { seq, at_us, kind, run, summary, detail, prev, hash, run_is } = line;
            let entry = Entry { at_us, kind, run, summary, detail };
            let record = Record { seq, entry, prev, hash };
            walk.step(&record).map_err(damaged)?;
            insert(connection, &record, &run_is).map_err(&wrong)?;
        }
        Ok(true)
    }

    /// Forgets what was put into the database.
    pub(super) fn empty(&self) -> Result<(), StoreError> {
        match OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(&self.path)(error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        std::fs::metadata(&self.path).map_or(true, |status| status.len() == 0)
    }
}

#[cfg(test)]
mod tests;
