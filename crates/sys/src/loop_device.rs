//! Loop devices: a file as a disk. Made and given to a mount in one go; the kernel frees them with it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};

use crate::{Errno, check};

/// From linux/loop.h.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CTL_ADD: libc::Ioctl = 0x4C80;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Another process may take the free number first; so many times we ask again.
const MAX_TRIES: usize = 64;
/// Every so many times we ask for a new number instead.
const NEW_EVERY: usize = 16;
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
const MAJOR: u32 = 7;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A loop device over a file. It is gone when this is dropped and no mount of it is left.
#[derive(Debug)]
pub struct LoopDevice {
    /// Held until the mount holds it: without either the kernel would clear it at once.
    _device: File,
    path: PathBuf,
}

impl LoopDevice {
    pub fn over(file: impl AsFd) -> io::Result<Self> {
        let control = open("/dev/loop-control")?;
        for tried in 0..MAX_TRIES {
            let number = if tried % NEW_EVERY == NEW_EVERY - 1 {
                // A number can be free by its state and still be held by who let go of it: take one that nobody had.
                // SAFETY: this request takes a number; below zero the kernel chooses it.
                check(i64::from(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_ADD, -1_i64) }))?
            } else {
                // SAFETY: this request takes no argument.
                check(i64::from(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }))?
            };
            let path = PathBuf::from(format!("/dev/loop{number}"));
            provide_node(&path, number)?;
            let device = open(&path)?;
            match configure(&device, file.as_fd().as_raw_fd()) {
                Ok(()) => return Ok(Self { _device: device, path }),
                // Or somebody is letting go of it: a moment later it is free, or another number is.
                Err(Errno::BUSY) => {
                    rustix::event::poll(&mut [], Some(&MOMENT)).ok();
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

fn open(path: impl AsRef<std::path::Path>) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path.as_ref(), flags, Mode::empty())?))
}

/// In a /dev without udev the node of a new number is for us to make.
fn provide_node(path: &std::path::Path, number: i64) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let minor = u32::try_from(number).map_err(io::Error::other)?;
    let device = rustix::fs::makedev(MAJOR, minor);
    let kind = rustix::fs::FileType::BlockDevice;
    match rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::from_raw_mode(0o600), device) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn configure(device: &File, backing: i32) -> crate::Result<()> {
    let fd = u32::try_from(backing).map_err(|_| Errno::BADF)?;
    let info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = Config { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: `config` has the layout of the kernel's struct, is fully initialised and outlives the call,
    // which copies it.
    check(i64::from(unsafe {
        libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config)
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_have_the_kernels_sizes() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
