//! Copies of an interpreter that go on in it, for which the C library's own `fork` is needed: it knows its locks and what
//! others have asked it to do after a copy.

use crate::process::Child;
use crate::{Errno, Result, check};

/// Copies this process; `None` is the copy. Threads other than the caller's are not copied.
pub fn fork() -> Result<Option<Child>> {
    // SAFETY: takes no pointer. The C library leaves its own state usable in the copy; a caller that has other threads
    // must know what those held, as after every fork.
    let answer = check(i64::from(unsafe { libc::fork() }))?;
    let id = u32::try_from(answer).map_err(|_| Errno::OVERFLOW)?;
    Ok(Child::new(id))
}

/// How a process ended, as `wait` tells it, and the most memory that it had, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub status: i32,
    pub peak_kib: i64,
}

/// Waits for the end of a child.
pub fn wait(child: &Child) -> Result<Ending> {
    let pid = libc::pid_t::try_from(child.id()).map_err(|_| Errno::SRCH)?;
    let mut status = 0;
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    rustix::io::retry_on_intr(|| {
        // SAFETY: both pointers are to locals that outlive the call.
        check(i64::from(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) }))
    })?;
    Ok(Ending { status, peak_kib: usage.ru_maxrss })
}

/// Ends every process that this one may signal, but for itself and process 1. `ESRCH`: there is none.
/// Only for a process that is alone with what it started in a process table of its own.
pub fn kill_all_others() -> Result<()> {
    // SAFETY: takes no pointer.
    check(i64::from(unsafe { libc::kill(-1, libc::SIGKILL) }))?;
    Ok(())
}

/// Writes to the descriptor of this number, whosever it is; `EBADF` if nobody's. What is shorter than a pipe holds in one
/// piece (pipe(7), `PIPE_BUF`) is written whole.
pub fn write(number: i32, bytes: &[u8]) -> Result<()> {
    rustix::io::retry_on_intr(|| {
        // SAFETY: the pointer and the length are those of one slice, which outlives the call.
        check(unsafe { libc::write(number, bytes.as_ptr().cast(), bytes.len()) } as libc::c_long)
    })?;
    Ok(())
}
