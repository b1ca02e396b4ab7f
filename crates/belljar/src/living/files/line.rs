//! Talking with one agent. What it says is hostile bytes: bounded, timed, and checked against what was asked.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::pin;
use std::time::Duration;

use belljar_jail::agent::wire::{
    Answer, Bytes, Event, Finish, How, Listed, MAX_DATA_BYTES, MAX_PATH_BYTES, Meta, Place,
    Request, Time, rest_of_frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::error::{FileError, FileFault};
use super::path::join;

/// The longest name that a file system here has.
const MAX_NAME_BYTES: usize = 255;
/// How many times longer than others a question may take that waits for a disk.
const SYNC_PATIENCE: u32 = 10;
const STRANGE: &str = "answered something that it was not asked";

/// One agent's socket. It is as good as new between two questions, if nothing was left open.
#[derive(Debug)]
pub(super) struct Line {
    /// `None` once it was handed on.
    socket: Option<UnixStream>,
    patience: Duration,
    paused: watch::Receiver<bool>,
    last: u64,
    /// A question was asked and its answer not heard.
    waiting: bool,
    open: u32,
    /// Where below the place that was named the last fault was.
    fault_at: Vec<u8>,
}

/// A file that an agent has open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    handle: u32,
    pub meta: Meta,
}

impl Line {
    pub(super) fn new(
        socket: OwnedFd,
        patience: Duration,
        paused: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let socket = StdStream::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        Ok(Self {
            socket: Some(socket),
            patience,
            paused,
            last: 0,
            waiting: false,
            open: 0,
            fault_at: Vec::new(),
        })
    }

    /// Hands it on; what stays is of no use.
    pub(super) fn take(&mut self) -> Self {
        let (socket, fault_at) = (self.socket.take(), Vec::new());
        Self { socket, fault_at, paused: self.paused.clone(), ..*self }
    }

    /// Whether somebody else may go on with it.
    pub(super) fn is_clean(&self) -> bool {
        // Nothing to read, and not closed either.
        let Some(socket) = &self.socket else { return false };
        let quiet = socket.try_read(&mut [0]);
        !self.waiting
            && self.open == 0
            && quiet.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// One question and its answer.
    async fn ask(&mut self, request: &Request) -> Result<Answer, FileFault> {
        let syncs =
            matches!(request, Request::Sync { .. } | Request::Finish { how: Finish::Sync, .. });
        let patience = if syncs { self.patience * SYNC_PATIENCE } else { self.patience };
        if std::mem::replace(&mut self.waiting, true) {
            return Err(FileFault::agent("was left in the middle of an answer"));
        }
        let waits = matches!(request, Request::Events { .. });
        let mut paused = self.paused.clone();
        let answer = {
            let mut answering = pin!(self.exchange(request));
            loop {
                tokio::select! {
                    biased;
                    answer = timeout(patience, &mut answering) => {
                        break answer.map_err(|_| FileFault::agent("did not answer in time"))??;
                    }
                    Ok(_) = paused.wait_for(|paused| *paused) => {}
                }
                // A watch has time: it goes on when the sandbox does.
                if !waits || paused.wait_for(|paused| !*paused).await.is_err() {
                    return Err(FileFault::Paused);
                }
            }
        };
        self.waiting = false;
        if let Answer::Fault { fault, at } = answer {
            self.fault_at = at.0;
            self.fault_at.truncate(MAX_PATH_BYTES);
            return Err(FileFault::told(fault));
        }
        Ok(answer)
    }

    async fn exchange(&mut self, request: &Request) -> Result<Answer, FileFault> {
        let lost = |_| FileFault::agent("ended");
        let socket = self.socket.as_mut().ok_or_else(|| FileFault::agent("is somebody else's"))?;
        self.last += 1;
        socket.write_all(&request.frame(self.last)).await.map_err(lost)?;
        let mut length = [0; 4];
        socket.read_exact(&mut length).await.map_err(lost)?;
        let rest =
            rest_of_frame(length).ok_or_else(|| FileFault::agent("sent too much at once"))?;
        let mut frame = vec![0; rest];
        socket.read_exact(&mut frame).await.map_err(lost)?;
        match Answer::read(&frame) {
            Some((id, answer)) if id == self.last => Ok(answer),
            _ => Err(FileFault::agent(STRANGE)),
        }
    }

    /// A question that has nothing to tell.
    pub(super) async fn act(&mut self, request: &Request, path: &[u8]) -> Result<(), FileError> {
        match self.ask(request).await {
            Ok(Answer::Done {}) => Ok(()),
            other => Err(self.strange(other, path)),
        }
    }

    pub(super) async fn stat(
        &mut self,
        place: Place,
        follow: bool,
        path: &[u8],
    ) -> Result<(Meta, Option<Bytes>), FileError> {
        match self.ask(&Request::Stat { place, follow }).await {
            Ok(Answer::Meta { meta, target }) if is_target(target.as_ref()) => Ok((meta, target)),
            other => Err(self.strange(other, path)),
        }
    }

    pub(super) async fn page(
        &mut self,
        place: Place,
        cursor: u64,
        most: u32,
        path: &[u8],
    ) -> Result<(Vec<Listed>, Option<u64>), FileError> {
        match self.ask(&Request::List { place, cursor, most }).await {
            Ok(Answer::Page { entries, next })
                if u32::try_from(entries.len()).is_ok_and(|count| count <= most)
                    && entries.iter().all(|one| is_name(&one.name.0) && is_target(one.target.as_ref()))
                    // A page that says nothing but "go on" could say so for ever.
                    && (next.is_none() || !entries.is_empty()) =>
            {
                Ok((entries, next))
            }
            other => Err(self.strange(other, path)),
        }
    }

    pub(super) async fn open(
        &mut self,
        place: Place,
        how: How,
        path: &[u8],
    ) -> Result<Opened, FileError> {
        match self.ask(&Request::Open { place, how }).await {
            Ok(Answer::Opened { handle, meta }) => {
                self.open += 1;
                Ok(Opened { handle, meta })
            }
            other => Err(self.strange(other, path)),
        }
    }

    /// Fewer bytes than asked for only at the file's end.
    pub(super) async fn read(
        &mut self,
        file: Opened,
        offset: u64,
        length: usize,
        path: &[u8],
    ) -> Result<Vec<u8>, FileError> {
        let length = length.min(MAX_DATA_BYTES);
        let asked = u32::try_from(length).unwrap_or(u32::MAX);
        match self.ask(&Request::Read { handle: file.handle, offset, length: asked }).await {
            Ok(Answer::Data { data }) if data.0.len() <= length => Ok(data.0),
            other => Err(self.strange(other, path)),
        }
    }

    /// Without an offset at the end.
    pub(super) async fn write(
        &mut self,
        file: Opened,
        offset: Option<u64>,
        data: Vec<u8>,
        path: &[u8],
    ) -> Result<(), FileError> {
        let request = Request::Write { handle: file.handle, offset, data: Bytes(data) };
        self.act(&request, path).await
    }

    pub(super) async fn finish(
        &mut self,
        file: Opened,
        how: Finish,
        modified: Option<Time>,
        path: &[u8],
    ) -> Result<(), FileError> {
        let request = Request::Finish { handle: file.handle, how, modified };
        let finished = self.act(&request, path).await;
        if !self.waiting {
            // Whatever came of it, the agent has let go of it.
            self.open = self.open.saturating_sub(1);
        }
        finished
    }

    /// How much of it went, and whether there is more.
    pub(super) async fn remove(
        &mut self,
        place: Place,
        recursive: bool,
        path: &[u8],
    ) -> Result<(u64, bool), FileError> {
        let asked = self.ask(&Request::Remove { place, recursive }).await;
        match asked {
            Ok(Answer::Removed { entries, more }) => Ok((entries, more)),
            other => Err(self.strange(other, path)),
        }
    }

    pub(super) async fn watch(
        &mut self,
        place: Place,
        recursive: bool,
        path: &[u8],
    ) -> Result<Opened, FileError> {
        match self.ask(&Request::Watch { place, recursive }).await {
            Ok(Answer::Opened { handle, meta }) => {
                self.open += 1;
                Ok(Opened { handle, meta })
            }
            other => Err(self.strange(other, path)),
        }
    }

    pub(super) async fn events(
        &mut self,
        watch: Opened,
        wait_ms: u32,
        path: &[u8],
    ) -> Result<Vec<Event>, FileError> {
        match self.ask(&Request::Events { handle: watch.handle, wait_ms }).await {
            Ok(Answer::Events { events })
                if events.iter().all(|event| event.path.0.len() <= MAX_PATH_BYTES) =>
            {
                Ok(events)
            }
            other => Err(self.strange(other, path)),
        }
    }

    /// What else an answer can be: an error that it told, or nothing that an agent says.
    fn strange(&mut self, answer: Result<Answer, FileFault>, path: &[u8]) -> FileError {
        match answer {
            Err(fault) if self.fault_at.is_empty() => fault.at(path),
            Err(fault) => fault.at(&join(path, &std::mem::take(&mut self.fault_at))),
            Ok(_) => {
                self.waiting = true; // never used again
                FileFault::agent(STRANGE).at(path)
            }
        }
    }
}

/// A name of one file in a directory: nothing that would lead elsewhere.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

fn is_target(target: Option<&Bytes>) -> bool {
    target.is_none_or(|target| target.0.len() <= MAX_PATH_BYTES && !target.0.contains(&0))
}
