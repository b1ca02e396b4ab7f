//! Living sandboxes from the engine's side: raising one, finding one that stands, and speaking with its keeper.
//!
//! [`raise`] starts a keeper that outlives us; [`Living::connect`] finds it again by the socket in its sandbox's
//! directory. What execs wrote and how they ended is read from files there ([`records`], [`output`]), so it is known
//! when nothing lives any more, too.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belljar_jail::layer::Check;
use belljar_jail::living::log::Piece;
use belljar_jail::living::talk::SandboxEnd;
use belljar_jail::plan::Tree;

use crate::engine::Engine;
use crate::model::error::{Error, SpecError};
use crate::model::event::Event;
use crate::model::outcome::Stream;
use crate::model::receipt::Receipt;
use crate::model::sandbox::{
    ExecEvent, ExecInfo, ExecRequest, SandboxRequest, SandboxUsage, TerminalSize,
};
use crate::model::spec::Spec;

/// What a sandbox is raised from.
#[derive(Clone, Debug)]
pub(crate) struct Raise {
    /// Never changes.
    pub id: String,
    /// Its host name.
    pub name: String,
    /// Level, limits, variables, system calls; see [`spec`].
    pub spec: Spec,
    /// Its files: one overlay for `/`, one for `/usr`, perhaps one for `/workspace` (copy-on-write).
    pub trees: Vec<Tree>,
    /// A host directory or volume at /workspace, as it is.
    pub workspace: Option<Shared>,
    /// Where programs may write; everywhere when empty.
    pub write_paths: Vec<PathBuf>,
    /// `STATE/sandboxes/ID`, which exists and is ours alone.
    pub directory: PathBuf,
    /// The host id that its files belong to; see [`owner`].
    pub owner: (u32, u32),
    pub disk: DiskBound,
    pub idle: Option<Duration>,
    pub expires_at: Option<SystemTime>,
}

/// A host directory that is shown at /workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub path: PathBuf,
    pub writable: bool,
}

/// What bounds the files that a sandbox writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskBound {
    /// The uppers are on a file system of that size, mounted here: full is `ENOSPC`, by the kernel.
    FileSystem(PathBuf),
    /// The keeper measures the uppers while something runs.
    Measured,
}

/// A sandbox that stands, and the line to its keeper. Dropping it changes nothing: the sandbox goes on.
#[derive(Debug)]
pub(crate) struct Living {
    directory: PathBuf,
}

/// An exec that was released.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub id: String,
    /// Every layer, as it was found just before the release.
    pub checks: Vec<Check>,
}

/// The Spec of a sandbox. Levels without a root of their own have none that could live.
pub(crate) fn spec(request: &SandboxRequest) -> Result<Spec, SpecError> {
    drop(request);
    Err(SpecError::new("level", "not yet"))
}

/// The host id for files of a sandbox: the caller's own, or for root one of a range that nobody else has. Sandboxes
/// that share sheets must share `number`.
pub(crate) fn owner(engine: &Engine, number: u32) -> (u32, u32) {
    drop((engine, number));
    (0, 0)
}

/// Writes the base of `/` for the image `host` into an empty directory: /etc, mount points, links.
pub(crate) fn furnish_base(directory: &Path) -> io::Result<()> {
    drop(directory);
    Err(io::Error::other("not yet"))
}

/// Makes an upper (and, empty beside it, its work directory) ready for a sandbox: both exist and belong to `owner`.
/// For the upper of `/` that no sheet lies under, also its home, /tmp and /workspace.
pub(crate) fn furnish_upper(tree: &Tree, owner: (u32, u32)) -> io::Result<()> {
    drop((tree, owner));
    Err(io::Error::other("not yet"))
}

/// Starts a keeper for it and waits until it stands: every layer was verified on a payload that ran nothing.
pub(crate) async fn raise(engine: &Engine, raise: Raise) -> Result<Living, Error> {
    drop((engine, raise));
    Err(not_yet())
}

fn not_yet() -> Error {
    Error::Backend { operation: "raise a sandbox", source: io::Error::other("not yet") }
}

impl Living {
    /// The keeper of the sandbox in this directory; `None` when none lives.
    pub(crate) async fn connect(directory: &Path) -> Result<Option<Self>, Error> {
        drop(directory);
        Err(not_yet())
    }

    /// What was verified when it was raised.
    pub(crate) fn receipt(&self) -> &Receipt {
        unreachable!("not yet")
    }

    /// Starts a program; answers when it was released. `id` names it for good ([`crate::execution_id::new_id`]).
    pub(crate) async fn exec(&self, id: &str, request: &ExecRequest) -> Result<Begun, Error> {
        drop((id, request));
        Err(not_yet())
    }

    /// Writes to an exec's standard input, as its buffer takes it.
    pub(crate) async fn input(&self, exec: &str, data: &[u8]) -> Result<(), Error> {
        drop((exec, data));
        Err(not_yet())
    }

    pub(crate) async fn close_input(&self, exec: &str) -> Result<(), Error> {
        drop(exec);
        Err(not_yet())
    }

    pub(crate) async fn resize(&self, exec: &str, size: TerminalSize) -> Result<(), Error> {
        drop((exec, size));
        Err(not_yet())
    }

    /// Sends a signal to an exec's process group; `SIGKILL` ends its whole tree.
    pub(crate) async fn signal(&self, exec: &str, signal: i32) -> Result<(), Error> {
        drop((exec, signal));
        Err(not_yet())
    }

    /// An exec from these offsets of stdout and stderr on, to its end.
    pub(crate) async fn follow(&self, exec: &str, from: [u64; 2]) -> Result<Follow, Error> {
        drop((exec, from));
        Err(not_yet())
    }

    pub(crate) async fn usage(&self) -> Result<SandboxUsage, Error> {
        Err(not_yet())
    }

    /// Whether it is frozen.
    pub(crate) async fn is_frozen(&self) -> Result<bool, Error> {
        Err(not_yet())
    }

    pub(crate) async fn freeze(&self) -> Result<(), Error> {
        Err(not_yet())
    }

    pub(crate) async fn thaw(&self) -> Result<(), Error> {
        Err(not_yet())
    }

    /// Starts a file agent; the socket is the other end of the one it serves. It ends when that is closed.
    pub(crate) async fn agent(&self) -> Result<OwnedFd, Error> {
        Err(not_yet())
    }

    /// Says that the sandbox is in use: its idle time begins anew.
    pub(crate) async fn touch(&self) -> Result<(), Error> {
        Err(not_yet())
    }

    /// SIGTERM to all, SIGKILL after `grace`; answers when nothing of it is left but its files.
    pub(crate) async fn stop(&self, grace: Duration) -> Result<(), Error> {
        drop(grace);
        Err(not_yet())
    }

    pub(crate) async fn kill(&self) -> Result<(), Error> {
        Err(not_yet())
    }

    /// Returns when the keeper is gone, however.
    pub(crate) async fn gone(&self) {
        drop(&self.directory);
    }
}

/// An exec that is followed.
#[derive(Debug)]
pub(crate) struct Follow {}

impl Follow {
    /// The next of it; `None` after its end. Nothing is lost between two calls.
    pub(crate) async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        Err(not_yet())
    }
}

/// Every exec that is still known of a sandbox, oldest first, whether it stands or not: one without an end
/// runs where it does, and is lost where it does not.
pub(crate) fn records(directory: &Path, sandbox: &str, stands: bool) -> io::Result<Vec<ExecInfo>> {
    drop((directory, sandbox, stands));
    Err(io::Error::other("not yet"))
}

/// What an exec wrote, from an offset on, as far as it is kept; `None` where no more is there yet.
pub(crate) fn output(
    directory: &Path,
    exec: &str,
    stream: Stream,
    offset: u64,
    most: usize,
) -> io::Result<Option<Piece>> {
    drop((directory, exec, stream, offset, most));
    Err(io::Error::other("not yet"))
}

/// What an exec was refused, and which limits it met.
pub(crate) fn events(directory: &Path, exec: &str) -> io::Result<Vec<Event>> {
    drop((directory, exec));
    Err(io::Error::other("not yet"))
}

/// Why the sandbox in this directory ended, if its keeper could say.
pub(crate) fn ended(directory: &Path) -> Option<SandboxEnd> {
    drop(directory);
    None
}
