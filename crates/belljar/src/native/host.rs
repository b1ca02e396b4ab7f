//! What this host offers, looked at once when the engine opens.

use std::path::PathBuf;

use super::cgroups::{self, Cgroups};

/// Facts about this machine and this user.
#[derive(Clone, Debug)]
pub struct Host {
    pub uid: u32,
    pub gid: u32,
    pub landlock_abi: Option<u32>,
    pub kernel: String,
    /// Where cgroups can be made, or who makes them, or why they cannot be.
    pub cgroups: Cgroups,
    /// Holds the private directories of runs without a root of their own.
    pub scratch_parent: PathBuf,
}

impl Host {
    pub fn look() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self {
            uid,
            gid: rustix::process::getegid().as_raw(),
            landlock_abi: belljar_sys::landlock::abi(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cgroups: cgroups::find(uid),
            scratch_parent: std::env::temp_dir().join(format!("belljar-{uid}")),
        }
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}
