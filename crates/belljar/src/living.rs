//! Living sandboxes.

#[allow(dead_code, reason = "what calls it is made beside it")]
pub(crate) mod files;
