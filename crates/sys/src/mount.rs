//! The one mount call that rustix lacks: changing the flags of a mount by descriptor.

use std::os::fd::{AsFd, AsRawFd};

use crate::{Result, check};

pub const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NO_DEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// How far a change of flags reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    This,
    Tree,
}

/// Sets `attributes` on the mount that `mount` is open on and, for a tree, on all below it.
///
/// Flags are only ever added: a mount inherited from the host keeps what the host had locked.
pub fn set_attributes(mount: impl AsFd, attributes: u64, reach: Reach) -> Result<()> {
    let attr = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let recursive = if reach == Reach::Tree { libc::AT_RECURSIVE } else { 0 };
    let flags = libc::AT_EMPTY_PATH | recursive;
    // SAFETY: the path is a constant C string, `attr` is fully initialised, and both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}
