//! Tripwires: what stands over the kernel's secrets in /proc tells when somebody opens it.
//!
//! The filter cannot see paths, and to ask about each open would make all of them dear. A watch on an
//! inode costs only those who touch it. It does not say who: inotify has no process ids.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use belljar_sys::{Result, fd};
use rustix::fs::inotify;

use crate::notify::now_ms;
use crate::report::Message;
use crate::tried::Touched;

/// What one look reads; the rest waits for the next.
const READ_BYTES: usize = 4096;

/// The watches of one run. A user has few instances of inotify, so only a running program has one.
#[derive(Debug)]
pub(crate) struct Tripwires {
    instance: OwnedFd,
    /// What each watch is called, and how often it was touched.
    watches: Vec<(i32, String, u64)>,
}

impl Tripwires {
    /// Puts a watch on each cover. Where a user has no instance left there are none: a tripwire is no wall.
    pub(crate) fn set(names: &[String], covers: &[OwnedFd]) -> Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let instance = inotify::init(flags)?;
        let mut watches = Vec::with_capacity(covers.len());
        for (name, cover) in names.iter().zip(covers) {
            let path = format!("/proc/self/fd/{}", cover.as_raw_fd());
            let watch = inotify::add_watch(&instance, path, inotify::WatchFlags::OPEN)?;
            watches.push((watch, name.clone(), 0));
        }
        Ok(Self { instance, watches })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.instance.as_fd()
    }

    /// Reads what was touched, and tells of what was not before.
    pub(crate) fn attend(&mut self, engine: &OwnedFd) {
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = inotify::Reader::new(&self.instance, &mut space);
        let mut touched = Vec::new();
        while let Ok(event) = reader.next() {
            touched.push(event.wd());
            if reader.is_buffer_empty() {
                break;
            }
        }
        for watch in touched {
            let Some((_, name, count)) = self.watches.iter_mut().find(|one| one.0 == watch) else {
                continue;
            };
            *count += 1;
            if *count == 1 {
                tell(engine, name, 1);
            }
        }
    }

    /// How often, where it was more than once.
    pub(crate) fn finish(&mut self, engine: &OwnedFd) {
        self.attend(engine);
        for (_, name, count) in self.watches.iter().filter(|(_, _, count)| *count > 1) {
            tell(engine, name, *count);
        }
    }
}

/// An engine that is behind misses one: there is another when the run ends, if it was touched again.
fn tell(engine: &OwnedFd, name: &str, count: u64) {
    let touched = Touched { time_ms: now_ms(), name: name.to_owned(), count };
    if let Ok(json) = serde_json::to_vec(&Message::Touched(touched)) {
        fd::try_send(engine, &json).ok();
    }
}
