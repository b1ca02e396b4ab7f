//! The rules as `build.rs` makes them from the TOML files beside this one.

use super::{Action, Mark};
use crate::model::event::{EventKind, Severity};

/// One system call and the place of its rule in `RULES` at basic, standard and strict.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) rules: [Option<usize>; 3],
}

/// The first exception that matches decides; otherwise `action`.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) action: Action,
    pub(super) mark: Mark,
    pub(super) exceptions: &'static [Exception],
    pub(super) condition: &'static str,
    pub(super) reason: &'static str,
}

/// Matches if all tests hold.
#[derive(Debug, PartialEq)]
pub(super) struct Exception {
    pub(super) tests: &'static [Test],
    pub(super) action: Action,
    pub(super) mark: Mark,
}

/// Holds if the masked argument is one of `values`, or none of them if `negated`.
#[derive(Debug, PartialEq)]
pub(super) struct Test {
    pub(super) argument: u32,
    pub(super) width: Width,
    pub(super) mask: u64,
    pub(super) negated: bool,
    pub(super) values: &'static [u32],
}

impl Exception {
    pub(super) fn holds(&self, args: &[u64; 6]) -> bool {
        self.tests.iter().all(|test| test.holds(args))
    }
}

impl Test {
    fn holds(&self, args: &[u64; 6]) -> bool {
        let Some(arg) = usize::try_from(self.argument).ok().and_then(|at| args.get(at)) else {
            return false;
        };
        let read = if self.width == Width::U32 { arg & 0xffff_ffff } else { *arg };
        let found = self.values.iter().any(|value| u64::from(*value) == read & self.mask);
        found != self.negated
    }
}

/// How much of the register the kernel reads. A filter that compares more is evaded by setting bits
/// that the kernel ignores (CVE-2019-10063); one that compares less, by bits that only the kernel
/// reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Width {
    U32,
    U64,
}

include!(concat!(env!("OUT_DIR"), "/seccomp_table.rs"));
