//! Hearing that somebody wants us to end, in a way that poll(2) can wait for beside anything else.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{Result, check};

/// Ctrl-C, a polite kill, a closed terminal.
const STOP: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// A pipe from the handler to whoever waits; never closed, so that the handler's end is never somebody
/// else's descriptor.
static HEARD: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();
static TELL: AtomicI32 = AtomicI32::new(-1);

/// From the first call on, the signals that ask a process to end do not end this one: they make this
/// pipe readable, for good. They also interrupt calls that wait, with `EINTR`.
pub fn hear_stop() -> Result<BorrowedFd<'static>> {
    if let Some(heard) = heard_stop() {
        return Ok(heard);
    }
    let made = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // Whoever comes second finds the first one's and closes its own.
    let (heard, tell) = HEARD.get_or_init(|| made);
    TELL.store(tell.as_raw_fd(), Ordering::SeqCst);
    for signal in STOP {
        handle(signal)?;
    }
    Ok(heard.as_fd())
}

/// The same pipe, if anybody asked for it before.
pub fn heard_stop() -> Option<BorrowedFd<'static>> {
    HEARD.get().map(|(heard, _)| heard.as_fd())
}

fn handle(signal: libc::c_int) -> Result<()> {
    // SAFETY: all zeroes is a sigaction: no flag (so no SA_RESTART: a write that waits must come back)
    // and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: `action` is whole and outlives the call; `note` does only what a handler may.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    check(result.into()).map(drop)
}

/// From now on a write beyond the limit on a file's size is `EFBIG` and no end of this process.
pub fn ignore_file_limit() -> Result<()> {
    // SAFETY: all zeroes is a sigaction: no flag and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = libc::SIG_IGN;
    // SAFETY: `action` is whole and outlives the call; no code of ours is run by it.
    let result = unsafe { libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut()) };
    check(result.into()).map(drop)
}

/// Runs between any two instructions of the process: one write, which is async-signal-safe
/// (signal-safety(7)), and errno as it was.
extern "C" fn note(_: libc::c_int) {
    let tell = TELL.load(Ordering::SeqCst);
    // SAFETY: takes no argument; the address is this thread's own and stays valid while it runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` is valid as said above.
    let before = unsafe { errno.read() };
    // SAFETY: one readable byte; a number that is no descriptor is an error, not a fault. It fails only
    // when the pipe is full, and then it is readable already.
    unsafe { libc::write(tell, c"!".as_ptr().cast(), 1) };
    // SAFETY: as for reading it.
    unsafe { errno.write(before) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn a_signal_makes_the_descriptor_readable_for_good() {
        let heard = hear_stop().unwrap();
        let look = |seconds| {
            let mut waited = [PollFd::from_borrowed_fd(heard, PollFlags::IN)];
            let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
            loop {
                match poll(&mut waited, Some(&timeout)) {
                    Err(Errno::INTR) => {}
                    result => return result.unwrap(),
                }
            }
        };
        assert_eq!(look(0), 0);
        kill_process(getpid(), Signal::HUP).unwrap();
        assert_eq!(look(10), 1);
        assert_eq!(look(0), 1, "whoever looks later sees it too");
        assert_eq!(heard_stop().map(|fd| fd.as_raw_fd()), Some(heard.as_raw_fd()));
    }
}
