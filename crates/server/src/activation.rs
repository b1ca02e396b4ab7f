//! What systemd gives a service: listening sockets (sd_listen_fds(3)), and somebody to tell when it is ready
//! (sd_notify(3)).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use belljar::{Error, SpecError};
use rustix::net::{AddressFamily, getsockname};
use tokio::net::TcpListener;

use crate::listen::Socket;

/// Sockets that were handed to us: no more than one of each kind.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    pub(crate) unix: Option<Socket>,
    pub(crate) tcp: Option<TcpListener>,
}

impl Inherited {
    pub(crate) fn of(sockets: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut inherited = Self::default();
        let strange = |reason: &str| Error::from(SpecError::new("LISTEN_FDS", reason));
        let failed = |source| Error::Backend { operation: "take over a socket", source };
        for socket in sockets {
            let name = getsockname(&socket);
            let family = name.map_err(|_| strange("holds what is no socket"))?.address_family();
            if family == AddressFamily::UNIX {
                let listener = std::os::unix::net::UnixListener::from(socket);
                listener.set_nonblocking(true).map_err(failed)?;
                let socket = Socket::inherited(listener).map_err(failed)?;
                if inherited.unix.replace(socket).is_some() {
                    return Err(strange("holds two Unix sockets, and one is served"));
                }
            } else {
                let listener = std::net::TcpListener::from(socket);
                listener.set_nonblocking(true).map_err(failed)?;
                let listener = TcpListener::from_std(listener).map_err(failed)?;
                if inherited.tcp.replace(listener).is_some() {
                    return Err(strange("holds two TCP sockets, and one is served"));
                }
            }
        }
        Ok(inherited)
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|listener| listener.local_addr().ok())
    }
}

/// Tells whoever started us, if they want to know.
pub(crate) fn notify(what: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    // Nobody there to hear it is nothing that we could mend.
    match path.as_bytes() {
        [b'@', name @ ..] => {
            if let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(name) {
                socket.send_to_addr(what.as_bytes(), &address).ok();
            }
        }
        _ => {
            socket.send_to(what.as_bytes(), &path).ok();
        }
    }
}
