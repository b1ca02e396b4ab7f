//! The warm suite: sandboxes that were made before their program, against those that were not. What a
//! program sees, what two of them share, and what becomes of the pool whatever happens to it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "warm/ending.rs"]
mod ending;
#[path = "warm/hygiene.rs"]
mod hygiene;
#[path = "warm/pool.rs"]
mod pool;
#[path = "warm/same.rs"]
mod same;
