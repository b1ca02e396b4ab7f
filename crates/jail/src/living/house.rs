//! The life of a sandbox that stands: one loop that waits for whatever comes, and never for one thing alone.

mod asked;
mod network;
mod tended;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_sys::{Errno, Result, fd};
use rustix::event::{PollFd, PollFlags};

use super::Init;
use super::clients::Clients;
use super::disk::{self, Gauge};
use super::exec::{Exec, Kind};
use super::group::Cell;
use super::inside::{ASK, END, NOBODY};
use super::lookout::Lookout;
use super::records::{self, Records};
use super::talk::{Answer, ENDED, EndReason, LivingPlan, Order, SOCKET, SandboxEnd, VERIFIED};
use crate::cgroup::Alarm;
use crate::keeper::{ENDING_LIMIT, wait};
use crate::layer::Check;
use crate::notify::now_ms;
use crate::plan::{Files, Plan};
use crate::redact::Patterns;
use crate::report::{At, Cause, Failed, Note, Step, Stopped};
use crate::wire::{Namespaces, control_pair, sealed_memory};
use network::Network;

/// What a shepherd and its payload can have said that was not heard yet.
const MAX_LAST_WORDS: usize = 16;
/// How often the clocks of the whole sandbox are looked at.
const TICK: Duration = Duration::from_millis(500);

/// A sandbox that stands.
#[derive(Debug)]
pub(crate) struct House {
    pub(super) plan: Plan,
    pub(super) living: Clocks,
    /// The way out. Before init: whoever reaps init would wait for its process.
    pub(super) network: Network,
    // Before the cell: what is in it is dead when that is removed.
    pub(super) init: Init,
    pub(super) execs: Vec<Exec>,
    pub(super) cell: Cell,
    pub(super) gauge: Gauge,
    /// What its files are known by.
    held: Vec<OwnedFd>,
    pub(super) records: Records,
    /// What no output may show: every secret that any program in it was given.
    pub(super) hidden: Patterns,
    /// What all output is looked through for.
    decoys: Rc<Patterns>,
    pub(super) clients: Option<Clients>,
    outside: [u64; 7],
    /// What the ears tell, from us to us.
    told: (OwnedFd, OwnedFd),
    next: u64,
    oom_claimed: u64,
    buffer: Vec<u8>,
    pub(super) ending: Option<Leaving>,
}

/// The sandbox's own time.
#[derive(Debug)]
pub(crate) struct Clocks {
    pub idle: Option<Duration>,
    pub expires_at_ms: Option<u64>,
    pub last_used: Instant,
    pub frozen_at: Option<Instant>,
}

/// On the way out.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub reason: EndReason,
    /// Nobody is asked any longer then.
    pub until: Instant,
    /// Init was told to end all.
    pub pressed: bool,
    /// Who wants to know.
    pub asked_by: Vec<(u64, u64)>,
}

/// What poll watches.
#[derive(Clone, Copy, Debug)]
enum Watched {
    Notes,
    InitDied,
    Memory,
    Listener,
    Door,
    Client(u64),
    Line(u64),
    Output(u64, usize),
    Input(u64),
    Calls(u64),
}

impl House {
    pub(crate) fn new(
        living: LivingPlan,
        cell: Cell,
        init: Init,
        outside: [u64; 7],
        namespaces: Namespaces,
    ) -> Result<Self> {
        let LivingPlan { mut plan, directory, idle_ms, expires_at_ms, decoys, .. } = living;
        let network = Network::new(namespaces, init.number(), plan.egress.take());
        let Files::Root(root) = &plan.files else {
            return Err(Errno::INVAL);
        };
        let told = control_pair()?;
        rustix::io::ioctl_fionbio(&told.0, true)?;
        rustix::io::ioctl_fionbio(&told.1, true)?;
        let idle = idle_ms.map(Duration::from_millis);
        Ok(Self {
            gauge: Gauge::new(root),
            held: Vec::new(),
            records: Records::open(&directory)?,
            hidden: Patterns::default(),
            decoys: Rc::new(Patterns::new(decoys.iter().map(String::as_str))),
            plan,
            living: Clocks { idle, expires_at_ms, last_used: Instant::now(), frozen_at: None },
            network,
            init,
            execs: Vec::new(),
            oom_claimed: cell.oom_kills(),
            cell,
            clients: None,
            outside,
            told,
            next: 0,
            buffer: Vec::new(),
            ending: None,
        })
    }

    /// From now on its files are known by descriptors. Not before they were looked at by their paths.
    pub(crate) fn hold_files(&mut self) -> Result<()> {
        if let Files::Root(root) = &mut self.plan.files {
            self.held = disk::hold(root)?;
            self.gauge = Gauge::new(root);
        }
        Ok(())
    }

    /// Locks a payload down, looks at it, and lets it go unused: what is found is what execs will find.
    pub(crate) fn try_payload(&mut self) -> std::result::Result<Vec<Check>, Failed> {
        let order = Order {
            exec: "trial".to_owned(),
            paths: Vec::new(),
            argv: Vec::new(),
            environment: self.plan.program.environment.clone(),
            secrets: Vec::new(),
            hidden: Vec::new(),
            directory: "/".into(),
            wall_ms: self.plan.wall_ms,
            cpu_ms: self.plan.cpu_ms,
            terminal: None,
            keep_stdin: false,
            note: serde_json::Value::Null,
        };
        let json = serde_json::to_vec(&order).map_err(|_| Errno::PROTO).at(Step::Plan)?;
        let memory = sealed_memory("order", &json).map_err(|_| Errno::NOMEM).at(Step::Plan)?;
        let number = self.launch(Kind::Trial, Some(&memory), None).at(Step::Fork)?;
        let deadline = Instant::now() + crate::keeper::SETUP_LIMIT;
        loop {
            if let Some(found) = self.trial_of(number) {
                return found;
            }
            if Instant::now() >= deadline || self.turn().is_none() {
                return Err(Stopped::new(Step::Fork, Errno::TIMEDOUT).into());
            }
        }
    }

    fn trial_of(&mut self, number: u64) -> Option<std::result::Result<Vec<Check>, Failed>> {
        let place = self.execs.iter().position(|one| one.number == number)?;
        let trial = &mut self.execs[place];
        let found = trial.trial.take()?;
        trial.trial_told = true;
        trial.gate = None; // which tells it to go
        Some(found)
    }

    /// Writes down what was verified, and is there for everybody.
    pub(crate) fn listen(&mut self, checks: &[Check]) -> Result<()> {
        records::write(&self.records.top, VERIFIED, &checks)?;
        self.clients = Some(Clients::open(&self.records.top)?);
        self.living.last_used = Instant::now();
        Ok(())
    }

    /// Until it ends.
    pub(crate) fn live(mut self) {
        let mut reason = EndReason::Lost;
        while self.turn().is_some() {
            if let Some(ending) = &self.ending {
                reason = ending.reason;
            }
        }
        if let Some(ending) = &self.ending {
            reason = ending.reason;
        }
        self.leave(reason);
    }

    /// Everything in it is dead, or about to be: takes leave in order.
    fn leave(mut self, reason: EndReason) {
        if self.cell.frozen {
            self.cell.set_frozen(false).ok();
        }
        self.network.shut();
        self.init.end();
        for number in self.numbers() {
            // What was said last is read first; then nobody is left at the other end, which ends it too.
            for _ in 0..MAX_LAST_WORDS {
                self.hear(number);
            }
            self.finish(number, None);
        }
        let asked = self.ending.take().map(|ending| ending.asked_by).unwrap_or_default();
        let end = SandboxEnd { reason, time_ms: now_ms() };
        // If it cannot be written, a sandbox without a keeper says enough.
        records::write(&self.records.top, ENDED, &end).ok();
        rustix::fs::unlinkat(&self.records.top, SOCKET, rustix::fs::AtFlags::empty()).ok();
        let Self { clients, cell, execs, init, .. } = self;
        drop((execs, init, cell)); // the cgroup goes before the answer
        if let Some(mut clients) = clients {
            asked.into_iter().for_each(|to| clients.answer(to, Answer::Done, &[]));
        }
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.execs.iter().map(|one| one.number).collect()
    }

    pub(super) fn exec(&mut self, number: u64) -> Option<&mut Exec> {
        self.execs.iter_mut().find(|one| one.number == number)
    }

    /// Has init start something; the answer is by which number it is known here.
    pub(super) fn launch(
        &mut self,
        kind: Kind,
        memory: Option<&OwnedFd>,
        asked_by: Option<(u64, u64)>,
    ) -> Result<u64> {
        self.next += 1;
        let mut exec =
            Exec::launch(self.next, kind, memory, &self.init.commands, &self.cell, &self.plan)?;
        exec.asked_by = asked_by;
        exec.lookout = Lookout::new(Rc::clone(&self.decoys));
        self.execs.push(exec);
        Ok(self.next)
    }

    /// One wait, and what came of it; `None` when all is over.
    fn turn(&mut self) -> Option<()> {
        let fired = self.wait().ok()?;
        for (watched, flags) in fired {
            match watched {
                Watched::InitDied => return None,
                Watched::Notes => self.hear_init()?,
                Watched::Memory => self.quiet_alarm(),
                Watched::Listener => self.clients.as_mut().map_or((), Clients::accept),
                Watched::Door => self.network.attend(),
                Watched::Client(number) => self.attend(number, flags),
                Watched::Line(number) => self.hear(number),
                Watched::Output(number, stream) => self.read(number, stream),
                Watched::Input(number) => self.exec(number).map_or((), |exec| exec.input.write()),
                Watched::Calls(number) => self.answer_calls(number, flags),
            }
        }
        self.look_at_clocks()
    }

    fn wait(&self) -> Result<Vec<(Watched, PollFlags)>> {
        let mut watched = vec![Watched::Notes, Watched::InitDied];
        let mut fds = vec![
            PollFd::new(&self.init.notes, PollFlags::IN),
            PollFd::new(&self.init.pidfd, PollFlags::IN),
        ];
        let mut add = |what, fd| {
            watched.push(what);
            fds.push(fd);
        };
        match &self.cell.alarm {
            Some(Alarm::Event(event, _)) => add(Watched::Memory, PollFd::new(event, PollFlags::IN)),
            Some(Alarm::File(file)) => add(Watched::Memory, PollFd::new(file, PollFlags::PRI)),
            None => {}
        }
        if let Some(door) = self.network.descriptor() {
            add(Watched::Door, PollFd::from_borrowed_fd(door, PollFlags::IN));
        }
        if let Some(clients) = &self.clients {
            add(Watched::Listener, PollFd::from_borrowed_fd(clients.listener(), PollFlags::IN));
            for (number, socket, behind) in clients.all() {
                let flags = if behind { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                add(Watched::Client(number), PollFd::from_borrowed_fd(socket, flags));
            }
        }
        for exec in &self.execs {
            let number = exec.number;
            if let Some(line) = &exec.line {
                add(Watched::Line(number), PollFd::new(line, PollFlags::IN));
            }
            for (stream, from) in exec.outputs.iter().enumerate() {
                if let Some(from) = from.as_ref().filter(|_| !exec.is_held(stream)) {
                    add(Watched::Output(number, stream), PollFd::new(from, PollFlags::IN));
                }
            }
            if let Some(to) = exec.input.to.as_ref().filter(|_| exec.input.waits()) {
                add(Watched::Input(number), PollFd::new(to, PollFlags::OUT));
            }
            if let Some(calls) = exec.called() {
                add(Watched::Calls(number), PollFd::from_borrowed_fd(calls, PollFlags::IN));
            }
        }
        wait(&mut fds, self.next_look())?;
        let found = watched.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(found.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn next_look(&self) -> Duration {
        let frozen = self.cell.frozen;
        let execs = self.execs.iter().map(|exec| exec.next_look(frozen));
        let runs = self.execs.iter().any(|exec| !exec.ended) && !frozen;
        let disk = self.gauge.next_look().filter(|_| runs);
        let ending = self.ending.as_ref();
        let ending = ending.map(|one| one.until.saturating_duration_since(Instant::now()));
        super::soonest(execs.chain([disk, ending, Some(TICK)])).unwrap_or(TICK)
    }

    /// Init says that nobody is left, or why it stops.
    fn hear_init(&mut self) -> Option<()> {
        let mut bytes = [0; Note::BYTES];
        let received = fd::receive(&self.init.notes, &mut bytes).ok()?;
        if &bytes[..received.length] == NOBODY && self.ending.is_some() {
            self.end_now();
            return Some(());
        }
        if let Some(Note::Touched(place)) = Note::from_bytes(&bytes[..received.length]) {
            self.tell_touched(place);
        }
        (received.length > 0).then_some(())
    }

    /// Hears all that init has said until now: what somebody touched is told before he goes on, and so before his end.
    pub(super) fn hear_rest(&mut self) {
        for _ in 0..MAX_LAST_WORDS {
            let mut said = [PollFd::new(&self.init.notes, PollFlags::IN)];
            let asked = wait(&mut said, Duration::ZERO);
            if asked.is_err() || !said[0].revents().contains(PollFlags::IN) {
                return;
            }
            if self.hear_init().is_none() {
                return;
            }
        }
    }

    pub(super) fn end_now(&mut self) {
        if let Some(ending) = &mut self.ending {
            (ending.until, ending.pressed) = (Instant::now() + ENDING_LIMIT, true);
        }
        rustix::io::write(&self.init.commands, &[END]).ok();
    }

    /// Begins to end it: all are asked to, and have so long.
    pub(super) fn begin_ending(
        &mut self,
        reason: EndReason,
        grace: Duration,
        by: Option<(u64, u64)>,
    ) {
        if self.cell.frozen {
            // What is frozen can neither hear nor, with v1, die.
            self.thaw().ok();
        }
        if let Some(ending) = &mut self.ending {
            ending.asked_by.extend(by);
            if grace.is_zero() {
                self.end_now();
            }
            return;
        }
        let until = Instant::now() + grace;
        self.ending =
            Some(Leaving { reason, until, pressed: false, asked_by: by.into_iter().collect() });
        for exec in self.execs.iter_mut().filter(|exec| !exec.ended) {
            exec.ended_by = exec.ended_by.or(Some(Cause::Cancelled));
        }
        if grace.is_zero() {
            self.end_now();
        } else {
            rustix::io::write(&self.init.commands, &[ASK]).ok();
        }
    }

    /// What one of a sandbox's own descriptors of memory says is read, so that it can say it again.
    fn quiet_alarm(&self) {
        let mut count = [0; 512];
        let _read = match &self.cell.alarm {
            Some(Alarm::Event(fd, _)) => rustix::io::read(fd, &mut count[..8]).ok(),
            Some(Alarm::File(fd)) => rustix::io::pread(fd, &mut count, 0).ok(),
            None => None,
        };
    }
}
