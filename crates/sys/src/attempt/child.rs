//! A closure run in a child of its own: a probe may end by a signal, and that end is its answer.

use super::names;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, setpgid};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// No probe has more to say; what is longer is cut.
pub const ANSWER_BYTES: usize = 16 * 1024;

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It lived to write its answer.
    Answered(Vec<u8>),
    /// It died by this signal, before any answer.
    Signaled(&'static str),
    /// It left with this code and said nothing.
    Silent(i32),
    /// It was still at it when its time was up, and has been killed with its process group.
    Stalled,
}

/// Forks, lets the child run `act` and write what it gives, and waits at most `bound` for it.
///
/// The child has only this thread. A lock that another thread held at the fork stays held for it;
/// the bound turns that into [`Ended::Stalled`]. Call it before any thread starts where you can.
pub fn in_child(bound: Duration, act: impl FnOnce() -> Vec<u8>) -> io::Result<Ended> {
    let (answer, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: no memory is shared with the child, which runs only `be_the_child` and never returns.
    let forked = unsafe { libc::fork() };
    let Some(child) = Pid::from_raw(forked.max(0)) else {
        if forked < 0 {
            return Err(io::Error::last_os_error());
        }
        drop(answer);
        be_the_child(&tell, act)
    };
    drop(tell);
    let heard = listen(&answer, Instant::now() + bound);
    if heard.is_none() {
        // The child leads its own group unless it was too slow even for that: so both.
        // Each may be gone already, which is what is wanted.
        let _gone = kill_process_group(child, Signal::KILL);
        let _gone = kill_process(child, Signal::KILL);
    }
    let status = loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    Ok(match (heard, status.terminating_signal()) {
        (None, _) => Ended::Stalled,
        (Some(said), None) if said.is_empty() => Ended::Silent(status.exit_status().unwrap_or(-1)),
        (Some(said), Some(signal)) if said.is_empty() => Ended::Signaled(names::signal(signal)),
        (Some(said), _) => Ended::Answered(said),
    })
}

fn be_the_child(tell: &OwnedFd, act: impl FnOnce() -> Vec<u8>) -> ! {
    // Without a group of its own the child is still bounded by its pid: not worth stopping for.
    let _own_group = setpgid(None, None);
    let _dies_with_us = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let code = match catch_unwind(AssertUnwindSafe(act)) {
        Ok(mut said) => {
            said.truncate(ANSWER_BYTES);
            let mut rest = said.as_slice();
            while let Ok(written) = write(tell, rest) {
                rest = rest.get(written..).unwrap_or_default();
                if rest.is_empty() {
                    break;
                }
            }
            0
        }
        Err(_panic) => 101,
    };
    // SAFETY: ends this process at once; the parent's exit handlers must not run twice.
    unsafe { libc::_exit(code) }
}

/// Everything up to the end of the stream, or nothing if the deadline came first.
fn listen(answer: &OwnedFd, deadline: Instant) -> Option<Vec<u8>> {
    let mut said = Vec::new();
    let mut buffer = [0_u8; 4096];
    while said.len() <= ANSWER_BYTES {
        let left = deadline.checked_duration_since(Instant::now())?;
        let left = Timespec::try_from(left).ok()?;
        match poll(&mut [PollFd::new(answer, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return None,
        }
        match read(answer, &mut buffer) {
            Ok(0) => return Some(said),
            Ok(count) => said.extend_from_slice(buffer.get(..count)?),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(5);

    #[test]
    fn an_answer_comes_back() {
        assert_eq!(in_child(BOUND, || b"42".to_vec()).unwrap(), Ended::Answered(b"42".to_vec()));
    }

    #[test]
    fn a_death_is_named() {
        let killed = in_child(BOUND, || {
            kill_process(rustix::process::getpid(), Signal::SYS).unwrap();
            Vec::new()
        });
        assert_eq!(killed.unwrap(), Ended::Signaled("SIGSYS"));
    }

    #[test]
    fn a_stalled_child_is_ended_with_its_descendants() {
        let stalled = in_child(Duration::from_millis(50), || {
            let deeper = in_child(BOUND, loop_until_killed);
            format!("{deeper:?}").into_bytes()
        });
        assert_eq!(stalled.unwrap(), Ended::Stalled);
    }

    fn loop_until_killed() -> Vec<u8> {
        let (quiet, _held) = rustix::pipe::pipe().unwrap();
        let mut byte = [0_u8; 1];
        read(&quiet, &mut byte).unwrap();
        Vec::new()
    }
}
