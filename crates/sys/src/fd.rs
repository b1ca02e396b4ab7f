//! Messages with descriptors over a Unix socket, and the closing of what must not be inherited.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::{Errno, Result, check};

/// The kernel passes no more than this many descriptors in one message (SCM_MAX_FD).
pub const MAX_FDS: usize = 253;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1));

/// One message as it came: how many bytes, which descriptors, who sent it.
#[derive(Debug, Default)]
pub struct Received {
    pub length: usize,
    pub fds: Vec<OwnedFd>,
    /// The sender's process id in *our* pid namespace, when the socket asks for credentials.
    pub sender: Option<rustix::process::Pid>,
}

/// Sends one message with `fds` attached. Interrupted calls are tried again.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    let parts = [IoSlice::new(bytes)];
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(Errno::MSGSIZE) }
}

/// Sends one message without waiting: `EAGAIN` when its reader is behind.
pub fn try_send(socket: impl AsFd, bytes: &[u8]) -> Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::io::retry_on_intr(|| rustix::net::send(&socket, bytes, flags))?;
    if sent == bytes.len() { Ok(()) } else { Err(Errno::MSGSIZE) }
}

/// Receives one message into `buffer`; a message longer than that, or cut, is an error.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut received = Received { length: message.bytes, ..Received::default() };
    for part in ancillary.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(fds) => received.fds.extend(fds),
            RecvAncillaryMessage::ScmCredentials(who) => received.sender = Some(who.pid),
            _ => {}
        }
    }
    let cut = rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC;
    if message.flags.intersects(cut) { Err(Errno::MSGSIZE) } else { Ok(received) }
}

/// Marks every descriptor from 3 up close-on-exec, so that an exec'd program holds only 0, 1 and 2.
pub fn close_all_on_exec() -> Result<()> {
    close_range(3, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor from `first` up, now.
///
/// For a process that has just started and owns none of them: what an embedding program let leak.
pub fn close_inherited(first: u32) -> Result<()> {
    close_range(first, 0)
}

fn close_range(first: u32, flags: libc::c_uint) -> Result<()> {
    // SAFETY: takes no pointer. Closing is the point; callers hold no `OwnedFd` in the range, or only
    // mark it close-on-exec.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) })?;
    Ok(())
}

/// Whether the descriptor of that number is open and would stay so through exec.
pub fn passes_exec(number: i32) -> bool {
    // SAFETY: takes integers only; a number that is not open answers EBADF.
    let flags = check(unsafe { libc::fcntl(number, libc::F_GETFD) }.into());
    flags.is_ok_and(|flags| flags & libc::c_long::from(libc::FD_CLOEXEC) == 0)
}

/// The standard input that the parent handed over, as an owned descriptor.
///
/// Only a role that was started with its control socket as standard input may call this, once.
pub fn take_stdin() -> Result<OwnedFd> {
    // A copy, so that nothing else in the process that knows number 0 can close what we own.
    // SAFETY: F_DUPFD_CLOEXEC takes an integer; the answer is a new descriptor or -1.
    let fd = check(unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just made this descriptor for us and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes every descriptor of this process but the standard three and this one, which gets another number.
///
/// For a process that owns nothing else any more and never returns to who thinks that it does.
pub fn keep_only(fd: OwnedFd) -> Result<OwnedFd> {
    const NUMBER: i32 = 3;
    let raw = fd.into_raw_fd(); // closed below with all the others, unless it has that number already
    if raw != NUMBER {
        // SAFETY: takes integers; what had that number is not used any more, as the caller says.
        check(unsafe { libc::dup2(raw, NUMBER) }.into())?;
    }
    close_range(NUMBER.cast_unsigned() + 1, 0)?;
    // SAFETY: it was just made to be what `fd` was, and the caller says that nobody else uses that number.
    Ok(unsafe { OwnedFd::from_raw_fd(NUMBER) })
}

/// Makes `fd` be descriptor `number` of this process: one of the standard three, or one that a program
/// about to be started looks for. What had that number is closed.
pub fn place_at(fd: impl AsFd, number: i32) -> Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    if raw == number {
        // dup2 would leave it as it is, close-on-exec included.
        return rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty());
    }
    // SAFETY: takes integers. No `OwnedFd` stands for a standard stream, and who places another number
    // uses none of its own any more.
    check(unsafe { libc::dup2(raw, number) }.into())?;
    Ok(())
}
