//! The two listeners: a Unix socket for this user's programs, and loopback TCP.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use belljar::{Error, SpecError};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

/// Connections that the kernel keeps until we accept them: of more than that, clients try again a second later.
const BACKLOG: i32 = 4096;

/// A listening Unix socket. Its file is removed with it, if it is still the same file.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Nothing where the file is somebody else's to remove.
    identity: Option<(u64, u64)>,
}

impl Socket {
    /// One that somebody else listens with for us, and keeps.
    pub(crate) fn inherited(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        let path = listener.local_addr()?.as_pathname().map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { listener: UnixListener::from_std(listener)?, path, identity: None })
    }

    /// Where it is, if it has a name.
    pub(crate) fn path(&self) -> Option<&Path> {
        Some(&*self.path).filter(|path| !path.as_os_str().is_empty())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Gone already is as good.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Listens at a path that may hold the socket of a server that was killed.
pub(crate) fn unix(path: &Path) -> Result<Socket, Error> {
    let failed = |error: io::Error| Error::Backend {
        operation: "listen",
        source: io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    // Two servers that start at once must not remove each other's sockets. The lock is on the directory,
    // so that no file is left of it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock =
        rustix::fs::open(directory, flags, Mode::empty()).map_err(|one| failed(one.into()))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|one| failed(one.into()))?;
    make_room(path)?;
    let socket = bind(path).map_err(failed)?;
    let listener = std::os::unix::net::UnixListener::from(socket);
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    Ok(Socket { listener, path: path.to_owned(), identity: identity(path) })
}

/// Binds, closes it to others, and only then listens: before that nobody can connect.
fn bind(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Removes a socket that nobody listens on any more; anything else in its place is an error.
fn make_room(path: &Path) -> Result<(), Error> {
    let wrong = |reason: &str| -> Result<(), Error> {
        Err(SpecError::new("socket", format!("{} {reason}", path.display())).into())
    };
    let Ok(status) = fs::symlink_metadata(path) else { return Ok(()) };
    if !status.file_type().is_socket() {
        return wrong("is there and is no socket: choose another path");
    }
    match UnixStream::connect(path) {
        Ok(_) => wrong("has a server already: stop that one, or choose another with --socket"),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|source| Error::Backend {
                operation: "remove a stale socket",
                source: io::Error::new(source.kind(), format!("{}: {source}", path.display())),
            }),
        Err(error) => wrong(&format!("cannot be looked at: {error}")),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let status = fs::symlink_metadata(path).ok()?;
    Some((status.dev(), status.ino()))
}

/// Listens on TCP.
pub(crate) fn tcp(address: SocketAddr) -> Result<TcpListener, Error> {
    let listen = || -> io::Result<TcpListener> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // So that a server which was just stopped can be started again.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG.cast_unsigned())
    };
    listen().map_err(|error| Error::Backend {
        operation: "listen",
        source: io::Error::new(
            error.kind(),
            format!("{address}: {error}. hint: choose another with --listen, or --listen none"),
        ),
    })
}
