//! The keeper: owns one sandbox from the host side, from the first directory to the last reaping.
//!
//! It is started with its control socket as standard input and nothing else. When that socket closes
//! the engine is gone, and everything ends.

mod waiting;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_sys::process::{
    Cloned, SingleThreaded, Wait, clone, exit_now, kill, reap_any, set_effective_uid,
};
use belljar_sys::{Errno, Result, fd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior};
use rustix::time::Timespec;

use crate::cgroup::{Alarm, Group, errno};
use crate::egress::{Door, Exit, Secrets};
use crate::layer::Check;
use crate::notify::{Ear, now_ms};
use crate::payload::Ends;
use crate::plan::{Files, Hold, Plan};
use crate::report::{
    At, Cause, Command, End, Ending, Failed, Message, Note, Ready, Report, Started, Step, Stopped,
    arm,
};
use crate::tried::Touched;
use crate::watch::Watch;
use crate::wire::{
    MAX_MESSAGE_BYTES, Namespaces, Opening, joining_fds, receive_plan, receive_secrets,
};
use crate::{ids, init, readback, scratch, tree};

/// Set-up takes milliseconds; one that takes this long is stuck in the kernel or starved.
pub(crate) const SETUP_LIMIT: Duration = Duration::from_secs(20);
/// How long init may take to end everything before it is killed itself.
pub(crate) const ENDING_LIMIT: Duration = Duration::from_secs(5);
/// What is kept for an engine that is behind.
const MAX_UNTOLD: usize = 1024;
/// How long an init that has reported may take to exit by itself.
const INIT_EXIT: Duration = Duration::from_millis(50);

/// The keeper's whole life. The answer is the exit code: 0 when the engine was told the outcome.
pub fn main() -> u8 {
    live(Inherited::default())
}

/// What a keeper need not find out, because whom it is a copy of did.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The plan of its kind, read already.
    pub(crate) plan: Option<Rc<Plan>>,
    /// Where a root for it is held ready.
    pub(crate) root: Option<PathBuf>,
    /// The namespaces that both are in.
    pub(crate) namespaces: Option<[u64; 7]>,
}

fn live(known: Inherited) -> u8 {
    let started = start().and_then(|control| match carry_out(&control, known) {
        Ok(told) => told,
        Err(failed) => tell(&control, &Message::Failed(failed), &[]),
    });
    u8::from(started.is_err())
}

/// The same for a keeper that is a mere copy of the engine's process, or of a nursery that has read its
/// plan. Never returns.
pub fn main_as_copy(control: OwnedFd, known: Inherited) -> ! {
    let placed = fd::place_at(control, 0).and_then(|()| {
        let null = init::null()?;
        fd::place_at(&null, 1)?;
        fd::place_at(&null, 2)
    });
    exit_now(if placed.is_ok() { live(known).into() } else { 1 })
}

/// Lets go of all that a careless parent left open, and of its terminal.
pub(crate) fn start() -> Result<OwnedFd> {
    fd::close_inherited(3)?;
    let control = fd::take_stdin()?;
    // A session of our own: Ctrl-C in the caller's terminal is the caller's to handle.
    rustix::process::setsid()?;
    rustix::thread::set_name(c"belljar-keeper")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::chdir("/")?;
    Ok(control)
}

/// In the copy that becomes init: the line to the engine is the keeper's alone.
pub(crate) fn let_go_of(control: &OwnedFd, nothing: &OwnedFd) {
    if fd::place_at(nothing, control.as_raw_fd()).is_err() {
        exit_now(1); // which the keeper sees
    }
}

pub(crate) fn tell(control: &OwnedFd, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let json = serde_json::to_vec(message).map_err(|_| Errno::PROTO)?;
    fd::send(control, &json, fds)
}

/// Tells how it ended; what stopped it before there was anything to end is for the caller to tell.
fn carry_out(control: &OwnedFd, known: Inherited) -> std::result::Result<Result<()>, Failed> {
    let Inherited { plan: known, root: ready_root, namespaces: outside } = known;
    let opening = receive_plan(control, known).at(Step::Plan)?;
    arm(opening.plan.fault);
    // Again, now that a fault may be armed for this step.
    Ok::<(), Errno>(()).at(Step::Plan)?;
    let plan = opening.plan.clone();
    let scratch = match &plan.files {
        Files::Host { scratch } => {
            Some(scratch::create(scratch, &plan.identity).at(Step::Scratch)?)
        }
        Files::Root(_) => None,
    };
    let group = match &plan.cgroup {
        Some(cgroup) if Group::is_born_into(cgroup) => Some(create_group(cgroup)?),
        Some(_) | None => None,
    };
    let mut keeper = Keeper::open(plan, opening, group, ready_root, control)?;
    let outcome = keeper.run(control, outside);
    keeper.end_sandbox();
    // Told before the last is cleared away: no process of the sandbox is left, and who waits for more
    // waits for our own end. The order of leaving: processes, then their cgroup, then their files.
    let (message, workspace) = match outcome {
        Ok((report, workspace)) => (Message::Ended(report), workspace),
        Err(failed) => (Message::Failed(failed), None),
    };
    let fds: Vec<BorrowedFd<'_>> = workspace.iter().map(AsFd::as_fd).collect();
    let told = tell(control, &message, &fds);
    drop(keeper);
    drop(scratch);
    Ok(told)
}

pub(crate) fn create_group(cgroup: &crate::plan::Cgroup) -> std::result::Result<Group, Stopped> {
    let made = Group::create(cgroup);
    let index = made.as_ref().err().map_or(0, |(index, _)| *index);
    made.map_err(|(_, errno)| errno).at_item(Step::Cgroup, index)
}

impl From<Stopped> for Failed {
    fn from(stopped: Stopped) -> Self {
        Self { stopped, checks: Vec::new() }
    }
}

/// One sandbox, from clone to reaping.
struct Keeper {
    plan: Plan,
    // Before the group: its files are then closed when that is removed.
    alarm: Option<Alarm>,
    group: Option<Group>,
    init: Pid,
    init_fd: OwnedFd,
    /// Fixed-size notes from init and the payload.
    notes: OwnedFd,
    commands: OwnedFd,
    gate: Option<OwnedFd>,
    /// Where the program's filter brings what it refuses.
    ear: Option<Ear>,
    /// Both outputs of the program lead to the engine, which counts them.
    streams_are_pipes: bool,
    /// What the engine had no room for when it happened.
    untold: Vec<Message>,
    /// What a payload that joins needs, until it was asked for.
    joining: Option<(Ends, Option<OwnedFd>)>,
    /// Held so that the kernel takes the sandbox apart when its end has been told, not before.
    namespaces: Option<Namespaces>,
    /// What the group had used before it was anybody's.
    parked_cpu_us: u64,
    /// The way out, where there is one.
    door: Option<Door>,
    /// The sandbox's network, as the payload named it.
    network: u64,
    reaped: bool,
}

impl Keeper {
    /// Starts init in its namespaces and maps its ids.
    fn open(
        plan: Plan,
        opening: Opening,
        group: Option<Group>,
        ready_root: Option<PathBuf>,
        control: &OwnedFd,
    ) -> std::result::Result<Self, Failed> {
        let single = SingleThreaded::prove().at(Step::Clone)?;
        let (notes, their_notes) = socket_pair().at(Step::Clone)?;
        let (commands, their_commands) = socket_pair().at(Step::Clone)?;
        let (gate, their_gate) = socket_pair().at(Step::Clone)?;
        // The kernel then tells the sender's pid as we see it, whatever namespace it is in.
        rustix::net::sockopt::set_socket_passcred(&notes, true).at(Step::Clone)?;
        let born_into = group.as_ref().filter(|_| !plan.is_moved());
        let birthplace = born_into.map_or(Ok(None), Group::birthplace).at(Step::Cgroup)?;
        let streams_are_pipes = opening.stdio[1..].iter().all(is_pipe);
        let (payload, joining) = if plan.is_joined() {
            let (orders, their_orders) = socket_pair().at(Step::Clone)?;
            let notes = their_notes.try_clone().map_err(errno).at(Step::Clone)?;
            let ends = Ends { notes, gate: their_gate, orders: their_orders, stdio: opening.stdio };
            (init::Payload::Joins { orders }, Some((ends, birthplace)))
        } else {
            (init::Payload::Own { gate: their_gate, stdio: opening.stdio, birthplace }, None)
        };
        let inside = init::Ends {
            notes: their_notes,
            commands: their_commands,
            placed: opening.placed,
            payload,
            ready_root,
        };
        let flags = ids::prepare(&plan).at(Step::Clone)?;
        let nothing = init::null().at(Step::Clone)?;
        // Who makes a user namespace owns it.
        plan.owner_uid.map_or(Ok(()), set_effective_uid).at(Step::Clone)?;
        // The copy starts as we are, and only a dumpable process lets its own user map its ids.
        set_dumpable_behavior(DumpableBehavior::Dumpable).at(Step::Clone)?;
        let (init, init_fd) = match clone(&single, flags, None).at(Step::Clone)? {
            Cloned::Child => {
                // The keeper's ends are not init's. Nothing else is dropped: init never returns.
                drop((notes, commands, gate, joining));
                let_go_of(control, &nothing);
                init::run(&single, &plan, inside)
            }
            Cloned::Parent { child, pidfd } => (child, pidfd),
        };
        plan.owner_uid.map_or(Ok(()), |_| set_effective_uid(0)).at(Step::Clone)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).at(Step::Clone)?;
        let keeper = Self {
            plan,
            group,
            alarm: None,
            init,
            init_fd,
            notes,
            commands,
            gate: Some(gate),
            ear: None,
            streams_are_pipes,
            untold: Vec::new(),
            joining,
            namespaces: None,
            parked_cpu_us: 0,
            door: None,
            network: 0,
            reaped: false,
        };
        Ok(keeper)
    }

    fn run(
        &mut self,
        control: &OwnedFd,
        outside: Option<[u64; 7]>,
    ) -> std::result::Result<(Report, Option<OwnedFd>), Failed> {
        ids::map(self.init, &self.plan.identity).at(Step::IdMap)?;
        if self.plan.has_network_early() {
            self.namespaces = Some(ids::namespaces(self.init).at(Step::Clone)?);
        }
        rustix::io::write(&self.commands, b"g").at(Step::IdMap)?;
        let egress = self.plan.egress.take().filter(|_| self.plan.hold.is_none());
        let secrets = receive_secrets(control, self.plan.sealed).at(Step::Egress)?;
        let secrets = Secrets::new(secrets);
        let exit = egress.map(|plan| Exit::start(plan, secrets).at(Step::Egress)).transpose()?;
        // All this while init is at work.
        self.open_group()?;
        let outside = outside.unwrap_or_else(readback::own_namespaces);
        if let Some((ends, birthplace)) = self.joining.take() {
            self.await_standing(control)?;
            self.call_payload(control, &ends, birthplace.as_ref()).at(Step::Fork)?;
        }
        if self.plan.is_moved() {
            let newcomer = self.await_arrival(control)?;
            self.group.as_ref().map_or(Ok(()), |one| one.take_in(newcomer)).at(Step::Cgroup)?;
            self.open_doors().at(Step::Cgroup)?;
        }
        let (ready, pid) = self.await_ready(control)?;
        self.network = ready.namespaces[3];
        let mut checks = self.read_back(ready, pid, outside)?;
        checks.extend(exit.map(|exit| self.open_door(exit)).transpose()?);
        if matches!(self.plan.hold, Some(Hold::Started | Hold::Forked)) {
            self.wake_interpreter(control)?;
        }
        tell(control, &Message::Started(Started { checks }), &[]).at(Step::ReadBack)?;
        let invocation = match self.plan.hold {
            Some(_) => self.await_delivery(control)?,
            None => b"g".to_vec(),
        };
        let released = Instant::now();
        if let Some(gate) = self.gate.take() {
            rustix::io::write(&gate, &invocation).at(Step::ReadBack)?;
        }
        Ok(self.supervise(control, released))
    }

    /// Asks the engine for the payload.
    fn call_payload(
        &self,
        control: &OwnedFd,
        ends: &Ends,
        birthplace: Option<&OwnedFd>,
    ) -> Result<()> {
        let namespaces = self.namespaces.as_ref().ok_or(Errno::PROTO)?;
        let fds = joining_fds(namespaces, ends, birthplace.map(AsFd::as_fd));
        tell(control, &Message::Standing, &fds)
    }

    /// Makes the group, if it is not there yet, and opens it to the payload.
    fn open_group(&mut self) -> std::result::Result<(), Failed> {
        if let (None, Some(cgroup)) = (&self.group, &self.plan.cgroup) {
            self.group = Some(create_group(cgroup)?);
        }
        if !self.plan.is_moved() {
            self.open_doors().at(Step::Cgroup)?;
        }
        self.alarm = self.group.as_ref().map_or(Ok(None), Group::memory_alarm).at(Step::Cgroup)?;
        if let (Some(group), Some(cgroup)) = (&mut self.group, &self.plan.cgroup) {
            group.read_knobs_back(cgroup);
        }
        Ok(())
    }

    /// Lets the payload into what there is of the group on v1, and go on.
    fn open_doors(&self) -> Result<()> {
        let doors = self.group.as_ref().map_or(Ok(Vec::new()), Group::doors)?;
        let doors: Vec<BorrowedFd<'_>> = doors.iter().map(AsFd::as_fd).collect();
        let gate = self.gate.as_ref().ok_or(Errno::PROTO)?;
        match fd::send(gate, b"d", &doors) {
            // Init or the payload has stopped, which their note or their end tells better.
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            result => result,
        }
    }

    /// Nothing is released that was not found as planned.
    fn read_back(
        &self,
        ready: Ready,
        pid: u32,
        outside: [u64; 7],
    ) -> std::result::Result<Vec<Check>, Failed> {
        let checks = readback::check_all(
            &self.plan,
            self.group.as_ref(),
            ready,
            pid,
            self.streams_are_pipes,
            outside,
        );
        if checks.iter().any(|check| !check.verified) {
            let stopped = Stopped::new(Step::ReadBack, Errno::PERM);
            return Err(Failed { stopped, checks });
        }
        Ok(checks)
    }

    /// Until the program has ended, by itself or by us.
    fn supervise(&mut self, control: &OwnedFd, released: Instant) -> (Report, Option<OwnedFd>) {
        let mut watch = Watch::new(&self.plan, released, self.parked_cpu_us);
        let ending = loop {
            let left = watch.next_look(self.group.as_ref());
            if watch.gave_up() {
                break None;
            }
            let Ok(seen) = self.look(control, left) else {
                break None;
            };
            if let Some(note) = seen.note {
                break Some(note);
            }
            if seen.alarmed {
                watch.alarm();
            }
            if let Some(cause) = seen.cause.or_else(|| watch.overrun(self.group.as_ref())) {
                self.order_end(&mut watch, cause);
            }
            if seen.init_died {
                break None;
            }
        };
        let elapsed = released.elapsed();
        let (end, ending, workspace) = match ending {
            Some((Note::Ended(ending), workspace)) => (ended(&ending), Some(ending), workspace),
            Some((Note::Stopped(stopped), _)) if stopped.step == Step::Exec => {
                (End::NotExecuted(stopped.errno), None, None)
            }
            Some(_) | None => (End::Lost, None, None),
        };
        if ending.is_none() {
            self.end_sandbox();
        }
        // Nothing runs any more that could use it. It says its last while the group is read.
        if let Some(door) = &mut self.door {
            door.ask_to_finish();
        }
        // An init that has reported has reaped all of the group; it ends now, while the group is read.
        let report = self.report(end, ending, watch.ended_by, elapsed);
        if let Some(ear) = self.ear.take() {
            ear.finish(control);
        }
        self.shut_door(control);
        for message in &self.untold {
            tell(control, message, &[]).ok();
        }
        self.end_sandbox();
        (report, workspace)
    }

    /// One wait for whatever comes first.
    fn look(&mut self, control: &OwnedFd, left: Duration) -> Result<Seen> {
        let mut fds = vec![
            PollFd::new(&self.notes, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
            PollFd::new(&self.init_fd, PollFlags::IN),
        ];
        match &self.alarm {
            Some(Alarm::Event(event, _)) => fds.push(PollFd::new(event, PollFlags::IN)),
            Some(Alarm::File(file)) => fds.push(PollFd::new(file, PollFlags::PRI)),
            None => {}
        }
        let alarmed = self.alarm.as_ref().map(|_| fds.len() - 1);
        let door = self.door.as_ref().and_then(Door::descriptor).map(|_| fds.len());
        fds.extend(self.door.as_ref().and_then(Door::descriptor).map(heard));
        let called = fds.len();
        fds.extend(self.ear.as_ref().and_then(Ear::descriptor).map(heard));
        wait(&mut fds, left)?;
        let fired: Vec<bool> = fds.iter().map(|one| !one.revents().is_empty()).collect();
        let call = fds.get(called).map(PollFd::revents).filter(|found| !found.is_empty());
        drop(fds);
        if let (Some(ear), Some(found)) = (&mut self.ear, call) {
            ear.attend(found, Some(control));
        }
        let mut seen = Seen::default();
        if fired[0] {
            seen.note = self.take_note(control);
        }
        if fired[1] {
            seen.cause = Some(command(control));
        }
        if fired[2] && seen.note.is_none() {
            // It may have reported and exited between the two looks of one poll.
            seen.note = self.last_note(control);
            seen.init_died = seen.note.is_none();
        }
        if door.is_some_and(|place| fired.get(place) == Some(&true)) {
            self.hear_door(control);
        }
        if alarmed.is_some_and(|place| fired.get(place) == Some(&true)) {
            self.quiet_alarm();
            seen.alarmed = true;
        }
        Ok(seen)
    }

    /// What a dead init has left to say of the end, if anything.
    fn last_note(&mut self, control: &OwnedFd) -> Option<(Note, Option<OwnedFd>)> {
        let most = self.watched().len() + 1;
        (0..most).find_map(|_| {
            let mut fds = [PollFd::new(&self.notes, PollFlags::IN)];
            wait(&mut fds, Duration::ZERO).ok()?;
            fds[0].revents().contains(PollFlags::IN).then(|| self.take_note(control))?
        })
    }

    /// One note of how it ended; what is told on the way goes on to the engine.
    fn take_note(&mut self, control: &OwnedFd) -> Option<(Note, Option<OwnedFd>)> {
        let mut bytes = [0; Note::BYTES];
        let received = fd::receive(&self.notes, &mut bytes).ok()?;
        let note = Note::from_bytes(&bytes[..received.length])?;
        if let Note::Touched(place) = note {
            self.tell_touched(control, place);
            return None;
        }
        Some((note, received.fds.into_iter().next()))
    }

    fn watched(&self) -> &[String] {
        match &self.plan.files {
            Files::Root(root) => &root.proc.watched,
            Files::Host { .. } => &[],
        }
    }

    /// At once, or, if the engine is behind, when the run has ended: our clocks must not wait for it.
    fn tell_touched(&mut self, control: &OwnedFd, place: u16) {
        let Some(name) = self.watched().get(usize::from(place)) else { return };
        let message = Message::Touched(Touched { time_ms: now_ms(), name: name.clone() });
        self.tell_or_keep(control, message);
    }

    /// See [`Self::tell_touched`].
    fn tell_or_keep(&mut self, control: &OwnedFd, message: Message) {
        let told =
            serde_json::to_vec(&message).is_ok_and(|json| fd::try_send(control, &json).is_ok());
        self.untold.extend((!told && self.untold.len() < MAX_UNTOLD).then_some(message));
    }

    /// Lets the sandbox out, as far as its policy says; the answer is what was found of that barrier.
    fn open_door(&mut self, exit: Exit) -> std::result::Result<Check, Failed> {
        let single = SingleThreaded::prove().at(Step::Egress)?;
        let namespaces = self.namespaces.as_ref().ok_or(Errno::PROTO).at(Step::Egress)?;
        let mut door = exit.open(&single, namespaces, init_number(self.init)).at(Step::Egress)?;
        let check = door.verify(self.network);
        self.door = Some(door);
        if !check.verified {
            let stopped = Stopped::new(Step::ReadBack, Errno::PERM);
            return Err(Failed { stopped, checks: vec![check] });
        }
        Ok(check)
    }

    fn hear_door(&mut self, control: &OwnedFd) {
        let told = self.door.as_mut().map(Door::attend).unwrap_or_default();
        told.into_iter().for_each(|one| self.tell_or_keep(control, Message::Egress(one)));
    }

    /// When nothing of the sandbox runs any more.
    fn shut_door(&mut self, control: &OwnedFd) {
        let told = self.door.as_mut().map(Door::finish).unwrap_or_default();
        for one in told {
            // The engine listens until the end is told, which is after this.
            tell(control, &Message::Egress(one), &[]).ok();
        }
    }

    /// An eventfd stays readable until read. The v2 file re-arms when its text is read.
    fn quiet_alarm(&self) {
        let mut count = [0; 512];
        let _read = match &self.alarm {
            Some(Alarm::Event(fd, _)) => rustix::io::read(fd, &mut count[..8]).ok(),
            Some(Alarm::File(fd)) => rustix::io::pread(fd, &mut count, 0).ok(),
            None => None,
        };
    }

    /// Asks init to end everything; the first cause is the one that is told.
    fn order_end(&self, watch: &mut Watch, cause: Cause) {
        if watch.ended_by.is_some() {
            return;
        }
        watch.ended_by = Some(cause);
        watch.give_up_at = Some(Instant::now() + ENDING_LIMIT);
        // If init cannot hear us it is dead or dying, which the next look shows.
        rustix::io::write(&self.commands, b"e").ok();
    }

    /// Kills what may still be there and reaps init. After this no process of the sandbox exists.
    fn end_sandbox(&mut self) {
        if self.reaped {
            return;
        }
        self.gate = None;
        // First: a child that lives would be waited for below. The rest of the door is taken down at leisure.
        if let Some(door) = &mut self.door {
            door.end_own_process();
        }
        if matches!(self.plan.files, Files::Root(_)) {
            // Its death takes the whole pid namespace; one that has exited already does not mind.
            kill(self.init_fd.as_fd()).ok();
            while let Ok(Some(_)) = reap_any(Wait::Block) {}
        } else {
            // One that has reported is on its way out: a moment's wait spares a walk through /proc.
            wait(&mut [PollFd::new(&self.init_fd, PollFlags::IN)], INIT_EXIT).ok();
            tree::end_descendants();
        }
        self.reaped = true;
    }

    fn report(
        &self,
        end: End,
        ending: Option<Ending>,
        ended_by: Option<Cause>,
        elapsed: Duration,
    ) -> Report {
        let used = self.group.as_ref().map(Group::usage).unwrap_or_default();
        let seen = ending.unwrap_or_default();
        let peak = Some(seen.max_resident_bytes).filter(|bytes| *bytes > 0);
        Report {
            end,
            ended_by,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            cpu_us: used.cpu_us.map_or(seen.cpu_us, |used| used.saturating_sub(self.parked_cpu_us)),
            memory_peak_bytes: used.memory_peak_bytes.or(peak),
            processes_peak: used.processes_peak,
            oom_kills: used.oom_kills,
            forks_refused: used.forks_refused,
            disk: seen.disk,
        }
    }
}

/// What one look found.
#[derive(Default)]
struct Seen {
    note: Option<(Note, Option<OwnedFd>)>,
    cause: Option<Cause>,
    /// The group's memory ran out.
    alarmed: bool,
    init_died: bool,
}

/// Why the engine wants an end; a closed socket means that it is gone.
fn command(control: &OwnedFd) -> Cause {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let received = fd::receive(control, &mut bytes);
    let length = received.map_or(0, |one| one.length);
    match serde_json::from_slice(&bytes[..length]) {
        Ok(Command::End(cause)) => cause,
        Err(_) => Cause::Cancelled,
    }
}

fn ended(ending: &Ending) -> End {
    if ending.exited { End::Exited(ending.value) } else { End::Signaled(ending.value) }
}

pub(crate) fn is_pipe(stream: &OwnedFd) -> bool {
    rustix::fs::fstat(stream)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

fn init_number(init: Pid) -> u32 {
    init.as_raw_nonzero().get().cast_unsigned()
}

/// How a listener is waited for.
fn heard(listener: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(listener, PollFlags::IN)
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    crate::wire::control_pair()
}

pub(crate) fn wait(fds: &mut [PollFd<'_>], left: Duration) -> Result<()> {
    // Rounded up, so that a deadline has passed when we wake for it.
    let left = Timespec::try_from(left + Duration::from_micros(100)).map_err(|_| Errno::INVAL)?;
    rustix::io::retry_on_intr(|| poll(fds, Some(&left)))?;
    Ok(())
}

/// Waits for nothing but time; only where the kernel offers no event to wait for.
pub(crate) fn pause(milliseconds: i64) {
    let time = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
    // A signal may cut it short; every caller loops.
    poll(&mut [], Some(&time)).ok();
}
