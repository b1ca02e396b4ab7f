//! Living sandboxes: named, durable, with files that stay.

pub(crate) mod contexts;
