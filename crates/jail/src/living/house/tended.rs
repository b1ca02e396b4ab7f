//! What is heard of execs: their shepherds, their output, what they are refused, and their clocks.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use belljar_sys::{Errno, Result, fd};
use rustix::event::PollFlags;

use super::House;
use crate::layer::Check;
use crate::living::exec::{Exec, Kind};
use crate::living::inside::borrowed;
use crate::living::lookout::Lookout;
use crate::living::records;
use crate::living::shepherd::{HERE, PASSED, TERMINAL};
use crate::living::talk::{Answer, EXEC_EVENTS, EndReason, RecordedEnd};
use crate::notify::{Ear, now_ms};
use crate::plan::{Files, Program};
use crate::readback;
use crate::redact::Patterns;
use crate::report::{Cause, End, Ending, Failed, Message, Note, Ready, Step, Stopped};
use crate::tried::{GRAVEST, Spilled, Touched};
use crate::wire::MAX_MESSAGE_BYTES;

/// Ended execs of which something lives on: so many are listened to.
const MAX_LINGERING: usize = 64;
/// What is kept of the refusals of one exec,
const MAX_EVENT_BYTES: u64 = 1 << 20;
/// and so much more for each weight above the least: whoever is refused often first must not hide what is graver.
const MAX_WEIGHT_BYTES: u64 = 256 << 10;
/// Then for what was counted, and for decoys alone.
const MAX_COUNTED_BYTES: u64 = 64 << 10;
const MAX_SPILLED_BYTES: u64 = 64 << 10;
/// How long those who are asked to end have when time has run out for the whole sandbox.
const GRACE: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;

impl House {
    /// A word of a shepherd or a payload.
    pub(super) fn hear(&mut self, number: u64) {
        let Some(exec) = self.exec(number) else {
            return;
        };
        let Some(line) = &exec.line else {
            return;
        };
        let mut bytes = [0; Note::BYTES];
        let received = match fd::receive(line, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(received) if received.length > 0 => received,
            // Nobody is left at the other end: the shepherd was killed, or left after its report.
            Ok(_) | Err(_) => return self.finish(number, None),
        };
        let sender = received.sender;
        match &bytes[..received.length] {
            HERE => exec.meet(sender),
            PASSED => {
                let by = exec.signallers.pop_front();
                self.answer_signallers(by);
            }
            TERMINAL => {
                let taken = received.fds.into_iter().next().map(|outer| exec.take_terminal(outer));
                if !matches!(taken, Some(Ok(()))) {
                    exec.order_end(Cause::Cancelled);
                }
            }
            note => match Note::from_bytes(note) {
                Some(Note::Arrived) => self.admit(number, sender),
                Some(Note::Ready(ready)) => {
                    let pid = sender.map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
                    self.verify(number, ready, pid, received.fds.into_iter().next());
                }
                Some(Note::Stopped(stopped)) => self.note_stop(number, stopped),
                Some(Note::Ended(ending)) => self.finish(number, Some(ending)),
                _ => exec.order_end(Cause::Cancelled),
            },
        }
    }

    /// Their signals were passed on, or are of no use to anybody any more.
    fn answer_signallers(&mut self, all: impl IntoIterator<Item = (u64, u64)>) {
        if let Some(clients) = &mut self.clients {
            all.into_iter().for_each(|to| clients.answer(to, Answer::Done, &[]));
        }
    }

    /// v2: a payload is put into the group.
    fn admit(&mut self, number: u64, pid: Option<rustix::process::Pid>) {
        let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
        let admitted = self.cell.admit(pid);
        let Some(exec) = self.execs.iter_mut().find(|one| one.number == number) else {
            return;
        };
        match (admitted, &exec.gate) {
            (Ok(()), Some(gate)) => {
                fd::send(gate, b"d", &borrowed(&self.cell.doors)).ok();
            }
            (Err(errno), _) => self.note_stop(number, Stopped::new(Step::Cgroup, errno)),
            (Ok(()), None) => {}
        }
    }

    fn note_stop(&mut self, number: u64, stopped: Stopped) {
        let Some(exec) = self.exec(number) else {
            return;
        };
        if exec.released.is_some() && stopped.step == Step::Exec {
            exec.not_executed = Some(stopped.errno);
            return;
        }
        self.fail(number, stopped.into());
    }

    /// Nothing of the program ran.
    fn fail(&mut self, number: u64, failed: Failed) {
        let Some(exec) = self.exec(number) else {
            return;
        };
        exec.stopped = Some(failed.stopped);
        exec.gate = None;
        if matches!(exec.kind, Kind::Trial) {
            if !exec.trial_told {
                exec.trial.get_or_insert(Err(failed));
            }
            return;
        }
        let asked = exec.asked_by.take();
        exec.order_end(Cause::Cancelled);
        if let (Some(to), Some(clients)) = (asked, &mut self.clients) {
            clients.answer(to, Answer::Failed(failed), &[]);
        }
    }

    /// Looks at every layer, and only then lets the program go.
    fn verify(
        &mut self,
        number: u64,
        ready: Ready,
        pid: u32,
        listener: Option<std::os::fd::OwnedFd>,
    ) {
        let Some(place) = self.execs.iter().position(|one| one.number == number) else {
            return;
        };
        let lockdown = self.plan.lockdown.as_ref();
        let listen = lockdown.and_then(|lockdown| Some((lockdown, lockdown.listen.as_ref()?)));
        if let (Some(listener), Some((lockdown, listen))) = (listener, listen) {
            self.execs[place].ear = Some(Ear::new(listener, lockdown, listen));
        }
        let ours = self.execs[place].streams_are_ours();
        self.describe(place);
        let group = self.cell.group.as_ref();
        let checks = readback::check_all(&self.plan, group, ready, pid, ours, self.outside);
        if checks.iter().any(|check| !check.verified) {
            let stopped = Stopped::new(Step::ReadBack, Errno::PERM);
            return self.fail(number, Failed { stopped, checks });
        }
        let exec = &mut self.execs[place];
        if matches!(exec.kind, Kind::Trial) {
            exec.trial = Some(Ok(checks));
            return;
        }
        if exec.give_up_at.is_some() {
            return;
        }
        match exec.release() {
            Ok(()) => {
                self.gauge.wake();
                self.tell_begun(place, checks);
            }
            Err(errno) => self.fail(number, Stopped::new(Step::ReadBack, errno).into()),
        }
    }

    /// The plan of this exec: what is the same for all, with its own program and time.
    fn describe(&mut self, place: usize) {
        if let Kind::Program { order, .. } = &self.execs[place].kind {
            self.plan.wall_ms = order.wall_ms;
            self.plan.program = Program {
                path: order.paths.first().cloned().unwrap_or_default(),
                argv: order.argv.clone(),
                environment: order.environment.clone(),
                directory: order.directory.clone(),
            };
        }
    }

    fn tell_begun(&mut self, place: usize, checks: Vec<Check>) {
        let exec = &mut self.execs[place];
        let Some(to) = exec.asked_by.take() else {
            return;
        };
        let socket = match &mut exec.kind {
            Kind::Agent { socket } => socket.take(),
            Kind::Program { .. } | Kind::Trial => None,
        };
        let fds: Vec<_> = socket.iter().map(std::os::fd::AsFd::as_fd).collect();
        if let Some(clients) = &mut self.clients {
            clients.answer(to, Answer::Begun { checks }, &fds);
        }
    }

    pub(super) fn read(&mut self, number: u64, stream: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let hidden = &self.hidden;
        let exec = self.execs.iter_mut().find(|one| one.number == number);
        let told = exec.and_then(|exec| {
            let came = exec.read(stream, &mut buffer, hidden);
            came.then(|| (exec.id().map(ToOwned::to_owned), exec.reach()))
        });
        self.buffer = buffer;
        self.tell_spilled(number, Lookout::news);
        if let (Some((Some(id), reach)), Some(clients)) = (told, &mut self.clients) {
            clients.tell(&id, reach);
        }
        self.sweep();
    }

    /// What a filter brings is answered, and written down.
    pub(super) fn answer_calls(&mut self, number: u64, flags: PollFlags) {
        let Some(exec) = self.execs.iter_mut().find(|one| one.number == number) else {
            return;
        };
        if let Some(ear) = &mut exec.ear {
            // Before the release it is our own code that calls.
            ear.attend(flags, exec.released.map(|_| &self.told.0));
        }
        self.write_events(number);
        self.sweep();
    }

    fn write_events(&mut self, number: u64) {
        let mut bytes = vec![0; MAX_MESSAGE_BYTES];
        let exec = self.execs.iter().find(|one| one.number == number);
        while let Ok(received) = fd::receive(&self.told.1, &mut bytes) {
            if let Some(Kind::Program { directory, .. }) = exec.map(|one| &one.kind) {
                let line = without_secrets(&bytes[..received.length], &self.hidden);
                let most = room_for(&bytes[..received.length]);
                records::append_line(directory, EXEC_EVENTS, &line, most).ok();
            }
        }
    }

    /// Writes down what is to be told of decoys that came out.
    fn tell_spilled(&mut self, number: u64, what: fn(&mut Lookout) -> Vec<Spilled>) {
        let Some(exec) = self.exec(number) else { return };
        let spilled = what(&mut exec.lookout);
        let Kind::Program { directory, .. } = &exec.kind else { return };
        for line in spilled.into_iter().flat_map(|one| serde_json::to_vec(&Message::Spilled(one))) {
            let most = room_for_weight(GRAVEST) + MAX_COUNTED_BYTES + MAX_SPILLED_BYTES;
            records::append_line(directory, EXEC_EVENTS, &line, most).ok();
        }
    }

    /// Somebody opened one of the kernel's secrets. Nobody can say who, so every program that runs is told to have.
    pub(super) fn tell_touched(&mut self, place: u16) {
        let Files::Root(root) = &self.plan.files else { return };
        let Some(name) = root.proc.watched.get(usize::from(place)) else { return };
        let touched = Message::Touched(Touched { time_ms: now_ms(), name: name.clone() });
        let Ok(line) = serde_json::to_vec(&touched) else { return };
        for exec in self.execs.iter().filter(|exec| exec.runs()) {
            if let Kind::Program { directory, .. } = &exec.kind {
                let most = room_for_weight(GRAVEST);
                records::append_line(directory, EXEC_EVENTS, &line, most).ok();
            }
        }
    }

    /// It has ended: what it wrote is taken, how it ended is written down, and then told.
    pub(super) fn finish(&mut self, number: u64, ending: Option<Ending>) {
        let Some(place) = self.execs.iter().position(|one| one.number == number) else {
            return;
        };
        if self.execs[place].ended {
            self.execs[place].line = None;
            return self.sweep();
        }
        self.hear_rest();
        let mut buffer = std::mem::take(&mut self.buffer);
        self.execs[place].drain(&mut buffer, &self.hidden);
        self.buffer = buffer;
        let waiting = std::mem::take(&mut self.execs[place].signallers);
        self.answer_signallers(waiting);
        let exec = &mut self.execs[place];
        (exec.ended, exec.line, exec.gate) = (true, None, None);
        exec.input = crate::living::streams::Input::default();
        if let (Kind::Trial, None, false) = (&exec.kind, &exec.trial, exec.trial_told) {
            exec.trial = Some(Err(Stopped::new(Step::Fork, Errno::CHILD).into()));
        }
        if exec.released.is_none() {
            return self.forget(place);
        }
        self.tell_spilled(number, Lookout::finish);
        let exec = &mut self.execs[place];
        if let Some(ear) = &exec.ear {
            ear.finish(&self.told.0);
            self.write_events(number);
        }
        let over = self.gauge.look_at_end(self.cell.cpu_us());
        let exec = &mut self.execs[place];
        exec.over = exec.over.or(over);
        let end = self.end_of(place, ending.as_ref());
        let exec = &mut self.execs[place];
        if let Kind::Program { order, directory } = &exec.kind {
            // What cannot be written down is lost: it has no end, as if we had been killed.
            self.records.end(&order.exec, directory, &end).ok();
            let (id, reach) = (order.exec.clone(), exec.reach());
            if let Some(clients) = &mut self.clients {
                clients.tell(&id, reach);
            }
        }
        self.living.last_used = Instant::now();
        self.sweep();
    }

    fn end_of(&mut self, place: usize, ending: Option<&Ending>) -> RecordedEnd {
        let killed = ending.is_none_or(|one| !one.exited && one.value == SIGKILL);
        let failed = ending.is_none_or(|one| !one.exited || one.value != 0);
        let exec = &self.execs[place];
        // Deaths by memory since it began that no other exec has had to answer for.
        let now = self.cell.oom_kills();
        let since = now.saturating_sub(self.oom_claimed.max(exec.oom_before));
        let oom_kills = if failed && exec.ended_by.is_none() { since } else { 0 };
        self.oom_claimed += if killed { oom_kills.min(1) } else { oom_kills };
        let mut report = exec.report(ending, oom_kills, &self.cell);
        report.disk = self.gauge.file_system();
        if report.end == End::Lost && report.ended_by.is_none() {
            report.ended_by = Some(Cause::Cancelled);
        }
        let output = exec.reach().output;
        RecordedEnd { report, output, lost: exec.lost(), over: exec.over, time_ms: now_ms() }
    }

    /// One of which nothing ran.
    fn forget(&mut self, place: usize) {
        let number = self.execs[place].number;
        if let Some(id) = self.execs[place].id() {
            self.records.forget(id);
        }
        if self.execs[place].asked_by.is_some() {
            let errno = Errno::CHILD;
            self.fail(number, Stopped::new(Step::Fork, errno).into());
        }
        self.execs.retain(|one| one.number != number || one.trial.is_some());
    }

    /// Lets go of what is over, and of the oldest where too much lingers.
    fn sweep(&mut self) {
        self.execs.retain(|exec| !exec.is_over() || exec.trial.is_some());
        let lingering = self.execs.iter().filter(|exec| exec.ended).count();
        for _ in MAX_LINGERING..lingering {
            if let Some(oldest) = self.execs.iter().position(|exec| exec.ended) {
                self.execs.remove(oldest);
            }
        }
    }

    /// What no descriptor tells of; `None` when all is over.
    pub(super) fn look_at_clocks(&mut self) -> Option<()> {
        let now = Instant::now();
        if let Some(leaving) = &mut self.ending
            && now >= leaving.until
        {
            if leaving.pressed {
                return None; // init does not do as it is told
            }
            leaving.pressed = true;
            self.end_now();
        }
        let millicpus = self.plan.millicpus;
        let frozen = self.cell.frozen;
        let mut gone = Vec::new();
        for exec in &mut self.execs {
            exec.write_held(0);
            exec.write_held(1);
            if exec.let_go(now, &self.hidden)
                && let (Some(id), Some(clients)) = (exec.id(), &mut self.clients)
            {
                clients.tell(id, exec.reach());
            }
            if exec.released.is_none() && !exec.ended && now >= exec.setup_deadline {
                exec.order_end(Cause::Cancelled);
            }
            if !frozen && let Some(cause) = exec.overrun(millicpus) {
                exec.order_end(cause);
            }
            if exec.give_up_at.is_some_and(|at| now >= at) && !exec.ended {
                exec.kill_shepherd();
                gone.push(exec.number);
            }
        }
        gone.into_iter().for_each(|number| self.finish(number, None));
        self.look_at_disk();
        self.look_at_time();
        Some(())
    }

    fn look_at_disk(&mut self) {
        if self.cell.frozen || !self.execs.iter().any(|exec| !exec.ended) {
            return;
        }
        if let Some(over) = self.gauge.look(self.cell.cpu_us()) {
            for exec in self.execs.iter_mut().filter(|exec| exec.runs()) {
                exec.over = Some(over);
                exec.order_end(Cause::Cancelled);
            }
        }
    }

    /// The sandbox's own time, which nobody else need be there to keep.
    fn look_at_time(&mut self) {
        if self.ending.is_some() {
            return;
        }
        if self.living.expires_at_ms.is_some_and(|at| now_ms() >= at) {
            return self.begin_ending(EndReason::Expired, GRACE, None);
        }
        let Some(idle) = self.living.idle.filter(|_| !self.cell.frozen) else {
            return;
        };
        if self.execs.iter().any(Exec::runs) {
            self.living.last_used = Instant::now();
        }
        if self.living.last_used.elapsed() < idle {
            return;
        }
        // What execs left behind runs too.
        let agents = self.execs.iter().filter(|exec| exec.is_agent() && !exec.ended).count() as u64;
        if self.cell.processes().unwrap_or(0) > agents {
            self.living.last_used = Instant::now();
            return;
        }
        self.begin_ending(EndReason::Idle, GRACE, None);
    }

    /// Lets all go on, and their clocks.
    pub(super) fn thaw(&mut self) -> Result<()> {
        self.cell.set_frozen(false)?;
        let frozen = self.living.frozen_at.take().map(|at| at.elapsed()).unwrap_or_default();
        self.execs.iter_mut().for_each(|exec| exec.skip(frozen));
        self.living.last_used = Instant::now();
        Ok(())
    }
}

/// How long the file may be with this line in it.
fn room_for(line: &[u8]) -> u64 {
    match serde_json::from_slice(line) {
        Ok(Message::Tried(tried)) => room_for_weight(tried.weight),
        Ok(_) | Err(_) => room_for_weight(GRAVEST) + MAX_COUNTED_BYTES,
    }
}

fn room_for_weight(weight: u8) -> u64 {
    MAX_EVENT_BYTES + u64::from(weight.min(GRAVEST)) * MAX_WEIGHT_BYTES
}

/// What was seen of a program, as it may be written down: names and arguments are its own choice.
fn without_secrets<'a>(line: &'a [u8], hidden: &Patterns) -> Cow<'a, [u8]> {
    if hidden.is_empty() {
        return Cow::Borrowed(line);
    }
    let Ok(Message::Tried(mut tried)) = serde_json::from_slice(line) else {
        return Cow::Borrowed(line);
    };
    tried.process.command = hidden.mask(&tried.process.command);
    for read in tried.read.iter_mut().flatten() {
        *read = hidden.mask(read);
    }
    // Nothing in it fails to be written; if it did, nothing would be.
    Cow::Owned(serde_json::to_vec(&Message::Tried(tried)).unwrap_or_default())
}
