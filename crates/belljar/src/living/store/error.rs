//! What can go wrong with the files of sandboxes, and whose fault it is.

use std::io;
use std::path::{Path, PathBuf};

use belljar_sys::Errno;

use super::{Name, Tag};
use crate::model::error::SpecError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("there is no sandbox {0}")]
    NoSandbox(String),
    #[error("the name {0} is taken. hint: remove that sandbox, or choose another name")]
    Taken(Name),
    #[error("{sandbox} has no point {tag}. hint: belljar sandbox snapshots {sandbox}")]
    NoPoint { sandbox: Name, tag: String },
    #[error("{sandbox} has a point {tag} already. hint: remove it, or choose another tag")]
    PointTaken { sandbox: Name, tag: Tag },
    #[error("nothing to {0}")]
    Nothing(&'static str),
    #[error("{what}: at most {most}. hint: {hint}")]
    Full { what: String, most: u64, hint: &'static str },
    #[error(
        "{what}: at most {most} ({rule}). hint: {hint}, or have {rule} of belljar serve raised"
    )]
    Beyond { what: String, most: u64, rule: &'static str, hint: &'static str },
    #[error("{0} is being changed by another request")]
    Busy(String),
    #[error(
        "{} is in use by process {pid}. hint: one server owns a state directory; stop it, or give another with --state",
        .path.display()
    )]
    Owned { path: PathBuf, pid: String },
    #[error("{} cannot be read: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the archive is refused: {0}")]
    Archive(String),
    #[error(
        "a program has closed a directory of the sandbox to its own user, so that its files cannot be read. hint: go \
         back to a point before that with rollback"
    )]
    Closed,
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Only in tests: the point where a crash is tried.
    #[error("stopped at {0}")]
    Stopped(&'static str),
}

impl StoreError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// The same of files of a sandbox, which its programs may close.
    pub(crate) fn files(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.raw_os_error() {
            Some(errno) if errno == Errno::ACCESS.raw_os_error() => Self::Closed,
            _ => Self::Io { path, source },
        }
    }

    fn errno(&self) -> Option<i32> {
        let Self::Io { source, .. } = self else { return None };
        source.raw_os_error()
    }

    pub(crate) fn is_full(&self) -> bool {
        [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error())).contains(&self.errno())
    }

    /// The host lacks the means, rather than the operation having failed.
    pub(super) fn is_missing(&self) -> bool {
        let missing =
            [Errno::PERM, Errno::ACCESS, Errno::NOENT, Errno::NXIO, Errno::NODEV, Errno::NOSYS];
        missing.map(|errno| Some(errno.raw_os_error())).contains(&self.errno())
    }
}
