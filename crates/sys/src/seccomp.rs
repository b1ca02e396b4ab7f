//! Classic BPF for seccomp: the instruction as it goes to the kernel, and the call that installs it.

use crate::{Errno, Result, check};

/// The kernel's own bound on a filter's length (BPF_MAXINSNS).
pub const MAX_INSTRUCTIONS: usize = 4096;

/// One classic-BPF instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

/// Puts the calling thread, and all it will start, under `filter` for good.
///
/// The caller must already have `no_new_privs` set, or the kernel answers `EACCES`.
pub fn install(filter: &[Instruction]) -> Result<()> {
    if filter.is_empty() || filter.len() > MAX_INSTRUCTIONS {
        return Err(Errno::INVAL);
    }
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `program` points at `filter`, whose elements have the layout of `sock_filter` (same
    // fields, `repr(C)`); the kernel copies the program before the call returns and never writes it.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_or_overlong_filter_is_refused_before_the_kernel_sees_it() {
        let stop = Instruction { code: 6, jump_true: 0, jump_false: 0, k: 0 };
        assert_eq!(install(&[]), Err(Errno::INVAL));
        assert_eq!(install(&vec![stop; MAX_INSTRUCTIONS + 1]), Err(Errno::INVAL));
    }

    #[test]
    fn an_instruction_has_the_kernels_size() {
        assert_eq!(size_of::<Instruction>(), size_of::<libc::sock_filter>());
    }
}
