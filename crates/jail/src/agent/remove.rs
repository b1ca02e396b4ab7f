//! Taking away files and whole trees, whatever their depth, while somebody may be moving them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_sys::Errno;
use rustix::fs::{AtFlags, Mode, RawDir, RenameFlags, SeekFrom};

use super::files::name_beside;
use super::place::{Links, Spot, open_directory};
use super::wire::{Answer, Fault, MAX_PATH_BYTES, Place};
use super::{Failed, Outcome};

/// Entries looked at for one question, and the time for it: a disk may be busy. What is left is asked for again.
const MAX_ENTRIES: u64 = 20_000;
const MAX_TIME: Duration = Duration::from_secs(2);
/// Levels that are open at once. What lies deeper is moved up first.
const MAX_OPEN: usize = 32;
const READ_BYTES: usize = 16 << 10;

/// Takes away a file, an empty directory or, when told so, a tree. A link is taken away itself.
pub(super) fn remove(place: &Place, recursive: bool) -> Outcome<Answer> {
    let (above, name) = Spot::find(place)?.split()?;
    match take(&above, &name)? {
        Taken::Gone => Ok(Answer::Removed { entries: 1, more: false }),
        Taken::Full if !recursive => Err(Errno::NOTEMPTY.into()),
        Taken::Full => {
            let mut tree =
                Tree { levels: Vec::new(), removed: 0, looked: 0, began: Instant::now() };
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

/// The way down to where we are, every directory of it open. `..` is never taken: it leads wherever somebody has moved a
/// directory to, and below a bind mount the kernel goes all the way up for it, again and again while others rename.
struct Tree {
    levels: Vec<Level>,
    removed: u64,
    looked: u64,
    began: Instant,
}

struct Level {
    name: Vec<u8>,
    directory: OwnedFd,
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
        let directory = enter(above, &name)?;
        self.levels.push(Level { name: name.clone(), directory });
        while let Some(level) = self.levels.pop() {
            let next = self.clear_level(&level.directory);
            self.levels.push(level);
            match next? {
                Next::Pause => return Ok(false),
                Next::Down(name) => self.descend(name)?,
                Next::Empty => self.ascend(above)?,
            }
        }
        let stat = rustix::fs::statat(above, &*name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(stat.is_err_and(|errno| errno == Errno::NOENT))
    }

    /// Enters a directory of the lowest level, or moves it up to the first one where it is met again.
    fn descend(&mut self, name: Vec<u8>) -> Outcome<()> {
        let (Some(top), Some(at)) = (self.levels.first(), self.levels.last()) else {
            return Ok(());
        };
        let room = self.levels.len() < MAX_OPEN;
        let entered = if room { enter(&at.directory, &name) } else { Err(Errno::MFILE.into()) };
        match entered {
            Ok(directory) => self.levels.push(Level { name, directory }),
            Err(failed) if is(&failed, Errno::MFILE) && self.levels.len() > 1 => {
                // Its `..` changes with its place, so it must be writable itself.
                let mode = Mode::from_raw_mode(0o700);
                rustix::fs::chmodat(&at.directory, &*name, mode, AtFlags::empty())?;
                let up = name_beside()?;
                let flags = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(&at.directory, &*name, &top.directory, &*up, flags)?;
            }
            // Somebody was quicker.
            Err(failed) if is(&failed, Errno::NOENT) => {}
            Err(failed) => return Err(failed),
        }
        Ok(())
    }

    /// Leaves the lowest level, which is empty, and takes it away.
    fn ascend(&mut self, above: &OwnedFd) -> Outcome<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let up = self.levels.last().map_or(above, |level| &level.directory);
        match take(up, &level.name) {
            Ok(Taken::Gone) => self.removed += 1,
            // Filled again: it is met again, or was the first one and is asked for again.
            Ok(Taken::Full) => self.looked += 1,
            Err(failed) if is(&failed, Errno::NOENT) => {}
            Err(failed) => return Err(failed),
        }
        Ok(())
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
                if self.looked >= MAX_ENTRIES || self.began.elapsed() > MAX_TIME {
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

    /// Says where it was, below the place that was named, as far as that can be said.
    fn place(&self, failed: Failed) -> Failed {
        let names = self.levels.iter().skip(1).map(|level| &*level.name);
        let mut at = names.chain([&*failed.at]).collect::<Vec<_>>().join(&b'/');
        at.truncate(MAX_PATH_BYTES);
        Failed { at, ..failed }
    }
}

/// Opens a directory, never through a link. One that is closed to its own owner is opened up.
fn enter(at: &OwnedFd, name: &[u8]) -> Outcome<OwnedFd> {
    match open_directory(at, name, Links::Refuse) {
        Err(failed) if is(&failed, Errno::ACCESS) => {
            rustix::fs::chmodat(at, name, Mode::from_raw_mode(0o700), AtFlags::empty())?;
            open_directory(at, name, Links::Refuse)
        }
        opened => opened,
    }
}

fn is(failed: &Failed, errno: Errno) -> bool {
    failed.fault == Fault::Kernel { errno: errno.raw_os_error().unsigned_abs() }
}
