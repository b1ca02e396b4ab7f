//! The private directory on the host, for levels that have no root of their own.
//!
//! Removal treats the tree as hostile: by then its processes are dead, but names, modes and depth are
//! the program's choice. No symlink is followed and the depth does not matter.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use belljar_sys::{Errno, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags};

use crate::plan::{Identity, Scratch};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removed when dropped.
#[derive(Debug)]
pub(crate) struct Made {
    parent: OwnedFd,
    parent_path: PathBuf,
    name: String,
}

/// Makes the directory and what belongs in it, owned by the program's host id.
pub(crate) fn create(plan: &Scratch, identity: &Identity) -> Result<Made> {
    let parent = make_in_parent(plan)?;
    let made = Made { parent, parent_path: plan.parent.clone(), name: plan.name.clone() };
    let top = rustix::fs::openat(&made.parent, &plan.name, DIRECTORY, Mode::empty())?;
    for name in &plan.directories {
        rustix::fs::mkdirat(&top, name, Mode::RWXU)?;
        give(&top, name, identity)?;
    }
    give(&made.parent, &plan.name, identity)?;
    Ok(made)
}

/// Another engine's sweep may take the shared parent away while it is empty; so often in a row it does not.
const MAX_TRIES: usize = 100;

/// Makes the directory itself, which keeps the parent from being removed.
fn make_in_parent(plan: &Scratch) -> Result<OwnedFd> {
    for _ in 0..MAX_TRIES {
        let parent = match open_parent(&plan.parent) {
            Err(Errno::NOENT) => continue,
            result => result?,
        };
        match rustix::fs::mkdirat(&parent, &plan.name, Mode::RWXU) {
            Err(Errno::NOENT) => {}
            result => return result.map(|()| parent),
        }
    }
    Err(Errno::NOENT)
}

/// The directory that holds all scratch directories of this user: ours, or we do not use it.
fn open_parent(path: &PathBuf) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(CWD, path, Mode::RWXU | Mode::XGRP | Mode::XOTH) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let parent = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
    let stat = rustix::fs::fstat(&parent)?;
    let others_write = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && !others_write;
    // Somebody else made it first, to be able to swap what is inside.
    if ours { Ok(parent) } else { Err(Errno::PERM) }
}

fn give(at: &OwnedFd, name: &str, identity: &Identity) -> Result<()> {
    let Identity::Host { uid, gid } = *identity else {
        return Ok(());
    };
    let uid = rustix::process::Uid::from_raw(uid);
    let gid = rustix::process::Gid::from_raw(gid);
    rustix::fs::chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed now (a full disk has no such case, a dying disk has) is found by the
        // next sweep under the same name.
        remove(self.parent.as_fd(), &self.name).ok();
        // The last one out; as long as another run is in it, it is not empty.
        rustix::fs::unlinkat(CWD, &self.parent_path, AtFlags::REMOVEDIR).ok();
    }
}

/// Removes `name` and everything below it.
///
/// A directory's subdirectories are moved up beside it before it is removed, so the walk is never
/// deeper than one, whatever the program nested.
pub fn remove(parent: impl AsFd, name: &str) -> Result<()> {
    let top = open_for_removal(&parent, name)?;
    let mut moved = 0u64;
    loop {
        let mut found = false;
        for entry in entries(&top)? {
            found = true;
            if !is_directory(&top, &entry)? {
                rustix::fs::unlinkat(&top, &entry, AtFlags::empty())?;
                continue;
            }
            let directory = open_for_removal(&top, &entry)?;
            for inner in entries(&directory)? {
                if is_directory(&directory, &inner)? {
                    open_for_removal(&directory, &inner)?;
                    move_up(&directory, &inner, &top, &mut moved)?;
                } else {
                    rustix::fs::unlinkat(&directory, &inner, AtFlags::empty())?;
                }
            }
            rustix::fs::unlinkat(&top, &entry, AtFlags::REMOVEDIR)?;
        }
        if !found {
            break;
        }
    }
    rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)
}

/// Moves a directory to the top under a name that is free, whatever names the program made there.
fn move_up(from: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> Result<()> {
    loop {
        *moved += 1;
        let free = format!(".gone-{moved}");
        match rustix::fs::renameat_with(from, name, top, free, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            result => return result,
        }
    }
}

/// Opens a directory whatever mode the program gave it.
fn open_for_removal(at: impl AsFd, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd> {
    match rustix::fs::openat(&at, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        result => {
            let fd = result?;
            rustix::fs::fchmod(&fd, Mode::RWXU)?;
            return Ok(fd);
        }
    }
    rustix::fs::chmodat(&at, name, Mode::RWXU, AtFlags::empty())?;
    rustix::fs::openat(&at, name, DIRECTORY, Mode::empty())
}

fn is_directory(at: &OwnedFd, name: &CString) -> Result<bool> {
    let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn entries(directory: &OwnedFd) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_tree_is_removed_and_what_it_points_at_is_not() {
        let base = std::env::temp_dir().join(format!("belljar-scratch-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let outside = base.join("outside");
        std::fs::write(&outside, "kept").unwrap();
        let top = base.join("top");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::fs::create_dir_all(top.join(".gone-1/x/.gone-2")).unwrap();
        std::os::unix::fs::symlink(&outside, top.join("a/link")).unwrap();
        std::os::unix::fs::symlink(&base, top.join("dirlink")).unwrap();
        std::fs::write(top.join("a/b/c/file"), "x").unwrap();
        let mut deep = rustix::fs::open(&top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
            deep = rustix::fs::openat(&deep, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        rustix::fs::chmod(top.join("a/b"), Mode::empty()).unwrap();
        let parent = rustix::fs::open(&base, DIRECTORY, Mode::empty()).unwrap();
        remove(&parent, "top").unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
