//! Following an exec: its output from an offset on, what is no longer kept of it, and its end.

use std::path::PathBuf;

use belljar_jail::living::talk::Reach;
use tokio::sync::watch;

use super::{Living, kept};
use crate::model::error::Error;
use crate::model::outcome::Stream;
use crate::model::request::Data;
use crate::model::sandbox::{ExecEvent, ExecState};

/// What one event holds.
const PIECE_BYTES: usize = 64 << 10;
const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

/// An exec that is followed.
#[derive(Debug)]
pub struct Follow {
    directory: PathBuf,
    sandbox: String,
    exec: String,
    /// Where to read on.
    at: [u64; 2],
    reach: watch::Receiver<Reach>,
    state: State,
    /// Held open while it is followed.
    _living: Living,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begins,
    Runs,
    /// Its end is on the disk, and all that it wrote before.
    Ends,
    Over,
}

impl Follow {
    pub(super) async fn begin(living: &Living, exec: &str, from: [u64; 2]) -> Result<Self, Error> {
        kept::check_known(&living.directory, exec)?;
        let reach = living.line.follow(exec).await?;
        Ok(Self {
            directory: living.directory.clone(),
            sandbox: living.raised.sandbox.clone(),
            exec: exec.to_owned(),
            at: from,
            reach,
            state: State::Begins,
            _living: living.clone(),
        })
    }

    /// The next of it; `None` after its end. Nothing is lost when this future is dropped.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        loop {
            if self.state == State::Begins {
                self.state = State::Runs;
                return Ok(Some(ExecEvent::Started { id: self.exec.clone() }));
            }
            if self.state == State::Over {
                return Ok(None);
            }
            // Before it is read: what is told from here on is a change, and what was told before is read now.
            let ended = self.reach.borrow_and_update().ended;
            if let Some(event) = self.read()? {
                return Ok(Some(event));
            }
            if self.state == State::Ends {
                self.state = State::Over;
                return self.end().map(Some);
            }
            if ended {
                self.state = State::Ends;
                continue;
            }
            if self.reach.changed().await.is_err() {
                // The keeper is gone: what it has written is all there will be.
                self.state = State::Ends;
            }
        }
    }

    /// What is on the disk and was not told yet.
    fn read(&mut self) -> Result<Option<ExecEvent>, Error> {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            let at = self.at[index];
            let piece = kept::output(&self.directory, &self.exec, stream, at, PIECE_BYTES)
                .map_err(Error::backend("read what an exec wrote"))?;
            let Some(piece) = piece else {
                continue;
            };
            if piece.offset > at {
                self.at[index] = piece.offset;
                return Ok(Some(ExecEvent::Gap { stream, from: at, to: piece.offset }));
            }
            self.at[index] = at + piece.data.len() as u64;
            return Ok(Some(ExecEvent::Output { stream, offset: at, data: Data(piece.data) }));
        }
        Ok(None)
    }

    fn end(&self) -> Result<ExecEvent, Error> {
        let info = kept::record(&self.directory, &self.sandbox, &self.exec, ExecState::Lost);
        info.map(ExecEvent::Ended).map_err(Error::backend("read how an exec ended"))
    }
}
