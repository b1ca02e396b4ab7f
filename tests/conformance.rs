//! What every run keeps, at every level that can: streams, verdicts, ends, receipts, files.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "conformance/ending.rs"]
mod ending;
#[path = "conformance/files.rs"]
mod files;
#[path = "conformance/limits.rs"]
mod limits;
#[path = "conformance/policy.rs"]
mod policy;
#[path = "conformance/receipt.rs"]
mod receipt;
#[path = "conformance/streams.rs"]
mod streams;
#[path = "conformance/truth.rs"]
mod truth;
#[path = "conformance/verdicts.rs"]
mod verdicts;
