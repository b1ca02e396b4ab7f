//! How much a living sandbox has written: asked of its file system where it has one of its own, or measured.
//!
//! Measuring looks at every entry of the uppers, so it is done in slices, and only when something ran. What it meets
//! was made by programs: nothing is followed, and depth has a bound.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use belljar_sys::Result;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use super::talk::Over;
use crate::plan::{Bound, Root};
use crate::report::Disk;

/// One slice of measuring: others wait meanwhile.
const SLICE: Duration = Duration::from_millis(2);
/// Between the end of one measuring and the begin of the next, where nothing ran or looking takes long.
const PAUSE: Duration = Duration::from_millis(250);
/// The same where something was written and looking is quick: whoever makes many files is found while he does.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// So much longer than it took is not looked again: a fifth of a core at most.
const REST: u32 = 4;
/// CPU time that must have been used since: less writes next to nothing.
const ACTIVITY_US: u64 = 2000;
/// One look at the end of an exec, which others wait for.
const AT_END: Duration = Duration::from_millis(500);
/// No kernel makes a file in less, nor writes more in a nanosecond.
const LEAST_NS_PER_INODE: u64 = 1000;
const MOST_BYTES_PER_NS: u64 = 32;
/// Directories in directories; deeper is over the bound, whatever is in there.
const MAX_DEPTH: usize = 256;
/// Free space below this is none: a file system gives its last blocks to itself.
const NOTHING_FREE: u64 = 64 << 10;

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub bytes: u64,
    pub inodes: u64,
}

#[derive(Debug)]
pub(crate) struct Gauge {
    bound: Option<Bound>,
    uppers: Vec<PathBuf>,
    /// Of the last measuring that was finished.
    pub known: Option<Used>,
    walk: Option<Walk>,
    next: Instant,
    /// What the present measuring has taken so far.
    spent: Duration,
    cpu_us: u64,
    /// What it may grow to: the bound, or what was there when something was last ended for it. So what only removes
    /// files is let be.
    ceiling: Used,
}

/// Opens the places that the sandbox writes to, and lets the plan name them by what was opened: the host's view of a
/// disk may go while it is used.
pub(crate) fn hold(root: &mut Root) -> Result<Vec<OwnedFd>> {
    let mut held = Vec::new();
    let mut open = |path: &mut PathBuf| -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = rustix::fs::open(&*path, flags, Mode::empty())?;
        // With the dot it is the directory, not a link to it.
        *path = format!("/proc/self/fd/{}/.", place.as_raw_fd()).into();
        held.push(place);
        Ok(())
    };
    root.trees.iter_mut().try_for_each(|tree| open(&mut tree.upper))?;
    if let Some(Bound::FileSystem { mounted, .. }) = &mut root.bound {
        open(mounted)?;
    }
    Ok(held)
}

impl Gauge {
    pub(crate) fn new(root: &Root) -> Self {
        let ceiling = match root.bound {
            Some(Bound::Measured { bytes, inodes } | Bound::FileSystem { bytes, inodes, .. }) => {
                Used { bytes, inodes }
            }
            None => Used { bytes: u64::MAX, inodes: u64::MAX },
        };
        Self {
            bound: root.bound.clone(),
            uppers: root.trees.iter().map(|tree| tree.upper.clone()).collect(),
            known: None,
            walk: None,
            next: Instant::now(),
            spent: Duration::ZERO,
            cpu_us: 0,
            ceiling,
        }
    }

    fn is_measured(&self) -> bool {
        matches!(self.bound, Some(Bound::Measured { .. }))
    }

    /// When to look again, while something runs.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        if !self.is_measured() {
            return None;
        }
        match self.walk {
            Some(_) => Some(Duration::ZERO),
            None => Some(self.next.saturating_duration_since(Instant::now())),
        }
    }

    /// Something has begun: it is not waited as long as if nothing had run.
    pub(crate) fn wake(&mut self) {
        self.next = self.next.min(Instant::now() + SHORT_PAUSE);
    }

    /// Goes on measuring, or begins if it is time and something ran; says what was outgrown, once it is known.
    pub(crate) fn look(&mut self, cpu_us: Option<u64>) -> Option<Over> {
        if !self.is_measured() {
            return None;
        }
        if self.walk.is_none() {
            if Instant::now() < self.next {
                return None;
            }
            self.next = Instant::now() + PAUSE;
            // Without a count of CPU time it is measured every time.
            let idle = cpu_us.is_some_and(|now| now.saturating_sub(self.cpu_us) < ACTIVITY_US);
            if idle && self.known.is_some() {
                return None;
            }
            self.cpu_us = cpu_us.unwrap_or(0);
            self.walk = Some(Walk::begin(&self.uppers));
        }
        let walk = self.walk.as_mut()?;
        let begun = Instant::now();
        let all = walk.go_on(begun + SLICE, self.ceiling);
        self.spent += begun.elapsed();
        if !all {
            return None;
        }
        let (used, too_deep) = (walk.used, walk.too_deep);
        self.walk = None;
        let spent = std::mem::take(&mut self.spent);
        self.next = Instant::now() + (spent * REST).clamp(SHORT_PAUSE, PAUSE);
        self.known = Some(used);
        self.judge(used, too_deep)
    }

    /// Looks once more when an exec has ended, if it could have outgrown the bound since the last look: whoever fills a disk
    /// more quickly than it is measured is told so all the same.
    pub(crate) fn look_at_end(&mut self, cpu_us: Option<u64>) -> Option<Over> {
        if !self.is_measured() || !self.may_be_over(cpu_us) {
            return None;
        }
        let mut walk = Walk::begin(&self.uppers);
        // To its end, so that it is known what is there: what only removes some of it is let be.
        let all = walk.go_on(Instant::now() + AT_END, Used { bytes: u64::MAX, inodes: u64::MAX });
        let over = walk.used.bytes > self.ceiling.bytes || walk.used.inodes > self.ceiling.inodes;
        if !all && !over {
            return None; // too much for one look: the next ones go on
        }
        (self.walk, self.cpu_us, self.known) = (None, cpu_us.unwrap_or(0), Some(walk.used));
        self.next = Instant::now() + PAUSE;
        self.judge(walk.used, walk.too_deep)
    }

    /// Whether so much CPU time was used since the last look as it takes to fill what was left then.
    fn may_be_over(&self, cpu_us: Option<u64>) -> bool {
        let (Some(known), Some(cpu_us)) = (self.known, cpu_us) else {
            return true;
        };
        let used_ns = cpu_us.saturating_sub(self.cpu_us).saturating_mul(1000);
        let inodes = self.ceiling.inodes.saturating_sub(known.inodes);
        let bytes = self.ceiling.bytes.saturating_sub(known.bytes);
        used_ns >= inodes.saturating_mul(LEAST_NS_PER_INODE) || used_ns >= bytes / MOST_BYTES_PER_NS
    }

    fn judge(&mut self, used: Used, too_deep: bool) -> Option<Over> {
        let Some(Bound::Measured { bytes, inodes }) = self.bound else {
            return None;
        };
        let over = if used.bytes > self.ceiling.bytes {
            Some(Over::Bytes { used: used.bytes })
        } else if used.inodes > self.ceiling.inodes || too_deep {
            Some(Over::Inodes { used: used.inodes })
        } else {
            None
        };
        self.ceiling = Used { bytes: used.bytes.max(bytes), inodes: used.inodes.max(inodes) };
        over
    }

    /// What is used now, as well as it is known.
    pub(crate) fn usage(&mut self) -> Option<Used> {
        if let Some(Bound::FileSystem { .. }) = self.bound {
            return self
                .file_system()
                .map(|disk| Used { bytes: disk.bytes_used, inodes: disk.inodes_used });
        }
        if self.known.is_none() {
            let mut walk = Walk::begin(&self.uppers);
            walk.go_on(Instant::now() + 50 * SLICE, self.ceiling);
            return Some(walk.used);
        }
        self.known
    }

    /// The file system of its own, if it has one.
    pub(crate) fn file_system(&self) -> Option<Disk> {
        let Some(Bound::FileSystem { mounted, bytes, inodes }) = &self.bound else {
            return None;
        };
        let all = rustix::fs::statvfs(mounted).ok()?;
        let free = all.f_bavail * all.f_frsize;
        // Not what the file system takes for itself.
        Some(Disk {
            bytes_used: bytes.saturating_sub(free),
            bytes_free: if free < NOTHING_FREE { 0 } else { free },
            inodes_used: inodes.saturating_sub(all.f_ffree),
            inodes_free: all.f_ffree,
            largest_file_bytes: 0,
        })
    }
}

/// A walk through the uppers that can be interrupted.
#[derive(Debug)]
struct Walk {
    waiting: Vec<PathBuf>,
    stack: Vec<(OwnedFd, Dir)>,
    used: Used,
    too_deep: bool,
}

impl Walk {
    fn begin(uppers: &[PathBuf]) -> Self {
        Self { waiting: uppers.to_vec(), stack: Vec::new(), used: Used::default(), too_deep: false }
    }

    /// Says whether it has seen all, or enough.
    fn go_on(&mut self, until: Instant, most: Used) -> bool {
        loop {
            // Some entries between two looks at the clock.
            for _ in 0..64 {
                if self.used.bytes > most.bytes || self.used.inodes > most.inodes || self.too_deep {
                    return true;
                }
                if !self.step() {
                    return true;
                }
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    /// Looks at one entry; `false` when there is none left.
    fn step(&mut self) -> bool {
        let Some((directory, entries)) = self.stack.last_mut() else {
            let Some(next) = self.waiting.pop() else {
                return false;
            };
            if let Ok(opened) = open_directory(CWD, next.as_path()) {
                self.stack.push(opened);
            }
            return true;
        };
        let Some(Ok(entry)) = entries.read() else {
            self.stack.pop();
            return true;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return true;
        }
        let Ok(stat) = rustix::fs::statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return true; // gone meanwhile
        };
        self.used.inodes += 1;
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        // A file with several names is counted once for each: the bound is met sooner, never later.
        self.used.bytes = self.used.bytes.saturating_add(bytes);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            if self.stack.len() >= MAX_DEPTH {
                self.too_deep = true;
            } else if let Some((directory, _)) = self.stack.last()
                && let Ok(opened) = open_directory(directory, name)
            {
                self.stack.push(opened);
            }
        }
        true
    }
}

/// Opens a directory though its owner closed it to itself: it would hide what is in there. It is closed again at once.
fn open_directory(
    at: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg + Copy,
) -> Result<(OwnedFd, Dir)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(&at, name, flags, Mode::empty()) {
        Err(belljar_sys::Errno::ACCESS) => {
            let before = rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode & 0o7777;
            let open = Mode::from_raw_mode(before | 0o700);
            rustix::fs::chmodat(&at, name, open, AtFlags::empty())?;
            let opened = rustix::fs::openat(&at, name, flags, Mode::empty());
            rustix::fs::chmodat(&at, name, Mode::from_raw_mode(before), AtFlags::empty())?;
            opened?
        }
        result => result?,
    };
    let entries = Dir::read_from(&opened)?;
    Ok((opened, entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn measure(path: &std::path::Path) -> Walk {
        let mut walk = Walk::begin(&[path.to_owned()]);
        let most = Used { bytes: u64::MAX, inodes: u64::MAX };
        assert!(walk.go_on(Instant::now() + Duration::from_secs(60), most));
        walk
    }

    #[test]
    fn what_is_hidden_or_linked_is_counted_as_it_should_be() {
        let top = std::env::temp_dir().join(format!("bj-gauge-{}", std::process::id()));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", top.join("link")).unwrap();
        fs::set_permissions(top.join("a"), fs::Permissions::from_mode(0o0)).unwrap();
        let walk = measure(&top);
        assert_eq!(walk.used.inodes, 4);
        assert!((100_000..200_000).contains(&walk.used.bytes), "{walk:?}");
        assert_eq!(fs::metadata(top.join("a")).unwrap().permissions().mode() & 0o777, 0);
        fs::set_permissions(top.join("a"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn what_is_too_deep_is_over() {
        let top = std::env::temp_dir().join(format!("bj-deep-{}", std::process::id()));
        let mut deep = top.clone();
        (0..MAX_DEPTH + 4).for_each(|_| deep.push("d"));
        fs::create_dir_all(&deep).unwrap();
        assert!(measure(&top).too_deep);
        fs::remove_dir_all(&top).unwrap();
    }
}
