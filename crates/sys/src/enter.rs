//! Copying this process into a pid namespace that others live in.
//!
//! A process never changes its own pid namespace, only that of its children; and to be let in, it must
//! first join the user namespace that owns it, for good. So a helper does both and makes the copy. The
//! copy shall be a child of the namespace's own init, to be reaped and counted there as every orphan
//! is: so a second helper, which is inside already, makes it, and ends.
//!
//! Both helpers live in our own memory while we stand still, as after `vfork`: to copy a large process
//! three times where one copy is wanted would take three times as long.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::process::{SingleThreaded, remember_thread_id};
use crate::{Errno, Result, check};

/// CLONE_INTO_CGROUP of `linux/sched.h`, which does not fit libc's `c_int`.
const INTO_CGROUP: u64 = 1 << 33;

/// The number of the second helper inside, far from those that programs get first.
const HELPER: libc::pid_t = 300;

/// Where a copy goes.
#[derive(Clone, Copy, Debug)]
pub struct Inside<'a> {
    /// The user namespace that owns the pid namespace.
    pub user: BorrowedFd<'a>,
    pub pid: BorrowedFd<'a>,
    /// The v2 cgroup that it is born into.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// Which side of [`copy_into`] we are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Original,
    Copy,
}

/// Copies this process into these namespaces, where process 1 is soon its parent. What the copy needs of
/// the other namespaces it joins itself.
pub fn copy_into(_: &SingleThreaded, inside: Inside<'_>) -> Result<Side> {
    remember_thread_id();
    let plain = libc::clone_args {
        flags: 0,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    let mut copy = plain;
    if let Some(cgroup) = inside.cgroup {
        copy.flags = INTO_CGROUP;
        copy.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    let number = HELPER;
    let mut helper = plain;
    helper.flags = SHARED;
    helper.set_tid = (&raw const number) as u64;
    helper.set_tid_size = 1;
    let mut status: libc::c_int = 0;
    let mut calls = Calls { copy: &raw mut copy, helper: &raw mut helper, status: &raw mut status };
    let user = inside.user.as_raw_fd();
    let pid = inside.pid.as_raw_fd();
    // SAFETY: all pointers are to locals that outlive the helpers, which have ended when this returns
    // in us. `SingleThreaded` says that nobody else uses the memory that the helpers share with us.
    let answer = unsafe { helped_clone(user, pid, &raw mut calls) };
    if answer == 0 {
        return Ok(Side::Copy);
    }
    let helper = libc::pid_t::try_from(answer).map_err(|_| Errno::OVERFLOW)?;
    if helper < 0 {
        return Err(Errno::from_raw_os_error(-helper));
    }
    rustix::io::retry_on_intr(|| {
        // SAFETY: the status is a local that outlives the call.
        check(unsafe { libc::waitpid(helper, &raw mut status, 0) }.into())
    })?;
    match libc::WEXITSTATUS(status) {
        _ if !libc::WIFEXITED(status) => Err(Errno::CHILD),
        0 => Ok(Side::Original),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// What a helper is: in our memory, while we stand still.
#[cfg(target_arch = "x86_64")]
const SHARED: u64 = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
#[cfg(not(target_arch = "x86_64"))]
const SHARED: u64 = 0;

/// What the helpers are given, by address.
#[repr(C)]
struct Calls {
    copy: *mut libc::clone_args,
    helper: *mut libc::clone_args,
    status: *mut libc::c_int,
}

/// 0 in the copy; otherwise the number of the first helper, which has ended with an errno or with 0, or
/// a negative errno when there was none.
///
/// # Safety
///
/// This process has one thread. All pointers are valid; `copy` does not ask for shared memory.
#[cfg(target_arch = "x86_64")]
unsafe fn helped_clone(user: libc::c_int, pid: libc::c_int, calls: *mut Calls) -> i64 {
    let answer: i64;
    // SAFETY: the helpers run on our stack while we stand still, so not one of these instructions
    // writes to it; they keep everything in registers, which system calls preserve. Both end here. The
    // copy has memory of its own, in which this is a call that has just returned.
    unsafe {
        std::arch::asm!(
            // The first helper.
            "mov eax, {clone}", "mov edi, {shared}", "xor esi, esi", "xor edx, edx",
            "xor r10d, r10d", "xor r8d, r8d", "syscall",
            "test rax, rax", "jnz 4f",
            // It joins.
            "mov eax, {setns}", "mov edi, r12d", "mov esi, {new_user}", "syscall",
            "test rax, rax", "jnz 3f",
            "mov eax, {setns}", "mov edi, r13d", "mov esi, {new_pid}", "syscall",
            "test rax, rax", "jnz 3f",
            // The second helper, inside.
            "mov eax, {clone3}", "mov rdi, [r14 + 8]", "mov esi, {args_bytes}", "syscall",
            "test rax, rax", "js 3f", "jnz 2f",
            // It makes the copy, and ends.
            "mov eax, {clone3}", "mov rdi, [r14]", "mov esi, {args_bytes}", "syscall",
            "test rax, rax", "jz 4f", "js 3f",
            "xor eax, eax", "jmp 3f",
            // The first helper reaps the second, and ends as it did.
            "2:",
            "mov rdi, rax", "mov eax, {wait4}", "mov rsi, [r14 + 16]", "xor edx, edx", "xor r10d, r10d",
            "syscall",
            "test rax, rax", "js 3f",
            "mov rsi, [r14 + 16]", "movzx eax, byte ptr [rsi + 1]", "neg eax",
            // A helper's end: with its errno, or with 0.
            "3:",
            "mov edi, eax", "neg edi", "mov eax, {exit_group}", "syscall", "ud2",
            // We, after the helper's end; and the copy.
            "4:",
            clone = const libc::SYS_clone,
            clone3 = const libc::SYS_clone3,
            setns = const libc::SYS_setns,
            wait4 = const libc::SYS_wait4,
            exit_group = const libc::SYS_exit_group,
            shared = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            new_user = const libc::CLONE_NEWUSER,
            new_pid = const libc::CLONE_NEWPID,
            args_bytes = const size_of::<libc::clone_args>(),
            in("r12") user,
            in("r13") pid,
            in("r14") calls,
            out("rax") answer,
            out("rdi") _, out("rsi") _, out("rdx") _, out("r10") _, out("r8") _,
            out("rcx") _, out("r11") _,
        );
    }
    answer
}

/// The same with helpers that are copies, where nobody has written the above for the processor.
///
/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn helped_clone(user: libc::c_int, pid: libc::c_int, calls: *mut Calls) -> i64 {
    // SAFETY: the caller's pointers are valid.
    let Calls { copy: wanted, helper, .. } = unsafe { &*calls };
    // SAFETY: as above.
    let mut first = unsafe { **helper };
    (first.set_tid, first.set_tid_size) = (0, 0);
    // SAFETY: a fork of the only thread; likewise the others below.
    let copy = |args: *mut libc::clone_args| unsafe {
        check(libc::syscall(libc::SYS_clone3, args, size_of::<libc::clone_args>()))
    };
    let end = |errno: Errno| -> ! { crate::process::exit_now(errno.raw_os_error()) };
    match copy(&raw mut first) {
        Ok(0) => {}
        Ok(helper) => return helper,
        Err(errno) => return -i64::from(errno.raw_os_error()),
    }
    for (namespace, kind) in [(user, libc::CLONE_NEWUSER), (pid, libc::CLONE_NEWPID)] {
        // SAFETY: takes integers only.
        if let Err(errno) = check(unsafe { libc::setns(namespace, kind) }.into()) {
            end(errno);
        }
    }
    match copy(*helper) {
        Ok(0) => match copy(*wanted) {
            Ok(0) => 0,
            Ok(_) => crate::process::exit_now(0),
            Err(errno) => end(errno),
        },
        Ok(inner) => {
            let mut status = 0;
            // SAFETY: the status is a local that outlives the call.
            match check(
                unsafe { libc::wait4(inner as i32, &raw mut status, 0, std::ptr::null_mut()) }
                    .into(),
            ) {
                Ok(_) => crate::process::exit_now(libc::WEXITSTATUS(status)),
                Err(errno) => end(errno),
            }
        }
        Err(errno) => end(errno),
    }
}
