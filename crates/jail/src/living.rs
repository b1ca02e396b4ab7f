//! The keeper of a living sandbox: stands it up, starts execs in it, holds their output, and ends it.
//!
//! It is started by an engine but is nobody's child. Once the sandbox stands it listens on a socket in the sandbox's
//! directory, and lives until it is told to end, until time runs out, or until init dies.

mod clients;
mod disk;
mod exec;
mod group;
mod house;
mod inside;
pub mod log;
mod lookout;
mod program;
mod records;
mod root;
mod shepherd;
mod streams;
pub mod talk;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use belljar_sys::process::{
    Cloned, NEW_USER, NEW_UTS, SingleThreaded, clone, exit_now, forget_arguments, join,
};
use belljar_sys::{Errno, Result, fd};
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior};

use crate::keeper::{self, SETUP_LIMIT, tell};
use crate::report::{At, Failed, Message, Note, Started, Step, Stopped, arm};
use crate::wire::{read_memory, receive_secrets};
use crate::{ids, readback};
use group::Cell;
use house::House;
use talk::LivingPlan;

/// The keeper's whole life. The answer is the exit code.
pub fn main() -> u8 {
    let Ok(control) = keeper::start() else {
        return 1;
    };
    let born = forget_arguments().and_then(|()| SingleThreaded::prove()).and_then(|single| {
        // A process of nobody's: whoever started us waits for the one that leaves here.
        match clone(&single, 0, None)? {
            Cloned::Parent { .. } => exit_now(0),
            Cloned::Child => Ok(single),
        }
    });
    let Ok(single) = born else {
        return 1;
    };
    match carry_out(&single, &control) {
        Ok(()) => 0,
        Err(failed) => u8::from(tell(&control, &Message::Failed(failed), &[]).is_err()),
    }
}

/// Stands it up, tells so, and lives in it.
fn carry_out(single: &SingleThreaded, control: &OwnedFd) -> std::result::Result<(), Failed> {
    raise_descriptor_limit().at(Step::Plan)?;
    // The engine wants to know who we are: names and scopes are made after us.
    let pid = std::process::id().to_le_bytes();
    fd::send(control, &pid, &[]).at(Step::Plan)?;
    let (living, placed) = receive(control).at(Step::Plan)?;
    arm(living.plan.fault);
    Ok::<(), Errno>(()).at(Step::Plan)?;
    let sealed = living.plan.sealed;
    let mut house = stand(single, living, placed, control)?;
    // Not before there is an init, which has a copy of all that was here when it was made.
    house.keep_secrets(receive_secrets(control, sealed).at(Step::Egress)?);
    let mut checks = house.try_payload()?;
    checks.extend(house.open_door()?);
    house.hold_files().at(Step::Plan)?;
    // Whoever comes after an engine that is gone must not find us beside one of its own.
    if is_gone(control) {
        return Err(Stopped::new(Step::Plan, Errno::PIPE).into());
    }
    house.listen(&checks).at(Step::Plan)?;
    // An engine that dies only now finds us all the same.
    tell(control, &Message::Started(Started { checks }), &[]).ok();
    house.live();
    Ok(())
}

/// The plan, and what its placed files hold.
fn receive(control: &OwnedFd) -> Result<(LivingPlan, Vec<OwnedFd>)> {
    let mut word = [0; 8];
    let received = fd::receive(control, &mut word)?;
    let mut fds = received.fds.into_iter();
    let living: LivingPlan = read_memory(&fds.next().ok_or(Errno::CANCELED)?)?;
    let placed: Vec<OwnedFd> = fds.collect();
    if living.plan.placed.len() == placed.len() { Ok((living, placed)) } else { Err(Errno::PROTO) }
}

fn is_gone(control: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags};
    let mut ends = [PollFd::new(control, PollFlags::empty())];
    let asked = keeper::wait(&mut ends, Duration::ZERO);
    asked.is_ok() && ends[0].revents().contains(PollFlags::HUP)
}

/// Every exec has some descriptors here.
fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 4096;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(WANTED, |most| most.min(WANTED));
    if current.is_some_and(|now| now < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    }
    Ok(())
}

/// Makes the cgroup, and init in its namespaces; returns when init has no privileges left.
fn stand(
    single: &SingleThreaded,
    living: LivingPlan,
    placed: Vec<OwnedFd>,
    control: &OwnedFd,
) -> std::result::Result<House, Failed> {
    let cell = Cell::create(living.plan.cgroup.as_ref())?;
    let (notes, their_notes) = crate::wire::control_pair().at(Step::Clone)?;
    let (commands, their_commands) = crate::wire::control_pair().at(Step::Clone)?;
    rustix::net::sockopt::set_socket_passcred(&notes, true).at(Step::Clone)?;
    let flags = ids::prepare(&living.plan).at(Step::Clone)? | belljar_sys::process::NEW_NET;
    let nothing = crate::init::null().at(Step::Clone)?;
    // Only a dumpable process lets its own user map its ids.
    set_dumpable_behavior(DumpableBehavior::Dumpable).at(Step::Clone)?;
    let ends = inside::Ends { notes: their_notes, commands: their_commands, placed };
    let (init, init_fd) = match clone(single, flags, None).at(Step::Clone)? {
        Cloned::Child => {
            drop((notes, commands));
            keeper::let_go_of(control, &nothing);
            inside::run(single, &living, ends)
        }
        Cloned::Parent { child, pidfd } => (child, pidfd),
    };
    drop(ends);
    set_dumpable_behavior(DumpableBehavior::NotDumpable).at(Step::Clone)?;
    // While it can still be looked into.
    let naming = ids::naming(init).at(Step::Clone)?;
    let init = Init { pid: init, pidfd: init_fd, notes, commands, naming };
    ids::map(init.pid, &living.plan.identity).at(Step::IdMap)?;
    // While it can be looked into: for the way out, now or later.
    let namespaces = ids::namespaces(init.pid).at(Step::Clone)?;
    rustix::io::write(&init.commands, b"g").at(Step::IdMap)?;
    init.hear(Note::Arrived)?;
    let pid = init.pid.as_raw_nonzero().get().cast_unsigned();
    cell.admit(pid).at(Step::Cgroup)?;
    let doors = cell.visit().at(Step::Cgroup)?;
    fd::send(&init.commands, b"d", &inside::borrowed(&doors)).at(Step::CgroupNamespace)?;
    init.hear(Note::Standing)?;
    cell.dismiss(pid).at(Step::Cgroup)?;
    let outside = readback::own_namespaces();
    House::new(living, cell, init, outside, namespaces).at(Step::Plan).map_err(Failed::from)
}

/// Process 1 of the sandbox. Dropping it kills it, and with it all in there.
#[derive(Debug)]
pub(crate) struct Init {
    pid: Pid,
    pidfd: OwnedFd,
    notes: OwnedFd,
    commands: OwnedFd,
    /// Its user and UTS namespaces.
    naming: (OwnedFd, OwnedFd),
}

impl Init {
    fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Gives it another host name. Init has no privilege left for that; whoever made its user namespace has, in there.
    fn rename(&self, name: &str) -> Result<()> {
        let (user, uts) = &self.naming;
        let single = SingleThreaded::prove()?;
        match clone(&single, 0, None)? {
            Cloned::Child => {
                let named = join(user.as_fd(), NEW_USER)
                    .and_then(|()| join(uts.as_fd(), NEW_UTS))
                    .and_then(|()| rustix::system::sethostname(name.as_bytes()));
                exit_now(u8::from(named.is_err()).into())
            }
            Cloned::Parent { child, .. } => {
                let ended = rustix::io::retry_on_intr(|| {
                    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
                })?;
                let code = ended.and_then(|(_, status)| status.exit_status());
                if code == Some(0) { Ok(()) } else { Err(Errno::PERM) }
            }
        }
    }

    /// Waits for one note while it is made.
    fn hear(&self, wanted: Note) -> std::result::Result<(), Failed> {
        use rustix::event::{PollFd, PollFlags};
        let mut fds =
            [PollFd::new(&self.notes, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
        keeper::wait(&mut fds, SETUP_LIMIT).at(Step::Clone)?;
        if fds[0].revents().is_empty() {
            let died = !fds[1].revents().is_empty();
            let errno = if died { Errno::CHILD } else { Errno::TIMEDOUT };
            return Err(Stopped::new(Step::Clone, errno).into());
        }
        let mut bytes = [0; Note::BYTES];
        let received = fd::receive(&self.notes, &mut bytes).at(Step::Clone)?;
        match Note::from_bytes(&bytes[..received.length]) {
            Some(note) if received.length == Note::BYTES && note == wanted => Ok(()),
            Some(Note::Stopped(stopped)) => Err(stopped.into()),
            _ => Err(Stopped::new(Step::Clone, Errno::CHILD).into()),
        }
    }

    /// Kills it and reaps it; its namespace goes along.
    fn end(&self) {
        belljar_sys::process::kill(self.pidfd.as_fd()).ok();
        use belljar_sys::process::{Wait, reap_any};
        while let Ok(Some(_)) = reap_any(Wait::Block) {}
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        self.end();
    }
}

/// The time until something, as poll takes it.
pub(crate) fn soonest(all: impl IntoIterator<Item = Option<Duration>>) -> Option<Duration> {
    all.into_iter().flatten().min()
}
