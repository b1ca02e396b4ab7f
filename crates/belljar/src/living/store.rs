//! The files of living sandboxes: records, disks, sheets, and the points that can be gone back to. All of it is
//! synchronous and on the host's side; no program runs here.
//!
//! A change is made of files that nobody names yet, and then of one record that is replaced. So after a crash the old
//! state or the new one is found, and what no record names is swept.

mod archive;
mod attached;
mod compare;
mod copy;
mod diff;
mod disk;
mod fork;
mod history;
mod merge;
mod name;
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
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_sys::Errno;
use rustix::fs::FlockOperation;

use crate::model::error::SpecError;
use crate::model::sandbox::{SandboxRequest, SandboxState, WorkspaceMode};

pub(crate) use attached::Attached;
pub(crate) use diff::{Differences, MOST_CHANGES};
pub(crate) use disk::{Ground, Owner, SheetId, Size};
pub(crate) use name::{Name, Tag};
pub(crate) use points::{Side, Taking};
pub(crate) use record::{CopiedWorkspace, Displaced, Point, Record};
pub(crate) use workspace::{Committed, Conflicts, Left, Which};

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
    pub most_sandboxes: usize,
    /// Of all disk limits together.
    pub most_disk_bytes: Option<u64>,
    /// What disks stand on; what the host can do best unless told.
    pub ground: Option<Ground>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("there is no sandbox {0}")]
    NoSandbox(String),
    #[error("the name {0} is taken. hint: remove that sandbox, or choose another name")]
    Taken(Name),
    #[error("{sandbox} has no point {tag}. hint: belljar sandbox snapshots {sandbox}")]
    NoPoint { sandbox: Name, tag: String },
    #[error("{sandbox} has a point {tag} already. hint: remove it, or choose another tag")]
    PointTaken { sandbox: Name, tag: Tag },
    #[error("nothing to {0}")]
    Nothing(&'static str),
    #[error("{what}: at most {most}. hint: {hint}")]
    Full { what: String, most: u64, hint: &'static str },
    #[error("{0} is being changed by another request")]
    Busy(String),
    #[error(
        "{} is in use by process {pid}. hint: one server owns a state directory; stop it, or give another with --state",
        .path.display()
    )]
    Owned { path: PathBuf, pid: String },
    #[error("{} cannot be read: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the archive is refused: {0}")]
    Archive(String),
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Only in tests: the point where a crash is tried.
    #[error("stopped at {0}")]
    Stopped(&'static str),
}

impl StoreError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    fn errno(&self) -> Option<i32> {
        let Self::Io { source, .. } = self else { return None };
        source.raw_os_error()
    }

    pub(crate) fn is_full(&self) -> bool {
        [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error())).contains(&self.errno())
    }

    /// The host lacks the means, rather than the operation having failed.
    fn is_missing(&self) -> bool {
        let missing =
            [Errno::PERM, Errno::ACCESS, Errno::NOENT, Errno::NXIO, Errno::NODEV, Errno::NOSYS];
        missing.map(|errno| Some(errno.raw_os_error())).contains(&self.errno())
    }
}

/// A sandbox that is to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewSandbox {
    pub name: Option<Name>,
    pub request: SandboxRequest,
    /// The host's ids of its files; chosen when left out.
    pub owner: Option<Owner>,
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
    most_sandboxes: usize,
    most_disk_bytes: Option<u64>,
    records: Mutex<BTreeMap<String, Record>>,
    /// Ids and names that a change is being made to.
    held: Arc<Mutex<BTreeSet<String>>>,
    steps: steps::Steps,
    _lock: File,
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
        let lock = lock(&sandboxes)?;
        let best = || if template::is_possible() { Ground::Image } else { Ground::Directory };
        let wanted = config.ground.unwrap_or_else(best);
        let disks = disk::Disks { root: disks, templates, wanted };
        let store = Self {
            sandboxes,
            disks: Arc::new(attached::Attachments::new(disks)),
            base: config.base,
            most_sandboxes: config.most_sandboxes,
            most_disk_bytes: config.most_disk_bytes,
            records: Mutex::default(),
            held: Arc::default(),
            steps: steps::Steps::default(),
            _lock: lock,
        };
        store.read_records()?;
        Ok(store)
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
        let workspace = open_workspace(&new.request)?;
        let owner = new.owner;
        let (mut record, _claim) = self.draft(new.name, new.request, owner)?;
        record.workspace = workspace;
        self.furnish(&mut record, Vec::new())?;
        self.commit_new(std::slice::from_ref(&record))?;
        Ok(record)
    }

    /// A record that nothing on the disk knows yet, under a name that is now ours.
    fn draft(
        &self,
        name: Option<Name>,
        request: SandboxRequest,
        owner: Option<Owner>,
    ) -> Result<(Record, Hold), StoreError> {
        let limits = request.limits.resolve()?;
        let id = new_id()?;
        let name = match name {
            Some(name) => name,
            None => Name::new(&format!("sandbox-{}", id[id.len() - 6..].to_ascii_lowercase()))?,
        };
        let claim = self.claim(&name, limits.disk_bytes)?;
        let owner = owner.unwrap_or_else(|| self.free_owner(&id));
        let created_ms = now_ms();
        let record = Record {
            format: record::FORMAT,
            id,
            name,
            state: SandboxState::Created,
            created_ms,
            expires_ms: request.ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
            request,
            error: None,
            parent: None,
            uid: owner.uid,
            gid: owner.gid,
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
        self.disks.all.new_sheet(&record.upper_id(), trees_of(record), owner_of(record))?;
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
        Hold::take(&self.held, id).ok_or_else(|| StoreError::Busy(shown(id)))
    }

    /// Keeps a name for a sandbox that is being made, if there may be one more.
    fn claim(&self, name: &Name, disk_bytes: u64) -> Result<Hold, StoreError> {
        let records = self.records();
        if records.values().any(|record| record.name == *name) {
            return Err(StoreError::Taken(name.clone()));
        }
        if records.len() >= self.most_sandboxes {
            return Err(StoreError::Full {
                what: format!("{} sandboxes exist", records.len()),
                most: self.most_sandboxes as u64,
                hint: "remove some, or raise the limit",
            });
        }
        let promised: u64 = records.values().map(|record| record.disk_bytes).sum();
        let wanted = promised.saturating_add(disk_bytes);
        if let Some(most) = self.most_disk_bytes.filter(|most| wanted > *most) {
            return Err(StoreError::Full {
                what: format!("with this one {wanted} bytes of disk would be promised"),
                most,
                hint: "remove some sandboxes, ask for less disk, or raise the limit",
            });
        }
        Hold::take(&self.held, &format!("name {name}"))
            .ok_or_else(|| StoreError::Taken(name.clone()))
    }

    /// An id that no other sandbox's files have; an ordinary user has but one.
    fn free_owner(&self, id: &str) -> Owner {
        if !rustix::process::geteuid().is_root() {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            return Owner { uid: uid.as_raw(), gid: gid.as_raw() };
        }
        let used: BTreeSet<u32> = self.records().values().map(|record| record.uid).collect();
        // From the id's random part: two that are made at once differ.
        let start =
            id.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let candidates = (0..UIDS).map(|step| FIRST_UID + low_bits(start.wrapping_add(step)));
        let uid = candidates.into_iter().find(|uid| !used.contains(uid)).unwrap_or(FIRST_UID);
        Owner { uid, gid: uid }
    }
}

/// The low 24 bits.
fn low_bits(number: u64) -> u32 {
    u32::try_from(number % UIDS).unwrap_or(0)
}

/// A change in progress.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Arc<Mutex<BTreeSet<String>>>,
    what: String,
}

impl Hold {
    fn take(held: &Arc<Mutex<BTreeSet<String>>>, what: &str) -> Option<Self> {
        let mut all = held.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let new = all.insert(what.to_owned());
        new.then(|| Self { held: Arc::clone(held), what: what.to_owned() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.remove(&self.what);
    }
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

fn owner_of(record: &Record) -> Owner {
    Owner { uid: record.uid, gid: record.gid }
}

/// Looks at the host directory of a copy-on-write workspace.
fn open_workspace(request: &SandboxRequest) -> Result<Option<CopiedWorkspace>, StoreError> {
    let Some(workspace) = &request.workspace else { return Ok(None) };
    let Some(path) =
        workspace.path.as_ref().filter(|_| workspace.mode == WorkspaceMode::CopyOnWrite)
    else {
        return Ok(None);
    };
    let wrong = |reason: String| SpecError::new("workspace.path", reason);
    let path =
        fs::canonicalize(path).map_err(|error| wrong(format!("cannot be opened: {error}")))?;
    let status = fs::metadata(&path).map_err(StoreError::io(&path))?;
    if !status.is_dir() {
        return Err(wrong("is no directory".to_owned()).into());
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Ok(Some(CopiedWorkspace {
        path,
        identity: (status.dev(), status.ino()),
        since: (now.tv_sec, now.tv_nsec),
    }))
}

/// Makes the directory if it is not there. One that others may write is refused: they could replace what is in it.
fn own_directory(path: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(StoreError::io(path))?;
    let status = fs::symlink_metadata(path).map_err(StoreError::io(path))?;
    let own = status.uid() == rustix::process::geteuid().as_raw();
    if own && status.is_dir() && status.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!(
        "must be a directory of your own, writable by you alone (it has mode {:o}, owner {})",
        status.mode() & 0o7777,
        status.uid()
    );
    Err(StoreError::io(path)(io::Error::other(why)))
}

fn lock(sandboxes: &Path) -> Result<File, StoreError> {
    let path = sandboxes.join("lock");
    let opened =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(StoreError::io(&path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            file.take(20).read_to_string(&mut pid).map_err(StoreError::io(&path))?;
            return Err(StoreError::Owned {
                path: sandboxes.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(errno) => return Err(StoreError::io(&path)(errno.into())),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(StoreError::io(&path))?;
    Ok(file)
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
