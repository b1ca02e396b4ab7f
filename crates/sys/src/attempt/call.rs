//! Any call out of a fixed list, with integers and private copies of buffers: hostile in meaning,
//! harmless to this process's own memory.

use super::names::Errno;
use libc::c_long;

/// Every buffer that goes to the kernel is a private page of this size, whatever the caller's length.
pub const PAGE_BYTES: usize = 4096;

/// A call, and which of its arguments are addresses or the length of one.
///
/// The constants below are all there are. None of them takes an address inside the memory it is
/// handed, and none writes more than a page: so [`syscall`] can be safe.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    number: c_long,
    /// Bit n: argument n is an address. An integer other than zero is refused there.
    addresses: u8,
    /// Bit n: argument n is a length. It may not pass [`PAGE_BYTES`].
    lengths: u8,
}

const fn call(number: c_long, addresses: u8, lengths: u8) -> Call {
    Call { number, addresses, lengths }
}

/// The number that no kernel knows: stands for calls which this processor never had.
#[cfg(not(target_arch = "x86_64"))]
const UNKNOWN: c_long = -1;

impl Call {
    pub const ACCT: Call = call(libc::SYS_acct, 0b1, 0);
    pub const ADD_KEY: Call = call(libc::SYS_add_key, 0b111, 0b1000);
    pub const CAPGET: Call = call(libc::SYS_capget, 0b11, 0);
    pub const CAPSET: Call = call(libc::SYS_capset, 0b11, 0);
    pub const CHROOT: Call = call(libc::SYS_chroot, 0b1, 0);
    pub const CLOCK_SETTIME: Call = call(libc::SYS_clock_settime, 0b10, 0);
    pub const DELETE_MODULE: Call = call(libc::SYS_delete_module, 0b1, 0);
    pub const FANOTIFY_INIT: Call = call(libc::SYS_fanotify_init, 0, 0);
    pub const FINIT_MODULE: Call = call(libc::SYS_finit_module, 0b10, 0);
    pub const FSOPEN: Call = call(libc::SYS_fsopen, 0b1, 0);
    pub const INIT_MODULE: Call = call(libc::SYS_init_module, 0b101, 0b10);
    #[cfg(target_arch = "x86_64")]
    pub const IOPERM: Call = call(libc::SYS_ioperm, 0, 0);
    #[cfg(not(target_arch = "x86_64"))]
    pub const IOPERM: Call = call(UNKNOWN, 0, 0);
    #[cfg(target_arch = "x86_64")]
    pub const IOPL: Call = call(libc::SYS_iopl, 0, 0);
    #[cfg(not(target_arch = "x86_64"))]
    pub const IOPL: Call = call(UNKNOWN, 0, 0);
    pub const KCMP: Call = call(libc::SYS_kcmp, 0, 0);
    pub const KEXEC_LOAD: Call = call(libc::SYS_kexec_load, 0b101, 0);
    pub const KILL: Call = call(libc::SYS_kill, 0, 0);
    pub const MKNODAT: Call = call(libc::SYS_mknodat, 0b10, 0);
    #[cfg(target_arch = "x86_64")]
    pub const MODIFY_LDT: Call = call(libc::SYS_modify_ldt, 0b10, 0b100);
    #[cfg(not(target_arch = "x86_64"))]
    pub const MODIFY_LDT: Call = call(UNKNOWN, 0b10, 0b100);
    pub const MOUNT: Call = call(libc::SYS_mount, 0b10111, 0);
    pub const MOUNT_SETATTR: Call = call(libc::SYS_mount_setattr, 0b1010, 0b10000);
    pub const MOVE_MOUNT: Call = call(libc::SYS_move_mount, 0b1010, 0);
    pub const NAME_TO_HANDLE_AT: Call = call(libc::SYS_name_to_handle_at, 0b1110, 0);
    pub const OPEN_BY_HANDLE_AT: Call = call(libc::SYS_open_by_handle_at, 0b10, 0);
    pub const OPEN_TREE: Call = call(libc::SYS_open_tree, 0b10, 0);
    pub const PERF_EVENT_OPEN: Call = call(libc::SYS_perf_event_open, 0b1, 0);
    pub const PERSONALITY: Call = call(libc::SYS_personality, 0, 0);
    pub const PIDFD_GETFD: Call = call(libc::SYS_pidfd_getfd, 0, 0);
    pub const PIDFD_OPEN: Call = call(libc::SYS_pidfd_open, 0, 0);
    pub const PIDFD_SEND_SIGNAL: Call = call(libc::SYS_pidfd_send_signal, 0b100, 0);
    pub const PIVOT_ROOT: Call = call(libc::SYS_pivot_root, 0b11, 0);
    pub const PRLIMIT: Call = call(libc::SYS_prlimit64, 0b1100, 0);
    pub const PTRACE: Call = call(libc::SYS_ptrace, 0b1100, 0);
    pub const QUOTACTL: Call = call(libc::SYS_quotactl, 0b1010, 0);
    pub const REBOOT: Call = call(libc::SYS_reboot, 0b1000, 0);
    pub const REQUEST_KEY: Call = call(libc::SYS_request_key, 0b111, 0);
    pub const SCHED_SETSCHEDULER: Call = call(libc::SYS_sched_setscheduler, 0b100, 0);
    pub const SETDOMAINNAME: Call = call(libc::SYS_setdomainname, 0b1, 0b10);
    pub const SETGROUPS: Call = call(libc::SYS_setgroups, 0b10, 0b1);
    pub const SETHOSTNAME: Call = call(libc::SYS_sethostname, 0b1, 0b10);
    pub const SETNS: Call = call(libc::SYS_setns, 0, 0);
    pub const SETPRIORITY: Call = call(libc::SYS_setpriority, 0, 0);
    pub const SETRESGID: Call = call(libc::SYS_setresgid, 0, 0);
    pub const SETRESUID: Call = call(libc::SYS_setresuid, 0, 0);
    pub const SETTIMEOFDAY: Call = call(libc::SYS_settimeofday, 0b11, 0);
    pub const SETXATTR: Call = call(libc::SYS_setxattr, 0b111, 0b1000);
    pub const SOCKET: Call = call(libc::SYS_socket, 0, 0);
    pub const SWAPOFF: Call = call(libc::SYS_swapoff, 0b1, 0);
    pub const SWAPON: Call = call(libc::SYS_swapon, 0b1, 0);
    pub const SYSLOG: Call = call(libc::SYS_syslog, 0b10, 0b100);
    pub const UMOUNT: Call = call(libc::SYS_umount2, 0b1, 0);
    pub const UNSHARE: Call = call(libc::SYS_unshare, 0, 0);
    pub const USERFAULTFD: Call = call(libc::SYS_userfaultfd, 0, 0);
}

/// One argument. The kernel never sees the caller's memory, only a copy in a page of its own.
#[derive(Debug)]
pub enum Arg<'a> {
    Int(i64),
    Null,
    /// A string, closed by a zero byte.
    Text(&'a str),
    Bytes(&'a [u8]),
    /// Goes in and comes back, as far as it is long.
    Exchange(&'a mut [u8]),
}

#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Makes the call and gives what it returned.
///
/// Arguments that do not fit the call's shape are `EINVAL` without any call.
pub fn syscall(call: Call, args: &mut [Arg<'_>]) -> Result<i64, Errno> {
    let mut words: [c_long; 6] = [0; 6];
    let mut pages: [Option<Box<Page>>; 6] = [const { None }; 6];
    for (index, arg) in args.iter().enumerate() {
        let word = words.get_mut(index).ok_or(Errno::INVALID)?;
        let page = copied(arg)?;
        if page.is_some() && call.addresses & (1 << index) == 0 {
            return Err(Errno::INVALID);
        }
        *word = match (arg, &page) {
            (Arg::Int(value), _) => checked(call, index, *value)?,
            (_, Some(page)) => page.0.as_ptr().expose_provenance().cast_signed() as c_long,
            (_, None) => 0,
        };
        if let Some(slot) = pages.get_mut(index) {
            *slot = page;
        }
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: by `Call`, each address is null or a page owned by `pages`, alive past the call; no
    // call of the list writes more than that page or follows an address stored within it.
    let returned = unsafe { libc::syscall(call.number, a, b, c, d, e, f) };
    if returned == -1 {
        return Err(Errno::last());
    }
    for (arg, page) in args.iter_mut().zip(&pages) {
        if let (Arg::Exchange(bytes), Some(page)) = (arg, page) {
            bytes.iter_mut().zip(&page.0).for_each(|(to, from)| *to = *from);
        }
    }
    Ok(returned)
}

fn checked(call: Call, index: usize, value: i64) -> Result<c_long, Errno> {
    let address = call.addresses & (1 << index) != 0;
    let length = call.lengths & (1 << index) != 0;
    let bound = i64::try_from(PAGE_BYTES).unwrap_or(0);
    if (address && value != 0) || (length && !(0..=bound).contains(&value)) {
        return Err(Errno::INVALID);
    }
    Ok(value)
}

/// A page of its own for an argument that is memory; one byte stays zero, so text ends.
fn copied(arg: &Arg<'_>) -> Result<Option<Box<Page>>, Errno> {
    let bytes: &[u8] = match arg {
        Arg::Int(_) | Arg::Null => return Ok(None),
        Arg::Text(text) => text.as_bytes(),
        Arg::Bytes(bytes) => bytes,
        Arg::Exchange(bytes) => bytes,
    };
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    let room = page.0.get_mut(..bytes.len()).filter(|room| room.len() < PAGE_BYTES);
    room.ok_or(Errno::NAME_TOO_LONG)?.copy_from_slice(bytes);
    Ok(Some(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_is_never_taken_for_an_address() {
        let refused = syscall(Call::CHROOT, &mut [Arg::Int(4096)]);
        assert_eq!(refused, Err(Errno::INVALID));
    }

    #[test]
    fn a_length_past_the_page_is_refused() {
        let refused = syscall(Call::SYSLOG, &mut [Arg::Int(3), Arg::Bytes(&[]), Arg::Int(4097)]);
        assert_eq!(refused, Err(Errno::INVALID));
    }

    #[test]
    fn what_the_kernel_wrote_comes_back() {
        let mut limit = [0_u8; 16];
        let files = i64::from(libc::RLIMIT_NOFILE);
        let args = &mut [Arg::Int(0), Arg::Int(files), Arg::Null, Arg::Exchange(&mut limit)];
        assert_eq!(syscall(Call::PRLIMIT, args), Ok(0));
        assert_ne!(limit, [0; 16]);
    }
}
