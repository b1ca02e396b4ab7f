//! The files of living sandboxes: records, disks, sheets, and the points that can be gone back to. All of it is
//! synchronous and on the host's side; no program runs here.
//!
//! A change is made of files that nobody names yet, and then of one record that is replaced. So after a crash the old
//! state or the new one is found, and what no record names is swept.

mod archive;
mod attached;
mod claim;
mod compare;
mod copy;
mod diff;
mod disk;
mod error;
mod fork;
mod history;
mod merge;
mod name;
mod ownership;
mod points;
mod record;
mod steps;
mod sweep;
mod template;
#[cfg(test)]
mod tests;
mod view;
mod walk;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::model::error::SpecError;
use crate::model::sandbox::{Owner, SandboxRequest, SandboxState, WorkspaceMode};

pub(crate) use archive::ImportLimits;
pub(crate) use attached::Attached;
pub use claim::SandboxLimits;
use claim::{Claim, Claims};
pub(crate) use diff::Differences;
pub(crate) use disk::{Ground, Ids, SheetId, Size};
pub(crate) use error::StoreError;
pub(crate) use name::{Name, Tag};
pub(crate) use ownership::Holder;
use ownership::{Hold, lock, own_directory};
pub(crate) use points::{Side, Taking};
pub(crate) use record::{CopiedWorkspace, Displaced, Record, ShownWorkspace, replace, time_text};
pub(crate) use workspace::{Committed, Conflicts, Left, Which, workspace_of};

/// Ids that root gives the files of sandboxes, above those of runs and zygotes.
const FIRST_UID: u32 = 0x7900_0000;
const UIDS: u64 = 1 << 24;

/// What stands below all sheets.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub root: PathBuf,
    pub usr: PathBuf,
}

#[derive(Clone, Debug)]
pub(crate) struct StoreConfig {
    pub state: PathBuf,
    pub base: Base,
    pub limits: SandboxLimits,
    /// What disks stand on; what the host can do best unless told.
    pub ground: Option<Ground>,
    pub holder: Holder,
}

/// A sandbox that is to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewSandbox {
    pub name: Option<Name>,
    /// Whose it is.
    pub tenant: String,
    pub request: SandboxRequest,
    /// The host's ids of its files; chosen when left out.
    pub ids: Option<Ids>,
    /// On whose account it is.
    pub owner: Owner,
}

/// One overlay of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Where it stands inside.
    pub target: PathBuf,
    /// The highest first; the last is the image's.
    pub lowers: Vec<PathBuf>,
    pub upper: PathBuf,
    pub work: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Store {
    sandboxes: PathBuf,
    disks: Arc<attached::Attachments>,
    base: Base,
    limits: SandboxLimits,
    records: Mutex<BTreeMap<String, Record>>,
    /// Ids that a change is being made to, and names that are to be taken.
    held: Arc<Mutex<BTreeSet<String>>>,
    claims: Arc<Mutex<Claims>>,
    steps: steps::Steps,
    /// Nothing while a command needs it for no change.
    lock: Mutex<Option<File>>,
    holder: Holder,
}

impl Store {
    /// Takes the state directory, or says who has it. [`Self::sweep`] comes next, when it is known what lives.
    pub(crate) fn open(config: StoreConfig) -> Result<Self, StoreError> {
        let sandboxes = config.state.join("sandboxes");
        let disks = config.state.join("disks");
        let templates = config.state.join("templates");
        for path in [&config.state, &sandboxes, &disks, &templates] {
            own_directory(path)?;
        }
        let lock = lock(&sandboxes, config.holder)?;
        let best = || if template::is_possible() { Ground::Image } else { Ground::Directory };
        let wanted = config.ground.unwrap_or_else(best);
        let disks = disk::Disks { root: disks, templates, wanted };
        let store = Self {
            sandboxes,
            disks: Arc::new(attached::Attachments::new(disks)),
            base: config.base,
            limits: config.limits,
            records: Mutex::default(),
            held: Arc::default(),
            claims: Arc::default(),
            steps: steps::Steps::default(),
            lock: Mutex::new(Some(lock)),
            holder: config.holder,
        };
        store.read_records()?;
        Ok(store)
    }

    /// Lets others have the directory until something is changed here again.
    pub(crate) fn let_go(&self) {
        *self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// Sees to it that the directory is ours, and the records are what is on the disk.
    fn own(&self) -> Result<(), StoreError> {
        let mut held = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if held.is_none() {
            *held = Some(lock(&self.sandboxes, self.holder)?);
            drop(held);
            self.records().clear();
            self.read_records()?;
        }
        Ok(())
    }

    pub(crate) fn list(&self) -> Vec<Record> {
        self.records().values().cloned().collect()
    }

    /// By name, or by id.
    pub(crate) fn get(&self, name: &str) -> Result<Record, StoreError> {
        let records = self.records();
        let found = records.values().find(|record| record.name.as_str() == name);
        let found = found.or_else(|| records.get(name));
        found.cloned().ok_or_else(|| StoreError::NoSandbox(shown(name)))
    }

    /// The same among the sandboxes of one tenant: what is another's is as unknown as what is nobody's. Everyone is
    /// looked at, so that the time does not tell either.
    pub(crate) fn find_of(&self, tenant: &str, name: &str) -> Result<Record, StoreError> {
        let records = self.records();
        let mut found = None;
        for record in records.values().filter(|record| record.tenant == tenant) {
            let is_named = record.name.as_str() == name;
            if is_named || (record.id == name && found.is_none()) {
                found = Some(record);
            }
        }
        found.cloned().ok_or_else(|| StoreError::NoSandbox(shown(name)))
    }

    /// Where a sandbox's own things are: its record, socket and logs.
    pub(crate) fn directory(&self, id: &str) -> PathBuf {
        self.sandboxes.join(id)
    }

    /// Changes what the facade owns of a record: state, error, expiry.
    pub(crate) fn update(
        &self,
        id: &str,
        change: impl FnOnce(&mut Record),
    ) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        change(&mut record);
        self.save(&record)?;
        Ok(record)
    }

    /// Makes a sandbox with an empty disk.
    pub(crate) fn create(&self, new: NewSandbox) -> Result<Record, StoreError> {
        let shown = open_workspace(&new)?;
        let (mut record, _claim) = self.draft(new)?;
        let workspace = record.request.workspace.as_ref();
        if workspace.is_some_and(|one| one.mode == WorkspaceMode::CopyOnWrite) {
            record.workspace = shown.map(copied);
        } else {
            record.shown = shown.map(|(path, _)| ShownWorkspace { path });
        }
        self.furnish(&mut record, Vec::new())?;
        self.commit_new(std::slice::from_ref(&record))?;
        Ok(record)
    }

    /// A record that nothing on the disk knows yet, under a name that is now ours.
    fn draft(&self, new: NewSandbox) -> Result<(Record, Claim), StoreError> {
        let NewSandbox { name, tenant, request, ids, owner } = new;
        let limits = request.limits.resolve()?;
        let id = new_id()?;
        let name = match name {
            Some(name) => name,
            None => Name::new(&format!("sandbox-{}", id[id.len() - 6..].to_ascii_lowercase()))?,
        };
        let claim = self.claim(&tenant, &name, &owner, limits.disk_bytes)?;
        let ids = ids.unwrap_or_else(|| self.free_ids(&id));
        let created_ms = now_ms();
        let record = Record {
            format: record::FORMAT,
            id,
            name,
            tenant,
            state: SandboxState::Created,
            created_ms,
            expires_ms: request.ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
            request,
            error: None,
            parent: None,
            owner,
            uid: ids.uid,
            gid: ids.gid,
            disk_bytes: limits.disk_bytes,
            inodes: limits.inodes,
            disk: new_id()?,
            ground: Ground::Directory,
            stack: Vec::new(),
            upper: 0,
            next_sheet: 1,
            points: Vec::new(),
            standing: None,
            next_automatic: 1,
            workspace: None,
            shown: None,
            discarded: Vec::new(),
            took: None,
        };
        Ok((record, claim))
    }

    /// Gives a draft its disk and its first upper.
    fn furnish(&self, record: &mut Record, stack: Vec<SheetId>) -> Result<Attached, StoreError> {
        let size = Size { bytes: record.disk_bytes, inodes: record.inodes };
        let (ground, attached) = self.disks.make(&record.disk, size)?;
        self.steps.reach("disk made")?;
        record.ground = ground;
        record.stack = stack;
        self.disks.all.new_sheet(&record.upper_id(), trees_of(record), ids_of(record))?;
        self.steps.reach("upper made")?;
        Ok(attached)
    }

    /// The overlays of a sandbox. They are there as long as what [`Self::attach`] gave is held.
    pub(crate) fn trees(&self, record: &Record) -> Vec<Tree> {
        let upper = record.upper_id();
        let (top, work) = (self.disks.all.sheet(&upper), self.disks.all.work(&upper));
        let tree = |name: &&str| {
            let sheets = record.stack.iter().rev().filter(|sheet| is_seen(record, name, sheet));
            let sheets = sheets.map(|sheet| self.disks.all.sheet(sheet).join(name));
            let lowers = sheets.filter(|path| path.exists()).chain(self.base_of(record, name));
            Tree {
                target: target_of(name),
                lowers: lowers.collect(),
                upper: top.join(name),
                work: work.join(name),
            }
        };
        trees_of(record).iter().map(tree).collect()
    }

    /// Where its own disk is seen.
    pub(crate) fn mounted(&self, record: &Record) -> PathBuf {
        self.disks.all.files(&record.disk)
    }

    fn base_of(&self, record: &Record, tree: &str) -> Option<PathBuf> {
        match tree {
            "root" => Some(self.base.root.clone()),
            "usr" => Some(self.base.usr.clone()),
            _ => record.workspace.as_ref().map(|workspace| workspace.path.clone()),
        }
    }

    /// Makes all that a sandbox stands on seen, for as long as the answer is held.
    pub(crate) fn attach(&self, record: &Record) -> Result<Attached, StoreError> {
        let disks: BTreeSet<String> = record.sheets().map(|sheet| sheet.disk).collect();
        self.disks.attach(disks)
    }

    /// Removes a sandbox with its files. Sheets that others stand on stay.
    pub(crate) fn remove(&self, id: &str) -> Result<(), StoreError> {
        let _hold = self.hold(id)?;
        let record = self.get(id)?;
        let gone = self.sandboxes.join(format!(".gone-{}", record.id));
        let directory = self.directory(&record.id);
        self.steps.reach("about to remove")?;
        fs::rename(&directory, &gone).map_err(StoreError::io(&directory))?;
        self.steps.reach("set aside")?;
        record::sync_directory(&self.sandboxes)?;
        self.records().remove(&record.id);
        disk::remove_tree(&self.sandboxes, &format!(".gone-{}", record.id))?;
        self.steps.reach("directory removed")?;
        self.collect(record.sheets())
    }

    fn save(&self, record: &Record) -> Result<(), StoreError> {
        self.steps.reach("about to save")?;
        record.write(&self.directory(&record.id))?;
        self.records().insert(record.id.clone(), record.clone());
        self.steps.reach("saved")
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.records.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Keeps others from changing the same sandbox meanwhile.
    fn hold(&self, id: &str) -> Result<Hold, StoreError> {
        self.own()?;
        Hold::take(&self.held, id).ok_or_else(|| StoreError::Busy(shown(id)))
    }

    /// An id that no other sandbox's files have; an ordinary user has but one.
    fn free_ids(&self, id: &str) -> Ids {
        if !rustix::process::geteuid().is_root() {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            return Ids { uid: uid.as_raw(), gid: gid.as_raw() };
        }
        let used: BTreeSet<u32> = self.records().values().map(|record| record.uid).collect();
        // From the id's random part: two that are made at once differ.
        let start =
            id.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let candidates = (0..UIDS).map(|step| FIRST_UID + low_bits(start.wrapping_add(step)));
        let uid = candidates.into_iter().find(|uid| !used.contains(uid)).unwrap_or(FIRST_UID);
        Ids { uid, gid: uid }
    }
}

/// A name that is being given, among what is held.
fn held_name(tenant: &str, name: &Name) -> String {
    format!("name {tenant}/{name}")
}

/// The low 24 bits.
fn low_bits(number: u64) -> u32 {
    u32::try_from(number % UIDS).unwrap_or(0)
}

/// The trees that a sandbox has of its own.
fn trees_of(record: &Record) -> &'static [&'static str] {
    if record.workspace.is_some() { &["root", "usr", "workspace"] } else { &["root", "usr"] }
}

/// Whether a sheet's tree is part of the sandbox: of the workspace, what was discarded is not.
fn is_seen(record: &Record, tree: &str, sheet: &SheetId) -> bool {
    tree != "workspace" || !record.discarded.contains(sheet)
}

fn target_of(tree: &str) -> PathBuf {
    if tree == "root" { PathBuf::from("/") } else { Path::new("/").join(tree) }
}

fn ids_of(record: &Record) -> Ids {
    Ids { uid: record.uid, gid: record.gid }
}

/// A host directory as it really is, with its device and inode.
type Found = (PathBuf, (u64, u64));

/// Looks at the host directory that is to be the workspace.
fn open_workspace(new: &NewSandbox) -> Result<Option<Found>, StoreError> {
    let Some(path) = new.request.workspace.as_ref().and_then(|one| one.path.as_ref()) else {
        return Ok(None);
    };
    let wrong = |reason: String| SpecError::new("workspace.path", reason);
    let real =
        fs::canonicalize(path).map_err(|error| wrong(format!("cannot be opened: {error}")))?;
    if !new.tenant.is_empty() && real != *path {
        // What a policy allowed is a path without links; one that has them now was changed since.
        return Err(wrong("has links in it: name the directory itself".to_owned()).into());
    }
    let status = fs::metadata(&real).map_err(StoreError::io(&real))?;
    if !status.is_dir() {
        return Err(wrong("is no directory".to_owned()).into());
    }
    Ok(Some((real, (status.dev(), status.ino()))))
}

/// The same directory as one whose changes stay in the sandbox from now on.
fn copied((path, identity): Found) -> CopiedWorkspace {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    CopiedWorkspace { path, identity, since: (now.tv_sec, now.tv_nsec) }
}

fn new_id() -> Result<String, StoreError> {
    crate::execution_id::new_id().map_err(|error| {
        StoreError::io(Path::new("getrandom"))(io::Error::other(error.to_string()))
    })
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A name that came from outside, short and harmless.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}
