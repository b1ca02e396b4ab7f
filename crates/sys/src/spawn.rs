//! The one place that starts other programs from the host side.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::process::Child;

/// Starts `program` with `socket` as its standard input, no environment and silent outputs.
///
/// Everything else it needs travels over the socket, so that no descriptor has to be inherited by
/// number and the standard library can use its quick spawn.
pub fn with_socket(program: &Path, args: &[&str], socket: OwnedFd) -> io::Result<Child> {
    let started = command(program.as_os_str())
        .args(args)
        .env_clear()
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Child::new(started.id()).ok_or_else(|| io::Error::other("a process without a number"))
}

/// Starts a program of the host that we shall talk to: with `socket` as its standard input, a file for
/// it in place of its output, exactly this environment, and as this user and group alone if one is given.
pub fn companion(
    program: &Path,
    args: &[String],
    environment: &[(String, String)],
    socket: OwnedFd,
    file: OwnedFd,
    ids: Option<(u32, u32)>,
) -> io::Result<Child> {
    let mut command = command(program.as_os_str());
    command
        .args(args)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::from(file))
        .stderr(Stdio::null());
    if let Some((uid, gid)) = ids {
        // With these the standard library leaves every other group as well.
        command.uid(uid).gid(gid);
    }
    let started = command.spawn()?;
    Child::new(started.id()).ok_or_else(|| io::Error::other("a process without a number"))
}

/// Runs a helper program of the host to its end and returns what it printed.
pub fn output(program: impl AsRef<OsStr>, args: &[OsString]) -> io::Result<std::process::Output> {
    command(program.as_ref()).args(args).stdin(Stdio::null()).output()
}

/// A program of the host that is talked with over its three streams. Dropping it ends it, and what it
/// started as long as that stayed in its process group.
#[derive(Debug)]
pub struct Talker {
    child: std::process::Child,
    pidfd: OwnedFd,
    /// Until it was reaped; from then on its number may be another's.
    group: Option<Pid>,
}

/// Starts a program in a process group of its own, with exactly this environment. It dies with the thread that
/// started it.
pub fn talker(
    program: &OsStr,
    args: &[String],
    environment: &[(String, OsString)],
    directory: &Path,
) -> io::Result<Talker> {
    let mut command = command(program);
    command
        .args(args)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(directory)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let die_with_us = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(io::Error::from)
    };
    // SAFETY: between fork and exec it makes one system call (prctl) and neither allocates nor locks.
    unsafe { command.pre_exec(die_with_us) };
    let child = command.spawn()?;
    let group = Pid::from_child(&child);
    // From here on it is ours to end: without a descriptor for it, at once.
    let pidfd = match pidfd_open(group, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(errno) => {
            let mut child = child;
            kill_process_group(group, Signal::KILL).ok();
            child.wait().ok();
            return Err(errno.into());
        }
    };
    Ok(Talker { child, pidfd, group: Some(group) })
}

impl Talker {
    /// Our ends of its standard input, output and error; the first time only.
    pub fn streams(&mut self) -> Option<(OwnedFd, OwnedFd, OwnedFd)> {
        let child = &mut self.child;
        let (stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
        Some((stdin.into(), stdout.into(), child.stderr.take()?.into()))
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Ends whatever of it still runs; its exit code, unless a signal ended it.
    pub fn end(mut self) -> Option<i32> {
        self.reap()
    }

    fn reap(&mut self) -> Option<i32> {
        let group = self.group.take()?;
        // It may be gone, and nobody else in its group.
        kill_process_group(group, Signal::KILL).ok();
        self.child.wait().ok()?.code()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.reap();
    }
}

#[expect(clippy::disallowed_methods, reason = "the one door: both callers say what is inherited")]
fn command(program: &OsStr) -> Command {
    Command::new(program)
}
