//! Telling what changes below a directory, by inotify(7).

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use belljar_sys::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir};

use super::Outcome;
use super::acts::meta;
use super::place::Spot;
use super::wire::{Bytes, Event, MAX_PATH_BYTES, Meta, Place, What};

/// Directories that one watch follows; the kernel has a limit of its own on all of a user's.
const MAX_DIRECTORIES: usize = 4096;
/// Events in one answer.
const MAX_EVENTS: usize = 256;
/// The longest wait, whatever was asked: an agent that waits looks dead after a while.
const MAX_WAIT_MS: u32 = 10_000;
const READ_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Watch {
    inotify: OwnedFd,
    /// Absolute, or from the root.
    top: Vec<u8>,
    recursive: bool,
    /// Each directory's path below `top`.
    directories: BTreeMap<i32, Vec<u8>>,
    /// What was seen and not yet told.
    pending: VecDeque<Event>,
    /// Set once more is to be watched than can be, and told once.
    overflowed: bool,
}

impl Watch {
    pub(super) fn begin(place: &Place, recursive: bool) -> Outcome<(Self, Meta)> {
        if place.base.is_some() {
            return Err(Errno::INVAL.into());
        }
        let top = Spot::find(place)?.name;
        let stat = rustix::fs::statat(CWD, &*top, AtFlags::empty())?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let number = inotify::add_watch(&inotify, &*top, wanted())?;
        let mut watch = Self {
            inotify,
            top,
            recursive: recursive && is_directory,
            directories: BTreeMap::from([(number, Vec::new())]),
            pending: VecDeque::new(),
            overflowed: false,
        };
        if watch.recursive {
            watch.follow_below(Vec::new(), Telling::Nothing);
        }
        Ok((watch, meta(&stat)))
    }

    /// What happened, or nothing when the time is up or somebody else has something to say on `socket`.
    pub(super) fn events(&mut self, wait_ms: u32, socket: &OwnedFd) -> Outcome<Vec<Event>> {
        self.read()?;
        if self.pending.is_empty() && wait_ms > 0 {
            let wait_ms = wait_ms.min(MAX_WAIT_MS);
            let timeout = Timespec {
                tv_sec: i64::from(wait_ms / 1000),
                tv_nsec: i64::from(wait_ms % 1000) * 1_000_000,
            };
            let mut waited =
                [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
            match poll(&mut waited, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            self.read()?;
        }
        let count = self.pending.len().min(MAX_EVENTS);
        Ok(self.pending.drain(..count).collect())
    }

    fn read(&mut self) -> Outcome<()> {
        // The kernel keeps what comes meanwhile, up to its own bound, and tells when that was not enough.
        while self.pending.len() < MAX_EVENTS {
            let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
            let mut seen = Vec::new();
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
                        seen.push((event.wd(), event.events(), name.to_vec()));
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
            if seen.is_empty() {
                return Ok(());
            }
            for (number, flags, name) in seen {
                self.take(number, flags, &name);
            }
        }
        Ok(())
    }

    fn take(&mut self, number: i32, flags: ReadFlags, name: &[u8]) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.tell(What::Overflow, Vec::new(), false);
        }
        let Some(above) = self.directories.get(&number).cloned() else { return };
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&number);
            if above.is_empty() {
                self.tell(What::Gone, above, true);
            }
            return;
        }
        let path = join(&above, name);
        let directory = flags.contains(ReadFlags::ISDIR);
        // Of a directory below, its own watch says again what that of the one above said.
        if name.is_empty() && !above.is_empty() {
            return;
        }
        let told = [
            (ReadFlags::CREATE, What::Created),
            (ReadFlags::MOVED_TO, What::MovedTo),
            (ReadFlags::MODIFY, What::Written),
            (ReadFlags::CLOSE_WRITE, What::Written),
            (ReadFlags::ATTRIB, What::Metadata),
            (ReadFlags::DELETE, What::Removed),
            (ReadFlags::MOVED_FROM, What::MovedFrom),
            (ReadFlags::DELETE_SELF, What::Removed),
            (ReadFlags::MOVE_SELF, What::MovedFrom),
        ];
        let Some((_, what)) = told.into_iter().find(|(flag, _)| flags.contains(*flag)) else {
            return;
        };
        self.tell(what, path.clone(), directory);
        if self.recursive && directory {
            match what {
                What::Created | What::MovedTo => self.follow(path),
                What::MovedFrom => self.forget(&path),
                What::Written | What::Metadata | What::Removed | What::Overflow | What::Gone => {}
            }
        }
    }

    /// The same twice in a row is said once.
    fn tell(&mut self, what: What, path: Vec<u8>, directory: bool) {
        let event = Event { what, path: Bytes(path), directory };
        if self.pending.back() != Some(&event) {
            self.pending.push_back(event);
        }
    }

    /// Watches a new directory. What was made in it before that is told too.
    fn follow(&mut self, path: Vec<u8>) {
        if self.add(&path) {
            self.follow_below(path, Telling::Created);
        }
    }

    fn add(&mut self, path: &[u8]) -> bool {
        if self.directories.len() >= MAX_DIRECTORIES {
            return self.give_up();
        }
        let full = join(&self.top, path);
        if full.len() > MAX_PATH_BYTES {
            return self.give_up();
        }
        let flags = wanted() | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(&self.inotify, &*full, flags) {
            Ok(number) => self.directories.insert(number, path.to_vec()).is_none(),
            Err(Errno::NOSPC | Errno::NOMEM) => self.give_up(),
            // Gone again, or never a directory: its end was told or will be.
            Err(_) => false,
        }
    }

    fn give_up(&mut self) -> bool {
        if !std::mem::replace(&mut self.overflowed, true) {
            self.tell(What::Overflow, Vec::new(), false);
        }
        false
    }

    fn follow_below(&mut self, first: Vec<u8>, telling: Telling) {
        let mut left = vec![first];
        while let Some(path) = left.pop() {
            for (name, is_directory) in self.entries(&path) {
                let below = join(&path, &name);
                if telling == Telling::Created {
                    self.tell(What::Created, below.clone(), is_directory);
                }
                if is_directory && self.add(&below) {
                    left.push(below);
                }
            }
        }
    }

    /// A bounded look into a directory; what cannot be looked into is empty.
    fn entries(&self, path: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let full = join(&self.top, path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The top itself may be a link that was followed.
        let flags = if path.is_empty() { flags - OFlags::NOFOLLOW } else { flags };
        let Ok(directory) = rustix::fs::openat(CWD, &*full, flags, Mode::empty()) else {
            return Vec::new();
        };
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut read = RawDir::new(&directory, &mut buffer);
        let mut all = Vec::new();
        while let Some(Ok(entry)) = read.next() {
            let name = entry.file_name();
            if name != c"." && name != c".." && all.len() < MAX_DIRECTORIES {
                all.push((name.to_bytes().to_vec(), entry.file_type() == FileType::Directory));
            }
        }
        all
    }

    /// What was moved away may be watched again where it went.
    fn forget(&mut self, path: &[u8]) {
        let below = join(path, b"");
        let gone = |other: &[u8]| other == path || other.starts_with(&below);
        let numbers: Vec<i32> = self
            .directories
            .iter()
            .filter(|(_, other)| gone(other))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.directories.remove(&number);
            // It may have ended by itself.
            inotify::remove_watch(&self.inotify, number).ok();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Nothing,
    Created,
}

fn wanted() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::ATTRIB
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
}

fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}
