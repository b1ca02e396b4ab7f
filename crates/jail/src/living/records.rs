//! What the keeper writes down: each file whole or not at all, and no more of them than it keeps.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use belljar_sys::{Errno, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use serde::Serialize;

use super::talk::{EXEC_ENDED, EXECS, MAX_KEPT, MAX_KEPT_BYTES};
use crate::cgroup::errno;
use crate::scratch;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory of a sandbox, and of its execs.
#[derive(Debug)]
pub(crate) struct Records {
    pub top: OwnedFd,
    execs: OwnedFd,
    /// Those that have ended, oldest first, each with what it holds.
    ended: VecDeque<(String, u64)>,
}

impl Records {
    pub(crate) fn open(directory: &std::path::Path) -> Result<Self> {
        let top = rustix::fs::openat(CWD, directory, DIRECTORY, Mode::empty())?;
        match rustix::fs::mkdirat(&top, EXECS, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let execs = rustix::fs::openat(&top, EXECS, DIRECTORY, Mode::empty())?;
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&execs)?.flatten() {
            let Some(name) = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.'))
            else {
                continue;
            };
            let stat = rustix::fs::statat(&execs, name, AtFlags::SYMLINK_NOFOLLOW)?;
            found.push((stat.st_ctime, name.to_owned()));
        }
        found.sort_unstable();
        // None of them runs: their keeper is gone.
        let ended = found.into_iter().map(|(_, name)| (bytes_in(&execs, &name), name));
        let ended = ended.map(|(bytes, name)| (name, bytes)).collect();
        Ok(Self { top, execs, ended })
    }

    /// A directory for a new exec; `EEXIST` if there was one of that name.
    pub(crate) fn make(&self, exec: &str) -> Result<OwnedFd> {
        rustix::fs::mkdirat(&self.execs, exec, Mode::RWXU)?;
        rustix::fs::openat(&self.execs, exec, DIRECTORY, Mode::empty())
    }

    /// Removes one that came to nothing.
    pub(crate) fn forget(&self, exec: &str) {
        scratch::remove(&self.execs, exec).ok();
    }

    fn bytes(&self) -> u64 {
        self.ended.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Writes down how one ended, and lets the oldest go.
    pub(crate) fn end(
        &mut self,
        exec: &str,
        directory: &OwnedFd,
        end: &impl Serialize,
    ) -> Result<()> {
        write(directory, EXEC_ENDED, end)?;
        self.ended.push_back((exec.to_owned(), bytes_in(&self.execs, exec)));
        // The last is kept whatever it holds: somebody waits for it.
        while self.ended.len() > MAX_KEPT || (self.ended.len() > 1 && self.bytes() > MAX_KEPT_BYTES)
        {
            if let Some((old, _)) = self.ended.pop_front() {
                // What cannot be removed is found again at the next start.
                scratch::remove(&self.execs, &old).ok();
            }
        }
        Ok(())
    }
}

/// What the files of one exec hold.
fn bytes_in(execs: &OwnedFd, exec: &str) -> u64 {
    let Ok(directory) = rustix::fs::openat(execs, exec, DIRECTORY, Mode::empty()) else { return 0 };
    let entries = rustix::fs::Dir::read_from(&directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).ok()
    });
    sizes.filter_map(|stat| u64::try_from(stat.st_size).ok()).sum()
}

/// Writes a small file: under another name first, so that nobody ever sees half of it.
pub(crate) fn write(directory: &OwnedFd, name: &str, value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_vec(value).map_err(|_| Errno::PROTO)?;
    let new = format!("{name}.new");
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, &new, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(file).write_all(&json).map_err(errno)?;
    rustix::fs::renameat(directory, &new, directory, name)
}

/// Appends one line to a file that grows to `most` bytes and no further.
pub(crate) fn append_line(directory: &OwnedFd, name: &str, line: &[u8], most: u64) -> Result<()> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory.as_fd(), name, flags, Mode::RUSR | Mode::WUSR)?;
    let length = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(u64::MAX);
    if length.saturating_add(line.len() as u64) >= most {
        return Err(Errno::FBIG);
    }
    let whole = [line, b"\n"].concat();
    File::from(file).write_all(&whole).map_err(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_all_that_ended_is_bounded_and_the_oldest_goes_first() {
        let top = std::env::temp_dir().join(format!("bj-records-{}", std::process::id()));
        std::fs::create_dir(&top).unwrap();
        let mut records = Records::open(&top).unwrap();
        let quarter = MAX_KEPT_BYTES / 4;
        let kept = |top: &std::path::Path| {
            let entries = std::fs::read_dir(top.join(EXECS)).unwrap().flatten();
            let mut names: Vec<_> =
                entries.map(|one| one.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        for name in ["a", "b", "c", "d", "e"] {
            let directory = records.make(name).unwrap();
            let log = std::fs::File::create(top.join(EXECS).join(name).join("stdout.0")).unwrap();
            log.set_len(quarter).unwrap(); // holes: it takes no room here
            records.end(name, &directory, &0).unwrap();
        }
        assert_eq!(kept(&top), ["c", "d", "e"], "four quarters and four ends are too much");
        // Also by who comes later and finds them.
        let mut records = Records::open(&top).unwrap();
        let directory = records.make("f").unwrap();
        let log = std::fs::File::create(top.join(EXECS).join("f/stderr.0")).unwrap();
        log.set_len(MAX_KEPT_BYTES + 1).unwrap();
        records.end("f", &directory, &0).unwrap();
        assert_eq!(kept(&top), ["f"], "the last stays whatever it holds");
        std::fs::remove_dir_all(&top).unwrap();
    }
}
