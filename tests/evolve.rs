//! Evolution as its users meet it: it improves programs, keeps every step, survives being killed, pays for nothing
//! twice, and gives nothing away.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "evolve/adapters.rs"]
mod adapters;
#[path = "evolve/endpoints.rs"]
mod endpoints;
#[path = "evolve/improving.rs"]
mod improving;
#[path = "evolve/keeping.rs"]
mod keeping;
#[path = "evolve/model.rs"]
mod model;
#[path = "evolve/refusing.rs"]
mod refusing;
#[path = "evolve/rig.rs"]
mod rig;
#[path = "evolve/secrets.rs"]
mod secrets;
#[path = "evolve/tls.rs"]
mod tls;
