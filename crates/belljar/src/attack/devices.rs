//! Files that are doors to the kernel or the machine: in /proc, /sys and /dev.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, HIDDEN, Probe};
use belljar_sys::attempt::names::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use Category::Kernel;

type Tried = Result<Attempt, Errno>;

const EACCES: Expect = Expect::Errno("EACCES");
const ABSENT: Expect = Expect::Absent("ENOENT");
/// A stand-in that is empty, or a file that is not ours to open.
const MASKED: Expect = Expect::OneOf(&[HIDDEN, "EACCES", "EROFS"]);

const O_NONBLOCK: i32 = 0o4000;

pub(super) const PROBES: &[Probe] = &[
    Probe::new("core_pattern", Kernel, "proc", "Opens core_pattern, which runs as root", |_| {
        open_in_proc("/proc/sys/kernel/core_pattern")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(MASKED)
    .strict(ABSENT),
    Probe::new("sysrq_trigger", Kernel, "proc", "Opens sysrq-trigger for writing", |f| {
        if !f.has("/proc/sysrq-trigger") {
            return Ok(Attempt::not_applicable("the host has none"));
        }
        open_in_proc("/proc/sysrq-trigger")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(MASKED)
    .strict(ABSENT),
    Probe::new("kcore", Kernel, "proc", "Reads the kernel's memory", |f| {
        read_some(f, "/proc/kcore")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(MASKED)
    .strict(ABSENT),
    Probe::new("kmsg", Kernel, "proc", "Opens the kernel's log", |_| {
        // To open it never waits for the kernel's log, only to read it does.
        let file = OpenOptions::new().read(true).open("/proc/kmsg")?;
        if file.metadata()?.is_dir() || !is_of_proc(&file) {
            return Attempt::hidden("a stand-in");
        }
        Attempt::allowed("opened, not read")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(MASKED)
    .strict(ABSENT),
    Probe::new("kallsyms", Kernel, "proc", "Reads the kernel's addresses", kernel_addresses)
        .needs_root()
        .basic(Expect::OneOf(&[HIDDEN, "EACCES"]))
        .boxed(MASKED)
        .strict(ABSENT),
    Probe::new("proc_keys", Kernel, "proc", "Lists the keys of the host", |f| {
        read_some(f, "/proc/keys")
    })
    .boxed(MASKED)
    .strict(ABSENT),
    Probe::new("sys_kernel", Kernel, "root", "Lists /sys/kernel", |f| {
        if !f.has("/sys/kernel") {
            return Ok(Attempt::not_applicable("the host has none"));
        }
        fs::read_dir("/sys/kernel")?;
        Attempt::allowed("listed")
    })
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "cgroup_write",
        Kernel,
        "root",
        "Opens the host's control groups for writing",
        |f| open_for_writing(f.cgroup_file.as_deref()),
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("release_agent", Kernel, "root", "Opens a release_agent, which runs as root", |f| {
        open_for_writing(f.release_agent.as_deref())
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("dev_mem", Kernel, "devices", "Opens the machine's memory", |f| {
        device(f, "/dev/mem")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("dev_kmsg", Kernel, "devices", "Opens the kernel's log device", |f| {
        device(f, "/dev/kmsg")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("dev_kvm", Kernel, "devices", "Opens the hypervisor", |f| device(f, "/dev/kvm"))
        .needs_root()
        .basic(EACCES)
        .boxed(ABSENT),
    Probe::new("dev_fuse", Kernel, "devices", "Opens FUSE", |f| device(f, "/dev/fuse"))
        .needs_root()
        .basic(EACCES)
        .boxed(ABSENT),
    Probe::new("dev_tun", Kernel, "devices", "Opens the network tunnel device", |f| {
        device(f, "/dev/net/tun")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("dev_loop", Kernel, "devices", "Opens the loop devices' control", |f| {
        device(f, "/dev/loop-control")
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new("dev_disk", Kernel, "devices", "Opens a disk of the host", |f| match &f.disk {
        Some(disk) => open_device(disk),
        None => Ok(Attempt::not_applicable("the host shows no disk")),
    })
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
];

fn open_in_proc(path: &str) -> Tried {
    let file = OpenOptions::new().write(true).open(path)?;
    if is_of_proc(&file) {
        Attempt::allowed("opened, not written")
    } else {
        Attempt::hidden("a stand-in")
    }
}

/// True if the file lies on the file system of /proc itself: a mask put over it does not.
fn is_of_proc(file: &File) -> bool {
    let proc = fs::metadata("/proc/self").map(|metadata| metadata.dev());
    file.metadata().is_ok_and(|metadata| proc.is_ok_and(|proc| proc == metadata.dev()))
}

fn read_some(fixture: &Fixture, path: &str) -> Tried {
    if !fixture.has(path) {
        return Ok(Attempt::not_applicable("the host has none"));
    }
    let mut byte = [0_u8; 1];
    match File::open(path)?.read(&mut byte)? {
        0 => Attempt::hidden("empty"),
        _ => Attempt::allowed("read its first byte"),
    }
}

fn kernel_addresses(fixture: &Fixture) -> Tried {
    if !fixture.has("/proc/kallsyms") {
        return Ok(Attempt::not_applicable("the host has none"));
    }
    let mut lines = BufReader::new(File::open("/proc/kallsyms")?).lines().take(1000);
    let is_address =
        |line: String| line.split(' ').next().is_some_and(|at| at.contains(|c| c != '0'));
    if lines.any(|line| line.is_ok_and(is_address)) {
        Attempt::allowed("addresses are shown")
    } else {
        Attempt::hidden("no address in it")
    }
}

fn open_for_writing(path: Option<&Path>) -> Tried {
    let Some(path) = path else {
        return Ok(Attempt::not_applicable("the host has none"));
    };
    OpenOptions::new().write(true).open(path)?;
    Attempt::allowed("opened, not written")
}

fn device(fixture: &Fixture, path: &str) -> Tried {
    if fixture.has(path) {
        open_device(Path::new(path))
    } else {
        Ok(Attempt::not_applicable("the host has no such device"))
    }
}

fn open_device(path: &Path) -> Tried {
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    Attempt::allowed("opened, not read")
}
