//! Reading the barriers back from the kernel, just before the program is released.
//!
//! Each layer that the plan expects is looked at where the kernel shows it: the payload's status,
//! limits, mounts and cgroup files, and what only the payload can see of itself. A layer that is not
//! found as planned ends the run before it starts. Two have no place in the kernel to be seen: the
//! deadline and the list of variables are taken from the plan that is carried out.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::cgroup::Group;
use crate::layer::{Check, Layer};
use crate::payload::NAMESPACES;
use crate::plan::{Bound, Cgroup, Controller, Files, Identity, Lockdown, Plan, Resource, Root};
use crate::report::Ready;

/// As much as the longest of them has: some sixty mounts.
const FILE_BYTES: usize = 16 << 10;
/// And as much as is read of any.
const MOST_BYTES: u64 = 16 << 20;

/// Variables through which a caller's environment would change what a program loads or runs.
pub const NEVER_PASSED: [&str; 6] =
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONINSPECT", "PYTHONSTARTUP"];

/// What is known of the payload, waiting to be released.
pub(crate) struct Payload<'a> {
    plan: &'a Plan,
    group: Option<&'a Group>,
    ready: Ready,
    pid: u32,
    streams_are_pipes: bool,
    /// The keeper's own namespaces.
    outside: [u64; 7],
    status: HashMap<String, String>,
    /// Which cgroups it is in, as its /proc entry says.
    membership: String,
    /// The mounts that it sees; read once, as writing the list is dear for the kernel.
    mounts: Vec<Mount>,
}

/// Looks at every layer that the plan expects.
pub(crate) fn check_all(
    plan: &Plan,
    group: Option<&Group>,
    ready: Ready,
    pid: u32,
    streams_are_pipes: bool,
    outside: [u64; 7],
) -> Vec<Check> {
    let payload = Payload {
        plan,
        group,
        ready,
        pid,
        streams_are_pipes,
        outside,
        status: status_of(pid),
        membership: read(pid, "cgroup"),
        mounts: mounts_of(pid),
    };
    plan.expect.iter().map(|layer| payload.check(*layer)).collect()
}

/// The inodes that name this process's own namespaces; zero where one cannot be seen.
pub(crate) fn own_namespaces() -> [u64; 7] {
    NAMESPACES.map(|name| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |one| one.ino()))
}

fn status_of(pid: u32) -> HashMap<String, String> {
    let text = read(pid, "status");
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

/// What the kernel says of a process, or nothing. Such files have no length to ask for, and the kernel
/// writes them anew for each small read.
fn read(pid: u32, file: &str) -> String {
    let mut text = Vec::with_capacity(FILE_BYTES);
    let file = fs::File::open(format!("/proc/{pid}/{file}"));
    let read = file.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text));
    read.ok().and_then(|_| String::from_utf8(text).ok()).unwrap_or_default()
}

fn mounts_of(pid: u32) -> Vec<Mount> {
    let text = read(pid, "mountinfo");
    text.lines().filter_map(Mount::parse).collect()
}

/// Directories of our own on a living sandbox's file system, beyond what its programs may make.
const OWN_INODES: u64 = 64;

impl Payload<'_> {
    fn check(&self, name: Layer) -> Check {
        let (mechanism, verified) = match name {
            Layer::WallTimeout => {
                (format!("monotonic clock, {} ms", self.plan.wall_ms), self.plan.wall_ms > 0)
            }
            Layer::OutputCap => (self.reader().to_owned(), self.streams_are_pipes),
            Layer::Environment => self.environment(),
            Layer::Descriptors => {
                (format!("close_range, {} stray", self.ready.stray_fds), self.ready.stray_fds == 0)
            }
            Layer::TreeKill => self.tree_kill(),
            Layer::Session => ("setsid".to_owned(), self.leads_session()),
            Layer::Rlimits => self.rlimits(),
            Layer::NoNewPrivileges => self.flag("NoNewPrivs", "1", "no_new_privs"),
            Layer::Capabilities => self.capabilities(),
            Layer::Identity => self.identity(),
            Layer::UidPerRun => self.uid_per_run(),
            Layer::Landlock => self.landlock(),
            Layer::Scopes => self.scopes(),
            Layer::Seccomp => self.seccomp(),
            Layer::UserNamespace => self.namespace(0),
            Layer::PidNamespace => self.namespace(1),
            Layer::MountNamespace => self.namespace(2),
            Layer::NetNamespace => self.namespace(3),
            Layer::IpcNamespace => self.namespace(4),
            Layer::UtsNamespace => self.namespace(5),
            Layer::CgroupNamespace => self.namespace(6),
            Layer::Root => self.root(),
            Layer::Proc => self.proc(),
            Layer::Devices => self.devices(),
            Layer::Disk => self.disk(),
            Layer::CgroupMemory => self.cgroup(Controller::Memory),
            Layer::CgroupPids => self.cgroup(Controller::Pids),
            Layer::CgroupCpu => self.cgroup(Controller::Cpu),
            // Looked at by who opened it, when the payload is ready.
            Layer::Egress => ("never opened".to_owned(), false),
        };
        Check { name, mechanism, verified }
    }

    fn field(&self, key: &str) -> &str {
        self.status.get(key).map_or("", String::as_str)
    }

    fn flag(&self, key: &str, wanted: &str, mechanism: &str) -> (String, bool) {
        (mechanism.to_owned(), self.field(key) == wanted)
    }

    /// Who takes what it writes, and bounds it.
    fn reader(&self) -> &'static str {
        let lives = self.layout().is_some_and(|layout| !layout.trees.is_empty());
        if lives { "read by the keeper into bounded logs" } else { "pipes read by the engine" }
    }

    fn environment(&self) -> (String, bool) {
        let variables = &self.plan.program.environment;
        let clean = variables.iter().all(|(name, _)| !NEVER_PASSED.contains(&name.as_str()));
        (format!("execve with {} variables", variables.len()), clean)
    }

    fn tree_kill(&self) -> (String, bool) {
        match self.plan.files {
            Files::Root(_) => ("pid namespace".to_owned(), self.field("NSpid").contains('\t')),
            Files::Host { .. } => {
                let subreaper = rustix::process::child_subreaper();
                ("subreaper".to_owned(), matches!(subreaper, Ok(Some(_))))
            }
        }
    }

    /// Field 6 of /proc/PID/stat is the session, which the payload must lead.
    fn leads_session(&self) -> bool {
        let stat = read(self.pid, "stat");
        let after_name = stat.rfind(')').and_then(|end| stat.get(end + 1..)).unwrap_or("");
        after_name.split_ascii_whitespace().nth(3) == Some(self.pid.to_string().as_str())
    }

    fn rlimits(&self) -> (String, bool) {
        let limits = self.plan.lockdown.as_ref().map_or(&[][..], |one| &one.rlimits);
        let text = read(self.pid, "limits");
        let kept = limits.iter().all(|limit| {
            let value = limit.value.to_string();
            text.lines()
                .find_map(|line| line.strip_prefix(title(limit.resource)))
                .map(|rest| rest.split_ascii_whitespace().take(2).all(|one| one == value))
                == Some(true)
        });
        (format!("setrlimit, {} limits", limits.len()), kept && !limits.is_empty())
    }

    fn capabilities(&self) -> (String, bool) {
        let none = |key: &str| self.field(key).bytes().all(|digit| digit == b'0');
        let held = ["CapInh", "CapPrm", "CapEff", "CapAmb"].into_iter().all(none);
        // An ordinary user without a user namespace cannot shrink the bounding set; with
        // no_new_privs nothing can be gained from it either.
        let shrinks = !matches!(self.plan.identity, Identity::Caller);
        let bounded = none("CapBnd") || !shrinks;
        let known = !self.field("CapEff").is_empty();
        let sets = if shrinks { "all five sets" } else { "sets held" };
        (format!("{sets} empty"), held && bounded && known)
    }

    fn identity(&self) -> (String, bool) {
        let (uid, gid) = match self.plan.identity {
            Identity::Caller => {
                (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
            }
            Identity::Host { uid, gid } | Identity::Mapped { uid, gid, .. } => (uid, gid),
        };
        let all_four = |key: &str, expected: u32| {
            let ids: Vec<_> = self.field(key).split_ascii_whitespace().collect();
            ids.len() == 4 && ids.iter().all(|id| id.parse() == Ok(expected))
        };
        // Only root can leave its groups; an ordinary user's are what its own processes have anyway.
        let keeps_groups = !rustix::process::geteuid().is_root();
        let groups_left = keeps_groups || self.field("Groups").trim().is_empty();
        let right = all_four("Uid", uid) && all_four("Gid", gid) && groups_left;
        (format!("host uid {uid}"), right && uid != 0)
    }

    /// The id that the kernel shows, not the planned one, is another than the caller's.
    fn uid_per_run(&self) -> (String, bool) {
        let caller = rustix::process::geteuid().as_raw().to_string();
        let mut ids = self.field("Uid").split_ascii_whitespace();
        let own = ids.clone().count() == 4 && ids.clone().all(|id| id != caller);
        (format!("host uid {}, not the caller's", ids.next().unwrap_or("unknown")), own)
    }

    fn lockdown(&self) -> Option<&Lockdown> {
        self.plan.lockdown.as_ref()
    }

    fn landlock(&self) -> (String, bool) {
        let abi = self.lockdown().and_then(|one| one.landlock.as_ref()).map_or(0, |one| one.abi);
        (format!("landlock ABI {abi}, witness refused"), self.ready.landlock_refuses)
    }

    fn scopes(&self) -> (String, bool) {
        let landlock = self.lockdown().and_then(|one| one.landlock.as_ref());
        let scoped = landlock.is_some_and(|one| one.scopes != 0 && one.abi >= 6);
        let mechanism = "landlock scopes: signals, abstract sockets, witnesses refused";
        (mechanism.to_owned(), scoped && self.ready.scopes_refuse)
    }

    fn seccomp(&self) -> (String, bool) {
        let length = self.lockdown().map_or(0, |one| one.filter.len());
        let filters: u32 = self.field("Seccomp_filters").parse().unwrap_or(0);
        // Kernels before 5.9 do not count filters; mode 2 alone says that one is in force.
        let counted = filters >= 1 || self.field("Seccomp_filters").is_empty();
        let mechanism = format!("seccomp filter, {length} instructions");
        (mechanism, self.field("Seccomp") == "2" && counted)
    }

    /// The payload's namespace is not the keeper's.
    fn namespace(&self, index: usize) -> (String, bool) {
        let inside = self.ready.namespaces.get(index).copied().unwrap_or(0);
        let name = NAMESPACES.get(index).copied().unwrap_or("");
        let outside = self.outside.get(index).copied().unwrap_or(0);
        (format!("{name}:[{inside}]"), inside != 0 && outside != 0 && inside != outside)
    }

    fn layout(&self) -> Option<&Root> {
        match &self.plan.files {
            Files::Root(layout) => Some(layout),
            Files::Host { .. } => None,
        }
    }

    fn root(&self) -> (String, bool) {
        if let Some(layout) = self.layout().filter(|layout| !layout.trees.is_empty()) {
            return self.overlays(layout);
        }
        let mounts = &self.mounts;
        let at_root: Vec<_> = mounts.iter().filter(|mount| mount.point == "/").collect();
        let alone = matches!(at_root[..], [top] if top.kind == "tmpfs" && top.has("ro"));
        let writable = self.writable_points();
        let rest_read_only = mounts.iter().all(|mount| {
            mount.has("ro") || writable.contains(&mount.point) || mount.point.starts_with("/dev/")
        });
        let mechanism = format!("pivot_root to read-only tmpfs, {} mounts", mounts.len());
        (mechanism, alone && rest_read_only)
    }

    /// A living sandbox's root: an overlay at the place of each tree, and nothing else that is written but what the
    /// plan says.
    fn overlays(&self, layout: &Root) -> (String, bool) {
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let trees: Vec<String> = layout.trees.iter().map(|tree| text(&tree.target)).collect();
        let in_place = trees.iter().all(|tree| {
            let at: Vec<_> = self.mounts.iter().filter(|mount| mount.point == *tree).collect();
            matches!(at[..], [one] if one.kind == "overlay" && one.has("nosuid") && one.has("nodev"))
        });
        let writable = self.writable_points();
        let rest_read_only = self.mounts.iter().all(|mount| {
            let planned = trees.contains(&mount.point) || writable.contains(&mount.point);
            mount.has("ro") || planned || mount.point.starts_with("/dev/")
        });
        let (trees, mounts) = (layout.trees.len(), self.mounts.len());
        let mechanism = format!("pivot_root to {trees} overlays, {mounts} mounts");
        (mechanism, in_place && rest_read_only && trees > 0)
    }

    /// What bounds the files of a living sandbox.
    fn bounded_files(layout: &Root, bound: &Bound) -> (String, bool) {
        match bound {
            Bound::Measured { bytes, inodes } => {
                let mechanism = format!(
                    "measured by the keeper several times a second, {bytes} bytes, {inodes} inodes: can be exceeded \
                     for a moment"
                );
                (mechanism, *bytes > 0 && *inodes > 0)
            }
            Bound::FileSystem { mounted, bytes, inodes } => {
                let device = |path: &std::path::Path| fs::metadata(path).map(|one| one.dev()).ok();
                let own = device(mounted);
                let apart = own.is_some() && own != mounted.parent().and_then(device);
                let inside = layout.trees.iter().all(|tree| device(&tree.upper) == own);
                // Of what is free: a file system needs some of its size for itself.
                let small = rustix::fs::statvfs(mounted).is_ok_and(|all| {
                    all.f_bavail * all.f_frsize <= *bytes + OWN_INODES * all.f_frsize
                        && all.f_ffree <= *inodes + OWN_INODES
                });
                let mechanism = format!("a file system of its own, {bytes} bytes, {inodes} inodes");
                (mechanism, apart && inside && small)
            }
        }
    }

    fn writable_points(&self) -> Vec<String> {
        let Some(layout) = self.layout() else {
            return Vec::new();
        };
        let own = layout.writable.directories.iter().map(|one| one.target.clone());
        let binds = layout
            .binds
            .iter()
            .filter(|bind| bind.kind == crate::plan::BindKind::WritableDirectory);
        own.chain(binds.map(|bind| bind.target.clone()))
            .map(|path| path.to_string_lossy().into_owned())
            .collect()
    }

    fn proc(&self) -> (String, bool) {
        let Some(layout) = self.layout() else {
            return (String::new(), false);
        };
        let mounts = &self.mounts;
        let own: Vec<_> = mounts.iter().filter(|mount| mount.point == "/proc").collect();
        if layout.proc.absent {
            return ("no /proc".to_owned(), own.is_empty());
        }
        let read_only = matches!(own[..], [one] if one.kind == "proc" && one.has("ro"));
        let covered = mounts.iter().filter(|mount| mount.point.starts_with("/proc/")).count();
        if layout.proc.only_processes {
            let subset = own.iter().all(|mount| mount.source_options.contains("subset=pid"));
            return ("procfs, read-only, subset=pid".to_owned(), read_only && subset);
        }
        let all_covered = layout.proc.masked.iter().filter(|name| is_kernels(name)).all(|name| {
            let point = format!("/proc/{name}");
            // What this kernel does not have needs no cover; our own procfs shows the same entries.
            mounts.iter().any(|mount| mount.point == point) || fs::symlink_metadata(&point).is_err()
        });
        let mechanism = format!("procfs, read-only, {covered} entries covered");
        (mechanism, read_only && covered > 0 && all_covered)
    }

    fn devices(&self) -> (String, bool) {
        let Some(layout) = self.layout() else {
            return (String::new(), false);
        };
        let mounts = &self.mounts;
        let found = layout.devices.iter().all(|device| {
            mounts.iter().any(|mount| mount.point == format!("/dev/{}", device.name))
        });
        let terminals = mounts.iter().filter(|mount| mount.kind == "devpts").count();
        let as_planned = terminals == usize::from(layout.pseudo_terminals);
        (format!("{} device nodes of our own", layout.devices.len()), found && as_planned)
    }

    fn disk(&self) -> (String, bool) {
        let Some(layout) = self.layout() else {
            return (String::new(), false);
        };
        let living = layout.bound.as_ref().map(|bound| Self::bounded_files(layout, bound));
        let kilobytes = format!("size={}k", layout.writable.bytes.div_ceil(4096) * 4);
        let inodes = format!("nr_inodes={}", layout.writable.inodes);
        let mounts = &self.mounts;
        let bounded = layout.writable.directories.iter().all(|directory| {
            let point = directory.target.to_string_lossy();
            let top = mounts.iter().rfind(|mount| mount.point == point);
            let covered = layout.binds.iter().any(|bind| bind.target == directory.target);
            top.is_some_and(|mount| {
                covered || (mount.has_source(&kilobytes) && mount.has_source(&inodes))
            })
        });
        let (bytes, inodes) = (layout.writable.bytes, layout.writable.inodes);
        match living {
            Some((mechanism, files)) => (mechanism, bounded && files),
            None => (format!("tmpfs, {bytes} bytes, {inodes} inodes"), bounded),
        }
    }

    fn cgroup(&self, controller: Controller) -> (String, bool) {
        let plan: Option<&Cgroup> = self.plan.cgroup.as_ref();
        let holds = self
            .group
            .zip(plan)
            .and_then(|(group, plan)| group.holds(plan, &self.membership, controller));
        let knobs = plan.into_iter().flat_map(|plan| &plan.hierarchies);
        let version =
            knobs.filter(|one| one.controllers.contains(&controller)).map(|one| one.version).next();
        let version = match version {
            Some(crate::plan::CgroupVersion::V1) => "v1",
            Some(crate::plan::CgroupVersion::V2) => "v2",
            None => "none",
        };
        (format!("cgroup {version} {}", controller.name()), holds == Some(true))
    }
}

/// Whether an entry of /proc is the kernel's, and so the same in every procfs. A process has another
/// name in each, so those that a caller had covered cannot be looked up by name.
fn is_kernels(entry: &str) -> bool {
    let first = entry.split('/').next().unwrap_or("");
    !matches!(first, "self" | "thread-self") && !first.bytes().all(|byte| byte.is_ascii_digit())
}

/// The beginning of a limit's line in /proc/PID/limits.
fn title(resource: Resource) -> &'static str {
    match resource {
        Resource::Core => "Max core file size",
        Resource::CpuSeconds => "Max cpu time",
        Resource::DataBytes => "Max data size",
        Resource::FileBytes => "Max file size",
        Resource::OpenFiles => "Max open files",
        Resource::Processes => "Max processes",
        Resource::MessageQueueBytes => "Max msgqueue size",
        Resource::LockedBytes => "Max locked memory",
        Resource::PendingSignals => "Max pending signals",
    }
}

/// One line of mountinfo (see proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: String,
    options: String,
    kind: String,
    source_options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut left = before.split(' ').skip(4);
        let mut right = after.split(' ');
        Some(Self {
            point: left.next()?.to_owned(),
            options: left.next()?.to_owned(),
            kind: right.next()?.to_owned(),
            source_options: right.nth(1)?.to_owned(),
        })
    }

    fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|one| one == option)
    }

    fn has_source(&self, option: &str) -> bool {
        self.source_options.split(',').any(|one| one == option)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_and_without_optional_fields() {
        let plain = "36 35 0:31 / /proc ro,nosuid - proc proc rw,subset=pid";
        let shared = "36 35 8:1 /usr /usr ro,nodev shared:1 master:2 - ext4 /dev/vda rw";
        let mount = Mount::parse(plain).unwrap();
        assert_eq!((mount.point.as_str(), mount.kind.as_str()), ("/proc", "proc"));
        assert!(mount.has("ro") && !mount.has("r") && mount.has_source("subset=pid"));
        assert_eq!(Mount::parse(shared).unwrap().kind, "ext4");
        assert_eq!(Mount::parse("nonsense"), None);
    }

    /// A plan of which only what its check reads has a meaning.
    fn plan() -> Plan {
        let json = r#"{
            "id": "", "identity": "caller", "cgroup": null, "lockdown": null, "placed": [],
            "files": {"host": {"scratch": {"parent": "/", "name": "", "directories": []}}},
            "program": {"path": "/", "argv": [], "environment": [["LANG", "C"]], "directory": "/"},
            "wall_ms": 1, "cpu_ms": 1, "millicpus": 1, "expect": [], "keep_workspace": false,
            "fault": null
        }"#;
        serde_json::from_str(json).unwrap()
    }

    fn payload(plan: &Plan) -> Payload<'_> {
        Payload {
            plan,
            group: None,
            ready: Ready { namespaces: [1, 2, 3, 4, 5, 6, 7], ..Ready::default() },
            pid: 0,
            streams_are_pipes: false,
            outside: [11, 12, 13, 14, 15, 16, 17],
            status: HashMap::new(),
            membership: String::new(),
            mounts: Vec::new(),
        }
    }

    #[test]
    fn a_run_without_a_deadline_is_not_verified() {
        let mut plan = plan();
        assert!(payload(&plan).check(Layer::WallTimeout).verified);
        plan.wall_ms = 0;
        assert!(!payload(&plan).check(Layer::WallTimeout).verified);
    }

    #[test]
    fn a_variable_that_changes_what_is_loaded_is_not_verified() {
        let mut plan = plan();
        assert!(payload(&plan).check(Layer::Environment).verified);
        for name in NEVER_PASSED {
            plan.program.environment = vec![(name.to_owned(), "x".to_owned())];
            assert!(!payload(&plan).check(Layer::Environment).verified, "{name}");
        }
    }

    #[test]
    fn a_namespace_that_is_the_keepers_or_unseen_is_not_verified() {
        let layers = [
            Layer::UserNamespace,
            Layer::PidNamespace,
            Layer::MountNamespace,
            Layer::NetNamespace,
            Layer::IpcNamespace,
            Layer::UtsNamespace,
            Layer::CgroupNamespace,
        ];
        let plan = plan();
        for (index, layer) in layers.into_iter().enumerate() {
            let mut payload = payload(&plan);
            assert!(payload.check(layer).verified, "{layer}");
            payload.ready.namespaces[index] = payload.outside[index];
            assert!(!payload.check(layer).verified, "{layer}");
            payload.ready.namespaces[index] = 0;
            assert!(!payload.check(layer).verified, "{layer}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_verified() {
        // The payload died meanwhile, or /proc shows nothing: no layer may pass on silence. Only those
        // that are nowhere but in the plan, and the keeper's own, do not ask the payload.
        let plan = plan();
        let silent = Payload { ready: Ready::default(), ..payload(&plan) };
        let silent_layers = [
            Layer::OutputCap,
            Layer::Session,
            Layer::Rlimits,
            Layer::NoNewPrivileges,
            Layer::Capabilities,
            Layer::Identity,
            Layer::UidPerRun,
            Layer::Landlock,
            Layer::Scopes,
            Layer::Seccomp,
            Layer::Root,
            Layer::Proc,
            Layer::Devices,
            Layer::Disk,
            Layer::CgroupMemory,
            Layer::CgroupPids,
            Layer::CgroupCpu,
        ];
        for layer in silent_layers {
            assert!(!silent.check(layer).verified, "{layer}");
        }
    }

    #[test]
    fn entries_of_processes_are_not_looked_up_by_name() {
        assert!(is_kernels("kmsg") && is_kernels("sys/kernel/random/boot_id"));
        assert!(!is_kernels("1/environ") && !is_kernels("self") && !is_kernels("thread-self/x"));
    }
}
