//! What the egress process gives up before it accepts anything.

use belljar_sys::process::{clear_groups, set_gid, set_uid};
use belljar_sys::{Errno, Result, landlock, seccomp};
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Resource, Rlimit};

use super::Confinement;
use crate::lockdown::{drop_bounding_set, drop_capabilities, forbid_new_privileges};

/// Sockets and pipes of all its connections.
const OPEN_FILES: u64 = 4096;

/// Takes everything away from this process but its sockets, for good. It must have one thread.
pub fn confine(how: &Confinement) -> Result<()> {
    raise_open_files();
    drop_bounding_set()?;
    if let Some((uid, gid)) = how.ids {
        clear_groups()?;
        set_gid(gid)?;
        set_uid(uid)?;
    }
    drop_capabilities()?;
    forbid_new_privileges()?;
    // After the ids, whose change makes the kernel forget it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    forget_files(how.landlock_abi)?;
    let filter: Vec<_> = how.filter.iter().map(|one| crate::plan::unpack(*one)).collect();
    seccomp::install(&filter)
}

/// No more than the operator allows; with fewer there are fewer connections.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    let wanted = Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(Resource::Nofile, wanted).ok();
}

/// No file at all, and a look whether it holds. The filter refuses to open one as well.
fn forget_files(abi: u32) -> Result<()> {
    if abi == 0 {
        return Ok(());
    }
    let open = || rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    open()?;
    let rules = landlock::create_ruleset(landlock::all_access(abi), 0)?;
    landlock::restrict_self(&rules)?;
    match open() {
        Err(Errno::ACCESS) => Ok(()),
        _ => Err(Errno::PERM),
    }
}
