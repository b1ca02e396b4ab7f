//! Points to come back to, and several ways on from one.

use std::fs::File;
use std::io::Seek;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::slot::{Lines, Slot};
use super::store::{
    self, Conflicts, Displaced, ImportLimits, Name, NewSandbox, Record, Side, Store, StoreError,
    Tag, Taking, Which,
};
use super::{Sandboxes, lifecycle};
use crate::model::error::{Error, SpecError};
use crate::model::sandbox::{Change, SandboxInfo, SandboxRequest, SandboxState, SnapshotInfo};

/// What differs between two points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    pub changes: Vec<Change>,
    /// There are more, which were not looked for.
    pub truncated: bool,
}

/// What was written to a host directory, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Committed {
    pub written: Vec<String>,
    pub removed: Vec<String>,
    pub left: Vec<Left>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    pub path: String,
    pub reason: String,
}

impl From<store::Committed> for Committed {
    fn from(done: store::Committed) -> Self {
        let left = |one: store::Left| Left { path: one.path, reason: one.reason };
        Self {
            written: done.written,
            removed: done.removed,
            left: done.left.into_iter().map(left).collect(),
        }
    }
}

impl From<store::Differences> for Difference {
    fn from(found: store::Differences) -> Self {
        Self { changes: found.changes, truncated: found.cut }
    }
}

impl Sandboxes {
    /// Keeps a point. What runs goes on.
    pub async fn snapshot(&self, name: &str, tag: Option<String>) -> Result<SnapshotInfo, Error> {
        let tag = tag.as_deref().map(Tag::new).transpose()?;
        let point =
            self.held(name, move |store, id, taking| store.snapshot(id, tag, taking)).await?;
        Ok(SnapshotInfo::from(&point))
    }

    /// The automatic point before an exec.
    pub(super) async fn keep_automatic(&self, name: &str) -> Result<(), Error> {
        self.held(name, |store, id, taking| store.mark(id, taking)).await.map(drop)
    }

    pub async fn snapshots(&self, name: &str) -> Result<Vec<SnapshotInfo>, Error> {
        let (record, _) = self.find(name)?;
        let stays = record.points.iter().filter(|point| !point.passing);
        Ok(stays.map(SnapshotInfo::from).collect())
    }

    pub async fn remove_snapshot(&self, name: &str, tag: &str) -> Result<(), Error> {
        let tag = Tag::new(tag)?;
        let (record, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        self.stored(move |store| store.remove_snapshot(&record.id, &tag)).await
    }

    /// Makes the files what they were. What runs is ended.
    pub async fn rollback(&self, name: &str, tag: &str) -> Result<SandboxInfo, Error> {
        let tag = Tag::new(tag)?;
        let wanted = tag.clone();
        let check = move |store: &Store, record: &Record| store.find(record, &wanted).map(drop);
        self.moved(name, "rollback", check, move |store, id| store.rollback(id, &tag)).await
    }

    pub async fn undo(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.moved(name, "undo", Store::may_undo, |store, id| store.undo(id)).await
    }

    pub async fn redo(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.moved(name, "redo", Store::may_redo, |store, id| store.redo(id)).await
    }

    /// What differs: from the image or a point (`image` unless told) to a point or the present (`now` unless told).
    pub async fn diff(
        &self,
        name: &str,
        from: Option<String>,
        to: Option<String>,
    ) -> Result<Difference, Error> {
        let (record, slot) = self.find(name)?;
        let from = side(from.as_deref().unwrap_or("image"))?;
        let to = side(to.as_deref().unwrap_or("now"))?;
        let present = [&from, &to].contains(&&Side::Present);
        self.whole(|this| async move {
            let _turn = slot.turn.lock().await;
            let lines = slot.lines().await?.filter(|_| present);
            // What changes while it is looked at would be neither what it was nor what it is.
            let _alone = slot.gate.write().await;
            let record = this.store.get(&record.id)?;
            let compared = record.clone();
            let act = move |store: &Store| store.diff((&compared, &from), (&compared, &to));
            // Where nothing can be held still it is looked at as it goes.
            let held = match &lines {
                Some(lines)
                    if record.state == SandboxState::Running && !lines.is_idle().await? =>
                {
                    lines.living.freeze().await.is_ok()
                }
                Some(_) | None => false,
            };
            let found = this.stored(act).await;
            if let Some(lines) = lines.filter(|_| held) {
                lines.living.thaw().await?;
            }
            Ok(found?.into())
        })
        .await
    }

    /// Others with the same files. They are started by their first use.
    pub async fn fork(
        &self,
        name: &str,
        count: u32,
        new_name: Option<String>,
    ) -> Result<Vec<SandboxInfo>, Error> {
        self.find(name)?;
        let names = fork_names(name, count, new_name.as_deref(), &self.own().collect::<Vec<_>>())?;
        let names = names.into_iter().map(Some).collect();
        let owner = self.owner.clone();
        let fork = move |store: &Store, id: &str, taking| store.fork(id, names, taking, &owner);
        let forks = self.held(name, fork).await?;
        let mut told = Vec::with_capacity(forks.len());
        for fork in forks {
            told.push(self.told(&fork.id).await?);
        }
        Ok(told)
    }

    /// Lets a fork take another's name; what had it is removed.
    pub async fn promote(&self, fork: &str, name: &str) -> Result<SandboxInfo, Error> {
        let name = Name::new(name)?;
        let (record, _) = self.find(fork)?;
        self.whole(|this| async move {
            for _ in 0..MOST_TRIES {
                if let Some(info) = this.try_promote(&record.id, &name).await? {
                    return Ok(info);
                }
            }
            let what = format!("others give the name {name} away again and again");
            Err(Error::Conflict { what })
        })
        .await
    }

    /// Nothing when the name was somebody else's by the time that it was his turn.
    async fn try_promote(&self, id: &str, name: &Name) -> Result<Option<SandboxInfo>, Error> {
        let holder = || {
            let found = self.store.find_of(&self.tenant, name.as_str()).ok();
            found.filter(|one| one.id != id)
        };
        let (slot, other) = (self.slot(id), holder());
        let their_slot = other.as_ref().map(|other| self.slot(&other.id));
        // In one order for all: two who take each other's names would wait for each other for ever.
        let mut slots: Vec<&Arc<Slot>> =
            [Some(&slot), their_slot.as_ref()].into_iter().flatten().collect();
        slots.sort_by(|one, other| one.id.cmp(&other.id));
        let mut turns = Vec::new();
        for slot in slots {
            turns.push(slot.turn.lock().await);
        }
        if holder().map(|one| one.id) != other.as_ref().map(|one| one.id.clone()) {
            return Ok(None);
        }
        if let (Some(other), Some(their_slot)) = (&other, &their_slot)
            && let Some(lines) = their_slot.lines().await?
        {
            self.fell(other, their_slot, &lines, None).await?;
        }
        let (id, taken) = (id.to_owned(), name.clone());
        let record =
            self.stored(move |store| store.promote(&id, &taken, Displaced::Remove)).await?;
        if let Some(other) = other {
            self.forget_slot(&other.id);
        }
        if let Some(lines) = slot.lines().await? {
            lines.living.rename(name.as_str()).await?;
        }
        self.told(&record.id).await.map(Some)
    }

    /// The files of a point as one portable file, which exists nowhere but in the answer.
    pub async fn export(&self, name: &str, tag: Option<String>) -> Result<File, Error> {
        let at = side(tag.as_deref().unwrap_or("now"))?;
        if at == Side::Present {
            // What runs may be writing: a point of our own stands still.
            let take = |store: &Store, id: &str, taking| store.pass(id, taking);
            let point = self.held(name, take).await?;
            let exported = self.export_point(name, Side::Point(point.tag.clone())).await;
            self.remove_snapshot(name, &point.tag.to_string()).await?;
            return exported;
        }
        self.export_point(name, at).await
    }

    async fn export_point(&self, name: &str, at: Side) -> Result<File, Error> {
        let (record, _) = self.find(name)?;
        let wrong = |errno: rustix::io::Errno| Error::Backend {
            operation: "make room for an archive",
            source: errno.into(),
        };
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let here = self.store.directory(&record.id);
        let file = rustix::fs::open(here, flags, Mode::from_raw_mode(0o600)).map_err(wrong)?;
        self.stored(move |store| {
            let mut file = File::from(file);
            store.export(&record, &at, &mut file)?;
            let rewound = file.rewind().map_err(StoreError::io(Path::new("archive")));
            rewound.map(|()| file)
        })
        .await
    }

    /// A sandbox of what [`Self::export`] gave.
    pub async fn import(
        &self,
        mut file: File,
        request: SandboxRequest,
    ) -> Result<SandboxInfo, Error> {
        lifecycle::check(&request)?;
        let name = request.name.as_deref().map(Name::new).transpose()?;
        let (tenant, owner) = (self.tenant.to_string(), self.owner.clone());
        let new = NewSandbox { name, tenant, request, ids: None, owner };
        let import = move |store: &Store| {
            file.rewind().map_err(StoreError::io(Path::new("archive")))?;
            store.import(new, &mut file, ImportLimits::default())
        };
        let record = self.stored(import).await?;
        self.told(&record.id).await
    }

    /// What a copy-on-write workspace has that the host's directory has not.
    pub async fn workspace_changes(&self, name: &str) -> Result<Difference, Error> {
        let (record, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        Ok(self.stored(move |store| store.workspace_changes(&record)).await?.into())
    }

    /// Writes changes to the host's directory: these paths, or all but those that must be named.
    pub async fn workspace_commit(
        &self,
        name: &str,
        paths: Vec<String>,
        force: bool,
    ) -> Result<Committed, Error> {
        let which = if paths.is_empty() { Which::All } else { Which::Paths(paths) };
        let conflicts = if force { Conflicts::Overwrite } else { Conflicts::Leave };
        let commit = move |store: &Store, id: &str, _| store.commit(id, &which, conflicts);
        Ok(self.held(name, commit).await?.into())
    }

    /// Forgets the changes. What runs is ended.
    pub async fn workspace_discard(&self, name: &str) -> Result<SandboxInfo, Error> {
        let check = |_: &Store, record: &Record| store::workspace_of(record).map(drop);
        self.moved(name, "discard the changes of", check, |store, id| store.discard(id)).await
    }

    /// Does something to the files of a sandbox that must not change meanwhile: what runs stands still, and what does not
    /// is stood up anew, on other files perhaps.
    pub(super) async fn held<T: Send + 'static>(
        &self,
        name: &str,
        act: impl FnOnce(&Store, &str, Taking) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move { this.held_in(&slot, act).await }).await
    }

    async fn held_in<T: Send + 'static>(
        &self,
        slot: &Arc<Slot>,
        act: impl FnOnce(&Store, &str, Taking) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let _turn = slot.turn.lock().await;
        let record = self.in_step(slot).await?;
        let id = record.id.clone();
        let Some(lines) = slot.lines().await? else {
            return self.stored(move |store| act(store, &id, Taking::Seal)).await;
        };
        // Nothing begins from here on until it stands again, or goes on.
        let _alone = slot.gate.write().await;
        lines.rest().await;
        if record.state == SandboxState::Running && lines.is_idle().await? {
            self.lay_down(&record, slot, &lines).await?;
            let done = self.stored(move |store| act(store, &id, Taking::Seal)).await;
            let record = self.store.get(&record.id)?;
            self.raise(&record, slot).await?;
            return done;
        }
        self.frozen(&record, &lines, move |store| act(store, &id, Taking::Copy)).await
    }

    async fn frozen<T: Send + 'static>(
        &self,
        record: &Record,
        lines: &Lines,
        act: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let paused = record.state == SandboxState::Paused;
        if !paused {
            lines.living.freeze().await?;
        }
        let done = self.stored(act).await;
        if !paused {
            lines.living.thaw().await?;
        }
        done
    }

    /// Puts a sandbox on other files. What runs is ended; what ran before runs again, on those.
    async fn moved(
        &self,
        name: &str,
        verb: &'static str,
        check: impl FnOnce(&Store, &Record) -> Result<(), StoreError> + Send + 'static,
        act: impl FnOnce(&Store, &str) -> Result<Record, StoreError> + Send + 'static,
    ) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move { this.moved_in(&slot, verb, check, act).await }).await
    }

    async fn moved_in(
        &self,
        slot: &Arc<Slot>,
        verb: &str,
        check: impl FnOnce(&Store, &Record) -> Result<(), StoreError> + Send + 'static,
        act: impl FnOnce(&Store, &str) -> Result<Record, StoreError> + Send + 'static,
    ) -> Result<SandboxInfo, Error> {
        let _turn = slot.turn.lock().await;
        let record = self.in_step(slot).await?;
        if record.state == SandboxState::Paused {
            return Err(lifecycle::conflict(&record, verb, "resume it first"));
        }
        // A mistake ends nothing.
        check(&self.store, &record)?;
        let stood = slot.lines().await?;
        if let Some(lines) = &stood {
            self.lay_down(&record, slot, lines).await?;
        }
        let id = record.id.clone();
        let moved = self.stored(move |store| act(store, &id)).await;
        if stood.is_some() {
            self.again(slot).await?;
        }
        let moved = moved?;
        self.told(&moved.id).await
    }

    async fn again(&self, slot: &Arc<Slot>) -> Result<(), Error> {
        let record = self.store.get(&slot.id)?;
        self.raise(&record, slot).await.map(drop)
    }
}

/// A point as people name it.
fn side(text: &str) -> Result<Side, SpecError> {
    match text {
        "image" => Ok(Side::Image),
        "now" => Ok(Side::Present),
        tag => Tag::new(tag).map(Side::Point),
    }
}

/// `NEW`, or `NEW-1` to `NEW-N`; without a name the parent's, with the first numbers that are free.
fn fork_names(
    parent: &str,
    count: u32,
    new_name: Option<&str>,
    known: &[Record],
) -> Result<Vec<Name>, SpecError> {
    if let (Some(name), 1) = (new_name, count) {
        return Ok(vec![Name::new(name)?]);
    }
    let stem = new_name.map_or_else(|| format!("{parent}-fork"), ToOwned::to_owned);
    let taken = |name: &str| known.iter().any(|one| one.name.as_str() == name);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let numbered = (1..).map(|number: u32| format!("{stem}-{number}"));
    numbered
        .filter(|name| new_name.is_some() || !taken(name))
        .take(count.min(MOST_FORKS))
        .map(|name| Name::new(&name))
        .collect()
}

/// How often a name that changes hands is reached for.
const MOST_TRIES: usize = 16;
/// More than the store makes at once; it says so.
const MOST_FORKS: usize = 100_000;
