//! Raw doors for the probes that attack a sandbox from within: calls that no honest program makes,
//! reached without the courtesy of a wrapper that would refuse them first.
//!
//! Only the attack catalogue of the `belljar` crate comes here. Nothing on the path of a run does.

pub mod call;
pub mod child;
pub mod host;
pub mod names;
pub mod special;
