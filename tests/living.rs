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
#[allow(dead_code, reason = "the suite of the server uses all of it")]
#[path = "server/http.rs"]
mod http;
#[path = "living/hygiene.rs"]
mod hygiene;
#[path = "living/killed.rs"]
mod killed;
#[path = "living/limits.rs"]
mod limits;
#[path = "living/lives.rs"]
mod lives;
#[path = "living/matrix.rs"]
mod matrix;
#[path = "living/meeting.rs"]
mod meeting;
#[path = "living/names.rs"]
mod names;
#[path = "living/once.rs"]
mod once;
#[path = "living/owners.rs"]
mod owners;
#[path = "living/rig.rs"]
mod rig;
#[path = "living/rounds.rs"]
mod rounds;
#[path = "living/sessions.rs"]
mod sessions;
#[path = "living/speaking.rs"]
mod speaking;
#[path = "living/streams.rs"]
mod streams;
#[path = "living/trees.rs"]
mod trees;
#[path = "living/verbs.rs"]
mod verbs;
