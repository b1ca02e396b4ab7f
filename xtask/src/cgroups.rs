//! The host's cgroup hierarchies, and the part of each that is handed to the ordinary test user.
//!
//! `belljar` looks for `<mount>/belljar/<uid>`. A login manager would make it on a user's machine; here xtask
//! does, as root, and takes away what it made.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::ordinary_user::User;
use crate::shell;

/// The controllers that limits need; `cpuset`, `blkio` and the rest are none of our business.
const CONTROLLERS: [&str; 5] = ["memory", "pids", "cpu", "cpuacct", "freezer"];
/// The files by which an owner uses its cgroup. Some exist in v1 only, some in v2 only.
const OWNER_FILES: [&str; 4] =
    ["cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads"];

/// One mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) mount: PathBuf,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    V1 { controllers: Vec<String> },
    V2,
}

/// The directories made for the test user.
#[derive(Debug)]
pub(crate) struct Delegation {
    made: Vec<PathBuf>,
    /// Where the test process must start: in v2 a user may move a process only between cgroups whose common
    /// ancestor is its own. A login session begins in such a place too.
    pub(crate) start_in: Option<PathBuf>,
}

/// The hierarchies mounted here.
pub(crate) fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    Ok(parse(&mountinfo))
}

impl Delegation {
    /// Makes `<mount>/belljar/<uid>` in every hierarchy that matters and gives it to `user`.
    pub(crate) fn prepare(user: &User) -> Result<Self> {
        let hierarchies = hierarchies()?;
        let mut delegation = Self { made: Vec::new(), start_in: None };
        hierarchies
            .iter()
            .filter(|hierarchy| hierarchy.kind == Kind::V2 || hierarchy.has_v1_controller())
            .try_for_each(|hierarchy| delegation.hand_over(hierarchy, user))?;
        Ok(delegation)
    }

    fn hand_over(&mut self, hierarchy: &Hierarchy, user: &User) -> Result<()> {
        let parent = hierarchy.mount.join("belljar");
        let own = parent.join(user.uid.to_string());
        self.make(&parent)?;
        if hierarchy.kind == Kind::V2 {
            enable_controllers(&hierarchy.mount)?;
            enable_controllers(&parent)?;
        }
        self.make(&own)?;
        give(&own, user)?;
        if hierarchy.kind == Kind::V2 {
            // A leaf of its own: a v2 cgroup that holds processes cannot hand controllers to its children.
            let suite = own.join("suite");
            self.make(&suite)?;
            give(&suite, user)?;
            self.start_in = Some(suite);
        }
        Ok(())
    }

    /// Makes a directory and remembers that it is ours to remove, unless it was there.
    fn make(&mut self, directory: &Path) -> Result<()> {
        match fs::create_dir(directory) {
            Ok(()) => self.made.push(directory.to_path_buf()),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot make cgroup {}", directory.display()));
            }
        }
        Ok(())
    }

    /// Takes away what was made, deepest first. What the suites left inside keeps its directory; the comparison of
    /// leftovers names it, and the drop tries again after they were ended.
    pub(crate) fn remove(&mut self) {
        self.made.sort_by(|left, right| right.cmp(left)); // What a directory holds sorts after it.
        self.made.retain(|directory| fs::remove_dir(directory).is_err());
    }
}

impl Drop for Delegation {
    fn drop(&mut self) {
        self.remove();
        for directory in &self.made {
            shell::complain(format!("cannot remove cgroup {}", directory.display()));
        }
    }
}

impl Hierarchy {
    fn has_v1_controller(&self) -> bool {
        match &self.kind {
            Kind::V1 { controllers } => {
                controllers.iter().any(|name| CONTROLLERS.contains(&name.as_str()))
            }
            Kind::V2 => false,
        }
    }
}

/// Lets the children of a v2 cgroup use what it has of the controllers we need.
fn enable_controllers(cgroup: &Path) -> Result<()> {
    let available = fs::read_to_string(cgroup.join("cgroup.controllers"))
        .with_context(|| format!("cannot read the controllers of {}", cgroup.display()))?;
    for controller in available.split_whitespace().filter(|name| CONTROLLERS.contains(name)) {
        fs::write(cgroup.join("cgroup.subtree_control"), format!("+{controller}"))
            .with_context(|| format!("cannot enable {controller} below {}", cgroup.display()))?;
    }
    Ok(())
}

fn give(cgroup: &Path, user: &User) -> Result<()> {
    let files = OWNER_FILES.iter().map(|file| cgroup.join(file)).filter(|file| file.exists());
    for path in std::iter::once(cgroup.to_path_buf()).chain(files) {
        chown(&path, Some(user.uid), Some(user.gid))
            .with_context(|| format!("cannot give {} to {}", path.display(), user.name))?;
    }
    Ok(())
}

/// proc(5): `id parent dev root MOUNT options … - TYPE source SUPER-OPTIONS`. In v1 the last names the controllers.
fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mount = PathBuf::from(mount.split(' ').nth(4)?);
        let mut filesystem = filesystem.split(' ');
        let kind = match filesystem.next()? {
            "cgroup2" => Kind::V2,
            "cgroup" => {
                Kind::V1 { controllers: filesystem.nth(1)?.split(',').map(str::to_owned).collect() }
            }
            _ => return None,
        };
        Some(Hierarchy { mount, kind })
    };
    mountinfo.lines().filter_map(hierarchy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_mounts_are_told_apart() {
        let found = parse(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        );
        let mounts: Vec<_> = found.iter().map(|h| (h.mount.to_str().unwrap(), &h.kind)).collect();
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].0, "/sys/fs/cgroup/cpu,cpuacct");
        assert!(found[0].has_v1_controller());
        assert!(!found[1].has_v1_controller(), "name=systemd limits nothing");
        assert_eq!(mounts[2], ("/sys/fs/cgroup/unified", &Kind::V2));
    }
}
