//! What our own processes weigh around one run: the command, the keeper and init, not the program inside.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::processes;
use crate::shell;

/// Says when it runs, then stays long enough to be looked at.
const PROGRAM: &str = "import time\nprint('ready', flush=True)\ntime.sleep(1)\n";
const READY: &[u8] = b"ready";

/// The memory of each of our processes.
#[derive(Debug)]
pub(super) struct Weight {
    processes: Vec<Share>,
    /// Ours, but not open to us: only root may look into an init that is not dumpable.
    unreadable: Vec<u32>,
}

/// One process, in KiB.
#[derive(Debug)]
pub(super) struct Share {
    pid: u32,
    /// Its own pages and its part of the shared ones. The sum over processes is what they really take.
    pub(super) pss: u64,
    pub(super) rss: u64,
    /// The most that `rss` has been.
    peak: u64,
}

/// Runs a program that waits, and weighs us while it does.
pub(super) fn weigh(belljar: &Path, scratch: &Path) -> Result<Weight> {
    let file = scratch.join("waits.py");
    fs::write(&file, PROGRAM).with_context(|| format!("cannot write {}", file.display()))?;
    // A keeper may not be below the command that asked for it, but it stays below us.
    shell::adopt_orphans()?;
    let mut command = shell::command(belljar);
    command.args(["run", "--level", "standard"]).arg(&file);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start belljar")?;
    let mut ready = [0; READY.len()];
    let said = child.stdout.as_mut().context("no pipe")?.read_exact(&mut ready);
    let weight = said.context("the program inside said nothing").and_then(|()| Weight::of(belljar));
    let status = child.wait().context("cannot wait for belljar")?;
    shell::reap_zombies();
    ensure!(status.success(), "belljar ended with {status} while it was weighed");
    weight
}

impl Weight {
    fn of(belljar: &Path) -> Result<Self> {
        let mut weight = Self { processes: Vec::new(), unreadable: Vec::new() };
        let ours = fs::metadata(belljar).context("cannot look at belljar")?;
        for pid in processes::descendants()?.into_iter().filter(|pid| is_ours(*pid, &ours)) {
            match Share::read(pid) {
                Some(share) => weight.processes.push(share),
                None => weight.unreadable.push(pid),
            }
        }
        ensure!(!weight.processes.is_empty(), "none of our processes could be looked at");
        Ok(weight)
    }

    fn sum_mib(&self, of: impl Fn(&Share) -> u64) -> f64 {
        let kib: u64 = self.processes.iter().map(of).sum();
        #[expect(clippy::cast_precision_loss, reason = "memory in KiB is far below 2^52")]
        let kib = kib as f64;
        kib / 1024.0
    }

    pub(super) fn say(&self, target_mib: f64) {
        shell::say("\nmemory of our own processes around one run at standard:");
        for one in &self.processes {
            shell::say(format!(
                "  process {}: pss {} KiB, rss {} KiB, peak rss {} KiB",
                one.pid, one.pss, one.rss, one.peak
            ));
        }
        for pid in &self.unreadable {
            shell::say(format!(
                "  process {pid}: not readable, so the sums are too small. hint: run as root"
            ));
        }
        let [pss, rss, peak] = self.sums();
        let word = if pss <= target_mib && self.unreadable.is_empty() { "met" } else { "MISSED" };
        shell::say(format!(
            "target {word}: {pss:.1} MiB (sum of pss), at most {target_mib} promised; \
             sum of rss {rss:.1} MiB, of peak rss {peak:.1} MiB (shared pages counted once per process)"
        ));
    }

    pub(super) fn json(&self) -> Value {
        let [pss, rss, peak] = self.sums();
        json!({
            "processes": self.processes.len(), "unreadable": self.unreadable.len(),
            "pss_mib": pss, "rss_mib": rss, "peak_rss_mib": peak,
        })
    }

    fn sums(&self) -> [f64; 3] {
        [self.sum_mib(|one| one.pss), self.sum_mib(|one| one.rss), self.sum_mib(|one| one.peak)]
    }
}

impl Share {
    pub(super) fn read(pid: u32) -> Option<Self> {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(Self {
            pid,
            pss: kib(&rollup, "Pss:")?,
            rss: kib(&rollup, "Rss:")?,
            peak: kib(&status, "VmHWM:")?,
        })
    }
}

/// By the file behind `exe`, which holds in any mount namespace; a sealed copy in memory is known by its name.
fn is_ours(pid: u32, belljar: &fs::Metadata) -> bool {
    let exe = format!("/proc/{pid}/exe");
    let same = |file: fs::Metadata| (file.dev(), file.ino()) == (belljar.dev(), belljar.ino());
    let named = || {
        fs::read_link(&exe).is_ok_and(|path| path.to_string_lossy().starts_with("/memfd:belljar"))
    };
    fs::metadata(&exe).is_ok_and(same) || named()
}

/// `Pss:     123 kB`.
pub(super) fn kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let rollup = "Rss:     1000 kB\nPss_Dirty: 7 kB\nPss:      250 kB\n";
        assert_eq!(kib(rollup, "Pss:"), Some(250));
        assert_eq!(kib(rollup, "Swap:"), None);
    }
}
