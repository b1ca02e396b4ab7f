//! The living suite: sandboxes that stay, and any number of execs in them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "living/attacks.rs"]
mod attacks;
#[path = "living/disks.rs"]
mod disks;
#[path = "living/ending.rs"]
mod ending;
#[path = "living/execs.rs"]
mod execs;
#[path = "living/limits.rs"]
mod limits;
#[path = "living/lives.rs"]
mod lives;
#[path = "living/owners.rs"]
mod owners;
#[path = "living/rig.rs"]
mod rig;
#[path = "living/rounds.rs"]
mod rounds;
#[path = "living/streams.rs"]
mod streams;
#[path = "living/verbs.rs"]
mod verbs;
