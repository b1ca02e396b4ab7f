//! Landlock by its three system calls. The rules themselves are chosen by the caller.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::{Errno, Result, check};

/// Rights on files and directories, with the numbers of `linux/landlock.h`.
pub mod access {
    pub const EXECUTE: u64 = 1 << 0;
    pub const WRITE_FILE: u64 = 1 << 1;
    pub const READ_FILE: u64 = 1 << 2;
    pub const READ_DIR: u64 = 1 << 3;
    pub const REMOVE_DIR: u64 = 1 << 4;
    pub const REMOVE_FILE: u64 = 1 << 5;
    pub const MAKE_CHAR: u64 = 1 << 6;
    pub const MAKE_DIR: u64 = 1 << 7;
    pub const MAKE_REG: u64 = 1 << 8;
    pub const MAKE_SOCK: u64 = 1 << 9;
    pub const MAKE_FIFO: u64 = 1 << 10;
    pub const MAKE_BLOCK: u64 = 1 << 11;
    pub const MAKE_SYM: u64 = 1 << 12;
    /// ABI 2.
    pub const REFER: u64 = 1 << 13;
    /// ABI 3.
    pub const TRUNCATE: u64 = 1 << 14;
    /// ABI 5.
    pub const IOCTL_DEV: u64 = 1 << 15;

    /// Rights that make sense on a file that is not a directory.
    pub const ON_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
}

/// Keep abstract Unix sockets of other domains out of reach (ABI 6).
pub const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
/// Keep signals within the domain (ABI 6).
pub const SCOPE_SIGNAL: u64 = 1 << 1;

const CREATE_RULESET_VERSION: libc::c_uint = 1;
const RULE_PATH_BENEATH: libc::c_uint = 1;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// The kernel's Landlock ABI; `None` where Landlock is absent or switched off.
pub fn abi() -> Option<u32> {
    let none = std::ptr::null::<RulesetAttr>();
    // SAFETY: with this flag the kernel reads no memory; it only answers its version.
    let answer = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_RULESET_VERSION)
    });
    answer.ok().and_then(|version| u32::try_from(version).ok())
}

/// Every file right that this ABI knows: what is handled is refused unless a rule grants it.
pub fn all_access(abi: u32) -> u64 {
    let known_bits = match abi {
        0 => 0,
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << known_bits) - 1
}

/// Starts a set of rules that refuses everything in `handled_access_fs`, and scopes `scoped`.
pub fn create_ruleset(handled_access_fs: u64, scoped: u64) -> Result<OwnedFd> {
    let attr = RulesetAttr { handled_access_fs, handled_access_net: 0, scoped };
    // Older kernels refuse a structure with fields they do not know, even when these are zero...
    // unless the tail is all zero, which they check (copy_struct_from_user). So one size serves all.
    // SAFETY: `attr` is fully initialised and outlives the call; the kernel copies it.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attr,
            size_of::<RulesetAttr>(),
            0,
        )
    })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just made this descriptor for us and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Grants `allowed_access` beneath the directory (or on the file) that `parent` is open on.
pub fn allow_beneath(ruleset: impl AsFd, parent: impl AsFd, allowed_access: u64) -> Result<()> {
    let attr = PathBeneathAttr { allowed_access, parent_fd: parent.as_fd().as_raw_fd() };
    // SAFETY: `attr` is fully initialised and outlives the call; both descriptors are borrowed open.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_fd().as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const attr,
            0,
        )
    })?;
    Ok(())
}

/// Puts the calling thread under the rules for good. Needs `no_new_privs`.
pub fn restrict_self(ruleset: impl AsFd) -> Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_fd().as_raw_fd(), 0)
    })?;
    Ok(())
}
