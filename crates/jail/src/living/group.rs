//! The cgroup of a living sandbox: who is let in, what it uses, and how it is frozen.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_sys::{Errno, Result};
use rustix::fs::{Mode, OFlags};

use crate::cgroup::{Alarm, Group, errno};
use crate::keeper::create_group;
use crate::plan::{Cgroup, CgroupVersion, Controller};
use crate::report::{At, Step, Stopped};

/// How long processes may take to come to a stand. One in the middle of a long call of the kernel takes a moment.
const FREEZING: Duration = Duration::from_secs(2);

/// The cgroup, or the lack of one.
#[derive(Debug)]
pub(crate) struct Cell {
    /// Before the group: its files are then closed when that is removed.
    pub alarm: Option<Alarm>,
    /// The `tasks` files of v1, through which each payload goes.
    pub doors: Vec<OwnedFd>,
    pub group: Option<Group>,
    pub frozen: bool,
}

impl Cell {
    pub(crate) fn create(plan: Option<&Cgroup>) -> std::result::Result<Self, Stopped> {
        let mut group = plan.map(create_group).transpose()?;
        if let (Some(group), Some(plan)) = (&mut group, plan) {
            group.read_knobs_back(plan);
        }
        let alarm = group.as_ref().map_or(Ok(None), Group::memory_alarm).at(Step::Cgroup)?;
        let doors = group.as_ref().map_or(Ok(Vec::new()), Group::doors).at(Step::Cgroup)?;
        Ok(Self { alarm, doors, group, frozen: false })
    }

    /// The doors in, and then as many out again, for somebody who only wants to look from there.
    pub(crate) fn visit(&self) -> Result<Vec<OwnedFd>> {
        let Some(group) = &self.group else {
            return Ok(Vec::new());
        };
        let mut doors = group.doors()?;
        for path in group.directories(CgroupVersion::V1) {
            let outside = path.parent().ok_or(Errno::NOENT)?.join("tasks");
            doors.push(rustix::fs::open(outside, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?);
        }
        Ok(doors)
    }

    /// v2: puts a process in.
    pub(crate) fn admit(&self, pid: u32) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.take_in(pid))
    }

    /// v2: puts a process that was admitted where we are ourselves.
    pub(crate) fn dismiss(&self, pid: u32) -> Result<()> {
        let Some(group) = &self.group else {
            return Ok(());
        };
        if group.directories(CgroupVersion::V2).next().is_none() {
            return Ok(());
        }
        let procs = own_v2_directory().ok_or(Errno::NOENT)?.join("cgroup.procs");
        fs::write(procs, pid.to_string()).map_err(errno)
    }

    fn number(&self, controller: Controller, v1: &str, v2: &str) -> Option<u64> {
        let (version, path) = self.group.as_ref()?.directory_of(controller)?;
        let file = if version == CgroupVersion::V1 { v1 } else { v2 };
        fs::read_to_string(path.join(file)).ok()?.trim().parse().ok()
    }

    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.number(Controller::Memory, "memory.usage_in_bytes", "memory.current")
    }

    pub(crate) fn processes(&self) -> Option<u64> {
        self.number(Controller::Pids, "pids.current", "pids.current")
    }

    pub(crate) fn cpu_us(&self) -> Option<u64> {
        self.group.as_ref().and_then(Group::cpu_us)
    }

    pub(crate) fn oom_kills(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::oom_kills)
    }

    pub(crate) fn forks_refused(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.usage().forks_refused)
    }

    /// Brings all in it to a stand, or lets them go on. `EOPNOTSUPP`: there is nothing here that could.
    pub(crate) fn set_frozen(&mut self, frozen: bool) -> Result<()> {
        let group = self.group.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let v2 = group.directories(CgroupVersion::V2).next();
        if let Some(path) = v2 {
            write(path, "cgroup.freeze", if frozen { "1" } else { "0" })?;
            let state = if frozen { "frozen 1" } else { "frozen 0" };
            await_state(&path.join("cgroup.events"), |text| text.lines().any(|one| one == state))?;
        } else {
            let (_, path) = group.directory_of(Controller::Freezer).ok_or(Errno::OPNOTSUPP)?;
            let state = if frozen { "FROZEN" } else { "THAWED" };
            write(path, "freezer.state", state)?;
            await_state(&path.join("freezer.state"), |text| text.trim() == state)?;
        }
        self.frozen = frozen;
        Ok(())
    }
}

fn write(directory: &Path, file: &str, value: &str) -> Result<()> {
    fs::write(directory.join(file), value).map_err(errno)
}

fn await_state(file: &Path, reached: impl Fn(&str) -> bool) -> Result<()> {
    let deadline = Instant::now() + FREEZING;
    loop {
        if reached(&fs::read_to_string(file).map_err(errno)?) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Errno::BUSY);
        }
        crate::keeper::pause(1);
    }
}

/// Where we are in the v2 hierarchy, as a directory.
fn own_v2_directory() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    Some(Path::new(mount.split(' ').nth(4)?).join(path))
}
