//! Ending a process tree without a pid namespace: every descendant, however it hid.
//!
//! Orphans fall to the nearest subreaper, which is us, so each descendant has a chain of parents that
//! ends here. The walk repeats until nothing is left: what was killed forks no more.

use std::collections::HashMap;

use belljar_sys::Errno;
use belljar_sys::process::{Wait, reap_any};
use rustix::process::{Pid, RawPid, Signal};

/// Rounds of look-and-kill. A tree that survives so many is reported as lost, never waited for.
const MAX_ROUNDS: usize = 10_000;

/// Kills and reaps every descendant of this process. Says whether none is left.
pub(crate) fn end_descendants() -> bool {
    for _ in 0..MAX_ROUNDS {
        // Who has no child has no descendant: every orphan would have become one.
        while let Ok(Some(_)) = reap_any(Wait::Look) {}
        if reap_any(Wait::Look).is_err_and(|errno| errno == Errno::CHILD) {
            return true;
        }
        let alive = descendants();
        for pid in &alive {
            // One that ended by itself in between is what we wanted.
            rustix::process::kill_process(*pid, Signal::KILL).ok();
        }
        crate::keeper::pause(1);
    }
    false
}

fn descendants() -> Vec<Pid> {
    let mut children: HashMap<RawPid, Vec<RawPid>> = HashMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut next = vec![Pid::as_raw(Some(rustix::process::getpid()))];
    while let Some(parent) = next.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            next.push(pid);
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

/// Every process that is not a zombie or is still a parent, with its parent.
fn processes() -> impl Iterator<Item = (RawPid, RawPid)> {
    let directory = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    directory.filter_map(|entry| {
        let pid: RawPid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The command's name stands in brackets and may hold anything, so count from the last one.
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let mine = parent == Pid::as_raw(Some(rustix::process::getpid()));
        // A zombie of somebody else's is gone already; one of ours is reaped in this round.
        (state != "Z" || mine).then_some((pid, parent))
    })
}
