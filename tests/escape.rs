//! The escape suite: each hostile act is shown to work outside first, then refused inside in exactly
//! the way that its level promises. As root and as an ordinary user.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "escape/bounds.rs"]
mod bounds;
#[path = "escape/catalogue.rs"]
mod catalogue;
#[path = "escape/egress.rs"]
mod egress;
#[path = "escape/neighbours.rs"]
mod neighbours;
#[path = "escape/readback.rs"]
mod readback;
#[path = "escape/results.rs"]
mod results;
#[path = "escape/rig.rs"]
mod rig;
#[path = "escape/trusted.rs"]
mod trusted;
#[path = "escape/workspace.rs"]
mod workspace;
