//! An archive becomes files of a sandbox. It is read here, and carried out by the agent: nothing of it is ever
//! unpacked on the host.

use std::collections::{HashMap, HashSet};

use belljar_jail::agent::wire::{Bytes, Finish, How, Kind, Request, Time};
use tokio::io::AsyncRead;

use super::archive::{Entry, Reader, What};
use super::error::{FileError, FileFault};
use super::line::Line;
use super::path::{InsidePath, join};
use super::{Budget, Files};

/// All names of one archive together, which are kept to find the same one twice.
const MAX_NAMES_BYTES: usize = 32 << 20;

/// What an archive brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    pub bytes: u64,
}

impl Files {
    /// Unpacks an archive below `into`, which is made if it is not there. What it brings replaces files of the same
    /// name. No link below `into` is followed, whoever made it. It is all on the disk when this returns; after an
    /// error some of it may be there.
    pub async fn upload_tar(
        &self,
        source: impl AsyncRead + Unpin,
        into: &InsidePath,
    ) -> Result<Uploaded, FileError> {
        let mut lease = self.lease(into.bytes()).await?;
        let line = lease.line();
        let make = Request::MakeDirectory { place: into.place(), mode: 0o755, parents: true };
        line.act(&make, into.bytes()).await?;
        let whole = Request::Sync { place: into.place(), whole: true };
        // Where the agent may not do that, each file is brought to the disk by itself.
        let each = line.act(&whole, into.bytes()).await.is_err();
        let finish = if each { Finish::Sync } else { Finish::Leave };
        let mut unpacking = Unpacking {
            line,
            into,
            finish,
            budget: self.budget(),
            names: HashMap::new(),
            names_bytes: 0,
            made: HashSet::from([Vec::new()]),
            late: Vec::new(),
            done: Uploaded::default(),
        };
        let mut archive = Reader::new(source);
        while let Some(entry) = archive.next().await? {
            unpacking.entry(&mut archive, entry).await?;
        }
        unpacking.close().await?;
        let done = unpacking.done;
        if !each {
            line.act(&whole, into.bytes()).await?;
        }
        Ok(done)
    }
}

struct Unpacking<'a> {
    line: &'a mut Line,
    into: &'a InsidePath,
    finish: Finish,
    budget: Budget,
    /// What the archive has named so far, and whether something may stand below it.
    names: HashMap<Vec<u8>, Below>,
    names_bytes: usize,
    made: HashSet<Vec<u8>>,
    /// Directories whose mode and time are set when nothing is put into them any more.
    late: Vec<Entry>,
    done: Uploaded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    Something,
    Nothing,
}

impl Unpacking<'_> {
    async fn entry<R: AsyncRead + Unpin>(
        &mut self,
        archive: &mut Reader<R>,
        entry: Entry,
    ) -> Result<(), FileError> {
        self.note(&entry)?;
        self.budget.entry().map_err(|fault| fault.at(&entry.path))?;
        let shown = join(self.into.bytes(), &entry.path);
        if entry.what == What::Directory {
            self.directory(&entry.path).await?;
            self.done.directories += 1;
            self.late.push(entry);
            return Ok(());
        }
        self.directory(above(&entry.path)).await?;
        let place = self.into.below(&entry.path);
        match &entry.what {
            What::Directory => {}
            What::File => self.file(archive, &entry, &shown).await?,
            What::Symlink(target) => {
                self.make_room(&entry.path, &shown).await?;
                let request = Request::Symlink { place, target: Bytes(target.clone()) };
                self.line.act(&request, &shown).await?;
                self.done.links += 1;
            }
            What::Link(target) => {
                if self.names.get(target) != Some(&Below::Nothing) || *target == entry.path {
                    let why = "is a hard link to what did not come before it in the archive";
                    return Err(FileFault::Refused(why.to_owned()).at(&entry.path));
                }
                self.make_room(&entry.path, &shown).await?;
                let request = Request::Link { from: self.into.below(target), to: place };
                self.line.act(&request, &shown).await?;
                self.done.links += 1;
            }
        }
        Ok(())
    }

    /// Each name once, and nothing below what is no directory.
    fn note(&mut self, entry: &Entry) -> Result<(), FileError> {
        let refused = |why: &str| Err(FileFault::Refused(why.to_owned()).at(&entry.path));
        let mut directory = above(&entry.path);
        while !directory.is_empty() {
            if self.names.get(directory) == Some(&Below::Nothing) {
                return refused("goes through a file or link of the same archive");
            }
            directory = above(directory);
        }
        let is_directory = entry.what == What::Directory;
        let below = if is_directory { Below::Something } else { Below::Nothing };
        self.names_bytes += entry.path.len();
        if self.names_bytes > MAX_NAMES_BYTES {
            return refused("comes after more names than an archive may have");
        }
        match self.names.insert(entry.path.clone(), below) {
            None => Ok(()),
            Some(Below::Something) if is_directory => Ok(()),
            Some(_) => refused("is in the archive twice"),
        }
    }

    async fn directory(&mut self, path: &[u8]) -> Result<(), FileError> {
        if self.made.contains(path) {
            return Ok(());
        }
        let place = self.into.below(path);
        let request = Request::MakeDirectory { place, mode: 0o755, parents: true };
        self.line.act(&request, &join(self.into.bytes(), path)).await?;
        self.made.insert(path.to_vec());
        Ok(())
    }

    async fn file<R: AsyncRead + Unpin>(
        &mut self,
        archive: &mut Reader<R>,
        entry: &Entry,
        shown: &[u8],
    ) -> Result<(), FileError> {
        self.budget.bytes(entry.bytes).map_err(|fault| fault.at(shown))?;
        let how = How::Put { replace: true, mode: Some(entry.mode) };
        let file = self.line.open(self.into.below(&entry.path), how, shown).await?;
        let mut offset = 0;
        while let Some(chunk) = archive.chunk().await? {
            let length = u64::try_from(chunk.len()).unwrap_or(0);
            self.line.write(file, Some(offset), chunk, shown).await?;
            offset += length;
        }
        let modified = Some(time(entry.modified_s));
        self.line.finish(file, self.finish, modified, shown).await?;
        self.done.files += 1;
        self.done.bytes += offset;
        Ok(())
    }

    /// A link takes the place of a file or link, as a file does; never that of a directory.
    async fn make_room(&mut self, path: &[u8], shown: &[u8]) -> Result<(), FileError> {
        let place = self.into.below(path);
        match self.line.stat(place.clone(), false, shown).await {
            Err(FileError { fault: FileFault::NotFound, .. }) => Ok(()),
            Err(error) => Err(error),
            Ok((meta, _)) if meta.kind == Kind::Directory => Err(FileFault::IsDirectory.at(shown)),
            Ok(_) => self.line.remove(place, false, shown).await.map(drop),
        }
    }

    /// The deepest first: a directory may be closed by its mode, and its time changes with what is in it.
    async fn close(&mut self) -> Result<(), FileError> {
        let mut late = std::mem::take(&mut self.late);
        late.sort_by(|one, other| other.path.cmp(&one.path));
        for entry in late {
            let shown = join(self.into.bytes(), &entry.path);
            let place = self.into.below(&entry.path);
            let modified = time(entry.modified_s);
            let times = Request::SetTimes { place: place.clone(), modified };
            self.line.act(&times, &shown).await?;
            if entry.mode != 0o755 {
                let mode = Request::SetMode { place, mode: entry.mode };
                self.line.act(&mode, &shown).await?;
            }
        }
        Ok(())
    }
}

fn time(seconds: i64) -> Time {
    Time { seconds, nanos: 0 }
}

fn above(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}
