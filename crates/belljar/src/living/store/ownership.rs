//! Who may change what: one process a state directory, one change a sandbox.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use belljar_sys::Errno;
use rustix::fs::FlockOperation;

use super::StoreError;

/// Makes the directory if it is not there. One that others may write is refused: they could replace what is in it.
pub(super) fn own_directory(path: &Path) -> Result<(), StoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(StoreError::io(path))?;
    let status = fs::symlink_metadata(path).map_err(StoreError::io(path))?;
    let own = status.uid() == rustix::process::geteuid().as_raw();
    if own && status.is_dir() && status.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!(
        "must be a directory of your own, writable by you alone (it has mode {:o}, owner {})",
        status.mode() & 0o7777,
        status.uid()
    );
    Err(StoreError::io(path)(io::Error::other(why)))
}

pub(super) fn lock(sandboxes: &Path) -> Result<File, StoreError> {
    let path = sandboxes.join("lock");
    let opened =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(StoreError::io(&path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            file.take(20).read_to_string(&mut pid).map_err(StoreError::io(&path))?;
            return Err(StoreError::Owned {
                path: sandboxes.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(errno) => return Err(StoreError::io(&path)(errno.into())),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(StoreError::io(&path))?;
    Ok(file)
}

/// A change in progress.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Arc<Mutex<BTreeSet<String>>>,
    what: String,
}

impl Hold {
    pub(super) fn take(held: &Arc<Mutex<BTreeSet<String>>>, what: &str) -> Option<Self> {
        let mut all = held.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let new = all.insert(what.to_owned());
        new.then(|| Self { held: Arc::clone(held), what: what.to_owned() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut all = self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.remove(&self.what);
    }
}
