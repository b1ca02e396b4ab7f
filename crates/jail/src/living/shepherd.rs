//! The shepherd: stands between init and one exec, so that all which descends from that exec can be told from others.
//!
//! Orphans fall to it, not to init. When the program has ended by itself the shepherd says how and leaves, and what is
//! left goes on as init's; when it is told to end the exec, it leaves nobody behind. Programs have its id and could
//! kill it; then init ends what nobody looks after.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_sys::process::{
    Cloned, Ended, SingleThreaded, Status, Wait, clone, exit_now, ignore_signals, init_signals,
    reap_any,
};
use belljar_sys::{Errno, Result, fd, pty};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, RawPid, Signal, kill_process, kill_process_group};

use super::program::{self, Part, Task};
use super::root::Built;
use crate::plan::Plan;
use crate::report::{At, Ending, Note, Step, Stopped};
use crate::tree;

/// What the keeper tells a shepherd: this, or a signal's number for the program's process group.
pub(crate) const END: u8 = 255;
/// What it tells the keeper first, so that its process id is known.
pub(crate) const HERE: &[u8] = b"h";
/// A signal was passed on.
pub(crate) const PASSED: &[u8] = b"s";
/// With the outer end of the exec's terminal.
pub(crate) const TERMINAL: &[u8] = b"t";

/// Looks after one exec. Never returns.
pub(crate) fn run(single: &SingleThreaded, plan: &Plan, built: &Built, task: Task) -> ! {
    match tend(single, plan, built, task) {
        Ok(()) => exit_now(0),
        Err(_) => exit_now(1),
    }
}

fn tend(single: &SingleThreaded, plan: &Plan, built: &Built, mut task: Task) -> Result<()> {
    rustix::thread::set_name(c"belljar-shepherd")?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    ignore_signals();
    let signals = init_signals()?;
    fd::send(&task.line, HERE, &[])?;
    let terminal = match task.part {
        Part::Terminal => match pty::open() {
            Ok((outer, inner)) => {
                fd::send(&task.line, TERMINAL, &[outer.as_fd()])?;
                Some(inner)
            }
            Err(errno) => {
                program::tell_stopped(&task.line, Stopped::new(Step::Devices, errno));
                return Ok(());
            }
        },
        Part::Pipes | Part::Agent => None,
    };
    let program = match clone(single, 0, None).at(Step::Fork) {
        Ok(Cloned::Child) => program::run(plan, built, task, terminal),
        Ok(Cloned::Parent { child, .. }) => child,
        Err(stopped) => {
            program::tell_stopped(&task.line, stopped);
            return Ok(());
        }
    };
    // Held open by us they would never end.
    task.streams.clear();
    drop((terminal, task.gate.take()));
    let mut herd = Herd { program, line: &task.line, signals, seen: Seen::default() };
    herd.watch()?;
    herd.report()
}

/// What was seen of the exec.
#[derive(Debug, Default)]
struct Seen {
    program: Option<Status>,
    cpu: Duration,
    max_resident_bytes: u64,
}

struct Herd<'a> {
    program: Pid,
    line: &'a OwnedFd,
    signals: OwnedFd,
    seen: Seen,
}

impl Herd<'_> {
    /// Until the program has ended, or is to be.
    fn watch(&mut self) -> Result<()> {
        while self.seen.program.is_none() {
            let mut fds =
                [PollFd::new(self.line, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            let fired = fds.map(|one| !one.revents().is_empty());
            if fired[1] {
                self.look()?;
            }
            if fired[0] && self.seen.program.is_none() && !self.obey()? {
                return self.end();
            }
        }
        Ok(())
    }

    /// Passes a signal on; `false` when the exec is to end, or when the keeper is gone.
    fn obey(&self) -> Result<bool> {
        let mut word = [0; 1];
        let received = fd::receive(self.line, &mut word)?;
        if received.length != 1 || word[0] == END {
            return Ok(false);
        }
        if let Some(signal) = Signal::from_named_raw(i32::from(word[0])) {
            // It may have ended meanwhile. A program that has no group of its own yet has not begun.
            kill_process_group(self.program, signal).ok();
        }
        // A keeper that cannot hear has other troubles, or is gone.
        fd::try_send(self.line, PASSED).ok();
        Ok(true)
    }

    fn look(&mut self) -> Result<()> {
        let mut discard = [0u8; 128];
        match rustix::io::read(&self.signals, &mut discard) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        while let Some(ended) = reap(Wait::Look)? {
            self.add(&ended);
        }
        Ok(())
    }

    fn add(&mut self, ended: &Ended) {
        if ended.pid == raw(self.program) {
            self.seen.program = Some(ended.status);
        }
        self.seen.cpu += ended.cpu;
        self.seen.max_resident_bytes = self.seen.max_resident_bytes.max(ended.max_resident_bytes);
    }

    /// Ends the whole exec.
    fn end(&mut self) -> Result<()> {
        kill_process(self.program, Signal::KILL).ok();
        while self.seen.program.is_none() {
            let Some(ended) = reap(Wait::Block)? else {
                break;
            };
            self.add(&ended);
        }
        if tree::end_descendants() { Ok(()) } else { Err(Errno::BUSY) }
    }

    fn report(&self) -> Result<()> {
        let (exited, value) = match self.seen.program {
            Some(Status::Exited(code)) => (true, code),
            Some(Status::Signaled(signal)) => (false, signal),
            None => return Err(Errno::CHILD),
        };
        let ending = Ending {
            exited,
            value,
            cpu_us: u64::try_from(self.seen.cpu.as_micros()).unwrap_or(u64::MAX),
            max_resident_bytes: self.seen.max_resident_bytes,
            disk: None,
        };
        fd::send(self.line, &Note::Ended(ending).to_bytes(), &[])
    }
}

fn raw(pid: Pid) -> RawPid {
    pid.as_raw_nonzero().get()
}

fn reap(wait: Wait) -> Result<Option<Ended>> {
    match reap_any(wait) {
        Err(Errno::CHILD) => Ok(None),
        result => result,
    }
}
