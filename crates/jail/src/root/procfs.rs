//! The sandbox's /proc: what a procfs tells of the host and its kernel is covered, and some covers tell when they are
//! opened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use belljar_sys::mount::{READ_ONLY, Reach, set_attributes};
use belljar_sys::{Errno, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;

use super::{attach, clone_of, make_directories, make_parent, new_file, new_mount};
use crate::plan::Proc;
use crate::tripwire::Tripwires;

/// What stands over the covered parts of /proc: nothing, as a file and as a directory.
const COVERS: [&str; 2] = [".belljar/empty", ".belljar/none"];
/// And over those that are watched, each by its own name.
const WATCHED_COVERS: &str = ".belljar/watched";

/// A fresh procfs of our pid namespace: read-only as a whole, with the kernel's secrets covered by what is kept in
/// `corner`.
pub(crate) fn add_proc(
    root: BorrowedFd<'_>,
    corner: BorrowedFd<'_>,
    plan: &Proc,
) -> Result<(OwnedFd, Tripwires)> {
    let options: &[(&str, &str)] =
        if plan.only_processes { &[("subset", "pid"), ("hidepid", "invisible")] } else { &[] };
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let proc = new_mount("proc", options, flags)?;
    if plan.absent {
        return Ok((proc, Tripwires::default()));
    }
    make_directories(root, Path::new("/proc"))?;
    attach(proc.as_fd(), root, Path::new("proc"))?;
    if !plan.masked.is_empty() {
        add_covers(corner)?;
    }
    let mut covers = [None, None];
    for name in plan.masked.iter().filter(|name| !plan.watched.contains(name)) {
        cover(corner, proc.as_fd(), name, &mut covers)?;
    }
    let tripwires = cover_watched(corner, proc.as_fd(), &plan.watched)?;
    Ok((proc, tripwires))
}

/// Covers each of these by a file of its own, which can be told from the others.
fn cover_watched(
    corner: BorrowedFd<'_>,
    proc: BorrowedFd<'_>,
    watched: &[String],
) -> Result<Tripwires> {
    let mut tripwires = Tripwires::default();
    if watched.is_empty() {
        return Ok(tripwires);
    }
    let place = Path::new(WATCHED_COVERS);
    make_directories(corner, place)?;
    for name in watched {
        if name.contains('/') {
            make_parent(corner, &place.join(name))?;
        }
        new_file(corner, &place.join(name), Mode::from_raw_mode(0o444))?;
    }
    // Read-only as a whole, so that each of its clones is without another call.
    seal(corner, WATCHED_COVERS)?;
    for (number, name) in watched.iter().enumerate() {
        let path = format!("{WATCHED_COVERS}/{name}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match attach(clone_of(corner, &path)?.as_fd(), proc, Path::new(name)) {
            Ok(()) => {
                tripwires.add(number, rustix::fs::openat(corner, &path, flags, Mode::empty())?);
            }
            Err(Errno::NOENT) => {} // this kernel has none, and there is nothing to cover
            Err(errno) => return Err(errno),
        }
    }
    Ok(tripwires)
}

/// Covers one entry, by a file or, if it turns out to be one, by a directory. A cover that found nothing
/// to cover is kept for the next.
fn cover(
    root: BorrowedFd<'_>,
    proc: BorrowedFd<'_>,
    name: &str,
    covers: &mut [Option<OwnedFd>; 2],
) -> Result<()> {
    for (kind, kept) in COVERS.iter().zip(covers) {
        let clone = match kept.take() {
            Some(clone) => clone,
            None => clone_of(root, kind)?,
        };
        match attach(clone.as_fd(), proc, Path::new(name)) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {
                *kept = Some(clone);
                return Ok(());
            }
            // Not of its kind; which of the two it is called depends on the kernel.
            Err(Errno::NOTDIR | Errno::INVAL) => *kept = Some(clone),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::INVAL)
}

/// An empty file and an empty directory that stand for what is covered. Each is a read-only mount of
/// its own, so that its clones are read-only without another call.
fn add_covers(root: BorrowedFd<'_>) -> Result<()> {
    let [file, directory] = COVERS;
    make_parent(root, Path::new(file))?;
    new_file(root, Path::new(file), Mode::from_raw_mode(0o444))?;
    make_directories(root, Path::new(directory))?;
    COVERS.iter().try_for_each(|name| seal(root, name))
}

/// Makes an entry a read-only mount of its own.
fn seal(at: BorrowedFd<'_>, name: &str) -> Result<()> {
    let cover = clone_of(at, name)?;
    set_attributes(&cover, READ_ONLY, Reach::This)?;
    attach(cover.as_fd(), at, Path::new(name))
}
