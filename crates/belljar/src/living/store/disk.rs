//! Disks: where sheets lie. Each sandbox has one, as large as its limits say. As root it is an ext4 image of its own, so
//! that full is `ENOSPC` by the kernel; elsewhere a plain directory.

use std::fmt;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use belljar_sys::Errno;
use belljar_sys::loop_device::LoopDevice;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::template;

const IMAGE: &str = "disk.img";
const FILES: &str = "files";
const MOST_MOUNT_TRIES: usize = 100;

/// What a disk stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ground {
    /// A file system of its own: the limits are the kernel's.
    Image,
    /// Part of the host's: the limits are measured, and can be exceeded for a moment.
    Directory,
}

/// One sheet of one disk; written `DISK/NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SheetId {
    pub disk: String,
    pub number: u32,
}

impl fmt::Display for SheetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.disk, self.number)
    }
}

impl From<SheetId> for String {
    fn from(sheet: SheetId) -> Self {
        sheet.to_string()
    }
}

impl TryFrom<String> for SheetId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} names no sheet");
        let (disk, number) = text.split_once('/').ok_or_else(wrong)?;
        // It becomes part of a path.
        if disk.is_empty() || !disk.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(wrong());
        }
        Ok(Self { disk: disk.to_owned(), number: number.parse().map_err(|_| wrong())? })
    }
}

/// How much a disk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub bytes: u64,
    pub inodes: u64,
}

/// The host's ids of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// All disks of a state directory.
#[derive(Debug)]
pub(crate) struct Disks {
    pub(super) root: PathBuf,
    pub(super) templates: PathBuf,
    /// What new disks stand on, if the host can.
    pub(super) wanted: Ground,
}

impl Disks {
    fn directory(&self, disk: &str) -> PathBuf {
        self.root.join(disk)
    }

    /// Where its sheets are.
    pub(super) fn files(&self, disk: &str) -> PathBuf {
        self.directory(disk).join(FILES)
    }

    pub(crate) fn sheet(&self, sheet: &SheetId) -> PathBuf {
        self.files(&sheet.disk).join(sheet.number.to_string())
    }

    /// The overlay's own directory beside an upper.
    pub(crate) fn work(&self, sheet: &SheetId) -> PathBuf {
        self.files(&sheet.disk).join(format!("work-{}", sheet.number))
    }

    /// Makes an empty disk and attaches it.
    pub(super) fn make(&self, disk: &str, size: Size) -> Result<Ground, StoreError> {
        let directory = self.directory(disk);
        private_directory(&directory)?;
        private_directory(&directory.join(FILES))?;
        if self.wanted == Ground::Directory {
            return Ok(Ground::Directory);
        }
        let image = directory.join(IMAGE);
        match template::copy(&self.templates, size, &image).and_then(|()| self.attach(disk)) {
            Ok(()) => Ok(Ground::Image),
            Err(error) if error.is_missing() => {
                fs::remove_file(&image).ok();
                Ok(Ground::Directory)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a plain directory in place of a disk, for a sheet that is made once and never grows.
    pub(super) fn make_plain(&self, disk: &str) -> Result<(), StoreError> {
        private_directory(&self.directory(disk))?;
        private_directory(&self.files(disk))
    }

    /// Makes its files seen, if they are not: after a reboot nothing is mounted.
    pub(crate) fn attach(&self, disk: &str) -> Result<(), StoreError> {
        let image = self.directory(disk).join(IMAGE);
        if !image.exists() || self.is_attached(disk)? {
            return Ok(());
        }
        mount_image(&image, &self.files(disk))
    }

    pub(super) fn is_attached(&self, disk: &str) -> Result<bool, StoreError> {
        let device = |path: &Path| {
            fs::symlink_metadata(path).map(|status| status.dev()).map_err(StoreError::io(path))
        };
        Ok(device(&self.directory(disk))? != device(&self.files(disk))?)
    }

    pub(crate) fn detach(&self, disk: &str) -> Result<(), StoreError> {
        let files = self.files(disk);
        while files.exists() && self.is_attached(disk)? {
            belljar_sys::mount::detach(&files)
                .map_err(|errno| StoreError::io(&files)(errno.into()))?;
        }
        Ok(())
    }

    /// Removes the disk with all its sheets. What is left by a crash is found by the next sweep.
    pub(super) fn remove(&self, disk: &str) -> Result<(), StoreError> {
        if !self.directory(disk).exists() {
            return Ok(());
        }
        self.detach(disk)?;
        remove_tree(&self.root, disk)
    }

    /// Makes the directories of a sheet that will be written.
    pub(super) fn new_sheet(
        &self,
        sheet: &SheetId,
        trees: &[&str],
        ids: Ids,
    ) -> Result<(), StoreError> {
        match self.make_directories(sheet, trees, ids) {
            Err(error) if error.is_full() => {
                // A full disk can be sealed and rolled back all the same: there is a reserve for our own entries.
                template::release_reserve(&self.files(&sheet.disk))?;
                self.make_directories(sheet, trees, ids)
            }
            result => result,
        }
    }

    fn make_directories(
        &self,
        sheet: &SheetId,
        trees: &[&str],
        ids: Ids,
    ) -> Result<(), StoreError> {
        for place in [self.sheet(sheet), self.work(sheet)] {
            // Numbers are never used twice, but one that a crash left may be in the way.
            self.remove_below(&sheet.disk, &place)?;
            private_directory(&place)?;
            for tree in trees {
                let path = place.join(tree);
                fs::create_dir(&path).map_err(StoreError::io(&path))?;
                give(&path, ids)?;
            }
        }
        Ok(())
    }

    /// Removes a sheet, or what is left of it.
    pub(super) fn remove_sheet(&self, sheet: &SheetId) -> Result<(), StoreError> {
        self.remove_below(&sheet.disk, &self.sheet(sheet))?;
        self.remove_work(sheet)
    }

    pub(super) fn remove_work(&self, sheet: &SheetId) -> Result<(), StoreError> {
        self.remove_below(&sheet.disk, &self.work(sheet))
    }

    fn remove_below(&self, disk: &str, path: &Path) -> Result<(), StoreError> {
        match path.file_name().and_then(|name| name.to_str()) {
            Some(name) if fs::symlink_metadata(path).is_ok() => {
                remove_tree(&self.files(disk), name)
            }
            _ => Ok(()),
        }
    }

    /// What was written to it is on the host's disk when this returns.
    pub(super) fn sync(&self, disk: &str) -> Result<(), StoreError> {
        let files = self.files(disk);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&files, flags, Mode::empty())
            .and_then(rustix::fs::syncfs)
            .map_err(|errno| StoreError::io(&files)(errno.into()))
    }
}

/// Mounts an image through a loop device that is gone with the mount.
pub(super) fn mount_image(image: &Path, target: &Path) -> Result<(), StoreError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(target, flags, Mode::empty());
    let place = place.map_err(|errno| StoreError::io(target)(errno.into()))?;
    for _ in 0..MOST_MOUNT_TRIES {
        let (held, device) = match loop_device_of(image) {
            Some(device) => (None, device),
            None => {
                let file = fs::OpenOptions::new().read(true).write(true).open(image);
                let file = file.map_err(StoreError::io(image))?;
                let made = LoopDevice::over(&file);
                let made = made.map_err(StoreError::io(Path::new("/dev/loop-control")))?;
                let path = made.path().to_owned();
                (Some(made), path)
            }
        };
        match belljar_sys::mount::ext4(&device, &place) {
            // The device that we found was just being cleared.
            Err(Errno::NXIO | Errno::BUSY | Errno::INVAL | Errno::IO) if held.is_none() => {}
            // Cleared since we found it, and taken for another image: that one is mounted here now, and is somebody else's.
            // From now on our mount holds the device, so what it says stays true.
            Ok(()) if held.is_none() && !stands_on(&device, image) => {
                belljar_sys::mount::detach(target)
                    .map_err(|errno| StoreError::io(target)(errno.into()))?;
            }
            result => return result.map_err(|errno| StoreError::io(target)(errno.into())),
        }
    }
    Err(StoreError::io(target)(Errno::BUSY.into()))
}

/// The device that already stands on this image, because a sandbox that still lives has it mounted. A second device would
/// be a second file system over the same bytes, and destroy them.
fn loop_device_of(image: &Path) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let mut devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    devices.find(|device| stands_on(device, image))
}

/// Whether a loop device is over this image now.
fn stands_on(device: &Path, image: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    match (fs::read_to_string(backing), fs::canonicalize(image)) {
        (Ok(backing), Ok(image)) => Path::new(backing.trim_end()) == image,
        _ => false,
    }
}

/// Removes a tree that a program may have made, however deep and closed.
pub(super) fn remove_tree(parent: &Path, name: &str) -> Result<(), StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let removed = rustix::fs::open(parent, flags, Mode::empty())
        .and_then(|open| belljar_jail::scratch::remove(&open, name));
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(StoreError::io(&parent.join(name))(errno.into())),
    }
}

pub(super) fn private_directory(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(StoreError::io(path))
}

fn give(path: &Path, ids: Ids) -> Result<(), StoreError> {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).map_err(StoreError::io(path))?;
    if rustix::process::geteuid().is_root() {
        let given = std::os::unix::fs::chown(path, Some(ids.uid), Some(ids.gid));
        given.map_err(StoreError::io(path))?;
    }
    Ok(())
}
