//! The egress process: the only way out of a sandbox, by host name.
//!
//! It is started by the sandbox's keeper with a socket as standard input, gets its plan and the listeners that were
//! made inside the sandbox's network, locks itself down, and only then accepts. What it parses was written by hostile
//! programs, so it holds nothing worth having: no files, no privileges, no other sandbox.
//!
//! A connection goes through the same stages whichever way it came ([`door`] by address, [`proxy`] by word):
//! who is meant ([`names`], [`policy`]), which address that is ([`resolver`], [`address`]), what is spoken
//! ([`stream`], then [`tls`] or [`http`], and [`ended`] where a secret is put in), and then the bytes ([`relay`]). All of it counts ([`ledger`], [`budget`]).

mod address;
mod budget;
mod dns;
mod door;
mod ended;
mod http;
mod ledger;
mod message;
mod names;
#[cfg(any(test, feature = "fuzzing"))]
pub mod parsing;
mod policy;
mod process;
mod proxy;
mod relay;
mod resolver;
mod stream;
mod tls;

pub use address::is_public;
pub use process::main;
