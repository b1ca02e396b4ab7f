//! From `create` to `remove`: the states of a sandbox, and what leads from one to another.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Sandboxes;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};

use tokio::sync::OwnedRwLockReadGuard;

use belljar_jail::living::talk::EndReason;
use belljar_jail::plan::Tree;

use super::slot::{Lines, Slot};
use super::store::{self, Ground, Ids, Name, NewSandbox, Record};
use crate::model::error::{Error, SpecError};
use crate::model::sandbox::{
    SandboxInfo, SandboxRequest, SandboxState, SandboxWorkspace, WorkspaceMode,
};
use crate::model::secret::{SecretMode, SecretRequest, check_reach};
use crate::model::spec::Spec;
use crate::native::living::{self, DiskBound, Living, Raise, Shared};

/// Whether something may be ended that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    No,
    Yes,
}

/// How often it is looked for a sandbox that others lay down again and again.
const MOST_TRIES: usize = 100;

/// A sandbox in which something is about to begin.
#[derive(Debug)]
pub(super) struct Standing {
    pub lines: Lines,
    _stays: OwnedRwLockReadGuard<()>,
}

impl Sandboxes {
    /// Makes a sandbox and starts it. One that cannot be started is not left behind.
    pub async fn create(&self, request: SandboxRequest) -> Result<SandboxInfo, Error> {
        self.whole(|this| async move { this.make(request).await }).await
    }

    pub(super) async fn make(&self, request: SandboxRequest) -> Result<SandboxInfo, Error> {
        let spec = self.spec(&request)?;
        check(&request)?;
        let name = request.name.as_deref().map(Name::new).transpose()?;
        // So that a name nobody knows is told now, and not by the first exec.
        check_reach(&request.secrets, &spec.egress)?;
        self.engine.secrets(&request.secrets).await?;
        let (ids, owner) = (workspace_ids(&request)?, self.owner.clone());
        let new = NewSandbox { name, tenant: self.tenant.to_string(), request, ids, owner };
        let record = self.stored(move |store| store.create(new)).await?;
        let slot = self.slot(&record.id);
        let _turn = slot.turn.lock().await;
        if let Err(error) = self.raise(&record, &slot).await {
            self.forget(&record).await?;
            return Err(error);
        }
        self.told(&record.id).await
    }

    pub async fn info(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (record, _) = self.find(name)?;
        self.told(&record.id).await
    }

    /// Those with this label and in this state, by name.
    pub async fn list(
        &self,
        label: Option<(&str, &str)>,
        state: Option<SandboxState>,
    ) -> Result<Vec<SandboxInfo>, Error> {
        let mut all = Vec::new();
        for record in self.own() {
            let labelled = |(name, value): (&str, &str)| {
                record.request.labels.get(name).is_some_and(|found| found == value)
            };
            if !label.is_none_or(labelled) {
                continue;
            }
            match self.told(&record.id).await {
                Ok(info) if state.is_none_or(|state| info.state == state) => all.push(info),
                // Of another state, or removed meanwhile.
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    pub async fn start(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move { this.start_in(&slot).await }).await
    }

    async fn start_in(&self, slot: &Arc<Slot>) -> Result<SandboxInfo, Error> {
        let _turn = slot.turn.lock().await;
        let record = self.in_step(slot).await?;
        match record.state {
            SandboxState::Created | SandboxState::Stopped | SandboxState::Failed => {}
            SandboxState::Running | SandboxState::Paused | SandboxState::Removing => {
                return Err(conflict(&record, "start", "it is not stopped"));
            }
        }
        self.raise(&record, slot).await?;
        self.told(&record.id).await
    }

    /// Ends what runs in it, in order; its files stay.
    pub async fn stop(&self, name: &str, grace: Duration) -> Result<SandboxInfo, Error> {
        self.end(name, "stop", Some(grace)).await
    }

    /// The same at once.
    pub async fn kill(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.end(name, "kill", None).await
    }

    async fn end(
        &self,
        name: &str,
        verb: &'static str,
        grace: Option<Duration>,
    ) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move {
            let _turn = slot.turn.lock().await;
            let record = this.in_step(&slot).await?;
            let Some(lines) = slot.lines().await? else {
                return Err(conflict(&record, verb, "nothing of it runs"));
            };
            this.fell(&record, &slot, &lines, grace).await?;
            this.told(&record.id).await
        })
        .await
    }

    /// Ends it.
    pub(super) async fn fell(
        &self,
        record: &Record,
        slot: &Arc<Slot>,
        lines: &Lines,
        grace: Option<Duration>,
    ) -> Result<(), Error> {
        match grace {
            Some(grace) => lines.living.stop(grace).await?,
            None => lines.living.kill().await?,
        }
        slot.fell();
        self.set_state(&record.id, SandboxState::Stopped, None).await
    }

    /// Ends it for a moment. Should we die before it stands again, its next use starts it.
    pub(super) async fn lay_down(
        &self,
        record: &Record,
        slot: &Arc<Slot>,
        lines: &Lines,
    ) -> Result<(), Error> {
        lines.living.kill().await?;
        slot.fell();
        self.set_state(&record.id, SandboxState::Created, None).await
    }

    /// Brings a sandbox that was found in step with its record: whoever froze it for a moment, or was about to say
    /// that it is paused or goes on, may have died before.
    pub(super) async fn let_go_on(&self, record: &Record, living: &Living) -> Result<(), Error> {
        // One that is gone by now is found so by everybody.
        match (record.state, living.is_frozen().await) {
            (SandboxState::Paused, Ok(false)) => {
                self.set_state(&record.id, SandboxState::Running, None).await
            }
            (SandboxState::Paused, Ok(true)) | (_, Ok(false) | Err(Error::Lost { .. })) => Ok(()),
            (_, Ok(true)) => living.thaw().await,
            (_, Err(error)) => Err(error),
        }
    }

    /// Holds everything in it still.
    pub async fn pause(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move {
            let _turn = slot.turn.lock().await;
            let record = this.in_step(&slot).await?;
            let (SandboxState::Running, Some(lines)) = (record.state, slot.lines().await?) else {
                return Err(conflict(&record, "pause", "it is not running"));
            };
            // What is under way with its files is told so now, and does not wait for what stands still.
            lines.files.pause(true);
            let frozen = lines.living.freeze().await;
            if frozen.is_err() {
                lines.files.pause(false);
            }
            frozen?;
            this.set_state(&record.id, SandboxState::Paused, None).await?;
            this.told(&record.id).await
        })
        .await
    }

    pub async fn resume(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move {
            let _turn = slot.turn.lock().await;
            let record = this.in_step(&slot).await?;
            let (SandboxState::Paused, Some(lines)) = (record.state, slot.lines().await?) else {
                return Err(conflict(&record, "resume", "it is not paused"));
            };
            lines.living.thaw().await?;
            lines.files.pause(false);
            this.set_state(&record.id, SandboxState::Running, None).await?;
            this.told(&record.id).await
        })
        .await
    }

    /// Removes it with all its files.
    pub async fn remove(&self, name: &str, force: Force) -> Result<(), Error> {
        let (_, slot) = self.find(name)?;
        self.whole(|this| async move {
            let _turn = slot.turn.lock().await;
            let record = this.in_step(&slot).await?;
            if let Some(lines) = slot.lines().await? {
                if force == Force::No {
                    return Err(conflict(&record, "rm", "stop it first, or --force"));
                }
                this.fell(&record, &slot, &lines, None).await?;
            }
            this.forget(&record).await
        })
        .await
    }

    /// Takes a sandbox out of the store, for good.
    pub(super) async fn forget(&self, record: &Record) -> Result<(), Error> {
        let id = record.id.clone();
        self.stored(move |store| store.remove(&id)).await?;
        self.forget_slot(&record.id);
        Ok(())
    }

    pub(super) fn forget_slot(&self, id: &str) {
        self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(id);
    }

    /// Stands a sandbox up on its files. What goes wrong is kept in its record.
    pub(super) async fn raise(&self, record: &Record, slot: &Arc<Slot>) -> Result<Lines, Error> {
        let raised = self.try_raise(record, slot).await;
        match &raised {
            Ok(_) => self.set_state(&record.id, SandboxState::Running, None).await?,
            Err(error) => {
                let told = Some(error.to_string());
                self.set_state(&record.id, SandboxState::Failed, told).await?;
            }
        }
        raised
    }

    async fn try_raise(&self, record: &Record, slot: &Arc<Slot>) -> Result<Lines, Error> {
        let stood = record.clone();
        let (attached, trees) = self
            .stored(move |store| {
                let attached = store.attach(&stood)?;
                Ok((attached, store.trees(&stood)))
            })
            .await?;
        let trees: Vec<Tree> = trees.into_iter().map(tree).collect();
        let owner = (record.uid, record.gid);
        for tree in &trees {
            living::furnish_upper(tree, owner).map_err(Error::backend("make a sandbox's files"))?;
        }
        let disk = match record.ground {
            Ground::Image => DiskBound::FileSystem(self.store.mounted(record)),
            Ground::Directory => DiskBound::Measured,
        };
        let request = &record.request;
        let raise = Raise {
            id: record.id.clone(),
            name: record.name.to_string(),
            spec: self.spec(request)?,
            trees,
            workspace: self.shared(record)?,
            write_paths: request.write_paths.clone(),
            directory: slot.directory.clone(),
            owner,
            disk,
            idle: request.idle_ms.map(Duration::from_millis),
            expires_at: record.expires_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms)),
        };
        let _connecting = slot.connecting.lock().await;
        let living = living::raise(&self.engine, raise).await?;
        // What it stands on is its own by now, whatever becomes of our view of it.
        drop(attached);
        slot.stands(living).await
    }

    /// The Spec of a sandbox, with the sets that its request names.
    pub(super) fn spec(&self, request: &SandboxRequest) -> Result<Spec, SpecError> {
        let egress = self.engine.network().expand(&request.egress)?;
        living::spec(&SandboxRequest { egress, ..request.clone() })
    }

    /// A directory of the host, or a volume, that is shown as it is.
    fn shared(&self, record: &Record) -> Result<Option<Shared>, Error> {
        let Some(workspace) = &record.request.workspace else { return Ok(None) };
        let writable = workspace.mode == WorkspaceMode::ReadWrite;
        if let Some(path) = &workspace.path {
            let copied = workspace.mode == WorkspaceMode::CopyOnWrite;
            if copied {
                return Ok(None);
            }
            let Some(shown) = &record.shown else {
                return Ok(Some(Shared { path: path.clone(), writable, identity: None }));
            };
            let identity = shown.identity();
            if identity.is_none() {
                let (name, path) = (&record.name, shown.path.display());
                let what = format!("the workspace of {name}, {path}, is gone, or a link now");
                return Err(Error::Conflict { what });
            }
            return Ok(Some(Shared { path: shown.path.clone(), writable, identity }));
        }
        let Some(volume) = &workspace.volume else { return Ok(None) };
        // A tenant's volumes are its own; no name begins with a dot.
        let shelf = if record.tenant.is_empty() {
            self.volumes.clone()
        } else {
            self.volumes.join(format!(".{}", Name::new(&record.tenant)?))
        };
        let path = shelf.join(Name::new(volume)?.as_str());
        let make = || -> std::io::Result<()> {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
            std::os::unix::fs::chown(&path, Some(record.uid), Some(record.gid))
        };
        make().map_err(Error::backend("make a volume"))?;
        Ok(Some(Shared { path, writable, identity: None }))
    }

    /// The lines to a sandbox that is to be used: one that was never started is started by its first use.
    pub(super) async fn lines(&self, name: &str) -> Result<(Record, Lines), Error> {
        let (record, slot) = self.find(name)?;
        if record.state == SandboxState::Running
            && let Some(lines) = slot.lines().await?
        {
            return Ok((record, lines));
        }
        self.whole(|this| async move { this.first_use(&slot).await }).await
    }

    /// The same for something that is about to begin in it, with the word that it stays where it is until that has begun.
    pub(super) async fn standing(&self, name: &str) -> Result<Standing, Error> {
        for _ in 0..MOST_TRIES {
            let (record, _) = self.lines(name).await?;
            let slot = self.slot(&record.id);
            let stays = slot.stays().await;
            // Meanwhile it may have been laid down, and stand elsewhere.
            if let Some(lines) = slot.lines().await? {
                return Ok(Standing { lines, _stays: stays });
            }
        }
        Err(Error::Lost { what: "it does not stand long enough to begin anything in it" })
    }

    async fn first_use(&self, slot: &Arc<Slot>) -> Result<(Record, Lines), Error> {
        let _turn = slot.turn.lock().await;
        let record = self.in_step(slot).await?;
        match (record.state, slot.lines().await?) {
            (SandboxState::Running, Some(lines)) => Ok((record, lines)),
            (SandboxState::Created, _) => {
                let lines = self.raise(&record, slot).await?;
                Ok((record, lines))
            }
            (SandboxState::Paused, _) => {
                let hint = format!("hint: belljar sandbox resume {}", record.name);
                Err(conflict(&record, "use", &hint))
            }
            (state, _) => {
                let why = match (&record.error, state) {
                    (Some(error), SandboxState::Failed) => format!(" ({error})"),
                    _ => String::new(),
                };
                let hint = format!("hint: belljar sandbox start {}{why}", record.name);
                Err(conflict(&record, "use", &hint))
            }
        }
    }

    /// The record, brought in step with what lives: whoever holds the sandbox's turn may believe it.
    pub(super) async fn in_step(&self, slot: &Arc<Slot>) -> Result<Record, Error> {
        let record = self.store.get(&slot.id)?;
        let stands = slot.lines().await?;
        let truth = match (record.state, &stands) {
            (SandboxState::Running | SandboxState::Paused, None) => SandboxState::Stopped,
            (SandboxState::Created | SandboxState::Stopped | SandboxState::Failed, Some(_)) => {
                SandboxState::Running
            }
            (state, _) => state,
        };
        if truth == record.state {
            return Ok(record);
        }
        let error = if stands.is_none() { why_ended(slot) } else { None };
        if stands.is_none() && living::ended(&slot.directory).is_none() {
            let id = record.id.clone();
            // Nobody must wait for the tidiness of somebody's files: what is left is a file of a strange name.
            self.stored(move |store| store.sweep_unfinished(&id)).await.ok();
        }
        self.set_state(&record.id, truth, error).await?;
        Ok(self.store.get(&slot.id)?)
    }

    pub(super) async fn set_state(
        &self,
        id: &str,
        state: SandboxState,
        error: Option<String>,
    ) -> Result<(), Error> {
        let id = id.to_owned();
        let change = move |record: &mut Record| (record.state, record.error) = (state, error);
        self.stored(move |store| store.update(&id, change).map(drop)).await
    }

    /// What is known of a sandbox now.
    pub(super) async fn told(&self, id: &str) -> Result<SandboxInfo, Error> {
        let slot = self.slot(id);
        let record = match slot.turn.try_lock() {
            Ok(_turn) => self.in_step(&slot).await?,
            Err(_) => self.while_changed(&slot).await?,
        };
        let lines = slot.lines().await?;
        let usage = match &lines {
            Some(lines) => Some(lines.living.usage().await),
            None => None,
        };
        let mute = match &usage {
            Some(Err(error)) => {
                Some(format!("{error}. hint: belljar sandbox kill {}", record.name))
            }
            Some(Ok(_)) | None => None,
        };
        let usage = usage.and_then(Result::ok);
        let parent = record.parent.as_ref().map(|parent| {
            self.store.get(parent).map_or_else(|_| parent.clone(), |one| one.name.to_string())
        });
        Ok(SandboxInfo {
            id: record.id,
            name: record.name.to_string(),
            state: record.state,
            owner: record.owner,
            image: record.request.image.unwrap_or_else(|| "host".to_owned()),
            level: record.request.level,
            labels: record.request.labels,
            created_at: store::time_text(record.created_ms),
            expires_at: record.expires_ms.map(store::time_text),
            error: record.error.or(mute),
            parent,
            usage,
            receipt: lines.map(|lines| lines.living.receipt().clone()),
        })
    }

    /// The record of a sandbox that somebody is changing: it says from what. Where it says that something stands, and nothing
    /// does, whoever is at it is about to write that down, and is waited for.
    async fn while_changed(&self, slot: &Arc<Slot>) -> Result<Record, Error> {
        let record = self.store.get(&slot.id)?;
        let should_stand = matches!(record.state, SandboxState::Running | SandboxState::Paused);
        if !should_stand || slot.lines().await?.is_some() {
            return Ok(record);
        }
        match tokio::time::timeout(CHANGING, slot.turn.lock()).await {
            Ok(_turn) => self.in_step(slot).await,
            Err(_) => Ok(self.store.get(&slot.id)?),
        }
    }

    /// What is due when the directory is taken over, and from time to time: records brought in step, and what has
    /// outlived its time removed.
    pub(super) async fn settle(&self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        // What killed keepers left.
        crate::native::sweep(self.engine.host());
        let mut first = Ok(());
        for record in self.store.list() {
            // One that gives trouble keeps none of the others from their end.
            let settled = self.settle_one(&record.id, now).await;
            first = first.and(settled);
        }
        first
    }

    async fn settle_one(&self, id: &str, now_ms: u128) -> Result<(), Error> {
        let slot = self.slot(id);
        let Ok(_turn) = slot.turn.try_lock() else { return Ok(()) };
        let record = self.in_step(&slot).await?;
        let removing = record.state == SandboxState::Removing;
        if removing || record.expires_ms.is_some_and(|expires| u128::from(expires) <= now_ms) {
            if let Some(lines) = slot.lines().await? {
                self.fell(&record, &slot, &lines, None).await?;
            }
            self.forget(&record).await?;
        }
        Ok(())
    }

    /// Has new values of secrets count in all that live, where placeholders stand for them. What cannot be reached, or whose
    /// secret is gone, has the values that it had.
    async fn renew_secrets(&self) {
        let placeholder = |one: &SecretRequest| one.mode() == SecretMode::Placeholder;
        for record in self.store.list() {
            if record.request.secrets.iter().any(placeholder)
                && let Ok(Some(lines)) = self.slot(&record.id).lines().await
            {
                lines.living.renew_secrets().await;
            }
        }
    }

    /// Sees to it for ever that what has outlived its time is removed. Run it beside everything else.
    pub async fn tend(&self) {
        loop {
            for _ in 0..RENEW_AFTER {
                tokio::time::sleep(LOOK_AGAIN).await;
                // What cannot be done now is tried again.
                self.settle().await.ok();
            }
            self.renew_secrets().await;
        }
    }
}

/// How long whoever asks what a sandbox is waits for who is changing that.
const CHANGING: Duration = Duration::from_secs(1);
/// How often it is looked for sandboxes that have outlived their time. Their keepers end what runs in them sooner.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// After so many of those looks values of secrets are asked for anew.
const RENEW_AFTER: u32 = 2;

/// What the keeper said last, if it could.
fn why_ended(slot: &Arc<Slot>) -> Option<String> {
    let said = match living::ended(&slot.directory).map(|ended| ended.reason) {
        Some(EndReason::Stopped | EndReason::Killed) => return None,
        Some(EndReason::Idle) => "stopped: nothing ran in it for its --idle time",
        Some(EndReason::Expired) => "stopped: its --ttl is over",
        Some(EndReason::Lost) => "lost: its first process died",
        None => "lost: its keeper was killed, or the host was",
    };
    Some(said.to_owned())
}

/// What the Spec of a sandbox does not tell.
pub(super) fn check(request: &SandboxRequest) -> Result<(), SpecError> {
    if let Some(image) = request.image.as_deref().filter(|image| *image != "host") {
        let reason = format!("is {image:?}; this version has the image \"host\" only");
        return Err(SpecError::new("image", reason));
    }
    if let Some(workspace) = &request.workspace {
        match (&workspace.path, &workspace.volume) {
            (Some(_), None) => {}
            (None, Some(_)) if workspace.mode == WorkspaceMode::CopyOnWrite => {
                let reason = "cannot be copy_on_write with a volume: use read_write or read_only";
                return Err(SpecError::new("workspace.mode", reason));
            }
            (None, Some(volume)) => {
                Name::new(volume).map_err(|one| SpecError::new("workspace.volume", one.reason))?;
            }
            (Some(_), Some(_)) | (None, None) => {
                let reason = "must have either path or volume";
                return Err(SpecError::new("workspace", reason));
            }
        }
    }
    for (field, time) in [("idle_ms", request.idle_ms), ("ttl_ms", request.ttl_ms)] {
        if time == Some(0) {
            return Err(SpecError::new(field, "is 0: give at least 1, or leave it out"));
        }
    }
    Ok(())
}

/// Whose files a sandbox of root's must have, so that it can write to a host directory.
fn workspace_ids(request: &SandboxRequest) -> Result<Option<Ids>, SpecError> {
    let written = |one: &&SandboxWorkspace| one.mode != WorkspaceMode::ReadOnly;
    let workspace = request.workspace.as_ref().filter(written);
    let Some(path) = workspace.and_then(|one| one.path.as_ref()) else { return Ok(None) };
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let status = std::fs::metadata(path).map_err(|error| {
        SpecError::new("workspace.path", format!("{}: {error}", path.display()))
    })?;
    if status.uid() == 0 {
        let reason = "belongs to root, whose files no sandbox may write: give a directory of an ordinary user, or \
                      show it read-only";
        return Err(SpecError::new("workspace.path", reason));
    }
    Ok(Some(Ids { uid: status.uid(), gid: status.gid() }))
}

fn tree(tree: store::Tree) -> Tree {
    let store::Tree { target, lowers, upper, work } = tree;
    Tree { target, lowers, upper, work }
}

pub(super) fn conflict(record: &Record, verb: &str, why: &str) -> Error {
    let state = serde_json::to_value(record.state).unwrap_or_default();
    let state = state.as_str().unwrap_or_default().to_owned();
    let stop = if why.starts_with("hint:") { '.' } else { ':' };
    Error::Conflict { what: format!("cannot {verb} {}, which is {state}{stop} {why}", record.name) }
}
