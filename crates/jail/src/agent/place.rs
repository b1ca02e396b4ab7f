//! From a place that was named to a directory and a name in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use super::Outcome;
use super::wire::{MAX_PATH_BYTES, Place};

/// As many links as the kernel itself follows in one path.
const MAX_LINKS: usize = 40;
/// Components below a base. What is deeper is reached by a base that is.
const MAX_COMPONENTS: usize = 1024;

/// Where a call is pointed at.
#[derive(Debug)]
pub(super) struct Spot {
    /// `None`: the root, which is the working directory.
    directory: Option<OwnedFd>,
    pub name: Vec<u8>,
    /// No link may be followed.
    pub strict: bool,
}

impl Spot {
    /// Finds the directory that a place below a base is in; links on the way there are `ELOOP`.
    pub(super) fn find(place: &Place) -> Outcome<Self> {
        let path = checked(&place.path.0)?;
        let Some(base) = &place.base else {
            let name = if path.is_empty() { b"." } else { path };
            return Ok(Self { directory: None, name: name.to_vec(), strict: false });
        };
        let base = checked(&base.0)?;
        let mut at = open_directory(CWD, if base.is_empty() { b"." } else { base }, Links::Follow)?;
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut depth = 0;
        while let Some(name) = names.next() {
            depth += 1;
            if name == b".." || depth > MAX_COMPONENTS {
                return Err(Errno::INVAL.into());
            }
            if names.peek().is_none() {
                return Ok(Self { directory: Some(at), name: name.to_vec(), strict: true });
            }
            at = open_directory(&at, name, Links::Refuse)?;
        }
        Ok(Self { directory: Some(at), name: b".".to_vec(), strict: true })
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, |directory| directory.as_fd())
    }

    pub(super) fn no_follow(&self) -> OFlags {
        if self.strict { OFlags::NOFOLLOW } else { OFlags::empty() }
    }

    pub(super) fn links(&self) -> Links {
        if self.strict { Links::Refuse } else { Links::Follow }
    }

    /// The directory that holds it, opened, and its last name. `EISDIR` for what has none: the root, `.`, `..`.
    pub(super) fn split(&self) -> Outcome<(OwnedFd, Vec<u8>)> {
        let (above, name) = split(&self.name);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Errno::ISDIR.into());
        }
        let above = open_directory(self.directory(), above, self.links())?;
        Ok((above, name.to_vec()))
    }

    /// Follows the link that a path ends in, and the one behind it, as opening it would.
    pub(super) fn follow_last(mut self) -> Outcome<Self> {
        if self.strict {
            return Ok(self);
        }
        for _ in 0..MAX_LINKS {
            let target = match rustix::fs::readlinkat(CWD, &*self.name, Vec::new()) {
                Ok(target) => target.into_bytes(),
                // Not a link, or nothing yet; what else is wrong with it shows when it is used.
                Err(_) => return Ok(self),
            };
            self.name = if target.starts_with(b"/") {
                target
            } else {
                [split(&self.name).0, b"/", &target].concat()
            };
            checked(&self.name)?;
        }
        Err(Errno::LOOP.into())
    }
}

/// What is above, and the last name; slashes at the end do not count.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    match path.iter().rposition(|byte| *byte == b'/') {
        None => (b".", path),
        Some(0) => (b"/", &path[1..]),
        Some(slash) => (&path[..slash], &path[slash + 1..]),
    }
}

fn checked(path: &[u8]) -> Outcome<&[u8]> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Errno::NAMETOOLONG.into());
    }
    if path.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok(path)
}

/// What to do with a link where a directory should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Follow,
    Refuse,
}

/// Opens a directory to read it, and to bring it to the disk.
pub(super) fn open_directory(at: impl AsFd, name: &[u8], links: Links) -> Outcome<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let opened = rustix::io::retry_on_intr(|| rustix::fs::openat(&at, name, flags, Mode::empty()));
    let errno = match opened {
        Ok(directory) => return Ok(directory),
        Err(errno) => errno,
    };
    // The kernel says ENOTDIR of a link too; whoever is refused should know why.
    if errno == Errno::NOTDIR && links == Links::Refuse {
        let stat = rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            return Err(Errno::LOOP.into());
        }
    }
    Err(errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_at_their_last_name() {
        for (path, above, name) in [
            ("/a/b", "/a", "b"),
            ("/a/b//", "/a", "b"),
            ("/a", "/", "a"),
            ("a", ".", "a"),
            ("/", ".", ""),
            ("a/..", "a", ".."),
        ] {
            assert_eq!(split(path.as_bytes()), (above.as_bytes(), name.as_bytes()), "{path}");
        }
    }
}
