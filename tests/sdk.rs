//! The Python package against a live server: its own tests, its types, its guide, and the wheel as users install it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "sdk/package.rs"]
mod package;
#[path = "sdk/wheel.rs"]
mod wheel;
