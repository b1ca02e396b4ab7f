//! Removing what a killed engine and a killed keeper left: empty cgroups and scratch directories.
//!
//! A name tells whose it was: process id, start time and pid namespace, so that a reused id is not taken
//! for the owner. Only what belongs to nobody alive is removed, and a cgroup that still holds a process stays.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use belljar_jail::plan::{Cgroup, Files, Place, Plan};
use rustix::event::{Timespec, poll};

use super::cgroups::Cgroups;
use super::host::Host;

const PREFIX: &str = "belljar";

/// Names a run's directories after this process.
pub(crate) fn name(unique: &str) -> String {
    static OURS: OnceLock<String> = OnceLock::new();
    let ours = OURS.get_or_init(|| stem(std::process::id()));
    format!("{ours}-{unique}")
}

/// Names directories after another process, which outlives this one: they are swept when it is gone.
pub(crate) fn name_after(pid: u32, unique: &str) -> String {
    format!("{}-{unique}", stem(pid))
}

/// What every name of a process's directories begins with.
fn stem(pid: u32) -> String {
    let (start, world) = (start_time(pid).unwrap_or(0), world());
    format!("{PREFIX}-{pid}-{start}-{world}")
}

/// What tells this process from every other one, of this boot and of all before it.
pub(crate) fn engine_name() -> String {
    format!("{} {}", name("engine"), boot())
}

/// Whether the process of such a name is gone. One of another pid namespace cannot be told while the
/// kernel runs on, and is taken to live.
pub(crate) fn engine_is_dead(engine: &str) -> bool {
    let Some((named, booted)) = engine.split_once(' ') else { return false };
    booted != boot() || owner(named).is_some_and(|(pid, start)| !lives(pid, start))
}

/// The name of this run of the kernel.
pub(crate) fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    })
}

/// Which pid namespace our process ids belong to. A container that shares our /tmp names its processes
/// by the same numbers, and its live runs are not ours to judge.
fn world() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |one| one.ino())
}

/// When a process started, in clock ticks since boot: with its id, its identity.
fn start_time(pid: u32) -> Option<u64> {
    fields_of(&stat_of(pid)?)?.nth(19)?.parse().ok()
}

/// Whether the process of this id and start runs. One that was killed and not yet reaped does not, however long whoever
/// should reap it takes: what it kept is nobody's.
fn lives(pid: u32, start: u64) -> bool {
    let Some(stat) = stat_of(pid) else { return false };
    let Some(mut fields) = fields_of(&stat) else { return false };
    let is_zombie = matches!(fields.next(), Some("Z" | "X"));
    let started = fields.nth(18).and_then(|field| field.parse().ok());
    // A process whose first thread has left goes on in the others, and is shown in the state of the first.
    started == Some(start) && (!is_zombie || threads(pid) > 1)
}

fn stat_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// What follows the name, which may hold anything: the state, and then numbers.
fn fields_of(stat: &str) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    Some(stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace())
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().count()
}

/// Looks through the places where runs leave things.
pub(crate) fn sweep(host: &Host) {
    // What is in a scope goes with the scope.
    let places = match &host.cgroups {
        Cgroups::Ready(places) => &places.all[..],
        Cgroups::Scope { .. } | Cgroups::None(_) => &[],
    };
    let freezer = super::cgroups::freezer(host.uid);
    for place in places.iter().chain(&freezer) {
        if let Place::Beneath(directory) = &place.place {
            each_orphan(directory, |path| {
                thaw(path);
                drop(fs::remove_dir(path));
            });
        }
    }
    if !is_ours(&host.scratch_parent, host.uid) {
        return; // absent, or somebody else made it first to have us remove what is not ours
    }
    each_orphan(&host.scratch_parent, |path| drop(remove_scratch(path)));
    // Gone when it is empty; in use when it is not.
    drop(fs::remove_dir(&host.scratch_parent));
}

/// Lets what is frozen in an orphaned cgroup go on, so that it can die: a frozen process of version 1 does not, though it
/// was killed. The next sweep removes the group.
fn thaw(path: &Path) {
    for (file, word) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        if path.join(file).exists() {
            fs::write(path.join(file), word).ok(); // gone meanwhile
        }
    }
}

/// A real directory of this user; in a sticky /tmp nobody else can then put another in its place.
fn is_ours(directory: &Path, uid: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|one| one.is_dir() && one.uid() == uid)
}

/// How long the last processes of a run may take to die once their keeper is gone.
const DYING: Duration = Duration::from_secs(5);

/// Removes what a run's keeper would have removed, had it lived: its cgroups and scratch directory.
///
/// The kernel has ended the processes by then, or init is at it, and a cgroup can be removed only when
/// they are gone. What is still there after a while is left to the next sweep.
pub(crate) fn remove_run(plan: &Plan) {
    let deadline = Instant::now() + DYING;
    plan.cgroup.iter().for_each(remove_run_cgroups);
    if let Files::Host { scratch } = &plan.files {
        until(deadline, || remove_scratch(&scratch.path()));
        // Gone when it is empty; in use when it is not.
        drop(fs::remove_dir(&scratch.parent));
    }
}

/// The part of [`remove_run`] that a run with namespaces has.
pub(crate) fn remove_run_cgroups(group: &Cgroup) {
    let deadline = Instant::now() + DYING;
    for one in &group.hierarchies {
        match &one.place {
            Place::Beneath(directory) => {
                let path = directory.join(&group.name);
                until(deadline, || fs::remove_dir(&path));
            }
            Place::Own { .. } => {} // goes with the scope
        }
    }
}

fn until(deadline: Instant, mut remove: impl FnMut() -> io::Result<()>) {
    let look_again = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    while let Err(error) = remove() {
        if error.kind() == io::ErrorKind::NotFound || Instant::now() >= deadline {
            return;
        }
        // No event tells that a stranger's child was reaped. A signal may cut this short.
        poll(&mut [], Some(&look_again)).ok();
    }
}

/// The tree is the program's work, so its names, modes and depth may be anything.
fn remove_scratch(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|one| one.to_str()))
    else {
        return Ok(());
    };
    let parent = fs::File::open(parent)?;
    Ok(belljar_jail::scratch::remove(&parent, name)?)
}

fn each_orphan(directory: &Path, remove: impl Fn(&Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(owner).is_some_and(|(pid, start)| !lives(pid, start)) {
            remove(&entry.path());
        }
    }
}

/// The process that a directory was named after, if it is one whose life we can tell.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.split('-');
    (parts.next()? == PREFIX).then_some(())?;
    let owner = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (parts.next()?.parse() == Ok(world())).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner() {
        let pid = std::process::id();
        assert_eq!(owner(&name("x")), Some((pid, start_time(pid).unwrap())));
        assert_eq!(owner("belljar-test"), None);
        assert_eq!(owner("systemd-1-2-3"), None);
    }

    #[test]
    fn who_was_killed_and_not_reaped_is_dead() {
        let (_ours, theirs) = belljar_jail::wire::control_pair().unwrap();
        let sleep = Path::new("/bin/sleep");
        let child = belljar_sys::spawn::with_socket(sleep, &["1000"], theirs).unwrap();
        let pid = child.id();
        let start = start_time(pid).unwrap();
        assert!(lives(pid, start));
        assert!(!lives(pid, start + 1), "a reused id");
        child.kill();
        let deadline = Instant::now() + DYING;
        while lives(pid, start) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(start_time(pid), Some(start), "nobody has reaped it");
        assert!(!lives(pid, start));
        child.wait();
    }

    #[test]
    fn an_engine_is_dead_when_its_process_or_its_boot_is_gone() {
        assert!(!engine_is_dead(&engine_name()));
        let pid = std::process::id();
        let (world, boot) = (world(), boot());
        assert!(engine_is_dead(&format!("belljar-{pid}-1-{world}-engine {boot}")), "a reused id");
        assert!(engine_is_dead(&format!("{} another-boot", name("engine"))));
        assert!(!engine_is_dead(&format!("belljar-1-1-1-engine {boot}")), "another namespace");
        assert!(!engine_is_dead("strange"));
    }

    #[test]
    fn only_what_belongs_to_nobody_alive_is_removed() {
        let parent = std::env::temp_dir().join(format!("belljar-sweep-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let alive = parent.join(name("alive"));
        let forged = parent.join(format!("belljar-{}-1-{}-reused", std::process::id(), world()));
        let strange = parent.join("somebody-1-1-x");
        let elsewhere = parent.join("belljar-1-1-1-x");
        for path in [&alive, &forged, &strange, &elsewhere] {
            fs::create_dir(path).unwrap();
        }
        each_orphan(&parent, |path| drop(fs::remove_dir_all(path)));
        assert!(alive.exists() && strange.exists() && !forged.exists());
        assert!(elsewhere.exists(), "who lives in another pid namespace cannot be told");
        fs::remove_dir_all(&parent).unwrap();
    }
}
