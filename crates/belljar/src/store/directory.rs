//! The state directory: ours alone.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use super::StoreError;

/// Makes the directory if it is not there. One that others may write is refused, as they could replace
/// what is in it.
pub fn own_directory(path: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(StoreError::io(path))?;
    let status = fs::metadata(path).map_err(StoreError::io(path))?;
    let own = status.uid() == rustix::process::geteuid().as_raw();
    if own && status.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!(
        "must be your own and writable by you alone (it has mode {:o}, owner {}): give a \
         directory of its own with --state",
        status.mode() & 0o7777,
        status.uid()
    );
    Err(StoreError::io(path)(io::Error::other(why)))
}
