//! Following what changes in a sandbox.

use std::sync::Arc;

use belljar_jail::agent::wire::What;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::Files;
use super::error::{FileError, FileFault};
use super::line::{Line, Opened};
use super::path::InsidePath;

/// How long one question waits for something to happen: well below an agent's time for an answer.
const WAIT_MS: u32 = 5000;

/// Something happened to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEvent {
    pub kind: FileEventKind,
    /// Absolute, as far as it is text.
    pub path: String,
    pub directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileEventKind {
    Created,
    Written,
    Metadata,
    Removed,
    MovedFrom,
    MovedTo,
    /// Some events were lost, or not everything below can be watched.
    Overflow,
    /// What was watched is gone; nothing more comes.
    Gone,
}

/// A watch, with an agent of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Watching {
    line: Line,
    watch: Opened,
    path: InsidePath,
    _place: OwnedSemaphorePermit,
}

impl Files {
    /// Watches a file or directory, and with `recursive` everything below it. What happens after this returns is told.
    pub async fn watch(&self, path: &InsidePath, recursive: bool) -> Result<Watching, FileError> {
        let place = Arc::clone(&self.0.watches).try_acquire_owned().map_err(|_| {
            let why = format!("cannot be watched too: {} watches are open", super::MAX_WATCHES);
            FileFault::Refused(why).at(path.bytes())
        })?;
        let mut line = self.line(path.bytes()).await?;
        let watch = line.watch(path.place(), recursive, path.bytes()).await?;
        Ok(Watching { line, watch, path: path.clone(), _place: place })
    }
}

impl Watching {
    /// What happened since it was last asked: at least one event, waited for as long as it takes. Not to be dropped
    /// half-way and asked again.
    pub async fn next(&mut self) -> Result<Vec<FileEvent>, FileError> {
        loop {
            let events = self.line.events(self.watch, WAIT_MS, self.path.bytes()).await?;
            if events.is_empty() {
                continue;
            }
            let told = events.into_iter().map(|event| {
                let path = match &*event.path.0 {
                    b"" => self.path.bytes().to_vec(),
                    below => self.path.child(below),
                };
                FileEvent {
                    kind: kind(event.what),
                    path: String::from_utf8_lossy(&path).into_owned(),
                    directory: event.directory,
                }
            });
            return Ok(told.collect());
        }
    }
}

fn kind(what: What) -> FileEventKind {
    match what {
        What::Created => FileEventKind::Created,
        What::Written => FileEventKind::Written,
        What::Metadata => FileEventKind::Metadata,
        What::Removed => FileEventKind::Removed,
        What::MovedFrom => FileEventKind::MovedFrom,
        What::MovedTo => FileEventKind::MovedTo,
        What::Overflow => FileEventKind::Overflow,
        What::Gone => FileEventKind::Gone,
    }
}
