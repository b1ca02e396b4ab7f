//! New sandboxes from the files of another, and giving one of them the other's name.

use std::fs;

use super::points::{Care, MOST_LAYERS, Taking};
use super::record::{self, Displaced, Record, Took};
use super::{Hold, Name, NewSandbox, Store, StoreError, disk, new_id};
use crate::living::hygiene::is_secret;
use crate::model::sandbox::{Owner, SandboxState};

/// Forks made at once.
pub(crate) const MOST_FORKS: usize = 256;

impl Store {
    /// Makes as many sandboxes as there are names, all with the present files of one. Nothing is copied but, where something
    /// runs, what was written since the last sheet. All of them are made, or none.
    pub(crate) fn fork(
        &self,
        id: &str,
        names: Vec<Option<Name>>,
        taking: Taking,
        owner: &Owner,
    ) -> Result<Vec<Record>, StoreError> {
        let _hold = self.hold(id)?;
        let mut parent = self.get(id)?;
        if names.is_empty() || names.len() > MOST_FORKS {
            let reason = format!("is {}; it must be between 1 and {MOST_FORKS}", names.len());
            return Err(crate::model::error::SpecError::new("count", reason).into());
        }
        if parent.stack.len() >= MOST_LAYERS {
            return Err(StoreError::Full {
                what: format!("{} stands on {} sheets", parent.name, parent.stack.len()),
                most: MOST_LAYERS as u64,
                hint: "export it and import it again, which makes them one",
            });
        }
        // What looks like a secret is each one's own: whoever wants it in forks names it.
        let mut request = parent.request.clone();
        request.env.retain(|name, value| !is_secret(name, value));
        let mut drafts = Vec::new();
        for name in names {
            let (ids, owner) = (Some(super::ids_of(&parent)), owner.clone());
            let (tenant, request) = (parent.tenant.clone(), request.clone());
            drafts.push(self.draft(NewSandbox { name, tenant, request, ids, owner })?);
        }
        let _attached = self.attach(&parent)?;
        let taken = self.take(&mut parent, taking, Care::Durable)?;
        self.settle(&parent, &taken)?;
        let mut records = Vec::new();
        for (draft, _) in &drafts {
            let mut record = draft.clone();
            record.parent = Some(parent.id.clone());
            record.request.name = Some(record.name.to_string());
            record.workspace.clone_from(&parent.workspace);
            record.shown.clone_from(&parent.shown);
            record.discarded.clone_from(&parent.discarded);
            record.points =
                parent.points.iter().filter(|point| point.is_named()).cloned().collect();
            self.furnish(&mut record, taken.stack.clone())?;
            records.push(record);
        }
        self.commit_new(&records)?;
        Ok(records)
    }

    /// Makes drafts sandboxes: on the disk all at once, by one rename.
    pub(super) fn commit_new(&self, records: &[Record]) -> Result<(), StoreError> {
        let batch = new_id()?;
        let (draft, made) = (format!(".new-{batch}"), format!(".made-{batch}"));
        let (stage, done) = (self.sandboxes.join(&draft), self.sandboxes.join(&made));
        disk::private_directory(&stage)?;
        for record in records {
            let directory = stage.join(&record.id);
            disk::private_directory(&directory)?;
            record.write(&directory)?;
            self.steps.reach("record drafted")?;
        }
        record::sync_directory(&stage)?;
        fs::rename(&stage, &done).map_err(StoreError::io(&done))?;
        record::sync_directory(&self.sandboxes)?;
        self.steps.reach("records made")?;
        self.finish_new(&made)?;
        self.records().extend(records.iter().map(|record| (record.id.clone(), record.clone())));
        Ok(())
    }

    /// Puts records that were made where they are looked for.
    pub(super) fn finish_new(&self, made: &str) -> Result<(), StoreError> {
        let done = self.sandboxes.join(made);
        let entries: Vec<_> =
            fs::read_dir(&done).and_then(Iterator::collect).map_err(StoreError::io(&done))?;
        for entry in entries {
            let target = self.sandboxes.join(entry.file_name());
            fs::rename(entry.path(), &target).map_err(StoreError::io(&target))?;
            self.steps.reach("record placed")?;
        }
        fs::remove_dir(&done).map_err(StoreError::io(&done))?;
        record::sync_directory(&self.sandboxes)
    }

    /// Gives a sandbox the name of another, which is removed or gets a new one. The record that takes the name says so, and
    /// that alone decides: what is left to do after a crash is done at the next start.
    pub(crate) fn promote(
        &self,
        id: &str,
        name: &Name,
        displaced: Displaced,
    ) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        if record.name == *name {
            return Ok(record);
        }
        let _renamed = self.free_name(&record.tenant, &displaced)?;
        let Ok(other) = self.find_of(&record.tenant, name.as_str()) else {
            let _claim = self.free_name(&record.tenant, &Displaced::Rename(name.clone()))?;
            record.name = name.clone();
            self.save(&record)?;
            return Ok(record);
        };
        let hold = self.hold(&other.id)?;
        record.name = name.clone();
        record.took = Some(Took { from: other.id, then: displaced });
        self.save(&record)?;
        self.finish_taking(record, hold)
    }

    fn free_name(&self, tenant: &str, displaced: &Displaced) -> Result<Option<Hold>, StoreError> {
        let Displaced::Rename(name) = displaced else { return Ok(None) };
        let is_it = |record: &Record| record.tenant == tenant && record.name == *name;
        if self.records().values().any(is_it) {
            return Err(StoreError::Taken(name.clone()));
        }
        let hold = Hold::take(&self.held, &super::held_name(tenant, name));
        Ok(Some(hold.ok_or_else(|| StoreError::Taken(name.clone()))?))
    }

    /// The second half of a promotion: what the other sandbox must know.
    pub(super) fn finish_taking(
        &self,
        mut record: Record,
        other_held: Hold,
    ) -> Result<Record, StoreError> {
        let Some(took) = record.took.take() else { return Ok(record) };
        let other = self.records().get(&took.from).cloned();
        if let Some(mut other) = other {
            match took.then {
                Displaced::Rename(name) => {
                    other.name = name;
                    self.save(&other)?;
                }
                Displaced::Remove => {
                    // Its name is the winner's; until it is gone it goes by its id.
                    other.state = SandboxState::Removing;
                    other.name = Name::new(&other.id.to_ascii_lowercase())?;
                    self.save(&other)?;
                    drop(other_held);
                    self.remove(&other.id)?;
                }
            }
        }
        self.save(&record)?;
        Ok(record)
    }
}
