//! Living sandboxes.

pub mod log;
mod root;
pub mod talk;
