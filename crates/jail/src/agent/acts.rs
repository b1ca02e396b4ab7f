//! What is done in one go: looking, listing, naming, moving.

use std::mem::MaybeUninit;

use belljar_sys::Errno;
use rustix::fs::{AtFlags, FileType, Mode, RawDir, RenameFlags, SeekFrom, Stat};

use super::Outcome;
use super::files::{open_any, timestamps};
use super::place::{Spot, open_directory};
use super::wire::{Answer, Bytes, Kind, Listed, MAX_DATA_BYTES, Meta, Place, Time};

/// What the kernel fills at once when a directory is read.
const READ_BYTES: usize = 32 << 10;
/// What stands around a name in a page.
const LISTED_BYTES: usize = 64;
const PLAIN_MODE: u32 = 0o777;

pub(super) fn meta(stat: &Stat) -> Meta {
    Meta {
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Kind::Other,
        },
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified: Time {
            seconds: stat.st_mtime,
            nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        },
        device: stat.st_dev,
        inode: stat.st_ino,
    }
}

pub(super) fn stat(place: &Place, follow: bool) -> Outcome<Answer> {
    let spot = Spot::find(place)?;
    let follow = follow && !spot.strict;
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let meta = meta(&rustix::fs::statat(spot.directory(), &*spot.name, flags)?);
    let target = match meta.kind {
        Kind::Symlink => Some(Bytes(read_link_at(&spot)?)),
        Kind::File | Kind::Directory | Kind::Other => None,
    };
    Ok(Answer::Meta { meta, target })
}

/// As many entries from `cursor` on as were asked for and fit.
pub(super) fn list(place: &Place, cursor: u64, most: u32) -> Outcome<Answer> {
    let spot = Spot::find(place)?;
    let directory = open_directory(spot.directory(), &spot.name, spot.links())?;
    if cursor > 0 {
        rustix::fs::seek(&directory, SeekFrom::Start(cursor))?;
    }
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut read = RawDir::new(&directory, &mut buffer);
    let (mut entries, mut room, mut at) = (Vec::new(), MAX_DATA_BYTES, cursor);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    while let Some(entry) = read.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            // Gone since: then it is not there.
            let Ok(stat) = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                at = entry.next_entry_cookie();
                continue;
            };
            let meta = meta(&stat);
            let target = match meta.kind {
                Kind::Symlink => rustix::fs::readlinkat(&directory, name, Vec::new()).ok(),
                Kind::File | Kind::Directory | Kind::Other => None,
            };
            let target = target.map(|target| Bytes(target.into_bytes()));
            let name = Bytes::from(name.to_bytes());
            let size =
                LISTED_BYTES + name.0.len() + target.as_ref().map_or(0, |target| target.0.len());
            if entries.len() >= most || room < size {
                return Ok(Answer::Page { entries, next: Some(at) });
            }
            room -= size;
            entries.push(Listed { name, meta, target });
        }
        at = entry.next_entry_cookie();
    }
    Ok(Answer::Page { entries, next: None })
}

pub(super) fn make_directory(place: &Place, mode: u32, parents: bool) -> Outcome<()> {
    let spot = Spot::find_making(place, parents)?;
    let mode = Mode::from_raw_mode(mode & PLAIN_MODE);
    match rustix::fs::mkdirat(spot.directory(), &*spot.name, mode) {
        Err(Errno::EXIST) if parents => {
            // There already is enough, if it is a directory.
            let links = if spot.strict { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
            let stat = rustix::fs::statat(spot.directory(), &*spot.name, links)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Ok(()),
                FileType::Symlink => Err(Errno::LOOP.into()),
                FileType::RegularFile
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => Err(Errno::EXIST.into()),
            }
        }
        made => Ok(made?),
    }
}

pub(super) fn rename(from: &Place, to: &Place, replace: bool) -> Outcome<()> {
    let (from, to) = (Spot::find(from)?, Spot::find(to)?);
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    Ok(rustix::fs::renameat_with(from.directory(), &*from.name, to.directory(), &*to.name, flags)?)
}

pub(super) fn symlink(place: &Place, target: &[u8]) -> Outcome<()> {
    let spot = Spot::find(place)?;
    Ok(rustix::fs::symlinkat(target, spot.directory(), &*spot.name)?)
}

pub(super) fn read_link(place: &Place) -> Outcome<Vec<u8>> {
    read_link_at(&Spot::find(place)?)
}

fn read_link_at(spot: &Spot) -> Outcome<Vec<u8>> {
    Ok(rustix::fs::readlinkat(spot.directory(), &*spot.name, Vec::new())?.into_bytes())
}

/// The link itself is what gets a second name, never what it leads to.
pub(super) fn link(from: &Place, to: &Place) -> Outcome<()> {
    let (from, to) = (Spot::find(from)?, Spot::find(to)?);
    let flags = AtFlags::empty();
    Ok(rustix::fs::linkat(from.directory(), &*from.name, to.directory(), &*to.name, flags)?)
}

pub(super) fn set_mode(place: &Place, mode: u32) -> Outcome<()> {
    let spot = Spot::find(place)?;
    let mode = Mode::from_raw_mode(mode & PLAIN_MODE);
    if spot.strict {
        // By descriptor: by name a link could be followed.
        let opened = open_any(&spot)?;
        return Ok(rustix::fs::fchmod(opened, mode)?);
    }
    Ok(rustix::fs::chmodat(spot.directory(), &*spot.name, mode, AtFlags::empty())?)
}

pub(super) fn set_times(place: &Place, modified: Time) -> Outcome<()> {
    let spot = Spot::find(place)?;
    let flags = if spot.strict { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
    Ok(rustix::fs::utimensat(spot.directory(), &*spot.name, &timestamps(modified), flags)?)
}

pub(super) fn sync(place: &Place, whole: bool) -> Outcome<()> {
    let opened = open_any(&Spot::find(place)?)?;
    let synced = if whole { rustix::fs::syncfs(opened) } else { rustix::fs::fsync(opened) };
    Ok(synced?)
}

/// The calls that make several directories at once.
impl Spot {
    /// As [`Spot::find`]; with `parents` what is missing on the way is made.
    fn find_making(place: &Place, parents: bool) -> Outcome<Self> {
        if !parents {
            return Self::find(place);
        }
        let path = &place.path.0;
        let ends = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
        for (end, _) in ends {
            let above = Place { base: place.base.clone(), path: Bytes::from(&path[..end]) };
            let spot = Self::find(&above)?;
            let mode = Mode::from_raw_mode(0o755);
            match rustix::fs::mkdirat(spot.directory(), &*spot.name, mode) {
                // What stands there shows in the next step; a directory that cannot be written may hold the next.
                Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Self::find(place)
    }
}
