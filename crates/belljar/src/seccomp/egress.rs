//! The filter of the egress process: sockets and memory. A call that is not listed is refused.

use super::program;
use super::table::{Exception, Test, Width};
use super::{Action, Decision, EPERM, Hearing, Mark, NATIVE};
use belljar_sys::seccomp::Instruction;

/// What it may call, with the reason.
const ALLOWED: [(&str, &str); 58] = [
    ("read", "sockets, the runtime's wake-up"),
    ("write", "as read"),
    ("readv", "as read"),
    ("writev", "as read"),
    ("pread64", "a changed plan, in a file of memory that the keeper gives it"),
    ("fstat", "how long that is"),
    ("newfstatat", "as fstat, where the C library prefers it"),
    ("close", "sockets that have ended"),
    ("fcntl", "sockets that do not wait, and the size of pipes"),
    ("ioctl", "sockets that do not wait (FIONBIO)"),
    ("connect", "the way out"),
    ("bind", "a port of its own for each question to a name server"),
    ("accept4", "the way in from the sandbox"),
    ("accept", "as accept4"),
    ("sendto", "bytes and datagrams"),
    ("recvfrom", "as sendto"),
    ("sendmsg", "as sendto"),
    ("recvmsg", "as sendto; the keeper's listeners"),
    ("shutdown", "the end of one direction"),
    ("getsockname", "which address a program meant"),
    ("getpeername", "as getsockname"),
    ("getsockopt", "whether a connection was made"),
    ("setsockopt", "no delay, and an end at once"),
    ("pipe2", "for splice"),
    ("splice", "bytes that need no more looking at"),
    ("epoll_create1", "waiting"),
    ("epoll_ctl", "waiting"),
    ("epoll_wait", "waiting"),
    ("epoll_pwait", "waiting"),
    ("epoll_pwait2", "waiting"),
    ("poll", "waiting"),
    ("ppoll", "waiting"),
    ("eventfd2", "the runtime's wake-up"),
    ("futex", "the runtime's locks"),
    ("sched_yield", "as futex"),
    ("nanosleep", "as futex"),
    ("clock_nanosleep", "as futex"),
    ("clock_gettime", "where the vDSO does not serve"),
    ("gettimeofday", "as clock_gettime"),
    ("getrandom", "numbers of questions, seeds of tables"),
    ("brk", "memory"),
    ("munmap", "memory"),
    ("mremap", "memory"),
    ("madvise", "memory"),
    ("rt_sigreturn", "signals"),
    ("rt_sigprocmask", "signals"),
    ("rt_sigaction", "signals"),
    ("sigaltstack", "signals"),
    ("restart_syscall", "after a stop"),
    ("getpid", "to end itself when it panics"),
    ("gettid", "as getpid"),
    ("tgkill", "as getpid"),
    ("exit", "the end"),
    ("exit_group", "the end"),
    ("prctl", "the names of threads"),
    ("membarrier", "the runtime's locks"),
    ("rseq", "the C library's"),
    ("set_robust_list", "the C library's"),
];

const fn test(argument: u32, mask: u64, values: &'static [u32]) -> Test {
    Test { argument, width: Width::U32, mask, negated: false, values }
}

/// IPv4 and IPv6, streams and datagrams.
static INTERNET: [Exception; 1] = [Exception {
    tests: &[test(0, 0xffff_ffff, &[2, 10]), test(1, 0xf, &[1, 2])],
    action: Action::Allow,
    mark: Mark::Quiet,
}];

/// Memory that cannot be executed.
static DATA: [Exception; 1] =
    [Exception { tests: &[test(2, 4, &[0])], action: Action::Allow, mark: Mark::Quiet }];

/// The filter as the kernel takes it.
pub(crate) fn compile() -> Vec<Instruction> {
    let quiet = |action| Decision { mark: Mark::Quiet, ..Decision::plain(action) };
    program::assemble(&NATIVE, Hearing::Nothing, |call| match call.name {
        "socket" => Decision { exceptions: &INTERNET, ..quiet(EPERM) },
        "mmap" | "mprotect" => Decision { exceptions: &DATA, ..quiet(EPERM) },
        name if ALLOWED.iter().any(|(known, _)| *known == name) => quiet(Action::Allow),
        _ => quiet(EPERM),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_opens_or_starts_anything_is_listed() {
        for call in [
            "open",
            "openat",
            "openat2",
            "execve",
            "execveat",
            "clone",
            "clone3",
            "fork",
            "vfork",
            "ptrace",
            "mount",
            "setns",
            "unshare",
            "bpf",
            "io_uring_setup",
            "kill",
            "socketpair",
            "listen",
            "memfd_create",
            "process_vm_readv",
            "pidfd_getfd",
        ] {
            assert!(!ALLOWED.iter().any(|(known, _)| *known == call), "{call}");
        }
        assert!(ALLOWED.iter().all(|(_, reason)| !reason.is_empty()));
        assert!(!compile().is_empty());
    }
}
