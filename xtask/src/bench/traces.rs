//! What a server has and holds: processes, memory, descriptors, and what lies on the host in its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::memory::Share;
use crate::{cgroups, processes};

/// Deeper cgroups than this are not looked for.
const CGROUP_DEPTH: u32 = 12;

/// Everything that could grow. Memory in KiB.
#[derive(Debug, Clone)]
pub(super) struct Traces {
    pub(super) descriptors: u64,
    pub(super) threads: u64,
    pub(super) server_pss: u64,
    pub(super) server_rss: u64,
    /// Of the server and all below it.
    pub(super) total_pss: u64,
    pub(super) processes: u64,
    pub(super) cgroups: u64,
    pub(super) mounts: u64,
    pub(super) directories: u64,
}

impl Traces {
    pub(super) fn of(server: u32) -> Result<Self> {
        let family = family(server)?;
        let own = Share::read(server).context("the server's memory cannot be read")?;
        let entries = |place: &str| fs::read_dir(format!("/proc/{server}/{place}"));
        let mounts =
            fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
        Ok(Self {
            descriptors: entries("fd").context("cannot look at the server's descriptors")?.count()
                as u64,
            threads: entries("task").context("cannot look at the server's threads")?.count() as u64,
            server_pss: own.pss,
            server_rss: own.rss,
            total_pss: pss(&family).0,
            processes: family.len() as u64,
            cgroups: cgroup_directories(server)?,
            mounts: mounts.lines().count() as u64,
            directories: scratch_directories(server),
        })
    }

    /// Each with its name and unit, in the order in which they are shown.
    pub(super) fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("server descriptors", self.descriptors),
            ("server threads", self.threads),
            ("server PSS, KiB", self.server_pss),
            ("server RSS, KiB", self.server_rss),
            ("PSS of all, KiB", self.total_pss),
            ("processes", self.processes),
            ("cgroup directories", self.cgroups),
            ("mounts of the host", self.mounts),
            ("temporary directories", self.directories),
        ]
    }

    pub(super) fn json(&self) -> Value {
        let pairs = self.named().map(|(name, number)| (name.to_owned(), json!(number)));
        Value::Object(pairs.into_iter().collect())
    }
}

/// A server and everything below it: zygotes, keepers, inits, payloads.
pub(super) fn family(server: u32) -> Result<BTreeSet<u32>> {
    let mut family = processes::below(server, &processes::table()?);
    family.insert(server);
    Ok(family)
}

/// The sum in KiB, and how many could not be looked at: only root may look at all.
pub(super) fn pss(family: &BTreeSet<u32>) -> (u64, usize) {
    let shares: Vec<_> = family.iter().map(|pid| Share::read(*pid)).collect();
    let read: u64 = shares.iter().flatten().map(|share| share.pss).sum();
    (read, shares.iter().filter(|share| share.is_none()).count())
}

/// Names of runs carry the process id of their engine.
fn named_by(server: u32, path: &Path) -> bool {
    let begins = format!("belljar-{server}-");
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begins))
}

fn cgroup_directories(server: u32) -> Result<u64> {
    let mut found = 0;
    let mut left: Vec<(PathBuf, u32)> =
        cgroups::hierarchies()?.into_iter().map(|one| (one.mount, CGROUP_DEPTH)).collect();
    while let Some((directory, depth)) = left.pop() {
        // One that vanishes while we look is not left behind.
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            found += u64::from(named_by(server, &entry.path()));
            if depth > 0 {
                left.push((entry.path(), depth - 1));
            }
        }
    }
    Ok(found)
}

fn scratch_directories(server: u32) -> u64 {
    let own = format!("/tmp/belljar-{}", rustix::process::geteuid().as_raw());
    let places = ["/tmp", "/var/tmp", "/dev/shm", "/run", &own];
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    entries.filter(|entry| named_by(server, &entry.path())).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_another_server_do_not_count() {
        assert!(named_by(12, Path::new("/tmp/belljar-12-34-5")));
        assert!(!named_by(12, Path::new("/tmp/belljar-123-4-5")));
        assert!(!named_by(12, Path::new("/tmp/belljar-12-34/other")));
    }
}
