//! What comes back from below: the step where a set-up stopped, and the raw facts of a run.

use std::sync::atomic::{AtomicU16, Ordering};

use belljar_sys::{Errno, errno_name};
use serde::{Deserialize, Serialize};

use crate::egress::Told;
use crate::layer::Check;
use crate::plan::{Fault, FaultKind};
use crate::tried::{Counted, Spilled, Touched, Tried};

/// One set-up action, by name. A `u8`, so that a child can tell its fate without allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Step {
    // In the keeper.
    Plan,
    Scratch,
    Cgroup,
    Clone,
    IdMap,
    ReadBack,
    // In init.
    Sources,
    Become,
    Hostname,
    Loopback,
    Root,
    Binds,
    Devices,
    Proc,
    Writable,
    Placed,
    Pivot,
    Fork,
    InitLockdown,
    // In the payload.
    Session,
    JoinCgroup,
    CgroupNamespace,
    Directory,
    Rlimits,
    Identity,
    NoNewPrivileges,
    Capabilities,
    Landlock,
    Descriptors,
    Seccomp,
    Exec,
    // In the keeper, when the payload is ready.
    Egress,
}

impl Step {
    pub const ALL: [Self; 32] = [
        Self::Plan,
        Self::Scratch,
        Self::Cgroup,
        Self::Clone,
        Self::IdMap,
        Self::ReadBack,
        Self::Sources,
        Self::Become,
        Self::Hostname,
        Self::Loopback,
        Self::Root,
        Self::Binds,
        Self::Devices,
        Self::Proc,
        Self::Writable,
        Self::Placed,
        Self::Pivot,
        Self::Fork,
        Self::InitLockdown,
        Self::Session,
        Self::JoinCgroup,
        Self::CgroupNamespace,
        Self::Directory,
        Self::Rlimits,
        Self::Identity,
        Self::NoNewPrivileges,
        Self::Capabilities,
        Self::Landlock,
        Self::Descriptors,
        Self::Seccomp,
        Self::Exec,
        Self::Egress,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Where a set-up stopped, and why. Which item of the step's list is told by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    pub step: Step,
    pub errno: i32,
    pub item: u16,
}

impl Stopped {
    pub fn new(step: Step, errno: Errno) -> Self {
        Self { step, errno: errno.raw_os_error(), item: 0 }
    }

    pub fn errno_name(&self) -> String {
        errno_name(Errno::from_raw_os_error(self.errno))
    }
}

/// Names the step that a call belongs to: `mount(…).at(Step::Root)?`.
pub(crate) trait At<T> {
    fn at(self, step: Step) -> Result<T, Stopped>;

    /// The same for one item of a list.
    fn at_item(self, step: Step, index: usize) -> Result<T, Stopped>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: Step) -> Result<T, Stopped> {
        self.at_item(step, 0)
    }

    fn at_item(self, step: Step, index: usize) -> Result<T, Stopped> {
        let item = u16::try_from(index).unwrap_or(u16::MAX);
        let value = self.map_err(|errno| Stopped { step, errno: errno.raw_os_error(), item })?;
        trip(step).map(|()| value)
    }
}

/// The step to break at, plus one; zero for none. Set once by the keeper and inherited over fork.
static FAULT: AtomicU16 = AtomicU16::new(0);
const DIES: u16 = 1 << 8;

pub(crate) fn arm(fault: Option<Fault>) {
    let Some(fault) = fault else { return };
    let dies = if fault.kind == FaultKind::Die { DIES } else { 0 };
    FAULT.store(u16::from(fault.step as u8 + 1) | dies, Ordering::Relaxed);
}

/// After the act of a step: breaks here if the plan asked for that.
fn trip(step: Step) -> Result<(), Stopped> {
    let armed = FAULT.load(Ordering::Relaxed);
    if armed & !DIES != u16::from(step as u8 + 1) {
        return Ok(());
    }
    if armed & DIES != 0 {
        // The result does not matter: what the signal does not end, the exit does.
        let (own, signal) = (rustix::process::getpid(), rustix::process::Signal::KILL);
        rustix::process::kill_process(own, signal).ok();
        // Process 1 of a namespace is deaf to its own signals.
        belljar_sys::process::exit_now(137);
    }
    Err(Stopped::new(step, Errno::IO))
}

/// A message of fixed size from a child to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Set-up, or exec, stopped here.
    Stopped(Stopped),
    /// Locked down and waiting to be released.
    Ready(Ready),
    /// The program ended and nothing of it is left.
    Ended(Ending),
    /// The files of a delivery are in their places.
    Placed,
    /// What stands over a secret of /proc was opened: its place among the watched ones.
    Touched(u16),
    /// The sandbox stands, init has no privileges left, and the payload may come.
    Standing,
    /// It has come, and waits to be put into its cgroup.
    Arrived,
}

/// What the payload read of itself, where only it can look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Inodes of its user, pid, mnt, net, ipc, uts and cgroup namespaces.
    pub namespaces: [u64; 7],
    /// The witness path was refused with EACCES.
    pub landlock_refuses: bool,
    /// So were a socket made before and a signal to init, with EPERM.
    pub scopes_refuse: bool,
    /// Descriptors from 3 up that exec would pass on.
    pub stray_fds: u64,
}

/// How the program ended, as init saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ending {
    pub exited: bool,
    /// The exit code, or the signal.
    pub value: i32,
    pub cpu_us: u64,
    pub max_resident_bytes: u64,
    pub disk: Option<Disk>,
}

const NOTE_BYTES: usize = 88;

impl Note {
    pub(crate) const BYTES: usize = NOTE_BYTES;

    pub(crate) fn to_bytes(self) -> [u8; NOTE_BYTES] {
        let words: [u64; 11] = match self {
            Self::Stopped(at) => {
                let errno = u64::from(at.errno.cast_unsigned());
                [1, u64::from(at.step as u8), errno, u64::from(at.item), 0, 0, 0, 0, 0, 0, 0]
            }
            Self::Ready(ready) => {
                let [a, b, c, d, e, f, g] = ready.namespaces;
                let refuses = [ready.landlock_refuses, ready.scopes_refuse].map(u64::from);
                [2, a, b, c, d, e, f, g, refuses[0], ready.stray_fds, refuses[1]]
            }
            Self::Ended(ending) => {
                let disk = ending.disk.unwrap_or_default();
                [
                    3,
                    u64::from(ending.exited),
                    u64::from(ending.value.cast_unsigned()),
                    ending.cpu_us,
                    ending.max_resident_bytes,
                    u64::from(ending.disk.is_some()),
                    disk.bytes_used,
                    disk.bytes_free,
                    disk.inodes_used,
                    disk.inodes_free,
                    disk.largest_file_bytes,
                ]
            }
            Self::Placed => [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Self::Standing => [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Self::Arrived => [6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Self::Touched(place) => [7, u64::from(place), 0, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; NOTE_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = [0u64; 11];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().ok()?);
        }
        let [kind, a, b, c, d, e, f, g, h, i, j] = words;
        let signed = |word: u64| u32::try_from(word).ok().map(u32::cast_signed);
        Some(match kind {
            1 => Self::Stopped(Stopped {
                step: Step::from_number(u8::try_from(a).ok()?)?,
                errno: signed(b)?,
                item: u16::try_from(c).ok()?,
            }),
            2 => Self::Ready(Ready {
                namespaces: [a, b, c, d, e, f, g],
                landlock_refuses: h == 1,
                scopes_refuse: j == 1,
                stray_fds: i,
            }),
            3 => Self::Ended(Ending {
                exited: a == 1,
                value: signed(b)?,
                cpu_us: c,
                max_resident_bytes: d,
                disk: (e == 1).then_some(Disk {
                    bytes_used: f,
                    bytes_free: g,
                    inodes_used: h,
                    inodes_free: i,
                    largest_file_bytes: j,
                }),
            }),
            4 => Self::Placed,
            5 => Self::Standing,
            6 => Self::Arrived,
            7 => Self::Touched(u16::try_from(a).ok()?),
            _ => return None,
        })
    }
}

/// The writable file system at the end of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    pub bytes_used: u64,
    pub bytes_free: u64,
    pub inodes_used: u64,
    pub inodes_free: u64,
    /// The longest file left behind: evidence for a file-size limit.
    pub largest_file_bytes: u64,
}

/// Keeper to engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The sandbox stands but for its payload, a zygote's copy, for which the descriptors are.
    Standing,
    /// The sandbox stands and was read back; the program has been released, or is waited for.
    Started(Started),
    /// Nothing of the program ran.
    Failed(Failed),
    /// The program tried something.
    Tried(Tried),
    /// It opened what stands in the place of a secret.
    Touched(Touched),
    /// What its way out has to tell.
    Egress(Told),
    /// It said a value that nobody needs.
    Spilled(Spilled),
    /// How often, just before the end.
    Counted(Counted),
    /// The program ended; init has been reaped.
    Ended(Report),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub stopped: Stopped,
    /// For a read-back that disagreed: what was found.
    pub checks: Vec<Check>,
}

/// The raw facts of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub end: End,
    /// Set when the keeper ended the run, with why; the first reason wins.
    pub ended_by: Option<Cause>,
    pub elapsed_us: u64,
    pub cpu_us: u64,
    pub memory_peak_bytes: Option<u64>,
    pub processes_peak: Option<u64>,
    pub oom_kills: u64,
    /// How often a fork was refused by the process limit.
    pub forks_refused: u64,
    pub disk: Option<Disk>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Exited(i32),
    Signaled(i32),
    /// Exec itself was refused.
    NotExecuted(i32),
    /// Init died without a word: our fault, or the host's.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    WallTime,
    CpuTime,
    Memory,
    Output,
    Cancelled,
}

/// Engine to keeper, after the plan: end the run, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    End(Cause),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_as_they_are_listed() {
        for (index, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(step as u8), index, "{step:?}");
        }
    }

    #[test]
    fn notes_survive_the_wire() {
        let stopped = Stopped { step: Step::Seccomp, errno: 22, item: 7 };
        let ready = Ready {
            namespaces: [1, 2, 3, 4, 5, 6, 7],
            landlock_refuses: true,
            scopes_refuse: true,
            stray_fds: 2,
        };
        let disk = Disk {
            bytes_used: 1,
            bytes_free: 2,
            inodes_used: 3,
            inodes_free: 4,
            largest_file_bytes: 5,
        };
        let ending =
            Ending { exited: false, value: 9, cpu_us: 8, max_resident_bytes: 7, disk: Some(disk) };
        let notes = [Note::Stopped(stopped), Note::Ready(ready), Note::Ended(ending)];
        let others = [Note::Placed, Note::Standing, Note::Arrived, Note::Touched(10)];
        for note in notes.into_iter().chain(others) {
            assert_eq!(Note::from_bytes(&note.to_bytes()), Some(note));
        }
    }

    #[test]
    fn a_note_of_no_known_kind_is_nothing() {
        assert_eq!(Note::from_bytes(&[9; NOTE_BYTES]), None);
    }
}
