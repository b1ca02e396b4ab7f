//! The seccomp filters of the native backend: which system calls a program may make at each level.
//!
//! The decisions are data, `seccomp/{basic,standard,strict}.toml`, with a written reason for every
//! rule. `basic` decides every call the kernel has; `standard` gives back what namespaces make
//! harmless; `strict` takes away what no language runtime needs. Strict is written as a subtraction
//! rather than as a list of its own, so that each thing it refuses has its reason and it cannot
//! allow by accident what standard refuses (a test holds it to that).
//!
//! `build.rs` checks the files and makes the static table in `table.rs`; [`compile`] applies a
//! request's adjustments and `program.rs` writes the BPF. All of it is pure and takes microseconds.
//!
//! Two answers mean "no". A call that the kernel knows and we refuse is `EPERM`, or the errno after
//! which real programs take another way (`ENOSYS` for `clone3`). A number that nobody knows is
//! `ENOSYS`, as from a kernel without it. Wrong-architecture and x32 calls end the process: there
//! the numbers mean other calls, and no honest program makes them.

mod egress;
mod program;
mod table;
#[cfg(test)]
mod tests;

use belljar_sys::seccomp::Instruction;
use std::fmt;
use table::{Call, Exception, Rule, Test, Width};

use crate::model::event::{EventKind, Severity};

pub(crate) use egress::compile as compile_egress;

/// The filter of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// No namespaces: no sockets, and nothing that reaches the host user's other processes or files.
    Basic,
    /// Inside namespaces: what ordinary programs use.
    Standard,
    /// Inside namespaces: only what the language runtimes need.
    Strict,
}

/// What a request changes in a profile. The architecture checks cannot be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjust {
    /// Calls to allow whatever their arguments.
    pub allow: Vec<String>,
    /// Calls to refuse with `EPERM`. A name in both lists is refused.
    pub deny: Vec<String>,
    /// A directory of the host is mounted: no Unix socket may be made that could be connected, or
    /// sent, to a socket of the host's in there. Holds even if `allow` names `socket`, because it
    /// is the mount's promise and not the level's.
    pub refuse_unix_sockets: bool,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    /// The call is not made and fails with this errno.
    Errno(u16),
}

const EPERM: Action = Action::Errno(1);
const ENOSYS: Action = Action::Errno(38);

/// What a refusal is told as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Not at all: the filter answers by itself.
    Quiet,
    Told(EventKind, Severity),
}

/// A call of a request's own list, and one that our reviewers do not know.
const PLAIN: Mark = Mark::Told(EventKind::SyscallBlocked, Severity::Low);

/// What is brought to the keeper instead of being answered by the filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hearing {
    #[default]
    Nothing,
    /// What is refused, where connections go, and what is opened to be written to and must be there already.
    Refusals,
    /// Also what is opened, executed and written.
    Record,
}

impl Hearing {
    /// Whether a call is looked at where it is allowed.
    fn sees(self, name: &str) -> Seen {
        match (self, name) {
            (Self::Refusals, "connect") => Seen::Always,
            (Self::Refusals, "open") => Seen::If(&WRITES_TO_OLD[0]),
            (Self::Refusals, "openat") => Seen::If(&WRITES_TO_OLD[1]),
            (Self::Record, name) if RECORDED.contains(&name) => Seen::Always,
            (Self::Nothing | Self::Refusals | Self::Record, _) => Seen::Never,
        }
    }
}

/// When an allowed call is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Never,
    Always,
    /// Where all of these hold.
    If(&'static [Test]),
}

/// Opens that write to what must be there already, by open and by openat: O_WRONLY or O_RDWR without O_CREAT, __O_TMPFILE
/// and O_PATH. Few programs do that to files of their own, so it costs little to look; attempts on devices and on the
/// kernel's own files are mostly made so.
static WRITES_TO_OLD: [[Test; 2]; 2] = [writes_to_old(1), writes_to_old(2)];

const fn writes_to_old(flags: u32) -> [Test; 2] {
    const WRITES: u64 = 0o3;
    const MAKES: u64 = 0o100 | 0o2000_0000 | 0o1000_0000;
    [
        Test { argument: flags, width: Width::U32, mask: WRITES, negated: true, values: &[0] },
        Test { argument: flags, width: Width::U32, mask: MAKES, negated: false, values: &[0] },
    ]
}

/// What a recorded run tells of.
const RECORDED: [&str; 13] = [
    "connect", "creat", "execve", "execveat", "open", "openat", "pwrite64", "pwritev", "pwritev2",
    "sendfile", "sendto", "write", "writev",
];

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Allow => f.write_str("allow"),
            Action::Errno(1) => f.write_str("EPERM"),
            Action::Errno(22) => f.write_str("EINVAL"),
            Action::Errno(38) => f.write_str("ENOSYS"),
            Action::Errno(number) => write!(f, "errno {number}"),
        }
    }
}

/// A request names a call that no supported architecture has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no system call is named \"{name}\"{}", did_you_mean(*nearest))]
pub struct UnknownSyscall {
    pub name: String,
    pub nearest: Option<&'static str>,
}

/// The rule for one call, for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleView {
    pub name: &'static str,
    /// What becomes of the call if no condition says otherwise.
    pub action: Action,
    /// What is decided by arguments, such as `EPERM if mode & S_ISUID|S_ISGID not in 0`, or empty.
    pub condition: &'static str,
    pub reason: &'static str,
}

/// Known on any architecture is enough: a policy that denies `open` also suits aarch64, where that call does not exist.
pub(crate) fn check_names(names: &[String]) -> Result<(), UnknownSyscall> {
    let unknown = |name: &&String| table::NAMES.binary_search(&name.as_str()).is_err();
    names
        .iter()
        .find(unknown)
        .map_or(Ok(()), |name| Err(UnknownSyscall { name: name.clone(), nearest: nearest(name) }))
}

/// The filter as the kernel takes it.
pub fn compile(
    profile: Profile,
    adjust: &Adjust,
    hearing: Hearing,
) -> Result<Vec<Instruction>, UnknownSyscall> {
    check_names(&adjust.allow)?;
    check_names(&adjust.deny)?;
    let decide = |call: &Call| {
        let seen = hearing.sees(call.name);
        Decision { seen, ..decide(call, profile, adjust) }
    };
    Ok(program::assemble(&NATIVE, hearing, decide))
}

/// A filter that lets these calls through and no other. A name that this machine has no call for needs none.
pub(crate) fn compile_only(names: &[&str]) -> Vec<Instruction> {
    let decide = |call: &Call| {
        let action = if names.contains(&call.name) { Action::Allow } else { EPERM };
        Decision { mark: Mark::Quiet, ..Decision::plain(action) }
    };
    program::assemble(&NATIVE, Hearing::Nothing, decide)
}

/// Why a call was refused: the same decision again, for the words of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub name: &'static str,
    pub mark: Mark,
    /// The request itself named the call.
    pub by_request: bool,
    /// No `--allow-syscall` would help.
    pub by_workspace: bool,
    /// It would be allowed at standard.
    pub allowed_at_standard: bool,
}

/// The refusal of a call by its number and arguments; `None` if it is allowed.
pub(crate) fn refusal(
    profile: Profile,
    adjust: &Adjust,
    number: u32,
    args: &[u64; 6],
) -> Option<Refusal> {
    let call = call_of(number)?;
    let decision = decide(call, profile, adjust);
    let by_workspace = decision.first.is_some_and(|first| first.holds(args));
    let (action, mark) = decision.of(args);
    let at_standard = decide(call, Profile::Standard, &Adjust::default()).of(args).0;
    (action != Action::Allow).then(|| Refusal {
        name: call.name,
        mark,
        by_request: adjust.deny.iter().any(|name| name == call.name),
        by_workspace,
        allowed_at_standard: profile != Profile::Standard && at_standard == Action::Allow,
    })
}

/// A refusal of a call of which nothing is known but how grave it was.
pub(crate) fn refusal_so_grave(
    profile: Profile,
    adjust: &Adjust,
    number: u32,
    severity: Severity,
) -> Option<Refusal> {
    let call = call_of(number)?;
    let decision = decide(call, profile, adjust);
    let exceptions = decision.first.into_iter().chain(decision.exceptions);
    let mut marks = exceptions.map(|one| one.mark).chain([decision.mark]);
    let mark = marks.find(|mark| matches!(mark, Mark::Told(_, found) if *found == severity))?;
    let at_standard = decide(call, Profile::Standard, &Adjust::default()).action;
    Some(Refusal {
        name: call.name,
        mark,
        by_request: adjust.deny.iter().any(|name| name == call.name),
        by_workspace: false,
        allowed_at_standard: profile != Profile::Standard && at_standard == Action::Allow,
    })
}

/// Every rule of a profile, in the order of call numbers.
pub fn rules(profile: Profile) -> impl Iterator<Item = RuleView> {
    NATIVE.calls.iter().filter_map(move |call| {
        let rule = rule(call, profile)?;
        Some(RuleView {
            name: call.name,
            action: rule.action,
            condition: rule.condition,
            reason: rule.reason,
        })
    })
}

fn call_of(number: u32) -> Option<&'static Call> {
    let place = NATIVE.calls.binary_search_by_key(&number, |call| call.number).ok()?;
    NATIVE.calls.get(place)
}

/// The name of a call by its number on this machine, for events.
pub fn name(number: u32) -> Option<&'static str> {
    call_of(number).map(|call| call.name)
}

/// The number of a call on this machine, if it has it.
pub(crate) fn number(name: &str) -> Option<u32> {
    NATIVE.calls.iter().find(|call| call.name == name).map(|call| call.number)
}

/// One architecture: what the kernel reports for it, and its calls in the order of their numbers.
struct Machine {
    audit_arch: u32,
    calls: &'static [Call],
    /// Has a second set of calls behind a bit in the number (x86_64 only).
    x32: bool,
}

#[cfg(any(target_arch = "x86_64", test))]
const X86_64: Machine = Machine { audit_arch: 0xc000_003e, calls: table::X86_64_CALLS, x32: true };

#[cfg(any(target_arch = "aarch64", test))]
const AARCH64: Machine =
    Machine { audit_arch: 0xc000_00b7, calls: table::AARCH64_CALLS, x32: false };

#[cfg(target_arch = "x86_64")]
const NATIVE: Machine = X86_64;

#[cfg(target_arch = "aarch64")]
const NATIVE: Machine = AARCH64;

/// What is done with one call, after adjustments.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decision {
    /// Looked at before `exceptions`: a promise that stands above the profile.
    first: Option<&'static Exception>,
    exceptions: &'static [Exception],
    action: Action,
    mark: Mark,
    seen: Seen,
}

impl Decision {
    /// As a kernel without the call answers, and as little worth telling.
    const ABSENT: Decision = Decision { mark: Mark::Quiet, ..Decision::plain(ENOSYS) };

    const fn plain(action: Action) -> Decision {
        Decision { first: None, exceptions: &[], action, mark: PLAIN, seen: Seen::Never }
    }

    fn of(&self, args: &[u64; 6]) -> (Action, Mark) {
        let mut cases = self.first.into_iter().chain(self.exceptions);
        let case = cases.find(|exception| exception.holds(args));
        case.map_or((self.action, self.mark), |case| (case.action, case.mark))
    }
}

/// A pathname socket in a mounted directory belongs to a process outside.
static NO_UNIX_SOCKET: Exception = Exception {
    tests: &[Test {
        argument: 0,
        width: Width::U32,
        mask: 0xffff_ffff,
        negated: false,
        values: &[1],
    }],
    action: EPERM,
    mark: Mark::Told(EventKind::PermissionDenied, Severity::Info),
};

/// One end of a datagram pair can still be connected, or sent, to any other socket; stream (1) and
/// seqpacket (5) pairs answer EISCONN. Types are listed because the kernel takes SOCK_RAW for
/// datagrams here.
static NO_DATAGRAM_PAIR: Exception = Exception {
    tests: &[Test { argument: 1, width: Width::U32, mask: 0xf, negated: true, values: &[1, 5] }],
    action: EPERM,
    mark: PLAIN,
};

fn decide(call: &Call, profile: Profile, adjust: &Adjust) -> Decision {
    let named = |list: &[String]| list.iter().any(|name| name == call.name);
    let mut decision = if named(&adjust.deny) {
        Decision::plain(EPERM)
    } else if named(&adjust.allow) {
        Decision::plain(Action::Allow)
    } else {
        match rule(call, profile) {
            Some(rule) => {
                let Rule { action, mark, exceptions, .. } = *rule;
                Decision { exceptions, mark, ..Decision::plain(action) }
            }
            // Known to the kernel but not to our reviewers.
            None => Decision::plain(EPERM),
        }
    };
    if adjust.refuse_unix_sockets {
        decision.first = match call.name {
            "socket" => Some(&NO_UNIX_SOCKET),
            "socketpair" => Some(&NO_DATAGRAM_PAIR),
            _ => None,
        };
    }
    decision
}

fn rule(call: &Call, profile: Profile) -> Option<&'static Rule> {
    let level = match profile {
        Profile::Basic => 0,
        Profile::Standard => 1,
        Profile::Strict => 2,
    };
    call.rules[level].and_then(|place| table::RULES.get(place))
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

/// The known name that is at most two typing errors away.
fn nearest(name: &str) -> Option<&'static str> {
    const FARTHEST: usize = 2;
    table::NAMES
        .iter()
        .filter(|known| known.len().abs_diff(name.len()) <= FARTHEST)
        .map(|known| (edits(name, known), *known))
        .filter(|(distance, _)| *distance <= FARTHEST)
        .min()
        .map(|(_, known)| known)
}

/// Levenshtein's distance: letters put in, taken out or changed.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
