//! Where this process may make cgroups: version 2, version 1, or both at once (hybrid).
//!
//! What counts is a directory that is ours to use with the controllers on. Own cgroups come first, so
//! that a run stays inside whatever bounds its caller; then what an operator delegated to this user;
//! and where systemd owns the tree, a scope that it makes on request, one for each run.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use belljar_jail::plan::{Cgroup, CgroupVersion, Controller, Hierarchy, Knob, Place};
use rustix::fs::{Access, AtFlags, CWD};

use super::systemd::{self, Bus};
use crate::model::limits::Limits;

/// What this host offers this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// Directories that are ours to use.
    Ready(Places),
    /// None yet; systemd makes one around each keeper when asked over one of these.
    Scope { buses: Vec<Bus>, mount: PathBuf },
    /// None, and why.
    None(String),
}

impl fmt::Display for Cgroups {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(places) => {
                let parts: Vec<String> = places.all.iter().map(ToString::to_string).collect();
                out.write_str(&parts.join("; "))
            }
            Self::Scope { .. } => out.write_str("a systemd scope for each run, made on request"),
            Self::None(why) => out.write_str(why),
        }
    }
}

impl fmt::Display for PlaceOf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.controllers.iter().map(|one| one.name()).collect();
        let version = match self.version {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
        };
        let place = match &self.place {
            Place::Beneath(directory) => directory.display().to_string(),
            Place::Own { .. } => "a scope of its own".to_owned(),
        };
        write!(out, "{version} {} in {place}", names.join(" "))
    }
}

/// One directory (or the own scope) for each hierarchy that a run needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    pub all: Vec<PlaceOf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceOf {
    pub version: CgroupVersion,
    pub controllers: Vec<Controller>,
    pub place: Place,
}

/// One mounted hierarchy and where this process is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mounted {
    version: CgroupVersion,
    mount: PathBuf,
    controllers: Vec<Controller>,
    own: PathBuf,
}

const NEEDED: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

/// Looks for a place. A process that is alone in a cgroup delegated to it moves into a leaf of that.
pub fn find(uid: u32) -> Cgroups {
    let (mountinfo, own) = (read_proc("/proc/self/mountinfo"), read_proc("/proc/self/cgroup"));
    let mounted = parse(&mountinfo, &own);
    if mounted.is_empty() {
        return Cgroups::None("no cgroup file system is mounted".to_owned());
    }
    let mut all = v1_places(&mounted, uid);
    let mut missing: Vec<Controller> = NEEDED.to_vec();
    missing.retain(|needed| !all.iter().any(|place| place.controllers.contains(needed)));
    if missing.is_empty() {
        return Cgroups::Ready(Places { all });
    }
    let two = mounted.iter().find(|one| one.version == CgroupVersion::V2);
    let directory = two.and_then(|two| v2_directory(two, &missing));
    if let Some(directory) = directory {
        all.push(PlaceOf {
            version: CgroupVersion::V2,
            controllers: missing,
            place: Place::Beneath(directory),
        });
        return Cgroups::Ready(Places { all });
    }
    let buses = systemd::buses(uid);
    match two {
        // A hybrid host's v2 tree has no controllers, so a scope there would limit nothing.
        Some(two) if all.is_empty() && !buses.is_empty() && offers(&two.mount, &missing) => {
            scope(two, uid, buses)
        }
        Some(two) if uid == 0 && offers(&two.mount, &missing) => Cgroups::None(format!(
            "the root cgroup hands no {} to its children (\"echo {} > {}/cgroup.subtree_control\" does)",
            names(&missing),
            switches(&missing),
            two.mount.display()
        )),
        _ => Cgroups::None(format!(
            "no cgroup directory with {} is delegated to uid {uid}",
            names(&missing)
        )),
    }
}

/// The kernel writes such a file anew for each read, and does not tell its length: a large buffer spares it
/// most of that.
fn read_proc(path: &str) -> String {
    let mut text = String::with_capacity(32 << 10);
    if let Ok(mut file) = fs::File::open(path) {
        file.read_to_string(&mut text).ok(); // what cannot be read is not mounted, for us
    }
    text
}

/// Where a v1 group that can be frozen may be made. v2 freezes every group, so it needs no place of its own.
pub(crate) fn freezer(uid: u32) -> Option<PlaceOf> {
    let (mountinfo, own) = (read_proc("/proc/self/mountinfo"), read_proc("/proc/self/cgroup"));
    let line = mountinfo.lines().find(|line| {
        let options = line.split_once(" - cgroup ").map(|(_, after)| after);
        options.is_some_and(|options| options.split([' ', ',']).any(|one| one == "freezer"))
    })?;
    let fields: Vec<&str> = line.split(' ').collect();
    let (root, mount) = (*fields.get(3)?, PathBuf::from(fields.get(4)?));
    let path = own.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        names.split(',').any(|name| name == "freezer").then_some(path)
    })?;
    let relative = Path::new(path).strip_prefix(root).ok()?;
    let own = if relative.as_os_str().is_empty() { mount.clone() } else { mount.join(relative) };
    let controllers = vec![Controller::Freezer];
    let mounted =
        Mounted { version: CgroupVersion::V1, mount, controllers: controllers.clone(), own };
    let place = Place::Beneath(v1_directory(&mounted, uid)?);
    Some(PlaceOf { version: CgroupVersion::V1, controllers, place })
}

fn v1_places(mounted: &[Mounted], uid: u32) -> Vec<PlaceOf> {
    let ones = mounted
        .iter()
        .filter(|one| one.version == CgroupVersion::V1 && !one.controllers.is_empty());
    ones.filter_map(|one| {
        Some(PlaceOf {
            version: CgroupVersion::V1,
            controllers: one.controllers.clone(),
            place: Place::Beneath(v1_directory(one, uid)?),
        })
    })
    .collect()
}

/// A scope can hand on only what the user's own systemd was given.
fn scope(two: &Mounted, uid: u32, buses: Vec<Bus>) -> Cgroups {
    let mount = two.mount.clone();
    let manager = format!("user.slice/user-{uid}.slice/user@{uid}.service");
    let manager = mount.join(manager);
    if uid != 0 && manager.is_dir() && !offers(&manager, &NEEDED) {
        return Cgroups::None(format!(
            "systemd gives user@{uid}.service less than {} (a drop-in with \"Delegate={}\" does)",
            names(&NEEDED),
            names(&NEEDED).replace(',', "")
        ));
    }
    Cgroups::Scope { buses, mount }
}

impl Cgroups {
    /// The place of one run, once its keeper is there: made on request if need be.
    pub(crate) fn provide(&self, uid: u32, id: &str, keeper: u32) -> Result<Places, String> {
        match self {
            Self::Ready(places) => Ok(places.clone()),
            Self::None(why) => Err(why.clone()),
            Self::Scope { buses, mount } => {
                systemd::start_scope(buses, uid, id, keeper)?;
                let mount = mount.clone();
                let place = PlaceOf {
                    version: CgroupVersion::V2,
                    controllers: NEEDED.to_vec(),
                    place: Place::Own { mount },
                };
                Ok(Places { all: vec![place] })
            }
        }
    }
}

/// As `cgroup.subtree_control` takes them.
fn switches(controllers: &[Controller]) -> String {
    let all: Vec<String> = controllers.iter().map(|one| format!("+{}", one.name())).collect();
    all.join(" ")
}

fn names(controllers: &[Controller]) -> String {
    let names: Vec<&str> = controllers.iter().map(|one| one.name()).collect();
    names.join(", ")
}

/// The cgroup of one run, with its limits.
pub(crate) fn plan(places: &Places, name: &str, limits: &Limits) -> Cgroup {
    let hierarchies = places.all.iter().map(|place| Hierarchy {
        version: place.version,
        controllers: place.controllers.clone(),
        place: place.place.clone(),
        knobs: place
            .controllers
            .iter()
            .flat_map(|one| knobs(place.version, *one, limits))
            .collect(),
    });
    Cgroup { name: name.to_owned(), hierarchies: hierarchies.collect() }
}

/// The period over which CPU time is shared out: the kernel's default.
const PERIOD_US: u64 = 100_000;

fn knobs(version: CgroupVersion, controller: Controller, limits: &Limits) -> Vec<Knob> {
    let knob = |file: &str, value: String| Knob { file: file.to_owned(), value, if_present: false };
    let maybe = |file: &str, value: String| Knob { if_present: true, ..knob(file, value) };
    // The kernel counts memory in pages and reads back whole ones.
    let memory = (limits.memory_bytes / 4096 * 4096).to_string();
    let quota = (limits.millicpus * PERIOD_US / 1000).to_string();
    match (version, controller) {
        (CgroupVersion::V1, Controller::Memory) => vec![
            knob("memory.limit_in_bytes", memory.clone()),
            maybe("memory.memsw.limit_in_bytes", memory),
        ],
        (CgroupVersion::V2, Controller::Memory) => vec![
            knob("memory.max", memory),
            maybe("memory.swap.max", "0".to_owned()),
            // One killed process takes the whole run along: a half-dead program tells nothing.
            maybe("memory.oom.group", "1".to_owned()),
        ],
        (_, Controller::Pids) => vec![knob("pids.max", limits.processes.to_string())],
        (CgroupVersion::V1, Controller::Cpu) => {
            vec![knob("cpu.cfs_period_us", PERIOD_US.to_string()), knob("cpu.cfs_quota_us", quota)]
        }
        (CgroupVersion::V2, Controller::Cpu) => {
            vec![knob("cpu.max", format!("{quota} {PERIOD_US}"))]
        }
        (_, Controller::Cpuacct | Controller::Freezer) => Vec::new(),
    }
}

/// On v1 a directory that we may write is enough: no rule about where its processes come from.
fn v1_directory(mounted: &Mounted, uid: u32) -> Option<PathBuf> {
    let delegated = mounted.mount.join("belljar").join(uid.to_string());
    [mounted.own.clone(), delegated].into_iter().find(|path| writable(path))
}

/// On v2 the directory must also be above where we are: a process moves only by the leave of the
/// nearest cgroup that is above both places (cgroup-v2, "Delegation Containment"). And its children
/// must have the controllers, which none but the root may give while it holds processes itself.
fn v2_directory(mounted: &Mounted, needed: &[Controller]) -> Option<PathBuf> {
    let ancestors = mounted.own.ancestors().take_while(|path| path.starts_with(&mounted.mount));
    for directory in ancestors.filter(|path| !systemd_owns(&mounted.mount, path)) {
        let procs = directory.join("cgroup.procs");
        let ours = writable(directory) && writable(&procs);
        if ours && lists(directory, "cgroup.subtree_control", needed) {
            return Some(directory.to_owned());
        }
    }
    take_over(&mounted.mount, &mounted.own, needed)
}

/// Makes a unit that is delegated to us and holds nobody else fit for children: ourselves into a leaf,
/// controllers on. The unit goes when we end, and all of this with it.
fn take_over(mount: &Path, own: &Path, needed: &[Controller]) -> Option<PathBuf> {
    let unit = is_unit(own) && !systemd_owns(mount, own);
    let ours = writable(own) && writable(&own.join("cgroup.subtree_control"));
    if !(unit && ours && only_us(own) && offers(own, needed)) {
        return None;
    }
    let leaf = own.join("belljar-engine");
    fs::create_dir(&leaf).ok()?;
    fs::write(leaf.join("cgroup.procs"), "0").ok()?;
    fs::write(own.join("cgroup.subtree_control"), switches(needed)).ok()?;
    Some(own.to_owned())
}

/// Whether systemd decides what is in this directory. It takes controllers from, and may remove, what
/// it did not make itself, except below a unit that it was told to delegate.
fn systemd_owns(mount: &Path, directory: &Path) -> bool {
    let below = directory.ancestors().take_while(|path| *path != mount);
    match { below }.find(|path| is_unit(path)) {
        // A user's own systemd: it got the tree delegated, and owns it in turn.
        Some(unit) if file_name(unit).starts_with("user@") => true,
        Some(unit) => !is_delegated(unit),
        None => directory == mount && systemd::runs_this_host(),
    }
}

fn is_unit(directory: &Path) -> bool {
    let name = file_name(directory);
    [".slice", ".service", ".scope"].iter().any(|suffix| name.ends_with(suffix))
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
}

/// systemd marks what it delegated: newer ones for all to read, older ones for root alone.
fn is_delegated(unit: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(unit, *name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    })
}

fn offers(directory: &Path, needed: &[Controller]) -> bool {
    lists(directory, "cgroup.controllers", needed)
}

fn lists(directory: &Path, file: &str, needed: &[Controller]) -> bool {
    let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
    needed.iter().all(|one| text.split_ascii_whitespace().any(|word| word == one.name()))
}

fn only_us(directory: &Path) -> bool {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id().to_string();
    text.lines().all(|line| line == own)
}

fn writable(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Joins what mountinfo says is mounted with where /proc/self/cgroup says we are.
fn parse(mountinfo: &str, own: &str) -> Vec<Mounted> {
    let paths: BTreeMap<&str, &str> = own
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(_, rest)| rest.split_once(':'))
        .flat_map(|(names, path)| names.split(',').map(move |name| (name, path)))
        .collect();
    mountinfo.lines().filter_map(|line| parse_mount(line, &paths)).collect()
}

fn parse_mount(line: &str, paths: &BTreeMap<&str, &str>) -> Option<Mounted> {
    let (before, after) = line.split_once(" - ")?;
    let fields: Vec<&str> = before.split(' ').collect();
    let (root, mount) = (*fields.get(3)?, PathBuf::from(fields.get(4)?));
    let mut after = after.split(' ');
    let kind = after.next()?;
    let options: Vec<&str> = after.nth(1)?.split(',').collect();
    let (version, controllers, path) = match kind {
        "cgroup2" => (CgroupVersion::V2, Vec::new(), paths.get("")?),
        "cgroup" => {
            let known =
                [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Cpuacct];
            let here: Vec<Controller> =
                known.into_iter().filter(|one| options.contains(&one.name())).collect();
            let path = paths.get(here.first()?.name())?;
            (CgroupVersion::V1, here, path)
        }
        _ => return None,
    };
    // A mount may show only part of the hierarchy; ours is then below that part, or out of sight.
    let relative = Path::new(path).strip_prefix(root).ok()?;
    let own = if relative.as_os_str().is_empty() { mount.clone() } else { mount.join(relative) };
    Some(Mounted { version, mount, controllers, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
33 25 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
34 25 0:30 / /home rw - ext4 /dev/vda rw";

    #[test]
    fn a_hybrid_host_is_read_hierarchy_by_hierarchy() {
        let own = "4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/user\n";
        let mounted = parse(HYBRID, own);
        assert_eq!(mounted.len(), 3);
        assert_eq!(mounted[0].controllers, [Controller::Cpu, Controller::Cpuacct]);
        assert_eq!(mounted[1].own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(mounted[2].own, Path::new("/sys/fs/cgroup/unified/user"));
    }

    #[test]
    fn a_cgroup_out_of_sight_is_not_ours() {
        let line = "31 25 0:27 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        assert_eq!(parse(line, "4:memory:/docker/2\n"), []);
        assert_eq!(parse(line, "4:memory:/docker/1\n").len(), 1);
    }

    #[test]
    fn what_is_in_a_unit_is_systemds_unless_it_was_delegated() {
        let mount = Path::new("/nonexistent/cgroup");
        let owns = |path: &str| systemd_owns(mount, &mount.join(path));
        assert!(owns("system.slice"));
        assert!(owns("user.slice/user-7.slice/session-1.scope"));
        assert!(owns("user.slice/user-7.slice/user@7.service/app.slice"));
        assert!(owns("system.slice/x.service/inner"), "it has no mark");
        assert!(!owns("lab/leaf"), "made by an operator");
    }

    #[test]
    fn limits_become_knobs_in_the_kernels_units() {
        let limits = crate::model::limits::LimitsRequest {
            memory_bytes: Some((64 << 20) + 5),
            millicpus: Some(1500),
            ..Default::default()
        };
        let limits = limits.resolve().unwrap();
        let memory = knobs(CgroupVersion::V2, Controller::Memory, &limits);
        assert_eq!(memory[0].value, (64 << 20).to_string());
        let cpu = knobs(CgroupVersion::V2, Controller::Cpu, &limits);
        assert_eq!(cpu[0].value, "150000 100000");
    }
}
