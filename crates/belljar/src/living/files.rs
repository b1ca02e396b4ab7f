//! Files of a living sandbox, for whoever stands outside.
//!
//! No path of a sandbox is ever resolved on the host: each operation is carried out by an agent inside
//! ([`belljar_jail::agent`]), and what it answers is checked like everything that comes from there. One operation has
//! one agent to itself; to drop the operation is to drop the agent.

mod archive;
mod download;
mod error;
mod line;
mod path;
mod transfer;
mod upload;
mod watch;

#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_jail::agent::wire::{Bytes, Finish, How, MAX_DATA_BYTES, Request, Time};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch as watch_channel};

pub use download::Downloaded;
pub use error::{FileError, FileFault};
use line::{Line, Opened};
pub use path::InsidePath;
pub use transfer::{Unpacked, pack_host, unpack_host};
pub use upload::Uploaded;
pub use watch::{FileEvent, FileEventKind, Watching};

use crate::model::error::{Error, SpecError};
use crate::model::sandbox::FileInfo;

/// Agents at work at once; who comes later waits.
const MAX_AGENTS: usize = 4;
/// Watches at once, each with an agent of its own; one more is refused.
const MAX_WATCHES: usize = 8;
/// Agents that wait for the next operation. Each is a process of the sandbox.
const MAX_IDLE: usize = 1;
/// How long an agent may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Entries asked for at once.
const PAGE: u32 = 1000;
/// Entries of a directory that is listed in one go.
const MAX_LISTED: usize = 100_000;
/// Questions to take one tree away; each takes some twenty thousand entries.
const MAX_ROUNDS: u32 = 1000;

/// Starts an agent in the sandbox and gives our end of its socket.
pub(crate) type Start = Arc<dyn Fn() -> Starting + Send + Sync>;
pub(crate) type Starting = Pin<Box<dyn Future<Output = Result<OwnedFd, Error>> + Send>>;
/// What may still be written; `None` where the kernel itself says when a disk is full.
pub(crate) type RoomNow = Arc<dyn Fn() -> Option<Room> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub bytes: u64,
    pub inodes: u64,
}

/// The files of one sandbox.
#[derive(Clone)]
pub struct Files(Arc<Inner>);

struct Inner {
    start: Start,
    room: RoomNow,
    idle: Mutex<Vec<Line>>,
    agents: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    patience: Duration,
    /// Whether the sandbox is paused: then no agent answers, and nobody need wait to find that out.
    paused: watch_channel::Sender<bool>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Files").finish_non_exhaustive()
    }
}

/// How a whole file is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOptions {
    /// Permission bits; without them those of the file that is replaced, or 644.
    pub mode: Option<u32>,
    /// Whether a file that is there is replaced, or an error.
    pub replace: bool,
    /// Makes the directories that it needs.
    pub parents: bool,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { mode: None, replace: true, parents: true }
    }
}

/// Where something is written into a file that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    Offset(u64),
    /// Whatever its end is at that moment.
    End,
}

/// An agent for one operation.
struct Lease {
    line: Line,
    files: Arc<Inner>,
    _place: OwnedSemaphorePermit,
}

impl Lease {
    fn line(&mut self) -> &mut Line {
        &mut self.line
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let line = self.line.take();
        let mut idle = self.files.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && line.is_clean() {
            idle.push(line);
        }
    }
}

/// What one operation may still write.
#[derive(Debug)]
struct Budget(Option<Room>);

impl Budget {
    fn bytes(&mut self, count: u64) -> Result<(), FileFault> {
        let Some(room) = &mut self.0 else { return Ok(()) };
        room.bytes = room.bytes.checked_sub(count).ok_or(FileFault::Full)?;
        Ok(())
    }

    fn entry(&mut self) -> Result<(), FileFault> {
        let Some(room) = &mut self.0 else { return Ok(()) };
        room.inodes = room.inodes.checked_sub(1).ok_or(FileFault::Full)?;
        Ok(())
    }
}

impl Files {
    pub(crate) fn new(start: Start, room: RoomNow) -> Self {
        Self::with_patience(start, room, PATIENCE)
    }

    fn with_patience(start: Start, room: RoomNow, patience: Duration) -> Self {
        Self(Arc::new(Inner {
            start,
            room,
            idle: Mutex::new(Vec::new()),
            agents: Arc::new(Semaphore::new(MAX_AGENTS)),
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
            patience,
            paused: watch_channel::Sender::new(false),
        }))
    }

    /// Lets go of agents that wait: before the sandbox is stopped, frozen or counted.
    pub(crate) fn rest(&self) {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Says that the sandbox stands still from now on, or goes on. What is under way, and what comes meanwhile, is refused;
    /// watches wait.
    pub(crate) fn pause(&self, paused: bool) {
        if paused {
            self.rest();
        }
        self.0.paused.send_replace(paused);
    }

    async fn lease(&self, path: &[u8]) -> Result<Lease, FileError> {
        let lost = |_| FileFault::agent("is not to be had").at(path);
        let place = Arc::clone(&self.0.agents).acquire_owned().await.map_err(lost)?;
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let line = match idle.filter(Line::is_clean) {
            Some(line) => line,
            None => self.line(path).await?,
        };
        Ok(Lease { line, files: Arc::clone(&self.0), _place: place })
    }

    /// A new agent.
    async fn line(&self, path: &[u8]) -> Result<Line, FileError> {
        if *self.0.paused.borrow() {
            return Err(FileFault::Paused.at(path));
        }
        let started = (self.0.start)().await;
        let socket = started.map_err(|error| FileFault::unstarted(&error).at(path))?;
        let broken = |error| FileFault::Agent(format!("cannot be reached: {error}")).at(path);
        Line::new(socket, self.0.patience, self.0.paused.subscribe()).map_err(broken)
    }

    fn budget(&self) -> Budget {
        Budget((self.0.room)())
    }

    /// What is at `path`: a link itself, with its target.
    pub async fn stat(&self, path: &InsidePath) -> Result<FileInfo, FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let (meta, target) = lease.line().stat(path.place(), false, path.bytes()).await?;
        Ok(path::info(path.bytes(), &meta, target.as_ref()))
    }

    /// One page of a directory, in no order, and where the next one begins.
    pub async fn page(
        &self,
        path: &InsidePath,
        cursor: Option<u64>,
        most: u32,
    ) -> Result<(Vec<FileInfo>, Option<u64>), FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let most = most.clamp(1, PAGE);
        let (entries, next) =
            lease.line().page(path.place(), cursor.unwrap_or(0), most, path.bytes()).await?;
        let told = entries
            .iter()
            .map(|one| path::info(&path.child(&one.name.0), &one.meta, one.target.as_ref()));
        Ok((told.collect(), next))
    }

    /// Everything in a directory, by name. More than a hundred thousand entries are refused: ask for pages.
    pub async fn list(&self, path: &InsidePath) -> Result<Vec<FileInfo>, FileError> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let (page, next) = self.page(path, cursor, PAGE).await?;
            all.extend(page);
            if all.len() > MAX_LISTED {
                let why = format!("has more than {MAX_LISTED} entries. hint: ask for pages of it");
                return Err(FileFault::Refused(why).at(path.bytes()));
            }
            match next {
                Some(_) => cursor = next,
                None => break,
            }
        }
        all.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(all)
    }

    /// A whole file, if it has no more than `most` bytes.
    pub async fn read(&self, path: &InsidePath, most: u64) -> Result<Vec<u8>, FileError> {
        let mut contents = Vec::new();
        let copied = self.read_to(path, 0, Some(most.saturating_add(1)), &mut contents).await?;
        if copied > most { Err(FileFault::TooLarge.at(path.bytes())) } else { Ok(contents) }
    }

    /// Some of a file: fewer bytes than `length` only at its end.
    pub async fn read_range(
        &self,
        path: &InsidePath,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, FileError> {
        let mut contents = Vec::new();
        self.read_to(path, offset, Some(length), &mut contents).await?;
        Ok(contents)
    }

    /// Copies a file, or a part of it, into `sink`. What is added to it meanwhile is read too.
    pub async fn read_to(
        &self,
        path: &InsidePath,
        offset: u64,
        length: Option<u64>,
        mut sink: impl AsyncWrite + Unpin,
    ) -> Result<u64, FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let line = lease.line();
        let file = line.open(path.place(), How::Read, path.bytes()).await?;
        let mut copied = 0;
        while length.is_none_or(|length| copied < length) {
            let left = length.map_or(u64::MAX, |length| length - copied);
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(MAX_DATA_BYTES);
            let at = offset.saturating_add(copied);
            let data = line.read(file, at, most, path.bytes()).await?;
            sink.write_all(&data).await.map_err(error::ours(path.bytes()))?;
            copied += u64::try_from(data.len()).unwrap_or(0);
            if data.len() < most {
                break;
            }
        }
        line.finish(file, Finish::Drop, None, path.bytes()).await?;
        sink.flush().await.map_err(error::ours(path.bytes()))?;
        Ok(copied)
    }

    /// Puts a whole file: it is written beside its place, brought to the disk and only then given its name, so nobody
    /// ever sees half of it and it is there when this returns.
    pub async fn put(
        &self,
        path: &InsidePath,
        mut source: impl AsyncRead + Unpin,
        options: PutOptions,
    ) -> Result<u64, FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let line = lease.line();
        let mut budget = self.budget();
        budget.entry().map_err(|fault| fault.at(path.bytes()))?;
        if options.parents {
            let place = path.parent().place();
            let make = Request::MakeDirectory { place, mode: 0o755, parents: true };
            line.act(&make, path.parent().bytes()).await?;
        }
        let how = How::Put { replace: options.replace, mode: options.mode };
        let file = line.open(path.place(), how, path.bytes()).await?;
        let written = pour(line, file, &mut source, &mut budget, path).await;
        if written.is_err() {
            // If the agent is gone, so is what it had begun.
            line.finish(file, Finish::Drop, None, path.bytes()).await.ok();
        } else {
            line.finish(file, Finish::Sync, None, path.bytes()).await?;
        }
        written
    }

    /// Writes into a file as it is, which is made if it is not there. It is on the disk when this returns.
    pub async fn write_at(
        &self,
        path: &InsidePath,
        position: Position,
        data: &[u8],
    ) -> Result<(), FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let line = lease.line();
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.budget().bytes(length).map_err(|fault| fault.at(path.bytes()))?;
        let append = position == Position::End;
        let how = How::Patch { create: true, truncate: false, append, mode: 0o644 };
        let file = line.open(path.place(), how, path.bytes()).await?;
        let mut offset = match position {
            Position::Offset(offset) => Some(offset),
            Position::End => None,
        };
        for chunk in data.chunks(MAX_DATA_BYTES) {
            line.write(file, offset, chunk.to_vec(), path.bytes()).await?;
            let length = u64::try_from(chunk.len()).unwrap_or(0);
            offset = offset.map(|offset| offset.saturating_add(length));
        }
        line.finish(file, Finish::Sync, None, path.bytes()).await
    }

    /// Makes a directory; with `parents` also those above it, and one that is there is enough.
    pub async fn make_directory(
        &self,
        path: &InsidePath,
        mode: u32,
        parents: bool,
    ) -> Result<(), FileError> {
        self.budget().entry().map_err(|fault| fault.at(path.bytes()))?;
        let request = Request::MakeDirectory { place: path.place(), mode, parents };
        self.change(&request, path, &[path]).await
    }

    /// Gives a file or directory another name. Unless it may replace what is there, nothing is.
    pub async fn rename(
        &self,
        from: &InsidePath,
        to: &InsidePath,
        replace: bool,
    ) -> Result<(), FileError> {
        let request = Request::Move { from: from.place(), to: to.place(), replace };
        self.change(&request, from, &[from, to]).await
    }

    pub async fn symlink(&self, path: &InsidePath, target: &[u8]) -> Result<(), FileError> {
        if target.is_empty() || target.contains(&0) {
            return Err(
                FileFault::Refused("has a target that is no path".to_owned()).at(path.bytes())
            );
        }
        self.budget().entry().map_err(|fault| fault.at(path.bytes()))?;
        let request = Request::Symlink { place: path.place(), target: Bytes::from(target) };
        self.change(&request, path, &[path]).await
    }

    /// Permission bits; setuid, setgid and sticky are never set.
    pub async fn set_mode(&self, path: &InsidePath, mode: u32) -> Result<(), FileError> {
        self.change(&Request::SetMode { place: path.place(), mode }, path, &[]).await
    }

    pub async fn set_modified(&self, path: &InsidePath, modified_ms: i64) -> Result<(), FileError> {
        let nanos = u32::try_from(modified_ms.rem_euclid(1000)).unwrap_or(0) * 1_000_000;
        let modified = Time { seconds: modified_ms.div_euclid(1000), nanos };
        self.change(&Request::SetTimes { place: path.place(), modified }, path, &[]).await
    }

    /// Takes away a file, a link or an empty directory; with `recursive` a whole tree. How many entries that were.
    pub async fn remove(&self, path: &InsidePath, recursive: bool) -> Result<u64, FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let line = lease.line();
        let mut removed: u64 = 0;
        for _ in 0..MAX_ROUNDS {
            let asked = line.remove(path.place(), recursive, path.bytes()).await;
            let (entries, more) = match asked {
                // Gone between two questions.
                Err(FileError { fault: FileFault::NotFound, .. }) if removed > 0 => (0, false),
                asked => asked?,
            };
            removed = removed.saturating_add(entries);
            if !more {
                sync_directory(line, path).await?;
                return Ok(removed);
            }
        }
        let why = "is filled as quickly as it is cleared. hint: stop what runs in the sandbox";
        Err(FileFault::Refused(why.to_owned()).at(path.bytes()))
    }

    /// One change at `path`; the names that it makes or takes away are on the disk when this returns.
    async fn change(
        &self,
        request: &Request,
        path: &InsidePath,
        names: &[&InsidePath],
    ) -> Result<(), FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        let line = lease.line();
        line.act(request, path.bytes()).await?;
        for name in names {
            sync_directory(line, name).await?;
        }
        Ok(())
    }
}

/// Brings the directory that holds `path` to the disk. One that cannot be read, or is gone, is somebody else's.
async fn sync_directory(line: &mut Line, path: &InsidePath) -> Result<(), FileError> {
    let above = path.parent();
    let request = Request::Sync { place: above.place(), whole: false };
    match line.act(&request, above.bytes()).await {
        Err(FileError {
            fault:
                FileFault::Denied
                | FileFault::NotFound
                | FileFault::NotRegular
                | FileFault::NotDirectory,
            ..
        }) => Ok(()),
        done => done,
    }
}

/// Writes all of a source into a file that an agent has open.
async fn pour(
    line: &mut Line,
    file: Opened,
    source: &mut (impl AsyncRead + Unpin),
    budget: &mut Budget,
    path: &InsidePath,
) -> Result<u64, FileError> {
    let mut written = 0;
    loop {
        let data = fill(source).await.map_err(error::ours(path.bytes()))?;
        let length = u64::try_from(data.len()).unwrap_or(0);
        if length == 0 {
            return Ok(written);
        }
        budget.bytes(length).map_err(|fault| fault.at(path.bytes()))?;
        line.write(file, Some(written), data, path.bytes()).await?;
        written += length;
    }
}

/// As much as one message takes; less only at the end.
async fn fill(source: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::with_capacity(MAX_DATA_BYTES);
    let most = u64::try_from(MAX_DATA_BYTES).unwrap_or(u64::MAX);
    source.take(most).read_to_end(&mut data).await?;
    Ok(data)
}

/// What a request names, or why it cannot.
impl From<SpecError> for FileError {
    fn from(error: SpecError) -> Self {
        Self { path: error.field, fault: FileFault::Refused(error.reason) }
    }
}
