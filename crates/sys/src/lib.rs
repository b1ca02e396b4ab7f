//! Safe doors to the Linux calls that a sandbox needs; the only crate where `unsafe` compiles.
//!
//! rustix is used where it has the call; what stands here is what rustix lacks. Everything that is
//! public is safe to call.

pub mod attempt;
pub mod copies;
pub mod enter;
pub mod fd;
pub mod landlock;
pub mod lease;
pub mod loop_device;
pub mod memory;
pub mod mount;
pub mod net;
pub mod notify;
pub mod perf;
pub mod process;
pub mod pty;
pub mod seccomp;
pub mod signal;
pub mod spawn;

pub use rustix::io::Errno;

/// The result of a raw call: the kernel's own error, nothing else.
pub type Result<T> = std::result::Result<T, Errno>;

/// Turns the `-1` of a libc call into the error it left in `errno`.
pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result == -1 {
        let code = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)));
    }
    Ok(result)
}

/// The kernel's name of an error, as people search for it (`EPERM`), or its number.
pub fn errno_name(errno: Errno) -> String {
    let code = errno.raw_os_error();
    ERRNO_NAMES
        .iter()
        .find(|(known, _)| *known == code)
        .map_or_else(|| format!("errno {code}"), |(_, name)| (*name).to_owned())
}

macro_rules! errno_names {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// The errors that set-up and exec can really give; others show their number.
static ERRNO_NAMES: &[(i32, &str)] = errno_names!(
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
    ELOOP ENODATA EPROTO EOVERFLOW EUSERS ENOTSOCK EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP
    EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNRESET ENOBUFS ENOTCONN
    ETIMEDOUT ECONNREFUSED EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT EKEYREJECTED
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_shown_by_its_kernel_name() {
        assert_eq!(errno_name(Errno::PERM), "EPERM");
        assert_eq!(errno_name(Errno::from_raw_os_error(4000)), "errno 4000");
    }
}
