//! One sandbox as this process knows it: whose turn it is, the line to its keeper, and what speaks through that.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, OwnedRwLockReadGuard, RwLock};

use super::code;
use super::contexts::Contexts;
use super::files::{self, Files, Room};
use crate::model::error::Error;
use crate::native::living::Living;
use crate::secrets::SecretPlaces;

/// How long whoever wants to speak with a sandbox waits for who raises it.
const RAISING: Duration = Duration::from_secs(1);
const GONE: Error = Error::Lost { what: "nothing of it runs any more" };

#[derive(Debug)]
pub(super) struct Slot {
    pub id: String,
    pub directory: PathBuf,
    secrets: SecretPlaces,
    /// Held by whoever changes what the sandbox is. Execs and file operations do not change that.
    pub turn: Turn<()>,
    /// Shared by whoever begins something in it; whoever stands it up anew, or holds it still for a moment, has it alone. So
    /// nothing begins in what is about to be laid down.
    pub gate: Arc<RwLock<()>>,
    /// Held by whoever connects, or raises it: a second line would be a second idea of which contexts there are.
    pub connecting: Turn<()>,
    lines: Mutex<Option<Lines>>,
}

/// What there is while it stands.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub living: Arc<Living>,
    pub contexts: Arc<Contexts>,
    pub files: Files,
    room: Arc<Mutex<Option<Room>>>,
}

impl Lines {
    /// The files, with what may still be written where nobody but us holds the limit.
    pub(super) async fn files_within(&self, limit: Option<Room>) -> Result<Files, Error> {
        let left = match limit {
            Some(limit) => {
                let usage = self.living.usage().await?;
                Some(Room {
                    bytes: limit.bytes.saturating_sub(usage.disk_bytes.unwrap_or(0)),
                    inodes: limit.inodes.saturating_sub(usage.inodes.unwrap_or(0)),
                })
            }
            None => None,
        };
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = left;
        Ok(self.files.clone())
    }

    /// Lets go of what we keep in there for the next request, so that what runs is the sandbox's own.
    pub(super) async fn rest(&self) {
        self.files.rest();
    }

    /// Nothing runs in it: no exec, and nothing that one left behind. What cannot be counted may be there.
    pub(super) async fn is_idle(&self) -> Result<bool, Error> {
        let usage = self.living.usage().await?;
        Ok(usage.execs == 0 && usage.processes == Some(0))
    }
}

impl Slot {
    pub(super) fn new(id: String, directory: PathBuf, secrets: SecretPlaces) -> Self {
        Self {
            id,
            directory,
            secrets,
            turn: Turn::default(),
            gate: Arc::default(),
            connecting: Turn::default(),
            lines: Mutex::default(),
        }
    }

    /// The lines to a sandbox that stands; nothing when it does not. A keeper that somebody else started is found.
    pub(super) async fn lines(self: &Arc<Self>) -> Result<Option<Lines>, Error> {
        let known = self.held().clone();
        if known.is_some() {
            return Ok(known);
        }
        // Whoever raises it takes longer than this only if it does not come to stand.
        let Ok(_connecting) = tokio::time::timeout(RAISING, self.connecting.lock()).await else {
            return Ok(None);
        };
        let known = self.held().clone();
        if known.is_some() {
            return Ok(known);
        }
        match Living::connect(&self.directory).await? {
            Some(living) => Ok(Some(self.stands(living).await?)),
            None => Ok(None),
        }
    }

    /// Nobody stands it up anew, or holds it still, until this is dropped. Not to be waited for with its turn in hand.
    pub(super) async fn stays(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.gate).read_owned().await
    }

    /// Takes note of one that has just been raised or found, until it is gone. With `connecting` in hand.
    pub(super) async fn stands(self: &Arc<Self>, living: Living) -> Result<Lines, Error> {
        let living = Arc::new(living.with_secrets_from(self.secrets.clone()));
        let contexts = Arc::new(code::contexts_of(&living, &self.directory).await?);
        let room = Arc::default();
        let files = files_of(self, &room);
        let lines = Lines { files, room, contexts, living: Arc::clone(&living) };
        *self.held() = Some(lines.clone());
        let slot = Arc::downgrade(self);
        tokio::spawn(async move {
            living.gone().await;
            if let Some(slot) = slot.upgrade() {
                slot.fell_with(&living);
            }
        });
        Ok(lines)
    }

    /// Forgets the lines: nothing stands any more.
    pub(super) fn fell(&self) {
        *self.held() = None;
    }

    /// The same, unless another one stands by now.
    fn fell_with(&self, living: &Arc<Living>) {
        let mut held = self.held();
        if held.as_ref().is_some_and(|lines| Arc::ptr_eq(&lines.living, living)) {
            *held = None;
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Lines>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files by agents of this sandbox, as it stands when one is started. What may still be written is looked up before each
/// use; see [`Lines::files_within`].
fn files_of(slot: &Arc<Slot>, room: &Arc<Mutex<Option<Room>>>) -> Files {
    let slot = Arc::downgrade(slot);
    let start: files::Start = Arc::new(move || {
        let slot = slot.upgrade();
        Box::pin(async move {
            let slot = slot.ok_or(GONE)?;
            let _stays = slot.stays().await;
            slot.lines().await?.ok_or(GONE)?.living.agent().await
        })
    });
    let room = Arc::clone(room);
    Files::new(start, Arc::new(move || *room.lock().unwrap_or_else(PoisonError::into_inner)))
}
