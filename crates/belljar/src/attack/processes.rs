//! Reaching for other processes: their signals, memory, files, namespaces, session.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;
use belljar_sys::attempt::special::{self, Direction};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

use Category::Processes;

type Tried = Result<Attempt, Errno>;

const EACCES: Expect = Expect::Errno("EACCES");
const EPERM: Expect = Expect::Errno("EPERM");
const ABSENT: Expect = Expect::Absent("ENOENT");
/// No such process in this pid namespace, unless the filter refuses the call before it looks.
const NO_PROCESS: Expect = Expect::OneOf(&["ESRCH", "EPERM"]);
/// Init's namespaces cannot be opened, or cannot be joined.
const NOT_JOINED: Expect = Expect::OneOf(&["EACCES", "EPERM", "ENOENT"]);

const CLONE_NEWNS: i64 = 0x0002_0000;
const CLONE_NEWNET: i64 = 0x4000_0000;
const SIGCONT: i64 = 18;

pub(super) const PROBES: &[Probe] = &[
    Probe::new("signal_victim", Processes, "pid_namespace", "Signals a host process", |f| {
        reached(syscall(Call::KILL, &mut [Arg::Int(f.victim.into()), Arg::Int(SIGCONT)]), &[])
    })
    .basic(EPERM)
    .boxed(Expect::Errno("ESRCH")),
    Probe::new(
        "signal_victim_by_pidfd",
        Processes,
        "pid_namespace",
        "Signals a host process through a descriptor of it",
        |f| {
            let pidfd = Arg::Int(pidfd(f)?);
            let args = &mut [pidfd, Arg::Int(SIGCONT), Arg::Null, Arg::Int(0)];
            reached(syscall(Call::PIDFD_SEND_SIGNAL, args), &[])
        },
    )
    .basic(EPERM)
    .boxed(NO_PROCESS),
    Probe::new(
        "trace_victim",
        Processes,
        "seccomp",
        "Attaches a debugger to a host process",
        |f| {
            const PTRACE_SEIZE: i64 = 0x4206;
            let args =
                &mut [Arg::Int(PTRACE_SEIZE), Arg::Int(f.victim.into()), Arg::Null, Arg::Null];
            reached(syscall(Call::PTRACE, args), &[])
        },
    )
    .needs_root()
    .walled(EPERM),
    Probe::new("read_victim_memory", Processes, "seccomp", "Reads a host process's memory", |f| {
        reached(special::reach_memory(f.victim, Direction::Read).map(|()| 0), &["EFAULT"])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "write_victim_memory",
        Processes,
        "seccomp",
        "Writes a host process's memory",
        |f| reached(special::reach_memory(f.victim, Direction::Write).map(|()| 0), &["EFAULT"]),
    )
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "take_victim_descriptor",
        Processes,
        "seccomp",
        "Copies a host process's open file",
        |f| {
            let pidfd = Arg::Int(pidfd(f)?);
            reached(syscall(Call::PIDFD_GETFD, &mut [pidfd, Arg::Int(0), Arg::Int(0)]), &[])
        },
    )
    .needs_root()
    .basic(EPERM)
    .boxed(NO_PROCESS),
    Probe::new(
        "compare_victim",
        Processes,
        "seccomp",
        "Learns kernel pointers' order by kcmp",
        |f| {
            let own = Arg::Int(std::process::id().into());
            let args = &mut [own, Arg::Int(f.victim.into()), Arg::Int(2), Arg::Int(0), Arg::Int(0)];
            reached(syscall(Call::KCMP, args), &[])
        },
    )
    .needs_root()
    .walled(EPERM),
    Probe::new("limit_victim", Processes, "pid_namespace", "Reads a host process's limits", |f| {
        let victim = Arg::Int(f.victim.into());
        let mut old = [0_u8; 16];
        let args = &mut [victim, Arg::Int(7), Arg::Null, Arg::Exchange(&mut old)];
        reached(syscall(Call::PRLIMIT, args), &[])
    })
    .boxed(NO_PROCESS),
    Probe::new(
        "victim_environ",
        Processes,
        "pid_namespace",
        "Reads a host process's environment",
        |f| {
            let text = read_of_victim(f, "environ")?;
            if text.contains(&f.canary) {
                Attempt::allowed("found the canary")
            } else {
                Attempt::hidden("no canary in it")
            }
        },
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "victim_maps",
        Processes,
        "pid_namespace",
        "Reads a host process's memory map",
        |f| {
            read_of_victim(f, "maps")?;
            Attempt::allowed("read")
        },
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "victim_mem",
        Processes,
        "pid_namespace",
        "Opens a host process's memory file",
        |f| {
            OpenOptions::new().read(true).write(true).open(of_victim(f, "mem"))?;
            Attempt::allowed("opened, not written")
        },
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "victim_cwd",
        Processes,
        "pid_namespace",
        "Learns where a host process works",
        |f| {
            fs::read_link(of_victim(f, "cwd"))?;
            Attempt::allowed("read")
        },
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "victim_files",
        Processes,
        "pid_namespace",
        "Lists a host process's open files",
        |f| {
            fs::read_dir(of_victim(f, "fd"))?;
            Attempt::allowed("listed")
        },
    )
    .needs_root()
    .basic(EACCES)
    .boxed(ABSENT),
    Probe::new(
        "victim_cmdline",
        Processes,
        "pid_namespace",
        "Reads a host process's arguments",
        |f| {
            read_of_victim(f, "cmdline")?;
            Attempt::allowed("read")
        },
    )
    .boxed(ABSENT),
    Probe::new("process_list", Processes, "pid_namespace", "Finds host processes in /proc", |f| {
        let victim = f.victim.to_string();
        let mut entries = fs::read_dir("/proc")?.take(100_000).flatten();
        if entries.any(|entry| entry.file_name().to_str() == Some(&victim)) {
            Attempt::allowed("the victim is listed")
        } else {
            Attempt::hidden("only its own")
        }
    })
    .boxed(Expect::Hidden),
    Probe::new("join_net", Processes, "pid_namespace", "Joins the network of process 1", |f| {
        join(f, "net")
    })
    .needs_root()
    .walled(NOT_JOINED),
    Probe::new("join_mounts", Processes, "pid_namespace", "Joins the mounts of process 1", |f| {
        join(f, "mnt")
    })
    .needs_root()
    .walled(NOT_JOINED),
    Probe::new(
        "join_victim",
        Processes,
        "seccomp",
        "Joins a host process's namespaces by pidfd",
        |f| {
            let args = &mut [Arg::Int(pidfd(f)?), Arg::Int(CLONE_NEWNS | CLONE_NEWNET)];
            reached(syscall(Call::SETNS, args), &[])
        },
    )
    .needs_root()
    .basic(EPERM)
    .boxed(NO_PROCESS),
    Probe::new(
        "open_controlling_terminal",
        Processes,
        "session",
        "Opens the user's terminal",
        |_| {
            OpenOptions::new().read(true).write(true).open("/dev/tty")?;
            Attempt::allowed("opened")
        },
    )
    .no_control("a test has no terminal of the user's to open")
    .walled(Expect::OneOf(&["ENXIO", "EACCES"])),
    Probe::new("share_session", Processes, "session", "Stays in the session of its caller", |f| {
        match special::session()? {
            0 => Attempt::allowed("led by a process outside"),
            session if session == f.session && !inside_pid_namespace(f) => {
                Attempt::allowed("the caller's session")
            }
            _ => Attempt::hidden("a session of its own"),
        }
    })
    .walled(Expect::Hidden),
];

fn of_victim(fixture: &Fixture, name: &str) -> String {
    format!("/proc/{}/{name}", fixture.victim)
}

fn read_of_victim(fixture: &Fixture, name: &str) -> Result<String, Errno> {
    let mut bytes = Vec::new();
    File::open(of_victim(fixture, name))?.take(64 * 1024).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pidfd(fixture: &Fixture) -> Result<i64, Errno> {
    syscall(Call::PIDFD_OPEN, &mut [Arg::Int(fixture.victim.into()), Arg::Int(0)])
}

fn join(fixture: &Fixture, kind: &str) -> Tried {
    let namespace = File::open(format!("/proc/{}/ns/{kind}", fixture.init()))?;
    let args = &mut [Arg::Int(namespace.as_raw_fd().into()), Arg::Int(0)];
    reached(syscall(Call::SETNS, args), &[])
}

/// In a pid namespace a session of the same number is another one.
fn inside_pid_namespace(fixture: &Fixture) -> bool {
    !Path::new(&format!("/proc/{}", fixture.host_pid)).exists()
}
