//! The program's cgroup: made by the keeper, joined by the payload, read at the end, removed.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use belljar_sys::{Errno, Result};
use rustix::fs::{Mode, OFlags};

use crate::plan::{Cgroup, CgroupVersion, Controller, Hierarchy, Knob, Place};

/// A cgroup stays busy for a moment after its last process was reaped, and longer where a tracer has not heard yet; this
/// many short waits are plenty, and after that the next sweep takes it.
const REMOVE_ATTEMPTS: usize = 600;
const REMOVE_PAUSE_MS: i64 = 5;
/// The longest file of a cgroup that is read; the kernel writes no more at once.
const FILE_BYTES: usize = 4 << 10;

/// The directories of one run. Removed when dropped.
#[derive(Debug, Default)]
pub(crate) struct Group {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    version: CgroupVersion,
    controllers: Vec<Controller>,
    path: PathBuf,
    /// The controllers whose every knob was found to hold what was written.
    kept: Vec<Controller>,
}

/// What the group used, as its files say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub cpu_us: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    pub processes_peak: Option<u64>,
    pub oom_kills: u64,
    pub forks_refused: u64,
}

impl Group {
    /// Makes the directories and writes every limit. On an error nothing is left.
    pub(crate) fn create(plan: &Cgroup) -> std::result::Result<Self, (usize, Errno)> {
        let mut group = Self::default();
        for (index, hierarchy) in plan.hierarchies.iter().enumerate() {
            group.add(hierarchy, &plan.name).map_err(|errno| (index, errno))?;
        }
        Ok(group)
    }

    fn add(&mut self, hierarchy: &Hierarchy, name: &str) -> Result<()> {
        let parent = match &hierarchy.place {
            Place::Beneath(parent) => parent.clone(),
            Place::Own { mount } => take_over_own(mount, &hierarchy.controllers)?,
        };
        let path = parent.join(name);
        fs::create_dir(&path).map_err(errno)?;
        self.parts.push(Part {
            version: hierarchy.version,
            controllers: hierarchy.controllers.clone(),
            path: path.clone(),
            kept: Vec::new(),
        });
        hierarchy.knobs.iter().try_for_each(|knob| set(&path, knob))
    }

    /// Whether the group must exist before the process that shall be in it. Otherwise it can be made
    /// while that one makes itself ready.
    pub(crate) fn is_born_into(plan: &Cgroup) -> bool {
        plan.hierarchies.iter().any(|one| one.version == CgroupVersion::V2)
    }

    /// v2: the directory that the payload is cloned into. As the doors of v1 it spares the kernel its
    /// global lock, and with it an RCU grace period, 10 ms on an idle machine, which moving any process
    /// by `cgroup.procs` would take.
    pub(crate) fn birthplace(&self) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let part = self.parts.iter().find(|part| part.version == CgroupVersion::V2);
        part.map(|part| rustix::fs::open(&part.path, flags, Mode::empty())).transpose()
    }

    /// v2: puts a process in that was born elsewhere, at the cost of that lock.
    pub(crate) fn take_in(&self, pid: u32) -> Result<()> {
        let mut parts = self.parts.iter().filter(|part| part.version == CgroupVersion::V2);
        parts
            .try_for_each(|part| fs::write(part.path.join("cgroup.procs"), pid.to_string()))
            .map_err(errno)
    }

    /// v1: the `tasks` files, to which a single thread writes `0` to move itself. The kernel checks the
    /// opener's rights (since CVE-2021-4197), so the payload needs none of its own.
    pub(crate) fn doors(&self) -> Result<Vec<OwnedFd>> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let parts = self.parts.iter().filter(|part| part.version == CgroupVersion::V1);
        parts.map(|part| rustix::fs::open(part.path.join("tasks"), flags, Mode::empty())).collect()
    }

    /// Looks whether every knob holds what was written. The group's own business, so it is done while
    /// the payload is not yet in it.
    pub(crate) fn read_knobs_back(&mut self, plan: &Cgroup) {
        for (part, hierarchy) in self.parts.iter_mut().zip(&plan.hierarchies) {
            let kept = |controller: &Controller| {
                let own = |knob: &&Knob| knob.file.starts_with(controller.name());
                hierarchy.knobs.iter().filter(own).all(|knob| reads_as_written(&part.path, knob))
            };
            part.kept = part.controllers.iter().copied().filter(kept).collect();
        }
    }

    /// Whether the process with this `membership` (its /proc/PID/cgroup) is in the directory of a
    /// controller, and every knob there was found to hold what was written.
    pub(crate) fn holds(
        &self,
        plan: &Cgroup,
        membership: &str,
        controller: Controller,
    ) -> Option<bool> {
        let part = self.parts.iter().find(|part| part.controllers.contains(&controller))?;
        let inside = membership.lines().any(|line| is_in(line, part, controller, &plan.name));
        Some(inside && part.kept.contains(&controller))
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for part in &self.parts {
            for controller in &part.controllers {
                part.measure(*controller, &mut usage);
            }
        }
        usage
    }

    /// CPU time used so far by all that ever ran in the group.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        self.usage_of(&[Controller::Cpu, Controller::Cpuacct]).cpu_us
    }

    pub(crate) fn oom_kills(&self) -> u64 {
        self.usage_of(&[Controller::Memory]).oom_kills
    }

    fn usage_of(&self, wanted: &[Controller]) -> Usage {
        let mut usage = Usage::default();
        for part in &self.parts {
            for controller in part.controllers.iter().filter(|one| wanted.contains(one)) {
                part.measure(*controller, &mut usage);
            }
        }
        usage
    }

    /// The directory that has a controller, and which of the two versions it is of.
    pub(crate) fn directory_of(&self, controller: Controller) -> Option<(CgroupVersion, &Path)> {
        let part = self.parts.iter().find(|part| part.controllers.contains(&controller))?;
        Some((part.version, &part.path))
    }

    /// Every directory of a version.
    pub(crate) fn directories(&self, version: CgroupVersion) -> impl Iterator<Item = &Path> {
        let parts = self.parts.iter().filter(move |part| part.version == version);
        parts.map(|part| part.path.as_path())
    }

    /// A descriptor that poll reports when the group runs out of memory.
    pub(crate) fn memory_alarm(&self) -> Result<Option<Alarm>> {
        let part = self.parts.iter().find(|part| part.controllers.contains(&Controller::Memory));
        part.map(Part::memory_alarm).transpose()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last made goes first: a scope's inner directories before the outer.
        for part in self.parts.drain(..).rev() {
            remove(&part.path);
        }
    }
}

/// Whether a line of /proc/PID/cgroup (`number:controllers:path`) says that the process is in `name`.
fn is_in(line: &str, part: &Part, controller: Controller, name: &str) -> bool {
    let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':'))
    else {
        return false;
    };
    let hierarchy = match part.version {
        CgroupVersion::V1 => controllers.split(',').any(|one| one == controller.name()),
        CgroupVersion::V2 => controllers.is_empty(),
    };
    hierarchy && path.rsplit('/').next() == Some(name)
}

/// How the kernel tells that memory ran out.
#[derive(Debug)]
pub(crate) enum Alarm {
    /// v1: an eventfd that becomes readable. The control file must stay open.
    Event(OwnedFd, #[expect(dead_code, reason = "held open for the kernel")] OwnedFd),
    /// v2: `memory.events`, which reports POLLPRI when a number in it changes.
    File(OwnedFd),
}

impl Part {
    fn measure(&self, controller: Controller, usage: &mut Usage) {
        let number = |file: &str| read(&self.path, file).and_then(|text| text.trim().parse().ok());
        let field = |file: &str, key: &str| read(&self.path, file).and_then(|t| keyed(&t, key));
        match (self.version, controller) {
            (CgroupVersion::V1, Controller::Memory) => {
                usage.memory_peak_bytes = number("memory.max_usage_in_bytes");
                usage.oom_kills = field("memory.oom_control", "oom_kill").unwrap_or(0);
            }
            (CgroupVersion::V2, Controller::Memory) => {
                usage.memory_peak_bytes = number("memory.peak");
                usage.oom_kills = field("memory.events", "oom_kill").unwrap_or(0);
            }
            (_, Controller::Pids) => {
                usage.processes_peak = number("pids.peak");
                usage.forks_refused = field("pids.events", "max").unwrap_or(0);
            }
            (CgroupVersion::V1, Controller::Cpuacct) => {
                usage.cpu_us = number("cpuacct.usage").map(|nanos: u64| nanos / 1000);
            }
            (CgroupVersion::V2, Controller::Cpu) => {
                usage.cpu_us = field("cpu.stat", "usage_usec");
            }
            (CgroupVersion::V1, Controller::Cpu)
            | (CgroupVersion::V2, Controller::Cpuacct)
            | (_, Controller::Freezer) => {}
        }
    }

    fn memory_alarm(&self) -> Result<Alarm> {
        let open = |file: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(self.path.join(file), flags, Mode::empty())
        };
        if self.version == CgroupVersion::V2 {
            return Ok(Alarm::File(open("memory.events")?));
        }
        let control = open("memory.oom_control")?;
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let line = format!(
            "{} {}",
            std::os::fd::AsRawFd::as_raw_fd(&event),
            std::os::fd::AsRawFd::as_raw_fd(&control)
        );
        write(&self.path, "cgroup.event_control", &line)?;
        Ok(Alarm::Event(event, control))
    }
}

/// Makes the keeper's own delegated cgroup usable: itself into a leaf, controllers on for the rest.
fn take_over_own(mount: &Path, controllers: &[Controller]) -> Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").map_err(errno)?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).ok_or(Errno::NOENT)?;
    let own = mount.join(path);
    // v2 lets a cgroup either hold processes or give controllers to its children, never both.
    let leaf = own.join("belljar-keeper");
    fs::create_dir(&leaf).map_err(errno)?;
    write(&leaf, "cgroup.procs", "0")?;
    let wanted: Vec<String> = controllers.iter().map(|one| format!("+{}", one.name())).collect();
    write(&own, "cgroup.subtree_control", &wanted.join(" "))?;
    Ok(own)
}

fn set(directory: &Path, knob: &Knob) -> Result<()> {
    match write(directory, &knob.file, &knob.value) {
        Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::ACCESS) if knob.if_present => Ok(()),
        result => result,
    }
}

fn reads_as_written(directory: &Path, knob: &Knob) -> bool {
    match read(directory, &knob.file) {
        Some(text) => text.trim() == knob.value,
        None => knob.if_present,
    }
}

/// One call reads such a file whole; they have a few lines.
fn read(directory: &Path, file: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory.join(file), flags, Mode::empty()).ok()?;
    let mut text = [0; FILE_BYTES];
    let length = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..length]).ok().map(ToOwned::to_owned)
}

fn write(directory: &Path, file: &str, value: &str) -> Result<()> {
    // No O_CREAT: a file that the kernel does not offer must be ENOENT, not EACCES or EPERM.
    let mut file = fs::OpenOptions::new().write(true).open(directory.join(file)).map_err(errno)?;
    file.write_all(value.as_bytes()).map_err(errno)
}

/// The number after `key` in a file of `key number` lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

fn remove(path: &Path) {
    for _ in 0..REMOVE_ATTEMPTS {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                crate::keeper::pause(REMOVE_PAUSE_MS);
            }
            // Gone, or not ours to remove: a later sweep has the name and finds out.
            _ => return,
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function in map_err")]
pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyed_number_is_found_by_its_whole_key() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "oom"), None);
    }
}
