//! Policies: what a run may do, as a file. Learnt from a recording as the least under which the same run
//! passes; a proof is to run it again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::level::Level;
use crate::model::limits::{LimitsRequest, Used};
use crate::model::outcome::Outcome;
use crate::model::recording::{Act, Entry, Recording};
use crate::model::request::RunRequest;

/// Targets of one kind that a policy lists, for whoever reads it. More say little more.
const MAX_LISTED: usize = 200;
/// How much more than was used is allowed: the next run is not quite the same.
const HEADROOM: u64 = 2;
const MIB: u64 = 1 << 20;

/// Directories of the host's tree that not every program needs. What is not used of them is made absent.
const PERHAPS_UNUSED: [&str; 16] = [
    "/etc/alternatives",
    "/etc/ssl",
    "/proc",
    "/usr/games",
    "/usr/include",
    "/usr/lib/git-core",
    "/usr/lib/jvm",
    "/usr/lib/node_modules",
    "/usr/lib/python3",
    "/usr/lib/systemd",
    "/usr/libexec",
    "/usr/local",
    "/usr/sbin",
    "/usr/share/doc",
    "/usr/share/nodejs",
    "/usr/src",
];

/// What is laid over a request. A field that is left out changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    pub allow_syscalls: Vec<String>,
    pub deny_syscalls: Vec<String>,
    pub block_paths: Vec<PathBuf>,
    pub limits: LimitsRequest,
    /// For people: it decides nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
}

/// What the recording showed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Seen {
    pub programs: BTreeSet<String>,
    pub read: BTreeSet<String>,
    pub written: BTreeSet<String>,
    pub hosts: BTreeSet<String>,
}

impl Policy {
    /// Reads a policy file.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// As a file.
    pub fn to_toml(&self) -> Result<String, String> {
        toml::to_string_pretty(self).map_err(|error| error.to_string())
    }

    /// Lays it over a request: its level and limits win, its lists are added.
    pub fn apply(&self, request: &mut RunRequest) {
        request.level = self.level.unwrap_or(request.level);
        request.allow_syscalls.extend(self.allow_syscalls.iter().cloned());
        request.deny_syscalls.extend(self.deny_syscalls.iter().cloned());
        request.block_paths.extend(self.block_paths.iter().cloned());
        let (ours, theirs) = (&self.limits, &mut request.limits);
        for (ours, theirs) in [
            (ours.wall_ms, &mut theirs.wall_ms),
            (ours.cpu_ms, &mut theirs.cpu_ms),
            (ours.millicpus, &mut theirs.millicpus),
            (ours.memory_bytes, &mut theirs.memory_bytes),
            (ours.processes, &mut theirs.processes),
            (ours.disk_bytes, &mut theirs.disk_bytes),
            (ours.inodes, &mut theirs.inodes),
            (ours.open_files, &mut theirs.open_files),
            (ours.file_bytes, &mut theirs.file_bytes),
            (ours.output_bytes, &mut theirs.output_bytes),
            (ours.output_total_bytes, &mut theirs.output_total_bytes),
        ] {
            *theirs = ours.or(*theirs);
        }
    }

    /// The least that allows what a recorded run did, as far as we can know: each must be proved.
    /// `None` without a recording.
    pub fn learn(outcome: &Outcome) -> Option<Self> {
        let recording = outcome.recording.as_ref()?;
        let connects = recording.entries.iter().any(|entry| entry.act == Act::Connect);
        let has_sockets = outcome.receipt.level.has_namespaces();
        let deny_syscalls = if connects || !has_sockets || recording.dropped > 0 {
            Vec::new()
        } else {
            vec!["connect".to_owned()]
        };
        Some(Self {
            level: Some(outcome.receipt.level),
            allow_syscalls: Vec::new(),
            deny_syscalls,
            block_paths: if has_sockets { unused(recording) } else { Vec::new() },
            limits: limits(outcome),
            seen: Some(seen(recording)),
        })
    }

    /// The same with less in it, in the order of trying: a stricter level first.
    pub fn weaker(&self) -> Vec<Self> {
        let stricter = (self.level == Some(Level::Standard)).then_some(Level::Strict);
        let plain = Self { deny_syscalls: Vec::new(), block_paths: Vec::new(), ..self.clone() };
        let first = stricter.map(|level| Self { level: Some(level), ..self.clone() });
        first.into_iter().chain([self.clone(), plain]).collect()
    }
}

/// Paths that nothing recorded lies in. With entries missing nobody knows.
fn unused(recording: &Recording) -> Vec<PathBuf> {
    if recording.dropped > 0 {
        return Vec::new();
    }
    let touches = |entry: &Entry, path: &str| Path::new(&entry.target).starts_with(path);
    let is_free = |path: &&&str| !recording.entries.iter().any(|entry| touches(entry, path));
    PERHAPS_UNUSED.iter().filter(is_free).map(PathBuf::from).collect()
}

fn limits(outcome: &Outcome) -> LimitsRequest {
    let grown = |name: &str, least: u64, unit: u64| {
        let Used { limit, used } = outcome.limits.get(name).copied()?;
        let wanted = used?.saturating_mul(HEADROOM).max(least).div_ceil(unit).saturating_mul(unit);
        Some(wanted.min(limit?))
    };
    LimitsRequest {
        wall_ms: grown("wall_ms", 2000, 100),
        cpu_ms: grown("cpu_ms", 2000, 100),
        memory_bytes: grown("memory_bytes", 64 * MIB, MIB),
        processes: grown("processes", 16, 1),
        disk_bytes: grown("disk_bytes", MIB, MIB),
        inodes: grown("inodes", 128, 1),
        file_bytes: grown("file_bytes", MIB, MIB),
        output_total_bytes: grown("output_total_bytes", MIB, MIB),
        ..LimitsRequest::default()
    }
}

fn seen(recording: &Recording) -> Seen {
    let of = |acts: &[Act]| -> BTreeSet<String> {
        let own = recording.entries.iter().filter(|entry| acts.contains(&entry.act));
        own.map(|entry| entry.target.clone()).take(MAX_LISTED).collect()
    };
    let is_file = |target: &String| target.starts_with('/');
    Seen {
        programs: of(&[Act::Exec]),
        read: of(&[Act::Read]),
        written: of(&[Act::Change, Act::Write]).into_iter().filter(is_file).collect(),
        hosts: of(&[Act::Connect]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_survives_its_file() {
        let policy = Policy {
            level: Some(Level::Strict),
            block_paths: vec!["/usr/src".into()],
            limits: LimitsRequest { wall_ms: Some(5000), ..LimitsRequest::default() },
            seen: Some(Seen::default()),
            ..Policy::default()
        };
        assert_eq!(Policy::parse(&policy.to_toml().unwrap()), Ok(policy));
    }

    #[test]
    fn a_policy_wins_over_the_request_and_adds_to_its_lists() {
        let mut request =
            RunRequest { deny_syscalls: vec!["kill".into()], ..RunRequest::default() };
        request.limits.wall_ms = Some(9);
        let limits = LimitsRequest { wall_ms: Some(5), ..LimitsRequest::default() };
        let policy = Policy { limits, deny_syscalls: vec!["connect".into()], ..Policy::default() };
        policy.apply(&mut request);
        assert_eq!(request.limits.wall_ms, Some(5));
        assert_eq!(request.deny_syscalls, ["kill", "connect"]);
        assert_eq!(request.level, Level::Standard);
    }

    #[test]
    fn a_misspelt_field_is_told() {
        assert!(Policy::parse("levle = \"strict\"").unwrap_err().contains("levle"));
    }
}
