//! Formatted images that are copied for new disks: formatting takes tens of milliseconds, copying what is in an empty
//! image one or two.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use belljar_sys::spawn;
use rustix::fs::FallocateFlags;

use super::StoreError;
use super::copy::copy_data;
use super::disk::{Size, mount_image, private_directory, remove_tree};

/// Sizes that are kept ready.
const MOST_TEMPLATES: usize = 16;
const INODE_BYTES: u64 = 256;
const JOURNAL_BYTES: u64 = 4 << 20;
/// Below this a journal would be most of the disk; after a crash of the host such a disk is checked by nobody.
const LEAST_WITH_JOURNAL: u64 = 8 << 20;
/// Directories of the first upper and of its overlay, which are ours and not the sandbox's.
const OWN_ENTRIES: u64 = 12;
/// What the file system needs for itself, beyond the share of one in 64 that is added: maps, groups, its root.
const OVERHEAD_BYTES: u64 = 1 << 20;
/// Kept back for our own directories when the sandbox has filled its disk: for about thirty sheets.
const RESERVE_BYTES: u64 = 2 << 20;
const RESERVE_INODES: u64 = 400;
/// What one more sheet needs of it.
const SHARE_BYTES: u64 = 64 << 10;
const SHARE_INODES: u64 = 12;
/// Unused inodes that formatting rounds up to; they are taken so that the limit is exact.
const MOST_SPARE_INODES: u64 = 4096;
/// Where e2fsprogs is: a server's PATH may lack the administrators' directories.
const MKFS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];

pub(super) fn is_possible() -> bool {
    rustix::process::geteuid().is_root()
        && Path::new("/dev/loop-control").exists()
        && mkfs().is_some()
}

fn mkfs() -> Option<&'static str> {
    MKFS.into_iter().find(|path| Path::new(path).exists())
}

/// Makes `target` an empty file system of this size.
pub(super) fn copy(templates: &Path, size: Size, target: &Path) -> Result<(), StoreError> {
    let template = templates.join(format!("ext4-{}-{}.img", size.bytes, size.inodes));
    if !template.exists() {
        make_room(templates)?;
        make(templates, size, &template)?;
    }
    let source = File::open(&template).map_err(StoreError::io(&template))?;
    let copied = File::create_new(target).and_then(|file| copy_data(&source, &file));
    copied.map_err(StoreError::io(target))
}

fn make_room(templates: &Path) -> Result<(), StoreError> {
    let found: Vec<_> =
        fs::read_dir(templates).and_then(Iterator::collect).map_err(StoreError::io(templates))?;
    if found.len() >= MOST_TEMPLATES {
        for old in found {
            fs::remove_file(old.path()).map_err(StoreError::io(&old.path()))?;
        }
    }
    Ok(())
}

fn make(templates: &Path, size: Size, template: &Path) -> Result<(), StoreError> {
    // Two sandboxes of a new size may be made at once.
    let name = format!(".making-{:?}", std::thread::current().id()).replace(['(', ')'], "");
    remove_tree(templates, &name)?;
    let stage = templates.join(&name);
    private_directory(&stage)?;
    let image = stage.join("image");
    format_image(&image, size).map_err(StoreError::io(&image))?;
    let mounted = stage.join("mounted");
    private_directory(&mounted)?;
    mount_image(&image, &mounted)?;
    let filled = fill(&mounted, size);
    let detached = belljar_sys::mount::detach(&mounted);
    filled.map_err(StoreError::io(&mounted))?;
    detached.map_err(|errno| StoreError::io(&mounted)(errno.into()))?;
    let synced = File::open(&image).and_then(|file| file.sync_all());
    synced.and_then(|()| fs::rename(&image, template)).map_err(StoreError::io(template))?;
    remove_tree(templates, &name)
}

fn format_image(image: &PathBuf, size: Size) -> io::Result<()> {
    let journal = size.bytes >= LEAST_WITH_JOURNAL;
    let block: u64 = if journal { 4096 } else { 1024 };
    let inodes = size.inodes + OWN_ENTRIES + RESERVE_INODES + 16; // ext4 keeps the first eleven for itself.
    let own = OVERHEAD_BYTES + RESERVE_BYTES + if journal { JOURNAL_BYTES } else { 0 };
    let total = size.bytes + size.bytes / 64 + inodes * INODE_BYTES + own;
    File::create_new(image)?.set_len(total.next_multiple_of(block))?;
    let features = if journal { "^resize_inode" } else { "^resize_inode,^has_journal" };
    let mut args: Vec<OsString> = vec!["-q".into(), "-F".into(), "-m".into(), "0".into()];
    args.extend(["-b".into(), block.to_string().into()]);
    args.extend(["-I".into(), INODE_BYTES.to_string().into()]);
    args.extend(["-N".into(), inodes.to_string().into(), "-O".into(), features.into()]);
    if journal {
        args.extend(["-J".into(), "size=4".into()]);
    }
    args.extend(["-E".into(), "lazy_itable_init=1,lazy_journal_init=1,nodiscard".into()]);
    args.push(image.into());
    let program = mkfs().ok_or(io::ErrorKind::NotFound)?;
    let done = spawn::output(program, &args)?;
    if done.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("{program}: {}", words.trim())))
}

/// Takes what is beyond the limit: a file system has the sizes that its format allows, a limit any.
fn fill(mounted: &Path, size: Size) -> io::Result<()> {
    let ballast = mounted.join("ballast");
    fs::remove_dir(mounted.join("lost+found"))?;
    fs::create_dir(&ballast)?;
    let space = File::create_new(ballast.join("space"))?;
    let free = rustix::fs::statvfs(mounted)?;
    let spare = free.f_ffree.saturating_sub(size.inodes + OWN_ENTRIES);
    for number in 0..spare.min(MOST_SPARE_INODES) {
        File::create_new(ballast.join(number.to_string()))?;
    }
    let free = rustix::fs::statvfs(mounted)?;
    let wanted = size.bytes.next_multiple_of(free.f_frsize) + OWN_ENTRIES * free.f_frsize;
    let surplus = (free.f_bavail * free.f_frsize).saturating_sub(wanted);
    if surplus > 0 {
        rustix::fs::fallocate(&space, FallocateFlags::empty(), 0, surplus)?;
    }
    Ok(rustix::fs::syncfs(&space)?)
}

/// Gives back a little of what was taken.
pub(super) fn release_reserve(files: &Path) -> Result<(), StoreError> {
    let ballast = files.join("ballast");
    let space = ballast.join("space");
    let release = || {
        let file = fs::OpenOptions::new().write(true).open(&space)?;
        file.set_len(file.metadata()?.len().saturating_sub(SHARE_BYTES))?;
        let inodes = fs::read_dir(&ballast)?.flatten().filter(|entry| entry.file_name() != "space");
        for entry in inodes.take(usize::try_from(SHARE_INODES).unwrap_or(0)) {
            fs::remove_file(entry.path())?;
        }
        Ok(())
    };
    release().map_err(StoreError::io(&ballast))
}
