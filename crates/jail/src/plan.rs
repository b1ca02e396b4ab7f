//! The Plan: mechanical steps with no choices left. Made by the engine, carried out by the keeper.
//!
//! A Plan travels as JSON in a sealed memory file; descriptors travel beside it (see [`crate::wire`]).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::egress::EgressPlan;
use crate::layer::Layer;
use crate::report::Step;
use crate::tried::Listen;

/// Everything that one run needs, resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub id: String,
    pub identity: Identity,
    pub files: Files,
    pub cgroup: Option<Cgroup>,
    /// Absent only at level `none`.
    pub lockdown: Option<Lockdown>,
    pub program: Program,
    /// Files copied in before the program starts; the contents travel as descriptors, in this order.
    pub placed: Vec<Placed>,
    pub wall_ms: u64,
    pub cpu_ms: u64,
    /// Cores the run may use at once, in thousandths: how soon CPU time can possibly run out.
    pub millicpus: u64,
    /// Layers that must be found in place, or the program is not released.
    pub expect: Vec<Layer>,
    /// Hand out the workspace when the program has ended.
    pub keep_workspace: bool,
    /// Set up and verify, then wait for a [`Delivery`]: a sandbox made before there is a program for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What may be reached of the outside. Absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPlan>,
    /// What the egress process must know of secrets follows in a packet of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// Whose the user namespace is, if not the keeper's: the zygote's, whose copy shall be let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_uid: Option<u32>,
    /// Break at a step on purpose: how the tests prove that each failure is told and leaks nothing.
    pub fault: Option<Fault>,
}

/// What of a plan is one sandbox's alone. All the rest is the same for every sandbox of a kind, which is
/// written down and read once for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own {
    pub id: String,
    pub identity: Identity,
    /// The name of its cgroup, if it has one.
    pub name: String,
}

impl Plan {
    /// Makes the plan of a kind that of one sandbox.
    pub fn adopt(&mut self, own: Own) {
        let Own { id, identity, name } = own;
        (self.id, self.identity) = (id, identity);
        if let Some(cgroup) = &mut self.cgroup {
            cgroup.name = name;
        }
    }

    /// The payload is a copy of somebody else, who lets it in.
    pub fn is_joined(&self) -> bool {
        self.hold == Some(Hold::Forked)
    }

    /// Its network is there from the beginning, and not made by the payload beside everything else: somebody will
    /// join it.
    pub(crate) fn has_network_early(&self) -> bool {
        self.hold.is_some() || self.egress.is_some()
    }

    /// It is put into its v2 cgroup by the keeper: it comes as somebody who may not go there itself.
    pub(crate) fn is_moved(&self) -> bool {
        let v2 = |one: &Hierarchy| one.version == CgroupVersion::V2;
        self.owner_uid.is_some()
            && self.cgroup.as_ref().is_some_and(|one| one.hierarchies.iter().any(v2))
    }
}

/// What waits in a sandbox that is held. In each case locked down, and found to be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The payload, about to execute the program.
    Exec,
    /// An interpreter that was executed and has started. It takes the delivery from [`DELIVERY_FD`].
    Started,
    /// A copy of a zygote, which takes the delivery in the same way.
    Forked,
}

/// Where a waiting interpreter says that it waits (one byte), reads its [`Invocation`] (one message)
/// and sees that none will come (the end). It closes it before it runs the program.
pub const DELIVERY_FD: i32 = 3;

/// The largest delivery, files not counted: what a Unix socket takes at once without being asked to.
pub const MAX_DELIVERY_BYTES: usize = 160 << 10;

/// What makes a held sandbox one run's own. The contents of the files travel as descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub placed: Vec<Placed>,
    pub wall_ms: u64,
    /// As in a plan.
    pub egress: Option<EgressPlan>,
    /// A process that was kept ready for it, by its number. Its socket and a descriptor for itself come last.
    pub exit: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
}

/// The part of a delivery that reaches the program's own process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Invocation {
    /// How many arguments, the arguments, then `NAME=VALUE`, each ended by a NUL, which none of them can
    /// hold: what an interpreter takes apart with the least ado.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{}\0", self.argv.len()).into_bytes();
        for argument in &self.argv {
            bytes.extend([argument.as_bytes(), b"\0"].concat());
        }
        for (name, value) in &self.environment {
            bytes.extend([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.split_terminator('\0');
        let count = words.next()?.parse().ok()?;
        let argv: Vec<String> = words.by_ref().take(count).map(ToOwned::to_owned).collect();
        let pair = |word: &str| {
            word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let environment = words.map(pair).collect::<Option<_>>()?;
        (argv.len() == count).then_some(Self { argv, environment })
    }
}

/// Who the program is, seen from the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// The caller's own ids.
    Caller,
    /// Become these unprivileged ids (root, without a user namespace).
    Host { uid: u32, gid: u32 },
    /// A user namespace with exactly one id, which stands for this host id.
    Mapped { inside: u32, uid: u32, gid: u32, writer: MapWriter },
}

/// Who writes the id maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MapWriter {
    /// The keeper itself: it is root, or maps only its own id.
    Keeper,
    /// `newuidmap` and `newgidmap`: the id comes from the caller's subordinate range.
    Helpers,
}

/// Where the program's files come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a process has one plan, and most have a root")]
pub enum Files {
    /// The host's own tree, with a private directory to work in (levels without namespaces).
    Host { scratch: Scratch },
    /// A root of its own.
    Root(Root),
}

/// A private directory on the host, made for one run and removed with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scratch {
    /// Holds the scratch directories of one user; ours alone.
    pub parent: PathBuf,
    pub name: String,
    pub directories: Vec<String>,
}

impl Scratch {
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }
}

/// A root made from nothing: what is not listed does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    pub hostname: String,
    pub binds: Vec<Bind>,
    pub directories: Vec<PathBuf>,
    pub symlinks: Vec<Symlink>,
    pub texts: Vec<Text>,
    pub devices: Vec<Device>,
    pub pseudo_terminals: bool,
    pub proc: Proc,
    pub writable: Writable,
    /// A living sandbox's: overlays in place of the read-only root, the one of `/` first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<Tree>,
    /// What bounds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
}

/// What bounds the files that a living sandbox writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The uppers are on a file system of their own, mounted here, that is no larger.
    FileSystem { mounted: PathBuf, bytes: u64, inodes: u64 },
    /// The keeper measures the uppers while something runs, and ends what runs when they are larger.
    Measured { bytes: u64, inodes: u64 },
}

/// Directories one over the other, of which only the topmost is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    pub target: PathBuf,
    /// The topmost first.
    pub lowers: Vec<PathBuf>,
    pub upper: PathBuf,
    /// Empty, and on the same file system as the upper.
    pub work: PathBuf,
}

/// A host path shown inside. The identity is checked again when it is opened inside the namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub kind: BindKind,
    /// Device and inode that the source had when the plan was made.
    pub identity: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindKind {
    ReadOnlyDirectory,
    ReadOnlyFile,
    WritableDirectory,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symlink {
    pub link: PathBuf,
    pub points_to: PathBuf,
}

/// A small file that is written into the root before it becomes read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    pub path: PathBuf,
    pub contents: String,
}

/// A device node taken from the host, with the numbers it must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    pub name: String,
    pub major: u32,
    pub minor: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proc {
    /// Show only processes, nothing of the kernel (`subset=pid`).
    pub only_processes: bool,
    /// Covered by something empty, where they exist.
    pub masked: Vec<String>,
    /// Those of them that are watched: nobody opens them by accident.
    pub watched: Vec<String>,
    /// Not mounted at all: the request blocked /proc.
    pub absent: bool,
}

/// The one bounded file system that holds everything the program may write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writable {
    pub bytes: u64,
    pub inodes: u64,
    pub directories: Vec<WritableDirectory>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WritableDirectory {
    pub name: String,
    pub target: PathBuf,
}

/// A cgroup for the program: one directory in each hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cgroup {
    pub name: String,
    pub hierarchies: Vec<Hierarchy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hierarchy {
    pub version: CgroupVersion,
    pub controllers: Vec<Controller>,
    pub place: Place,
    pub knobs: Vec<Knob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
    Cpuacct,
    /// v1 only: v2 freezes every group.
    Freezer,
}

impl Controller {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Freezer => "freezer",
        }
    }
}

/// Where the directory is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In this existing directory, which is ours to use.
    Beneath(PathBuf),
    /// In the keeper's own cgroup under this mount, delegated to it alone (a transient scope).
    Own { mount: PathBuf },
}

/// One value written to one file of the cgroup, and read back before the program is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knob {
    pub file: String,
    pub value: String,
    /// Swap accounting and group kill are not in every kernel; everything else must be there.
    pub if_present: bool,
}

/// What the payload does to itself, in this order, before it becomes the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lockdown {
    pub rlimits: Vec<Rlimit>,
    pub landlock: Option<Landlock>,
    /// Classic BPF, each instruction packed into one number (see [`pack`]).
    pub filter: Vec<u64>,
    /// What the filter brings to the keeper; without it the filter answers everything itself.
    pub listen: Option<Listen>,
}

/// A resource limit, soft and hard alike, so that it cannot be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rlimit {
    pub resource: Resource,
    pub value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    Core,
    CpuSeconds,
    DataBytes,
    FileBytes,
    OpenFiles,
    Processes,
    MessageQueueBytes,
    LockedBytes,
    PendingSignals,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Landlock {
    pub abi: u32,
    pub rules: Vec<LandlockRule>,
    pub scopes: u64,
    /// A file that opened before and must be refused (`EACCES`) after.
    pub witness: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandlockRule {
    pub path: PathBuf,
    pub access: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub path: PathBuf,
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub directory: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placed {
    pub path: PathBuf,
    pub executable: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub step: Step,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The step reports EIO.
    Error,
    /// The process that reaches the step dies by SIGKILL.
    Die,
}

/// A BPF instruction as one number, so that a filter is a plain list on the wire.
pub fn pack(instruction: belljar_sys::seccomp::Instruction) -> u64 {
    u64::from(instruction.code)
        | u64::from(instruction.jump_true) << 16
        | u64::from(instruction.jump_false) << 24
        | u64::from(instruction.k) << 32
}

/// The reverse of [`pack`].
pub fn unpack(packed: u64) -> belljar_sys::seccomp::Instruction {
    let bytes = packed.to_le_bytes();
    belljar_sys::seccomp::Instruction {
        code: u16::from_le_bytes([bytes[0], bytes[1]]),
        jump_true: bytes[2],
        jump_false: bytes[3],
        k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invocation_survives_the_wire() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let invocation = Invocation {
            argv: vec!["python3".to_owned(), String::new(), "a=b\n".to_owned()],
            environment: vec![pair("A", ""), pair("B", "c=d")],
        };
        assert_eq!(Invocation::from_bytes(&invocation.to_bytes()), Some(invocation));
        for cut in [&b""[..], b"2\0one\0", b"x\0", b"0\0no pair\0"] {
            assert_eq!(Invocation::from_bytes(cut), None);
        }
    }

    #[test]
    fn an_instruction_survives_packing() {
        let instruction = belljar_sys::seccomp::Instruction {
            code: 0x15,
            jump_true: 3,
            jump_false: 250,
            k: 0xc000_003e,
        };
        assert_eq!(unpack(pack(instruction)), instruction);
    }
}
