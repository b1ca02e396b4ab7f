//! Reaching for more than this process was given: namespaces, ids, capabilities, priority, and a
//! terminal that types for it.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::host;
use belljar_sys::attempt::names::Errno;
use belljar_sys::attempt::special::{self, Terminal};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use Category::Processes;

type Tried = Result<Attempt, Errno>;

const EPERM: Expect = Expect::Errno("EPERM");
const ENOSYS: Expect = Expect::Errno("ENOSYS");
/// The filter refuses, or the kernel: an id that is not mapped inside is not even valid.
const NO_SUCH_ID: Expect = Expect::OneOf(&["EPERM", "EINVAL"]);

const CLONE_NEWNS: i64 = 0x0002_0000;
const CLONE_NEWUSER: i64 = 0x1000_0000;
const CLONE_NEWNET: i64 = 0x4000_0000;

pub(super) const PROBES: &[Probe] = &[
    Probe::new("unshare_user", Processes, "seccomp", "Makes a user namespace", |_| {
        reached(syscall(Call::UNSHARE, &mut [Arg::Int(CLONE_NEWUSER)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("unshare_net", Processes, "seccomp", "Makes a network namespace", |_| {
        reached(syscall(Call::UNSHARE, &mut [Arg::Int(CLONE_NEWNET)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("unshare_mounts", Processes, "seccomp", "Makes a mount namespace", |_| {
        reached(syscall(Call::UNSHARE, &mut [Arg::Int(CLONE_NEWNS)]), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("clone_user", Processes, "seccomp", "Clones into a new user namespace", |_| {
        reached(special::clone_into(0x1000_0000).map(|()| 0), &[])
    })
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "clone3",
        Processes,
        "seccomp",
        "Clones by the call whose flags no filter can see",
        |_| reached(special::clone3().map(|()| 0), &[]),
    )
    .walled(ENOSYS),
    Probe::new("become_root", Processes, "identity", "Sets its user to 0", |_| {
        reached(syscall(Call::SETRESUID, &mut [Arg::Int(0), Arg::Int(0), Arg::Int(0)]), &[])
    })
    .needs_root()
    .walled(NO_SUCH_ID),
    Probe::new("become_root_group", Processes, "user_namespace", "Sets its group to 0", |_| {
        reached(syscall(Call::SETRESGID, &mut [Arg::Int(0), Arg::Int(0), Arg::Int(0)]), &[])
    })
    .needs_root()
    .walled(NO_SUCH_ID),
    Probe::new(
        "drop_groups",
        Processes,
        "capabilities",
        "Leaves groups that deny it access",
        |_| reached(syscall(Call::SETGROUPS, &mut [Arg::Int(0), Arg::Null]), &[]),
    )
    .needs_root()
    .walled(EPERM),
    Probe::new("raise_capability", Processes, "capabilities", "Gives itself CAP_SYS_ADMIN", |_| {
        raise_capability()
    })
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "setuid_program",
        Processes,
        "no_new_privileges",
        "Runs a setuid program to gain its owner's rights",
        setuid_program,
    )
    .walled(Expect::Hidden),
    Probe::new(
        "type_into_terminal",
        Processes,
        "seccomp",
        "Types into a terminal by TIOCSTI",
        |_| reached(special::ask_terminal(Terminal::Type).map(|()| 0), &[]),
    )
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "type_by_high_bits",
        Processes,
        "seccomp",
        "Types into a terminal by a TIOCSTI with bits the kernel drops (CVE-2019-10063)",
        |_| reached(special::ask_terminal(Terminal::TypeByHighBits).map(|()| 0), &[]),
    )
    .needs_root()
    .walled(EPERM),
    Probe::new(
        "paste_into_terminal",
        Processes,
        "seccomp",
        "Pastes into a console by TIOCLINUX (CVE-2023-28100)",
        |_| reached(special::ask_terminal(Terminal::Paste).map(|()| 0), &["ENOTTY", "EINVAL"]),
    )
    .walled(EPERM),
    Probe::new(
        "raise_priority",
        Processes,
        "capabilities",
        "Takes processor time by nice -5",
        |_| reached(syscall(Call::SETPRIORITY, &mut [Arg::Int(0), Arg::Int(0), Arg::Int(-5)]), &[]),
    )
    .needs_root()
    .walled(Expect::OneOf(&["EACCES", "EPERM"])),
    Probe::new(
        "realtime",
        Processes,
        "capabilities",
        "Takes a processor by real-time priority",
        |_| {
            let priority = 1_i32.to_ne_bytes();
            let args = &mut [Arg::Int(0), Arg::Int(1), Arg::Bytes(&priority)];
            reached(syscall(Call::SCHED_SETSCHEDULER, args), &[])
        },
    )
    .needs_root()
    .walled(EPERM),
];

fn raise_capability() -> Tried {
    /// _LINUX_CAPABILITY_VERSION_3, and the thread itself.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const CAP_SYS_ADMIN: u32 = 21;
    let bytes =
        |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    // Effective and permitted of the lower half; the rest is dropped, which is nobody's loss here.
    let sets = bytes(&[1 << CAP_SYS_ADMIN, 1 << CAP_SYS_ADMIN, 0, 0, 0, 0]);
    let header = bytes(&HEADER);
    reached(syscall(Call::CAPSET, &mut [Arg::Bytes(&header), Arg::Bytes(&sets)]), &[])
}

/// glibc shows the auxiliary vector only to programs that did not gain anything by being started:
/// so a setuid program that shows it kept our ids.
fn setuid_program(_: &Fixture) -> Tried {
    const TRIED: [&str; 5] =
        ["/usr/bin/su", "/usr/bin/mount", "/usr/bin/umount", "/usr/bin/newgrp", "/usr/bin/passwd"];
    if host::user() == 0 {
        return Ok(Attempt::not_applicable("already root: nothing to gain"));
    }
    let is_setuid = |path: &&str| {
        fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o4000 != 0)
    };
    let Some(program) = TRIED.iter().copied().find(is_setuid) else {
        return Ok(Attempt::not_applicable("no setuid program here"));
    };
    let output = host::output_of(Path::new(program), "--version", "LD_SHOW_AUXV", "1")?;
    let shown = String::from_utf8_lossy(&output.stdout);
    match shown.lines().find(|line| line.starts_with("AT_EUID")) {
        Some(line) if !line.trim_end().ends_with(" 0") => Attempt::hidden(line),
        Some(line) => Attempt::allowed(line),
        None => Attempt::allowed(format!("{program} runs with more than our own rights")),
    }
}
