//! Sandboxes that stay: by name, with files, any number of programs in each, and points to come back to.
//!
//! [`Sandboxes`] is the entry; a server has one for its life, a command for a moment. It owns the state directory
//! meanwhile. What a sandbox *is* stands in its record ([`store`]); what *runs* is its keeper's affair
//! ([`crate::native::living`]), which needs none of us. Here the two are kept in step: every verb takes the sandbox's
//! turn, looks at both, and changes both or neither.

mod code;
pub(crate) mod contexts;
mod execs;
pub(crate) mod files;
mod following;
mod hygiene;
mod lifecycle;
mod logs;
mod network;
mod once;
mod owed;
mod points;
mod slot;
pub(crate) mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use store::{Base, Holder, Record, Store, StoreConfig, StoreError};

use crate::engine::Engine;
use crate::model::error::Error;
use crate::model::sandbox::Owner;
use crate::native::living::{self, Living};
use owed::Owed;
use slot::Slot;

pub use files::{
    FileError, FileEvent, FileEventKind, FileFault, Files, InsidePath, Position, PutOptions,
    Unpacked, pack_host, unpack_host,
};
pub use following::{Following, Offsets};
pub use hygiene::{ForkCheck, ForkReport, Forked};
pub use lifecycle::Force;
pub use logs::Log;
pub use once::{OneShot, Ran};
pub use points::{Committed, Difference, Left};
pub use store::SandboxLimits;

/// The small tree below all sheets, in the state directory. Another version of ours may want another one.
const BASE: &str = "base-1";
const VOLUMES: &str = "volumes";

/// All sandboxes of a state directory. Cheap to clone; the last one lets go of the directory.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    engine: Engine,
    store: Arc<Store>,
    volumes: PathBuf,
    /// On whose account new ones are.
    owner: Owner,
    /// Whose sandboxes are seen; nothing for the owner of the state directory.
    tenant: Arc<str>,
    slots: Arc<Mutex<HashMap<String, Arc<Slot>>>>,
    owed: Owed,
}

impl Sandboxes {
    /// Takes the state directory over, finds what lives, and clears away what did not come to an end.
    pub async fn open(engine: &Engine, state: &Path) -> Result<Self, Error> {
        Self::open_within(engine, state, SandboxLimits::default()).await
    }

    /// The same, with limits on the whole.
    pub async fn open_within(
        engine: &Engine,
        state: &Path,
        limits: SandboxLimits,
    ) -> Result<Self, Error> {
        Self::open_as(engine, state, Holder::Server, limits).await
    }

    /// The same for a command, which waits for others and can [let go](Self::let_go).
    pub async fn open_briefly(engine: &Engine, state: &Path) -> Result<Self, Error> {
        Self::open_as(engine, state, Holder::Command, SandboxLimits::default()).await
    }

    /// The same sandboxes; what is made through these is on this account. Without it, on that of our own user.
    #[must_use]
    pub fn on_account_of(&self, owner: Owner) -> Self {
        Self { owner, ..self.clone() }
    }

    /// Lets others have the state directory, until something is changed here again.
    pub fn let_go(&self) {
        self.store.let_go();
    }

    /// Returns when nothing is under way any more of what must be ended because nobody waits for it: execs that are not in the
    /// background, and one-shots. Whoever ends this process soon should wait for it, though not for ever.
    pub async fn wind_up(&self) {
        self.owed.nothing().await;
    }

    async fn open_as(
        engine: &Engine,
        state: &Path,
        holder: Holder,
        limits: SandboxLimits,
    ) -> Result<Self, Error> {
        let (state, volumes) = (state.to_owned(), state.join(VOLUMES));
        let store = blocking(move || open_store(&state, holder, limits)).await?;
        let this = Self {
            engine: engine.clone(),
            store: Arc::new(store),
            volumes,
            owner: Owner::local(rustix::process::geteuid().as_raw()),
            tenant: "".into(),
            slots: Arc::default(),
            owed: Owed::default(),
        };
        let mut live = BTreeSet::new();
        for record in this.store.list() {
            match Living::connect(&this.store.directory(&record.id)).await {
                Ok(None) => continue,
                Ok(Some(living)) => this.let_go_on(&record, &living).await?,
                // Something is there that cannot be spoken with: what it stands on is left alone.
                Err(_) => {}
            }
            live.insert(record.id);
        }
        this.stored(move |store| store.sweep(&live)).await?;
        // One that gives trouble keeps nobody from the others; whoever asks for it is told.
        this.settle().await.ok();
        Ok(this)
    }

    /// The same for a tenant: it sees its own sandboxes and no others, and its names are its own. The owner's is "".
    #[must_use]
    pub fn of(&self, tenant: &str) -> Self {
        Self { tenant: tenant.into(), ..self.clone() }
    }

    /// How many sandboxes the tenant has.
    pub fn count(&self) -> usize {
        self.own().count()
    }

    /// The tenant's records.
    fn own(&self) -> impl Iterator<Item = Record> {
        self.store.list().into_iter().filter(|record| *record.tenant == *self.tenant)
    }

    /// The record and the slot of a name.
    /// What a sandbox is told from others by, whatever it was called by: its id and its labels.
    pub fn marks(&self, name: &str) -> Result<(String, BTreeMap<String, String>), Error> {
        let record = self.store.find_of(&self.tenant, name)?;
        Ok((record.id, record.request.labels))
    }

    fn find(&self, name: &str) -> Result<(Record, Arc<Slot>), Error> {
        let record = self.store.find_of(&self.tenant, name)?;
        let slot = self.slot(&record.id);
        Ok((record, slot))
    }

    fn slot(&self, id: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let places = || self.engine.secret_places().clone();
        let new = || Arc::new(Slot::new(id.to_owned(), self.store.directory(id), places()));
        Arc::clone(slots.entry(id.to_owned()).or_insert_with(new))
    }

    /// Something that leads from one state to another, to its end: whoever asked for it may go away meanwhile, and would
    /// leave a sandbox behind that is frozen, or not stood up again.
    async fn whole<T, F>(&self, act: impl FnOnce(Self) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let done = tokio::spawn(act(self.clone())).await;
        done.unwrap_or(Err(Error::Lost { what: "what was done to it broke off" }))
    }

    /// Something that reads and writes the disk, where it holds nobody up.
    async fn stored<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let store = Arc::clone(&self.store);
        blocking(move || Ok(act(&store)?)).await
    }
}

fn open_store(state: &Path, holder: Holder, limits: SandboxLimits) -> Result<Store, Error> {
    let base = Base { root: state.join(BASE), usr: PathBuf::from("/usr") };
    let store = Store::open(StoreConfig {
        state: state.to_owned(),
        base: base.clone(),
        limits,
        ground: None,
        holder,
    })?;
    if !base.root.exists() {
        // Whole or not at all: a crash leaves only what the next one replaces.
        let draft = state.join(format!(".{BASE}.new"));
        let furnish = || -> std::io::Result<()> {
            if draft.exists() {
                std::fs::remove_dir_all(&draft)?;
            }
            std::fs::create_dir(&draft)?;
            living::furnish_base(&draft)?;
            std::fs::rename(&draft, &base.root)
        };
        furnish().map_err(Error::backend("write the base of all sandboxes"))?;
    }
    Ok(store)
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let what = error.to_string();
        match error {
            StoreError::Spec(error) => Self::Spec(error),
            StoreError::NoSandbox(_) => {
                Self::NotFound { what: format!("{what}. hint: belljar sandbox list") }
            }
            StoreError::NoPoint { .. } => Self::NotFound { what },
            StoreError::Taken(_)
            | StoreError::PointTaken { .. }
            | StoreError::Nothing(_)
            | StoreError::Full { .. }
            | StoreError::Beyond { .. }
            | StoreError::Busy(_)
            | StoreError::Owned { .. }
            | StoreError::Closed
            | StoreError::Archive(_) => Self::Conflict { what },
            StoreError::Damaged { .. } | StoreError::Io { .. } | StoreError::Stopped(_) => {
                let source = std::io::Error::other(what);
                Self::Backend { operation: "keep the files of sandboxes", source }
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or(Err(Error::Lost { what: "what was done to its files broke off" }))
}
