//! Archives in tar's format, read and written piece by piece. What is read is hostile: every number is bounded, and a
//! name that could lead out of the place where an archive is unpacked is refused.

use std::io::Write as _;

use flate2::write::MultiGzDecoder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::error::{FileError, FileFault, ours};
use super::line::is_name;

pub(super) const BLOCK: usize = 512;
/// Entries of one archive.
pub(super) const MAX_ENTRIES: u64 = 200_000;
/// A name inside an archive.
pub(super) const MAX_PATH_BYTES: usize = 4000;
pub(super) const MAX_DEPTH: usize = 256;
/// What stands before an entry that has a long name: names, times, attributes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Packed bytes that are unpacked at once: they can become a thousand times as many.
const PACKED_BYTES: usize = 4 << 10;
const PLAIN_BYTES: usize = 64 << 10;
/// Where an archive itself is wrong, rather than an entry.
const ARCHIVE: &[u8] = b"archive";

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    File,
    Directory,
    Symlink(Vec<u8>),
    /// Another name of an entry that came before.
    Link(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Relative, of plain names; empty for the place itself.
    pub path: Vec<u8>,
    pub what: What,
    pub bytes: u64,
    /// Permission bits alone.
    pub mode: u32,
    pub modified_s: i64,
}

fn wrong(what: &str) -> FileError {
    FileFault::Refused(what.to_owned()).at(ARCHIVE)
}

/// Reads an archive, packed by gzip or not.
#[derive(Debug)]
pub(super) struct Reader<R> {
    source: R,
    packed: Option<MultiGzDecoder<Vec<u8>>>,
    ready: Vec<u8>,
    at: usize,
    begun: bool,
    ended: bool,
    entries: u64,
    /// Of the entry that is being read: its contents, and what fills its last block.
    left: u64,
    padding: u64,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            packed: None,
            ready: Vec::new(),
            at: 0,
            begun: false,
            ended: false,
            entries: 0,
            left: 0,
            padding: 0,
        }
    }

    /// The next entry; what was not read of the last one is passed over.
    pub(super) async fn next(&mut self) -> Result<Option<Entry>, FileError> {
        let mut extension = Extension::default();
        loop {
            while self.chunk().await?.is_some() {}
            let Some(header) = self.header().await? else {
                let is_whole = extension == Extension::default();
                return is_whole
                    .then_some(None)
                    .ok_or_else(|| wrong("ends in the middle of an entry"));
            };
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(wrong(&format!("has more than {MAX_ENTRIES} entries")));
            }
            let size = number(&header[124..136]).ok_or_else(|| wrong("has a size that is none"))?;
            match header[156] {
                b'L' => extension.path = Some(until_zero(&self.small(size).await?)),
                b'K' => extension.target = Some(until_zero(&self.small(size).await?)),
                b'x' => extension.take(&self.small(size).await?)?,
                b'g' => drop(self.small(size).await?),
                kind => return self.entry(&header, kind, size, extension).map(Some),
            }
        }
    }

    /// Some of the entry's contents; `None` at their end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        if self.left == 0 {
            while self.padding > 0 {
                self.padding -= u64::try_from(self.some(self.padding).await?.len()).unwrap_or(0);
            }
            return Ok(None);
        }
        let some = self.some(self.left).await?;
        self.left -= u64::try_from(some.len()).unwrap_or(0);
        Ok(Some(some))
    }

    fn entry(
        &mut self,
        header: &[u8; BLOCK],
        kind: u8,
        size: u64,
        extension: Extension,
    ) -> Result<Entry, FileError> {
        let named = extension.path.unwrap_or_else(|| name_of(header));
        let target = extension.target.unwrap_or_else(|| until_zero(&header[157..257]));
        let refused = |why: &str| FileFault::Refused(why.to_owned()).at(&named);
        let path = clean(&named)?;
        let what = match kind {
            b'0' | 0 | b'7' if named.ends_with(b"/") => What::Directory,
            b'0' | 0 | b'7' => What::File,
            b'1' => What::Link(
                clean(&target)
                    .map_err(|_| refused("is a hard link to what is outside of the archive"))?,
            ),
            b'2' if target.is_empty() || target.contains(&0) || target.len() > MAX_PATH_BYTES => {
                return Err(refused("is a symbolic link to nowhere"));
            }
            b'2' => What::Symlink(target),
            b'5' => What::Directory,
            b'3' | b'4' => return Err(refused("is a device, which no archive brings in")),
            b'6' => return Err(refused("is a FIFO, which no archive brings in")),
            b'S' => return Err(refused("is a sparse file in a form that is not read")),
            _ => return Err(refused("is of a kind that is not known")),
        };
        if path.is_empty() && what != What::Directory {
            return Err(refused("has the name of a directory"));
        }
        let size = extension.size.unwrap_or(size);
        // Links and directories have no contents, whatever they say.
        let bytes = if what == What::File { size } else { 0 };
        (self.left, self.padding) = (bytes, fill(bytes));
        let mode = number(&header[100..108]).unwrap_or(0o644);
        Ok(Entry {
            path,
            what,
            bytes,
            mode: u32::try_from(mode & 0o777).unwrap_or(0o644),
            modified_s: i64::try_from(number(&header[136..148]).unwrap_or(0)).unwrap_or(0),
        })
    }

    /// The next header; `None` at the two empty blocks that end an archive.
    async fn header(&mut self) -> Result<Option<[u8; BLOCK]>, FileError> {
        let mut block = [0; BLOCK];
        if !self.exact(&mut block).await? {
            // Every writer ends an archive with empty blocks: without them nobody knows what is missing.
            return Err(wrong("has no end: it was cut, or is no tar archive"));
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let told = number(&block[148..156]);
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) })
            .sum();
        if told == Some(sum) {
            Ok(Some(block))
        } else {
            Err(wrong("is no tar archive, or damaged"))
        }
    }

    /// The contents of an entry that is only about the next one.
    async fn small(&mut self, size: u64) -> Result<Vec<u8>, FileError> {
        if size > MAX_EXTENSION_BYTES {
            return Err(wrong("has a name or attributes that are too long"));
        }
        (self.left, self.padding) = (size, fill(size));
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// `false` when nothing at all is left; something, but too little, is an error.
    async fn exact(&mut self, block: &mut [u8]) -> Result<bool, FileError> {
        let mut filled = 0;
        while filled < block.len() {
            if !self.fill().await? {
                return if filled == 0 { Ok(false) } else { Err(wrong("ends in the middle")) };
            }
            let count = (block.len() - filled).min(self.ready.len() - self.at);
            block[filled..filled + count].copy_from_slice(&self.ready[self.at..self.at + count]);
            self.at += count;
            filled += count;
        }
        Ok(true)
    }

    async fn some(&mut self, most: u64) -> Result<Vec<u8>, FileError> {
        if !self.fill().await? {
            return Err(wrong("ends in the middle of an entry"));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(PLAIN_BYTES);
        let count = most.min(self.ready.len() - self.at);
        let some = self.ready[self.at..self.at + count].to_vec();
        self.at += count;
        Ok(some)
    }

    /// Whether something is ready.
    async fn fill(&mut self) -> Result<bool, FileError> {
        let damaged = |_| wrong("is packed by gzip and damaged");
        while self.at == self.ready.len() {
            if self.ended {
                return Ok(false);
            }
            let size = if self.packed.is_some() { PACKED_BYTES } else { PLAIN_BYTES };
            let mut some = vec![0; size];
            let mut read = self.source.read(&mut some).await.map_err(ours(ARCHIVE))?;
            if !self.begun && read == 1 {
                // Two bytes tell what it is.
                read += self.source.read(&mut some[1..]).await.map_err(ours(ARCHIVE))?;
            }
            some.truncate(read);
            if !std::mem::replace(&mut self.begun, true) && some.starts_with(&[0x1f, 0x8b]) {
                self.packed = Some(MultiGzDecoder::new(Vec::new()));
            }
            self.at = 0;
            self.ended = read == 0;
            self.ready = match &mut self.packed {
                None => some,
                Some(packed) => {
                    packed.write_all(&some).map_err(damaged)?;
                    if self.ended {
                        packed.try_finish().map_err(damaged)?;
                    }
                    std::mem::take(packed.get_mut())
                }
            };
        }
        Ok(true)
    }
}

/// What an entry says of the next one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Extension {
    /// Records of POSIX.1-2001: `LENGTH KEY=VALUE\n`.
    fn take(&mut self, mut records: &[u8]) -> Result<(), FileError> {
        let damaged = || wrong("has attributes that cannot be read");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(damaged)?;
            let length = std::str::from_utf8(&records[..space]).ok();
            let length: usize = length.and_then(|text| text.parse().ok()).ok_or_else(damaged)?;
            if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(damaged());
            }
            let record = &records[space + 1..length - 1];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(damaged)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(damaged)?);
                }
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(wrong("has sparse files in a form that is not read"));
                }
                _ => {}
            }
            records = &records[length..];
        }
        Ok(())
    }
}

fn fill(bytes: u64) -> u64 {
    (512 - bytes % 512) % 512
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn name_of(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_zero(&header[..100]);
    let prefix = until_zero(&header[345..500]);
    // GNU's own format has other things there.
    if &header[257..263] == b"ustar\0" && !prefix.is_empty() {
        [&prefix[..], b"/", &name].concat()
    } else {
        name
    }
}

/// Octal digits, or GNU's binary form.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let plain = high[0] == 0x80 && high[1..].iter().all(|byte| *byte == 0);
        let low = <[u8; 8]>::try_from(low).ok()?;
        return plain.then(|| u64::from_be_bytes(low));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

/// A relative path of plain names, or a refusal that says what is wrong with it.
pub(super) fn clean(name: &[u8]) -> Result<Vec<u8>, FileError> {
    let refused = |why: &str| Err(FileFault::Refused(why.to_owned()).at(name));
    if name.starts_with(b"/") {
        return refused("is an absolute name, which an archive may not have");
    }
    if name.len() > MAX_PATH_BYTES {
        return refused("is longer than a name in an archive may be");
    }
    if name.contains(&0) {
        return refused("has a NUL in its name");
    }
    let mut names = Vec::new();
    for one in name.split(|byte| *byte == b'/').filter(|one| !one.is_empty() && *one != b".") {
        if one == b".." {
            return refused("has `..` in its name, which an archive may not have");
        }
        if !is_name(one) {
            return refused("has a name that is too long for a file");
        }
        names.push(one);
    }
    if names.len() > MAX_DEPTH {
        return refused("is deeper than an archive may go");
    }
    Ok(names.join(&b'/'))
}

/// Writes an archive.
#[derive(Debug)]
pub(super) struct Packer<W> {
    sink: W,
}

impl<W: AsyncWrite + Unpin> Packer<W> {
    pub(super) fn new(sink: W) -> Self {
        Self { sink }
    }

    /// Begins an entry; exactly its bytes must follow.
    pub(super) async fn begin(&mut self, entry: &Entry) -> Result<(), FileError> {
        let mut path = entry.path.clone();
        if entry.what == What::Directory {
            path.push(b'/');
        }
        let (kind, target) = match &entry.what {
            What::File => (b'0', &b""[..]),
            What::Directory => (b'5', &b""[..]),
            What::Symlink(target) => (b'2', &target[..]),
            What::Link(target) => (b'1', &target[..]),
        };
        for (long, field, kind) in [(target, 100, b'K'), (&path, 100, b'L')] {
            if long.len() > field {
                self.long(long, kind).await?;
            }
        }
        let header = header(&path, target, kind, entry);
        self.write(&header).await
    }

    /// A name that does not fit a header, the way GNU tar writes it.
    async fn long(&mut self, name: &[u8], kind: u8) -> Result<(), FileError> {
        let bytes = u64::try_from(name.len() + 1).unwrap_or(u64::MAX);
        let entry = Entry { path: Vec::new(), what: What::File, bytes, mode: 0o644, modified_s: 0 };
        self.write(&header(b"././@LongLink", b"", kind, &entry)).await?;
        self.write(name).await?;
        self.write(&[0]).await?;
        self.end(bytes).await
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.sink.write_all(bytes).await.map_err(ours(ARCHIVE))
    }

    /// Fills the last block of an entry of so many bytes.
    pub(super) async fn end(&mut self, bytes: u64) -> Result<(), FileError> {
        let count = usize::try_from(fill(bytes)).unwrap_or(0);
        self.write(&vec![0; count]).await
    }

    /// The end of the archive.
    pub(super) async fn close(mut self) -> Result<(), FileError> {
        self.write(&[0; 2 * BLOCK]).await?;
        self.sink.flush().await.map_err(ours(ARCHIVE))?;
        self.sink.shutdown().await.map_err(ours(ARCHIVE))
    }
}

fn header(path: &[u8], target: &[u8], kind: u8, entry: &Entry) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &path[..path.len().min(100)]);
    put(100, format!("{:07o}\0", entry.mode & 0o777).as_bytes());
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    match entry.bytes {
        bytes if bytes < 1 << 33 => put(124, format!("{bytes:011o}\0").as_bytes()),
        bytes => {
            put(124, &[0x80, 0, 0, 0]);
            put(128, &bytes.to_be_bytes());
        }
    }
    let modified = entry.modified_s.clamp(0, (1 << 33) - 1);
    put(136, format!("{modified:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, &target[..target.len().min(100)]);
    put(257, b"ustar  \0");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
