//! Looking at trees that programs made, by descriptors: no link is followed, nothing but regular files and directories is
//! opened, and no path leaves the directory that was opened first.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_sys::Errno;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

/// Longer paths cannot be named to the kernel.
pub(super) const MOST_PATH: usize = 4000;
/// Entries of one walk; the inode limit of a sandbox is far below.
pub(super) const MOST_ENTRIES: usize = 1 << 22;
/// Bytes of the attributes of one file.
const MOST_ATTRIBUTES: usize = 64 << 10;
const OPAQUE: &CStr = c"user.overlay.opaque";
const WHITEOUT: &CStr = c"user.overlay.whiteout";
/// The overlay's own marks. What a program calls by such a name is kept as `user.overlay.overlay.…`.
const MARKS: &[u8] = b"user.overlay.";
const ESCAPED: &[u8] = b"user.overlay.overlay.";

/// A directory that was opened once; everything else is found beneath it.
#[derive(Debug)]
pub(super) struct Place(OwnedFd);

impl Place {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// A directory below it; the empty path is itself.
    pub(super) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.len() > MOST_PATH {
            return Err(Errno::NAMETOOLONG.into());
        }
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_anyway(&self.0, path, flags)
    }
}

/// A directory in an open directory.
pub(super) fn open_directory(directory: &impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_anyway(directory, name.to_bytes(), flags)
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// Opens what is ours though its mode says no, as an ordinary user must: a program may close its own files.
fn open_anyway(at: &impl AsFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let open = |flags| rustix::fs::openat2(at, path, flags, Mode::empty(), beneath());
    match open(flags) {
        Err(Errno::ACCESS) => {}
        result => return Ok(result?),
    }
    let handle = open(OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
    // By the descriptor's own name, so that nothing is resolved a second time.
    let again = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    rustix::fs::chmod(&again, mode | Mode::RUSR | Mode::XUSR)?;
    let opened = open(flags);
    rustix::fs::chmod(&again, mode)?;
    Ok(opened?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    /// The overlay's mark that what is below is gone.
    Whiteout,
    Device,
}

impl Kind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Whiteout => "whiteout",
            Self::Device => "device",
        }
    }
}

/// What is known of an entry without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub kind: Kind,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub bytes: u64,
    pub modified: (i64, i64),
    pub changed: (i64, i64),
    pub identity: (u64, u64),
    /// It has another name somewhere.
    pub shared: bool,
}

impl Meta {
    fn new(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice if stat.st_rdev == 0 => Kind::Whiteout,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Kind::Device,
        };
        let nanoseconds = |count| i64::try_from(count).unwrap_or(0);
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
            identity: (stat.st_dev, stat.st_ino),
            shared: stat.st_nlink > 1,
        }
    }
}

/// What `name` in an open directory is, if it is there.
pub(super) fn look(directory: &impl AsFd, name: &CStr) -> io::Result<Option<Meta>> {
    let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut meta = Meta::new(&stat);
    // The other form that the kernel reads, though it does not make it here.
    if meta.kind == Kind::File && meta.bytes == 0 {
        let file = open_file(directory, name)?;
        if attribute(&file, WHITEOUT)?.is_some() {
            meta.kind = Kind::Whiteout;
        }
    }
    Ok(Some(meta))
}

pub(super) fn look_at(open: &impl AsFd) -> io::Result<Meta> {
    Ok(Meta::new(&rustix::fs::fstat(open)?))
}

pub(super) fn names(directory: &impl AsFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if names.len() >= MOST_ENTRIES {
            return Err(io::Error::other(format!("more than {MOST_ENTRIES} entries")));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Opens a regular file to read: never a device, never waiting for a fifo's other end.
pub(super) fn open_file(directory: &impl AsFd, name: &CStr) -> io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open_anyway(directory, name.to_bytes(), flags)?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::STALE.into()); // Swapped since it was looked at.
    }
    Ok(file.into())
}

pub(super) fn read_link(directory: &impl AsFd, name: &CStr) -> io::Result<CString> {
    Ok(rustix::fs::readlinkat(directory, name, Vec::new())?)
}

/// Whether a directory hides all that is below it.
pub(super) fn is_opaque(directory: &impl AsFd) -> io::Result<bool> {
    Ok(attribute(directory, OPAQUE)?.is_some_and(|value| value == b"y"))
}

pub(super) fn make_opaque(directory: &impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::fsetxattr(directory, OPAQUE, b"y", flags)?)
}

fn attribute(open: &impl AsFd, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; MOST_ATTRIBUTES];
    match rustix::fs::fgetxattr(open, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The attributes that programs gave a file, sorted. The overlay's own marks are not among them.
pub(super) fn attributes(open: &impl AsFd) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut list = vec![0; MOST_ATTRIBUTES];
    let length = match rustix::fs::flistxattr(open, &mut list[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    list.truncate(length);
    let mut found = Vec::new();
    for name in list.split(|byte| *byte == 0).filter(|name| is_theirs(name)) {
        let name = CString::new(name)?;
        if let Some(value) = attribute(open, &name)? {
            found.push((name, value));
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn is_theirs(name: &[u8]) -> bool {
    name.starts_with(b"user.") && (!name.starts_with(MARKS) || name.starts_with(ESCAPED))
}

pub(super) fn set_attributes(
    open: &impl AsFd,
    attributes: &[(CString, Vec<u8>)],
) -> io::Result<()> {
    for (name, value) in attributes {
        rustix::fs::fsetxattr(open, name.as_c_str(), value, rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

/// `name` below `directory`, both relative to the place.
pub(super) fn join(directory: &[u8], name: &CStr) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
    path
}
