//! Copying what programs wrote, exactly: contents with their holes, modes, owners, times, attributes, links, marks of the
//! overlay, and entries that hold nothing.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use belljar_sys::Errno;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid};

use super::walk::{self, Kind, MOST_ENTRIES, Meta, Place, join};

/// One piece when the kernel cannot copy by itself.
const PIECE: usize = 128 << 10;

/// What a sheet holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub bytes: u64,
    /// Everything but directories.
    pub files: u64,
}

/// Whether files are made anew, or share their contents with the old ones for ever: right only for sealed sheets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Copy,
    Link,
}

/// Copies a whole tree into an empty directory.
pub(super) fn copy_tree(from: &Place, to: &Place) -> io::Result<Counts> {
    let mut maker = Maker::new(to, How::Copy);
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let source = from.directory(&path)?;
        let target = to.directory(&path)?;
        for name in walk::names(&source)? {
            let Some(meta) = walk::look(&source, &name)? else { continue };
            maker.make(&source, &name, &meta, &target, &path)?;
            if meta.kind == Kind::Directory {
                waiting.push(join(&path, &name));
            }
        }
        maker.directory_made(&source, &path, walk::is_opaque(&source)?)?;
    }
    maker.finish()
}

/// What a tree holds, by a walk over it.
pub(super) fn count(tree: &Place) -> io::Result<Counts> {
    let mut counts = Counts::default();
    each(tree, |_, _, meta| {
        if meta.kind != Kind::Directory {
            counts.files += 1;
            counts.bytes += if meta.kind == Kind::File { meta.bytes } else { 0 };
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Removes files that an agent did not come to put in their place, and says how many. The tree is a hostile program's, which may
/// still be changing it: what cannot be opened or removed stays, and is no reason to leave the rest.
pub(super) fn remove_unfinished(tree: &Place) -> usize {
    let (mut removed, mut waiting) = (0, vec![Vec::new()]);
    while let Some(path) = waiting.pop() {
        let Ok(directory) = tree.directory(&path) else { continue };
        for name in walk::names(&directory).unwrap_or_default() {
            let Ok(Some(meta)) = walk::look(&directory, &name) else { continue };
            if meta.kind == Kind::Directory {
                waiting.push(join(&path, &name));
            } else if meta.kind == Kind::File && belljar_jail::agent::is_unfinished(name.to_bytes())
            {
                let gone = rustix::fs::unlinkat(&directory, &name, AtFlags::empty());
                removed += usize::from(gone.is_ok());
            }
        }
    }
    removed
}

/// Looks at every entry of a tree.
fn each(
    tree: &Place,
    mut look: impl FnMut(&OwnedFd, &CStr, &Meta) -> io::Result<()>,
) -> io::Result<()> {
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let directory = match tree.directory(&path) {
            // Deeper than the kernel can name: not counted, as nothing can be told of it.
            Err(error) if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => {
                continue;
            }
            result => result?,
        };
        for name in walk::names(&directory)? {
            let Some(meta) = walk::look(&directory, &name)? else { continue };
            look(&directory, &name, &meta)?;
            if meta.kind == Kind::Directory {
                waiting.push(join(&path, &name));
            }
        }
    }
    Ok(())
}

/// Makes entries in a new tree as they are in an old one.
pub(super) struct Maker<'a> {
    to: &'a Place,
    how: How,
    /// Where a file with several names was made first.
    first: HashMap<(u64, u64), Vec<u8>>,
    /// Directories get their modes and times when all in them is made.
    directories: Vec<(Vec<u8>, OwnedDirectory)>,
    counts: Counts,
    entries: usize,
}

struct OwnedDirectory {
    meta: Meta,
    attributes: Vec<(std::ffi::CString, Vec<u8>)>,
    opaque: bool,
}

impl<'a> Maker<'a> {
    pub(super) fn new(to: &'a Place, how: How) -> Self {
        let (first, directories) = (HashMap::new(), Vec::new());
        Self { to, how, first, directories, counts: Counts::default(), entries: 0 }
    }

    /// Makes `name`; a directory is made empty and open to us until [`Self::finish`].
    pub(super) fn make(
        &mut self,
        source: &OwnedFd,
        name: &CStr,
        meta: &Meta,
        target: &OwnedFd,
        path: &[u8],
    ) -> io::Result<()> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(io::Error::other(format!("more than {MOST_ENTRIES} entries")));
        }
        if meta.kind == Kind::Directory {
            return Ok(rustix::fs::mkdirat(target, name, Mode::RWXU)?);
        }
        self.counts.files += 1;
        if meta.kind == Kind::File {
            self.counts.bytes += meta.bytes;
        }
        if self.how == How::Link && meta.kind != Kind::Whiteout {
            match rustix::fs::linkat(source, name, target, name, AtFlags::empty()) {
                Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {}
                result => return Ok(result?),
            }
        }
        if meta.shared && meta.kind != Kind::Whiteout {
            if let Some(first) = self.first.get(&meta.identity) {
                return self.link(first, target, name);
            }
            self.first.insert(meta.identity, join(path, name));
        }
        match meta.kind {
            Kind::File => return copy_file(source, target, name, meta),
            Kind::Symlink => {
                let points_to = walk::read_link(source, name)?;
                rustix::fs::symlinkat(points_to.as_c_str(), target, name)?;
            }
            Kind::Fifo => make_node(target, name, FileType::Fifo)?,
            Kind::Socket => make_node(target, name, FileType::Socket)?,
            Kind::Whiteout => return make_whiteout(target, name),
            Kind::Directory | Kind::Device => {
                return Err(io::Error::other("a device, which no sandbox can make"));
            }
        }
        dress(target, name, meta)
    }

    fn link(&self, first: &[u8], target: &OwnedFd, name: &CStr) -> io::Result<()> {
        let (above, last) = match first.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&first[..slash], &first[slash + 1..]),
            None => (&b""[..], first),
        };
        let directory = self.to.directory(above)?;
        Ok(rustix::fs::linkat(&directory, last, target, name, AtFlags::empty())?)
    }

    /// Remembers how a directory shall look in the end.
    pub(super) fn directory_made(
        &mut self,
        source: &OwnedFd,
        path: &[u8],
        opaque: bool,
    ) -> io::Result<()> {
        let (meta, attributes) = (walk::look_at(source)?, walk::attributes(source)?);
        self.directories.push((path.to_vec(), OwnedDirectory { meta, attributes, opaque }));
        Ok(())
    }

    pub(super) fn finish(self) -> io::Result<Counts> {
        // The deepest first: a directory may be closed even to us when it is done.
        for (path, wanted) in self.directories.iter().rev() {
            let open = self.to.directory(path)?;
            walk::set_attributes(&open, &wanted.attributes)?;
            if wanted.opaque {
                walk::make_opaque(&open)?;
            }
            dress_open(&open, &wanted.meta)?;
        }
        Ok(self.counts)
    }
}

fn copy_file(source: &OwnedFd, target: &OwnedFd, name: &CStr, meta: &Meta) -> io::Result<()> {
    let from = walk::open_file(source, name)?;
    let to = new_file(target, name)?;
    copy_data(&from, &to)?;
    walk::set_attributes(&to, &walk::attributes(&from)?)?;
    dress_open(&to, meta)
}

pub(super) fn new_file(directory: &impl AsFd, name: &CStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Copies a file's contents into an empty one: shared where the file system can, else piece by piece, and holes stay holes.
pub(super) fn copy_data(from: &File, to: &File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let length = from.metadata()?.len();
    to.set_len(length)?;
    for (start, end) in segments(from, length)? {
        copy_segment(from, to, start, end)?;
    }
    Ok(())
}

/// Where a file has data.
pub(super) fn segments(file: &File, length: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(length);
        if start >= end {
            break; // It was cut short meanwhile.
        }
        found.push((start, end));
        at = end;
    }
    Ok(found)
}

fn copy_segment(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut read_at, mut write_at) = (at, at);
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length)
        {
            Ok(0) => return Ok(()), // It was cut short meanwhile.
            Ok(copied) => at += copied as u64,
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return copy_by_hand(from, to, at, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        let got = from.read_at(&mut piece[..wanted], at)?;
        if got == 0 {
            return Ok(());
        }
        to.write_all_at(&piece[..got], at)?;
        at += got as u64;
    }
    Ok(())
}

fn make_node(directory: &OwnedFd, name: &CStr, kind: FileType) -> io::Result<()> {
    Ok(rustix::fs::mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, 0)?)
}

/// The one device that anybody may make since Linux 5.8.
pub(super) fn make_whiteout(directory: &impl AsFd, name: &CStr) -> io::Result<()> {
    let kind = FileType::CharacterDevice;
    Ok(rustix::fs::mknodat(directory, name, kind, Mode::empty(), 0)?)
}

fn times(meta: &Meta) -> Timestamps {
    let at = Timespec { tv_sec: meta.modified.0, tv_nsec: meta.modified.1 };
    Timestamps { last_access: at, last_modification: at }
}

fn dress_open(open: &impl AsFd, meta: &Meta) -> io::Result<()> {
    let now = walk::look_at(open)?;
    if (now.uid, now.gid) != (meta.uid, meta.gid) {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::fchown(open, Some(uid), Some(gid))?;
    }
    // After the owner: a change of owner takes setuid and setgid away.
    rustix::fs::fchmod(open, Mode::from_raw_mode(meta.mode))?;
    Ok(rustix::fs::futimens(open, &times(meta))?)
}

/// For what cannot be opened: links, fifos, sockets.
fn dress(directory: &OwnedFd, name: &CStr, meta: &Meta) -> io::Result<()> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::chownat(directory, name, Some(uid), Some(gid), nofollow)?;
    }
    if meta.kind != Kind::Symlink {
        // Made by us a moment ago, in a directory that nobody else can reach.
        rustix::fs::chmodat(directory, name, Mode::from_raw_mode(meta.mode), AtFlags::empty())?;
    }
    Ok(rustix::fs::utimensat(directory, name, &times(meta), nofollow)?)
}
