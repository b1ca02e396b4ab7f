//! What the arguments of a call are: which of them the keeper must read from memory, and how people
//! write them. Only calls that can be refused, or are recorded, have a shape; of others only the name
//! is told.

use std::sync::LazyLock;

use belljar_jail::alarm::{Alarm, Sign};
use belljar_jail::tried::{Listen, Look, What};

use super::flags::{
    ACCESS, ADDRESS_FAMILIES, BPF, CLOCKS, CLONE, FSCONFIG, IOCTLS, KEYCTL, MODULE, MOUNT,
    MOUNT_ATTRIBUTES, MOVE_MOUNT, OPEN, OPEN_TREE, PERSONALITIES, PRCTL, PTRACE, QUOTA, REBOOT,
    SCHEDULERS, SOCKET_TYPES, SYSLOG, UMOUNT,
};
use super::{address, boundary};
use crate::seccomp;

/// Names of single values, or of bits.
pub(super) type Names = &'static [(u64, &'static str)];

/// One argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    /// Text in the caller's memory.
    Text(&'static str),
    /// A list of texts.
    Texts(&'static str),
    /// An address of a socket, with its length in the next argument.
    Address(&'static str),
    /// A descriptor.
    File(&'static str),
    /// A signed 32-bit number.
    Number(&'static str),
    /// As many as there are.
    Size(&'static str),
    /// One of these.
    One(&'static str, Names),
    /// Any of these together, in 32 bits.
    Bits(&'static str, Names),
    /// A mode of a file.
    Mode(&'static str),
    /// The part of a mode that says what kind of file it is.
    FileType(&'static str),
    /// A device's numbers.
    Device(&'static str),
    /// Not worth telling.
    Skip,
}

#[derive(Debug)]
pub(super) struct Shape {
    pub name: &'static str,
    pub args: &'static [Arg],
}

use Arg::{Address, Bits, Device, File, FileType, Mode, Number, One, Size, Skip, Text, Texts};

const fn shape(name: &'static str, args: &'static [Arg]) -> Shape {
    Shape { name, args }
}

/// In any order.
pub(super) static SHAPES: &[Shape] = &[
    // Mounts and roots.
    shape("mount", &[Text("source"), Text("target"), Text("type"), Bits("flags", MOUNT)]),
    shape("umount2", &[Text("target"), Bits("flags", UMOUNT)]),
    shape("pivot_root", &[Text("new_root"), Text("put_old")]),
    shape("chroot", &[Text("path")]),
    shape("open_tree", &[File("dirfd"), Text("path"), Bits("flags", OPEN_TREE)]),
    shape(
        "move_mount",
        &[
            File("from_dirfd"),
            Text("from"),
            File("to_dirfd"),
            Text("to"),
            Bits("flags", MOVE_MOUNT),
        ],
    ),
    shape("fsopen", &[Text("type")]),
    shape("fsconfig", &[File("fd"), One("command", FSCONFIG), Text("key")]),
    shape("fsmount", &[File("fd"), Skip, Bits("attributes", MOUNT_ATTRIBUTES)]),
    shape("fspick", &[File("dirfd"), Text("path")]),
    shape("mount_setattr", &[File("dirfd"), Text("path")]),
    // Namespaces and processes.
    shape("setns", &[File("fd"), Bits("type", CLONE)]),
    shape("unshare", &[Bits("flags", CLONE)]),
    shape("clone", &[Bits("flags", CLONE)]),
    shape("ptrace", &[One("request", PTRACE), Number("pid")]),
    shape("process_vm_readv", &[Number("pid")]),
    shape("process_vm_writev", &[Number("pid")]),
    shape("pidfd_getfd", &[File("pidfd"), Number("fd")]),
    shape("kcmp", &[Number("pid1"), Number("pid2")]),
    shape("kill", &[Number("pid"), Number("signal")]),
    shape("personality", &[Bits("persona", PERSONALITIES)]),
    shape("prctl", &[One("option", PRCTL)]),
    shape("prlimit64", &[Number("pid")]),
    shape("sched_setscheduler", &[Number("pid"), One("policy", SCHEDULERS)]),
    shape("sched_setaffinity", &[Number("pid")]),
    shape("setpriority", &[Number("which"), Number("who"), Number("priority")]),
    shape("seccomp", &[Number("operation"), Number("flags")]),
    shape("setuid", &[Number("uid")]),
    shape("setgid", &[Number("gid")]),
    shape("setresuid", &[Number("real"), Number("effective"), Number("saved")]),
    shape("setresgid", &[Number("real"), Number("effective"), Number("saved")]),
    // Files.
    shape("open_by_handle_at", &[File("mount"), Skip, Bits("flags", OPEN)]),
    shape("name_to_handle_at", &[File("dirfd"), Text("path")]),
    shape("fanotify_init", &[]),
    shape("fanotify_mark", &[File("fd"), Skip, Skip, File("dirfd"), Text("path")]),
    shape("lookup_dcookie", &[]),
    shape("mknod", &[Text("path"), FileType("type"), Device("device")]),
    shape("mknodat", &[File("dirfd"), Text("path"), FileType("type"), Device("device")]),
    shape("open", &[Text("path"), Bits("flags", OPEN), Mode("mode")]),
    shape("openat", &[File("dirfd"), Text("path"), Bits("flags", OPEN), Mode("mode")]),
    shape("creat", &[Text("path"), Mode("mode")]),
    shape("chmod", &[Text("path"), Mode("mode")]),
    shape("fchmod", &[File("fd"), Mode("mode")]),
    shape("fchmodat", &[File("dirfd"), Text("path"), Mode("mode")]),
    shape("fchmodat2", &[File("dirfd"), Text("path"), Mode("mode")]),
    shape("chown", &[Text("path"), Number("uid"), Number("gid")]),
    shape("fchownat", &[File("dirfd"), Text("path"), Number("uid"), Number("gid")]),
    shape("truncate", &[Text("path"), Size("length")]),
    shape("utimensat", &[File("dirfd"), Text("path")]),
    shape("ioctl", &[File("fd"), One("command", IOCTLS)]),
    shape("write", &[File("fd"), Skip, Size("length")]),
    shape("writev", &[File("fd")]),
    shape("pwrite64", &[File("fd"), Skip, Size("length")]),
    shape("pwritev", &[File("fd")]),
    shape("pwritev2", &[File("fd")]),
    shape("sendfile", &[File("fd")]),
    shape("execve", &[Text("path"), Texts("arguments")]),
    shape("execveat", &[File("dirfd"), Text("path"), Texts("arguments")]),
    // The kernel itself.
    shape("init_module", &[Skip, Size("length"), Text("parameters")]),
    shape("finit_module", &[File("fd"), Text("parameters"), Bits("flags", MODULE)]),
    shape("delete_module", &[Text("name")]),
    shape("kexec_load", &[]),
    shape("kexec_file_load", &[File("kernel")]),
    shape("reboot", &[Skip, Skip, One("command", REBOOT)]),
    shape("swapon", &[Text("path")]),
    shape("swapoff", &[Text("path")]),
    shape("acct", &[Text("path")]),
    shape("quotactl", &[One("command", QUOTA), Text("device")]),
    shape("syslog", &[One("type", SYSLOG)]),
    shape("sethostname", &[Text("name")]),
    shape("setdomainname", &[Text("name")]),
    shape("settimeofday", &[]),
    shape("clock_settime", &[One("clock", CLOCKS)]),
    shape("bpf", &[One("command", BPF)]),
    shape("perf_event_open", &[Skip, Number("pid"), Number("cpu")]),
    shape("keyctl", &[One("operation", KEYCTL)]),
    shape("add_key", &[Text("type"), Text("description")]),
    shape("request_key", &[Text("type"), Text("description")]),
    shape("io_uring_setup", &[Number("entries")]),
    shape("iopl", &[Number("level")]),
    shape("ioperm", &[Size("from"), Size("number"), Number("on")]),
    shape("userfaultfd", &[]),
    shape("vhangup", &[]),
    // Sockets.
    shape(
        "socket",
        &[One("family", ADDRESS_FAMILIES), Bits("type", SOCKET_TYPES), Number("protocol")],
    ),
    shape(
        "socketpair",
        &[One("family", ADDRESS_FAMILIES), Bits("type", SOCKET_TYPES), Number("protocol")],
    ),
    shape("connect", &[Skip, Address("address")]),
    shape("bind", &[Skip, Address("address")]),
    shape("sendto", &[File("fd"), Skip, Size("length"), Skip, Address("address")]),
    shape("setsockopt", &[File("fd"), Number("level"), Number("option")]),
    shape("access", &[Text("path"), Bits("mode", ACCESS)]),
];

pub(super) fn find(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

/// What the keeper reads, and what it tells calls apart by.
pub(crate) fn listen(record: Recorded) -> Listen {
    static LISTEN: LazyLock<Listen> = LazyLock::new(make_listen);
    let mut listen = LISTEN.clone();
    if record == Recorded::Yes {
        (listen.record, listen.only_alarms) = (true, Vec::new());
    }
    listen
}

/// Whether allowed calls are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Yes,
    No,
}

fn make_listen() -> Listen {
    let mut listen = Listen::default();
    for shape in SHAPES {
        let Some(call) = seccomp::number(shape.name) else {
            continue; // not on this architecture
        };
        for (argument, arg) in (0..).zip(shape.args) {
            let what = match arg {
                Text(_) => What::Text,
                Texts(_) => What::Texts,
                Address(_) => What::BytesOf(argument + 1),
                File(_) => What::Descriptor,
                Number(_) | One(..) | Bits(..) | FileType(_) | Device(_) => {
                    listen.distinct.push((call, argument));
                    continue;
                }
                // A mode means something only where a file is made, and lengths are added up.
                Mode(_) | Size(_) | Skip => continue,
            };
            listen.looks.push(Look { call, argument, what });
        }
    }
    listen.looks.sort_by_key(|look| (look.call, look.argument));
    listen.distinct.sort_unstable();
    listen.alarms = alarms();
    listen.only_alarms = numbers(&OPENS);
    listen
}

/// Those that this machine has, in order.
fn numbers(names: &[&str]) -> Vec<u32> {
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| seccomp::number(name)).collect();
    numbers.sort_unstable();
    numbers
}

/// Calls that open files by path.
const OPENS: [&str; 3] = ["creat", "open", "openat"];

/// What is told of allowed calls however many there were: where clouds keep secrets, and the boundary's own files.
fn alarms() -> Vec<Alarm> {
    let metadata = address::metadata_bytes()
        .map(|(at, bytes)| Alarm { calls: numbers(&["connect"]), sign: Sign::Bytes { at, bytes } });
    let files = boundary::beginnings()
        .map(|path| Alarm { calls: numbers(&OPENS), sign: Sign::Path(path.to_owned()) });
    metadata.chain(files).collect()
}
