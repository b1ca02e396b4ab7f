//! Who may change what: one process a state directory, one change a sandbox.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

/// As what a process takes a state directory: for its life, or for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Server,
    Command,
}

impl Holder {
    const fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Command => "command",
        }
    }
}

/// How long commands are waited for, and how often it is looked whether they are done.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long we wait for ourselves and for the dead: a child that has not executed its program yet holds what its parent
/// has let go of.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Takes the directory. A command that has it is waited for: it is done soon. A server is not.
pub(super) fn lock(sandboxes: &Path, holder: Holder) -> Result<File, StoreError> {
    let path = sandboxes.join("lock");
    let opened =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(StoreError::io(&path))?;
    let (begun, own) = (Instant::now(), std::process::id().to_string());
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(StoreError::io(&path)(errno.into())),
        }
        let mut said = String::new();
        file.rewind().map_err(StoreError::io(&path))?;
        (&file).take(40).read_to_string(&mut said).map_err(StoreError::io(&path))?;
        let (pid, as_what) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
        let patience = match as_what {
            _ if pid == own || !Path::new("/proc").join(pid).exists() => AFTERMATH,
            word if word == Holder::Server.word() => Duration::ZERO,
            _ => PATIENCE,
        };
        if begun.elapsed() >= patience {
            let (path, pid) = (sandboxes.to_owned(), pid.to_owned());
            return Err(StoreError::Owned { path, pid });
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
    let words = format!("{} {}\n", std::process::id(), holder.word());
    let written = file.rewind().and_then(|()| file.set_len(0));
    let written = written.and_then(|()| file.write_all(words.as_bytes()));
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
