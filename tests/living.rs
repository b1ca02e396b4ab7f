//! The living suite: sandboxes that stay, and any number of execs in them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "living/attacks.rs"]
mod attacks;
#[path = "living/ending.rs"]
mod ending;
#[path = "living/execs.rs"]
mod execs;
#[allow(dead_code, reason = "the suite of the server uses all of it")]
#[path = "server/http.rs"]
mod http;
#[path = "living/limits.rs"]
mod limits;
#[path = "living/matrix.rs"]
mod matrix;
#[path = "living/rig.rs"]
mod rig;
#[path = "living/speaking.rs"]
mod speaking;
#[path = "living/streams.rs"]
mod streams;
#[path = "living/verbs.rs"]
mod verbs;
