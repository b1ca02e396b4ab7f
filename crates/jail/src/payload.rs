//! The payload: locks itself down, shows itself, waits to be released, becomes the program.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use belljar_sys::process::{execute, exit_now, forget_keyring, reset_signals, unshare_cgroup};
use belljar_sys::{Errno, Result, fd};
use rustix::fs::AtFlags;

use crate::lockdown;
use crate::plan::{Files, Plan, Program};
use crate::report::{At, Note, Ready, Step, Stopped};

/// The namespaces that a Ready note tells of, in its order.
pub(crate) const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];

/// The payload's descriptors. All of them are close-on-exec.
#[derive(Debug)]
pub(crate) struct Ends {
    pub notes: OwnedFd,
    /// Readable when the keeper releases us; closed when it gives up.
    pub gate: OwnedFd,
    /// From init: first "the root stands", with the procfs to look at ourselves through; then "I have
    /// no privileges left". Closed when init is gone.
    pub orders: OwnedFd,
    pub stdio: [OwnedFd; 3],
    /// v1 cgroups to join; see [`crate::cgroup::WaysIn`].
    pub cgroup_doors: Vec<OwnedFd>,
}

/// Becomes the program, or tells why not. Never returns.
pub(crate) fn run(plan: &Plan, ends: &Ends) -> ! {
    let stopped = match lock_and_wait(plan, ends) {
        Ok(program) => {
            let errno = execute(&program.path, &program.argv, &program.environment);
            Stopped::new(Step::Exec, errno)
        }
        Err(stopped) => stopped,
    };
    // If the keeper is gone there is nobody to tell; init's death takes us along anyway.
    rustix::io::write(&ends.notes, &Note::Stopped(stopped).to_bytes()).ok();
    exit_now(127)
}

fn lock_and_wait(plan: &Plan, ends: &Ends) -> std::result::Result<Exec, Stopped> {
    rustix::thread::set_name(c"belljar-payload").at(Step::Session)?;
    // Prepared now: after the filter the fewer calls the better.
    let program = Exec::new(&plan.program).at(Step::Exec)?;
    start_session().at(Step::Session)?;
    join_cgroup(&ends.cgroup_doors).at(Step::JoinCgroup)?;
    if matches!(plan.files, Files::Root(_)) {
        // After joining, so that the group looks like the root of all groups from inside.
        unshare_cgroup().at(Step::CgroupNamespace)?;
    }
    for (stream, number) in ends.stdio.iter().zip(0..) {
        fd::place_at(stream, number).at(Step::Descriptors)?;
    }
    // So far beside init, which has built the root meanwhile.
    let proc = await_root(&ends.orders);
    fd::close_all_on_exec().at(Step::Descriptors)?;
    // Before the lockdown, which may close /proc to us; what is opened after this closes on exec.
    let mut ready = Ready {
        namespaces: own_namespaces(&proc),
        stray_fds: stray_fds(&proc),
        ..Ready::default()
    };
    if let Some(lockdown) = &plan.lockdown {
        let refused = lockdown::lock_down(lockdown, &plan.identity)?;
        ready.landlock_refuses = refused.files;
        ready.scopes_refuse = refused.neighbours;
    }
    // As the program, not as init: a directory that it may not enter is found here.
    rustix::process::chdir(&plan.program.directory).at(Step::Directory)?;
    // As the program's own id, whose keyring it then is.
    forget_keyring().at(Step::Session)?;
    if let Some(lockdown) = &plan.lockdown {
        lockdown::install_filter(&lockdown.filter).at(Step::Seccomp)?;
    }
    if wait_for_release(&ends.orders).is_err() {
        exit_now(1); // init is gone, and has said why if it could
    }
    rustix::io::write(&ends.notes, &Note::Ready(ready).to_bytes()).at(Step::Exec)?;
    wait_for_release(&ends.gate).at(Step::ReadBack)?;
    Ok(program)
}

fn start_session() -> Result<()> {
    rustix::process::setsid()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    reset_signals()
}

/// Waits until init has built the root and moved us into it, for the procfs that comes with the word.
fn await_root(orders: &OwnedFd) -> OwnedFd {
    let mut word = [0u8; 1];
    let received = fd::receive(orders, &mut word).ok();
    let proc = received.and_then(|message| message.fds.into_iter().next());
    proc.unwrap_or_else(|| exit_now(1)) // init is gone, and has said why if it could
}

fn join_cgroup(doors: &[OwnedFd]) -> Result<()> {
    doors.iter().try_for_each(|door| rustix::io::write(door, b"0").map(drop))
}

/// The inodes that name our namespaces; zero where one cannot be seen.
fn own_namespaces(proc: &OwnedFd) -> [u64; 7] {
    NAMESPACES.map(|name| {
        rustix::fs::statat(proc, format!("self/ns/{name}"), AtFlags::empty())
            .map_or(0, |stat| stat.st_ino)
    })
}

/// How many descriptors beyond the standard three would pass through exec.
fn stray_fds(proc: &OwnedFd) -> u64 {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let list = rustix::fs::openat(proc, "self/fd", flags, rustix::fs::Mode::empty());
    let Ok(entries) = list.and_then(rustix::fs::Dir::new) else {
        return u64::MAX;
    };
    let numbers =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
    numbers.filter(|number| *number > 2 && fd::passes_exec(*number)).count() as u64
}

fn wait_for_release(gate: &OwnedFd) -> Result<()> {
    let mut word = [0u8; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(gate.as_fd(), &mut word))? {
        1 => Ok(()),
        _ => Err(Errno::CANCELED),
    }
}

/// The program in the form that exec takes.
struct Exec {
    path: CString,
    argv: Vec<CString>,
    environment: Vec<CString>,
}

impl Exec {
    fn new(program: &Program) -> Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        Ok(Self {
            path: text(program.path.as_os_str().as_bytes())?,
            argv: program.argv.iter().map(|one| text(one.as_bytes())).collect::<Result<_>>()?,
            environment: program
                .environment
                .iter()
                .map(|(name, value)| text(format!("{name}={value}").as_bytes()))
                .collect::<Result<_>>()?,
        })
    }
}
