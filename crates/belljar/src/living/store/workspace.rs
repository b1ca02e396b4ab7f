//! Copy-on-write workspaces: the host's directory below, changes in the sandbox, and bringing them back when somebody says
//! so. The sandbox's side is hostile, and the host's directory may hold links: all is done by descriptors beneath the
//! directory that was meant when the sandbox was made.

mod journal;
mod protected;
mod put;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::diff::{Difference, Differences, Gathered, MOST_CHANGES};
use super::points::{Care, Side, Taking};
use super::record::{CopiedWorkspace, Record};
use super::steps::Steps;
use super::walk::{self, Kind, Place};
use super::{Store, StoreError};
use crate::model::error::SpecError;
use crate::model::sandbox::ChangeKind;
use journal::Journal;

const TREE: &str = "workspace";
/// What was brought back already, by path.
const COMMITTED: &str = "committed.json";

/// Which changes are brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All but protected names.
    All,
    /// These and what is below them. A protected name is among them only if it, or a protected directory above it, is named.
    Paths(Vec<String>),
}

/// What is done with files that the host has changed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflicts {
    Leave,
    Overwrite,
}

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Committed {
    pub written: Vec<String>,
    pub removed: Vec<String>,
    pub left: Vec<Left>,
}

/// A change that stayed in the sandbox, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Left {
    pub path: String,
    pub reason: String,
}

/// How a host's file looked right after it was written by us.
type Seen = BTreeMap<String, ((i64, i64), u64)>;

#[derive(Debug, Default, Deserialize, Serialize)]
struct Ours {
    files: Seen,
}

impl Store {
    /// What the sandbox changed in its workspace, compared with the host's directory as it is now.
    pub(crate) fn workspace_changes(&self, record: &Record) -> Result<Differences, StoreError> {
        let _attached = self.attach(record)?;
        let gathered = self.gather_workspace(record)?;
        let mut changes: Vec<_> = gathered.found.into_iter().map(|one| one.change).collect();
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Differences { changes, cut: gathered.cut })
    }

    fn gather_workspace(&self, record: &Record) -> Result<Gathered, StoreError> {
        check_host(workspace_of(record)?)?;
        let mut gathered = Gathered::default();
        let (image, present) = (Side::Image, Side::Present);
        self.gather((record, &image), (record, &present), TREE, MOST_CHANGES, &mut gathered)?;
        gathered.found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(gathered)
    }

    /// Brings changes back to the host's directory. Nothing must run in the sandbox meanwhile.
    pub(crate) fn commit(
        &self,
        id: &str,
        which: &Which,
        conflicts: Conflicts,
    ) -> Result<Committed, StoreError> {
        let _hold = self.hold(id)?;
        let record = self.get(id)?;
        let workspace = workspace_of(&record)?;
        let host = check_host(workspace)?;
        let _attached = self.attach(&record)?;
        let gathered = self.gather_workspace(&record)?;
        let directory = self.directory(&record.id);
        let mut ours = journal::ours(&directory);
        let sheets = self.stack_of(&record, &Side::Present)?;
        let sheets = sheets.iter().rev().filter(|sheet| !record.discarded.contains(sheet));
        let paths = sheets.map(|sheet| self.disks.all.sheet(sheet).join(TREE));
        let mut places = Vec::new();
        for path in paths.filter(|path| path.exists()) {
            places.push(Place::open(&path).map_err(StoreError::io(&path))?);
        }
        let mut commit = Commit {
            host,
            places,
            workspace,
            which,
            conflicts,
            ours: &mut ours,
            journal: Journal::begin(&directory)?,
            steps: &self.steps,
            done: Committed::default(),
        };
        commit.carry_out(&gathered.found)?;
        let done = commit.done;
        journal::close(&directory, &ours)?;
        Ok(done)
    }

    /// Lets go of all changes in the workspace: the host's directory is seen as it is. It cannot be undone.
    pub(crate) fn discard(&self, id: &str) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        workspace_of(&record)?;
        let _attached = self.attach(&record)?;
        let taken = self.take(&mut record, Taking::Seal, Care::Durable)?;
        record.discarded = record.stack.clone();
        self.settle(&record, &taken)?;
        Ok(record)
    }
}

pub(crate) fn workspace_of(record: &Record) -> Result<&CopiedWorkspace, StoreError> {
    record.workspace.as_ref().ok_or_else(|| {
        let reason = "is not copy_on_write: there is nothing to bring back";
        SpecError::new("workspace.mode", reason).into()
    })
}

/// Opens the host's directory, if it is the one that was meant.
fn check_host(workspace: &CopiedWorkspace) -> Result<Place, StoreError> {
    let path = &workspace.path;
    let place = Place::open(path).map_err(StoreError::io(path))?;
    let found = place.directory(b"").and_then(|open| walk::look_at(&open));
    if found.map_err(StoreError::io(path))?.identity != workspace.identity {
        let reason = "is another directory than when the sandbox was made";
        return Err(SpecError::new("workspace.path", reason).into());
    }
    Ok(place)
}

struct Commit<'a> {
    host: Place,
    /// The workspace's sheets, the highest first.
    places: Vec<Place>,
    workspace: &'a CopiedWorkspace,
    which: &'a Which,
    conflicts: Conflicts,
    ours: &'a mut Ours,
    journal: Journal,
    steps: &'a Steps,
    done: Committed,
}

impl Commit<'_> {
    fn carry_out(&mut self, found: &[Difference]) -> Result<(), StoreError> {
        let wanted: Vec<&Difference> = found.iter().filter(|one| self.is_wanted(one)).collect();
        // What is gone goes first, the deepest first: a file may stand where a directory was.
        for one in wanted.iter().rev() {
            if one.change.kind == ChangeKind::Removed {
                self.steps.reach("about to remove from the host")?;
                match self.remove(one) {
                    Ok(()) => self.done.removed.push(text_of(&one.path)),
                    Err(reason) => self.leave(&one.path, reason),
                }
            }
        }
        for one in &wanted {
            if one.change.kind != ChangeKind::Removed {
                self.steps.reach("about to write to the host")?;
                match self.put(one) {
                    Ok(()) => self.done.written.push(text_of(&one.path)),
                    Err(reason) => self.leave(&one.path, reason),
                }
            }
        }
        self.steps.reach("all is written")
    }

    fn leave(&mut self, path: &[u8], reason: String) {
        self.done.left.push(Left { path: text_of(path), reason });
    }

    fn is_wanted(&self, one: &Difference) -> bool {
        match self.which {
            Which::All => true,
            Which::Paths(paths) => {
                paths.iter().any(|path| is_within(one.path.as_slice(), named(path).as_bytes()))
            }
        }
    }

    /// Why a change must stay, if it must.
    fn check(&self, path: &[u8]) -> Result<(), String> {
        if std::str::from_utf8(path).is_err() {
            return Err("its name is not text".to_owned());
        }
        let Some(guarded) = protected::guarded(path) else { return Ok(()) };
        let is_named = match self.which {
            Which::All => false,
            // Whoever names what is protected, or something in it, means it; naming a directory above does not.
            Which::Paths(paths) => {
                let means = |path: &&str| is_within(path.as_bytes(), guarded);
                let named = paths.iter().map(|path| named(path)).filter(means);
                named.into_iter().any(|name| is_within(path, name.as_bytes()))
            }
        };
        if is_named {
            Ok(())
        } else {
            Err("protected: it is only committed when it is named".to_owned())
        }
    }

    /// Refuses what the host changed itself since the sandbox was made.
    fn check_conflict(
        &self,
        directory: &OwnedFd,
        name: &CString,
        path: &[u8],
    ) -> Result<(), String> {
        if self.conflicts == Conflicts::Overwrite {
            return Ok(());
        }
        let Some(meta) = walk::look(directory, name).map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let written_by_us =
            self.ours.files.get(&text_of(path)) == Some(&(meta.changed, meta.identity.1));
        // A directory's time changes with what is in it, which is compared on its own.
        if meta.kind == Kind::Directory || meta.changed <= self.workspace.since || written_by_us {
            return Ok(());
        }
        Err("conflict: the host changed it too since the sandbox was made".to_owned())
    }
}

/// The path as it was named, relative to the workspace.
fn named(path: &str) -> &str {
    let path = path.strip_prefix("/workspace").unwrap_or(path);
    path.trim_matches('/')
}

fn is_within(path: &[u8], above: &[u8]) -> bool {
    path == above
        || above.is_empty()
        || (path.starts_with(above) && path.get(above.len()) == Some(&b'/'))
}

fn text_of(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
