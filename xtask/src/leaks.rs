//! What a run must not leave behind, compared before and after the suites: processes, mounts, cgroups,
//! directories, network links. The tests cannot do this themselves: they are what might leak.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cgroups;
use crate::processes;
use crate::shell;

/// The kernel finishes some ends after the reaping of init (a mount namespace, a cgroup), so a leftover counts
/// only if it is still there after this.
const SETTLE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Places where scratch directories would be; only names that begin with ours are looked at.
const SCRATCH: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];
const OUR_NAME: &str = "belljar";
/// Deeper cgroups than this are not looked for.
const CGROUP_DEPTH: u32 = 12;

/// Every trace on the host that could be ours, by a name that a person can act on.
#[derive(Debug)]
pub(crate) struct Snapshot {
    traces: BTreeSet<String>,
    test_uid: Option<u32>,
}

impl Snapshot {
    /// What is there now. Every process of `test_uid`, the account made for the tests, counts as a trace.
    pub(crate) fn take(test_uid: Option<u32>) -> Result<Self> {
        let mut traces = BTreeSet::new();
        process_traces(test_uid, &mut traces)?;
        mounts(&mut traces)?;
        for hierarchy in cgroups::hierarchies()? {
            cgroup_directories(&hierarchy.mount, CGROUP_DEPTH, &mut traces);
        }
        scratch_directories(&mut traces);
        network_links(&mut traces)?;
        Ok(Self { traces, test_uid })
    }

    /// What is there now and was not then, after everything had its time to go.
    pub(crate) fn left_since(&self) -> Result<Vec<String>> {
        let deadline = Instant::now() + SETTLE;
        loop {
            shell::reap_zombies();
            let now = Self::take(self.test_uid)?;
            let left: Vec<_> = now.traces.difference(&self.traces).cloned().collect();
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left);
            }
            // No event tells that the last of these is gone, so we look again.
            thread::park_timeout(LOOK_AGAIN);
        }
    }
}

/// Ends every process below us, and waits until they are gone.
pub(crate) fn end_processes() -> Result<()> {
    let deadline = Instant::now() + SETTLE;
    while !processes::descendants()?.is_empty() {
        ensure!(Instant::now() < deadline, "processes survive SIGKILL");
        shell::kill_descendants()?;
        shell::reap_zombies();
        thread::park_timeout(LOOK_AGAIN);
    }
    Ok(())
}

/// The processes below us (`shell::adopt_orphans` keeps them there), those of the test account, and any that
/// carries our name or sits in a cgroup of ours.
fn process_traces(test_uid: Option<u32>, traces: &mut BTreeSet<String>) -> Result<()> {
    let table = processes::table()?;
    let below_us = processes::below(std::process::id(), &table);
    for process in &table {
        let of_test_user = || {
            let owner = fs::metadata(format!("/proc/{}", process.pid)).map(|status| status.uid());
            owner.is_ok_and(|uid| Some(uid) == test_uid)
        };
        let in_our_cgroup = || {
            fs::read_to_string(format!("/proc/{}/cgroup", process.pid))
                .is_ok_and(|cgroups| cgroups.contains(&format!("/{OUR_NAME}")))
        };
        if below_us.contains(&process.pid)
            || process.name.starts_with(OUR_NAME)
            || of_test_user()
            || in_our_cgroup()
        {
            traces.insert(format!(
                "process {} ({}, child of {})",
                process.pid, process.name, process.parent
            ));
        }
    }
    Ok(())
}

fn mounts(traces: &mut BTreeSet<String>) -> Result<()> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    for line in mountinfo.lines() {
        let id = line.split(' ').next().unwrap_or_default();
        let point = line.split(' ').nth(4).unwrap_or_default();
        let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
        traces.insert(format!("mount {point} ({}, id {id})", kind.unwrap_or_default()));
    }
    Ok(())
}

/// A cgroup is ours if it, or one that holds it, carries our name.
fn cgroup_directories(directory: &Path, depth: u32, traces: &mut BTreeSet<String>) {
    // One that vanishes while we look is not left behind.
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if depth == 0 || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let text = path.to_string_lossy();
        if text.split('/').any(|part| part.starts_with(OUR_NAME)) {
            traces.insert(format!("cgroup {text}"));
        }
        cgroup_directories(&path, depth - 1, traces);
    }
}

fn scratch_directories(traces: &mut BTreeSet<String>) {
    let entries = SCRATCH.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with(OUR_NAME) {
            traces.insert(format!("directory {}", entry.path().display()));
        }
    }
}

fn network_links(traces: &mut BTreeSet<String>) -> Result<()> {
    let devices = fs::read_to_string("/proc/self/net/dev").context("cannot read network links")?;
    for (name, _) in devices.lines().filter_map(|line| line.split_once(':')) {
        traces.insert(format!("network link {}", name.trim()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_scratch_directory_is_named() {
        let before = Snapshot { traces: BTreeSet::new(), test_uid: None };
        let mut now = before.traces.clone();
        cgroup_directories(Path::new("/nonexistent"), 3, &mut now);
        assert!(now.is_empty(), "what cannot be read is not left behind");
        let parent = std::env::temp_dir().join(format!("xtask-leaks-{}", std::process::id()));
        fs::create_dir_all(parent.join("belljar/7/run")).unwrap();
        cgroup_directories(&parent, 3, &mut now);
        fs::remove_dir_all(&parent).unwrap();
        assert_eq!(now.len(), 3, "{now:?}");
    }
}
