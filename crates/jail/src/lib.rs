//! What runs between fork and the user's program.
//!
//! Three roles, one file each: the [`keeper`] owns one sandbox from the host side, [`init`] is process
//! 1 inside, [`payload`] locks itself down and becomes the program. They carry out a [`plan::Plan`],
//! which leaves them no choices, and say in a [`report::Report`] what happened. Everything here is
//! single-threaded and links no runtime.

pub mod agent;
pub mod alarm;
mod cgroup;
pub mod copies;
pub mod egress;
mod ids;
mod init;
pub mod keeper;
pub mod layer;
pub mod living;
mod lockdown;
mod notify;
pub mod nursery;
mod payload;
pub mod plan;
mod readback;
pub mod redact;
pub mod report;
mod results;
mod root;
pub mod scratch;
mod tree;
pub mod tried;
mod tripwire;
mod watch;
pub mod wire;
pub mod zygote;

pub use payload::Interpreter;
pub use readback::NEVER_PASSED;

/// The word in `argv[1]` that makes the binary take the keeper's role.
pub const KEEPER_ROLE: &str = "__keeper";
/// The same for the nursery's.
pub const NURSERY_ROLE: &str = "__nursery";
/// The same for the keeper of a living sandbox.
pub const LIVING_ROLE: &str = "__living";
