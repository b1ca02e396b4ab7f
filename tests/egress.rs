//! The way out by host name: real servers on loopback, real clients inside, and attacks that work without us.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "egress/attacks.rs"]
mod attacks;
#[path = "egress/bounds.rs"]
mod bounds;
#[path = "egress/clients.rs"]
mod clients;
#[path = "egress/fronts.rs"]
mod fronts;
#[path = "egress/greetings.rs"]
mod greetings;
#[path = "egress/inspect.rs"]
mod inspect;
#[path = "egress/living.rs"]
mod living;
#[path = "egress/networks.rs"]
mod networks;
#[path = "egress/process.rs"]
mod process;
#[path = "egress/programs.rs"]
mod programs;
#[path = "egress/requests.rs"]
mod requests;
#[path = "egress/resolvers.rs"]
mod resolvers;
#[path = "egress/rig.rs"]
mod rig;
#[path = "egress/slice.rs"]
mod slice;
#[path = "egress/tightened.rs"]
mod tightened;
#[path = "egress/tools.rs"]
mod tools;
#[path = "egress/warm.rs"]
mod warm;
