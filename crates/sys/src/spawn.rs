//! The one place that starts other programs from the host side.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

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

#[expect(clippy::disallowed_methods, reason = "the one door: both callers say what is inherited")]
fn command(program: &OsStr) -> Command {
    Command::new(program)
}
