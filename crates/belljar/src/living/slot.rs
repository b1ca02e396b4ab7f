//! One sandbox as this process knows it: whose turn it is, the line to its keeper, and what speaks through that.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Mutex as Turn;

use super::contexts::Contexts;
use super::files::Files;
use crate::model::error::Error;
use crate::native::living::Living;

#[derive(Debug)]
pub(super) struct Slot {
    pub id: String,
    pub directory: PathBuf,
    /// Held by whoever changes what the sandbox is. Execs and file operations do not change that.
    pub turn: Turn<()>,
    lines: Mutex<Option<Lines>>,
}

/// What there is while it stands.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub living: Arc<Living>,
    pub contexts: Arc<Contexts>,
    pub files: Arc<Turn<Option<Files>>>,
}

impl Slot {
    pub(super) fn new(id: String, directory: PathBuf) -> Self {
        Self { id, directory, turn: Turn::default(), lines: Mutex::default() }
    }

    /// The lines to a sandbox that stands; nothing when it does not. A keeper that somebody else started is found.
    pub(super) async fn lines(&self) -> Result<Option<Lines>, Error> {
        if let Some(lines) = self.known() {
            return Ok(Some(lines));
        }
        let Some(living) = Living::connect(&self.directory).await? else { return Ok(None) };
        Ok(Some(self.stands(living)))
    }

    fn known(&self) -> Option<Lines> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_some_and(|one| !one.living.lives()) {
            *lines = None;
        }
        lines.clone()
    }

    /// Takes note of one that has just been raised or found.
    pub(super) fn stands(&self, living: Living) -> Lines {
        let living = Arc::new(living);
        let contexts = Arc::new(Contexts::new(Arc::clone(&living)));
        let lines = Lines { living, contexts, files: Arc::default() };
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = Some(lines.clone());
        lines
    }

    /// Forgets the lines: nothing stands any more.
    pub(super) fn fell(&self) {
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
