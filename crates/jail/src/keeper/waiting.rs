//! Before the release: what the keeper waits for while nothing of the program runs.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belljar_sys::{Errno, Result, fd};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Keeper, SETUP_LIMIT, heard, tell, wait};
use crate::cgroup::Group;
use crate::egress::{Exit, Secrets};
use crate::notify::Ear;
use crate::plan::{Delivery, Invocation};
use crate::report::{At, Failed, Message, Note, Ready, Started, Step, Stopped};
use crate::wire::{receive_delivery, receive_secrets, send_placed};

impl Keeper {
    /// Waits until the payload has locked itself down.
    pub(super) fn await_ready(
        &mut self,
        control: &OwnedFd,
    ) -> std::result::Result<(Ready, u32), Failed> {
        let heard = self.hear(control, Gate::Ignored, Some(SETUP_LIMIT)).at(Step::Clone)?;
        if let Heard::Note(Note::Ready(ready), sender) = heard {
            return Ok((ready, sender));
        }
        Err(heard.stopped(Step::Clone).into())
    }

    /// Waits until init has made all but the payload.
    pub(super) fn await_standing(&mut self, control: &OwnedFd) -> std::result::Result<(), Failed> {
        let heard = self.hear(control, Gate::Ignored, Some(SETUP_LIMIT)).at(Step::Clone)?;
        if matches!(heard, Heard::Note(Note::Standing, _)) {
            return Ok(());
        }
        Err(heard.stopped(Step::Clone).into())
    }

    /// Waits until the payload has come; the answer is which process it is, as we number them.
    pub(super) fn await_arrival(&mut self, control: &OwnedFd) -> std::result::Result<u32, Failed> {
        let heard = self.hear(control, Gate::Ignored, Some(SETUP_LIMIT)).at(Step::Fork)?;
        if let Heard::Note(Note::Arrived, sender) = heard {
            return Ok(sender);
        }
        Err(heard.stopped(Step::Fork).into())
    }

    /// Lets a verified interpreter start, and waits until it waits in turn. None but our own code runs
    /// in it so far.
    pub(super) fn wake_interpreter(
        &mut self,
        control: &OwnedFd,
    ) -> std::result::Result<(), Failed> {
        if let Some(gate) = &self.gate {
            rustix::io::write(gate, b"g").at(Step::ReadBack)?;
        }
        let heard = self.hear(control, Gate::Heard, Some(SETUP_LIMIT)).at(Step::Exec)?;
        if matches!(heard, Heard::Gate) { Ok(()) } else { Err(heard.stopped(Step::Exec).into()) }
    }

    /// Waits, for as long as the engine likes, for what makes the sandbox a run's own, and puts its
    /// files in place. The answer is for the program's process.
    pub(super) fn await_delivery(
        &mut self,
        control: &OwnedFd,
    ) -> std::result::Result<Vec<u8>, Failed> {
        let heard = self.hear(control, Gate::Ignored, None).at(Step::Plan)?;
        if !matches!(heard, Heard::Control) {
            return Err(heard.stopped(Step::Exec).into());
        }
        let (delivery, contents, given) = receive_delivery(control).at(Step::Plan)?;
        let Delivery { argv, environment, placed, wall_ms, egress, exit: _, sealed } = delivery;
        let secrets = Secrets::new(receive_secrets(control, sealed).at(Step::Egress)?);
        let exit = match (egress, given) {
            (None, _) => None,
            (Some(plan), Some(given)) => Some(Exit::given(plan, secrets, given)),
            (Some(plan), None) => Some(Exit::start(plan, secrets).at(Step::Egress)?),
        };
        if !placed.is_empty() {
            send_placed(&self.commands, &placed, &contents).at(Step::Placed)?;
        }
        // While init writes them.
        let check = exit.map(|exit| self.open_door(exit)).transpose()?;
        if !placed.is_empty() {
            self.await_placed(control)?;
        }
        if let Some(check) = check {
            tell(control, &Message::Started(Started { checks: vec![check] }), &[])
                .at(Step::ReadBack)?;
        }
        self.plan.wall_ms = wall_ms;
        self.parked_cpu_us = self.group.as_ref().and_then(Group::cpu_us).unwrap_or(0);
        Ok(Invocation { argv, environment }.to_bytes())
    }

    fn await_placed(&mut self, control: &OwnedFd) -> std::result::Result<(), Failed> {
        let heard = self.hear(control, Gate::Ignored, Some(SETUP_LIMIT)).at(Step::Placed)?;
        let placed = matches!(heard, Heard::Note(Note::Placed, _));
        if placed { Ok(()) } else { Err(heard.stopped(Step::Placed).into()) }
    }

    /// Whatever comes first: a note, the engine, init's end, or (if asked for) a word at the gate.
    fn hear(&mut self, control: &OwnedFd, gate: Gate, limit: Option<Duration>) -> Result<Heard> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(heard) = self.hear_once(control, gate, deadline)? {
                return Ok(heard);
            }
        }
    }

    /// Hears what the payload's filter brings, from now on.
    fn listen(&mut self, listener: Option<OwnedFd>) {
        let lockdown = self.plan.lockdown.as_ref();
        let listen = lockdown.and_then(|lockdown| Some((lockdown, lockdown.listen.as_ref()?)));
        if let (Some(listener), Some((lockdown, listen))) = (listener, listen) {
            self.ear = Some(Ear::new(listener, lockdown, listen));
        }
    }

    /// One wait of [`Self::hear`]; `None` when it was a call to answer. It is our own code's, so nobody is
    /// told of it.
    fn hear_once(
        &mut self,
        control: &OwnedFd,
        gate: Gate,
        deadline: Option<Instant>,
    ) -> Result<Option<Heard>> {
        let gate = self.gate.as_ref().filter(|_| gate == Gate::Heard);
        let mut fds = vec![
            PollFd::new(&self.notes, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
            PollFd::new(&self.init_fd, PollFlags::IN),
        ];
        fds.extend(gate.map(|gate| PollFd::new(gate, PollFlags::IN)));
        let called = fds.len();
        fds.extend(self.ear.as_ref().and_then(Ear::descriptor).map(heard));
        match deadline {
            Some(deadline) => wait(&mut fds, deadline.saturating_duration_since(Instant::now()))?,
            None => drop(rustix::io::retry_on_intr(|| poll(&mut fds, None))?),
        }
        let fired: Vec<bool> = fds.iter().map(|one| !one.revents().is_empty()).collect();
        let call = fds.get(called).map(PollFd::revents).filter(|found| !found.is_empty());
        if let (Some(ear), Some(found)) = (&mut self.ear, call) {
            ear.attend(found, None);
            return Ok(None);
        }
        if fired[0] {
            let mut bytes = [0; Note::BYTES];
            let received = fd::receive(&self.notes, &mut bytes)?;
            let sender = received.sender.map_or(0, |pid| pid.as_raw_nonzero().get());
            let note = Note::from_bytes(&bytes[..received.length]);
            match note {
                // Our own code's; nobody is told.
                Some(Note::Touched(_)) => return Ok(None),
                Some(Note::Ready(_)) => self.listen(received.fds.into_iter().next()),
                _ => {}
            }
            return Ok(Some(match note {
                Some(note) => Heard::Note(note, sender.cast_unsigned()),
                // Not a word: all ends are closed, whoever set up died.
                None if received.length == 0 => Heard::Death,
                None => return Err(Errno::PROTO),
            }));
        }
        let gate_fired = fired.get(3) == Some(&true);
        if let Some(gate) = gate.filter(|_| gate_fired) {
            let mut word = [0; 1];
            return Ok(Some(if fd::receive(gate, &mut word)?.length == 1 {
                Heard::Gate
            } else {
                Heard::Death
            }));
        }
        Ok(Some(match (fired[1], fired[2]) {
            (true, _) => Heard::Control,
            (_, true) => Heard::Death,
            _ => return Err(Errno::TIMEDOUT),
        }))
    }
}

/// Whether a word at the gate is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Heard,
    Ignored,
}

/// What was heard while nothing of the program runs.
enum Heard {
    /// With its sender's process id.
    Note(Note, u32),
    Control,
    Gate,
    /// Init, or all who could have told more.
    Death,
}

impl Heard {
    /// What it means to who waited for something else at this step.
    fn stopped(&self, step: Step) -> Stopped {
        match self {
            Self::Note(Note::Stopped(stopped), _) => *stopped,
            Self::Control => Stopped::new(step, Errno::CANCELED),
            // The payload died before it was the program.
            Self::Note(Note::Ended(_), _) | Self::Death => Stopped::new(step, Errno::CHILD),
            Self::Note(
                Note::Ready(_) | Note::Placed | Note::Touched(_) | Note::Standing | Note::Arrived,
                _,
            )
            | Self::Gate => Stopped::new(step, Errno::PROTO),
        }
    }
}
