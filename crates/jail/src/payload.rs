//! The payload: locks itself down, shows itself, waits to be released, becomes the program.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use belljar_sys::process::{
    execute, exit_now, forget_keyring, renew_thread_id, reset_signals, unshare_cgroup, unshare_net,
};
use belljar_sys::{Errno, Result, fd, net};
use rustix::fs::AtFlags;
use rustix::process::DumpableBehavior;

use crate::lockdown;
use crate::plan::{DELIVERY_FD, Files, Hold, Invocation, MAX_DELIVERY_BYTES, Plan, Program};
use crate::report::{At, Note, Ready, Step, Stopped};
use crate::wire::Joining;

/// The namespaces that a Ready note tells of, in its order.
pub(crate) const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];

/// How often, and how far apart, a descriptor is offered when too many are under way: ten seconds.
const SEND_ATTEMPTS: usize = 2000;
const SEND_PAUSE_MS: i64 = 5;

/// The payload's descriptors. All of them are close-on-exec.
#[derive(Debug)]
pub(crate) struct Ends {
    pub notes: OwnedFd,
    /// From the keeper: first the doors of the cgroup, then the release. Closed when it gives up.
    pub gate: OwnedFd,
    /// To init: our network namespace, or which process we are. From it: first "the root stands", with the procfs to look at
    /// ourselves through; then "I have no privileges left". Closed when init is gone.
    pub orders: OwnedFd,
    pub stdio: [OwnedFd; 3],
}

/// Becomes the program, or tells why not. Never returns.
pub(crate) fn run(plan: &Plan, ends: &Ends) -> ! {
    let stopped = match lock_and_wait(plan, ends).and_then(|program| start(plan, ends, &program)) {
        Ok(never) => match never {},
        Err(stopped) => stopped,
    };
    give_up(&ends.notes, stopped)
}

/// The same for a zygote's copy, which is in the user and pid namespaces only so far. Never returns.
pub(crate) fn join(joining: Joining) -> ! {
    let Joining { plan, namespaces, ends, birthplace } = joining;
    crate::report::arm(plan.fault);
    let joined = namespaces
        .rest
        .iter()
        .try_for_each(|(one, kind)| belljar_sys::process::join(one.as_fd(), *kind).at(Step::Fork));
    drop((namespaces, birthplace));
    let arrived = joined.and_then(|()| match plan.is_moved() {
        true => rustix::io::write(&ends.notes, &Note::Arrived.to_bytes()).map(drop).at(Step::Fork),
        false => Ok(()),
    });
    match arrived {
        Ok(()) => run(&plan, &ends),
        Err(stopped) => give_up(&ends.notes, stopped),
    }
}

/// If the keeper is gone there is nobody to tell; init's death takes us along anyway.
pub(crate) fn give_up(notes: &OwnedFd, stopped: Stopped) -> ! {
    rustix::io::write(notes, &Note::Stopped(stopped).to_bytes()).ok();
    exit_now(127)
}

/// What a copy of a zygote does to be the interpreter that it is a copy of. Does not return.
pub type Interpreter = extern "C" fn();

static INTERPRETER: OnceLock<Interpreter> = OnceLock::new();

/// Says that this process is a zygote's: its payloads are not executed, they are there.
pub(crate) fn set_interpreter(interpreter: Interpreter) {
    INTERPRETER.get_or_init(|| interpreter);
}

/// Becomes what the plan says, now that the keeper has found the barriers in place.
fn start(
    plan: &Plan,
    ends: &Ends,
    program: &Exec,
) -> std::result::Result<std::convert::Infallible, Stopped> {
    match plan.hold {
        None => wait_for_release(&ends.gate).at(Step::ReadBack)?,
        Some(Hold::Exec) => {
            let delivered = await_invocation(&ends.gate).at(Step::ReadBack)?;
            let Invocation { argv, environment } = delivered;
            let program = Program { argv, environment, ..plan.program.clone() };
            return execute_now(&Exec::new(&program).at(Step::Exec)?);
        }
        Some(Hold::Started) => {
            wait_for_release(&ends.gate).at(Step::ReadBack)?;
            fd::place_at(&ends.gate, DELIVERY_FD).at(Step::Descriptors)?;
        }
        Some(Hold::Forked) => {
            wait_for_release(&ends.gate).at(Step::ReadBack)?;
            return become_interpreter(plan, &ends.gate);
        }
    }
    execute_now(program)
}

fn execute_now(program: &Exec) -> std::result::Result<std::convert::Infallible, Stopped> {
    Err(Stopped::new(Step::Exec, execute(&program.path, &program.argv, &program.environment)))
}

/// There is no exec to close what is close-on-exec, nor to name the process.
fn become_interpreter(
    plan: &Plan,
    gate: &OwnedFd,
) -> std::result::Result<std::convert::Infallible, Stopped> {
    let interpreter = INTERPRETER.get().ok_or(Stopped::new(Step::Exec, Errno::NOEXEC))?;
    let name = plan.program.path.file_name().map_or(&b"program"[..], OsStrExt::as_bytes);
    let name =
        CString::new(&name[..name.len().min(15)]).map_err(|_| Errno::INVAL).at(Step::Exec)?;
    rustix::thread::set_name(&name).at(Step::Exec)?;
    fd::place_at(gate, DELIVERY_FD).at(Step::Descriptors)?;
    fd::close_inherited(DELIVERY_FD.cast_unsigned() + 1).at(Step::Descriptors)?;
    renew_thread_id();
    // As after an exec: the program may look into itself, in /proc too. A zygote's copies may not before.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).at(Step::Exec)?;
    interpreter();
    exit_now(1)
}

fn lock_and_wait(plan: &Plan, ends: &Ends) -> std::result::Result<Exec, Stopped> {
    rustix::thread::set_name(c"belljar-payload").at(Step::Session)?;
    // Prepared now: after the filter the fewer calls the better.
    let program = Exec::new(&plan.program).at(Step::Exec)?;
    start_session().at(Step::Session)?;
    join_cgroup(&ends.gate).at(Step::JoinCgroup)?;
    if matches!(plan.files, Files::Root(_)) {
        // After joining, so that the group looks like the root of all groups from inside.
        unshare_cgroup().at(Step::CgroupNamespace)?;
        if plan.is_joined() {
            meet_init(&ends.orders).at(Step::Fork)?;
        } else if plan.has_network_early() {
            net::loopback_up().map(drop).at(Step::Loopback)?;
        } else {
            make_network(&ends.orders).at(Step::Loopback)?;
        }
    }
    for (stream, number) in ends.stdio.iter().zip(0..) {
        fd::place_at(stream, number).at(Step::Descriptors)?;
    }
    // So far beside init, which has built the root meanwhile.
    let proc = await_root(&ends.orders);
    fd::close_all_on_exec().at(Step::Descriptors)?;
    // Before the lockdown, which may close /proc to us; what is opened after this closes on exec.
    let mut ready = Ready {
        namespaces: own_namespaces(&proc),
        stray_fds: stray_fds(&proc),
        ..Ready::default()
    };
    if let Some(lockdown) = &plan.lockdown {
        let refused = lockdown::lock_down(lockdown, &plan.identity)?;
        ready.landlock_refuses = refused.files;
        ready.scopes_refuse = refused.neighbours;
    }
    // As the program, not as init: a directory that it may not enter is found here.
    rustix::process::chdir(&plan.program.directory).at(Step::Directory)?;
    // As the program's own id, whose keyring it then is.
    forget_keyring().at(Step::Session)?;
    let listener = match &plan.lockdown {
        Some(lockdown) => lockdown::install_filter(lockdown).at(Step::Seccomp)?,
        None => None,
    };
    if wait_for_release(&ends.orders).is_err() {
        exit_now(1); // init is gone, and has said why if it could
    }
    // The listener is the keeper's from here on: it closes here, so that no program ever holds it.
    // Nothing is allocated on the way: a call that the request denies has nobody to answer it yet.
    let bytes = Note::Ready(ready).to_bytes();
    match &listener {
        Some(listener) => send_patiently(&ends.notes, &bytes, listener).at(Step::Exec)?,
        None => fd::send(&ends.notes, &bytes, &[]).at(Step::Exec)?,
    }
    Ok(program)
}

/// The kernel counts the descriptors that all of a user's processes have under way, against our own limit,
/// which is the program's by now: with many runs at once they may be too many for a moment.
pub(crate) fn send_patiently(notes: &OwnedFd, bytes: &[u8], listener: &OwnedFd) -> Result<()> {
    for _ in 0..SEND_ATTEMPTS {
        match fd::send(notes, bytes, &[listener.as_fd()]) {
            Err(Errno::TOOMANYREFS) => crate::keeper::pause(SEND_PAUSE_MS),
            result => return result,
        }
    }
    Err(Errno::TOOMANYREFS)
}

pub(crate) fn start_session() -> Result<()> {
    rustix::process::setsid()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    reset_signals()
}

/// Waits until init has built the root and moved us into it, for the procfs that comes with the word.
fn await_root(orders: &OwnedFd) -> OwnedFd {
    let mut word = [0u8; 1];
    let received = fd::receive(orders, &mut word).ok();
    let proc = received.and_then(|message| message.fds.into_iter().next());
    proc.unwrap_or_else(|| exit_now(1)) // init is gone, and has said why if it could
}

/// Tells init, which did not make us, whom to look after.
fn meet_init(orders: &OwnedFd) -> Result<()> {
    match fd::send(orders, &std::process::id().to_le_bytes(), &[]) {
        Err(Errno::PIPE | Errno::CONNRESET) => exit_now(1), // as below
        result => result,
    }
}

/// A network of our own, with nothing in it but loopback; init is told, and follows.
fn make_network(orders: &OwnedFd) -> Result<()> {
    unshare_net()?;
    let namespace = net::loopback_up()?;
    match fd::send(orders, b"n", &[namespace.as_fd()]) {
        Err(Errno::PIPE | Errno::CONNRESET) => exit_now(1), // as below
        result => result,
    }
}

/// Moves through the doors of v1 that the keeper opened; in v2 we were born where we belong.
pub(crate) fn join_cgroup(gate: &OwnedFd) -> Result<()> {
    let mut word = [0u8; 1];
    let received = fd::receive(gate, &mut word)?;
    if received.length == 0 {
        return Err(Errno::CANCELED);
    }
    received.fds.iter().try_for_each(|door| rustix::io::write(door, b"0").map(drop))
}

/// The inodes that name our namespaces; zero where one cannot be seen.
pub(crate) fn own_namespaces(proc: &OwnedFd) -> [u64; 7] {
    NAMESPACES.map(|name| {
        rustix::fs::statat(proc, format!("self/ns/{name}"), AtFlags::empty())
            .map_or(0, |stat| stat.st_ino)
    })
}

/// How many descriptors beyond the standard three would pass through exec.
pub(crate) fn stray_fds(proc: &OwnedFd) -> u64 {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let list = rustix::fs::openat(proc, "self/fd", flags, rustix::fs::Mode::empty());
    let Ok(entries) = list.and_then(rustix::fs::Dir::new) else {
        return u64::MAX;
    };
    let numbers =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
    numbers.filter(|number| *number > 2 && fd::passes_exec(*number)).count() as u64
}

pub(crate) fn wait_for_release(gate: &OwnedFd) -> Result<()> {
    let mut word = [0u8; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(gate.as_fd(), &mut word))? {
        1 => Ok(()),
        _ => Err(Errno::CANCELED),
    }
}

/// The release of a program that was not known before.
fn await_invocation(gate: &OwnedFd) -> Result<Invocation> {
    let mut bytes = vec![0; MAX_DELIVERY_BYTES];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(gate, &mut bytes[..]))?;
    Invocation::from_bytes(&bytes[..length]).ok_or(Errno::CANCELED)
}

/// The program in the form that exec takes.
struct Exec {
    path: CString,
    argv: Vec<CString>,
    environment: Vec<CString>,
}

impl Exec {
    fn new(program: &Program) -> Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        Ok(Self {
            path: text(program.path.as_os_str().as_bytes())?,
            argv: program.argv.iter().map(|one| text(one.as_bytes())).collect::<Result<_>>()?,
            environment: program
                .environment
                .iter()
                .map(|(name, value)| text(format!("{name}={value}").as_bytes()))
                .collect::<Result<_>>()?,
        })
    }
}
