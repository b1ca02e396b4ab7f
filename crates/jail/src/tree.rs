//! Ending a process tree without a pid namespace: every descendant, however it hid.
//!
//! Orphans fall to the nearest subreaper, which is us, so each descendant has a chain of parents that
//! ends here. The walk repeats until nothing is left: what was killed forks no more.

use std::collections::HashMap;
use std::time::Duration;

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
        let mut alive = descendants();
        alive.extend(children().into_iter().filter_map(Pid::from_raw));
        for pid in &alive {
            // One that ended by itself in between is what we wanted.
            rustix::process::kill_process(*pid, Signal::KILL).ok();
        }
        crate::keeper::pause(1);
    }
    false
}

/// Kills all that descends from this process but these children and what descends from them, and reaps it. Says
/// whether nobody else is left. For who inherits every orphan: whose parent is killed becomes a child of ours.
pub(crate) fn end_all_but(kept: &[RawPid]) -> bool {
    for _ in 0..MAX_ROUNDS {
        while let Ok(Some(_)) = reap_any(Wait::Look) {}
        let mut others = children();
        others.retain(|pid| !kept.contains(pid));
        if others.is_empty() {
            return true;
        }
        for pid in others.into_iter().filter_map(Pid::from_raw) {
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
        crate::keeper::pause(1);
    }
    false
}

/// The children of this process, those too that hide from a look through /proc (`hidepid` hides what is not dumpable).
fn children() -> Vec<RawPid> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|one| one.parse().ok()).collect()
}

/// The CPU time of every descendant, those that ended and were reaped included: init reaps all orphans.
pub(crate) fn cpu_time() -> Duration {
    walk().iter().map(|process| process.cpu).sum()
}

fn descendants() -> Vec<Pid> {
    let pids = walk().into_iter().map(|process| process.pid);
    pids.filter_map(Pid::from_raw).collect()
}

struct Process {
    pid: RawPid,
    parent: RawPid,
    /// Its own and that of the children it has reaped.
    cpu: Duration,
}

fn walk() -> Vec<Process> {
    let mut children: HashMap<RawPid, Vec<Process>> = HashMap::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut next = vec![Pid::as_raw(Some(rustix::process::getpid()))];
    while let Some(parent) = next.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            next.push(process.pid);
            found.push(process);
        }
    }
    found
}

/// Processes of one tree that are looked at; a sandbox with more is over its limit of CPU time soon enough.
const MAX_PROCESSES: usize = 4096;

/// The CPU time of a process and all that descends from it, those that have ended included.
pub(crate) fn cpu_time_of(top: u32) -> Duration {
    let mut waiting = vec![top];
    let mut sum = Duration::ZERO;
    let mut seen = 0;
    while let Some(pid) = waiting.pop()
        && seen < MAX_PROCESSES
    {
        seen += 1;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rfind(')').and_then(|end| stat.get(end + 1..)).unwrap_or_default();
        let fields = fields.split_ascii_whitespace().skip(11).take(4);
        let ticks: u32 = fields.filter_map(|one| one.parse::<u32>().ok()).sum();
        sum += TICK * ticks;
        let threads =
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children =
                std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            waiting.extend(
                children.split_ascii_whitespace().filter_map(|one| one.parse::<u32>().ok()),
            );
        }
    }
    sum
}

/// A process and all that descends from it, so many at most: parents before their children.
pub(crate) fn below(top: u32, most: usize) -> Vec<u32> {
    let mut found = vec![top];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied()
        && next < most
    {
        next += 1;
        let threads =
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads.take(most) {
            let children =
                std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace();
            found.extend(children.filter_map(|one| one.parse::<u32>().ok()));
        }
        found.truncate(most);
    }
    found
}

/// proc(5) counts in hundredths of a second, whatever the kernel's own tick is.
const TICK: Duration = Duration::from_millis(10);

/// Every process of the host, zombies too: one whose main thread has ended looks like one and goes on,
/// and the time of an unreaped one is in nobody else's sum.
fn processes() -> impl Iterator<Item = Process> {
    let directory = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    directory.filter_map(|entry| {
        let pid: RawPid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The command's name stands in brackets and may hold anything, so count from the last one.
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        // utime, stime, cutime and cstime, the 14th to the 17th of the whole line.
        let ticks: u32 = fields.skip(9).take(4).filter_map(|one| one.parse::<u32>().ok()).sum();
        Some(Process { pid, parent, cpu: TICK * ticks })
    })
}
