//! Taking away files and whole trees, whatever their depth, while somebody may be moving them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use belljar_sys::Errno;
use rustix::fs::{AtFlags, Mode, RawDir, SeekFrom};

use super::place::{Links, Spot, open_directory};
use super::wire::{Answer, Fault, MAX_PATH_BYTES, Place};
use super::{Failed, Outcome};

/// Entries looked at for one question. What is left is asked for again, so that no question takes long.
const MAX_ENTRIES: u64 = 20_000;
/// Levels. A program that made so many knows how to take them away.
const MAX_DEPTH: usize = 200_000;
const READ_BYTES: usize = 16 << 10;

/// Takes away a file, an empty directory or, when told so, a tree. A link is taken away itself.
pub(super) fn remove(place: &Place, recursive: bool) -> Outcome<Answer> {
    let (above, name) = Spot::find(place)?.split()?;
    match take(&above, &name)? {
        Taken::Gone => Ok(Answer::Removed { entries: 1, more: false }),
        Taken::Full if !recursive => Err(Errno::NOTEMPTY.into()),
        Taken::Full => {
            let mut tree = Tree { levels: Vec::new(), removed: 0, looked: 0 };
            let more = !tree.clear(&above, name).map_err(|failed| tree.place(failed))?;
            Ok(Answer::Removed { entries: tree.removed, more })
        }
    }
}

enum Taken {
    Gone,
    /// A directory that holds something.
    Full,
}

fn take(at: impl AsFd, name: &[u8]) -> Outcome<Taken> {
    let errno = match rustix::fs::unlinkat(&at, name, AtFlags::empty()) {
        Ok(()) => return Ok(Taken::Gone),
        Err(errno) => errno,
    };
    if errno != Errno::ISDIR && errno != Errno::PERM {
        return Err(errno.into());
    }
    match rustix::fs::unlinkat(&at, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(Taken::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Taken::Full),
        // It is no directory, so the first answer was about something else.
        Err(Errno::NOTDIR) => Err(errno.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// The way down to where we are. Only the lowest directory is open: there may be many levels.
struct Tree {
    levels: Vec<Level>,
    removed: u64,
    looked: u64,
}

struct Level {
    name: Vec<u8>,
    id: (u64, u64),
}

enum Next {
    Empty,
    Down(Vec<u8>),
    /// Enough for one question.
    Pause,
}

impl Tree {
    /// Whether all of it is gone.
    fn clear(&mut self, above: &OwnedFd, name: Vec<u8>) -> Outcome<bool> {
        let mut at = self.descend(above, name)?;
        loop {
            match self.clear_level(&at)? {
                Next::Pause => return Ok(false),
                Next::Down(name) => at = self.descend(&at, name)?,
                Next::Empty => {
                    let Some(level) = self.levels.pop() else { return Ok(true) };
                    let up = self.ascend(&at)?;
                    match take(up.as_ref().unwrap_or(above), &level.name) {
                        Ok(Taken::Gone) => self.removed += 1,
                        // Somebody was quicker, one way or the other.
                        Ok(Taken::Full) => self.looked += 1,
                        Err(failed) if is(&failed, Errno::NOENT) => {}
                        Err(failed) => return Err(failed),
                    }
                    match up {
                        Some(up) => at = up,
                        None => return Ok(self.is_gone(above, &level.name)),
                    }
                }
            }
        }
    }

    /// Enters a directory, never through a link. One that is closed to its own owner is opened.
    fn descend(&mut self, at: &OwnedFd, name: Vec<u8>) -> Outcome<OwnedFd> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Fault::TooDeep {}.into());
        }
        let opened = match open_directory(at, &name, Links::Refuse) {
            Err(failed) if is(&failed, Errno::ACCESS) => {
                let mode = Mode::from_raw_mode(0o700);
                rustix::fs::chmodat(at, &*name, mode, AtFlags::empty())?;
                open_directory(at, &name, Links::Refuse)?
            }
            opened => opened?,
        };
        let id = id(&opened)?;
        self.levels.push(Level { name, id });
        Ok(opened)
    }

    /// The directory above, if it is the one that we came from: `None` at the top.
    fn ascend(&self, at: &OwnedFd) -> Outcome<Option<OwnedFd>> {
        let Some(expected) = self.levels.last() else { return Ok(None) };
        let up = open_directory(at, b"..", Links::Refuse)?;
        // Moved elsewhere meanwhile, `..` leads to what nobody asked us to clear.
        if id(&up)? == expected.id { Ok(Some(up)) } else { Err(Fault::Changed {}.into()) }
    }

    /// Takes away what can be taken away here at once.
    fn clear_level(&mut self, at: &OwnedFd) -> Outcome<Next> {
        let mut opened_up = false;
        loop {
            rustix::fs::seek(at, SeekFrom::Start(0))?;
            let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
            let mut entries = RawDir::new(at, &mut buffer);
            let mut seen = false;
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                seen = true;
                if self.looked >= MAX_ENTRIES {
                    return Ok(Next::Pause);
                }
                self.looked += 1;
                match take(at, name.to_bytes()) {
                    Ok(Taken::Gone) => self.removed += 1,
                    Ok(Taken::Full) => return Ok(Next::Down(name.to_bytes().to_vec())),
                    Err(failed) if is(&failed, Errno::NOENT) => {}
                    Err(failed) if is(&failed, Errno::ACCESS) && !opened_up => {
                        rustix::fs::fchmod(at, Mode::from_raw_mode(0o700))?;
                        opened_up = true;
                    }
                    Err(failed) => {
                        let at = name.to_bytes().to_vec();
                        return Err(Failed { at, ..failed });
                    }
                }
            }
            // A directory that shrinks while it is read may not show all at once.
            if !seen {
                return Ok(Next::Empty);
            }
        }
    }

    fn is_gone(&self, above: &OwnedFd, name: &[u8]) -> bool {
        let stat = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_err_and(|errno| errno == Errno::NOENT)
    }

    /// Says where it was, below the place that was named, as far as that can be said.
    fn place(&self, failed: Failed) -> Failed {
        let names = self.levels.iter().skip(1).map(|level| &*level.name);
        let mut at = names.chain([&*failed.at]).collect::<Vec<_>>().join(&b'/');
        at.truncate(MAX_PATH_BYTES);
        Failed { at, ..failed }
    }
}

fn id(directory: &OwnedFd) -> Outcome<(u64, u64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn is(failed: &Failed, errno: Errno) -> bool {
    failed.fault == Fault::Kernel { errno: errno.raw_os_error().unsigned_abs() }
}
