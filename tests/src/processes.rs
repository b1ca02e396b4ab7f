//! Processes and what they have on the host: found by a word of their own or by their parent, and what
//! must be gone after a run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::program::{DEADLINE, ends_within};

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A word that no other process on this host carries in its arguments or its name. Short enough to be one:
/// a program that was there before its arguments can carry it in no other way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(String);

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Token {
    pub fn new() -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let word = format!("t{}-{count}.", std::process::id());
        assert!(word.len() <= 15, "{word} is cut off as a name");
        Self(word)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Nothing carries it: now, not soon.
    pub fn assert_gone(&self) {
        let left = processes_with(&self.0);
        assert!(left.is_empty(), "{} survives in {left:?}", self.0);
    }

    /// Waits until nothing carries it. For runs whose `belljar` was killed, when nobody is left to wait.
    pub fn wait_until_gone(&self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = processes_with(&self.0);
            if left.is_empty() {
                return;
            }
            let time = deadline.saturating_duration_since(Instant::now());
            assert!(time > Duration::ZERO, "{} survives in {left:?}", self.0);
            for (pid, _) in left {
                assert!(ends_within(pid, time), "{} survives in {pid:?}", self.0);
            }
        }
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}

/// The processes with this word in their arguments or their name, and those arguments. A zombie does not
/// count.
pub fn processes_with(word: &str) -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc").expect("/proc can be read");
    entries
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // One that ends while we look is gone.
            let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
            // `id (name) state …`
            let status = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (name, state) = status.rsplit_once(") ")?;
            let carries = text.contains(word) || name.contains(word);
            (carries && !state.starts_with('Z')).then_some((Pid::from_raw(pid)?, text))
        })
        .collect()
}

/// Directories of runs under the places where we put them.
pub fn scratch_directories() -> BTreeSet<PathBuf> {
    ["/tmp", "/var/tmp", "/dev/shm", "/run"]
        .iter()
        .filter_map(|place| fs::read_dir(place).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| named_like_ours(path))
        .collect()
}

/// Cgroups of runs, below any directory with our name in any hierarchy.
pub fn cgroup_directories() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = left.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue; // one that vanishes is not left behind
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
                if entry.path().ancestors().any(named_like_ours) {
                    found.insert(entry.path());
                }
            }
        }
    }
    found
}

/// What the runs that a process asked for have on the host: their directories carry its id.
pub fn directories_of(pid: u32) -> Vec<PathBuf> {
    let tops = scratch_directories();
    let inside = tops.iter().filter_map(|top| fs::read_dir(top).ok()).flatten().flatten();
    let inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
    let start = format!("belljar-{pid}-");
    let is_its = |path: &PathBuf| {
        let mut names = path.ancestors().filter_map(Path::file_name);
        names.any(|name| name.to_string_lossy().starts_with(&start))
    };
    cgroup_directories().into_iter().chain(tops).chain(inside).filter(is_its).collect()
}

/// The children of any thread of a process, zombies too.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|one| fs::read_to_string(one.path().join("children")).ok());
    let numbers = |text: String| {
        text.split_ascii_whitespace().filter_map(|one| one.parse().ok()).collect::<Vec<u32>>()
    };
    texts.flat_map(numbers).collect()
}

/// The name of a process; empty for one that is gone.
pub fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Looks again until it is so, for as long as a test may take. For what has no event to wait for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Looks again until there is one.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..DEADLINE.as_millis() / LOOK_AGAIN.as_millis() {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
    panic!("never: {what}");
}

fn named_like_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("belljar"))
}
