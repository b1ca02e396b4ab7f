//! Seccomp user notification: a filter's refusals brought to another process, which answers them.
//!
//! The answer is the kernel's own error for the call, or "go on" for what was only to be seen. What is
//! read from the caller's memory meanwhile may change under our eyes: it is evidence, never a decision.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::seccomp::{Instruction, MAX_INSTRUCTIONS};
use crate::{Errno, Result, check};

/// What a filter returns for a call that somebody else answers. The kernel does not look at the low 16
/// bits, so a filter may keep the answer there.
pub const RET_USER_NOTIF: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (Linux 6.6): whoever waits for an answer runs next, here.
const SYNC_WAKE_UP: u64 = 1;
/// Text is read up to the end of a page at a time: the next one may not be there.
const PAGE_BYTES: u64 = 4096;

/// One call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    id: u64,
    /// The thread that made it, as we see it.
    pub thread: u32,
    pub number: u32,
    pub architecture: u32,
    pub args: [u64; 6],
}

/// Puts the calling thread, and all it will start, under `filter`, and gives the descriptor where its
/// notifications come. As [`crate::seccomp::install`] otherwise.
pub fn install(filter: &[Instruction]) -> Result<OwnedFd> {
    if filter.is_empty() || filter.len() > MAX_INSTRUCTIONS {
        return Err(Errno::INVAL);
    }
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Killable: a caller whose call was taken is not woken by its own signals (Linux 5.19).
    let fd = match raw_install(&program, listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(Errno::INVAL) => raw_install(&program, listen)?,
        result => result?,
    };
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just made this descriptor for us and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw_install(program: &libc::sock_fprog, flags: libc::c_ulong) -> Result<libc::c_long> {
    // SAFETY: `program` points at instructions that have the layout of `sock_filter` and outlive the
    // call; the kernel copies them before it returns and never writes them.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(program),
        )
    })
}

/// Asks for the quickest change of places between caller and listener. Older kernels lack it.
pub fn hurry(listener: impl AsFd) {
    let raw = listener.as_fd().as_raw_fd();
    // SAFETY: the command takes its argument by value; a kernel that does not know it answers EINVAL.
    // The result does not matter: without it all works, a little slower.
    let _unknown_before_6_6 =
        unsafe { libc::ioctl(raw, libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Takes the next call. Blocks if there is none, so poll first. `ENOENT`: its thread is gone already.
pub fn take(listener: impl AsFd) -> Result<Waiting> {
    // SAFETY: a struct of integers, for which all zeroes is a value; the kernel insists on zeroes.
    let mut found: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    ioctl(listener.as_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut found)?;
    Ok(Waiting {
        id: found.id,
        thread: found.pid,
        number: found.data.nr.cast_unsigned(),
        architecture: found.data.arch,
        args: found.data.args,
    })
}

/// Fails the call with `errno`. `ENOENT`: its thread is gone.
pub fn refuse(listener: impl AsFd, call: &Waiting, errno: u16) -> Result<()> {
    answer(listener.as_fd(), call, -i32::from(errno), 0)
}

/// Lets the kernel make the call as if nobody had looked. Only for what every filter allows.
pub fn let_go_on(listener: impl AsFd, call: &Waiting) -> Result<()> {
    answer(listener.as_fd(), call, 0, 1) // SECCOMP_USER_NOTIF_FLAG_CONTINUE
}

fn answer(listener: BorrowedFd<'_>, call: &Waiting, error: i32, flags: u32) -> Result<()> {
    let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer)
}

/// Whether the call still waits. What was read of its thread before that was read of no other.
pub fn still_waits(listener: impl AsFd, call: &Waiting) -> bool {
    let mut id = call.id;
    ioctl(listener.as_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
}

fn ioctl<T>(listener: BorrowedFd<'_>, command: libc::Ioctl, argument: &mut T) -> Result<()> {
    // SAFETY: each command is called with the struct that its number encodes the size of; the kernel
    // reads and writes no more than that, and only during the call.
    check(
        unsafe { libc::ioctl(listener.as_raw_fd(), command, std::ptr::from_mut(argument)) }.into(),
    )
    .map(drop)
}

/// Reads another process's memory into `buffer`; how much of it could be read.
pub fn read_memory(thread: u32, address: u64, buffer: &mut [u8]) -> Result<usize> {
    let thread = i32::try_from(thread).map_err(|_| Errno::SRCH)?;
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: `here` is `buffer`, borrowed mutably for the call; `there` is an address of the other
    // process, which the kernel checks; both lists have one element.
    let read = check(
        unsafe { libc::process_vm_readv(thread, &raw const here, 1, &raw const there, 1, 0) }
            .try_into()
            .map_err(|_| Errno::IO)?,
    )?;
    usize::try_from(read).map_err(|_| Errno::IO)
}

/// Reads text that ends in a zero byte, and no more than `most` bytes of it.
pub fn read_text(thread: u32, address: u64, most: usize) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < most {
        let at = address.wrapping_add(text.len() as u64);
        let to_page_end =
            usize::try_from(PAGE_BYTES - at % PAGE_BYTES).map_err(|_| Errno::FAULT)?;
        let mut part = vec![0; to_page_end.min(most - text.len())];
        let read = match read_memory(thread, at, &mut part) {
            Err(errno) if text.is_empty() => return Err(errno),
            Err(_) => break,
            Ok(read) => read,
        };
        if let Some(end) = part[..read].iter().position(|byte| *byte == 0) {
            text.extend(&part[..end]);
            break;
        }
        text.extend(&part[..read]);
        if read < part.len() {
            break;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_its_zero_or_at_the_bound() {
        let text = b"hello\0world\0";
        let (own, at) = (std::process::id(), text.as_ptr() as u64);
        assert_eq!(read_text(own, at, 64).unwrap(), b"hello");
        assert_eq!(read_text(own, at, 3).unwrap(), b"hel");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert_eq!(read_text(std::process::id(), 8, 64), Err(Errno::FAULT));
        assert_eq!(read_memory(u32::MAX, 8, &mut [0]), Err(Errno::SRCH));
    }
}
