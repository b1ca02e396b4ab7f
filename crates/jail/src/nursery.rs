//! A nursery: our own binary, started once, of which keepers are copies. To copy so small a process
//! takes a tenth of the time that starting it again does.
//!
//! Its standard input asks for keepers, by sending each one's control socket and, if there is one, the plan
//! of its kind, which the copies then need not read; and is told their process ids. They are the engine's own children.

use belljar_sys::process::{SingleThreaded, forget_arguments, fork_sibling};
use belljar_sys::{Errno, Result, fd};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::keeper::{self, Inherited};
use crate::readback;
use crate::root::ready::ReadyRoots;
use crate::wire::Known;

/// Its whole life: until the engine is gone, which is no error.
pub fn main() -> u8 {
    match serve() {
        Ok(never) => match never {},
        Err(Errno::CANCELED) => 0,
        Err(_) => 1,
    }
}

fn serve() -> Result<std::convert::Infallible> {
    fd::close_inherited(3)?;
    rustix::process::setsid()?;
    rustix::thread::set_name(c"belljar-nursery")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::chdir("/")?;
    // Which binary this is, and where, is no business of those who can read their init's command line.
    forget_arguments()?;
    let single = SingleThreaded::prove()?;
    let mut known = Known::new();
    let mut roots = ReadyRoots::begin();
    // Looked at here: a copy is in the same ones.
    let namespaces = Some(readback::own_namespaces());
    loop {
        let mut word = [0; 8];
        let received = fd::receive(std::io::stdin(), &mut word)?;
        let mut fds = received.fds.into_iter();
        let control = fds.next().ok_or(Errno::CANCELED)?;
        // One that cannot be read is told by the keeper, who tries again.
        let plan = fds.next().and_then(|memory| known.plan(memory).ok());
        let root = plan.as_ref().and_then(|plan| roots.as_mut()?.of(plan));
        match fork_sibling(&single)? {
            Some(keeper) => fd::send(std::io::stdin(), &keeper.to_le_bytes(), &[])?,
            None => keeper::main_as_copy(control, Inherited { plan, root, namespaces }),
        }
    }
}
