//! What is known of one sandbox, on the disk: one JSON file, replaced whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::StoreError;
use super::disk::{Ground, SheetId};
use super::name::{Name, Tag};
use crate::model::sandbox::{Owner, SandboxRequest, SandboxState, SnapshotInfo};

/// Raised when a reader of the old form would misunderstand the new one.
pub(crate) const FORMAT: u32 = 1;
pub(crate) const FILE: &str = "record.json";
/// A record is some kilobytes; one of this size is not ours.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub format: u32,
    /// Never changes; names do.
    pub id: String,
    pub name: Name,
    /// Whose it is; nothing for the owner of the state directory. Names are told apart by it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    pub state: SandboxState,
    /// As it was asked for.
    pub request: SandboxRequest,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
    pub error: Option<String>,
    /// The id of the sandbox that this one was forked from.
    pub parent: Option<String>,
    /// On whose account it is.
    #[serde(default)]
    pub owner: Owner,
    /// The host's ids of its files. A fork has its parent's, as they share files.
    pub uid: u32,
    pub gid: u32,
    pub disk_bytes: u64,
    pub inodes: u64,
    /// Its own disk, on which its upper lies.
    pub disk: String,
    pub ground: Ground,
    /// Sealed sheets, the lowest first. The image's base is below them all.
    pub stack: Vec<SheetId>,
    /// The sheet that is written now, on its own disk.
    pub upper: u32,
    /// The number of the next sheet on its disk: none is used twice.
    pub next_sheet: u32,
    pub points: Vec<Point>,
    /// The automatic point on which it stands after an undo: those behind it can be redone.
    pub standing: Option<Tag>,
    pub next_automatic: u64,
    pub workspace: Option<CopiedWorkspace>,
    /// The host directory that is shown as it is. Nothing in records of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<ShownWorkspace>,
    /// Sheets whose changes in the workspace were let go of.
    pub discarded: Vec<SheetId>,
    /// It has just taken a name from another, and that one may not know it yet.
    pub took: Option<Took>,
}

/// A point to come back to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Point {
    pub tag: Tag,
    pub created_ms: u64,
    pub automatic: bool,
    /// Made for something that is under way, and removed with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passing: bool,
    pub stack: Vec<SheetId>,
    pub bytes: u64,
    pub files: u64,
    pub copied: bool,
}

impl Point {
    /// Whether somebody gave it its name, and wants it to stay.
    pub(crate) fn is_named(&self) -> bool {
        !self.automatic && !self.passing
    }
}

/// A host directory that is shown as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ShownWorkspace {
    /// As it really was when the sandbox was made: without a link in it.
    pub path: PathBuf,
}

impl ShownWorkspace {
    /// Device and inode of the directory that is there now; nothing when none is, or when a link leads elsewhere. Another
    /// directory in its place is as good: whoever can put it there could write there anyhow.
    pub(crate) fn identity(&self) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::canonicalize(&self.path).ok().filter(|path| *path == self.path)?;
        let status = std::fs::metadata(found).ok().filter(std::fs::Metadata::is_dir)?;
        Some((status.dev(), status.ino()))
    }
}

/// A host directory whose changes stay in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopiedWorkspace {
    pub path: PathBuf,
    /// Device and inode: another directory under the same path is not the one that was meant.
    pub identity: (u64, u64),
    /// What the host changed later than this is a conflict. Seconds and nanoseconds of the clock that files have.
    pub since: (i64, i64),
}

/// What becomes of the sandbox that had the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Displaced {
    Remove,
    Rename(Name),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Took {
    pub from: String,
    pub then: Displaced,
}

impl Record {
    /// The sheet that is written now.
    pub(crate) fn upper_id(&self) -> SheetId {
        SheetId { disk: self.disk.clone(), number: self.upper }
    }

    pub(crate) fn point(&self, tag: &Tag) -> Option<&Point> {
        self.points.iter().find(|point| point.tag == *tag)
    }

    /// Every sheet that it needs.
    pub(crate) fn sheets(&self) -> impl Iterator<Item = SheetId> + '_ {
        let points = self.points.iter().flat_map(|point| &point.stack);
        self.stack.iter().chain(points).cloned().chain([self.upper_id()])
    }

    pub(crate) fn read(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let damaged = |reason: String| StoreError::Damaged { path: path.clone(), reason };
        let length = fs::symlink_metadata(&path).map_err(StoreError::io(&path))?.len();
        if length > MOST_BYTES {
            return Err(damaged(format!("it has {length} bytes")));
        }
        let text = fs::read(&path).map_err(StoreError::io(&path))?;
        let format = serde_json::from_slice::<Versioned>(&text)
            .map_err(|error| damaged(error.to_string()))?
            .format;
        if format != FORMAT {
            let reason = format!("format {format}, and this version knows {FORMAT}");
            return Err(damaged(reason));
        }
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))
    }

    /// Replaces what is on the disk, and returns when it is there.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| StoreError::io(directory)(error.into()))?;
        replace(directory, FILE, &text)
    }
}

#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// A new file in place of the old: after a crash one of the two is found, whole.
pub(crate) fn replace(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary = directory.join(format!(".{name}.new"));
    let target = directory.join(name);
    let mut file = File::create(&temporary).map_err(StoreError::io(&temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(StoreError::io(&temporary))?;
    fs::rename(&temporary, &target).map_err(StoreError::io(&target))?;
    sync_directory(directory)
}

pub(crate) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let open = File::open(directory).map_err(StoreError::io(directory))?;
    open.sync_all().map_err(StoreError::io(directory))
}

impl From<&Point> for SnapshotInfo {
    fn from(point: &Point) -> Self {
        Self {
            tag: point.tag.to_string(),
            created_at: time_text(point.created_ms),
            automatic: point.automatic,
            bytes: point.bytes,
            files: point.files,
            copied: point.copied,
        }
    }
}

/// RFC 3339.
pub(crate) fn time_text(unix_ms: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(unix_ms);
    humantime::format_rfc3339_millis(time).to_string()
}
