//! The loopback interface of a fresh network namespace, and whose a socket is.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::{Errno, Result, check};

/// Of `linux/sockios.h`: the network namespace of a socket, as a descriptor.
const SIOCGSKNS: libc::c_ulong = 0x894C;

/// Sets `lo` up in the caller's network namespace; the kernel then gives it 127.0.0.1 and ::1. Answers
/// with the namespace, which needs no /proc this way.
pub fn loopback_up() -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all-zero bytes are a valid `ifreq`: it is a name and a union of plain integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP).unwrap_or(1);
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which is initialised and outlives the call.
    let answer =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check(answer.into())?;
    namespace_of(socket)
}

/// The network namespace that a socket belongs to. Needs CAP_NET_ADMIN there, which its maker has.
pub fn namespace_of(socket: impl AsFd) -> Result<OwnedFd> {
    // SAFETY: takes integers only; the answer is a new descriptor or -1.
    let namespace = check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) }.into())?;
    let namespace = i32::try_from(namespace).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just made this descriptor for us and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}
