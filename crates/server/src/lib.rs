//! Belljar over HTTP: one long-lived engine on a Unix socket and on loopback TCP.
//!
//! `belljar serve` calls [`serve`]; `belljar run` finds a server by [`places`] and talks to it with the
//! types of [`wire`].

mod door;
mod http;
mod limits;
mod listen;
mod local;
pub mod mcp;
pub mod places;
mod problem;
mod serve;
mod stall;
mod stop;
mod token;
pub mod wire;

pub use limits::{CpuBudget, LimitOptions, Rate};
pub use local::Local;
pub use problem::{Problem, Refusal};
pub use serve::{Listening, Options, serve};
