//! Init of a living sandbox: builds the root, gives up its privileges, and then starts a shepherd for each exec.
//!
//! It reaps what is left to it. A process that no living shepherd looks after is something that an exec left behind,
//! which may go on; but when a shepherd was killed, nobody can tell any more what belonged to its exec, so all such
//! processes end with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_sys::process::{
    Cloned, SingleThreaded, Status, Wait, clone, exit_now, init_signals, kill_everyone, reap_any,
    set_gid, set_uid, unshare_cgroup,
};
use belljar_sys::{Errno, Result, fd, net};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{RawPid, Signal};

use super::program::{self, Part, Task};
use super::root::{self, Built};
use super::shepherd;
use super::talk::LivingPlan;
use crate::plan::{Files, Identity, Plan, Root};
use crate::report::{At, Note, Step, Stopped};
use crate::{init, lockdown, tree};

/// What the keeper tells init, in one byte; the descriptors of a task come with it.
pub(crate) const EXEC: u8 = b'x';
pub(crate) const EXEC_ON_TERMINAL: u8 = b't';
pub(crate) const AGENT: u8 = b'a';
/// Ask all to end: SIGTERM.
pub(crate) const ASK: u8 = b's';
/// End all.
pub(crate) const END: u8 = b'e';
/// What init tells after [`ASK`]: nobody is left.
pub(crate) const NOBODY: &[u8] = b"n";

/// Init's descriptors.
#[derive(Debug)]
pub(crate) struct Ends {
    pub notes: OwnedFd,
    /// From the keeper. Closed when it dies.
    pub commands: OwnedFd,
    /// What the placed files of the plan hold.
    pub placed: Vec<OwnedFd>,
}

/// Runs the sandbox from inside. Never returns.
pub(crate) fn run(single: &SingleThreaded, living: &LivingPlan, ends: Ends) -> ! {
    let Ends { notes, commands, placed } = ends;
    let plan = &living.plan;
    let agent_plan = plan_of_agents(living);
    let stood = stand(plan, &notes, &commands, placed);
    let lived = stood.and_then(|(built, signals)| {
        Init {
            single,
            plan,
            agent_plan: &agent_plan,
            built,
            notes: &notes,
            commands: &commands,
            signals,
            shepherds: Vec::new(),
            asked: false,
        }
        .live()
        .at(Step::Fork)
    });
    if let Err(stopped) = lived {
        rustix::io::write(&notes, &Note::Stopped(stopped).to_bytes()).ok();
        exit_now(1);
    }
    exit_now(0)
}

/// Agents are locked down like programs, but their filter is their own: it lets through what the engine has them do,
/// watching directories included, and all else is refused without a word to anybody.
fn plan_of_agents(living: &LivingPlan) -> Plan {
    let mut plan = living.plan.clone();
    if let Some(lockdown) = &mut plan.lockdown {
        lockdown.filter.clone_from(&living.agent_filter);
        lockdown.listen = None;
    }
    plan
}

/// Everything up to the point where execs may come.
fn stand(
    plan: &Plan,
    notes: &OwnedFd,
    commands: &OwnedFd,
    placed: Vec<OwnedFd>,
) -> std::result::Result<(Built, OwnedFd), Stopped> {
    rustix::thread::set_name(c"belljar-init").at(Step::Clone)?;
    init::await_go(commands).at(Step::IdMap)?;
    init::die_with_keeper().at(Step::Become)?;
    let signals = init_signals().at(Step::Fork)?;
    let Files::Root(layout) = &plan.files else {
        return Err(Stopped::new(Step::Plan, Errno::INVAL));
    };
    let built = build(plan, layout)?;
    place_all(plan, placed)?;
    net::loopback_up().at(Step::Loopback)?;
    rustix::io::write(notes, &Note::Arrived.to_bytes()).at(Step::CgroupNamespace)?;
    enter_cgroup_namespace(commands).at(Step::CgroupNamespace)?;
    lock_down().at(Step::InitLockdown)?;
    rustix::io::write(notes, &Note::Standing.to_bytes()).at(Step::InitLockdown)?;
    Ok((built, signals))
}

fn build(plan: &Plan, layout: &Root) -> std::result::Result<Built, Stopped> {
    let sources = crate::root::open_sources(layout, None)?;
    let layers = root::open_layers(&layout.trees)?;
    if let Identity::Mapped { inside, .. } = plan.identity {
        // What is mounted from here on is written by this id, and by no other.
        set_gid(inside).at(Step::Become)?;
        set_uid(inside).at(Step::Become)?;
    }
    // Changing ids made the kernel forget both.
    init::die_with_keeper().at(Step::Become)?;
    rustix::system::sethostname(layout.hostname.as_bytes()).at(Step::Hostname)?;
    root::build(layout, &sources, &layers)
}

/// Puts files into the finished root: into its memory, where no program has been yet.
fn place_all(plan: &Plan, contents: Vec<OwnedFd>) -> std::result::Result<(), Stopped> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open("/", flags, Mode::empty()).at(Step::Placed)?;
    for (index, (file, source)) in plan.placed.iter().zip(&contents).enumerate() {
        let placed = init::place(file, source, top.as_fd(), false, &Identity::Caller);
        placed.at_item(Step::Placed, index)?;
    }
    Ok(())
}

/// Makes the sandbox's cgroup look like the root of all, to us and all we start: a namespace is rooted where its maker
/// is, so we go there for a moment. We do not stay: what runs out of memory in there is never us.
fn enter_cgroup_namespace(commands: &OwnedFd) -> Result<()> {
    let mut word = [0; 1];
    let received = fd::receive(commands, &mut word)?;
    if received.length != 1 {
        return Err(Errno::CANCELED);
    }
    let (inward, outward) = received.fds.split_at(received.fds.len() / 2);
    let go = |door: &OwnedFd| rustix::io::write(door, b"0").map(drop);
    inward.iter().try_for_each(go)?;
    unshare_cgroup()?;
    outward.iter().try_for_each(go)
}

/// From here on we need no privilege, and nothing that we start has any to lose.
fn lock_down() -> Result<()> {
    for number in 0..3 {
        fd::place_at(init::null()?, number)?;
    }
    lockdown::drop_bounding_set()?;
    lockdown::drop_capabilities()?;
    lockdown::forbid_new_privileges()
}

struct Init<'a> {
    single: &'a SingleThreaded,
    plan: &'a Plan,
    agent_plan: &'a Plan,
    built: Built,
    notes: &'a OwnedFd,
    commands: &'a OwnedFd,
    signals: OwnedFd,
    shepherds: Vec<RawPid>,
    /// All were asked to end, and the keeper wants to know when they have.
    asked: bool,
}

impl Init<'_> {
    fn live(&mut self) -> Result<()> {
        loop {
            let mut fds = [
                PollFd::new(self.commands, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            let fired = fds.map(|one| !one.revents().is_empty());
            if fired[1] {
                self.built.tripwires.attend_all(self.notes);
                self.reap()?;
            }
            if fired[0] && !self.obey()? {
                break;
            }
        }
        kill_everyone(Signal::KILL.as_raw())?;
        while reap_one(Wait::Block)?.is_some() {}
        Ok(())
    }

    /// Does what the keeper says; `false` when that is to end, or when it is gone.
    fn obey(&mut self) -> Result<bool> {
        let mut word = [0; 1];
        let received = fd::receive(self.commands, &mut word)?;
        if received.length != 1 {
            return Ok(false);
        }
        let part = match word[0] {
            EXEC => Part::Pipes,
            EXEC_ON_TERMINAL => Part::Terminal,
            AGENT => Part::Agent,
            ASK => {
                kill_everyone(Signal::TERM.as_raw())?;
                self.asked = true;
                self.reap()?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let Some(task) = Task::from_fds(part, received.fds) else {
            return Ok(false);
        };
        self.start(task);
        Ok(true)
    }

    /// Starts a shepherd. If that cannot be, its line is closed, which tells the keeper.
    fn start(&mut self, task: Task) {
        // Each exec is told of what it opens, though another did before.
        self.built.tripwires.set_again();
        let plan = if task.part == Part::Agent { self.agent_plan } else { self.plan };
        match clone(self.single, 0, None) {
            Ok(Cloned::Child) => shepherd::run(self.single, plan, &self.built, task),
            Ok(Cloned::Parent { child, .. }) => self.shepherds.push(child.as_raw_nonzero().get()),
            Err(errno) => program::tell_stopped(&task.line, Stopped::new(Step::Fork, errno)),
        }
    }

    /// Reaps those that have ended.
    fn reap(&mut self) -> Result<()> {
        let mut discard = [0u8; 128];
        match rustix::io::read(&self.signals, &mut discard) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        let mut killed = false;
        while let Some((pid, status)) = reap_one(Wait::Look)? {
            if let Some(place) = self.shepherds.iter().position(|one| *one == pid) {
                self.shepherds.swap_remove(place);
                killed |= status != Status::Exited(0);
            }
        }
        if killed {
            tree::end_all_but(&self.shepherds);
        }
        let alone = reap_any(Wait::Look).is_err_and(|errno| errno == Errno::CHILD);
        if self.asked && alone {
            self.asked = false;
            fd::send(self.notes, NOBODY, &[])?;
        }
        Ok(())
    }
}

fn reap_one(wait: Wait) -> Result<Option<(RawPid, Status)>> {
    match reap_any(wait) {
        Err(Errno::CHILD) => Ok(None),
        result => Ok(result?.map(|ended| (ended.pid, ended.status))),
    }
}

/// Descriptors as borrowed ones, to be sent.
pub(crate) fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
