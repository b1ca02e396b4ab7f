//! The payload of an exec in a living sandbox: the same steps as a run's ([`crate::payload`]), in a root that stands.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_sys::process::{execute, exit_now, forget_keyring};
use belljar_sys::{Errno, Result, fd, pty};

use super::root::Built;
use super::talk::Order;
use crate::payload::{
    give_up, join_cgroup, own_namespaces, send_patiently, start_session, stray_fds,
    wait_for_release,
};
use crate::plan::{CgroupVersion, Hierarchy, Plan};
use crate::report::{At, Note, Ready, Step, Stopped};
use crate::wire::read_memory;
use crate::{agent, lockdown};

/// What a payload becomes, and what it speaks through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A program, with pipes as its standard streams.
    Pipes,
    /// A program on a terminal.
    Terminal,
    /// A file agent: no program at all.
    Agent,
}

/// The descriptors of one payload and its shepherd.
#[derive(Debug)]
pub(crate) struct Task {
    pub part: Part,
    /// Notes to the keeper, orders from it.
    pub line: OwnedFd,
    /// From the keeper: the doors of the cgroup, then the release.
    pub gate: Option<OwnedFd>,
    /// The program's [`Order`], as the keeper got it.
    order: Option<OwnedFd>,
    /// Standard streams, or the agent's socket.
    pub streams: Vec<OwnedFd>,
}

impl Task {
    pub(crate) fn from_fds(part: Part, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (line, gate) = (fds.next()?, fds.next()?);
        let order = if part == Part::Agent { None } else { Some(fds.next()?) };
        let streams: Vec<OwnedFd> = fds.collect();
        let wanted = match part {
            Part::Pipes => 3,
            Part::Terminal => 0,
            Part::Agent => 1,
        };
        (streams.len() == wanted).then_some(Self { part, line, gate: Some(gate), order, streams })
    }
}

/// Tells the keeper where it stopped; one that is gone needs no telling.
pub(crate) fn tell_stopped(line: &OwnedFd, stopped: Stopped) {
    rustix::io::write(line, &Note::Stopped(stopped).to_bytes()).ok();
}

/// Becomes the program, or tells why not. Never returns.
pub(crate) fn run(plan: &Plan, built: &Built, task: Task, terminal: Option<OwnedFd>) -> ! {
    let Task { part, line, gate, order, mut streams } = task;
    let ends = Ends { line: &line, terminal, streams: &streams };
    let stopped = match lock_and_wait(plan, built, &ends, order.as_ref(), gate.as_ref()) {
        Ok(Some(program)) => Stopped::new(Step::Exec, program.execute()),
        Ok(None) => match streams.pop().filter(|_| part == Part::Agent) {
            Some(socket) => become_agent(socket),
            None => Stopped::new(Step::Exec, Errno::INVAL),
        },
        Err(stopped) => stopped,
    };
    give_up(&line, stopped)
}

/// No program, so nothing is closed by an exec: all but the socket goes now.
fn become_agent(socket: OwnedFd) -> ! {
    match fd::keep_only(socket) {
        Ok(socket) => agent::serve(socket),
        Err(_) => exit_now(1),
    }
}

struct Ends<'a> {
    line: &'a OwnedFd,
    terminal: Option<OwnedFd>,
    streams: &'a [OwnedFd],
}

fn lock_and_wait(
    plan: &Plan,
    built: &Built,
    ends: &Ends<'_>,
    order: Option<&OwnedFd>,
    gate: Option<&OwnedFd>,
) -> std::result::Result<Option<Program>, Stopped> {
    rustix::thread::set_name(c"belljar-payload").at(Step::Session)?;
    let gate = gate.ok_or(Stopped::new(Step::Plan, Errno::PROTO))?;
    // Prepared now: after the filter the fewer calls the better.
    let order: Option<Order> = order.map(read_memory).transpose().at(Step::Plan)?;
    let program = order.as_ref().map(Program::new).transpose().at(Step::Exec)?;
    start_session().at(Step::Session)?;
    if is_moved(plan) {
        rustix::io::write(ends.line, &Note::Arrived.to_bytes()).at(Step::JoinCgroup)?;
    }
    join_cgroup(gate).at(Step::JoinCgroup)?;
    place_streams(ends, order.as_ref()).at(Step::Descriptors)?;
    fd::close_all_on_exec().at(Step::Descriptors)?;
    let mut ready = Ready {
        namespaces: own_namespaces(&built.proc),
        stray_fds: stray_fds(&built.proc),
        ..Ready::default()
    };
    // Landlock's witness is named from here.
    rustix::process::fchdir(&built.corner).at(Step::Landlock)?;
    if let Some(lockdown) = &plan.lockdown {
        let refused = lockdown::lock_down(lockdown, &plan.identity)?;
        ready.landlock_refuses = refused.files;
        ready.scopes_refuse = refused.neighbours;
    }
    let directory = order.as_ref().map_or(Path::new("/"), |one| &one.directory);
    rustix::process::chdir(directory).at(Step::Directory)?;
    forget_keyring().at(Step::Session)?;
    let listener = match &plan.lockdown {
        Some(lockdown) => lockdown::install_filter(lockdown).at(Step::Seccomp)?,
        None => None,
    };
    let bytes = Note::Ready(ready).to_bytes();
    match &listener {
        Some(listener) => send_patiently(ends.line, &bytes, listener).at(Step::Exec)?,
        None => fd::send(ends.line, &bytes, &[]).at(Step::Exec)?,
    }
    wait_for_release(gate).at(Step::ReadBack)?;
    Ok(program)
}

/// It is put into its v2 cgroup by the keeper: what has no privilege cannot be born there.
pub(crate) fn is_moved(plan: &Plan) -> bool {
    let v2 = |one: &Hierarchy| one.version == CgroupVersion::V2;
    plan.cgroup.as_ref().is_some_and(|one| one.hierarchies.iter().any(v2))
}

fn place_streams(ends: &Ends<'_>, order: Option<&Order>) -> Result<()> {
    if let Some(terminal) = &ends.terminal {
        if let Some((rows, columns)) = order.and_then(|order| order.terminal) {
            pty::set_size(terminal, rows, columns)?;
        }
        pty::control(terminal)?;
        return (0..3).try_for_each(|number| fd::place_at(terminal, number));
    }
    let streams = ends.streams.iter().filter(|_| order.is_some());
    streams.zip(0..).try_for_each(|(stream, number)| fd::place_at(stream, number))
}

/// A program in the form that exec takes.
struct Program {
    paths: Vec<CString>,
    argv: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    fn new(order: &Order) -> Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        let paths = order.paths.iter().map(|one| text(one.as_os_str().as_bytes()));
        let argv = order.argv.iter().map(|one| text(one.as_bytes()));
        let variables = order.variables();
        let variables = variables.map(|(name, value)| text(format!("{name}={value}").as_bytes()));
        Ok(Self {
            paths: paths.collect::<Result<_>>()?,
            argv: argv.collect::<Result<_>>()?,
            environment: variables.collect::<Result<_>>()?,
        })
    }

    /// Tries one path after the other, as execvp(3) does. Returns only when none could be executed, with what it was
    /// told of the best of them.
    fn execute(&self) -> Errno {
        let mut refused = Errno::NOENT;
        for path in &self.paths {
            match execute(path, &self.argv, &self.environment) {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS => refused = Errno::ACCESS,
                errno => return errno,
            }
        }
        refused
    }
}
