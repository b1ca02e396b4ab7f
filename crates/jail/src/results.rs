//! Making what a program left in its workspace readable to the caller who asked for it. Init calls this
//! when nothing else lives in the sandbox any more.

use std::os::fd::{AsFd, OwnedFd};

use belljar_sys::Result;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// Entries opened up; the engine copies no more of them.
const MAX_ENTRIES: usize = 100_000;
/// Nesting of the directories that the engine looks into.
const MAX_DEPTH: usize = 64;

const READABLE: u32 = 0o444;
/// The owner's own bits too: a program may have closed a directory to itself.
const SEARCHABLE: u32 = 0o755;

/// The workspace on this disk, with every file and directory in it readable by all: at strict the caller
/// is another user than the program was. What cannot be opened up is left; the engine says so then.
pub(crate) fn open_workspace(disk: &OwnedFd) -> Result<OwnedFd> {
    // A program that closed its own directory must not make its run look like a fault of ours.
    let workspace = enter(disk, c"workspace", 0)?;
    let mut left = MAX_ENTRIES;
    open_up(&workspace, 0, &mut left);
    Ok(workspace)
}

/// Names are looked up twice here, once to see what they are and once to change it: nobody is left who
/// could put something else in their place.
fn open_up(directory: &OwnedFd, depth: usize, left: &mut usize) {
    let entries = Dir::read_from(directory).into_iter().flatten();
    for entry in entries.map_while(|entry| entry.ok()) {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if *left == 0 {
            return;
        }
        *left -= 1;
        let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_mode & READABLE != READABLE => {
                let mode = Mode::from_raw_mode(stat.st_mode | READABLE);
                // One that stays closed is named by the engine as not copied.
                rustix::fs::chmodat(directory, name, mode, AtFlags::empty()).ok();
            }
            FileType::Directory if depth <= MAX_DEPTH => {
                if let Ok(inner) = enter(directory, name, stat.st_mode) {
                    open_up(&inner, depth + 1, left);
                }
            }
            FileType::RegularFile
            | FileType::Directory
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
    }
}

/// Opens a directory to all, and then for us.
fn enter(at: impl AsFd, name: &std::ffi::CStr, mode: u32) -> Result<OwnedFd> {
    if mode & SEARCHABLE != SEARCHABLE {
        let mode = Mode::from_raw_mode(mode | SEARCHABLE);
        rustix::fs::chmodat(at.as_fd(), name, mode, AtFlags::empty())?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn files_and_directories_are_opened_up_and_links_left_alone() {
        let base = std::env::temp_dir().join(format!("bj-results-{}", std::process::id()));
        let top = base.join("workspace");
        fs::create_dir_all(top.join("a/b")).unwrap();
        let outside = base.join("outside");
        let close = |path: &std::path::Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, mode) in [(&outside, 0o600), (&top.join("a/b/run"), 0o700)] {
            fs::write(path, "x").unwrap();
            close(path, mode);
        }
        symlink(&outside, top.join("link")).unwrap();
        for path in [top.join("a/b"), top.join("a"), top.clone()] {
            close(&path, 0o000);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let disk = rustix::fs::open(&base, flags, Mode::empty()).unwrap();
        open_workspace(&disk).unwrap();
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&top.join("a/b")), 0o755);
        assert_eq!(mode(&top.join("a/b/run")), 0o744, "who may execute it is as it was");
        assert_eq!(mode(&outside), 0o600);
        fs::remove_dir_all(&base).unwrap();
    }
}
