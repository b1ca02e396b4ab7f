//! Living sandboxes: named, with files that stay.

pub(crate) mod store;
