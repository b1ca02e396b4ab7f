//! The mount calls, old and new, and device nodes: each would let a program choose what it sees.
//!
//! Outside they are made where nobody sees them, in a mount namespace of the probe's own.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;

use Category::Kernel;

type Tried = Result<Attempt, Errno>;

const EPERM: Expect = Expect::Errno("EPERM");
/// The filter, or without it Landlock before the capability is looked at.
const NO_DEVICE_NODE: Expect = Expect::OneOf(&["EPERM", "EACCES"]);

const HERE: i64 = -100; // AT_FDCWD
const NOWHERE: &str = "/belljar-attack-nowhere";
const CLONE_NEWNS: i64 = 0x0002_0000;
const MS_BIND: i64 = 0x1000;
const MS_REMOUNT: i64 = 0x20;
const MS_PRIVATE_ALL: i64 = 0x4_4000;
const MNT_DETACH: i64 = 2;

pub(super) const PROBES: &[Probe] = &[
    Probe::new("mount_tmpfs", Kernel, "seccomp", "Mounts a tmpfs", |f| {
        mount(f, "tmpfs", "tmpfs", 0, "size=4k")
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("mount_proc", Kernel, "seccomp", "Mounts an unmasked /proc", |f| {
        mount(f, "proc", "proc", 0, "")
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("mount_bind", Kernel, "seccomp", "Binds the root elsewhere", |f| {
        mount(f, "/", "none", MS_BIND, "")
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("mount_overlay", Kernel, "seccomp", "Mounts an overlay over /usr", |f| {
        mount(f, "overlay", "overlay", 0, "lowerdir=/usr:/etc")
    })
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "mount_cgroup",
        Kernel,
        "seccomp",
        "Mounts the control groups (CVE-2022-0492)",
        |f| mount(f, "cgroup2", "cgroup2", 0, ""),
    )
    .needs_root()
    .walled(EPERM),
    Probe::new("remount_root", Kernel, "seccomp", "Makes the root writable", |_| {
        private_mounts()?;
        let args = [Arg::Text("none"), Arg::Text("/"), Arg::Text("none")];
        let [source, target, kind] = args;
        let flags = Arg::Int(MS_REMOUNT | MS_BIND);
        reached(syscall(Call::MOUNT, &mut [source, target, kind, flags, Arg::Null]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("unmount_mask", Kernel, "seccomp", "Takes the mask off a file of /proc", |_| {
        private_mounts()?;
        let args = &mut [Arg::Text("/proc/version"), Arg::Int(MNT_DETACH)];
        reached(syscall(Call::UMOUNT, args), &["EINVAL", "ENOENT"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("pivot_root", Kernel, "seccomp", "Changes the root for all", |_| {
        private_mounts()?;
        let args = &mut [Arg::Text("/"), Arg::Text("/")];
        reached(syscall(Call::PIVOT_ROOT, args), &["EINVAL", "EBUSY"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("chroot", Kernel, "seccomp", "Changes its root, to climb out of it", |_| {
        reached(syscall(Call::CHROOT, &mut [Arg::Text("/")]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("fsopen", Kernel, "seccomp", "Opens a file system (CVE-2022-0185)", |_| {
        reached(syscall(Call::FSOPEN, &mut [Arg::Text("tmpfs"), Arg::Int(0)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("open_tree", Kernel, "seccomp", "Copies a mount by descriptor", |_| {
        let args = &mut [Arg::Int(HERE), Arg::Text("/"), Arg::Int(1)];
        reached(syscall(Call::OPEN_TREE, args), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("move_mount", Kernel, "seccomp", "Moves a mount by descriptor", |_| {
        let (from, to) = (Arg::Text(NOWHERE), Arg::Text(NOWHERE));
        let args = &mut [Arg::Int(HERE), from, Arg::Int(HERE), to, Arg::Int(0)];
        reached(syscall(Call::MOVE_MOUNT, args), &["ENOENT"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("mount_setattr", Kernel, "seccomp", "Changes the flags of a mount", |_| {
        let nothing = [0_u8; 32];
        let (path, attributes) = (Arg::Text("/"), Arg::Bytes(&nothing));
        let args = &mut [Arg::Int(HERE), path, Arg::Int(0), attributes, Arg::Int(32)];
        reached(syscall(Call::MOUNT_SETATTR, args), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("make_char_device", Kernel, "capabilities", "Makes a character device", |f| {
        make_node(f, 0o020_666, 0x103)
    })
    .needs_root()
    .walled(NO_DEVICE_NODE),
    Probe::new("make_block_device", Kernel, "capabilities", "Makes a block device", |f| {
        make_node(f, 0o060_600, 0x700)
    })
    .needs_root()
    .walled(NO_DEVICE_NODE),
];

/// Takes this process out of the host's mounts, so that what follows is seen by nobody. Where that
/// is refused, what follows is refused as well, and that is the answer which is wanted.
fn private_mounts() -> Result<(), Errno> {
    if syscall(Call::UNSHARE, &mut [Arg::Int(CLONE_NEWNS)]).is_err() {
        return Ok(());
    }
    let (source, target, kind) = (Arg::Text("none"), Arg::Text("/"), Arg::Text("none"));
    let args = &mut [source, target, kind, Arg::Int(MS_PRIVATE_ALL), Arg::Null];
    syscall(Call::MOUNT, args).map(|_| ())
}

fn mount(fixture: &Fixture, source: &str, kind: &str, flags: i64, data: &str) -> Tried {
    let target = fixture.own_scratch()?;
    let target = target.to_string_lossy();
    private_mounts()?;
    let (from, to) = (Arg::Text(source), Arg::Text(&target));
    let args = &mut [from, to, Arg::Text(kind), Arg::Int(flags), Arg::Text(data)];
    syscall(Call::MOUNT, args)?;
    // For the case that this process could mount but not leave the host's mounts.
    syscall(Call::UMOUNT, &mut [Arg::Text(&target), Arg::Int(MNT_DETACH)])?;
    Attempt::allowed("mounted, and unmounted")
}

fn make_node(fixture: &Fixture, mode: i64, device: i64) -> Tried {
    let node = fixture.own_scratch()?.join("node");
    let node = node.to_string_lossy();
    let args = &mut [Arg::Int(HERE), Arg::Text(&node), Arg::Int(mode), Arg::Int(device)];
    reached(syscall(Call::MKNODAT, args), &[])
}
