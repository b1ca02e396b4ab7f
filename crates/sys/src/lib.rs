//! Safe doors to the Linux calls that a sandbox needs; the only crate where `unsafe` compiles.

pub mod attempt;
pub mod seccomp;
