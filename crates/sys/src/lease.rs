//! File leases (fcntl(2), F_SETLEASE): whoever opens the file waits until its holder, which gets SIGIO, lets go.
//!
//! Only for files that nobody but sandboxed programs opens: the kernel makes them wait up to
//! /proc/sys/fs/lease-break-time for a holder that does not answer.

use std::os::fd::{AsFd, AsRawFd};

use crate::{Result, check};

/// Takes the lease: our descriptor must be the only one of the file.
pub fn take(file: impl AsFd) -> Result<()> {
    let number = file.as_fd().as_raw_fd();
    // SAFETY: takes integers only, and the descriptor is borrowed, so it is open.
    check(unsafe { libc::fcntl(number, libc::F_SETLEASE, libc::F_WRLCK) }.into())?;
    Ok(())
}

/// Lets go of the lease, whoever else has the same descriptor. Who waits for the file goes on.
pub fn release(file: impl AsFd) -> Result<()> {
    let number = file.as_fd().as_raw_fd();
    // SAFETY: as above.
    check(unsafe { libc::fcntl(number, libc::F_SETLEASE, libc::F_UNLCK) }.into())?;
    Ok(())
}

/// Whether nobody has asked for the file since.
pub fn is_kept(file: impl AsFd) -> bool {
    let number = file.as_fd().as_raw_fd();
    // SAFETY: as above.
    let held = check(unsafe { libc::fcntl(number, libc::F_GETLEASE) }.into());
    held.is_ok_and(|held| held == libc::c_long::from(libc::F_WRLCK))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    // That an open ends it cannot be shown here: the signal would end the tests.
    #[test]
    fn a_lease_is_kept_while_the_file_is_only_looked_at() {
        let path = std::env::temp_dir().join(format!("belljar-lease-{}", std::process::id()));
        drop(File::create(&path).unwrap());
        let (file, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        assert_eq!(take(&file), Err(crate::Errno::AGAIN), "it is open elsewhere");
        drop(other);
        take(&file).unwrap();
        std::fs::metadata(&path).unwrap();
        assert!(is_kept(&file));
        release(&file).unwrap();
        assert!(!is_kept(&file));
        take(&file).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
