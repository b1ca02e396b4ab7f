//! The nursery: a process of which keepers are copies, for an engine that makes many.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use belljar_jail::{NURSERY_ROLE, wire};
use belljar_sys::process::Child;
use belljar_sys::{fd, spawn};

use super::alive::Alive;
use super::kind::Kind;
use super::line::Line;
use super::run::Spare;

/// A copy takes a fraction of a millisecond.
const COPY_LIMIT: Duration = Duration::from_secs(10);

/// When it is dropped its socket closes and it ends; the keepers it made live on.
#[derive(Debug)]
pub(crate) struct Nursery {
    line: Line,
    process: Option<Child>,
    alive: Alive,
}

impl Nursery {
    pub(crate) fn start(launcher: &Path, alive: &Alive) -> io::Result<Self> {
        let (line, theirs) = Line::open()?;
        let process = spawn::with_socket(launcher, &[NURSERY_ROLE], theirs)?;
        Ok(Self { line, process: Some(process), alive: alive.clone() })
    }

    /// A keeper, which knows the plan of its kind if there is one.
    pub(crate) async fn keeper(&self, kind: Option<&Kind>) -> io::Result<Spare> {
        let (control, theirs) = wire::control_pair()?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let mut fds = vec![theirs.as_fd()];
        fds.extend(kind.map(|kind| kind.memory.as_fd()));
        let question = |line: &_| Ok(fd::send(line, b"copy", &fds)?);
        let answer = self.line.ask(question, COPY_LIMIT).await?;
        let number = answer.try_into().map(u32::from_le_bytes).ok();
        let child = number.and_then(Child::new).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Spare::of(control, child, &self.alive))
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        // Closed now, not when the fields are dropped: its end is waited for.
        self.line.close();
        if let Some(process) = self.process.take() {
            // Counted only now: it is nobody's run, and lives as long as the pool does.
            self.alive.started();
            self.alive.see_off(process, || {});
        }
    }
}
