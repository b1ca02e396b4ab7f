//! The faults suite: a failure at every set-up step is told as that very step, the program never
//! runs, and nothing is left: no process, cgroup or directory.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "faults/guard.rs"]
mod guard;
#[path = "faults/host.rs"]
mod host;
#[path = "faults/natural.rs"]
mod natural;
#[path = "faults/steps.rs"]
mod steps;
