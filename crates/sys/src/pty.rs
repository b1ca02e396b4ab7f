//! Terminals of a sandbox: the pair, its size, and who it controls.

use std::os::fd::{AsFd, OwnedFd};

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::Result;

/// A new terminal of whatever is mounted at /dev/pts: the end that is read and written from outside, and the end
/// that programs see. The second is had from the first, so no path of a program's making is opened.
pub fn open() -> Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = openpt(flags)?;
    unlockpt(&outer)?;
    let inner = ioctl_tiocgptpeer(&outer, flags)?;
    Ok((outer, inner))
}

/// Sets its size; the kernel tells the foreground process group by SIGWINCH.
pub fn set_size(terminal: impl AsFd, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size)
}

/// Makes it the controlling terminal of the session that this process leads.
pub fn control(terminal: impl AsFd) -> Result<()> {
    rustix::process::ioctl_tiocsctty(terminal)
}
