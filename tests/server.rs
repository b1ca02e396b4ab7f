//! `belljar serve` and its clients: runs and batches over HTTP, who may speak, how it fills and ends.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "server/abuse.rs"]
mod abuse;
#[path = "server/batches.rs"]
mod batches;
#[path = "server/client.rs"]
mod client;
#[path = "server/conforming.rs"]
mod conforming;
#[path = "server/door.rs"]
mod door;
#[path = "server/ending.rs"]
mod ending;
#[path = "server/errors.rs"]
mod errors;
#[path = "server/evolutions.rs"]
mod evolutions;
#[path = "server/full.rs"]
mod full;
#[path = "server/http.rs"]
mod http;
#[path = "server/keys.rs"]
mod keys;
#[path = "server/once.rs"]
mod once;
#[path = "server/operations.rs"]
mod operations;
#[path = "server/policies.rs"]
mod policies;
#[path = "server/recorded.rs"]
mod recorded;
#[path = "server/restarts.rs"]
mod restarts;
#[path = "server/running.rs"]
mod running;
#[path = "server/runs.rs"]
mod runs;
#[path = "server/screening.rs"]
mod screening;
#[path = "server/soak.rs"]
mod soak;
#[path = "server/tenants.rs"]
mod tenants;
#[path = "server/terminal.rs"]
mod terminal;
#[path = "server/tools.rs"]
mod tools;
