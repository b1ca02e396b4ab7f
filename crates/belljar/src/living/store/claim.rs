//! How many sandboxes there may be, and how much disk they may be promised: in all, and for each owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::record::Record;
use super::{Hold, Name, Store, StoreError, held_name};
use crate::model::sandbox::Owner;

/// Sandboxes of one state directory, unless its operator says otherwise.
const MOST_SANDBOXES: usize = 1000;

/// What an operator allows. A disk counts with its limit, full or empty: so nobody is promised what is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxLimits {
    pub sandboxes: usize,
    pub disk_bytes: Option<u64>,
    /// Of each owner: a user of the socket, or a key.
    pub owner_sandboxes: Option<usize>,
    pub owner_disk_bytes: Option<u64>,
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self {
            sandboxes: MOST_SANDBOXES,
            disk_bytes: None,
            owner_sandboxes: None,
            owner_disk_bytes: None,
        }
    }
}

/// Sandboxes that are being made, by tenant and name: they count before their records exist.
pub(super) type Claims = BTreeMap<String, (Owner, u64)>;

/// A place for one more, until its record stands for it.
#[derive(Debug)]
pub(super) struct Claim {
    claims: Arc<Mutex<Claims>>,
    name: String,
    _hold: Hold,
}

impl Drop for Claim {
    fn drop(&mut self) {
        locked(&self.claims).remove(&self.name);
    }
}

fn locked(claims: &Mutex<Claims>) -> MutexGuard<'_, Claims> {
    claims.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many there are, and what they were promised.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sandboxes: usize,
    disk_bytes: u64,
}

impl Sum {
    fn add(&mut self, disk_bytes: u64) {
        self.sandboxes += 1;
        self.disk_bytes = self.disk_bytes.saturating_add(disk_bytes);
    }

    /// Whether there may be one more with such a disk; if not, by which rule.
    fn admits(&self, disk_bytes: u64, who: &str, bound: &Bound) -> Result<(), StoreError> {
        let (most, rule) = bound.sandboxes;
        if let Some(most) = most.filter(|most| self.sandboxes >= *most) {
            return Err(StoreError::Beyond {
                what: format!("{who} has {} sandboxes", self.sandboxes),
                most: most as u64,
                rule,
                hint: "remove one",
            });
        }
        let (most, rule) = bound.disk_bytes;
        let wanted = self.disk_bytes.saturating_add(disk_bytes);
        if let Some(most) = most.filter(|most| wanted > *most) {
            return Err(StoreError::Beyond {
                what: format!("with this one {who} would have {wanted} bytes of disk"),
                most,
                rule,
                hint: "remove a sandbox, ask for less disk",
            });
        }
        Ok(())
    }
}

/// Limits, each with what `belljar serve` calls it.
struct Bound {
    sandboxes: (Option<usize>, &'static str),
    disk_bytes: (Option<u64>, &'static str),
}

impl SandboxLimits {
    fn of_all(&self) -> Bound {
        Bound {
            sandboxes: (Some(self.sandboxes), "--sandboxes"),
            disk_bytes: (self.disk_bytes, "--sandbox-disk"),
        }
    }

    fn of_owner(&self) -> Bound {
        Bound {
            sandboxes: (self.owner_sandboxes, "--owner-sandboxes"),
            disk_bytes: (self.owner_disk_bytes, "--owner-disk"),
        }
    }
}

impl Store {
    /// Keeps a name for a sandbox that is being made, if there may be one more.
    pub(super) fn claim(
        &self,
        tenant: &str,
        name: &Name,
        owner: &Owner,
        disk_bytes: u64,
    ) -> Result<Claim, StoreError> {
        self.own()?;
        let records = self.records();
        let is_it = |record: &Record| record.tenant == tenant && record.name == *name;
        if records.values().any(is_it) {
            return Err(StoreError::Taken(name.clone()));
        }
        let mut claims = locked(&self.claims);
        let (mut all, mut own) = (Sum::default(), Sum::default());
        let made = records.values().map(|one| (&one.owner, one.disk_bytes));
        // One whose record exists by now is counted by that.
        let names = records.values().map(|record| held_name(&record.tenant, &record.name));
        let names: BTreeSet<String> = names.collect();
        let claimed = claims.iter().filter(|(name, _)| !names.contains(*name));
        let claimed = claimed.map(|(_, (owner, bytes))| (owner, *bytes));
        for (whose, bytes) in made.chain(claimed) {
            all.add(bytes);
            if whose == owner {
                own.add(bytes);
            }
        }
        let limits = &self.limits;
        own.admits(disk_bytes, &owner.to_string(), &limits.of_owner())?;
        all.admits(disk_bytes, "this server", &limits.of_all())?;
        let held = held_name(tenant, name);
        let hold = Hold::take(&self.held, &held).ok_or_else(|| StoreError::Taken(name.clone()))?;
        claims.insert(held.clone(), (owner.clone(), disk_bytes));
        Ok(Claim { claims: Arc::clone(&self.claims), name: held, _hold: hold })
    }
}
