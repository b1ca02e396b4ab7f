//! A copy of a loaded candidate for each of its cases. Called by our program beside it (`grade/inside.py`), in the
//! candidate's own process: nothing in here decides anything, and nothing is believed that it says.
//!
//! It is here and not there because a parent that runs Python writes to forty pages between two copies (to look at an object
//! is to write its count), each of which the kernel has to give it anew after every copy.

use belljar_sys::{Errno, Result, copies};
use rustix::process::{Pid, WaitOptions, getppid, waitpid};
use rustix::thread::{NanosleepRelativeResult as Slept, nanosleep};
use rustix::time::Timespec;

/// The exit code of a copy that found the channel closed.
const CLOSED: i32 = 77;
/// How often what is left of a case is ended, and the pause between.
const SWEEPS: usize = 2000;
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };

/// Who returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A copy, to answer one case.
    Copy,
    /// The caller: one case is left, which it may answer itself.
    Last,
    /// The caller: there are no more cases.
    Closed,
}

/// Makes copies, one after the other, and tells `sink` how each ended, when all that it left is gone. There are
/// `cases` to come; 0 if that is not known. `sink` is the number of a descriptor of the candidate's process.
pub fn for_each(cases: i32, sink: i32) -> Result<Side> {
    let mut left = cases;
    while left != 1 {
        let Some(child) = copies::fork()? else { return Ok(Side::Copy) };
        let ending = copies::wait(&child)?;
        sweep();
        if ending.status == CLOSED << 8 {
            return Ok(Side::Closed);
        }
        copies::write(sink, &told(ending))?;
        left = left.wrapping_sub(1);
    }
    Ok(Side::Last)
}

/// Ends what a case left behind. Only where our parent is the first process: then the process table is the sandbox's own.
fn sweep() {
    if getppid() != Some(Pid::INIT) {
        return;
    }
    for _ in 0..SWEEPS {
        if copies::kill_all_others() == Err(Errno::SRCH) {
            return; // none is left
        }
        // What the candidate started while it was loaded is ours to reap; init reaps the rest.
        while matches!(waitpid(None, WaitOptions::NOHANG), Ok(Some(_))) {}
        match nanosleep(&PAUSE) {
            // Whatever woke us: we look again.
            Slept::Ok | Slept::Interrupted(_) | Slept::Err(_) => {}
        }
    }
}

/// The message after its length: two numbers as `marshal` has them, which is what the channel speaks.
fn told(ending: copies::Ending) -> [u8; 20] {
    let mut message = *b"\x10\0\0\0e[\x02\0\0\0i----i----";
    message[11..15].copy_from_slice(&ending.status.to_le_bytes());
    let peak_kib = i32::try_from(ending.peak_kib).unwrap_or(i32::MAX);
    message[16..].copy_from_slice(&peak_kib.to_le_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_as_marshal_has_it() {
        let message = told(copies::Ending { status: 9, peak_kib: 515 });
        assert_eq!(message, *b"\x10\0\0\0e[\x02\0\0\0i\x09\0\0\0i\x03\x02\0\0");
        let most = told(copies::Ending { status: 0, peak_kib: i64::MAX });
        assert_eq!(most[16..], i32::MAX.to_le_bytes());
    }
}
