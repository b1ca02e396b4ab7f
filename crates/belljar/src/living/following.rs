//! Following an exec: what it wrote and writes, from where one likes, to its end. While it runs its keeper tells;
//! afterwards the logs do.

use std::path::PathBuf;
use std::sync::Arc;

use super::owed::Debt;
use crate::capture::Capture;
use crate::model::error::Error;
use crate::model::outcome::{Captured, Stream};
use crate::model::request::Data;
use crate::model::sandbox::{ExecEvent, ExecInfo};
use crate::native::living::{self, Follow, Living};

/// Read of a log at once.
const PIECE_BYTES: usize = 64 << 10;
/// Kept of each stream for whoever wants a document: as of a run.
const KEPT_BYTES: u64 = 100 << 10;
const KILL: i32 = 9;

/// Where to begin in each stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    pub stdout: u64,
    pub stderr: u64,
}

/// An exec that is followed.
#[derive(Debug)]
pub struct Following {
    id: String,
    source: Source,
    /// Whom to tell when nobody follows any more and the exec shall not go on alone.
    ender: Option<(Arc<Living>, Debt)>,
}

#[derive(Debug)]
enum Source {
    Lives(Box<Follow>),
    Ended(Box<Replay>),
}

impl Following {
    pub(super) fn lives(id: String, follow: Follow) -> Self {
        Self { id, source: Source::Lives(Box::new(follow)), ender: None }
    }

    pub(super) fn ended(directory: PathBuf, info: ExecInfo, from: Offsets) -> Self {
        let id = info.id.clone();
        let places = [(Stream::Stdout, from.stdout), (Stream::Stderr, from.stderr)];
        let replay = Replay { directory, places: places.to_vec(), info: Some(info) };
        Self { id, source: Source::Ended(Box::new(replay)), ender: None }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// From now on the exec ends when this is dropped before its end was told.
    pub(super) fn ends_with(mut self, living: Arc<Living>, debt: Debt) -> Self {
        self.ender = Some((living, debt));
        self
    }

    /// Lets it go on by itself after all.
    pub fn let_go(&mut self) {
        self.ender = None;
    }

    /// The next of it; nothing after its end.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        let next = match &mut self.source {
            Source::Lives(follow) => follow.next().await,
            Source::Ended(replay) => replay.next(&self.id),
        };
        if matches!(next, Ok(Some(ExecEvent::Ended(_)) | None)) {
            self.ender = None;
        }
        next
    }

    /// To the end: how it ended, and what is kept of both streams.
    pub async fn collect(mut self) -> Result<(ExecInfo, [Captured; 2]), Error> {
        let mut streams = [Capture::new(KEPT_BYTES), Capture::new(KEPT_BYTES)];
        loop {
            match self.next().await? {
                Some(ExecEvent::Output { stream, data, .. }) => {
                    streams[stream as usize].push(&data.0)
                }
                Some(ExecEvent::Ended(info)) => return Ok((info, streams.map(Capture::finish))),
                Some(ExecEvent::Started { .. }) => {}
                // What the logs have lost was more than we keep.
                Some(ExecEvent::Gap { stream, from, to }) => {
                    streams[stream as usize].skip(to - from)
                }
                None => return Err(Error::Lost { what: "the exec ended and nobody knows how" }),
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let (Some((living, debt)), Ok(runtime)) =
            (self.ender.take(), tokio::runtime::Handle::try_current())
        {
            let id = std::mem::take(&mut self.id);
            runtime.spawn(async move {
                // One that has ended meanwhile does not mind; one that cannot be told ends at its time limit.
                living.signal(&id, KILL).await.ok();
                drop(debt);
            });
        }
    }
}

/// An exec that has ended, from its logs.
#[derive(Debug)]
struct Replay {
    directory: PathBuf,
    places: Vec<(Stream, u64)>,
    info: Option<ExecInfo>,
}

impl Replay {
    fn next(&mut self, id: &str) -> Result<Option<ExecEvent>, Error> {
        while let Some((stream, place)) = self.places.first_mut() {
            let piece = living::output(&self.directory, id, *stream, *place, PIECE_BYTES)
                .map_err(Error::backend("read the log of an exec"))?;
            let Some(piece) = piece.filter(|piece| !piece.data.is_empty()) else {
                self.places.remove(0);
                continue;
            };
            if piece.offset > *place {
                let from = std::mem::replace(place, piece.offset);
                return Ok(Some(ExecEvent::Gap { stream: *stream, from, to: piece.offset }));
            }
            *place = piece.offset + piece.data.len() as u64;
            let data = Data(piece.data);
            return Ok(Some(ExecEvent::Output { stream: *stream, offset: piece.offset, data }));
        }
        Ok(self.info.take().map(ExecEvent::Ended))
    }
}
