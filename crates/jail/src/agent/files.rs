//! Files and watches that are open, by number.

use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use belljar_sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps};

use super::acts::meta;
use super::place::Spot;
use super::watch::Watch;
use super::wire::{Answer, Fault, Finish, How, Place, Time};
use super::{Failed, Outcome};

/// At once. One transfer has one.
const MAX_HANDLES: usize = 16;
/// Permission bits without setuid, setgid and sticky.
const PLAIN_MODE: u32 = 0o777;
const DEFAULT_MODE: u32 = 0o644;
/// File systems whose files are the kernel speaking: to read one may wait, and /proc/self is the agent.
const NO_DATA: [i64; 3] = [0x9fa0, 0x6265_6572, 0x6367_7270]; // proc, sysfs, cgroup2

#[derive(Debug, Default)]
pub(super) struct Handles([Option<Handle>; MAX_HANDLES]);

#[derive(Debug)]
enum Handle {
    Read(std::fs::File),
    Patch { file: std::fs::File, above: Option<OwnedFd>, append: bool },
    Put(Put),
    Watch(Box<Watch>),
}

/// A file that is written without a name, or beside its place where a file system has no files without one. So whoever
/// is killed meanwhile leaves nothing behind.
#[derive(Debug)]
struct Put {
    file: std::fs::File,
    above: OwnedFd,
    name: Vec<u8>,
    /// What it is called until it is in its place, if anything.
    beside: Option<String>,
    replace: bool,
}

impl Drop for Put {
    fn drop(&mut self) {
        if let Some(beside) = self.beside.take() {
            // If it is gone already, all the better.
            rustix::fs::unlinkat(&self.above, &*beside, AtFlags::empty()).ok();
        }
    }
}

impl Handles {
    pub(super) fn open(&mut self, place: &Place, how: &How) -> Outcome<Answer> {
        let spot = Spot::find(place)?;
        let (handle, stat) = match *how {
            How::Read => {
                let (file, stat) = open_regular(&spot, OFlags::RDONLY, 0)?;
                (Handle::Read(file), stat)
            }
            How::Patch { create, truncate, append, mode } => {
                let mut flags = OFlags::WRONLY;
                flags.set(OFlags::CREATE, create);
                flags.set(OFlags::APPEND, append);
                let (file, stat) = open_regular(&spot, flags, mode & PLAIN_MODE)?;
                // Its name is new on the disk too, then, where the last link leads.
                let above = if create { Some(spot.follow_last()?.split()?.0) } else { None };
                if truncate {
                    rustix::fs::ftruncate(&file, 0)?;
                }
                (Handle::Patch { file, above, append }, stat)
            }
            How::Put { replace, mode } => {
                let put = Put::begin(&spot.follow_last()?, replace, mode)?;
                let stat = rustix::fs::fstat(&put.file)?;
                (Handle::Put(put), stat)
            }
        };
        let handle = self.keep(handle)?;
        Ok(Answer::Opened { handle, meta: meta(&stat) })
    }

    pub(super) fn watch(&mut self, place: &Place, recursive: bool) -> Outcome<Answer> {
        let (watch, meta) = Watch::begin(place, recursive)?;
        let handle = self.keep(Handle::Watch(Box::new(watch)))?;
        Ok(Answer::Opened { handle, meta })
    }

    fn keep(&mut self, handle: Handle) -> Outcome<u32> {
        let free = self.0.iter().position(Option::is_none).ok_or(Fault::TooMany {})?;
        self.0[free] = Some(handle);
        u32::try_from(free).map_err(|_| Fault::TooMany {}.into())
    }

    fn get(&mut self, handle: u32) -> Outcome<&mut Handle> {
        let number = usize::try_from(handle).unwrap_or(usize::MAX);
        let open = self.0.get_mut(number).and_then(Option::as_mut);
        open.ok_or_else(|| Errno::BADF.into())
    }

    pub(super) fn read(&mut self, handle: u32, offset: u64, length: usize) -> Outcome<Vec<u8>> {
        let Handle::Read(file) = self.get(handle)? else {
            return Err(Errno::BADF.into());
        };
        let mut data = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
            match file.read_at(&mut data[filled..], at) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    pub(super) fn write(&mut self, handle: u32, offset: Option<u64>, data: &[u8]) -> Outcome<()> {
        let (file, append) = match self.get(handle)? {
            Handle::Patch { file, append, .. } => (file, *append),
            Handle::Put(put) => (&mut put.file, false),
            Handle::Read(_) | Handle::Watch(_) => return Err(Errno::BADF.into()),
        };
        match offset {
            Some(offset) => file.write_all_at(data, offset),
            None if append => file.write_all(data),
            None => file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(data)),
        }
        .map_err(|error| failed(&error))
    }

    pub(super) fn finish(
        &mut self,
        handle: u32,
        how: Finish,
        modified: Option<Time>,
    ) -> Outcome<()> {
        self.get(handle)?;
        let number = usize::try_from(handle).unwrap_or(usize::MAX);
        match (self.0[number].take(), how) {
            (Some(Handle::Patch { file, above, .. }), Finish::Sync) => {
                set_times(&file, modified)?;
                rustix::fs::fsync(&file)?;
                above.map_or(Ok(()), |above| Ok(rustix::fs::fsync(above)?))
            }
            (Some(Handle::Patch { file, .. }), Finish::Leave) => set_times(&file, modified),
            (Some(Handle::Put(mut put)), Finish::Sync | Finish::Leave) => {
                set_times(&put.file, modified)?;
                put.take_place(how)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn events(
        &mut self,
        handle: u32,
        wait_ms: u32,
        socket: &OwnedFd,
    ) -> Outcome<Answer> {
        let Handle::Watch(watch) = self.get(handle)? else {
            return Err(Errno::BADF.into());
        };
        Ok(Answer::Events { events: watch.events(wait_ms, socket)? })
    }
}

impl Put {
    fn begin(spot: &Spot, replace: bool, mode: Option<u32>) -> Outcome<Self> {
        let (above, name) = spot.split()?;
        let mode = match rustix::fs::statat(&above, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => mode.unwrap_or(DEFAULT_MODE),
            Err(errno) => return Err(errno.into()),
            Ok(_) if !replace => return Err(Errno::EXIST.into()),
            Ok(old) => match FileType::from_raw_mode(old.st_mode) {
                FileType::RegularFile => mode.unwrap_or(old.st_mode),
                FileType::Directory => return Err(Errno::ISDIR.into()),
                // Where no link is followed, the link itself is what is replaced.
                FileType::Symlink if spot.strict => mode.unwrap_or(DEFAULT_MODE),
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => return Err(Fault::NotRegular {}.into()),
            },
        };
        Self::make(above, name, replace, mode)
    }

    fn make(above: OwnedFd, name: Vec<u8>, replace: bool, mode: u32) -> Outcome<Self> {
        let (file, beside) = match without_name(&above)? {
            Some(file) => (file, None),
            None => {
                let beside = name_beside()?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&above, &*beside, flags, Mode::from_raw_mode(0o600))?;
                (file, Some(beside))
            }
        };
        let put = Self { file: file.into(), above, name, beside, replace };
        rustix::fs::fchmod(&put.file, Mode::from_raw_mode(mode & PLAIN_MODE))?;
        Ok(put)
    }

    fn take_place(&mut self, how: Finish) -> Outcome<()> {
        if how == Finish::Sync {
            // Before its name is: else a crash could leave the name with nothing in it.
            rustix::fs::fsync(&self.file)?;
        }
        if !self.take_name()? {
            self.take_over()?;
        }
        if how == Finish::Sync {
            rustix::fs::fsync(&self.above)?;
        }
        Ok(())
    }

    /// Gives a file without a name its own, if nothing has that. Otherwise it has one beside it then, for a moment: no call
    /// puts a file without a name in another's place.
    fn take_name(&mut self) -> Outcome<bool> {
        if self.beside.is_some() {
            return Ok(false);
        }
        match self.link(&self.name) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) if self.replace => {}
            Err(errno) => return Err(errno.into()),
        }
        let beside = name_beside()?;
        self.link(beside.as_bytes())?;
        self.beside = Some(beside);
        Ok(false)
    }

    fn link(&self, name: &[u8]) -> belljar_sys::Result<()> {
        let itself = rustix::fs::linkat(&self.file, "", &self.above, name, AtFlags::EMPTY_PATH);
        match itself {
            // Before Linux 6.10 that is a privilege, and this the way for all others.
            Err(Errno::NOENT | Errno::PERM) => {
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, own, &self.above, name, AtFlags::SYMLINK_FOLLOW)
            }
            linked => linked,
        }
    }

    /// From the name beside it to its own.
    fn take_over(&mut self) -> Outcome<()> {
        let Some(beside) = &self.beside else {
            return Err(Errno::BADF.into());
        };
        // A program may have put something else there.
        let (there, ours) = (
            rustix::fs::statat(&self.above, &**beside, AtFlags::SYMLINK_NOFOLLOW)?,
            rustix::fs::fstat(&self.file)?,
        );
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino) {
            self.beside = None;
            return Err(Fault::Changed {}.into());
        }
        let flags = if self.replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        rustix::fs::renameat_with(&self.above, &**beside, &self.above, &*self.name, flags)?;
        self.beside = None;
        Ok(())
    }
}

/// A file that nothing leads to, on the file system of this directory; `None` where there are none.
fn without_name(above: &OwnedFd) -> Outcome<Option<OwnedFd>> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::openat(above, ".", flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => Ok(Some(file)),
        // Overlays have them since Linux 6.1; some file systems of the network never had. EPERM is also what ext4 says of a
        // directory that was removed meanwhile: whoever makes a name there hears what is true.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::PERM) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Nobody else's, and known at sight if a killed agent leaves it behind: see [`is_beside`].
pub(super) fn name_beside() -> Outcome<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{BESIDE}{:016x}{UNFINISHED}", u64::from_le_bytes(random)))
}

const BESIDE: &str = ".belljar-";
const UNFINISHED: &str = ".part";

/// Whether an agent calls files so that are not in their place yet.
pub(super) fn is_beside(name: &[u8]) -> bool {
    let digits = name
        .strip_prefix(BESIDE.as_bytes())
        .and_then(|rest| rest.strip_suffix(UNFINISHED.as_bytes()));
    digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Opens what must be a regular file: nothing that waits, speaks for the kernel or does something when it is read.
fn open_regular(spot: &Spot, flags: OFlags, mode: u32) -> Outcome<(std::fs::File, Stat)> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | spot.no_follow();
    let opened = rustix::io::retry_on_intr(|| {
        rustix::fs::openat(spot.directory(), &*spot.name, flags, Mode::from_raw_mode(mode))
    });
    let file = match opened {
        Ok(file) => file,
        // A FIFO that nobody reads, or a socket.
        Err(Errno::NXIO) => return Err(Fault::NotRegular {}.into()),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if !NO_DATA.contains(&rustix::fs::fstatfs(&file)?.f_type) => {
            Ok((file.into(), stat))
        }
        FileType::Directory => Err(Errno::ISDIR.into()),
        FileType::RegularFile
        | FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Err(Fault::NotRegular {}.into()),
    }
}

/// Opens a file or directory to do something to it that is no data.
pub(super) fn open_any(spot: &Spot) -> Outcome<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = flags | spot.no_follow();
    let opened = rustix::fs::openat(spot.directory(), &*spot.name, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::RegularFile | FileType::Directory => Ok(opened),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Err(Fault::NotRegular {}.into()),
    }
}

fn set_times(file: impl AsFd, modified: Option<Time>) -> Outcome<()> {
    let Some(modified) = modified else { return Ok(()) };
    Ok(rustix::fs::futimens(file, &timestamps(modified))?)
}

pub(super) fn timestamps(modified: Time) -> Timestamps {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn failed(error: &std::io::Error) -> Failed {
    let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    errno.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::place::{Links, open_directory};

    /// To take its place there, as [`Handles`] does.
    fn put_into(directory: OwnedFd) -> Outcome<()> {
        let name = b"file".to_vec();
        Put::make(directory, name, true, DEFAULT_MODE)?.take_place(Finish::Leave)
    }

    #[test]
    fn a_directory_that_is_removed_meanwhile_is_not_there_rather_than_refused() {
        let path = std::env::temp_dir().join(format!("bj-agent-put-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let open = || open_directory(CWD, path.as_os_str().as_encoded_bytes(), Links::Refuse);
        put_into(open().unwrap()).unwrap();
        std::fs::remove_file(path.join("file")).unwrap();
        let directory = open().unwrap();
        std::fs::remove_dir(&path).unwrap();
        let errno = Errno::NOENT.raw_os_error().unsigned_abs();
        assert_eq!(put_into(directory).unwrap_err().fault, Fault::Kernel { errno });
    }
}
