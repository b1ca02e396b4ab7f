//! Why a file operation was not done.

use belljar_jail::agent::wire::Fault;
use belljar_jail::report::Step;
use belljar_sys::{Errno, errno_name};

use crate::model::error::Error;

/// What was asked could not be done, and with which file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}")]
pub struct FileError {
    /// As far as it can be shown as text.
    pub path: String,
    pub fault: FileFault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    #[error("does not exist")]
    NotFound,
    #[error("exists already")]
    Exists,
    #[error("is not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("is not empty. hint: remove it with everything in it")]
    NotEmpty,
    #[error("permission denied")]
    Denied,
    #[error("is on a read-only file system")]
    ReadOnly,
    /// The sandbox's disk: bytes or inodes.
    #[error("the sandbox's disk is full")]
    Full,
    #[error("is larger than it may be")]
    TooLarge,
    #[error("goes through a symbolic link that is not followed, or through too many")]
    Links,
    #[error("its path or name is too long")]
    NameTooLong,
    #[error("is no regular file")]
    NotRegular,
    #[error("was moved or replaced meanwhile")]
    Changed,
    #[error(
        "is on another file system than where it should go. hint: copy it and remove the original"
    )]
    OtherFileSystem,
    /// It ended, or is ending, while it was asked.
    #[error("the sandbox ended meanwhile. hint: start it first")]
    Ended,
    /// Nothing in it can answer.
    #[error("the sandbox is paused. hint: resume it first")]
    Paused,
    /// The request or the archive is wrong.
    #[error("{0}")]
    Refused(String),
    /// The kernel's name of an error that has none above.
    #[error("{0}")]
    Kernel(String),
    /// The agent was lost or said what no agent says: nobody knows whether it was done.
    #[error("the sandbox's file agent {0}")]
    Agent(String),
    /// What was to be read or written on our own side.
    #[error("{0}")]
    Ours(String),
}

impl FileFault {
    /// Its name on the wire.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::NotDirectory => "not_a_directory",
            Self::IsDirectory => "is_a_directory",
            Self::NotEmpty => "not_empty",
            Self::Denied => "denied",
            Self::ReadOnly => "read_only",
            Self::Full => "disk_full",
            Self::TooLarge => "too_large",
            Self::Links => "links",
            Self::NameTooLong => "name_too_long",
            Self::NotRegular => "not_regular",
            Self::Changed => "changed",
            Self::OtherFileSystem => "other_file_system",
            Self::Ended => "conflict",
            Self::Paused => "paused",
            Self::Refused(_) => "refused",
            Self::Kernel(_) => "kernel",
            Self::Agent(_) => "agent",
            Self::Ours(_) => "ours",
        }
    }

    pub(super) fn at(self, path: &[u8]) -> FileError {
        FileError { path: String::from_utf8_lossy(path).into_owned(), fault: self }
    }

    /// Why no agent could be started. A sandbox may forbid its own user its own root, and may end at any moment: both
    /// are its own doing.
    pub(super) fn unstarted(error: &Error) -> Self {
        if let Error::Setup { step, errno, .. } = error {
            match (step, errno.as_str()) {
                (Step::Directory, "EACCES") => return Self::Denied,
                (Step::Fork, "ECHILD") => return Self::Ended,
                _ => {}
            }
        }
        Self::Agent(format!("cannot be started: {error}"))
    }

    pub(super) fn agent(what: &str) -> Self {
        Self::Agent(what.to_owned())
    }

    pub(super) fn told(fault: Fault) -> Self {
        match fault {
            Fault::NotRegular {} => Self::NotRegular,
            Fault::Changed {} => Self::Changed,
            Fault::TooMany {} => Self::agent("has too much open"),
            Fault::Kernel { errno } => {
                let errno = i32::try_from(errno).unwrap_or(0);
                // Others than the kernel's make no Errno.
                if !(1..4096).contains(&errno) {
                    return Self::agent("told an error that there is not");
                }
                Self::kernel(Errno::from_raw_os_error(errno))
            }
        }
    }

    fn kernel(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::ISDIR => Self::IsDirectory,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::ROFS => Self::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => Self::Full,
            Errno::FBIG => Self::TooLarge,
            Errno::LOOP => Self::Links,
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::XDEV => Self::OtherFileSystem,
            other => Self::Kernel(errno_name(other)),
        }
    }
}

/// Trouble on our own side of a transfer.
pub(super) fn ours(path: &[u8]) -> impl Fn(std::io::Error) -> FileError {
    move |error| FileFault::Ours(error.to_string()).at(path)
}
