//! Writing an archive: first a walk that takes digests, then the manifest, then the contents.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

use super::super::copy::segments;
use super::super::now_ms;
use super::super::record::time_text;
use super::super::view::{Entry, Found, Layers, Opened};
use super::super::walk::{self, Kind, Place, join};
use super::{FORMAT, Item, MANIFEST, Manifest, TREES, What, digest_of, hexadecimal};
use crate::model::request::Data;

const PIECE: usize = 128 << 10;

/// One tree of a stack, and where in it each file's contents are.
struct Walked {
    layers: Layers,
    /// By the number of the contents: layer, directory, name.
    contents: Vec<(usize, Vec<u8>, CString)>,
}

pub(super) fn write(
    image: &str,
    tree: impl Fn(&str) -> io::Result<Vec<Place>>,
    target: &mut File,
) -> io::Result<()> {
    let mut entries = Vec::new();
    let mut walked = Vec::new();
    let mut next = 0;
    for name in TREES {
        let mut one = Walked { layers: Layers::default(), contents: Vec::new() };
        one.walk(name, tree(name)?, &mut next, &mut entries)?;
        walked.push(one);
    }
    let (image, created_at) = (image.to_owned(), time_text(now_ms()));
    let digest = String::new();
    let mut manifest = Manifest { format: FORMAT, image, created_at, entries, digest };
    manifest.digest = digest_of(&manifest)?;
    let mut archive = tar::Builder::new(target);
    let text = serde_json::to_vec(&manifest)?;
    append(&mut archive, MANIFEST, text.len() as u64, &text[..])?;
    let mut number = 0;
    for one in walked {
        for (layer, path, name) in one.contents {
            let directory = one.layers.open(&path, &[layer])?;
            let Some(directory) = directory.first() else { continue };
            let file = walk::open_file(directory, &name)?;
            let length = file.metadata()?.len();
            let parts = segments(&file, length)?;
            let bytes = parts.iter().map(|(start, end)| end - start).sum();
            let data = Segments { file: &file, parts, next: 0 };
            append(&mut archive, &format!("data/{number}"), bytes, data)?;
            number += 1;
        }
    }
    archive.into_inner()?.sync_all()
}

fn append(
    archive: &mut tar::Builder<&mut File>,
    name: &str,
    bytes: u64,
    data: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name)?;
    header.set_mode(0o600);
    header.set_size(bytes);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    archive.append(&header, data)
}

impl Walked {
    fn walk(
        &mut self,
        tree: &str,
        places: Vec<Place>,
        next: &mut u64,
        entries: &mut Vec<Item>,
    ) -> io::Result<()> {
        let stack: Vec<usize> = places.into_iter().map(|place| self.layers.add(place)).collect();
        if stack.is_empty() {
            return Ok(());
        }
        let mut links = HashMap::new();
        let (parts, closed) = self.layers.top(&stack)?;
        let mut waiting = vec![(Vec::new(), parts, closed)];
        while let Some((path, parts, closed)) = waiting.pop() {
            let opened = self.layers.open(&path, &parts)?;
            let Some(first) = opened.first() else { continue };
            let meta = walk::look_at(first)?;
            let what = What::Directory { opaque: closed };
            entries.push(Item {
                tree: tree.to_owned(),
                path: Data(path.clone()),
                mode: meta.mode,
                modified: meta.modified,
                attributes: attributes(first)?,
                what,
            });
            let mut names = BTreeSet::new();
            opened.names(|_| true, &mut names)?;
            for name in names {
                let found = opened.find(&name)?;
                if let Found::Entry(Entry { meta, parts, closed, .. }) = &found
                    && meta.kind == Kind::Directory
                {
                    waiting.push((join(&path, &name), parts.clone(), *closed));
                    continue;
                }
                if let Some(item) =
                    self.item(tree, &path, &name, &opened, &found, next, &mut links)?
                {
                    entries.push(item);
                }
            }
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one entry and all that is known where it stands"
    )]
    fn item(
        &mut self,
        tree: &str,
        path: &[u8],
        name: &CString,
        opened: &Opened,
        found: &Found,
        next: &mut u64,
        links: &mut HashMap<(u64, u64), u64>,
    ) -> io::Result<Option<Item>> {
        let shown = Data(join(path, name));
        let tree = tree.to_owned();
        let entry = match found {
            Found::Absent => return Ok(None),
            Found::Removed => {
                let (attributes, what) = (Vec::new(), What::Removed);
                return Ok(Some(Item {
                    tree,
                    path: shown,
                    mode: 0,
                    modified: (0, 0),
                    attributes,
                    what,
                }));
            }
            Found::Entry(entry) => entry,
        };
        let Some(directory) = opened.of(entry.layer) else { return Ok(None) };
        let mut marks = Vec::new();
        let what = match entry.meta.kind {
            Kind::File => match links.get(&entry.meta.identity) {
                Some(data) => What::Link { data: *data },
                None => {
                    let file = walk::open_file(directory, name)?;
                    marks = attributes(&file)?;
                    let data = *next;
                    *next += 1;
                    links.insert(entry.meta.identity, data);
                    self.contents.push((entry.layer, path.to_vec(), name.clone()));
                    digest_file(&file, data)?
                }
            },
            Kind::Symlink => {
                What::Symlink { target: Data(walk::read_link(directory, name)?.into_bytes()) }
            }
            Kind::Fifo => What::Fifo,
            Kind::Socket => What::Socket,
            Kind::Directory | Kind::Whiteout | Kind::Device => return Ok(None),
        };
        let (mode, modified) = (entry.meta.mode, entry.meta.modified);
        Ok(Some(Item { tree, path: shown, mode, modified, attributes: marks, what }))
    }
}

fn attributes(open: &impl std::os::fd::AsFd) -> io::Result<Vec<(Data, Data)>> {
    let found = walk::attributes(open)?;
    Ok(found.into_iter().map(|(name, value)| (Data(name.into_bytes()), Data(value))).collect())
}

fn digest_file(file: &File, data: u64) -> io::Result<What> {
    let bytes = file.metadata()?.len();
    let parts = segments(file, bytes)?;
    let mut digest = Sha256::new();
    let mut reader = Segments { file, parts: parts.clone(), next: 0 };
    let mut piece = vec![0; PIECE];
    loop {
        let got = reader.read(&mut piece)?;
        if got == 0 {
            break;
        }
        digest.update(&piece[..got]);
    }
    let sha256 = hexadecimal(&digest.finalize());
    Ok(What::File { bytes, segments: parts, data, sha256 })
}

/// The parts of a file that hold data, one after the other.
struct Segments<'a> {
    file: &'a File,
    parts: Vec<(u64, u64)>,
    next: usize,
}

impl Read for Segments<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some((start, end)) = self.parts.get_mut(self.next) {
            if start == end {
                self.next += 1;
                continue;
            }
            let wanted = usize::try_from(*end - *start).unwrap_or(usize::MAX).min(buffer.len());
            let got = self.file.read_at(&mut buffer[..wanted], *start)?;
            *start += got as u64;
            return Ok(got);
        }
        Ok(0)
    }
}
