//! The egress process as its keeper sees it: started, read back, heard, started again, ended.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_sys::process::SingleThreaded;
use belljar_sys::{Errno, Result, fd, net};
use rustix::event::{PollFd, PollFlags};

use super::listeners::{self, Listeners, Network, Opened};
use super::process::{Given, Process};
use super::{Bid, Budget, EgressPlan, From, Reached, Refused, Told, Why, owner};
use crate::cgroup::errno;
use crate::keeper::wait;
use crate::layer::{Check, Layer};
use crate::notify::{now_ms, status};
use crate::tried::Seen;
use crate::wire::{MAX_MESSAGE_BYTES, Namespaces, sealed_memory};

/// How long it may take to lock itself down.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to heed what it is told while it serves.
const OBEY_LIMIT: Duration = Duration::from_secs(2);
/// How long it may take to say its last.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
/// Messages taken at one look, so that nobody else waits for them.
const MAX_AT_ONCE: usize = 32;
/// It is started again so often; then the way out stays shut.
const MAX_RESTARTS: u32 = 16;
/// Hosts of the ledger; what is beyond them is one line of it.
const MAX_LEDGER: usize = 1024;
/// Programs that are looked for, of those that were refused something.
const MAX_LOOKS: usize = 256;
/// The name of that line.
const OTHERS: &str = "(others)";

/// A sandbox's way out.
#[derive(Debug)]
pub(crate) struct Door {
    plan: EgressPlan,
    secrets: Secrets,
    network: Network,
    listeners: Listeners,
    opened: Opened,
    process: Option<Process>,
    restarts: u32,
    /// What it told while something else was waited for.
    told: Vec<Told>,
    /// The whole budget: what earlier processes used of it the next one does not have.
    budget: Budget,
    /// What earlier processes told of.
    before: Vec<Reached>,
    now: Vec<Reached>,
    /// Refusals are numbered on from process to process.
    numbers: (u32, u32),
    /// The sandbox's network, by its number, and its init, by which programs inside are found.
    number: u64,
    init: u32,
    /// How often one was looked for.
    looked: usize,
}

/// What the process must know of secrets, in sealed files of memory that only it reads: as it was at first, and what has
/// changed of it since.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    first: Option<OwnedFd>,
    newer: Option<OwnedFd>,
}

impl Secrets {
    pub(crate) fn new(first: Option<OwnedFd>) -> Self {
        Self { first, newer: None }
    }

    /// The same files of memory.
    pub(crate) fn copy(&self) -> Result<Self> {
        let copy = |one: &Option<OwnedFd>| one.as_ref().map(OwnedFd::try_clone).transpose();
        let copied = |one| copy(one).map_err(errno);
        Ok(Self { first: copied(&self.first)?, newer: copied(&self.newer)? })
    }

    pub(crate) fn renew(&mut self, newer: OwnedFd) {
        self.newer = Some(newer);
    }

    /// With the first there is nothing that could be newer.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let newer = self.newer.as_ref().filter(|_| self.first.is_some());
        self.first.iter().chain(newer).map(AsFd::as_fd)
    }
}

/// A way out whose process was started before the sandbox stands, so that both happen at once.
#[derive(Debug)]
pub(crate) struct Exit {
    plan: EgressPlan,
    secrets: Secrets,
    process: Process,
}

impl Exit {
    pub(crate) fn start(plan: EgressPlan, secrets: Secrets) -> Result<Self> {
        let process = Process::start(&plan)?;
        Ok(Self { plan, secrets, process })
    }

    /// With a process that the engine kept ready.
    pub(crate) fn given(plan: EgressPlan, secrets: Secrets, ready: Given) -> Self {
        Self { plan, secrets, process: Process::given(ready) }
    }

    /// Makes the listeners in the sandbox's network. They are handed over when the process was found locked down.
    pub(crate) fn open(
        self,
        single: &SingleThreaded,
        namespaces: &Namespaces,
        init: u32,
    ) -> Result<Door> {
        let network = Network::of(namespaces)?;
        let listeners = listeners::open(single, &network, &self.plan, None)?;
        let mut opened = Opened::default();
        opened.add(&self.plan);
        Ok(Door {
            told: Vec::new(),
            budget: self.plan.budget,
            plan: self.plan,
            secrets: self.secrets,
            network,
            listeners,
            opened,
            process: Some(self.process),
            restarts: 0,
            before: Vec::new(),
            now: Vec::new(),
            numbers: (0, 0),
            number: 0,
            init,
            looked: 0,
        })
    }
}

impl Door {
    /// Tells the process the plan, and gives it these listeners.
    fn hand_over(&self, listeners: &Listeners) -> Result<()> {
        let process = self.process.as_ref().ok_or(Errno::CHILD)?;
        // It has its filter.
        let plan = EgressPlan { filter: Vec::new(), ..self.plan.clone() };
        let json = serde_json::to_vec(&plan).map_err(|_| Errno::PROTO)?;
        let memory = sealed_memory("egress", &json).map_err(|_| Errno::NOMEM)?;
        let bid = Bid::Serve {
            secrets: self.secrets.fds().count(),
            listeners: listeners.iter().map(|(kind, _)| *kind).collect(),
        };
        let word = serde_json::to_vec(&bid).map_err(|_| Errno::PROTO)?;
        let mut fds = vec![memory.as_fd()];
        fds.extend(self.secrets.fds());
        fds.extend(listeners.iter().map(|(_, socket)| socket.as_fd()));
        fd::send(&process.socket, &word, &fds)
    }

    /// Another policy, at once: the process cuts what it no longer allows.
    pub(crate) fn change(&mut self, single: &SingleThreaded, plan: EgressPlan) -> Result<()> {
        let new = listeners::open(single, &self.network, &plan, Some(&self.opened))?;
        self.opened.add(&plan);
        self.plan = EgressPlan { rules: plan.rules, ..self.plan.clone() };
        // Kept whether it hears of them or not: one that takes its place gets them all.
        let told = self.tell(&new);
        self.listeners.extend(new);
        told
    }

    /// Hands over what is new, and waits until it counts. One that is not locked down yet gets all of it then. One that
    /// cannot be told, or does not heed it, ends, which shows at the next look: what was allowed before must not
    /// go on because nobody listened, and the next has it from the first.
    fn tell(&mut self, new: &Listeners) -> Result<()> {
        let process = self.process.as_ref().ok_or(Errno::CHILD)?;
        if process.serves
            && (self.hand_over(new).is_err() || !self.is_obeyed())
            && let Some(process) = &self.process
        {
            process.end();
        }
        Ok(())
    }

    /// Waits until it says so. What else it tells meanwhile is kept.
    fn is_obeyed(&mut self) -> bool {
        let deadline = Instant::now() + OBEY_LIMIT;
        loop {
            match self.receive() {
                Ok(Some(Told::Obeyed)) => return true,
                Ok(Some(one)) => {
                    let one = self.take(one);
                    self.told.push(one);
                }
                Err(Errno::AGAIN) if Instant::now() < deadline => self.pause(deadline),
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// Other values of secrets, from the next request on.
    pub(crate) fn renew(&mut self, newer: OwnedFd) -> Result<()> {
        self.secrets.renew(newer);
        // Where there is no process any more, nobody is sent anything.
        self.tell(&Vec::new()).ok();
        Ok(())
    }

    pub(crate) fn plan(&self) -> &EgressPlan {
        &self.plan
    }

    /// Waits until the process is locked down, looks whether it is, and lets it accept if so.
    pub(crate) fn verify(&mut self, network: u64) -> Check {
        self.number = network;
        let check = self.admit();
        if check.verified || !self.process.as_ref().is_some_and(Process::was_given) {
            return check;
        }
        // It died while it waited for somebody to want it, or when it was wanted.
        self.process = Process::start(&self.plan).ok();
        self.admit()
    }

    fn admit(&mut self) -> Check {
        let ready = self.await_ready();
        let mut check = self.check(ready);
        check.verified = check.verified && self.let_serve().is_ok();
        check
    }

    fn await_ready(&self) -> bool {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            match self.receive() {
                Ok(Some(Told::Ready)) => return true,
                Ok(Some(_)) => {}
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    self.pause(deadline);
                }
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// From now on it accepts.
    fn let_serve(&mut self) -> Result<()> {
        self.hand_over(&self.listeners)?;
        if let Some(process) = &mut self.process {
            process.serves = true;
        }
        Ok(())
    }

    fn pause(&self, deadline: Instant) {
        if let Some(process) = &self.process {
            let mut fds = [PollFd::new(&process.socket, PollFlags::IN)];
            // What came of it shows at the next look.
            wait(&mut fds, deadline.saturating_duration_since(Instant::now())).ok();
        }
    }

    /// What the kernel says of the process and of its listeners.
    fn check(&self, ready: bool) -> Check {
        let network = self.number;
        let pid = self.process.as_ref().map_or(0, Process::id);
        let status = status(pid);
        let fields: HashMap<&str, &str> = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key, value.trim()))
            .collect();
        let field = |key: &str| fields.get(key).copied().unwrap_or("");
        let none = |key: &str| !field(key).is_empty() && field(key).bytes().all(|one| one == b'0');
        let confined = field("NoNewPrivs") == "1" && field("Seccomp") == "2" && none("CapEff");
        let uid = self.plan.ids.map(|(uid, _)| uid.to_string());
        let own = uid.is_none_or(|uid| field("Uid").split_whitespace().all(|one| one == uid));
        let inside = self.listeners.iter().all(|(_, socket)| {
            let namespace = net::namespace_of(socket);
            let number = namespace.and_then(rustix::fs::fstat).map_or(0, |stat| stat.st_ino);
            number == network && network != 0
        });
        let mechanism = format!(
            "{} listeners in its network, {} rules; their process has no privileges, no files, and a \
             filter",
            self.listeners.len(),
            self.plan.rules.len()
        );
        Check { name: Layer::Egress, mechanism, verified: ready && confined && own && inside }
    }

    /// What is waited for.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|process| process.socket.as_fd())
    }

    /// Hears what it has to tell; starts it again if it has crashed.
    pub(crate) fn attend(&mut self) -> Vec<Told> {
        let mut told = std::mem::take(&mut self.told);
        for _ in 0..MAX_AT_ONCE {
            match self.receive() {
                Ok(Some(Told::Ready)) if self.welcome() => {}
                // Of somebody who is not waited for any more.
                Ok(Some(Told::Obeyed)) => {}
                Ok(Some(one)) if one != Told::Ready => told.push(self.take(one)),
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => {
                    told.push(self.restart());
                    break;
                }
            }
        }
        told
    }

    /// One that was started again is locked down, as it says. Until it was found to be, it has nothing to accept from.
    fn welcome(&mut self) -> bool {
        let serves = self.process.as_ref().is_some_and(|process| process.serves);
        serves || self.check(true).verified && self.let_serve().is_ok()
    }

    /// One message; `None` when there will be no more. What cannot be understood is as good as a crash.
    fn receive(&self) -> Result<Option<Told>> {
        let process = self.process.as_ref().ok_or(Errno::CHILD)?;
        let mut bytes = vec![0; MAX_MESSAGE_BYTES];
        let received = fd::receive(&process.socket, &mut bytes)?;
        Ok(serde_json::from_slice(&bytes[..received.length]).ok())
    }

    /// With what earlier processes told.
    fn take(&mut self, told: Told) -> Told {
        match told {
            Told::Ready | Told::Obeyed => told,
            Told::Refused(mut one) => {
                if let Some(from) = one.from.take() {
                    one.program = self.who(from);
                    self.acknowledge(one.number);
                }
                one.number = one.number.saturating_add(self.numbers.0);
                self.numbers.1 = self.numbers.1.max(one.number.saturating_add(1));
                Told::Refused(one)
            }
            Told::Reached(some) => {
                let lines: Vec<Reached> = some
                    .into_iter()
                    .map(|one| {
                        note(&mut self.now, one.clone());
                        let before = self.before.iter().find(|known| is_same(known, &one));
                        before.map_or(one.clone(), |before| sum(before, &one))
                    })
                    .collect();
                Told::Reached(lines)
            }
        }
    }

    /// Who is refused, as far as it can be found out in a bounded time.
    fn who(&mut self, from: From) -> Option<Seen> {
        self.looked += 1;
        (self.looked <= MAX_LOOKS).then(|| owner::of(self.init, from)).flatten()
    }

    /// Whoever was refused waits until we know who it is.
    fn acknowledge(&self, number: u32) {
        let word = serde_json::to_vec(&Bid::Noted { number }).unwrap_or_default();
        if let Some(process) = &self.process {
            // It waits for a bounded time.
            fd::try_send(&process.socket, &word).ok();
        }
    }

    /// It has crashed: everything it carried is cut, and another takes its place.
    fn restart(&mut self) -> Told {
        self.process = None;
        for line in std::mem::take(&mut self.now) {
            match self.before.iter_mut().find(|known| is_same(known, &line)) {
                Some(known) => *known = sum(known, &line),
                None => self.before.push(line),
            }
        }
        self.restarts += 1;
        self.plan.budget = left(self.budget, &self.before);
        while self.process.is_none() && self.restarts <= MAX_RESTARTS {
            self.process = Process::start(&self.plan).ok();
            self.restarts += u32::from(self.process.is_none());
        }
        if self.process.is_none() {
            self.listeners.clear(); // refused at once, rather than never answered
        }
        self.numbers.0 = self.numbers.1 + 1;
        self.numbers.1 = self.numbers.0;
        Told::Refused(Refused {
            time_ms: now_ms(),
            number: self.numbers.0 - 1,
            host: String::new(),
            port: 0,
            why: Why::Crashed,
            detail: String::new(),
            count: 1,
            from: None,
            program: None,
        })
    }

    /// Asks it for its last words, which [`Self::finish`] hears: there is something else to do meanwhile.
    pub(crate) fn ask_to_finish(&mut self) {
        let Some(process) = &mut self.process else { return };
        if !process.finishes {
            let word = serde_json::to_vec(&Bid::Finish).unwrap_or_default();
            // One that cannot be told has ended, which the next look shows.
            fd::send(&process.socket, &word, &[]).ok();
            process.finishes = true;
        }
    }

    /// Lets it say its last.
    pub(crate) fn finish(&mut self) -> Vec<Told> {
        let mut told = std::mem::take(&mut self.told);
        self.ask_to_finish();
        let deadline = Instant::now() + FINISH_LIMIT;
        loop {
            match self.receive() {
                Ok(Some(one)) => told.push(self.take(one)),
                Err(Errno::AGAIN) if Instant::now() < deadline => self.pause(deadline),
                Ok(None) | Err(_) => break,
            }
        }
        self.end_own_process();
        told.retain(|one| !matches!(one, Told::Ready | Told::Obeyed));
        told
    }

    /// Whoever waits for all children must not wait for this one. The engine's is no child of ours, and ends with the
    /// door.
    pub(crate) fn end_own_process(&mut self) {
        if self.process.as_ref().is_some_and(|process| !process.was_given()) {
            self.process = None;
        }
    }
}

/// What was not used of a budget. What a process that crashed had not told yet (of the last second) is not counted.
fn left(whole: Budget, used: &[Reached]) -> Budget {
    let sum = |of: fn(&Reached) -> u64| used.iter().map(of).fold(0, u64::saturating_add);
    let bytes = sum(|line| line.sent_bytes.saturating_add(line.received_bytes));
    Budget {
        bytes: whole.bytes.saturating_sub(bytes),
        connections: whole.connections.saturating_sub(sum(|line| line.connections)),
        ..whole
    }
}

fn is_same(one: &Reached, other: &Reached) -> bool {
    (&one.host, one.port) == (&other.host, other.port)
}

fn sum(one: &Reached, other: &Reached) -> Reached {
    Reached {
        host: one.host.clone(),
        port: one.port,
        connections: one.connections.saturating_add(other.connections),
        sent_bytes: one.sent_bytes.saturating_add(other.sent_bytes),
        received_bytes: one.received_bytes.saturating_add(other.received_bytes),
    }
}

/// Keeps the newest numbers of a line.
pub(crate) fn note(ledger: &mut Vec<Reached>, line: Reached) {
    match ledger.iter().position(|known| is_same(known, &line)) {
        Some(place) => ledger[place] = line,
        None if ledger.len() < MAX_LEDGER => ledger.push(line),
        None => match ledger.iter_mut().find(|known| known.host == OTHERS) {
            Some(others) => *others = sum(others, &line),
            None => ledger.push(Reached { host: OTHERS.to_owned(), port: 0, ..line }),
        },
    }
}
