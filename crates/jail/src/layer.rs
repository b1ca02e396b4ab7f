//! The barriers, by name. A receipt lists each one as it was read back.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One barrier between the program and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    WallTimeout,
    OutputCap,
    Environment,
    Descriptors,
    TreeKill,
    Session,
    Rlimits,
    NoNewPrivileges,
    Capabilities,
    Identity,
    /// An id that no other run on the host has at this time.
    UidPerRun,
    Landlock,
    /// Landlock's bounds on signals and abstract sockets, where no namespace does that.
    Scopes,
    Seccomp,
    UserNamespace,
    PidNamespace,
    MountNamespace,
    NetNamespace,
    IpcNamespace,
    UtsNamespace,
    CgroupNamespace,
    Root,
    Proc,
    Devices,
    Disk,
    CgroupMemory,
    CgroupPids,
    CgroupCpu,
    /// The way out: only what is allowed by name, through a process that is confined itself.
    Egress,
}

impl fmt::Display for Layer {
    /// The name on the wire.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}

/// A barrier as it was found just before the program was released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: Layer,
    /// What enforces it, with the kernel interface's version or the value that was read.
    pub mechanism: String,
    /// Whether what was read back is what the plan wanted.
    pub verified: bool,
}
