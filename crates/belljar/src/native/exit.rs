//! Egress processes that are started ahead: executed, locked down, told nothing. A warm run that has a way out need not
//! wait for one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use belljar_jail::egress::{self, Confinement};
use belljar_sys::process::{Child, kill};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::alive::Alive;
use super::host::Host;
use crate::egress::Network;

/// One that waits for a sandbox. When it is dropped it is killed, and reaped by somebody else.
#[derive(Debug)]
pub(crate) struct Exit {
    /// Until it is a keeper's.
    control: Option<OwnedFd>,
    pidfd: OwnedFd,
    child: Option<Child>,
    alive: Alive,
    pub ids: Option<(u32, u32)>,
}

impl Exit {
    pub(crate) fn start(launcher: &Path, host: &Host, alive: &Alive) -> io::Result<Self> {
        let (control, child) = egress::start(launcher)?;
        let opened = Pid::from_raw(child.id().cast_signed())
            .map_or(Err(io::ErrorKind::InvalidData.into()), |pid| {
                pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)
            });
        let pidfd = match opened {
            Ok(pidfd) => pidfd,
            Err(error) => {
                child.kill();
                child.wait();
                return Err(error);
            }
        };
        let how: Confinement = Network::confinement(host, child.id());
        let ids = how.ids;
        let told = egress::confine_there(&control, &how);
        let (control, alive) = (Some(control), alive.clone());
        let exit = Self { control, pidfd, child: Some(child), alive, ids };
        told.map(|()| exit).map_err(io::Error::from)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// It has not exited.
    pub(crate) fn lives(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }

    /// What a keeper needs of it.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.control.iter().chain([&self.pidfd]).map(AsFd::as_fd).collect()
    }

    /// A keeper has it: when that closes the socket it must be closed.
    pub(super) fn sent(mut self) -> Self {
        self.control = None;
        self
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // Not by its number, which may be another's by now. One that has ended already does not mind.
            kill(self.pidfd.as_fd()).ok();
            // Counted only now: one that waits is nobody's run.
            self.alive.started();
            self.alive.see_off(child, || {});
        }
    }
}
