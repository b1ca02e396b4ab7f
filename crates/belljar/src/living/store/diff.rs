//! What differs between two stacks. Only sheets that they do not share are walked, so the cost grows with what changed.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;

use super::view::{Entry, Found, Layers, Opened};
use super::walk::{self, Kind, Place, join};
use crate::model::sandbox::{Change, ChangeKind};

/// Changes told at once.
pub(crate) const MOST_CHANGES: usize = 100_000;

/// What was found, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    pub changes: Vec<Change>,
    /// There are more than [`MOST_CHANGES`], and the rest was not looked for.
    pub cut: bool,
}

/// One difference, with its path in the tree as it is: not all names are text.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    pub path: Vec<u8>,
    pub change: Change,
}

#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub found: Vec<Difference>,
    pub cut: bool,
}

/// Two stacks of one tree: what both have at the bottom, and what each has above it, the highest first.
#[derive(Debug)]
pub(super) struct Sides {
    pub before: Vec<Place>,
    pub after: Vec<Place>,
    pub common: Vec<Place>,
    /// How many of the lowest of `common` are the image's: owners there are not the sandbox's.
    pub image: usize,
}

/// What is asked at one place.
struct Spot {
    path: Vec<u8>,
    before: Option<Vec<usize>>,
    after: Option<Vec<usize>>,
}

struct Walk {
    layers: Layers,
    /// The first number of those that both sides have.
    first_common: usize,
    /// The first number of the image's.
    first_image: usize,
    most: usize,
}

/// Compares; `shown` is where the tree stands inside (`/`, `/usr`).
pub(super) fn differences(
    sides: Sides,
    shown: &str,
    most: usize,
    result: &mut Gathered,
) -> io::Result<()> {
    let mut layers = Layers::default();
    let mut before: Vec<_> = sides.before.into_iter().map(|place| layers.add(place)).collect();
    let mut after: Vec<_> = sides.after.into_iter().map(|place| layers.add(place)).collect();
    let common: Vec<_> = sides.common.into_iter().map(|place| layers.add(place)).collect();
    let first_common = before.len() + after.len();
    let first_image = first_common + common.len() - sides.image;
    before.extend(&common);
    after.extend(&common);
    let walk = Walk { layers, first_common, first_image, most };
    let (before, after) = (walk.layers.top(&before)?.0, walk.layers.top(&after)?.0);
    let mut waiting = vec![Spot { path: Vec::new(), before: Some(before), after: Some(after) }];
    while let Some(spot) = waiting.pop() {
        walk.directory(&spot, shown, &mut waiting, result)?;
        if result.cut {
            break;
        }
    }
    Ok(())
}

impl Walk {
    fn directory(
        &self,
        spot: &Spot,
        shown: &str,
        waiting: &mut Vec<Spot>,
        result: &mut Gathered,
    ) -> io::Result<()> {
        let open = |parts: &Option<Vec<usize>>| {
            self.layers.open(&spot.path, parts.as_deref().unwrap_or_default())
        };
        let (before, after) = (open(&spot.before)?, open(&spot.after)?);
        for name in self.candidates(&before, &after)? {
            let (was, is) = (before.find(&name)?, after.find(&name)?);
            let sides = Sight { before: &before, after: &after, name: &name };
            if let Some(kind) = self.compare(&sides, was.entry(), is.entry())? {
                if result.found.len() >= self.most {
                    result.cut = true;
                    return Ok(());
                }
                let path = join(&spot.path, &name);
                let change = change(shown, &path, kind, &was, &is);
                result.found.push(Difference { path, change });
            }
            if let Some(next) = self.below(join(&spot.path, &name), was, is) {
                waiting.push(next);
            }
        }
        Ok(())
    }

    /// The names that can differ: if both see the same of what they share, those above it; else all.
    fn candidates(
        &self,
        before: &Opened,
        after: &Opened,
    ) -> io::Result<BTreeSet<std::ffi::CString>> {
        let shared = |opened: &Opened| {
            let numbers = opened.parts.iter().map(|(layer, _)| *layer);
            numbers.filter(|layer| *layer >= self.first_common).collect::<Vec<_>>()
        };
        let same = shared(before) == shared(after);
        let wanted = |layer| !same || layer < self.first_common;
        let mut names = BTreeSet::new();
        before.names(wanted, &mut names)?;
        after.names(wanted, &mut names)?;
        Ok(names)
    }

    /// The directory to look into next, if either side has one that the other sees otherwise.
    fn below(&self, path: Vec<u8>, was: Found, is: Found) -> Option<Spot> {
        let parts = |found: Found| match found {
            Found::Entry(entry) if entry.meta.kind == Kind::Directory => Some(entry.parts),
            Found::Entry(_) | Found::Absent | Found::Removed => None,
        };
        let (before, after) = (parts(was), parts(is));
        (before != after).then_some(Spot { path, before, after })
    }

    fn compare(
        &self,
        sight: &Sight<'_>,
        was: Option<&Entry>,
        is: Option<&Entry>,
    ) -> io::Result<Option<ChangeKind>> {
        let (was, is) = match (was, is) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Ok(Some(ChangeKind::Added)),
            (Some(_), None) => return Ok(Some(ChangeKind::Removed)),
            (Some(was), Some(is)) => (was, is),
        };
        if was.meta.kind != is.meta.kind {
            return Ok(Some(ChangeKind::Modified));
        }
        if was.meta.identity == is.meta.identity {
            return Ok(None);
        }
        let (Some(old), Some(new)) = (sight.before.of(was.layer), sight.after.of(is.layer)) else {
            return Ok(None);
        };
        if was.meta.kind == Kind::Symlink {
            let same = walk::read_link(old, sight.name)? == walk::read_link(new, sight.name)?;
            return Ok((!same).then_some(ChangeKind::Modified));
        }
        if was.meta.kind == Kind::File && !same_file(old, new, sight.name, was, is)? {
            return Ok(Some(ChangeKind::Modified));
        }
        let owners = |entry: &Entry| (entry.meta.uid, entry.meta.gid);
        let of_image = was.layer >= self.first_image || is.layer >= self.first_image;
        let same = was.meta.mode == is.meta.mode
            && (of_image || owners(was) == owners(is))
            && same_attributes(old, new, sight.name, was.meta.kind)?;
        Ok((!same).then_some(ChangeKind::Metadata))
    }
}

struct Sight<'a> {
    before: &'a Opened,
    after: &'a Opened,
    name: &'a CStr,
}

fn same_file(
    old: &OwnedFd,
    new: &OwnedFd,
    name: &CStr,
    was: &Entry,
    is: &Entry,
) -> io::Result<bool> {
    if was.meta.bytes != is.meta.bytes {
        return Ok(false);
    }
    same_bytes(walk::open_file(old, name)?, walk::open_file(new, name)?)
}

pub(super) fn same_bytes(one: File, other: File) -> io::Result<bool> {
    let (mut left, mut right) = (BufReader::new(one), BufReader::new(other));
    loop {
        let (a, b) = (left.fill_buf()?, right.fill_buf()?);
        let common = a.len().min(b.len());
        if common == 0 {
            return Ok(a.len() == b.len());
        }
        if a[..common] != b[..common] {
            return Ok(false);
        }
        left.consume(common);
        right.consume(common);
    }
}

fn same_attributes(old: &OwnedFd, new: &OwnedFd, name: &CStr, kind: Kind) -> io::Result<bool> {
    Ok(match kind {
        Kind::File => {
            walk::attributes(&walk::open_file(old, name)?)?
                == walk::attributes(&walk::open_file(new, name)?)?
        }
        Kind::Directory => {
            walk::attributes(&walk::open_directory(old, name)?)?
                == walk::attributes(&walk::open_directory(new, name)?)?
        }
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Whiteout | Kind::Device => true,
    })
}

fn change(shown: &str, path: &[u8], kind: ChangeKind, was: &Found, is: &Found) -> Change {
    let seen = is.entry().or(was.entry());
    let bytes = |found: &Found| {
        found.entry().filter(|entry| entry.meta.kind == Kind::File).map(|entry| entry.meta.bytes)
    };
    Change {
        path: format!("{}/{}", shown.trim_end_matches('/'), String::from_utf8_lossy(path)),
        kind,
        what: seen.map_or("", |entry| entry.meta.kind.word()).to_owned(),
        bytes_before: bytes(was),
        bytes_after: bytes(is),
    }
}
