//! Making, becoming and ending processes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use rustix::process::{Pid, RawPid};

use crate::{Errno, Result, check};

pub const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
pub const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
pub const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;
pub const NEW_NET: u64 = libc::CLONE_NEWNET as u64;
pub const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;
pub const NEW_UTS: u64 = libc::CLONE_NEWUTS as u64;
pub const NEW_CGROUP: u64 = libc::CLONE_NEWCGROUP as u64;

/// CLONE_INTO_CGROUP of `linux/sched.h`, which does not fit libc's `c_int`.
const INTO_CGROUP: u64 = 1 << 33;

/// Which side of a [`clone`] we are on.
#[derive(Debug)]
pub enum Cloned {
    Parent { child: Pid, pidfd: OwnedFd },
    Child,
}

/// Proof that this process has one thread: what makes copying it safe.
///
/// In a copy no other thread exists, so a lock that one held (the allocator's, say) would never be
/// released. A copy has one thread by nature, so the proof stays good in it. It holds as long as its
/// owner starts no thread; the jail, the only user, never does.
#[derive(Debug)]
pub struct SingleThreaded(std::marker::PhantomData<*const ()>);

impl SingleThreaded {
    /// Counts this process's threads; more than one is `EBUSY`.
    pub fn prove() -> Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task").map_err(|_| Errno::NOENT)?.count();
        if threads == 1 { Ok(Self(std::marker::PhantomData)) } else { Err(Errno::BUSY) }
    }
}

/// Copies this process, with the namespaces in `flags` new for the copy, and into another v2 cgroup
/// if its directory is given: a process that is born there spares the kernel the lock of moving one.
pub fn clone(_: &SingleThreaded, flags: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    let mut pidfd: libc::c_int = -1;
    let mut args = libc::clone_args {
        flags: flags | libc::CLONE_PIDFD as u64 | if cgroup.is_some() { INTO_CGROUP } else { 0 },
        pidfd: (&raw mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        // A copy for our own parent tells it as we would.
        exit_signal: if flags & libc::CLONE_PARENT as u64 == 0 { libc::SIGCHLD as u64 } else { 0 },
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |directory| u64::from(directory.as_raw_fd().cast_unsigned())),
    };
    // SAFETY: `args` is fully initialised; without CLONE_VM this is a fork, so the child has its own
    // copy of our memory and stack; `SingleThreaded` says that we are the only thread.
    let answer = check(unsafe {
        libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>())
    })?;
    let Some(child) = Pid::from_raw(RawPid::try_from(answer).map_err(|_| Errno::OVERFLOW)?) else {
        return Ok(Cloned::Child);
    };
    // SAFETY: in the parent the kernel put a new descriptor there, and only we know its number.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Parent { child, pidfd })
}

/// Bytes of stack for [`done_by_child`]; what is not touched takes no memory.
const ERRAND_STACK: usize = 256 << 10;

/// What a child is to do, and what came of it.
struct Errand<F, T> {
    act: Option<F>,
    done: Option<T>,
}

/// Has something done by a child that shares our memory and our descriptors, while we stand still: what it opens is
/// ours. For what changes whoever does it for good, as joining a namespace does. A copy of us would take as long to
/// make and to end as most of what it is for.
pub fn done_by_child<T, F: FnOnce() -> T>(_: &SingleThreaded, act: F) -> Result<T> {
    extern "C" fn run<F: FnOnce() -> T, T>(errand: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it is the `errand` below, whose owner stands still until we have ended.
        let errand = unsafe { &mut *errand.cast::<Errand<F, T>>() };
        errand.done = errand.act.take().map(|act| act());
        0
    }
    let mut stack: Vec<std::mem::MaybeUninit<u128>> =
        Vec::with_capacity(ERRAND_STACK / size_of::<u128>());
    let mut errand = Errand { act: Some(act), done: None };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end;
    // SAFETY: the child has a stack of its own, which lives until it has ended, as `errand` does: CLONE_VFORK keeps us
    // from returning before. `SingleThreaded` says that nobody else is in our memory meanwhile. `run` does not unwind:
    // a panic in an `extern "C"` function aborts.
    let child = check(i64::from(unsafe {
        libc::clone(run::<F, T>, top.cast(), flags, (&raw mut errand).cast())
    }))?;
    if let Some(child) = Child::new(u32::try_from(child).map_err(|_| Errno::OVERFLOW)?) {
        child.wait();
    }
    errand.done.ok_or(Errno::CHILD)
}

/// A process that we started and shall reap.
#[derive(Debug)]
pub struct Child(Pid);

impl Child {
    /// `None` for a number that cannot be a process.
    pub fn new(id: u32) -> Option<Self> {
        Pid::from_raw(RawPid::try_from(id).ok()?).map(Self)
    }

    pub fn id(&self) -> u32 {
        self.0.as_raw_nonzero().get().cast_unsigned()
    }

    /// Ends it. One that has ended already does not mind.
    pub fn kill(&self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::KILL).ok();
    }

    /// Waits for its end. One that is not there to be waited for has been reaped already.
    pub fn wait(self) {
        rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(self.0), rustix::process::WaitOptions::empty())
        })
        .ok();
    }
}

/// Copies this process. In the copy its arguments and environment are gone, from memory too: what a
/// caller says there is no business of a sandbox, and anybody in one can read its init's command line.
pub fn fork(single: &SingleThreaded) -> Result<Option<Child>> {
    let strings = initial_strings().ok_or(Errno::NOTSUP)?;
    match clone(single, 0, None)? {
        Cloned::Parent { child, .. } => Ok(Some(Child(child))),
        Cloned::Child => {
            strings.into_iter().for_each(wipe);
            Ok(None)
        }
    }
}

/// Where the kernel put the strings that this process was started with: its arguments but the first, and
/// its environment. `None` when that is not what the C library's list shows any more.
fn initial_strings() -> Option<Vec<ptr::NonNull<libc::c_char>>> {
    unsafe extern "C" {
        static mut environ: *mut *mut libc::c_char;
    }
    // SAFETY: the C library's own variable; nobody else is there to change it.
    let environment = unsafe { environ };
    let count = std::env::args_os().len();
    if environment.is_null() || count == 0 {
        return None;
    }
    // The kernel puts the list of arguments, ended by a null, right before that of the environment.
    // SAFETY: on the stack that the kernel made, both are one array; the check below finds out if not.
    let end = unsafe { *environment.wrapping_sub(1) };
    // SAFETY: as above.
    let first = ptr::NonNull::new(unsafe { *environment.wrapping_sub(count + 1) })?;
    // SAFETY: if it is the list of arguments, this is a C string; the list of a changed environment is
    // never preceded by one word of null and so many of strings that begin with our own name.
    let name = unsafe { CStr::from_ptr(first.as_ptr()) };
    let same =
        std::env::args_os().next().is_some_and(|own| own.as_encoded_bytes() == name.to_bytes());
    if !end.is_null() || !same {
        return None;
    }
    let mut strings = Vec::new();
    for at in 1..count {
        // SAFETY: as above.
        strings.push(ptr::NonNull::new(unsafe { *environment.wrapping_sub(count + 1 - at) })?);
    }
    let mut next = environment;
    // SAFETY: the list ends with a null pointer, and we stop there.
    while let Some(text) = ptr::NonNull::new(unsafe { *next }) {
        strings.push(text);
        // SAFETY: the entry was not the last: its own end is still to come.
        next = unsafe { next.add(1) };
    }
    Some(strings)
}

fn wipe(text: ptr::NonNull<libc::c_char>) {
    // SAFETY: a C string that the kernel put into writable memory of this process.
    let length = unsafe { libc::strlen(text.as_ptr()) };
    // SAFETY: as above; exactly the string's own bytes.
    unsafe { ptr::write_bytes(text.as_ptr(), 0, length) };
}

/// Makes this process forget its arguments and environment, as copies by [`fork`] do.
pub fn forget_arguments() -> Result<()> {
    initial_strings().ok_or(Errno::NOTSUP)?.into_iter().for_each(wipe);
    Ok(())
}

/// Copies this process, for its own parent to reap.
pub fn fork_sibling(single: &SingleThreaded) -> Result<Option<u32>> {
    match clone(single, libc::CLONE_PARENT as u64, None)? {
        Cloned::Parent { child, .. } => Ok(Some(child.as_raw_nonzero().get().cast_unsigned())),
        Cloned::Child => Ok(None),
    }
}

/// Where the C library keeps the id of its main thread. It tells the kernel at the start, and the
/// kernel tells us.
static THREAD_ID: AtomicPtr<libc::pid_t> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn remember_thread_id() {
    let mut place: *mut libc::pid_t = ptr::null_mut();
    // SAFETY: the kernel writes one pointer to the local that outlives the call.
    let answer = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut place) };
    if answer == 0 {
        THREAD_ID.store(place, Ordering::Relaxed);
    }
}

/// Corrects what the C library believes to be this thread's id, after copies that it knows nothing of.
/// A kernel that does not tell where that is leaves it as it was, which only its robust and recursive
/// locks between threads of equal numbers could notice.
pub fn renew_thread_id() {
    let place = THREAD_ID.load(Ordering::Relaxed);
    if place.is_null() {
        return;
    }
    // SAFETY: takes nothing.
    let id = unsafe { libc::gettid() };
    // SAFETY: the C library's own variable, in memory that this only thread was copied with.
    unsafe { *place = id };
}

/// Ends this process now: no destructors, no exit handlers, no flushing of a parent's buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Replaces this process by `program`; returns only when that fails, with the reason.
pub fn execute(program: &CStr, argv: &[CString], environment: &[CString]) -> Errno {
    let argv = null_ended(argv);
    let environment = null_ended(environment);
    // SAFETY: both arrays end with a null pointer and point at C strings that outlive the call.
    let answer = unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    check(answer.into()).err().unwrap_or(Errno::IO)
}

fn null_ended(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Becomes `uid`, real, effective and saved: nothing of the old identity is left. The raw call: we are
/// single-threaded, and glibc's would signal other threads.
pub fn set_uid(uid: u32) -> Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    Ok(())
}

/// Becomes group `gid`, as [`set_uid`].
pub fn set_gid(gid: u32) -> Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    Ok(())
}

/// Leaves every supplementary group.
pub fn clear_groups() -> Result<()> {
    // SAFETY: a length of zero reads nothing through the null pointer.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) })?;
    Ok(())
}

/// Gives every signal its default action and unblocks all: what a program expects at its start.
///
/// The Rust runtime ignores SIGPIPE, and ignored signals stay ignored over exec.
pub fn reset_signals() -> Result<()> {
    for signal in 1..=64 {
        // SAFETY: installs no handler of ours; numbers that cannot be changed answer EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let none = 0u64;
    // SAFETY: the kernel's signal set is 8 bytes, as the size says; the old set is not wanted.
    check(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    })?;
    Ok(())
}

/// Makes this process deaf to every signal that can be ignored: what others of its own id could stop it with. The
/// end of children is still told. Ignored signals stay so over exec; see [`reset_signals`].
pub fn ignore_signals() {
    for signal in (1..=64).filter(|signal| *signal != libc::SIGCHLD) {
        // SAFETY: installs no handler; numbers that cannot be changed answer EINVAL.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Gives this process an empty session keyring, so that no key of the caller's can be found.
pub fn forget_keyring() -> Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    let anonymous = ptr::null::<libc::c_char>();
    // SAFETY: a null name asks for an anonymous keyring; nothing is read.
    let answer =
        check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) });
    match answer {
        // A kernel built without keyrings has none to leak.
        Ok(_) | Err(Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A child that ended, and what it and its waited-for children used.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub pid: RawPid,
    pub status: Status,
    pub cpu: Duration,
    pub max_resident_bytes: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Exited(i32),
    Signaled(i32),
}

/// Whether to wait for a child to end, or only to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Block,
    Look,
}

/// Reaps one ended child, any; `None` when none has ended yet (only with [`Wait::Look`]).
pub fn reap_any(wait: Wait) -> Result<Option<Ended>> {
    let mut status: libc::c_int = 0;
    // SAFETY: all-zero bytes are a valid `rusage`: it is plain integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::__WALL | if wait == Wait::Look { libc::WNOHANG } else { 0 };
    let pid = rustix::io::retry_on_intr(|| {
        // SAFETY: both pointers are to initialised locals that outlive the call.
        check(unsafe { libc::wait4(-1, &raw mut status, options, &raw mut usage) }.into())
    })?;
    if pid == 0 {
        return Ok(None);
    }
    let status = if libc::WIFSIGNALED(status) {
        Status::Signaled(libc::WTERMSIG(status))
    } else {
        Status::Exited(libc::WEXITSTATUS(status))
    };
    Ok(Some(Ended {
        pid: RawPid::try_from(pid).map_err(|_| Errno::OVERFLOW)?,
        status,
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
        max_resident_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    }))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// Sends `signal` to every process that this one may signal, but itself and init.
///
/// Inside a pid namespace that is the whole sandbox. Anywhere else it would be a disaster, so it
/// answers `EPERM` unless the caller is process 1.
pub fn kill_everyone(signal: i32) -> Result<()> {
    if std::process::id() != 1 {
        return Err(Errno::PERM);
    }
    // SAFETY: takes integers only.
    match check(unsafe { libc::kill(-1, signal) }.into()) {
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Kills the process behind a pidfd; one that has ended already is no error.
pub fn kill(pidfd: BorrowedFd<'_>) -> Result<()> {
    let none = ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo asks for the default one; the descriptor is borrowed open.
    match check(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0)
    }) {
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A descriptor that becomes readable when a child changes state, or somebody opens a file of which we hold
/// the lease. Blocks the ordinary delivery of both signals.
pub fn init_signals() -> Result<OwnedFd> {
    let both = 1u64 << (libc::SIGCHLD - 1) | 1u64 << (libc::SIGIO - 1);
    // SAFETY: the kernel's signal set is 8 bytes, as the size says; the old set is not wanted.
    check(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            &raw const both,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    })?;
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: as above; -1 asks for a new descriptor.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_signalfd4, -1, &raw const both, size_of::<u64>(), flags)
    })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just made this descriptor for us and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Leaves for a network namespace of its own, in which nothing is up.
pub fn unshare_net() -> Result<()> {
    // SAFETY: takes an integer only; this flag leaves descriptors and memory as they are.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into())?;
    Ok(())
}

/// Leaves for a mount namespace of its own, a copy of the one we are in.
pub fn unshare_mounts() -> Result<()> {
    // SAFETY: takes an integer only; this flag leaves descriptors and memory as they are.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into())?;
    Ok(())
}

/// Joins the network namespace behind a descriptor.
pub fn join_net(namespace: BorrowedFd<'_>) -> Result<()> {
    join(namespace, NEW_NET)
}

/// Joins the namespace behind a descriptor, which must be of this kind.
pub fn join(namespace: BorrowedFd<'_>, kind: u64) -> Result<()> {
    let kind = libc::c_int::try_from(kind).map_err(|_| Errno::INVAL)?;
    // SAFETY: takes integers only; the descriptor is borrowed open.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }.into())?;
    Ok(())
}

/// Acts as this user from now on, and can still go back.
pub fn set_effective_uid(uid: u32) -> Result<()> {
    const KEEP: libc::c_int = -1;
    // SAFETY: takes integers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) })?;
    Ok(())
}

/// Makes the cgroup we are in look like the root of all cgroups, to us and all we start.
pub fn unshare_cgroup() -> Result<()> {
    // SAFETY: takes an integer only; this flag leaves descriptors and memory as they are.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into())?;
    Ok(())
}
