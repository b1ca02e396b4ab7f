//! A zygote: an interpreter with its usual modules loaded, one thread, and nobody's data, which copies
//! itself into sandboxes.
//!
//! The interpreter's own loop is in its start-up script, which calls these functions through the
//! `belljar-zygote` library. Each copy is a keeper, which makes a sandbox as every keeper does, from
//! copies of itself; the payload among them, locked down and verified like any other, calls back into
//! the interpreter instead of executing one.
//!
//! The engine's end of the zygote's standard input asks for keepers, by sending each one's control
//! socket, and is told their process ids. They are the engine's own children.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use belljar_sys::process::{SingleThreaded, fork_sibling};
use belljar_sys::{Errno, Result, fd};
use rustix::process::DumpableBehavior;

use crate::keeper;
use crate::payload::{Interpreter, set_interpreter};

/// The control socket of the keeper that is wished for.
static WISH: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Makes this process a zygote. `EBUSY`: it has more than one thread, and cannot be copied.
pub fn begin() -> Result<()> {
    SingleThreaded::prove()?;
    rustix::thread::set_name(c"belljar-zygote")?;
    // Nobody looks into it: its layout is its copies' layout.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Waits for the next wish. `ECANCELED`: the engine is gone.
pub fn await_wish() -> Result<()> {
    let mut word = [0; 8];
    let received = fd::receive(std::io::stdin(), &mut word)?;
    let wish = received.fds.into_iter().next().ok_or(Errno::CANCELED)?;
    *WISH.lock().unwrap_or_else(PoisonError::into_inner) = Some(wish);
    Ok(())
}

/// Makes the keeper that was wished for, and says which process it is. Its payload calls `interpreter`,
/// which does not return.
pub fn grant(interpreter: Interpreter) -> Result<()> {
    set_interpreter(interpreter);
    let wish = WISH.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(Errno::PROTO)?;
    let single = SingleThreaded::prove()?;
    match fork_sibling(&single)? {
        Some(keeper) => fd::send(std::io::stdin(), &keeper.to_le_bytes(), &[]),
        None => keeper::main_as_copy(wish),
    }
}
