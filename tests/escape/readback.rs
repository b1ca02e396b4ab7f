//! A barrier that is silently not there: the kernel says yes and does nothing. The run is not released,
//! and the very layer is named. Where the kernel itself refuses the next act without that barrier, the
//! set-up stops there, before anybody could read back.
//!
//! Two layers are nowhere but in the plan: `belljar_jail::readback` has the tests of the deadline and of
//! the list of variables.

use belljar::{Error, Step};
use belljar_tests::{Layer, Level, each_level, is_root};

use crate::rig::{Rig, happens, nth, written_to};

/// Exactly these layers are found missing.
fn not_released(rig: &Rig, layers: &[Layer]) {
    match rig.run() {
        Err(Error::NotVerified { checks }) => {
            let missing = checks.iter().filter(|check| !check.verified);
            let missing: Vec<Layer> = missing.map(|check| check.name).collect();
            assert_eq!(missing, layers, "{rig:?}: {checks:?}");
        }
        other => panic!("{rig:?}: {other:?}"),
    }
}

/// The next act stumbles over the missing barrier.
fn stops_at(rig: &Rig, at: Step, with: &str) {
    match rig.run() {
        Err(Error::Setup { step, errno, .. }) => {
            assert_eq!((step, errno.as_str()), (at, with), "{rig:?}");
        }
        other => panic!("{rig:?}: {other:?}"),
    }
}

/// The call with this text, for strace: it does nothing and says that all is well.
fn skip(level: Level, call: &str, text: &str) -> String {
    format!("{call}:retval=0:when={}", nth(level, call, text))
}

each_level!(a_run_under_the_same_watch_is_released, |level| {
    // The control: watching alone hinders nobody. An ordinary user's newuidmap gains no privilege while
    // it is traced, so there the keeper alone is watched.
    let rig = if is_root() { Rig::all(level) } else { Rig::keeper(level) };
    let outcome = rig.run().expect("it is released");
    assert_eq!(outcome.stdout, "ran\n", "{outcome:?}");
    let outcome = Rig::keeper(level).acting_first().run().expect("it is released");
    assert!(outcome.ok(), "{outcome:?}");
});

each_level!(no_release_of_streams_that_are_not_pipes, [none, basic, standard], |level| {
    // A struct stat whose mode, after device, inode and links, is that of a plain file.
    let plain = format!("{}a4810000", "00".repeat(24));
    let at = nth(level, "fstat", "S_IFIFO");
    // The keeper stays readable meanwhile: to an ordinary user's strace its memory would be closed.
    let rig = Rig::keeper(level)
        .inject(skip(level, "prctl", "SUID_DUMP_DISABLE"))
        .inject(format!("fstat:poke_exit=@arg2={plain}:when={at}"));
    not_released(&rig, &[Layer::OutputCap]);
});

each_level!(no_release_with_a_descriptor_of_the_caller, [none, basic, standard], |level| {
    let rig = Rig::all(level).before("exec 9</etc/passwd").inject("close_range:retval=0");
    not_released(&rig, &[Layer::Descriptors]);
    // A caller that leaves it open does no harm as long as we close it.
    let outcome = Rig::keeper(level).before("exec 9</etc/passwd").run().expect("it is released");
    assert!(outcome.ok(), "{outcome:?}");
});

each_level!(no_release_of_a_tree_that_could_outlive_us, [none, basic], |level| {
    let rig = Rig::keeper(level).inject(skip(level, "prctl", "PR_SET_CHILD_SUBREAPER"));
    not_released(&rig, &[Layer::TreeKill]);
});

each_level!(no_release_in_the_callers_session, [none, basic, standard], |level| {
    not_released(&Rig::all(level).inject("setsid:retval=2"), &[Layer::Session]);
});

each_level!(no_release_without_limits, [basic, standard], |level| {
    // All but the first ones, which are also the runtime's own look at its stack; then a single one.
    not_released(&Rig::all(level).inject("prlimit64:retval=0:when=4+"), &[Layer::Rlimits]);
    not_released(&Rig::all(level).inject("prlimit64:retval=0:when=5"), &[Layer::Rlimits]);
});

each_level!(no_release_with_privileges_to_gain, [basic, standard], |level| {
    let rig = Rig::all(level).inject("prctl:retval=0");
    // Landlock is refused to who may still gain privileges …
    stops_at(&rig, Step::Landlock, "EPERM");
    // … and so is a filter.
    let rig = rig.inject("landlock_restrict_self:retval=0");
    stops_at(&rig, Step::Seccomp, "EACCES");
    if level == Level::Standard {
        // With neither to stumble over, all that is missing is found; `prctl` also empties the bounding
        // set.
        let missing =
            [Layer::NoNewPrivileges, Layer::Capabilities, Layer::Landlock, Layer::Seccomp];
        not_released(&rig.inject("seccomp:retval=0"), &missing);
    }
});

each_level!(no_release_without_landlock, [basic, standard], |level| {
    let rig = Rig::all(level).inject("landlock_restrict_self:retval=0");
    let missing = [Layer::Landlock, Layer::Scopes];
    // Above basic namespaces stand where the scopes would.
    not_released(&rig, if level == Level::Basic { &missing } else { &missing[..1] });
});

#[test]
fn no_release_without_scopes() {
    // Neither scope, only the one of sockets, only the one of signals. Root's run cannot signal init
    // anyway, so there a missing scope of signals makes no difference that anybody could see.
    let scopes: &[u8] = if is_root() { &[0, 2] } else { &[0, 1, 2] };
    for scoped in scopes {
        // A struct landlock_ruleset_attr: all rights on files, none on the network, then the scopes.
        let attributes =
            format!("ffff000000000000{}{scoped:02x}{}", "00".repeat(8), "00".repeat(7));
        let poke = format!("landlock_create_ruleset:poke_enter=@arg1={attributes}");
        let rig = Rig::all(Level::Basic).inject(poke);
        // To an ordinary user's strace the memory of our processes is closed, unless they are made
        // dumpable; for keeper and init alike it is the same call of their own.
        let dumpable = skip(Level::Basic, "prctl", "SUID_DUMP_DISABLE");
        let rig = if is_root() { rig } else { rig.inject(dumpable) };
        not_released(&rig, &[Layer::Scopes]);
    }
}

each_level!(no_release_without_a_filter, [basic, standard], |level| {
    not_released(&Rig::all(level).inject("seccomp:retval=0"), &[Layer::Seccomp]);
});

#[test]
fn no_release_with_capabilities() {
    let rig = Rig::all(Level::Standard);
    not_released(&rig.clone().inject("capset:retval=0"), &[Layer::Capabilities]);
    // One that is left in the bounding set, for a later exec to gain.
    let one = rig.inject(skip(Level::Standard, "prctl", "CAP_SYS_ADMIN"));
    not_released(&one, &[Layer::Capabilities]);
}

#[test]
fn no_release_with_the_callers_id() {
    let rig = Rig::all(Level::Basic);
    if !is_root() {
        // An ordinary user has no other id to become, so nothing is missing without the call.
        let rig = rig.inject("setresuid:retval=0").inject("setresgid:retval=0");
        assert!(rig.run().expect("it is released").ok());
        return;
    }
    not_released(&rig.clone().inject("setresgid:retval=0"), &[Layer::Identity]);
    let in_a_group = rig.clone().through("/usr/bin/setpriv --groups 27");
    not_released(&in_a_group.inject("setgroups:retval=0"), &[Layer::Identity]);
    // Root without capabilities may not even look at the run's own directory.
    stops_at(&rig.inject("setresuid:retval=0"), Step::Landlock, "EACCES");
    // In a user namespace that has no such id nobody can make a file.
    let rig = Rig::all(Level::Standard);
    stops_at(&rig.clone().inject("setresuid:retval=0"), Step::Writable, "EOVERFLOW");
    stops_at(&rig.inject("setresgid:retval=0"), Step::Writable, "EOVERFLOW");
}

/// Flags of clone(2): those of the keeper's one clone, and the one of init's.
const PIDFD: u64 = 0x1000;
const NEW_MOUNT: u64 = 0x0002_0000;
const NEW_UTS: u64 = 0x0400_0000;
const NEW_IPC: u64 = 0x0800_0000;
const NEW_USER: u64 = 0x1000_0000;
const NEW_PID: u64 = 0x2000_0000;
const ALL: u64 = PIDFD | NEW_MOUNT | NEW_UTS | NEW_IPC | NEW_USER | NEW_PID;

/// Other flags for a clone: they are the first word of what clone3 is pointed at.
fn clone_flags(flags: u64, nth: usize) -> String {
    let word: String = flags.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("clone3:poke_enter=@arg1={word}:when={nth}")
}

/// The keeper's clone, and not init's.
fn cloned_with(flags: u64) -> Rig {
    Rig::all(Level::Standard).acting_first().inject(clone_flags(flags, 2))
}

#[test]
fn no_release_in_the_hosts_namespaces() {
    // The control: the same flags by the same way.
    let outcome = cloned_with(ALL).run().expect("it is released");
    assert!(outcome.ok(), "{outcome:?}");
    not_released(&cloned_with(ALL & !NEW_IPC), &[Layer::IpcNamespace]);
    // Over the host's own name nobody in a user namespace has a say …
    let uts = cloned_with(ALL & !NEW_UTS);
    stops_at(&uts, Step::Hostname, "EPERM");
    // … and if the kernel said nothing about it, the layer would still be missed.
    not_released(&uts.inject("sethostname:retval=0"), &[Layer::UtsNamespace]);
    // Nor over its mounts and processes: no mount is changed, no procfs made.
    stops_at(&cloned_with(ALL & !NEW_MOUNT), Step::Sources, "EPERM");
    stops_at(&cloned_with(ALL & !NEW_PID), Step::Proc, "EPERM");
    // Without a user namespace there is no map to write, and an ordinary user gets no other either.
    let step = if is_root() { Step::IdMap } else { Step::Clone };
    stops_at(&cloned_with(ALL & !NEW_USER), step, "EPERM");
    let errno = if is_root() { "EPERM" } else { "EACCES" };
    stops_at(&cloned_with(PIDFD), Step::IdMap, errno);
}

#[test]
fn no_release_in_the_hosts_cgroup_namespace() {
    let rig = Rig::all(Level::Standard).inject("unshare:retval=0:when=1");
    not_released(&rig, &[Layer::CgroupNamespace]);
}

#[test]
fn no_release_in_the_hosts_network() {
    // Nobody in a user namespace has a say over the host's network …
    let net = Rig::all(Level::Standard).inject("unshare:retval=0:when=2");
    stops_at(&net, Step::Loopback, "EPERM");
    // … nor does it learn which one that is.
    stops_at(&net.inject("ioctl:retval=0:when=1"), Step::Loopback, "EPERM");
}

#[test]
fn no_release_on_a_writable_root() {
    let rig = Rig::all(Level::Standard);
    not_released(&rig.clone().inject("mount_setattr:retval=0"), &[Layer::Root]);
    // One view of the host that stays writable.
    not_released(&rig.inject("mount_setattr:retval=0:when=1"), &[Layer::Root]);
}

#[test]
fn no_release_on_the_hosts_root() {
    stops_at(&Rig::all(Level::Standard).inject("pivot_root:retval=0"), Step::Directory, "ENOENT");
}

#[test]
fn no_release_with_an_open_proc() {
    // One entry of many that is not covered.
    let rig = Rig::all(Level::Standard).inject(skip(Level::Standard, "move_mount", "\"kmsg\""));
    not_released(&rig, &[Layer::Proc]);
    let rig = Rig::all(Level::Standard).inject(skip(Level::Standard, "move_mount", "\"proc\""));
    not_released(&rig, &[Layer::Proc]);
    if is_root() {
        // An ordinary user's newuidmap gains no privilege while it is traced.
        let rig = Rig::all(Level::Strict).inject(skip(Level::Strict, "fsconfig", "subset"));
        not_released(&rig, &[Layer::Proc]);
    }
}

#[test]
fn no_release_with_a_device_that_is_no_device() {
    for device in ["\"dev/zero\"", "\"dev/pts\""] {
        let rig = Rig::all(Level::Standard).inject(skip(Level::Standard, "move_mount", device));
        not_released(&rig, &[Layer::Devices]);
    }
    // Init itself has no streams to hold then.
    let null =
        Rig::all(Level::Standard).inject(skip(Level::Standard, "move_mount", "\"dev/null\""));
    stops_at(&null, Step::InitLockdown, "EROFS");
}

#[test]
fn no_release_on_an_unbounded_disk() {
    for option in ["\"size\"", "\"nr_inodes\""] {
        let rig = Rig::all(Level::Standard).inject(skip(Level::Standard, "fsconfig", option));
        not_released(&rig, &[Layer::Disk]);
    }
    let rig = Rig::all(Level::Standard).inject(skip(Level::Standard, "move_mount", "\"tmp\""));
    not_released(&rig, &[Layer::Disk]);
}

#[test]
fn no_release_without_a_cgroups_limits() {
    let knobs: [(&[&str], Layer); 3] = [
        (&["memory.limit_in_bytes", "memory.max"], Layer::CgroupMemory),
        (&["pids.max"], Layer::CgroupPids),
        (&["cpu.cfs_quota_us", "cpu.max"], Layer::CgroupCpu),
    ];
    for (files, layer) in knobs {
        let at = written_to(Level::Standard, files);
        // Where swap has a limit too (v1), the same value follows at once; it cannot be below the first.
        let swap = happens(Level::Standard, "openat", "memory.memsw.limit_in_bytes");
        let last = at.nth + usize::from(swap && layer == Layer::CgroupMemory);
        let nothing = format!("write:retval={}:when={}..{last}", at.length, at.nth);
        let rig = Rig::keeper(Level::Standard).inject(nothing);
        not_released(&rig, &[layer]);
    }
}

#[test]
fn no_release_outside_its_cgroup() {
    let all = [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu];
    let rig = Rig::all(Level::Standard).acting_first();
    let rig = if happens(Level::Standard, "write", "\"0\", 1)") {
        // v1: the payload writes itself into each.
        rig.inject("write:retval=1:when=1..4")
    } else {
        // v2: it is born there, by a flag of init's clone.
        rig.inject(clone_flags(PIDFD, 1))
    };
    not_released(&rig, &all);
}

/// Where newuidmap and newgidmap do nothing and are content. Mounting takes a user namespace in which one
/// is root, so a second one gives the caller its id back.
const IDLE_HELPERS: &str = "/usr/bin/unshare --map-root-user --mount /bin/sh -c '\
    mount --bind /bin/true /usr/bin/newuidmap && mount --bind /bin/true /usr/bin/newgidmap && \
    exec /usr/bin/unshare --map-user=$ID --map-group=$GROUP \"$@\"' sh";

#[test]
fn no_release_with_the_callers_own_id_at_strict() {
    if is_root() {
        // The map as long as the right one, but it leads to the caller.
        let at = written_to(Level::Strict, &["uid_map"]).nth;
        let map: String = b"1000 0000000000 1".iter().map(|byte| format!("{byte:02x}")).collect();
        let rig =
            Rig::keeper(Level::Strict).inject(format!("write:poke_enter=@arg2={map}:when={at}"));
        not_released(&rig, &[Layer::Identity, Layer::UidPerRun]);
    } else {
        // Without a map nobody can become anybody.
        let ids = "export ID=$(id -u) GROUP=$(id -g)";
        let rig = Rig::keeper(Level::Strict).before(ids).through(IDLE_HELPERS);
        stops_at(&rig, Step::Become, "EINVAL");
    }
}

#[test]
fn helpers_that_may_not_map_ids_are_told_with_what_to_do() {
    // A traced program gains no privilege: newuidmap is as if its set-user-id bit were gone.
    match Rig::all(Level::Strict).run() {
        // Root needs no help.
        Ok(outcome) => assert!(is_root() && outcome.ok(), "{outcome:?}"),
        Err(Error::Setup { step: Step::IdMap, errno, hint: Some(hint), .. }) => {
            assert!(!is_root() && errno == "EPERM", "{errno}: {hint}");
            assert!(hint.contains("set-user-id root") && hint.contains("uidmap"), "{hint}");
        }
        Err(other) => panic!("{other:?}"),
    }
}
