//! A point as one file, and back. The file is a tar of `manifest.json` and then `data/0`, `data/1` … in order: names of the
//! sandbox's files stand in the manifest only, so nothing in the archive is ever a path to the host.

mod check;
mod read;
mod write;

use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::disk::SheetId;
use super::points::Side;
use super::record::Record;
use super::walk::Place;
use super::{NewSandbox, Store, StoreError};
use crate::model::request::Data;

/// 2: the digest is that of the whole manifest, and not of its entries alone.
pub(super) const FORMAT: u32 = 2;
pub(super) const MANIFEST: &str = "manifest.json";
/// Trees that travel; a workspace is the host's.
pub(super) const TREES: [&str; 2] = ["root", "usr"];

/// What is in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub format: u32,
    /// The image below; the same is needed where it is imported.
    pub image: String,
    pub created_at: String,
    /// A directory before what is in it.
    pub entries: Vec<Item>,
    /// SHA-256 of all the rest as it stands here, hexadecimal.
    pub digest: String,
}

/// One entry of one tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    pub tree: String,
    /// Relative to the tree; its top is the empty path.
    pub path: Data,
    pub mode: u32,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(Data, Data)>,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum What {
    Directory {
        opaque: bool,
    },
    /// `data` is the number of its contents in the archive; `segments` are the parts of it that are no holes.
    File {
        bytes: u64,
        segments: Vec<(u64, u64)>,
        data: u64,
        sha256: String,
    },
    /// Another name of the file whose contents have this number.
    Link {
        data: u64,
    },
    Symlink {
        target: Data,
    },
    Fifo,
    Socket,
    /// Something of the image is gone.
    Removed,
}

/// Bounds of what is taken in; the sandbox's own limits bound it further.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImportLimits {
    pub manifest_bytes: u64,
    pub entries: usize,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self { manifest_bytes: 256 << 20, entries: 1_000_000 }
    }
}

impl Store {
    /// Writes a point to `target`, flattened to one tree. The present must not change meanwhile: it is sealed or frozen.
    pub(crate) fn export(
        &self,
        record: &Record,
        side: &Side,
        target: &mut File,
    ) -> Result<(), StoreError> {
        let _attached = self.attach(record)?;
        let sheets = self.stack_of(record, side)?;
        let image = record.request.image.clone().unwrap_or_else(|| "host".to_owned());
        let tree = |name: &str| {
            let paths = sheets.iter().rev().map(|sheet| self.disks.all.sheet(sheet).join(name));
            paths.filter(|path| path.exists()).map(|path| Place::open(&path)).collect()
        };
        write::write(&image, tree, target).map_err(StoreError::files(Path::new("the archive")))
    }

    /// Makes a sandbox of an archive, which may be anybody's: it is checked as a whole while it is read, and nothing of it
    /// is a sandbox before the last byte was found right.
    pub(crate) fn import(
        &self,
        new: NewSandbox,
        archive: &mut File,
        limits: ImportLimits,
    ) -> Result<Record, StoreError> {
        let (mut record, _claim) = self.draft(new)?;
        let mut reader = read::Reader::open(archive, limits)?;
        let image = record.request.image.as_deref().unwrap_or("host");
        check::check(&reader.manifest, image, &record, limits)?;
        let bottom = SheetId { disk: record.disk.clone(), number: 0 };
        (record.upper, record.next_sheet) = (1, 2);
        let _attached = self.furnish(&mut record, vec![bottom.clone()])?;
        let sheet = self.disks.all.sheet(&bottom);
        super::disk::private_directory(&sheet)?;
        for tree in TREES {
            super::disk::private_directory(&sheet.join(tree))?;
        }
        self.steps.reach("import begun")?;
        reader.unpack(&sheet, super::ids_of(&record))?;
        self.disks.all.sync(&record.disk)?;
        self.steps.reach("import unpacked")?;
        self.commit_new(std::slice::from_ref(&record))?;
        Ok(record)
    }
}

/// The digest of all that a manifest says but this: with the digests of contents in it, it is that of the whole archive.
pub(super) fn digest_of(manifest: &Manifest) -> Result<String, serde_json::Error> {
    let Manifest { format, image, created_at, entries, digest: _ } = manifest;
    let said = serde_json::to_vec(&(format, image, created_at, entries))?;
    Ok(hexadecimal(&Sha256::digest(said)))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
