//! One egress process: the keeper's own child, or one that the engine kept ready.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_sys::process::{Child, kill};
use belljar_sys::{Errno, Result, fd, spawn};

use super::{Bid, Confinement, EGRESS_ROLE, EgressPlan};
use crate::wire::{control_pair, sealed_memory};

/// One egress process. Ended when dropped.
#[derive(Debug)]
pub(super) struct Process {
    // Dropped first: to it a closed socket means the end.
    pub socket: OwnedFd,
    whose: Whose,
    /// It was found locked down and has its listeners.
    pub serves: bool,
    /// It was asked for its last words.
    pub finishes: bool,
}

#[derive(Debug)]
enum Whose {
    Own(Option<Child>),
    /// The engine's, which reaps it.
    Engines {
        id: u32,
        pidfd: OwnedFd,
    },
}

/// A process that the engine started ahead: told how to lock itself down, and nothing else.
#[derive(Debug)]
pub(crate) struct Given {
    pub id: u32,
    pub socket: OwnedFd,
    pub pidfd: OwnedFd,
}

impl Process {
    pub(super) fn start(plan: &EgressPlan) -> Result<Self> {
        let (socket, child) = start(Path::new("/proc/self/exe")).map_err(|_| Errno::NOEXEC)?;
        let process =
            Self { socket, whose: Whose::Own(Some(child)), serves: false, finishes: false };
        confine_there(&process.socket, &plan.confinement())?;
        Ok(process)
    }

    pub(super) fn given(ready: Given) -> Self {
        let Given { id, socket, pidfd } = ready;
        Self { socket, whose: Whose::Engines { id, pidfd }, serves: false, finishes: false }
    }

    /// Has it end, which its socket then shows.
    pub(super) fn end(&self) {
        match &self.whose {
            Whose::Own(child) => child.iter().for_each(Child::kill),
            // One that has ended already does not mind.
            Whose::Engines { pidfd, .. } => drop(kill(pidfd.as_fd())),
        }
    }

    pub(super) fn was_given(&self) -> bool {
        matches!(self.whose, Whose::Engines { .. })
    }

    pub(super) fn id(&self) -> u32 {
        match &self.whose {
            Whose::Own(child) => child.as_ref().map_or(0, Child::id),
            Whose::Engines { id, .. } => *id,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        match &mut self.whose {
            Whose::Own(child) => {
                if let Some(child) = child.take() {
                    child.kill();
                    child.wait();
                }
            }
            // One that has ended already does not mind.
            Whose::Engines { pidfd, .. } => drop(kill(pidfd.as_fd())),
        }
    }
}

/// Starts the binary in the egress process's role; our end of its socket does not block.
pub fn start(binary: &Path) -> std::io::Result<(OwnedFd, Child)> {
    let (socket, theirs) = control_pair()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    let child = spawn::with_socket(binary, &[EGRESS_ROLE], theirs)?;
    Ok((socket, child))
}

/// Has it lock itself down. It says [`super::Told::Ready`] then, and waits for its plan.
pub fn confine_there(socket: impl AsFd, how: &Confinement) -> Result<()> {
    let json = serde_json::to_vec(how).map_err(|_| Errno::PROTO)?;
    let memory = sealed_memory("confinement", &json).map_err(|_| Errno::NOMEM)?;
    let word = serde_json::to_vec(&Bid::Confine).map_err(|_| Errno::PROTO)?;
    fd::send(socket, &word, &[memory.as_fd()])
}
