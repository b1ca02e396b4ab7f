//! From `create` to `remove`: the states of a sandbox, and what leads from one to another.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Sandboxes;
use super::slot::{Lines, Slot};
use super::store::{self, Record};
use crate::execution_id::new_id;
use crate::model::error::Error;
use crate::model::sandbox::{SandboxInfo, SandboxRequest, SandboxState};
use crate::native::living::{self, EndReason, Raise};

/// Whether something may be ended that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    No,
    Yes,
}

impl Sandboxes {
    /// Makes a sandbox and starts it. One that cannot be started is not left behind.
    pub async fn create(&self, request: SandboxRequest) -> Result<SandboxInfo, Error> {
        let spec = living::spec(&request)?;
        let id = new_id()?;
        let owner = living::owner(&self.engine, store::number_of(&id));
        let record = {
            let id = id.clone();
            self.stored(move |store| store.create(&id, request, &spec.limits, owner)).await?
        };
        let slot = self.slot(&id);
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
        for record in self.store.all() {
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
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        match record.state {
            SandboxState::Created | SandboxState::Stopped | SandboxState::Failed => {}
            SandboxState::Running | SandboxState::Paused | SandboxState::Removing => {
                return Err(conflict(&record, "start", "it is not stopped"));
            }
        }
        self.raise(&record, &slot).await?;
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
        verb: &str,
        grace: Option<Duration>,
    ) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        let Some(lines) = slot.lines().await? else {
            return Err(conflict(&record, verb, "nothing of it runs"));
        };
        self.fell(&record, &slot, &lines, grace).await?;
        self.told(&record.id).await
    }

    /// Ends it, for good or for a moment.
    pub(super) async fn fell(
        &self,
        record: &Record,
        slot: &Slot,
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

    pub async fn pause(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        match (record.state, slot.lines().await?) {
            (SandboxState::Running, Some(lines)) => lines.living.freeze().await?,
            _ => return Err(conflict(&record, "pause", "it is not running")),
        }
        self.set_state(&record.id, SandboxState::Paused, None).await?;
        self.told(&record.id).await
    }

    pub async fn resume(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (_, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        match (record.state, slot.lines().await?) {
            (SandboxState::Paused, Some(lines)) => lines.living.thaw().await?,
            _ => return Err(conflict(&record, "resume", "it is not paused")),
        }
        self.set_state(&record.id, SandboxState::Running, None).await?;
        self.told(&record.id).await
    }

    /// Removes it with all its files.
    pub async fn remove(&self, name: &str, force: Force) -> Result<(), Error> {
        let (_, slot) = self.find(name)?;
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        if let Some(lines) = slot.lines().await? {
            if force == Force::No {
                return Err(conflict(&record, "rm", "it is running: stop it first, or --force"));
            }
            self.fell(&record, &slot, &lines, None).await?;
        }
        self.forget(&record).await
    }

    /// Takes a sandbox out of the store, for good.
    pub(super) async fn forget(&self, record: &Record) -> Result<(), Error> {
        let id = record.id.clone();
        self.stored(move |store| store.remove(&id)).await?;
        self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&record.id);
        Ok(())
    }

    /// Stands a sandbox up on its files. What goes wrong is kept in its record.
    pub(super) async fn raise(&self, record: &Record, slot: &Slot) -> Result<Lines, Error> {
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

    async fn try_raise(&self, record: &Record, slot: &Slot) -> Result<Lines, Error> {
        let id = record.id.clone();
        let ground = self.stored(move |store| store.ground(&id)).await?;
        let request = &record.request;
        let raise = Raise {
            id: record.id.clone(),
            name: record.name.to_string(),
            spec: living::spec(request)?,
            trees: ground.trees,
            workspace: ground.shared,
            write_paths: request.write_paths.clone(),
            directory: slot.directory.clone(),
            owner: (record.uid, record.gid),
            disk: ground.bound,
            idle: request.idle_ms.map(Duration::from_millis),
            expires_at: record.expires_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms)),
        };
        Ok(slot.stands(living::raise(&self.engine, raise).await?))
    }

    /// The lines to a sandbox that is to be used: one that was never started is started by its first use.
    pub(super) async fn lines(&self, name: &str) -> Result<(Record, Lines), Error> {
        let (record, slot) = self.find(name)?;
        if record.state == SandboxState::Running
            && let Some(lines) = slot.lines().await?
        {
            return Ok((record, lines));
        }
        let _turn = slot.turn.lock().await;
        let record = self.in_step(&slot).await?;
        match (record.state, slot.lines().await?) {
            (SandboxState::Running, Some(lines)) => Ok((record, lines)),
            (SandboxState::Created, _) => {
                let lines = self.raise(&record, &slot).await?;
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
        let gone = || Error::NotFound { what: "the sandbox was removed meanwhile".to_owned() };
        let record = self.store.get(&slot.id).ok_or_else(gone)?;
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
        self.set_state(&record.id, truth, error).await?;
        self.store.get(&slot.id).ok_or_else(gone)
    }

    pub(super) async fn set_state(
        &self,
        id: &str,
        state: SandboxState,
        error: Option<String>,
    ) -> Result<(), Error> {
        let id = id.to_owned();
        self.stored(move |store| store.set_state(&id, state, error)).await
    }

    /// What is known of a sandbox now.
    pub(super) async fn told(&self, id: &str) -> Result<SandboxInfo, Error> {
        let slot = self.slot(id);
        let record = match slot.turn.try_lock() {
            Ok(_turn) => self.in_step(&slot).await?,
            // Somebody is changing it: the record says from what.
            Err(_) => self.store.get(id).ok_or_else(|| Error::NotFound {
                what: "the sandbox was removed meanwhile".to_owned(),
            })?,
        };
        let lines = slot.lines().await?;
        let usage = match &lines {
            Some(lines) => lines.living.usage().await.ok(),
            None => None,
        };
        let parent = record.parent.as_ref().map(|parent| {
            self.store.get(parent).map_or_else(|| parent.clone(), |one| one.name.to_string())
        });
        Ok(SandboxInfo {
            id: record.id,
            name: record.name.to_string(),
            state: record.state,
            image: record.request.image.unwrap_or_else(|| "host".to_owned()),
            level: record.request.level,
            labels: record.request.labels,
            created_at: store::time_text(record.created_ms),
            expires_at: record.expires_ms.map(store::time_text),
            error: record.error,
            parent,
            usage,
            receipt: lines.map(|lines| lines.living.receipt().clone()),
        })
    }

    /// What is due when the directory is taken over, and from time to time: records brought in step, and what has
    /// outlived its time removed.
    pub(super) async fn settle(&self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        for record in self.store.all() {
            let slot = self.slot(&record.id);
            let Ok(_turn) = slot.turn.try_lock() else { continue };
            let record = self.in_step(&slot).await?;
            let removing = record.state == SandboxState::Removing;
            if removing || record.expires_ms.is_some_and(|expires| u128::from(expires) <= now) {
                if let Some(lines) = slot.lines().await? {
                    self.fell(&record, &slot, &lines, None).await?;
                }
                self.forget(&record).await?;
            }
        }
        Ok(())
    }

    /// Sees to it for ever that what has outlived its time is removed. Run it beside everything else.
    pub async fn tend(&self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            // What cannot be done now is tried again.
            self.settle().await.ok();
        }
    }
}

/// How often it is looked for sandboxes that have outlived their time. Their keepers end what runs in them sooner.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What the keeper said last, if it could.
fn why_ended(slot: &Slot) -> Option<String> {
    let said = match living::ended(&slot.directory).map(|ended| ended.reason) {
        Some(EndReason::Stopped | EndReason::Killed) => return None,
        Some(EndReason::Idle) => "stopped: nothing ran in it for its --idle time",
        Some(EndReason::Expired) => "stopped: its --ttl is over",
        Some(EndReason::Lost) => "lost: its first process died",
        None => "lost: its keeper was killed, or the host was",
    };
    Some(said.to_owned())
}

pub(super) fn conflict(record: &Record, verb: &str, why: &str) -> Error {
    let state = serde_json::to_value(record.state).unwrap_or_default();
    let state = state.as_str().unwrap_or_default().to_owned();
    Error::Conflict { what: format!("cannot {verb} {}, which is {state}: {why}", record.name) }
}
