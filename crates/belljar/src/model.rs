//! What was asked, what was resolved and what came of it. Pure: no input or output, no clock.

pub(crate) mod egress;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod level;
pub(crate) mod limits;
pub(crate) mod outcome;
pub(crate) mod receipt;
pub(crate) mod recording;
pub(crate) mod request;
pub mod sandbox;
pub(crate) mod screening;
pub(crate) mod secret;
pub(crate) mod spec;
pub mod units;
pub(crate) mod wording;
