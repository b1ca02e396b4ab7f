//! What the suites share: starting `belljar` and reading its Outcome, directories that vanish, and
//! finding processes that should be gone.
//!
//! A suite never reads the checkout while it runs: the ordinary user may not be able to.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

mod directory;
mod processes;
mod program;
mod sandbox;
mod serving;
pub mod warm;

use std::path::PathBuf;

pub use belljar::{FaultDomain, Layer, Level, Outcome, Start, Verdict};
pub use directory::TempDir;
pub use processes::{
    Token, cgroup_directories, children, directories_of, name_of, processes_with,
    scratch_directories, wait_for, wait_until,
};
pub use program::{DEADLINE, Ended, Program, Running};
pub use sandbox::{Sandbox, asked, block_on, engine, engine_with, outcome};
pub use serving::Server;

/// The levels that this build can run.
pub const LEVELS: [Level; 4] = [Level::None, Level::Basic, Level::Standard, Level::Strict];

/// The binary under test.
pub fn belljar_bin() -> PathBuf {
    match std::env::var_os("BELLJAR_BIN") {
        Some(path) => PathBuf::from(path),
        // A plain `cargo test -p belljar-tests` after `cargo build`.
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../target/x86_64-unknown-linux-gnu/debug/belljar"),
    }
}

/// Whether this pass of the suites is root's.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// One test for each level: `each_level!(name, |level| { … })` makes `name::none` to `name::strict`.
/// A list of levels before the body restricts it.
#[macro_export]
macro_rules! each_level {
    ($name:ident, |$level:ident| $body:block) => {
        $crate::each_level!($name, [none, basic, standard, strict], |$level| $body);
    };
    ($name:ident, [$($which:ident),+], |$level:ident| $body:block) => {
        mod $name {
            use super::*;

            fn body($level: $crate::Level) $body

            $(
                #[test]
                fn $which() {
                    body(stringify!($which).parse().expect("a level of that name"));
                }
            )+
        }
    };
}
