//! Sandboxes that stay: by name, with files, any number of programs in each, and points to come back to.
//!
//! [`Sandboxes`] is the entry; a server has one for its life, a command for a moment. It owns the state directory
//! meanwhile. What a sandbox *is* stands in its record ([`store`]); what *runs* is its keeper's affair
//! ([`crate::native::living`]), which needs none of us. Here the two are kept in step: every verb takes the sandbox's
//! turn, looks at both, and changes both or neither.

pub(crate) mod contexts;
pub(crate) mod files;
mod execs;
mod following;
mod lifecycle;
mod logs;
mod points;
mod slot;
pub(crate) mod store;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use store::{Record, Store};

use crate::engine::Engine;
use crate::model::error::Error;
use slot::Slot;

pub use following::{Following, Offsets};
pub use lifecycle::Force;
pub use logs::Log;
pub use points::Import;
pub use store::{Committed, Difference, Left};

/// All sandboxes of a state directory. Cheap to clone; the last one lets go of the directory.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    engine: Engine,
    store: Arc<Store>,
    slots: Arc<Mutex<HashMap<String, Arc<Slot>>>>,
}

impl Sandboxes {
    /// Takes the state directory over, finds what lives, and clears away what did not come to an end.
    pub async fn open(engine: &Engine, state: &Path) -> Result<Self, Error> {
        let state = state.to_owned();
        let store = blocking(move || Store::open(&state)).await?;
        let this = Self { engine: engine.clone(), store: Arc::new(store), slots: Arc::default() };
        this.settle().await?;
        Ok(this)
    }

    /// The record and the slot of a name.
    fn find(&self, name: &str) -> Result<(Record, Arc<Slot>), Error> {
        let record = self.store.find(name).ok_or_else(|| Error::NotFound {
            what: format!(
                "there is no sandbox called {:?}. hint: belljar sandbox list",
                name.chars().take(80).collect::<String>()
            ),
        })?;
        let slot = self.slot(&record.id);
        Ok((record, slot))
    }

    fn slot(&self, id: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Slot::new(id.to_owned(), self.store.directory(id)));
        Arc::clone(slots.entry(id.to_owned()).or_insert_with(new))
    }

    /// Something that reads and writes the disk, where it holds nobody up.
    async fn stored<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = Arc::clone(&self.store);
        blocking(move || act(&store)).await
    }
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or(Err(Error::Lost { what: "what was done to its files broke off" }))
}
