//! Reading an archive: entries must come exactly as the manifest says, and have the digests that it states.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid};
use sha2::{Digest, Sha256};

use super::super::StoreError;
use super::super::copy::{make_whiteout, new_file};
use super::super::disk::Ids;
use super::super::walk::{self, Place};
use super::check::above;
use super::{ImportLimits, Item, MANIFEST, Manifest, TREES, What, hexadecimal};

const BLOCK: usize = 512;
const PIECE: usize = 128 << 10;
/// Set-id bits mean nothing inside, and are not taken from strangers.
const MODES: u32 = 0o1777;

/// An archive whose manifest was read, and nothing else yet. Blocks are read one by one with the crate's header: its
/// own iterator understands extensions (long names, sparse maps) that have no business here.
pub(super) struct Reader<'a> {
    pub manifest: Manifest,
    blocks: BufReader<&'a mut File>,
}

fn refused(reason: impl Into<String>) -> StoreError {
    StoreError::Archive(reason.into())
}

fn cut(error: io::Error) -> StoreError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return refused("it ends too early");
    }
    StoreError::io(Path::new("the archive"))(error)
}

impl<'a> Reader<'a> {
    pub(super) fn open(file: &'a mut File, limits: ImportLimits) -> Result<Self, StoreError> {
        let mut blocks = BufReader::with_capacity(PIECE, file);
        let bytes = expect(&mut blocks, MANIFEST)?;
        if bytes > limits.manifest_bytes {
            return Err(refused(format!("a manifest of {bytes} bytes")));
        }
        let mut text = vec![0; usize::try_from(bytes).map_err(|_| refused("too large"))?];
        blocks.read_exact(&mut text).map_err(cut)?;
        pad(&mut blocks, bytes)?;
        let manifest = serde_json::from_slice(&text)
            .map_err(|error| refused(format!("its manifest cannot be read: {error}")))?;
        Ok(Self { manifest, blocks })
    }

    /// Makes everything below `sheet`, whose trees are empty directories. The manifest was checked.
    pub(super) fn unpack(&mut self, sheet: &Path, ids: Ids) -> Result<(), StoreError> {
        let mut places = Vec::new();
        for tree in TREES {
            let path = sheet.join(tree);
            places.push((tree, Place::open(&path).map_err(StoreError::io(&path))?));
        }
        let entries = std::mem::take(&mut self.manifest.entries);
        // By the number of its contents: where a file was made.
        let mut made: Vec<(&str, &[u8])> = Vec::new();
        for item in &entries {
            let Some((_, place)) = places.iter().find(|(tree, _)| *tree == item.tree) else {
                return Err(refused("in a tree that does not exist"));
            };
            let entry = Making { item, place, ids };
            match &item.what {
                What::File { bytes, segments, data, sha256 } => {
                    let target = entry.new_file().map_err(|error| entry.failed(error))?;
                    target.set_len(*bytes).map_err(|error| entry.failed(error))?;
                    self.contents(*data, segments, sha256, &target)?;
                    entry.dress_file(&target).map_err(|error| entry.failed(error))?;
                    made.push((item.tree.as_str(), item.path.0.as_slice()));
                }
                What::Link { data } => {
                    let first = usize::try_from(*data).ok().and_then(|data| made.get(data));
                    let Some((tree, path)) = first else {
                        return Err(refused("a link to nothing"));
                    };
                    if *tree != item.tree {
                        return Err(refused("a link from one tree to another"));
                    }
                    entry.link(path).map_err(|error| entry.failed(error))?;
                }
                What::Directory { .. }
                | What::Symlink { .. }
                | What::Fifo
                | What::Socket
                | What::Removed => entry.make().map_err(|error| entry.failed(error))?,
            }
        }
        for item in entries.iter().rev().filter(|item| matches!(item.what, What::Directory { .. }))
        {
            if let Some((_, place)) = places.iter().find(|(tree, _)| *tree == item.tree) {
                let entry = Making { item, place, ids };
                entry.dress_directory().map_err(|error| entry.failed(error))?;
            }
        }
        self.end()
    }

    fn contents(
        &mut self,
        data: u64,
        segments: &[(u64, u64)],
        sha256: &str,
        target: &File,
    ) -> Result<(), StoreError> {
        let stated: u64 = segments.iter().map(|(start, end)| end - start).sum();
        let bytes = expect(&mut self.blocks, &format!("data/{data}"))?;
        if bytes != stated {
            return Err(refused(format!(
                "data/{data} has {bytes} bytes, and {stated} were stated"
            )));
        }
        let mut digest = Sha256::new();
        let mut piece = vec![0; PIECE];
        for (start, end) in segments {
            let mut at = *start;
            while at < *end {
                let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
                self.blocks.read_exact(&mut piece[..wanted]).map_err(cut)?;
                digest.update(&piece[..wanted]);
                let written = target.write_all_at(&piece[..wanted], at);
                written.map_err(StoreError::io(Path::new("the disk of the sandbox")))?;
                at += wanted as u64;
            }
        }
        pad(&mut self.blocks, bytes)?;
        if hexadecimal(&digest.finalize()) != sha256 {
            return Err(refused(format!("data/{data} does not have the digest that is stated")));
        }
        Ok(())
    }

    /// Two empty blocks, and then nothing but what fills the last record.
    fn end(&mut self) -> Result<(), StoreError> {
        let mut rest = vec![0; 2 * BLOCK];
        self.blocks.read_exact(&mut rest).map_err(cut)?;
        let mut most = (&mut self.blocks).take(20 * BLOCK as u64 + 1);
        let read = most.read_to_end(&mut rest).map_err(cut)?;
        if read > 20 * BLOCK || rest.iter().any(|byte| *byte != 0) {
            return Err(refused("there is more behind its end"));
        }
        Ok(())
    }
}

/// The next header must be that of a plain file with this name; its size.
fn expect(blocks: &mut impl Read, name: &str) -> Result<u64, StoreError> {
    let mut header = tar::Header::new_old();
    blocks.read_exact(header.as_mut_bytes()).map_err(cut)?;
    let sum: u32 = header
        .as_bytes()
        .iter()
        .enumerate()
        .map(|(at, byte)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte }))
        .sum();
    if header.cksum().ok() != Some(sum) {
        return Err(refused(format!("no header where {name} should be")));
    }
    let is_plain = header.entry_type() == tar::EntryType::Regular;
    if !is_plain || header.path_bytes().as_ref() != name.as_bytes() {
        let found = super::super::shown(&String::from_utf8_lossy(&header.path_bytes()));
        return Err(refused(format!("{found:?} where the file {name} should be")));
    }
    header.entry_size().map_err(|_| refused(format!("{name} has no size")))
}

fn pad(blocks: &mut impl Read, bytes: u64) -> Result<(), StoreError> {
    let over = usize::try_from(bytes % BLOCK as u64).unwrap_or(0);
    let mut rest = vec![0; (BLOCK - over) % BLOCK];
    blocks.read_exact(&mut rest).map_err(cut)
}

/// One entry that is being made.
struct Making<'a> {
    item: &'a Item,
    place: &'a Place,
    ids: Ids,
}

impl Making<'_> {
    fn failed(&self, error: io::Error) -> StoreError {
        let path = String::from_utf8_lossy(&self.item.path.0).into_owned();
        StoreError::io(Path::new(&path))(error)
    }

    /// The directory that it is in, and its name there.
    fn spot(&self) -> io::Result<(OwnedFd, CString)> {
        let path = &self.item.path.0;
        let above = above(path).unwrap_or_default();
        let name = if above.is_empty() { &path[..] } else { &path[above.len() + 1..] };
        Ok((self.place.directory(above)?, CString::new(name)?))
    }

    fn new_file(&self) -> io::Result<File> {
        let (directory, name) = self.spot()?;
        new_file(&directory, &name)
    }

    fn link(&self, first: &[u8]) -> io::Result<()> {
        let (directory, name) = self.spot()?;
        let from = above(first).unwrap_or_default();
        let last = if from.is_empty() { first } else { &first[from.len() + 1..] };
        let from = self.place.directory(from)?;
        Ok(rustix::fs::linkat(&from, last, &directory, name.as_c_str(), AtFlags::empty())?)
    }

    fn make(&self) -> io::Result<()> {
        if self.item.path.0.is_empty() {
            return Ok(());
        }
        let (directory, name) = self.spot()?;
        let node = |kind| rustix::fs::mknodat(&directory, name.as_c_str(), kind, Mode::RUSR, 0);
        match &self.item.what {
            What::Directory { .. } => {
                return Ok(rustix::fs::mkdirat(&directory, name.as_c_str(), Mode::RWXU)?);
            }
            What::Removed => return make_whiteout(&directory, &name),
            What::Symlink { target } => {
                rustix::fs::symlinkat(&target.0[..], &directory, name.as_c_str())?;
            }
            What::Fifo => node(FileType::Fifo)?,
            What::Socket => node(FileType::Socket)?,
            What::File { .. } | What::Link { .. } => return Ok(()),
        }
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(self.ids.uid), Gid::from_raw(self.ids.gid));
            rustix::fs::chownat(&directory, name.as_c_str(), Some(uid), Some(gid), nofollow)?;
        }
        if !matches!(self.item.what, What::Symlink { .. }) {
            let mode = Mode::from_raw_mode(self.item.mode & MODES);
            rustix::fs::chmodat(&directory, name.as_c_str(), mode, AtFlags::empty())?;
        }
        Ok(rustix::fs::utimensat(&directory, name.as_c_str(), &self.times(), nofollow)?)
    }

    fn dress_directory(&self) -> io::Result<()> {
        let open = self.place.directory(&self.item.path.0)?;
        if matches!(self.item.what, What::Directory { opaque: true }) {
            walk::make_opaque(&open)?;
        }
        self.dress(&open)
    }

    fn dress_file(&self, file: &File) -> io::Result<()> {
        self.dress(file)
    }

    fn dress(&self, open: &impl AsFd) -> io::Result<()> {
        for (name, value) in &self.item.attributes {
            let name = CString::new(name.0.clone())?;
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::fsetxattr(open, name.as_c_str(), &value.0, flags)?;
        }
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(self.ids.uid), Gid::from_raw(self.ids.gid));
            rustix::fs::fchown(open, Some(uid), Some(gid))?;
        }
        rustix::fs::fchmod(open, Mode::from_raw_mode(self.item.mode & MODES))?;
        Ok(rustix::fs::futimens(open, &self.times())?)
    }

    fn times(&self) -> Timestamps {
        let (tv_sec, tv_nsec) = self.item.modified;
        let at = Timespec { tv_sec, tv_nsec };
        Timestamps { last_access: at, last_modification: at }
    }
}
