//! Sealed grading: what passes, what fails, and what cannot be made to pass.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "grade/asserts.rs"]
mod asserts;
#[path = "grade/attacks.rs"]
mod attacks;
#[path = "grade/calls.rs"]
mod calls;
#[path = "grade/command.rs"]
mod command;
#[path = "grade/faults.rs"]
mod faults;
#[path = "grade/hidden.rs"]
mod hidden;
#[path = "grade/lies.rs"]
mod lies;
#[path = "grade/sets.rs"]
mod sets;
#[path = "grade/streams.rs"]
mod streams;
