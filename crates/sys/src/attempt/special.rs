//! Calls whose arguments hold addresses, or whose way into the kernel is itself the attack: each
//! builds what it hands over, so that no caller can get it wrong.

use super::call::PAGE_BYTES;
use super::child::{Ended, in_child};
use super::names::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Whole words: a plain `0` is an int, and a variadic call leaves its upper half as it happens to be.
const ZERO: libc::c_long = 0;
const ONE: libc::c_long = 1;

/// Namespaces are all that [`clone_into`] accepts: with shared memory, fork is no longer a copy.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Clones a child into new namespaces by the old call; the child leaves at once.
pub fn clone_into(namespaces: i32) -> Result<(), Errno> {
    let flags = i64::from((namespaces & NAMESPACES) | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has a copy of this memory and, with no stack given, of
    // this very frame, as after fork.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, ZERO, ZERO, ZERO, ZERO) };
    leave_or_reap(child)
}

/// Clones a plain child by the new call, whose arguments no seccomp filter can read.
pub fn clone3() -> Result<(), Errno> {
    let mut args = [0_u64; 11]; // struct clone_args: exit_signal is the fifth word
    args[4] = 17; // SIGCHLD
    // SAFETY: `args` is a whole clone_args, all zero but the signal: as fork, with copied memory.
    let child = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    leave_or_reap(child)
}

fn leave_or_reap(child: i64) -> Result<(), Errno> {
    match i32::try_from(child) {
        Ok(0) => {
            // SAFETY: ends the child at once, before it touches anything it inherited.
            unsafe { libc::_exit(0) }
        }
        Ok(pid) if pid > 0 => {
            // Reaped or not, the child has left; the answer is that it could be made.
            let child = rustix::process::Pid::from_raw(pid);
            let _left = rustix::process::waitpid(child, rustix::process::WaitOptions::empty());
            Ok(())
        }
        Ok(_) | Err(_) => Err(Errno::last()),
    }
}

/// Which way [`reach_memory`] goes.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    Read,
    Write,
}

/// Reaches for another process's memory at an address that is never mapped: permission is judged
/// first, so `EFAULT` says that the door was open, and nothing is ever read or changed.
pub fn reach_memory(pid: i32, direction: Direction) -> Result<(), Errno> {
    let mut own = [0_u8; 8];
    let here = libc::iovec { iov_base: own.as_mut_ptr().cast(), iov_len: own.len() };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(8), iov_len: own.len() };
    let pid = libc::c_long::from(pid);
    let call = match direction {
        Direction::Read => libc::SYS_process_vm_readv,
        Direction::Write => libc::SYS_process_vm_writev,
    };
    // SAFETY: `here` spans `own`, which outlives the call; `there` is an address of the other
    // process, never followed in this one.
    let moved =
        unsafe { libc::syscall(call, pid, &raw const here, ONE, &raw const there, ONE, ZERO) };
    if moved == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// Makes the smallest BPF map there is.
pub fn bpf_map() -> Result<(), Errno> {
    const BPF_MAP_CREATE: i64 = 0;
    let mut page = [0_u32; PAGE_BYTES / 4];
    // union bpf_attr for BPF_MAP_CREATE: type (array), key bytes, value bytes, entries.
    page.iter_mut().zip([2, 4, 4, 1]).for_each(|(word, value)| *word = value);
    // SAFETY: the kernel reads 72 bytes of `page`, which holds no address.
    let made = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, page.as_ptr(), 72_i64) };
    if made == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// Sets up the smallest io_uring there is.
pub fn io_uring() -> Result<(), Errno> {
    let mut params = [0_u8; PAGE_BYTES];
    // SAFETY: all-zero parameters name no memory of ours; the kernel fills 120 bytes of `params`.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, ONE, params.as_mut_ptr()) };
    if ring == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// Asks for the number of this session's keyring; makes none.
pub fn session_keyring() -> Result<(), Errno> {
    const KEYCTL_GET_KEYRING_ID: i64 = 0;
    const KEY_SPEC_SESSION_KEYRING: i64 = -3;
    // SAFETY: this operation takes integers only.
    let id = unsafe {
        libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)
    };
    if id == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// Gives a page of user memory to a pipe.
pub fn vmsplice() -> Result<(), Errno> {
    let bytes = [0_u8; 8];
    let (_read, write) = rustix::pipe::pipe()?;
    let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `vector` spans `bytes`, which is only read and outlives both ends of the pipe.
    let given =
        unsafe { libc::syscall(libc::SYS_vmsplice, write.as_raw_fd(), &raw const vector, 1, 0) };
    if given == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// Requests to a terminal that type on the user's behalf.
#[derive(Clone, Copy, Debug)]
pub enum Terminal {
    /// TIOCSTI: push a byte into the input queue.
    Type,
    /// The same with bits set that the kernel drops and a careless filter compares (CVE-2019-10063).
    TypeByHighBits,
    /// TIOCLINUX: selection and paste on a virtual console; the subcode given does not exist.
    Paste,
}

/// Makes the request of a terminal of our own, so that outside it harms nobody; where none can be
/// opened, of standard input, where only a filter that knows the request answers before the file.
pub fn ask_terminal(request: Terminal) -> Result<(), Errno> {
    match own_terminal() {
        Ok((_controller, terminal)) => ioctl_byte(&terminal, request),
        Err(_) => ioctl_byte(&std::io::stdin(), request),
    }
}

fn own_terminal() -> Result<(std::fs::File, std::fs::File), Errno> {
    use std::os::unix::fs::OpenOptionsExt;
    let open = |path: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)
    };
    let controller = open("/dev/ptmx")?;
    let (mut number, unlock) = (0_u32, 0_i32);
    let fd = controller.as_raw_fd();
    // SAFETY: TIOCGPTN writes one unsigned int to `number`.
    let numbered = unsafe { libc::ioctl(fd, libc::TIOCGPTN, &raw mut number) };
    // SAFETY: TIOCSPTLCK reads one int from `unlock`.
    let unlocked = unsafe { libc::ioctl(fd, libc::TIOCSPTLCK, &raw const unlock) };
    if numbered == -1 || unlocked == -1 {
        return Err(Errno::last());
    }
    Ok((controller, open(&format!("/dev/pts/{number}"))?))
}

fn ioctl_byte(terminal: &impl AsRawFd, request: Terminal) -> Result<(), Errno> {
    const TIOCLINUX: u64 = 0x541c;
    let number = match request {
        Terminal::Type => libc::TIOCSTI,
        Terminal::TypeByHighBits => libc::TIOCSTI | 1 << 32,
        Terminal::Paste => TIOCLINUX,
    };
    let byte = 0xff_u8;
    let fd = libc::c_long::from(terminal.as_raw_fd());
    // SAFETY: both requests read a single byte at the address; TIOCLINUX's subcode 255 is none.
    let asked = unsafe { libc::syscall(libc::SYS_ioctl, fd, number, &raw const byte) };
    if asked == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// getpid by the 32-bit door, whose numbers mean other calls than a 64-bit filter thinks.
#[cfg(target_arch = "x86_64")]
pub fn getpid_by_interrupt() -> Result<i32, Errno> {
    const GETPID_32: i32 = 20;
    let pid: i32;
    // SAFETY: getpid touches no memory; older kernels clear r8 to r11 on this way back.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("eax") GETPID_32 => pid,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    if pid > 0 { Ok(pid) } else { Err(std::io::Error::from_raw_os_error(-pid).into()) }
}

/// getpid with the bit that marks an x32 call.
#[cfg(target_arch = "x86_64")]
pub fn getpid_by_x32() -> Result<i64, Errno> {
    const X32: i64 = 0x4000_0000;
    // SAFETY: getpid takes no argument and touches no memory, whichever table serves it.
    let pid = unsafe { libc::syscall(libc::SYS_getpid | X32) };
    if pid == -1 { Err(Errno::last()) } else { Ok(pid) }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn getpid_by_interrupt() -> Result<i32, Errno> {
    Err(std::io::Error::from_raw_os_error(libc::ENOSYS).into())
}

#[cfg(not(target_arch = "x86_64"))]
pub fn getpid_by_x32() -> Result<i64, Errno> {
    Err(std::io::Error::from_raw_os_error(libc::ENOSYS).into())
}

/// Forks up to `most` children that stay until all are made, then lets them go.
pub fn fork_many(most: usize) -> Result<usize, Errno> {
    let (stay, held) = rustix::pipe::pipe()?;
    let mut held = Some(held);
    let mut made = 0;
    let mut stopped = None;
    while made < most && stopped.is_none() {
        // SAFETY: the child only waits for the pipe to close and leaves, by calls that allocate
        // nothing.
        match unsafe { libc::fork() } {
            0 => {
                drop(held.take());
                let mut byte = [0_u8; 1];
                let _closed = rustix::io::read(&stay, &mut byte);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) }
            }
            -1 => stopped = Some(Errno::last()),
            _ => made += 1,
        }
    }
    drop(held);
    for _ in 0..made {
        // Each child leaves once the pipe is closed; there is nothing to learn from how.
        let _left = rustix::process::wait(rustix::process::WaitOptions::empty());
    }
    stopped.map_or(Ok(made), Err)
}

/// Maps `bytes` of fresh memory and writes to each page of it; gives it back before it returns.
pub fn touch_memory(bytes: usize) -> Result<(), Errno> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint asks for a fresh mapping, which overlaps nothing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, both, MapFlags::PRIVATE) }?;
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        let page = start.cast::<u8>().wrapping_add(offset);
        // SAFETY: `page` lies within the mapping made above, which is writable and ours alone.
        unsafe { page.write_volatile(1) };
    }
    // SAFETY: the whole mapping made above, to which no reference exists.
    unsafe { munmap(start, bytes) }?;
    Ok(())
}

/// Duplicates `fd` up to `most` times; the copies stay open.
pub fn duplicate_many(fd: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
    let mut copies = Vec::with_capacity(most);
    for _ in 0..most {
        copies.push(rustix::io::dup(fd)?);
    }
    Ok(copies.len())
}

/// The descriptors open in this process above standard error, below `limit`.
pub fn open_descriptors(limit: i32) -> Vec<i32> {
    let is_open = |fd: &i32| {
        // SAFETY: F_GETFD only asks; a number that is no descriptor answers EBADF.
        let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
        flags != -1
    };
    (3..limit).filter(is_open).collect()
}

/// True if this process may no longer gain privileges by executing a file.
pub fn no_new_privileges() -> Result<bool, Errno> {
    Ok(rustix::thread::no_new_privs()?)
}

/// The session this process is in: zero if its leader lives in an outer pid namespace.
pub fn session() -> Result<i32, Errno> {
    // SAFETY: takes and gives integers.
    let session = unsafe { libc::getsid(0) };
    if session == -1 { Err(Errno::last()) } else { Ok(session) }
}

/// The number of the network interface of that name.
pub fn interface(name: &str) -> Result<u32, Errno> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(netdevice::name_to_index(&socket, name)?)
}

/// The processor time this process has used.
pub fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// True if the call ends its process with this signal; for tests of a filter, one call at a time.
pub fn dies_of(signal: &'static str, act: impl FnOnce()) -> bool {
    let ended = in_child(Duration::from_secs(5), || {
        act();
        b"lived".to_vec()
    });
    matches!(ended, Ok(Ended::Signaled(name)) if name == signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reach_into_our_own_memory_passes_the_permission_check() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        assert!(reach_memory(pid, Direction::Read).is_err_and(|errno| errno.is("EFAULT")));
    }

    #[test]
    fn children_are_made_and_reaped() {
        let ended = in_child(Duration::from_secs(5), || format!("{:?}", fork_many(3)).into());
        assert_eq!(ended.unwrap(), Ended::Answered(b"Ok(3)".to_vec()));
    }

    #[test]
    fn a_death_by_signal_is_told_from_a_life() {
        assert!(dies_of("SIGABRT", || std::process::abort()));
        assert!(!dies_of("SIGABRT", || ()));
    }
}
