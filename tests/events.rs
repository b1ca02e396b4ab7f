//! What is tried is told: for each kind of event and each decoded call a program that causes it, and a
//! near miss that does not.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

use belljar::{Event, EventKind, Outcome, Risk, Severity};

#[path = "events/bounds.rs"]
mod bounds;
#[path = "events/calls.rs"]
mod calls;
#[path = "events/hidden.rs"]
mod hidden;
#[path = "events/kinds.rs"]
mod kinds;
#[path = "events/masked.rs"]
mod masked;
#[path = "events/opens.rs"]
mod opens;
#[path = "events/recording.rs"]
mod recording;
#[path = "events/stream.rs"]
mod stream;
#[path = "events/text.rs"]
mod text;
#[path = "events/tools.rs"]
mod tools;

/// Raw calls by number, as the kernel of x86_64 counts them.
const CALL: &str = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    args = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_ulong(a & (1 << 64) - 1) for a in args]
    answer = libc.syscall(ctypes.c_long(number), *args)
    return ctypes.get_errno() if answer == -1 else 0
";

/// A program with [`CALL`] before it.
fn calling(code: &str) -> String {
    format!("{CALL}{code}")
}

fn above_info(outcome: &Outcome) -> Vec<&Event> {
    outcome.events.iter().filter(|event| event.severity > Severity::Info).collect()
}

/// The one event of a rule.
fn only<'a>(outcome: &'a Outcome, rule: &str) -> &'a Event {
    let found: Vec<&Event> = outcome.events.iter().filter(|event| event.rule == rule).collect();
    assert_eq!(found.len(), 1, "{rule}: {outcome:?}");
    found[0]
}

fn assert_innocent(outcome: &Outcome) {
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(above_info(outcome), Vec::<&Event>::new(), "{outcome:?}");
    assert_eq!((outcome.risk, &outcome.risk_reasons), (Risk::Low, &Vec::new()));
}

fn names(kind: EventKind, severity: Severity) -> String {
    format!("{} {}", kind.name(), severity.name())
}
