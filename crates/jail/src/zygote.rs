//! A zygote: an interpreter with its usual modules loaded, one thread, and nobody's data, which copies
//! itself into sandboxes.
//!
//! The interpreter's own loop is in its start-up script, which calls these functions through the
//! `belljar-zygote` library. Each copy is a payload: it enters a sandbox that stands, locks itself down
//! and is verified like any other, and calls back into the interpreter instead of executing one.
//!
//! The engine's end of the zygote's standard input asks for copies, by sending what a keeper has made
//! for one, and is told whether it was made (an errno, or 0).

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use belljar_sys::enter::{Inside, Side, copy_into};
use belljar_sys::process::SingleThreaded;
use belljar_sys::{Errno, Result, fd};
use rustix::process::DumpableBehavior;

use crate::payload::{self, Interpreter, set_interpreter};
use crate::wire::{Joining, Known, receive_joining};

/// The descriptors of the copy that is wished for.
static WISH: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

thread_local! {
    /// Read here, not in the copies: what a copy does not touch it shares.
    static KNOWN: RefCell<Known> = const { RefCell::new(Known::new()) };
}

/// Makes this process a zygote. `EBUSY`: it has more than one thread, and cannot be copied.
pub fn begin() -> Result<()> {
    SingleThreaded::prove()?;
    rustix::thread::set_name(c"belljar-zygote")?;
    // Nobody looks into it: its layout is its copies' layout.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Waits for the next wish. `ECANCELED`: the engine is gone.
pub fn await_wish() -> Result<()> {
    let wish = receive_joining(std::io::stdin())?;
    *WISH.lock().unwrap_or_else(PoisonError::into_inner) = wish;
    Ok(())
}

/// Makes the copy that was wished for, and says so. It calls `interpreter`, which does not return.
pub fn grant(interpreter: Interpreter) -> Result<()> {
    set_interpreter(interpreter);
    let wish = std::mem::take(&mut *WISH.lock().unwrap_or_else(PoisonError::into_inner));
    let single = SingleThreaded::prove()?;
    let made = copy(&single, wish);
    let errno = made.err().map_or(0, Errno::raw_os_error);
    fd::send(std::io::stdin(), &errno.to_le_bytes(), &[])
}

fn copy(single: &SingleThreaded, wish: Vec<OwnedFd>) -> Result<()> {
    let joining = KNOWN.with_borrow_mut(|known| Joining::from_fds(wish, known))?;
    let inside = Inside {
        user: joining.namespaces.user.as_fd(),
        pid: joining.namespaces.pid.as_fd(),
        cgroup: joining.birthplace.as_ref().map(AsFd::as_fd),
    };
    match copy_into(single, inside)? {
        Side::Original => Ok(()),
        Side::Copy => payload::join(joining),
    }
}
