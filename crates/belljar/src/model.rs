//! What was asked, what was resolved and what came of it. Pure: no input or output, no clock.

pub mod error;
pub mod level;
pub mod limits;
pub mod outcome;
pub mod receipt;
pub mod request;
pub mod spec;
pub mod units;
