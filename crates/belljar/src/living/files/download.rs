//! A tree of a sandbox becomes an archive, while programs may be changing it.

use belljar_jail::agent::wire::{Finish, How, Kind, Listed, MAX_DATA_BYTES, Meta, Place};
use tokio::io::AsyncWrite;

use super::archive::{Entry, MAX_DEPTH, MAX_ENTRIES, MAX_PATH_BYTES, Packer, What};
use super::error::{FileError, FileFault};
use super::line::Line;
use super::path::{InsidePath, join};
use super::{Files, PAGE};
use crate::output_files::Skipped;

/// What is said of files that were left out; how many there were is always told.
const MAX_NOTES: usize = 1000;

/// What went into an archive, and what did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Downloaded {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    pub bytes: u64,
    /// Left out, or not as it was: the first of them, with the reason.
    pub notes: Vec<Skipped>,
    pub noted: u64,
}

impl Downloaded {
    fn note(&mut self, path: &[u8], reason: &str) {
        self.noted += 1;
        if self.notes.len() < MAX_NOTES {
            let path = String::from_utf8_lossy(path).into_owned();
            self.notes.push(Skipped { path, reason: reason.to_owned() });
        }
    }
}

impl Files {
    /// Packs the file or directory at `from`, under its own name. A file that changes meanwhile has the length that it
    /// had at first: filled with zeroes or cut, and told. Holes become zeroes.
    pub async fn download_tar(
        &self,
        from: &InsidePath,
        sink: impl AsyncWrite + Unpin,
        most_bytes: u64,
    ) -> Result<Downloaded, FileError> {
        let mut lease = self.lease(from.bytes()).await?;
        let line = lease.line();
        let (meta, _) = line.stat(from.place(), true, from.bytes()).await?;
        let name = from.name().unwrap_or(b"root").to_vec();
        let mut packing = Packing {
            line,
            base: from.clone(),
            name,
            packer: Packer::new(sink),
            most_bytes,
            entries: 0,
            done: Downloaded::default(),
        };
        match meta.kind {
            Kind::Directory => packing.tree(&meta).await?,
            Kind::File => {
                let name = std::mem::take(&mut packing.name);
                packing.base = from.parent();
                // The one that was named is found as a program would find it.
                packing.file(from.place(), &name).await?;
                if packing.done.files == 0 {
                    return Err(FileFault::Changed.at(from.bytes()));
                }
            }
            Kind::Symlink | Kind::Other => return Err(FileFault::NotRegular.at(from.bytes())),
        }
        packing.packer.close().await?;
        Ok(packing.done)
    }
}

struct Packing<'a, W> {
    line: &'a mut Line,
    base: InsidePath,
    /// What everything in the archive is below.
    name: Vec<u8>,
    packer: Packer<W>,
    most_bytes: u64,
    entries: u64,
    done: Downloaded,
}

impl<W: AsyncWrite + Unpin> Packing<'_, W> {
    async fn tree(&mut self, top: &Meta) -> Result<(), FileError> {
        let name = self.name.clone();
        self.begin(name, What::Directory, 0, top).await?;
        self.done.directories += 1;
        let mut left = vec![Vec::new()];
        while let Some(directory) = left.pop() {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let shown = join(self.base.bytes(), &directory);
                let page = self.line.page(self.base.below(&directory), at, PAGE, &shown).await;
                let (entries, next) = match page {
                    Ok(page) => page,
                    Err(error) if is_trees(&error) && !directory.is_empty() => {
                        self.done.note(&directory, &error.fault.to_string());
                        break;
                    }
                    Err(error) => return Err(error),
                };
                for entry in entries {
                    self.entry(&directory, &entry, &mut left).await?;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    async fn entry(
        &mut self,
        directory: &[u8],
        entry: &Listed,
        left: &mut Vec<Vec<u8>>,
    ) -> Result<(), FileError> {
        let path = below(directory, &entry.name.0);
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            let why = format!("there are more than {MAX_ENTRIES} files");
            return Err(FileFault::Refused(why).at(&path));
        }
        let depth = path.iter().filter(|byte| **byte == b'/').count() + 2;
        if path.len() + self.name.len() + 2 > MAX_PATH_BYTES || depth > MAX_DEPTH {
            self.done.note(&path, "its path is too long for an archive");
            return Ok(());
        }
        match (entry.meta.kind, &entry.target) {
            (Kind::Directory, _) => {
                let name = below(&self.name, &path);
                self.begin(name, What::Directory, 0, &entry.meta).await?;
                self.done.directories += 1;
                left.push(path);
            }
            (Kind::File, _) => self.file(self.base.below(&path), &path).await?,
            (Kind::Symlink, Some(target)) if target.0.len() <= MAX_PATH_BYTES => {
                let what = What::Symlink(target.0.clone());
                self.begin(below(&self.name, &path), what, 0, &entry.meta).await?;
                self.done.links += 1;
            }
            (Kind::Symlink, _) => self.done.note(&path, "its target cannot be read"),
            (Kind::Other, _) => self.done.note(&path, "not a regular file"),
        }
        Ok(())
    }

    async fn file(&mut self, place: Place, path: &[u8]) -> Result<(), FileError> {
        let shown = join(self.base.bytes(), path);
        let file = match self.line.open(place, How::Read, &shown).await {
            Ok(file) => file,
            Err(error) if is_trees(&error) => {
                self.done.note(path, &error.fault.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let bytes = file.meta.bytes;
        if self.done.bytes.saturating_add(bytes) > self.most_bytes {
            let why =
                format!("with it, the archive would have more than {} bytes", self.most_bytes);
            return Err(FileFault::Refused(why).at(&shown));
        }
        self.begin(below(&self.name, path), What::File, bytes, &file.meta).await?;
        let mut at = 0;
        while at < bytes {
            let length = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(MAX_DATA_BYTES);
            let mut data = self.line.read(file, at, length, &shown).await?;
            if data.len() < length {
                self.done.note(path, "became shorter meanwhile; its end is zeroes");
                // All that is left, however long the file said it was, by pieces.
                data.resize(length, 0);
                self.zeroes(&data, bytes - at).await?;
                break;
            }
            self.packer.write(&data).await?;
            at += u64::try_from(length).unwrap_or(0);
        }
        self.packer.end(bytes).await?;
        let now = self.line.read(file, bytes, 1, &shown).await?;
        if !now.is_empty() {
            self.done.note(path, "became longer meanwhile; what was added is not there");
        }
        self.line.finish(file, Finish::Drop, None, &shown).await?;
        self.done.files += 1;
        self.done.bytes += bytes;
        Ok(())
    }

    /// What was read last, and zeroes after it, so many bytes in all.
    async fn zeroes(&mut self, last: &[u8], bytes: u64) -> Result<(), FileError> {
        self.packer.write(last).await?;
        let mut left = bytes.saturating_sub(u64::try_from(last.len()).unwrap_or(u64::MAX));
        let empty = vec![0; MAX_DATA_BYTES];
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(empty.len());
            self.packer.write(&empty[..length]).await?;
            left -= u64::try_from(length).unwrap_or(left);
        }
        Ok(())
    }

    async fn begin(
        &mut self,
        path: Vec<u8>,
        what: What,
        bytes: u64,
        meta: &Meta,
    ) -> Result<(), FileError> {
        let entry =
            Entry { path, what, bytes, mode: meta.mode & 0o777, modified_s: meta.modified.seconds };
        self.packer.begin(&entry).await
    }
}

fn below(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { join(above, name) }
}

/// Whether it is the tree's own trouble: such a file is left out, and told.
fn is_trees(error: &FileError) -> bool {
    !matches!(error.fault, FileFault::Agent(_) | FileFault::Ours(_))
}
