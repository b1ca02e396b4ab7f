//! Which disks are seen, and for whom: a disk is detached when the last who needs it lets go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use super::StoreError;
use super::disk::{Disks, Ground, Size};

#[derive(Debug)]
pub(super) struct Attachments {
    pub all: Disks,
    users: Mutex<BTreeMap<String, usize>>,
}

/// Holds disks attached.
#[derive(Debug)]
pub(crate) struct Attached {
    attachments: Arc<Attachments>,
    disks: BTreeSet<String>,
}

impl Attachments {
    pub(super) fn new(all: Disks) -> Self {
        Self { all, users: Mutex::default() }
    }

    fn users(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.users.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn attach(
        self: &Arc<Self>,
        disks: BTreeSet<String>,
    ) -> Result<Attached, StoreError> {
        // Locked throughout: two who attach the same disk at once would mount it twice.
        let mut users = self.users();
        let mut attached = Attached { attachments: Arc::clone(self), disks: BTreeSet::new() };
        let mut failed = None;
        for disk in disks {
            if let Err(error) = self.all.attach(&disk) {
                failed = Some(error);
                break;
            }
            *users.entry(disk.clone()).or_default() += 1;
            attached.disks.insert(disk);
        }
        drop(users); // What is given back on failure takes the lock itself.
        failed.map_or(Ok(attached), Err)
    }

    pub(super) fn make(
        self: &Arc<Self>,
        disk: &str,
        size: Size,
    ) -> Result<(Ground, Attached), StoreError> {
        let ground = self.all.make(disk, size)?;
        Ok((ground, self.attach(BTreeSet::from([disk.to_owned()]))?))
    }

    pub(super) fn is_used(&self, disk: &str) -> bool {
        self.users().contains_key(disk)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut users = self.attachments.users();
        for disk in &self.disks {
            let Some(count) = users.get_mut(disk) else { continue };
            *count -= 1;
            if *count == 0 {
                users.remove(disk);
                // What cannot be detached now is found by the next sweep.
                self.attachments.all.detach(disk).ok();
            }
        }
    }
}
