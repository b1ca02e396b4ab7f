//! Allowed calls as entries of a recording.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use belljar_jail::tried::{Counted, Tried};

use super::describe::Call;
use super::{MAX_COMMAND, shown, time_of};
use crate::model::recording::{Act, Entry, Recording};

/// Opened for writing, or made: O_WRONLY, O_RDWR, O_CREAT, O_TRUNC.
const CHANGES: u64 = 0o1103;

/// A recording in the making.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    recording: Recording,
    /// Where the same thing stands.
    known: HashMap<(u32, Act, String, Option<String>), usize>,
    /// Which entry a number of the keeper's belongs to.
    numbers: HashMap<u32, usize>,
}

impl Timeline {
    pub(super) fn take(&mut self, number: u32, entry: Entry) {
        let entries = &mut self.recording.entries;
        let key = (entry.pid, entry.act, entry.target.clone(), entry.command.clone());
        let place = *self.known.entry(key).or_insert(entries.len());
        self.numbers.insert(number, place);
        match entries.get_mut(place) {
            Some(known) => add(known, 1, entry.bytes.unwrap_or(0)),
            None => entries.push(entry),
        }
    }

    pub(super) fn count(&mut self, counted: &Counted) {
        self.recording.dropped += counted.unrecorded;
        for (number, count, bytes) in &counted.counts {
            let place = self.numbers.get(number);
            if let Some(entry) = place.and_then(|at| self.recording.entries.get_mut(*at)) {
                add(entry, count - 1, *bytes);
            }
        }
    }

    pub(super) fn finish(self) -> Recording {
        self.recording
    }
}

fn add(entry: &mut Entry, count: u64, bytes: u64) {
    entry.count += count;
    entry.bytes = entry.bytes.map(|known| known.saturating_add(bytes));
}

/// The entry that a call makes, if it is of a kind that is recorded.
pub(super) fn entry(tried: &Tried, call: &Call) -> Option<Entry> {
    let opened = |flags: u64| if flags & CHANGES == 0 { Act::Read } else { Act::Change };
    let (act, target) = match call.name.as_str() {
        "execve" | "execveat" => (Act::Exec, path(tried, call)),
        "open" => (opened(tried.args[1]), path(tried, call)),
        "openat" => (opened(tried.args[2]), path(tried, call)),
        "creat" => (Act::Change, path(tried, call)),
        "connect" => (Act::Connect, call.address(tried).map(|address| address.to_string())),
        "sendto" if tried.args[4] == 0 => (Act::Write, file(tried, call)),
        "sendto" => (Act::Connect, call.address(tried).map(|address| address.to_string())),
        "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" | "sendfile" => {
            (Act::Write, file(tried, call))
        }
        _ => return None,
    };
    let command = call.read(tried, "arguments").map(|text| shown::command(text, MAX_COMMAND));
    Some(Entry {
        time: time_of(tried.time_ms),
        pid: tried.process.pid,
        act,
        target: target.unwrap_or_else(|| "?".to_owned()),
        command,
        count: 1,
        bytes: matches!(call.name.as_str(), "write" | "pwrite64" | "sendto")
            .then_some(tried.args[2]),
    })
}

fn file(tried: &Tried, call: &Call) -> Option<String> {
    call.read(tried, "fd").map(shown::plain)
}

/// The whole path, where the directory that it starts from is known.
fn path(tried: &Tried, call: &Call) -> Option<String> {
    let text = call.read(tried, "path")?;
    let path = Path::new(OsStr::from_bytes(text));
    let from = call.read(tried, "dirfd").map(OsStr::from_bytes).map(Path::new);
    let whole = match from {
        Some(from) if path.is_relative() => from.join(path),
        _ => path.to_owned(),
    };
    Some(shown::plain(tidied(&whole).as_os_str().as_bytes()))
}

/// Without `.` and `..`, as far as that can be said without looking: links are not followed.
fn tidied(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if tidy.file_name().is_some() => drop(tidy.pop()),
            Component::Prefix(_)
            | Component::RootDir
            | Component::ParentDir
            | Component::Normal(_) => tidy.push(part),
        }
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_without_detours() {
        assert_eq!(tidied(Path::new("/a/./b/../c")), Path::new("/a/c"));
        assert_eq!(tidied(Path::new("/../x")), Path::new("/../x"));
    }
}
