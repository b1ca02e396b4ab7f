//! One exec as the keeper holds it: its streams, its clocks, and what it tries.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_sys::{Errno, Result, fd, pty};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::group::Cell;
use super::inside::borrowed;
use super::log::{Log, STREAMS};
use super::lookout::Lookout;
use super::streams::{Input, Streams};
use super::talk::{Order, Over, Reach};
use super::{program, shepherd};
use crate::keeper::{ENDING_LIMIT, SETUP_LIMIT};
use crate::layer::Check;
use crate::notify::Ear;
use crate::plan::Plan;
use crate::redact::{Patterns, Redactor};
use crate::report::{Cause, End, Ending, Failed, Report, Stopped};
use crate::wire::control_pair;

/// What one read takes of a stream, and how often in a row: others have something to say too.
const CHUNK_BYTES: usize = 64 << 10;
const READS: usize = 4;
/// What is taken of a stream when its exec has ended; a pipe holds less.
const LAST_READS: usize = 64;
/// After output could not be written down, it is tried again; its program waits meanwhile.
const WRITE_AGAIN: Duration = Duration::from_millis(200);
/// What could be the beginning of a secret is held back for so long, if it is short.
const HELD_BACK: Duration = Duration::from_millis(100);
/// Signals of one exec that are on their way at once.
const MAX_SIGNALLERS: usize = 64;
/// CPU time is looked at no more often than this.
const CPU_LOOK: Duration = Duration::from_millis(20);

/// What was started.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A program, and where it is written down.
    Program { order: Box<Order>, directory: OwnedFd },
    /// A payload that is verified and never released.
    Trial,
    /// Until it was handed over: the other end of the agent's socket.
    Agent { socket: Option<OwnedFd> },
}

#[derive(Debug)]
pub(crate) struct Exec {
    pub number: u64,
    pub kind: Kind,
    /// Who waits for it to begin: client and request.
    pub asked_by: Option<(u64, u64)>,
    /// Who waits for a signal to be passed on, in the order in which they asked.
    pub signallers: VecDeque<(u64, u64)>,
    pub line: Option<OwnedFd>,
    pub gate: Option<OwnedFd>,
    pub input: Input,
    pub outputs: [Option<OwnedFd>; 2],
    pub logs: [Log; 2],
    /// What was read and could not be written down yet: the host's disk is full. Its program waits meanwhile.
    held: [Vec<u8>; 2],
    write_again: Instant,
    /// What may be the beginning of a secret, of each stream, and since when it is held back.
    redactors: [Redactor; 2],
    held_back: Option<Instant>,
    pub lookout: Lookout,
    pub ear: Option<Ear>,
    pub shepherd: Option<(u32, OwnedFd)>,
    pub setup_deadline: Instant,
    pub released: Option<Instant>,
    deadline: Option<Instant>,
    next_cpu_look: Instant,
    cpu_limit: Duration,
    /// While the sandbox was frozen no clock ran.
    frozen: Duration,
    pub ended_by: Option<Cause>,
    pub over: Option<Over>,
    pub give_up_at: Option<Instant>,
    pub not_executed: Option<i32>,
    pub stopped: Option<Stopped>,
    pub oom_before: u64,
    pub forks_before: u64,
    pub ended: bool,
    /// What was found of one that is never released.
    pub trial: Option<std::result::Result<Vec<Check>, Failed>>,
    pub trial_told: bool,
}

impl Exec {
    /// Has init start it.
    pub(crate) fn launch(
        number: u64,
        kind: Kind,
        memory: Option<&OwnedFd>,
        commands: &OwnedFd,
        cell: &Cell,
        plan: &Plan,
    ) -> Result<Self> {
        let (line, their_line) = control_pair()?;
        let (gate, their_gate) = control_pair()?;
        rustix::net::sockopt::set_socket_passcred(&line, true)?;
        rustix::io::ioctl_fionbio(&line, true)?;
        let mut kind = kind;
        let (word, ours, theirs) = Streams::make(&mut kind)?;
        let mut fds = vec![their_line.as_fd(), their_gate.as_fd()];
        fds.extend(memory.map(AsFd::as_fd));
        fds.extend(borrowed(&theirs));
        fd::send(commands, &[word], &fds)?;
        if !program::is_moved(plan) {
            fd::send(&gate, b"d", &borrowed(&cell.doors))?;
        }
        let now = Instant::now();
        let (wall_ms, cpu_ms) = match &kind {
            Kind::Program { order, .. } => (Some(order.wall_ms), order.cpu_ms),
            Kind::Trial | Kind::Agent { .. } => (None, plan.cpu_ms),
        };
        let mut input = Input::new(ours.input);
        if let Kind::Program { order, .. } = &kind
            && !order.keep_stdin
            && order.terminal.is_none()
        {
            input.close();
        }
        Ok(Self {
            number,
            kind,
            asked_by: None,
            signallers: VecDeque::new(),
            line: Some(line),
            gate: Some(gate),
            input,
            outputs: ours.outputs,
            logs: STREAMS.map(Log::new),
            held: [Vec::new(), Vec::new()],
            write_again: now,
            redactors: <_>::default(),
            held_back: None,
            lookout: Lookout::default(),
            ear: None,
            shepherd: None,
            setup_deadline: now + SETUP_LIMIT,
            released: None,
            // Until the release it says how long.
            deadline: wall_ms.map(|wall| now + Duration::from_millis(wall)),
            next_cpu_look: now,
            cpu_limit: Duration::from_millis(cpu_ms),
            frozen: Duration::ZERO,
            ended_by: None,
            over: None,
            give_up_at: None,
            not_executed: None,
            stopped: None,
            oom_before: cell.oom_kills(),
            forks_before: cell.forks_refused(),
            ended: false,
            trial: None,
            trial_told: false,
        })
    }

    pub(crate) fn id(&self) -> Option<&str> {
        match &self.kind {
            Kind::Program { order, .. } => Some(&order.exec),
            Kind::Trial | Kind::Agent { .. } => None,
        }
    }

    pub(crate) fn is_agent(&self) -> bool {
        matches!(self.kind, Kind::Agent { .. })
    }

    /// A program that has not ended.
    pub(crate) fn runs(&self) -> bool {
        !self.ended && matches!(self.kind, Kind::Program { .. })
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach { output: [self.logs[0].length, self.logs[1].length], ended: self.ended }
    }

    /// Both its streams lead to us: pipes, or a terminal of which we hold the outer end.
    pub(crate) fn streams_are_ours(&self) -> bool {
        match &self.kind {
            Kind::Program { order, .. } if order.terminal.is_some() => {
                self.outputs[0].as_ref().is_some_and(rustix::termios::isatty)
            }
            Kind::Program { .. } => {
                self.outputs.iter().flatten().filter(|one| crate::keeper::is_pipe(one)).count() == 2
            }
            Kind::Trial | Kind::Agent { .. } => true,
        }
    }

    /// The shepherd has said who it is.
    pub(crate) fn meet(&mut self, pid: Option<Pid>) {
        if let Some(pid) = pid {
            let pidfd = pidfd_open(pid, PidfdFlags::empty());
            self.shepherd = pidfd.ok().map(|fd| (pid.as_raw_nonzero().get().cast_unsigned(), fd));
        }
    }

    /// The outer end of its terminal is read and written.
    pub(crate) fn take_terminal(&mut self, outer: OwnedFd) -> Result<()> {
        rustix::io::ioctl_fionbio(&outer, true)?;
        self.input.to = Some(outer.try_clone().map_err(|_| Errno::MFILE)?);
        self.outputs = [Some(outer), None];
        Ok(())
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        match (&self.kind, &self.outputs[0]) {
            (Kind::Program { order, .. }, Some(outer)) if order.terminal.is_some() => {
                pty::set_size(outer, rows, columns)
            }
            _ => Err(Errno::NOTTY),
        }
    }

    /// Lets the program go; its clock starts.
    pub(crate) fn release(&mut self) -> Result<()> {
        let gate = self.gate.take().ok_or(Errno::PROTO)?;
        rustix::io::write(&gate, b"g")?;
        let now = Instant::now();
        self.released = Some(now);
        if let Kind::Program { order, .. } = &self.kind {
            self.deadline = Some(now + Duration::from_millis(order.wall_ms));
        }
        self.next_cpu_look = now + CPU_LOOK;
        self.input.write();
        Ok(())
    }

    /// Reads what has come of one stream and appends it to its log; says whether something came.
    pub(crate) fn read(&mut self, stream: usize, buffer: &mut Vec<u8>, hidden: &Patterns) -> bool {
        self.read_times(stream, buffer, READS, hidden)
    }

    fn read_times(
        &mut self,
        stream: usize,
        buffer: &mut Vec<u8>,
        times: usize,
        hidden: &Patterns,
    ) -> bool {
        buffer.resize(CHUNK_BYTES, 0);
        let mut came = self.write_held(stream);
        if self.is_held(stream) {
            return came;
        }
        for _ in 0..times {
            let Some(from) = &self.outputs[stream] else {
                return came;
            };
            let read = match rustix::io::read(from, &mut buffer[..]) {
                Ok(0) => 0,
                Ok(read) => read,
                Err(Errno::AGAIN | Errno::INTR) => return came,
                // The end of a terminal whose last program has closed it is EIO.
                Err(_) => 0,
            };
            if read == 0 {
                self.outputs[stream] = None;
                let mut last = Vec::new();
                self.redactors[stream].finish(hidden, &mut last);
                return self.write_down(stream, &last) || came;
            }
            self.lookout.look(stream, &buffer[..read]);
            if hidden.is_empty() {
                came |= self.write_down(stream, &buffer[..read]);
            } else {
                let mut shown = Vec::with_capacity(read);
                self.redactors[stream].push(hidden, &buffer[..read], &mut shown);
                came |= self.write_down(stream, &shown);
                let waits = self.redactors.iter().any(|one| one.holds_little(hidden));
                self.held_back = waits.then(|| Instant::now() + HELD_BACK);
            }
            if self.is_held(stream) {
                return came;
            }
        }
        came
    }

    /// Appends to a log; what cannot be written now is held. Says whether something was written.
    fn write_down(&mut self, stream: usize, bytes: &[u8]) -> bool {
        let Kind::Program { directory, .. } = &self.kind else {
            return false;
        };
        if bytes.is_empty() {
            return false;
        }
        if self.logs[stream].append(directory, bytes).is_err() {
            self.held[stream] = bytes.to_vec();
            self.write_again = Instant::now() + WRITE_AGAIN;
            return false;
        }
        true
    }

    /// Nothing has followed what could have been the beginning of a secret: if that was short, it is shown. Says whether
    /// something was.
    pub(crate) fn let_go(&mut self, now: Instant, hidden: &Patterns) -> bool {
        if self.held_back.is_none_or(|at| now < at) || self.is_held(0) || self.is_held(1) {
            return false;
        }
        self.held_back = None;
        let mut came = false;
        for stream in 0..2 {
            let mut shown = Vec::new();
            self.redactors[stream].release(hidden, &mut shown);
            came |= self.write_down(stream, &shown);
        }
        came
    }

    /// Nothing more is read of a stream while what was read is not written down.
    pub(crate) fn is_held(&self, stream: usize) -> bool {
        !self.held[stream].is_empty()
    }

    /// Tries again to write down what could not be; says whether that was something.
    pub(crate) fn write_held(&mut self, stream: usize) -> bool {
        let Kind::Program { directory, .. } = &self.kind else {
            return false;
        };
        if self.held[stream].is_empty() {
            return false;
        }
        self.write_again = Instant::now() + WRITE_AGAIN;
        let written = self.logs[stream].append(directory, &self.held[stream]).is_ok();
        if written {
            self.held[stream] = Vec::new();
        }
        written
    }

    /// Bytes that were read and are on no disk.
    pub(crate) fn lost(&self) -> [u64; 2] {
        self.held.each_ref().map(|held| held.len() as u64)
    }

    /// Takes what is left in both streams, without waiting.
    pub(crate) fn drain(&mut self, buffer: &mut Vec<u8>, hidden: &Patterns) {
        for stream in 0..2 {
            self.read_times(stream, buffer, LAST_READS, hidden);
        }
    }

    /// Tells the shepherd to end it; the first cause is the one that is told.
    pub(crate) fn order_end(&mut self, cause: Cause) {
        if self.ended || self.give_up_at.is_some() {
            return;
        }
        self.ended_by = self.ended_by.or(Some(cause));
        self.give_up_at = Some(Instant::now() + ENDING_LIMIT);
        self.gate = None;
        self.order(shepherd::END);
    }

    /// Has a signal passed on; whoever asked is answered when it was. Says whether it is on its way.
    pub(crate) fn order_signal(&mut self, word: u8, by: (u64, u64)) -> bool {
        let room = self.signallers.len() < MAX_SIGNALLERS;
        let sent =
            room && self.line.as_ref().is_some_and(|line| fd::try_send(line, &[word]).is_ok());
        if sent {
            self.signallers.push_back(by);
        }
        sent
    }

    pub(crate) fn order(&self, word: u8) {
        // A shepherd that cannot hear is dead or dying, which its closed line shows; or it was stopped by somebody inside, and is
        // not waited for: whoever is not ended in time is killed.
        if let Some(line) = &self.line {
            fd::try_send(line, &[word]).ok();
        }
    }

    /// A shepherd that does not do as it is told was stopped by somebody inside. Init sees to the rest.
    pub(crate) fn kill_shepherd(&self) {
        if let Some((_, pidfd)) = &self.shepherd {
            belljar_sys::process::kill(pidfd.as_fd()).ok();
        }
    }

    /// When something of it is due.
    pub(crate) fn next_look(&self, frozen: bool) -> Option<Duration> {
        let now = Instant::now();
        if self.is_held(0) || self.is_held(1) {
            return Some(self.write_again.saturating_duration_since(now));
        }
        let back = self.held_back.map(|at| at.saturating_duration_since(now));
        if self.ended {
            return back;
        }
        let due = match (self.give_up_at, self.released) {
            (Some(at), _) => Some(at),
            (None, None) => Some(self.setup_deadline),
            (None, Some(_)) if frozen => None,
            (None, Some(_)) => self.deadline.map(|deadline| deadline.min(self.next_cpu_look)),
        };
        super::soonest([due.map(|at| at.saturating_duration_since(now)), back])
    }

    /// What has run out of it.
    pub(crate) fn overrun(&mut self, millicpus: u64) -> Option<Cause> {
        let now = Instant::now();
        if self.ended || self.released.is_none() || self.give_up_at.is_some() {
            return None;
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Cause::WallTime);
        }
        if now < self.next_cpu_look || self.is_agent() {
            return None;
        }
        let (pid, _) = self.shepherd.as_ref()?;
        let used = crate::tree::cpu_time_of(*pid);
        let left = self.cpu_limit.saturating_sub(used);
        // With so many cores, CPU time can run out no sooner than this.
        let cores = u32::try_from(millicpus.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        self.next_cpu_look = now + (left / cores).max(CPU_LOOK);
        left.is_zero().then_some(Cause::CpuTime)
    }

    /// No clock ran for so long.
    pub(crate) fn skip(&mut self, frozen: Duration) {
        self.frozen += frozen;
        self.deadline = self.deadline.map(|at| at + frozen);
        self.next_cpu_look += frozen;
    }

    /// The facts of its end.
    pub(crate) fn report(&self, ending: Option<&Ending>, oom_kills: u64, cell: &Cell) -> Report {
        let end = match (self.not_executed, ending) {
            (Some(errno), _) => End::NotExecuted(errno),
            (None, Some(ending)) if ending.exited => End::Exited(ending.value),
            (None, Some(ending)) => End::Signaled(ending.value),
            (None, None) => End::Lost,
        };
        let elapsed = self.released.map(|at| at.elapsed().saturating_sub(self.frozen));
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let peak = ending.map(|one| one.max_resident_bytes).filter(|bytes| *bytes > 0);
        Report {
            end,
            ended_by: self.ended_by,
            elapsed_us: elapsed.map_or(0, micros),
            cpu_us: ending.map_or(0, |one| one.cpu_us),
            memory_peak_bytes: peak,
            processes_peak: None,
            oom_kills,
            forks_refused: cell.forks_refused().saturating_sub(self.forks_before),
            disk: None,
        }
    }

    /// Nobody is left who could write or call.
    pub(crate) fn is_over(&self) -> bool {
        let heard = self.ear.as_ref().and_then(Ear::descriptor).is_some();
        self.ended && !heard && self.outputs.iter().all(Option::is_none)
    }

    pub(crate) fn called(&self) -> Option<BorrowedFd<'_>> {
        self.ear.as_ref().and_then(Ear::descriptor)
    }
}
