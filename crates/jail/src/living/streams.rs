//! The standard streams of an exec: what is made for it, and what is on its way in.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use belljar_sys::{Errno, Result};
use rustix::pipe::{PipeFlags, pipe_with};

use super::exec::Kind;
use super::inside::{AGENT, EXEC, EXEC_ON_TERMINAL};

/// Input that waits to be read by the program.
const MAX_WAITING: usize = 1 << 20;

/// What is on its way to the program.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub to: Option<OwnedFd>,
    waiting: VecDeque<u8>,
    closing: bool,
}

impl Input {
    pub(crate) fn new(to: Option<OwnedFd>) -> Self {
        Self { to, ..Self::default() }
    }

    /// Takes what fits.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(MAX_WAITING - self.waiting.len());
        self.waiting.extend(&bytes[..taken]);
        self.write();
        taken
    }

    /// Closes it when all that waits was written. A terminal's end is a character.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.write();
    }

    pub(crate) fn waits(&self) -> bool {
        self.to.is_some() && !self.waiting.is_empty()
    }

    pub(crate) fn write(&mut self) {
        while let (Some(to), false) = (&self.to, self.waiting.is_empty()) {
            let (now, _) = self.waiting.as_slices();
            match rustix::io::write(to, now) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(Errno::AGAIN | Errno::INTR) => return,
                // The program closed its input or ended, which is its right.
                Err(_) => {
                    self.waiting.clear();
                    self.to = None;
                }
            }
        }
        if self.closing && self.waiting.is_empty() {
            self.to = None;
        }
    }
}

/// Our ends of a program's streams.
#[derive(Default)]
pub(crate) struct Streams {
    pub input: Option<OwnedFd>,
    pub outputs: [Option<OwnedFd>; 2],
}

impl Streams {
    /// What to tell init, our ends, and theirs.
    pub(crate) fn make(kind: &mut Kind) -> Result<(u8, Self, Vec<OwnedFd>)> {
        match kind {
            Kind::Program { order, .. } if order.terminal.is_some() => {
                Ok((EXEC_ON_TERMINAL, Self::default(), Vec::new()))
            }
            Kind::Program { .. } | Kind::Trial => {
                let (stdin, input) = pipe_with(PipeFlags::CLOEXEC)?;
                let (out, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
                let (err, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
                for ours in [&input, &out, &err] {
                    rustix::io::ioctl_fionbio(ours, true)?;
                }
                let ours = Self { input: Some(input), outputs: [Some(out), Some(err)] };
                Ok((EXEC, ours, vec![stdin, stdout, stderr]))
            }
            Kind::Agent { socket } => {
                let (ours, theirs) = crate::agent::pair()?;
                *socket = Some(ours);
                Ok((AGENT, Self::default(), vec![theirs]))
            }
        }
    }
}
