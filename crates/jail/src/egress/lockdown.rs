//! What the egress process gives up before it accepts anything.

use belljar_sys::process::{clear_groups, set_gid, set_uid};
use belljar_sys::{Errno, Result, landlock, seccomp};
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal};

use super::Confinement;
use crate::lockdown::{drop_bounding_set, drop_capabilities, forbid_new_privileges};

/// Sockets and pipes of all its connections.
const OPEN_FILES: u64 = 4096;
/// Its memory: twice what the connections that it may have at once could hold. Beyond that it crashes, which is told, and
/// nothing passes.
const MEMORY_BYTES: u64 = 512 << 20;
/// The first version of Landlock that knows of signals.
const SCOPES_SINCE: u32 = 6;

/// Takes everything away from this process but its sockets, for good. It must have one thread.
pub fn confine(how: &Confinement) -> Result<()> {
    raise_open_files();
    limit_memory()?;
    drop_bounding_set()?;
    if let Some((uid, gid)) = how.ids {
        clear_groups()?;
        set_gid(gid)?;
        set_uid(uid)?;
    }
    drop_capabilities()?;
    forbid_new_privileges()?;
    // After the ids, whose change makes the kernel forget both.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    if how.dies_with_parent {
        // One that is stopped does not see that its socket is closed.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    forget_files(how.landlock_abi)?;
    let filter: Vec<_> = how.filter.iter().map(|one| crate::plan::unpack(*one)).collect();
    seccomp::install(&filter)
}

fn may_signal(process: Pid) -> bool {
    rustix::process::test_kill_process(process).is_ok()
}

/// No more than the operator allows; with fewer there are fewer connections.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    let wanted = Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(Resource::Nofile, wanted).ok();
}

/// Of its own: kernels count what a socket holds apart.
fn limit_memory() -> Result<()> {
    let limit = rustix::process::getrlimit(Resource::Data);
    let most = limit.maximum.unwrap_or(MEMORY_BYTES).min(MEMORY_BYTES);
    rustix::process::setrlimit(Resource::Data, Rlimit { current: Some(most), maximum: Some(most) })
}

/// No file at all, nobody else to signal (it may have its user's id), and a look whether both hold. The filter refuses to open
/// a file as well.
fn forget_files(abi: u32) -> Result<()> {
    if abi == 0 {
        return Ok(());
    }
    let open = || rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    open()?;
    let scopes = landlock::SCOPE_SIGNAL | landlock::SCOPE_ABSTRACT_UNIX_SOCKET;
    let scoped = if abi < SCOPES_SINCE { 0 } else { scopes };
    let rules = landlock::create_ruleset(landlock::all_access(abi), scoped)?;
    landlock::restrict_self(&rules)?;
    if scoped != 0 && rustix::process::getppid().is_some_and(may_signal) {
        return Err(Errno::PERM);
    }
    match open() {
        Err(Errno::ACCESS) => Ok(()),
        _ => Err(Errno::PERM),
    }
}
