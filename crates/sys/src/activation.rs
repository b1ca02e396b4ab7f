//! Listening sockets from whoever started us: sd_listen_fds(3).

use std::os::fd::{FromRawFd, OwnedFd};

/// The first of them.
const FIRST: i32 = 3;
/// More are a mistake.
const MOST: i32 = 16;

/// The descriptors that were handed over, if they were meant for this process. Ours from now on, and for no program
/// that we start. Call it once, before anything else opens descriptors of those numbers for itself.
pub fn listen_fds() -> Vec<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let own = rustix::process::getpid().as_raw_nonzero().get();
    if number("LISTEN_PID") != Some(own) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, MOST);
    let take = |raw: i32| {
        // SAFETY: the protocol says that these numbers are ours: whoever started us opened them for this process, and nothing
        // in it has taken them over, as this is called once and early.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // What cannot be marked is no descriptor; it is told by whoever uses it.
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).ok();
        fd
    };
    (FIRST..FIRST.saturating_add(count)).filter(|raw| is_open(*raw)).map(take).collect()
}

/// Whether a number is a descriptor at all: what is not must not become one that is closed later.
fn is_open(raw: i32) -> bool {
    std::fs::symlink_metadata(format!("/proc/self/fd/{raw}")).is_ok()
}
