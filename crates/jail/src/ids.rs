//! Who a sandbox's processes are, seen from the host: what is left before the clone, and the id maps after.

use std::os::fd::OwnedFd;

use belljar_sys::process::{NEW_IPC, NEW_MOUNT, NEW_NET, NEW_PID, NEW_USER, NEW_UTS, clear_groups};
use belljar_sys::{Errno, Result, spawn};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::cgroup::errno;
use crate::plan::{Files, Identity, MapWriter, Plan};
use crate::wire::Namespaces;

/// What must be done before the clone, and the namespaces to clone with.
pub(crate) fn prepare(plan: &Plan) -> Result<u64> {
    if !matches!(plan.files, Files::Root(_)) {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        return Ok(0);
    }
    if rustix::process::geteuid().is_root() {
        // In the namespace setgroups is denied, so the caller's groups are left here.
        clear_groups()?;
    }
    // Two come later, in the payload: the cgroup namespace when it is in its group, and the one of the
    // network, which is dear and so made while init builds the root.
    let most = NEW_USER | NEW_PID | NEW_MOUNT | NEW_IPC | NEW_UTS;
    // Who joins finds its network made.
    Ok(if plan.has_network_early() { most | NEW_NET } else { most })
}

/// The namespaces of a process that can still be looked into.
pub(crate) fn namespaces(init: Pid) -> Result<Namespaces> {
    let pid = init.as_raw_nonzero().get();
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/{pid}/ns/{name}"), flags, Mode::empty())
    };
    Ok(Namespaces {
        user: open("user")?,
        pid: open("pid")?,
        rest: [
            (open("mnt")?, NEW_MOUNT),
            (open("net")?, NEW_NET),
            (open("ipc")?, NEW_IPC),
            (open("uts")?, NEW_UTS),
        ],
    })
}

/// Where the host name of a process is kept, and the user namespace that may change it.
pub(crate) fn naming(init: Pid) -> Result<(OwnedFd, OwnedFd)> {
    let pid = init.as_raw_nonzero().get();
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/{pid}/ns/{name}"), flags, Mode::empty())
    };
    Ok((open("user")?, open("uts")?))
}

pub(crate) fn map(init: Pid, identity: &Identity) -> Result<()> {
    let Identity::Mapped { inside, uid, gid, writer } = *identity else {
        return Ok(());
    };
    let pid = init.as_raw_nonzero().get();
    match writer {
        MapWriter::Keeper => {
            let write = |file: &str, text: String| {
                std::fs::write(format!("/proc/{pid}/{file}"), text).map_err(errno)
            };
            // Without this, leaving a group could open what the group was denied (CVE-2014-8989).
            write("setgroups", "deny".to_owned())?;
            write("gid_map", format!("{inside} {gid} 1"))?;
            write("uid_map", format!("{inside} {uid} 1"))
        }
        MapWriter::Helpers => {
            map_by_helper("newgidmap", pid, inside, gid)?;
            map_by_helper("newuidmap", pid, inside, uid)
        }
    }
}

/// `newuidmap` checks /etc/subuid and writes the map with the privilege that we lack.
fn map_by_helper(program: &str, pid: i32, inside: u32, outside: u32) -> Result<()> {
    let args = [pid.to_string(), inside.to_string(), outside.to_string(), "1".to_owned()];
    let program = format!("/usr/bin/{program}");
    let output = spawn::output(program, &args.map(Into::into)).map_err(errno)?;
    if output.status.success() { Ok(()) } else { Err(Errno::PERM) }
}
