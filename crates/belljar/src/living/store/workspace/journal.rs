//! What a commit has done so far, line by line: after a kill in the middle of it, what it wrote is still known as ours,
//! and what it was writing is cleared away.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::{Record, Store, StoreError, record};
use super::{COMMITTED, Ours, check_host, put};

const JOURNAL: &str = "committing.jsonl";

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Begun(String),
    Written(String, ((i64, i64), u64)),
}

/// Open while a commit is at work.
#[derive(Debug)]
pub(super) struct Journal(File);

impl Journal {
    pub(super) fn begin(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(JOURNAL);
        let file = File::options().create(true).append(true).open(&path);
        file.map(Self).map_err(StoreError::io(&path))
    }

    pub(super) fn begun(&mut self, path: String) -> Result<(), String> {
        self.write(&Line::Begun(path))
    }

    pub(super) fn written(&mut self, path: String, seen: ((i64, i64), u64)) -> Result<(), String> {
        self.write(&Line::Written(path, seen))
    }

    /// Not forced to the disk: it is for the death of a process, and each line would wait.
    fn write(&mut self, line: &Line) -> Result<(), String> {
        let mut text = serde_json::to_vec(line).map_err(|error| error.to_string())?;
        text.push(b'\n');
        self.0.write_all(&text).map_err(|error| error.to_string())
    }
}

/// What was brought back before, of whole commits.
pub(super) fn ours(directory: &Path) -> Ours {
    let text = fs::read(directory.join(COMMITTED)).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Ends a commit, done or broken off: what it wrote is remembered.
pub(super) fn close(directory: &Path, ours: &Ours) -> Result<(), StoreError> {
    let text = serde_json::to_vec(ours).map_err(|error| StoreError::io(directory)(error.into()))?;
    record::replace(directory, COMMITTED, &text)?;
    let path = directory.join(JOURNAL);
    fs::remove_file(&path).map_err(StoreError::io(&path))
}

impl Store {
    /// Finishes what a killed commit left, if there is such.
    pub(in super::super) fn settle_commit(&self, record: &Record) -> Result<(), StoreError> {
        let directory = self.directory(&record.id);
        let Ok(text) = fs::read_to_string(directory.join(JOURNAL)) else { return Ok(()) };
        let mut ours = ours(&directory);
        let mut open = None;
        // The last line may be half a line.
        for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            match line {
                Line::Begun(path) => open = Some(path),
                Line::Written(path, seen) => {
                    open = None;
                    ours.files.insert(path, seen);
                }
            }
        }
        // A directory of the host that is no longer there has nothing of ours.
        let host = record.workspace.as_ref().and_then(|one| check_host(one).ok());
        if let (Some(path), Some(host)) = (open, host) {
            put::clear_beside(&host, path.as_bytes());
        }
        close(&directory, &ours)
    }
}
