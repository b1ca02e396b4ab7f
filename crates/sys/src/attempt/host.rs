//! What the host side prepares for the probes: a victim process, a shared-memory segment, a
//! descriptor that a careless launcher would leak.

use super::call::{Arg, Call, syscall};
use super::names::Errno;
use rustix::io::FdFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A process of the same user that waits for nothing. It ends when this value is dropped, and also
/// when our process dies in any other way: it reads a pipe whose only writer we are.
#[derive(Debug)]
pub struct Victim(Child);

impl Victim {
    /// Starts it in `directory`, with one variable in its environment and no other.
    pub fn start(directory: &Path, name: &str, value: &str) -> io::Result<Self> {
        let mut command = command(Path::new("/bin/cat"));
        command.current_dir(directory).env(name, value);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Victim)
    }

    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have been killed by the very probe it was there for.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Runs a program to its end with exactly this environment, and gives what it printed.
pub fn output_of(program: &Path, argument: &str, name: &str, value: &str) -> Result<Output, Errno> {
    let mut command = command(program);
    command.arg(argument).env(name, value).stdin(Stdio::null());
    Ok(command.output()?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "probes start programs inside the sandbox, where the launcher of runs does not exist"
)]
fn command(program: &Path) -> Command {
    let mut command = Command::new::<&OsStr>(program.as_ref());
    command.env_clear();
    command
}

/// A System V shared-memory segment, removed on drop.
#[derive(Debug)]
pub struct Segment(i32);

impl Segment {
    /// Makes a page of shared memory under `key`; one that exists already is an error.
    pub fn make(key: i32) -> Result<Self, Errno> {
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o666;
        // SAFETY: takes and gives integers.
        let id = unsafe { libc::shmget(key, 4096, flags) };
        if id == -1 { Err(Errno::last()) } else { Ok(Segment(id)) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: IPC_RMID ignores the buffer; the segment is ours and nothing is attached.
        let _removed = unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// Looks up a segment by its key, and makes none.
pub fn find_segment(key: i32) -> Result<i32, Errno> {
    // SAFETY: takes and gives integers.
    let id = unsafe { libc::shmget(key, 0, 0) };
    if id == -1 { Err(Errno::last()) } else { Ok(id) }
}

/// A copy of a descriptor that passes through exec, as a careless launcher's would. Its number is one
/// that nobody has by chance.
pub fn leak_across_exec(file: &File) -> Result<File, Errno> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, 200)?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy.into())
}

/// The kernel's handle of a file, as `struct file_handle`: opens it without any path.
pub fn handle_of(path: &str) -> Result<Vec<u8>, Errno> {
    const MOST_BYTES: u32 = 128;
    let mut handle = vec![0_u8; 8 + MOST_BYTES as usize];
    handle.iter_mut().zip(MOST_BYTES.to_ne_bytes()).for_each(|(to, from)| *to = from);
    let mut mount = [0_u8; 4];
    let here = i64::from(libc::AT_FDCWD);
    syscall(
        Call::NAME_TO_HANDLE_AT,
        &mut [
            Arg::Int(here),
            Arg::Text(path),
            Arg::Exchange(&mut handle),
            Arg::Exchange(&mut mount),
            Arg::Int(0),
        ],
    )?;
    Ok(handle)
}

/// The host's name, as this process's uts namespace has it.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The effective user.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The free memory of the machine, or of what this process is shown of it.
pub fn free_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.freeram + info.bufferram).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_victim_ends_with_its_guard() {
        let victim = Victim::start(Path::new("/"), "CANARY", "42").unwrap();
        let proc = format!("/proc/{}/environ", victim.pid());
        assert!(Path::new(&proc).exists());
        drop(victim);
        assert!(!Path::new(&proc).exists());
    }
}
