//! The agent: does file operations inside a living sandbox, for the engine outside.
//!
//! It is a copy of init that is locked down like a program: the sandbox's root is its root, the sandbox's id its
//! id. So the engine never resolves a path of the sandbox on the host, and no link, race, `..` or device leads the
//! agent further than a program inside could go itself. It answers one question at a time over a stream socket and
//! ends when the other side closes it. What it says is believed by nobody: see [`wire`].

mod acts;
mod files;
mod place;
mod remove;
mod watch;
pub mod wire;

use std::os::fd::OwnedFd;

use belljar_sys::{Errno, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::chdir;

use files::Handles;
use wire::{Answer, Bytes, Fault, MAX_DATA_BYTES, Request, rest_of_frame};

/// The calls that a payload makes between its filter and [`serve`]: it says that it is ready, waits to be released, and
/// closes all but its socket.
pub const SETTLING_CALLS: &[&str] = &["sendmsg", "dup2", "dup3", "close_range"];

/// Every call that the agent makes from [`serve`] on: what a filter made for it must let through. Beyond what
/// programs may at level standard those are `syncfs` (refused it, trees are brought to the disk file by file) and
/// those of inotify (refused them, there is no watch). `fcntl` is what debug builds ask before they close.
pub const CALLS: &[&str] = &[
    "read",
    "write",
    "pread64",
    "pwrite64",
    "lseek",
    "close",
    "fcntl",
    "openat",
    "fstat",
    "newfstatat",
    "fstatfs",
    "getdents64",
    "readlinkat",
    "mkdirat",
    "renameat2",
    "renameat",
    "linkat",
    "symlinkat",
    "unlinkat",
    "fchmod",
    "fchmodat",
    "utimensat",
    "ftruncate",
    "fsync",
    "syncfs",
    "chdir",
    "umask",
    "inotify_init1",
    "inotify_add_watch",
    "inotify_rm_watch",
    "poll",
    "ppoll",
    "recvfrom",
    "sendto",
    "getrandom",
    "clock_gettime",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "mprotect",
    "brk",
    "futex",
    "sigaltstack",
    "exit",
    "exit_group",
];

/// Why an operation was not done, and where below the place that was named.
#[derive(Debug)]
struct Failed {
    fault: Fault,
    at: Vec<u8>,
}

type Outcome<T> = std::result::Result<T, Failed>;

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::from(Fault::Kernel { errno: errno.raw_os_error().unsigned_abs() })
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self { fault, at: Vec::new() }
    }
}

/// Whether this is what an agent calls a file that is not in its place yet: one that no agent writes any more was left by
/// one that was killed.
pub fn is_unfinished(name: &[u8]) -> bool {
    files::is_beside(name)
}

/// The two ends of an agent's socket.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Answers what comes over `socket` until it is closed, and ends this process. Unfinished files are gone then.
pub fn serve(socket: OwnedFd) -> ! {
    let code = match Agent::new(socket).and_then(Agent::attend) {
        Ok(()) => 0,
        Err(_) => 1, // nobody is left to be told: the socket is what failed
    };
    belljar_sys::process::exit_now(code)
}

struct Agent {
    socket: OwnedFd,
    handles: Handles,
}

impl Agent {
    fn new(socket: OwnedFd) -> Result<Self> {
        // A file that grows past its limit is an error to tell, not an end.
        belljar_sys::signal::ignore_file_limit()?;
        chdir("/")?;
        // Modes are what was asked for.
        rustix::process::umask(rustix::fs::Mode::empty());
        Ok(Self { socket, handles: Handles::default() })
    }

    fn attend(mut self) -> Result<()> {
        let mut frame = Vec::new();
        while self.receive(&mut frame)? {
            let (id, request) = Request::read(&frame).ok_or(Errno::PROTO)?;
            let answer = self.answer(request).unwrap_or_else(|failed| Answer::Fault {
                fault: failed.fault,
                at: Bytes(failed.at),
            });
            self.send(&answer.frame(id))?;
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Outcome<Answer> {
        let done = |()| Answer::Done {};
        match request {
            Request::Stat { place, follow } => acts::stat(&place, follow),
            Request::List { place, cursor, most } => acts::list(&place, cursor, most),
            Request::Open { place, how } => self.handles.open(&place, &how),
            Request::Read { handle, offset, length } => {
                let length = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_DATA_BYTES);
                let data = self.handles.read(handle, offset, length)?;
                Ok(Answer::Data { data: Bytes(data) })
            }
            Request::Write { handle, offset, data } => {
                self.handles.write(handle, offset, &data.0).map(done)
            }
            Request::Finish { handle, how, modified } => {
                self.handles.finish(handle, how, modified).map(done)
            }
            Request::MakeDirectory { place, mode, parents } => {
                acts::make_directory(&place, mode, parents).map(done)
            }
            Request::Move { from, to, replace } => acts::rename(&from, &to, replace).map(done),
            Request::Remove { place, recursive } => remove::remove(&place, recursive),
            Request::Symlink { place, target } => acts::symlink(&place, &target.0).map(done),
            Request::ReadLink { place } => {
                Ok(Answer::Data { data: Bytes(acts::read_link(&place)?) })
            }
            Request::Link { from, to } => acts::link(&from, &to).map(done),
            Request::SetMode { place, mode } => acts::set_mode(&place, mode).map(done),
            Request::SetTimes { place, modified } => acts::set_times(&place, modified).map(done),
            Request::Sync { place, whole } => acts::sync(&place, whole).map(done),
            Request::Watch { place, recursive } => self.handles.watch(&place, recursive),
            Request::Events { handle, wait_ms } => {
                self.handles.events(handle, wait_ms, &self.socket)
            }
        }
    }

    /// The next frame without its length; `false` when no more will come.
    fn receive(&self, frame: &mut Vec<u8>) -> Result<bool> {
        let mut length = [0; 4];
        if !self.fill(&mut length)? {
            return Ok(false);
        }
        frame.resize(rest_of_frame(length).ok_or(Errno::PROTO)?, 0);
        self.fill(frame)
    }

    /// `false` when the other side has closed.
    fn fill(&self, mut buffer: &mut [u8]) -> Result<bool> {
        while !buffer.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut *buffer))? {
                0 => return Ok(false),
                read => buffer = &mut buffer[read..],
            }
        }
        Ok(true)
    }

    fn send(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let sent = rustix::io::retry_on_intr(|| {
                rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)
            })?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }
}
