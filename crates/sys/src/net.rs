//! The loopback interface of a fresh network namespace.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::{Result, check};

/// Sets `lo` up in the caller's network namespace; the kernel then gives it 127.0.0.1 and ::1.
pub fn loopback_up() -> Result<()> {
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
    Ok(())
}
