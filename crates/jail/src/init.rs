//! Init: process 1 of a sandbox. Builds the root, starts the payload, reaps, ends everything, reports.
//!
//! Without a pid namespace (levels none and basic) it is the subreaper of the tree and does the same.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_sys::process::{
    Cloned, Ended, SingleThreaded, Status, Wait, clone, exit_now, init_signals, join_net,
    kill_everyone, reap_any, set_gid, set_uid,
};
use belljar_sys::{Errno, Result, fd, net};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, RawPid, Signal};

use crate::plan::{Files, Identity, Placed, Plan, Root};
use crate::report::{At, Disk, Ending, Note, Step, Stopped};
use crate::tripwire::Tripwires;
use crate::wire::receive_placed;
use crate::{lockdown, payload, results, root, tree};

const COPY_BYTES: usize = 64 << 10;
/// Entries looked at for the longest file; the inode limit is below this unless the operator raised it.
const MAX_ENTRIES: usize = 1 << 20;

/// Init's descriptors.
#[derive(Debug)]
pub(crate) struct Ends {
    pub notes: OwnedFd,
    /// From the keeper: first "your ids are mapped", later "end it". Closed when the keeper dies.
    pub commands: OwnedFd,
    pub placed: Vec<OwnedFd>,
    pub payload: Payload,
    /// Where a root is held ready, if one is.
    pub ready_root: Option<PathBuf>,
}

/// Where the payload comes from.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Init makes it, with these; in v2 it is born into a cgroup.
    Own { gate: OwnedFd, stdio: [OwnedFd; 3], birthplace: Option<OwnedFd> },
    /// It is a zygote's copy, which joins and says so here.
    Joins { orders: OwnedFd },
}

/// Runs the sandbox from inside. Never returns.
pub(crate) fn run(single: &SingleThreaded, plan: &Plan, ends: Ends) -> ! {
    let notes = ends.notes.as_fd().try_clone_to_owned();
    if let (Err(stopped), Ok(notes)) = (live(single, plan, ends), notes) {
        rustix::io::write(&notes, &Note::Stopped(stopped).to_bytes()).ok();
        exit_now(1);
    }
    exit_now(0)
}

fn live(single: &SingleThreaded, plan: &Plan, ends: Ends) -> std::result::Result<(), Stopped> {
    rustix::thread::set_name(c"belljar-init").at(Step::Clone)?;
    // Until then we are dumpable: the files through which our ids are mapped would be root's else.
    await_go(&ends.commands).at(Step::IdMap)?;
    hide(plan).at(Step::Become)?;
    let signals = init_signals().at(Step::Fork)?;
    let Ends { notes, commands, placed, payload, ready_root } = ends;
    let sources = match &plan.files {
        Files::Root(layout) => Some(root::open_sources(layout, ready_root.as_deref())?),
        Files::Host { .. } => None,
    };
    let (child, orders) = match payload {
        Payload::Joins { orders } => (None, orders),
        Payload::Own { gate, stdio, birthplace } => {
            // Made now, still as the caller: so it may be born in its cgroup, and it makes ready while
            // the root is built. It is in our mount namespace, and the pivot moves it along. Not sooner:
            // the keeper is at work on the cgroup, and of two processors one should be free for the
            // newcomer.
            let (orders, their_orders) = crate::wire::control_pair().at(Step::Fork)?;
            let notes = notes.try_clone().map_err(crate::cgroup::errno).at(Step::Fork)?;
            let theirs = payload::Ends { notes, gate, orders: their_orders, stdio };
            let into = birthplace.as_ref().map(AsFd::as_fd);
            match clone(single, 0, into).at(Step::Fork)? {
                Cloned::Child => {
                    drop((orders, commands, placed, sources));
                    payload::run(plan, &theirs)
                }
                Cloned::Parent { child, .. } => (Some(child), orders),
            }
        }
    };
    let (proc, disk, mut wires) = build(plan, sources, &placed)?;
    drop(placed);
    let child = match child {
        Some(child) => {
            order(&orders, b"b", &[proc.as_fd()]).at(Step::Fork)?;
            join_network(plan, &orders).at(Step::Loopback)?;
            lock_init_down(plan).at(Step::InitLockdown)?;
            child
        }
        None => {
            net::loopback_up().at(Step::Loopback)?;
            lock_init_down(plan).at(Step::InitLockdown)?;
            rustix::io::write(&notes, &Note::Standing.to_bytes()).at(Step::Fork)?;
            let child = await_newcomer(&orders, &commands).at(Step::Fork)?;
            order(&orders, b"b", &[proc.as_fd()]).at(Step::Fork)?;
            child
        }
    };
    drop(proc);
    // Only now may the payload show itself: no hostile code runs beside an init with privileges.
    order(&orders, b"g", &[]).at(Step::InitLockdown)?;
    drop(orders);
    let ended = supervise(child, &commands, &signals, &mut wires, &notes)?;
    report(plan, &ended, disk.as_ref(), &notes).at(Step::Fork)
}

/// Waits for the payload to say which process it is, as we number them.
fn await_newcomer(orders: &OwnedFd, commands: &OwnedFd) -> Result<Pid> {
    let mut fds = [PollFd::new(orders, PollFlags::IN), PollFd::new(commands, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
    if fds[0].revents().is_empty() {
        return Err(Errno::CANCELED); // the keeper has given up
    }
    let mut number = [0; 4];
    match fd::receive(orders, &mut number)?.length {
        4 => Pid::from_raw(RawPid::from_le_bytes(number)).ok_or(Errno::PROTO),
        _ => Err(Errno::CHILD), // it died on its way
    }
}

/// Tells the payload to go on. One that has died is found by its end, which tells more than a closed
/// socket does.
fn order(orders: &OwnedFd, word: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    match fd::send(orders, word, fds) {
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        result => result,
    }
}

/// Follows the payload into the network namespace that it has made meanwhile. As with [`order`], one
/// that has died is found by its end.
fn join_network(plan: &Plan, orders: &OwnedFd) -> Result<()> {
    if !matches!(plan.files, Files::Root(_)) || plan.has_network_early() {
        return Ok(());
    }
    let mut word = [0; 1];
    let received = match fd::receive(orders, &mut word) {
        Err(Errno::CONNRESET) => return Ok(()),
        received => received?,
    };
    received.fds.first().map_or(Ok(()), |namespace| join_net(namespace.as_fd()))
}

/// The files that the program will see; the procfs to look through, the disk if it has one, and what tells
/// of secrets.
fn build(
    plan: &Plan,
    sources: Option<root::Sources>,
    placed: &[OwnedFd],
) -> std::result::Result<(OwnedFd, Option<OwnedFd>, Tripwires), Stopped> {
    if let (Files::Root(layout), Some(sources)) = (&plan.files, sources) {
        let built = build_root(plan, layout, &sources, placed)?;
        return Ok((built.proc, Some(built.disk), built.tripwires));
    }
    place_all(plan, placed, rustix::fs::CWD, &plan.identity)?;
    Ok((open_host_proc().at(Step::Proc)?, None, Tripwires::default()))
}

/// Nobody looks into us from now on, and the sandbox never outlives the keeper.
fn hide(plan: &Plan) -> Result<()> {
    match plan.files {
        Files::Root(_) => die_with_keeper(),
        Files::Host { .. } => {
            // No signal at the keeper's death: nobody but us could end the tree then, so we live to
            // see the closed socket and do it.
            rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        }
    }
}

/// Nobody reads init's memory or descriptors, and its namespace never outlives the keeper.
pub(crate) fn die_with_keeper() -> Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
}

pub(crate) fn await_go(commands: &OwnedFd) -> Result<()> {
    let mut word = [0u8; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(commands, &mut word))? {
        1 => Ok(()),
        _ => Err(Errno::CANCELED),
    }
}

fn build_root(
    plan: &Plan,
    layout: &Root,
    sources: &root::Sources,
    placed: &[OwnedFd],
) -> std::result::Result<root::Built, Stopped> {
    if let Identity::Mapped { inside, .. } = plan.identity {
        // With the sources open nothing needs the caller's id any more, and what we make in the root
        // must belong to an id that exists there.
        set_gid(inside).at(Step::Become)?;
        set_uid(inside).at(Step::Become)?;
    }
    // Changing ids made the kernel forget both.
    die_with_keeper().at(Step::Become)?;
    rustix::system::sethostname(layout.hostname.as_bytes()).at(Step::Hostname)?;
    root::build(layout, sources, |top| place_all(plan, placed, top, &Identity::Caller))
}

/// Copies the placed files in. A full disk is found here, before the program runs.
fn place_all(
    plan: &Plan,
    contents: &[OwnedFd],
    top: BorrowedFd<'_>,
    owner: &Identity,
) -> std::result::Result<(), Stopped> {
    for (index, (placed, source)) in plan.placed.iter().zip(contents).enumerate() {
        let absolute = matches!(plan.files, Files::Host { .. });
        place(placed, source, top, absolute, owner).at_item(Step::Placed, index)?;
    }
    Ok(())
}

pub(crate) fn place(
    placed: &Placed,
    source: &OwnedFd,
    top: BorrowedFd<'_>,
    absolute: bool,
    owner: &Identity,
) -> Result<()> {
    let mode = Mode::from_raw_mode(match (placed.executable, placed.read_only) {
        (true, _) => 0o755,
        (false, true) => 0o444,
        (false, false) => 0o644,
    });
    let path: &Path = if absolute { &placed.path } else { root::relative(&placed.path) };
    if !absolute {
        root::make_parent(top, path)?;
    } else if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(crate::cgroup::errno)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut target = File::from(rustix::fs::openat(top, path, flags, mode)?);
    let source = source.try_clone().map_err(crate::cgroup::errno)?;
    copy(&mut File::from(source), &mut target)?;
    if let Identity::Host { uid, gid } = *owner {
        let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
        rustix::fs::fchown(&target, Some(uid), Some(gid))?;
    }
    Ok(())
}

fn copy(source: &mut File, target: &mut File) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let read = source.read(&mut buffer).map_err(crate::cgroup::errno)?;
        if read == 0 {
            return Ok(());
        }
        target.write_all(&buffer[..read]).map_err(crate::cgroup::errno)?;
    }
}

fn open_host_proc() -> Result<OwnedFd> {
    rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

pub(crate) fn null() -> Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Once the root stands init needs no privilege: it waits, and it kills what has its own id.
fn lock_init_down(plan: &Plan) -> Result<()> {
    for number in 0..3 {
        fd::place_at(null()?, number)?;
    }
    if matches!(plan.identity, Identity::Mapped { .. }) {
        lockdown::drop_capabilities()?;
        lockdown::forbid_new_privileges()?;
    }
    Ok(())
}

/// What was seen of the whole tree.
#[derive(Debug, Default)]
struct Seen {
    program: Option<Status>,
    cpu: Duration,
    max_resident_bytes: u64,
}

impl Seen {
    fn add(&mut self, ended: &Ended, program: RawPid) {
        if ended.pid == program {
            self.program = Some(ended.status);
        }
        self.cpu += ended.cpu;
        self.max_resident_bytes = self.max_resident_bytes.max(ended.max_resident_bytes);
    }
}

/// Reaps until the program has ended or the keeper says so; then ends all that is left.
fn supervise(
    program: Pid,
    commands: &OwnedFd,
    signals: &OwnedFd,
    wires: &mut Tripwires,
    notes: &OwnedFd,
) -> std::result::Result<Seen, Stopped> {
    let program = program.as_raw_nonzero().get();
    let mut seen = Seen::default();
    while seen.program.is_none() {
        let mut fds = [PollFd::new(commands, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).at(Step::Fork)?;
        if !fds[0].revents().is_empty() && !place_delivered(commands, notes)? {
            break; // told to end it, or the keeper is gone
        }
        look(signals, program, &mut seen).at(Step::Fork)?;
        wires.attend(notes);
    }
    end_all(program, &mut seen).at(Step::Fork)?;
    // One that was killed while it waited for us has asked all the same.
    wires.attend(notes);
    Ok(seen)
}

/// Reaps those that have ended.
fn look(signals: &OwnedFd, program: RawPid, seen: &mut Seen) -> Result<()> {
    let mut discard = [0u8; 128];
    match rustix::io::read(signals, &mut discard) {
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(errno) => return Err(errno),
    }
    while let Some(ended) = reap(Wait::Look)? {
        seen.add(&ended, program);
    }
    Ok(())
}

/// Places the files of a delivery; `false` if something else was said. Nothing hostile runs yet, and
/// the root is such that only the writable places take them.
fn place_delivered(commands: &OwnedFd, notes: &OwnedFd) -> std::result::Result<bool, Stopped> {
    let Ok(Some((placed, contents))) = receive_placed(commands) else {
        return Ok(false);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open("/", flags, Mode::empty()).at(Step::Placed)?;
    for (index, (file, source)) in placed.iter().zip(&contents).enumerate() {
        place(file, source, top.as_fd(), false, &Identity::Caller).at_item(Step::Placed, index)?;
    }
    rustix::io::write(notes, &Note::Placed.to_bytes()).at(Step::Placed)?;
    Ok(true)
}

/// Kills everything and reaps it. In a pid namespace one call reaches all at once: a process with a
/// pending SIGKILL cannot fork.
fn end_all(program: RawPid, seen: &mut Seen) -> Result<()> {
    if std::process::id() == 1 {
        kill_everyone(Signal::KILL.as_raw())?;
        while let Some(ended) = reap(Wait::Block)? {
            seen.add(&ended, program);
        }
        return Ok(());
    }
    if seen.program.is_none() {
        // Its own status is wanted, so it is killed by name and reaped here, not by the walk.
        if let Some(pid) = Pid::from_raw(program) {
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
        while seen.program.is_none() {
            let Some(ended) = reap(Wait::Block)? else {
                break;
            };
            seen.add(&ended, program);
        }
    }
    if tree::end_descendants() { Ok(()) } else { Err(Errno::BUSY) }
}

/// One ended child; `None` when there is none (left).
fn reap(wait: Wait) -> Result<Option<Ended>> {
    match reap_any(wait) {
        Err(Errno::CHILD) => Ok(None),
        result => result,
    }
}

fn report(plan: &Plan, seen: &Seen, disk: Option<&OwnedFd>, notes: &OwnedFd) -> Result<()> {
    let (exited, value) = match seen.program {
        Some(Status::Exited(code)) => (true, code),
        Some(Status::Signaled(signal)) => (false, signal),
        None => return Err(Errno::CHILD),
    };
    let ending = Ending {
        exited,
        value,
        cpu_us: u64::try_from(seen.cpu.as_micros()).unwrap_or(u64::MAX),
        max_resident_bytes: seen.max_resident_bytes,
        disk: disk.and_then(|disk| measure(disk).ok()),
    };
    let bytes = Note::Ended(ending).to_bytes();
    let kept = disk.filter(|_| plan.keep_workspace);
    let workspace = kept.map(results::open_workspace).transpose()?;
    let fds: Vec<BorrowedFd<'_>> = workspace.iter().map(AsFd::as_fd).collect();
    fd::send(notes, &bytes, &fds)
}

fn measure(disk: &OwnedFd) -> Result<Disk> {
    let all = rustix::fs::fstatvfs(disk)?;
    Ok(Disk {
        bytes_used: (all.f_blocks - all.f_bfree) * all.f_frsize,
        bytes_free: all.f_bfree * all.f_frsize,
        inodes_used: all.f_files - all.f_ffree,
        inodes_free: all.f_ffree,
        largest_file_bytes: largest_file(disk),
    })
}

/// The longest file anywhere below. Names and depth are the program's choice, so nothing is followed,
/// a bounded number of directories waits open, and what lies beyond the bounds is not looked at.
fn largest_file(top: &OwnedFd) -> u64 {
    let mut largest = 0;
    let mut left = MAX_ENTRIES;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let first = rustix::fs::openat(top, ".", flags, Mode::empty());
    let mut waiting: Vec<OwnedFd> = first.into_iter().collect();
    while let Some(directory) = waiting.pop() {
        // What cannot be read is no evidence, and no reason to lose the rest.
        let entries = rustix::fs::Dir::read_from(&directory).into_iter().flatten();
        for entry in entries.map_while(|entry| entry.ok()) {
            left = left.saturating_sub(1);
            let name = entry.file_name();
            if name == c"." || name == c".." || left == 0 {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    largest = largest.max(u64::try_from(stat.st_size).unwrap_or(0));
                }
                // One that the program closed to itself is not looked into, nor one with nothing in it: in
                // a tmpfs each entry adds to the size.
                FileType::Directory if stat.st_size > 0 && waiting.len() < 256 => {
                    waiting.extend(rustix::fs::openat(&directory, name, flags, Mode::empty()).ok());
                }
                FileType::Directory
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
        }
    }
    largest
}
