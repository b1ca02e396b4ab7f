//! The `belljar` command as people and scripts use it: words, exit codes, live output, terminals.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "cli/batches.rs"]
mod batches;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/exit_codes.rs"]
mod exit_codes;
#[path = "cli/languages.rs"]
mod languages;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/screening.rs"]
mod screening;
#[path = "cli/words.rs"]
mod words;
