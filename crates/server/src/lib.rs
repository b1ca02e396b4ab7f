//! Belljar over HTTP: one long-lived engine on a Unix socket and on loopback TCP.
//!
//! `belljar serve` calls [`serve`]; `belljar run` finds a server by [`places`] and talks to it with the
//! types of [`wire`]. A request goes through [`front`], which knows every operation by the table in [`api`].

mod activation;
mod admission;
mod api;
mod connections;
mod door;
mod front;
mod http;
mod idempotency;
mod journal;
mod keys;
mod limits;
mod listen;
mod local;
pub mod mcp;
mod metrics;
mod openapi;
#[cfg(any(test, feature = "fuzzing"))]
pub mod parsing;
pub mod places;
mod policy;
mod principal;
mod problem;
mod scope;
mod serve;
mod shares;
mod stall;
mod stop;
mod tending;
mod token;
mod trace;
pub mod wire;

pub use admission::AdmissionOptions;
pub use journal::{LogForm, LogLevel};
pub use keys::{Key, NewKey};
pub use limits::{CpuBudget, LimitOptions, Rate};
pub use local::Local;
pub use problem::{CODES, Code, Problem, Refusal};
pub use scope::Scope;
pub use serve::{Listening, Options, serve};
pub use trace::Collector;

/// The OpenAPI document of what a server answers.
pub fn openapi() -> serde_json::Value {
    openapi::document(&http::api().finish().1)
}
