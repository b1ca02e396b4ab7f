//! Sealed grading: what passes, what fails, and what cannot be made to pass.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "grade/attacks.rs"]
mod attacks;
