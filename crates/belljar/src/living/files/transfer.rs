//! The host's side of copying: a file or tree of the caller's becomes an archive, and an archive from a sandbox becomes
//! files of the caller's. That archive is hostile: nothing of it is written through a link, nor outside of the place that
//! was named, and only regular files and directories come out.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_jail::agent::wire::Kind;
use belljar_sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Files;
use super::archive::{Entry, MAX_ENTRIES, Packer, Reader, What};
use super::error::{FileError, FileFault, ours};
use super::path::InsidePath;
use super::upload::Uploaded;
use crate::output_files::Skipped;

const READ_BYTES: usize = 64 << 10;
const MAX_NOTES: usize = 1000;

/// What came out of an archive, and what did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    pub skipped: Vec<Skipped>,
}

impl Unpacked {
    fn skip(&mut self, path: &[u8], reason: &str) {
        if self.skipped.len() < MAX_NOTES {
            let path = String::from_utf8_lossy(path).into_owned();
            self.skipped.push(Skipped { path, reason: reason.to_owned() });
        }
    }
}

/// What a duplex holds between its two ends.
const BETWEEN_BYTES: usize = 256 << 10;

impl Files {
    /// Copies a file or tree of the host's into the sandbox: as `to`, or into it where it is a directory.
    pub async fn copy_in(&self, from: &Path, to: &InsidePath) -> Result<Uploaded, FileError> {
        let own = from.file_name().map(OsStrExt::as_bytes);
        let nameless = || FileFault::Refused("has no name of its own".to_owned());
        let place = match self.is_directory(to).await? {
            true => (to.clone(), own),
            false => (to.parent(), to.name()),
        };
        let (into, name) = (place.0, place.1.ok_or_else(|| nameless().at(to.bytes()))?);
        let (sink, source) = tokio::io::duplex(BETWEEN_BYTES);
        let (packed, uploaded) =
            tokio::join!(pack_host(from, name, sink), self.upload_tar(source, &into));
        // Whichever went wrong first made the other go wrong too.
        match (packed, uploaded) {
            (Err(error), Err(other))
                if matches!(error.fault, FileFault::Ours(_)) && error.path == "archive" =>
            {
                Err(other)
            }
            (Err(error), _) => Err(error),
            (Ok(_), uploaded) => uploaded,
        }
    }

    /// Copies a file or tree of the sandbox's to the host, as [`unpack_host`] does it.
    pub async fn copy_out(
        &self,
        from: &InsidePath,
        to: &Path,
        most_bytes: u64,
    ) -> Result<Unpacked, FileError> {
        let (sink, source) = tokio::io::duplex(BETWEEN_BYTES);
        let (packed, unpacked) = tokio::join!(
            self.download_tar(from, sink, most_bytes),
            unpack_host(source, to, most_bytes)
        );
        match (packed, unpacked) {
            (Err(error), Err(other)) if error.path == "archive" => Err(other),
            (Err(error), _) => Err(error),
            (Ok(packed), Ok(mut unpacked)) => {
                unpacked.skipped.extend(packed.notes);
                Ok(unpacked)
            }
            (Ok(_), Err(error)) => Err(error),
        }
    }

    async fn is_directory(&self, path: &InsidePath) -> Result<bool, FileError> {
        let mut lease = self.lease(path.bytes()).await?;
        match lease.line().stat(path.place(), true, path.bytes()).await {
            Ok((meta, _)) => Ok(meta.kind == Kind::Directory),
            Err(FileError { fault: FileFault::NotFound, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Packs a file or directory of the host under `name`. Links are packed as links, never followed; what is neither file,
/// directory nor link is left out and told. To be called where waiting for a disk holds nobody up.
pub async fn pack_host(
    from: &Path,
    name: &[u8],
    sink: impl AsyncWrite + Unpin,
) -> Result<Vec<Skipped>, FileError> {
    let mut packer = Packer::new(sink);
    let (mut left, mut entries, mut skipped) =
        (vec![(from.to_owned(), name.to_vec())], 0, Vec::new());
    while let Some((path, name)) = left.pop() {
        entries += 1;
        if entries > MAX_ENTRIES {
            let why = format!("has more than {MAX_ENTRIES} entries");
            return Err(FileFault::Refused(why).at(from.as_os_str().as_bytes()));
        }
        let wrong = ours(path.as_os_str().as_bytes());
        let meta = fs::symlink_metadata(&path).map_err(&wrong)?;
        let mode = meta.mode() & 0o777;
        let entry =
            |what, bytes| Entry { path: name.clone(), what, bytes, mode, modified_s: meta.mtime() };
        if meta.is_dir() {
            packer.begin(&entry(What::Directory, 0)).await?;
            for child in fs::read_dir(&path).map_err(&wrong)? {
                let child = child.map_err(&wrong)?;
                let below = [&name[..], b"/", child.file_name().as_bytes()].concat();
                left.push((child.path(), below));
            }
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).map_err(&wrong)?;
            packer.begin(&entry(What::Symlink(target.as_os_str().as_bytes().to_vec()), 0)).await?;
        } else if meta.is_file() {
            let mut file = File::open(&path).map_err(&wrong)?;
            packer.begin(&entry(What::File, meta.len())).await?;
            pack_file(&mut file, meta.len(), &path, &mut packer).await?;
        } else {
            let path = path.display().to_string();
            skipped.push(Skipped { path, reason: "not a regular file".to_owned() });
        }
    }
    packer.close().await?;
    Ok(skipped)
}

/// Exactly so many bytes: the caller's file may change while it is read.
async fn pack_file<W: AsyncWrite + Unpin>(
    file: &mut File,
    bytes: u64,
    path: &Path,
    packer: &mut Packer<W>,
) -> Result<(), FileError> {
    let mut left = bytes;
    let mut buffer = vec![0; READ_BYTES];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES);
        let read = file.read(&mut buffer[..most]).map_err(ours(path.as_os_str().as_bytes()))?;
        if read == 0 {
            return Err(FileFault::Changed.at(path.as_os_str().as_bytes()));
        }
        packer.write(&buffer[..read]).await?;
        left -= u64::try_from(read).unwrap_or(0);
    }
    packer.end(bytes).await
}

/// Writes what [`Files::download_tar`](super::Files::download_tar) packed to the host. The one thing that the archive
/// holds becomes `to`, or goes into it under its own name where `to` is a directory. Files of the same name are replaced,
/// links are not followed: the link is what is replaced, and a link in the place of a directory is an error.
pub async fn unpack_host(
    source: impl AsyncRead + Unpin,
    to: &Path,
    most_bytes: u64,
) -> Result<Unpacked, FileError> {
    let mut archive = Reader::new(source);
    let mut done = Unpacked::default();
    let mut target = None;
    while let Some(entry) = archive.next().await? {
        let (top, below) = match entry.path.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&entry.path[..slash], &entry.path[slash + 1..]),
            None => (&entry.path[..], &b""[..]),
        };
        let target = match &mut target {
            Some(target) => target,
            None => target.insert(Target::choose(to, top)?),
        };
        if target.top != top {
            return Err(
                FileFault::Refused("is beside what was asked for".to_owned()).at(&entry.path)
            );
        }
        if done.bytes.saturating_add(entry.bytes) > most_bytes {
            let why = format!("with it, more than {most_bytes} bytes would be written");
            return Err(FileFault::Refused(why).at(&entry.path));
        }
        match &entry.what {
            What::Directory => {
                target.directory(below).map_err(ours(&entry.path))?;
                done.directories += 1;
            }
            What::File => {
                target.file(below, &entry, &mut archive).await?;
                done.files += 1;
                done.bytes += entry.bytes;
            }
            What::Symlink(_) => done.skip(&entry.path, "a symbolic link"),
            What::Link(_) => done.skip(&entry.path, "a hard link"),
        }
    }
    Ok(done)
}

/// Where an archive goes on the host: a directory that was opened once, and a name in it.
struct Target {
    /// What everything in the archive is below.
    top: Vec<u8>,
    above: OwnedFd,
    name: Vec<u8>,
}

impl Target {
    /// The caller's own path is resolved as the caller wrote it; nothing of the archive has a say in it.
    fn choose(to: &Path, top: &[u8]) -> Result<Self, FileError> {
        let wrong = ours(to.as_os_str().as_bytes());
        let into = |directory: &Path, name: &[u8]| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let above = rustix::fs::openat(CWD, directory, flags, Mode::empty());
            let above = above.map_err(|errno| wrong(errno.into()))?;
            Ok(Self { top: top.to_vec(), above, name: name.to_vec() })
        };
        if to.is_dir() {
            return into(to, top);
        }
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.map_or_else(|| PathBuf::from("."), Path::to_owned);
        let Some(name) = to.file_name() else {
            return Err(FileFault::Refused("is no name for a file".to_owned())
                .at(to.as_os_str().as_bytes()));
        };
        into(&parent, name.as_bytes())
    }

    /// The directory that holds `below`, made as far as it is missing, and its last name. No link is followed.
    fn find(&self, below: &[u8]) -> std::io::Result<(OwnedFd, Vec<u8>)> {
        let mut names: Vec<&[u8]> =
            below.split(|byte| *byte == b'/').filter(|one| !one.is_empty()).collect();
        names.insert(0, &self.name);
        let last = names.pop().unwrap_or_default().to_vec();
        let mut at = self.above.try_clone()?;
        for name in names {
            at = enter(&at, name)?;
        }
        Ok((at, last))
    }

    fn directory(&self, below: &[u8]) -> std::io::Result<()> {
        let (at, name) = self.find(below)?;
        enter(&at, &name).map(drop)
    }

    async fn file<R: AsyncRead + Unpin>(
        &self,
        below: &[u8],
        entry: &Entry,
        archive: &mut Reader<R>,
    ) -> Result<(), FileError> {
        let wrong = ours(&entry.path);
        let (at, name) = self.find(below).map_err(&wrong)?;
        let mut beside = Beside::new(at).map_err(&wrong)?;
        while let Some(chunk) = archive.chunk().await? {
            beside.file.write_all(&chunk).map_err(&wrong)?;
        }
        // Only "may be executed" survives of the mode: no setuid, no closed files.
        let mode = if entry.mode & 0o100 == 0 { 0o644 } else { 0o755 };
        beside.take_place(&name, mode).map_err(&wrong)
    }
}

/// Opens a directory that is there or made now; a link is `ELOOP` or `ENOTDIR`.
fn enter(at: impl AsFd, name: &[u8]) -> std::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// A file that has no name of its own yet.
struct Beside {
    file: File,
    at: OwnedFd,
    name: Option<String>,
}

impl Beside {
    fn new(at: OwnedFd) -> std::io::Result<Self> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!(".belljar-{:016x}.part", u64::from_le_bytes(random));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&at, &*name, flags, Mode::from_raw_mode(0o600))?;
        Ok(Self { file: file.into(), at, name: Some(name) })
    }

    fn take_place(&mut self, name: &[u8], mode: u32) -> std::io::Result<()> {
        if let Ok(old) = rustix::fs::statat(&self.at, name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(old.st_mode) == FileType::Directory
        {
            return Err(Errno::ISDIR.into());
        }
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        if let Some(beside) = &self.name {
            rustix::fs::renameat(&self.at, &**beside, &self.at, name)?;
            self.name = None;
        }
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // Half a file could be taken for a whole one.
            rustix::fs::unlinkat(&self.at, &*name, AtFlags::empty()).ok();
        }
    }
}
