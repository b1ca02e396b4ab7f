//! The way out by host name: real servers on loopback, real clients inside, and attacks that work without us.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "egress/attacks.rs"]
mod attacks;
#[path = "egress/clients.rs"]
mod clients;
#[path = "egress/living.rs"]
mod living;
#[path = "egress/process.rs"]
mod process;
#[path = "egress/requests.rs"]
mod requests;
#[path = "egress/rig.rs"]
mod rig;
#[path = "egress/slice.rs"]
mod slice;
