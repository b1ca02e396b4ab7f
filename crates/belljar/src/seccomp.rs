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

mod program;
mod table;
#[cfg(test)]
mod tests;

use belljar_sys::seccomp::Instruction;
use std::fmt;
use table::{Call, Exception, Rule, Test, Width};

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

/// The filter as the kernel takes it.
pub fn compile(profile: Profile, adjust: &Adjust) -> Result<Vec<Instruction>, UnknownSyscall> {
    for name in adjust.allow.iter().chain(&adjust.deny) {
        // Known on any architecture is enough: a policy that denies `open` also suits aarch64,
        // where that call does not exist.
        if table::NAMES.binary_search(&name.as_str()).is_err() {
            return Err(UnknownSyscall { name: name.clone(), nearest: nearest(name) });
        }
    }
    Ok(program::assemble(&NATIVE, |call| decide(call, profile, adjust)))
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

/// The name of a call by its number on this machine, for events.
pub fn name(number: u32) -> Option<&'static str> {
    let place = NATIVE.calls.binary_search_by_key(&number, |call| call.number).ok()?;
    Some(NATIVE.calls[place].name)
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
}

impl Decision {
    const fn plain(action: Action) -> Decision {
        Decision { first: None, exceptions: &[], action }
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
};

/// One end of a datagram pair can still be connected, or sent, to any other socket; stream (1) and
/// seqpacket (5) pairs answer EISCONN. Types are listed because the kernel takes SOCK_RAW for
/// datagrams here.
static NO_DATAGRAM_PAIR: Exception = Exception {
    tests: &[Test { argument: 1, width: Width::U32, mask: 0xf, negated: true, values: &[1, 5] }],
    action: EPERM,
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
                Decision { first: None, exceptions: rule.exceptions, action: rule.action }
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
