//! Changing the flags of a mount by descriptor, which rustix lacks; and the mounts that the host's side makes.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

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

/// Mounts an ext4 file system from `device` on `target`, a directory: no devices, no setuid, and no access times.
pub fn ext4(device: &Path, target: impl AsFd) -> Result<()> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", device)?;
    // Zeroing inode tables in the background would make a sparse image grow for nothing.
    fsconfig_set_flag(&context, "noinit_itable")?;
    fsconfig_set_string(&context, "errors", "remount-ro")?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&mount, "", target, "", how)
}

/// Takes the mount on `target` away; what still uses it keeps it until it lets go.
pub fn detach(target: &Path) -> Result<()> {
    unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}
