//! Names of errors and signals: a refusal is reported as `EPERM`, never as a bare number.

use std::{fmt, io};

/// An error number, as the kernel answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    pub const INVALID: Errno = Errno(libc::EINVAL);
    pub const NAME_TOO_LONG: Errno = Errno(libc::ENAMETOOLONG);

    /// The error of the call that this thread made last.
    pub(crate) fn last() -> Self {
        io::Error::last_os_error().into()
    }

    /// `EPERM` for 1, and so on; numbers outside the table read `E?`.
    pub fn name(self) -> &'static str {
        ERRNOS.iter().find(|(number, _)| *number == self.0).map_or("E?", |(_, name)| name)
    }

    pub fn is(self, name: &str) -> bool {
        self.name() == name
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl From<io::Error> for Errno {
    /// An error that std made up itself has no number; `EIO` stands for it.
    fn from(error: io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Errno(error.raw_os_error())
    }
}

/// `SIGSYS` for 31, and so on; numbers outside the table read `SIG?`.
pub fn signal(number: i32) -> &'static str {
    SIGNALS.iter().find(|(known, _)| *known == number).map_or("SIG?", |(_, name)| name)
}

macro_rules! table {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

static ERRNOS: &[(i32, &str)] = table! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
    ELOOP ENODATA EOVERFLOW EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL
    ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ENOMEDIUM ECANCELED
    ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED
};

static SIGNALS: &[(i32, &str)] = table! {
    SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2
    SIGPIPE SIGALRM SIGTERM SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ
    SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_names() {
        assert_eq!(Errno(1).name(), "EPERM");
        assert_eq!(Errno(libc::ENOSYS).name(), "ENOSYS");
        assert_eq!(signal(31), "SIGSYS");
        assert_eq!(signal(0), "SIG?");
    }
}
