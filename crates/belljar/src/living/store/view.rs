//! Several trees seen as one, as the overlay shows them: what lies higher hides what lies lower, directories are merged
//! unless one is opaque, and a whiteout is an absence.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;

use super::walk::{self, Kind, Meta, Place};

/// Trees by number; a stack is a list of such numbers, the highest first.
#[derive(Debug, Default)]
pub(super) struct Layers {
    places: Vec<Place>,
}

/// One directory of a stack: where it is, the highest first.
#[derive(Debug)]
pub(super) struct Opened {
    pub parts: Vec<(usize, OwnedFd)>,
}

/// What a stack has under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, and nobody says why.
    Absent,
    /// Something below was removed.
    Removed,
    Entry(Entry),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Which layer it is seen from.
    pub layer: usize,
    pub meta: Meta,
    /// Of a directory: all layers that it is merged from.
    pub parts: Vec<usize>,
    /// Of a directory: it hides what would be below the last of them.
    pub closed: bool,
}

impl Found {
    pub(super) fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Absent | Self::Removed => None,
        }
    }
}

impl Layers {
    pub(super) fn add(&mut self, place: Place) -> usize {
        self.places.push(place);
        self.places.len() - 1
    }

    pub(super) fn open(&self, path: &[u8], parts: &[usize]) -> io::Result<Opened> {
        let open = |layer: &usize| Ok((*layer, self.places[*layer].directory(path)?));
        Ok(Opened { parts: parts.iter().map(open).collect::<io::Result<_>>()? })
    }

    /// The layers of the top directory: all of them, down to one that is opaque.
    pub(super) fn top(&self, stack: &[usize]) -> io::Result<(Vec<usize>, bool)> {
        let mut parts = Vec::new();
        for layer in stack {
            parts.push(*layer);
            if walk::is_opaque(&self.places[*layer].directory(b"")?)? {
                return Ok((parts, true));
            }
        }
        Ok((parts, false))
    }
}

impl Opened {
    /// The directory as seen from the highest layer that has it.
    pub(super) fn first(&self) -> Option<&OwnedFd> {
        self.parts.first().map(|(_, open)| open)
    }

    pub(super) fn of(&self, layer: usize) -> Option<&OwnedFd> {
        self.parts.iter().find(|(number, _)| *number == layer).map(|(_, open)| open)
    }

    /// Adds the names in those layers that are asked for.
    pub(super) fn names(
        &self,
        wanted: impl Fn(usize) -> bool,
        names: &mut BTreeSet<CString>,
    ) -> io::Result<()> {
        for (_, open) in self.parts.iter().filter(|(layer, _)| wanted(*layer)) {
            names.extend(walk::names(open)?);
        }
        Ok(())
    }

    pub(super) fn find(&self, name: &CStr) -> io::Result<Found> {
        let mut found: Option<Entry> = None;
        for (layer, open) in &self.parts {
            let Some(meta) = walk::look(open, name)? else { continue };
            let Some(entry) = &mut found else {
                if meta.kind == Kind::Whiteout {
                    return Ok(Found::Removed);
                }
                let mut entry = Entry { layer: *layer, meta, parts: vec![*layer], closed: false };
                if meta.kind != Kind::Directory {
                    return Ok(Found::Entry(entry));
                }
                entry.closed = is_opaque(open, name)?;
                if entry.closed {
                    return Ok(Found::Entry(entry));
                }
                found = Some(entry);
                continue;
            };
            if meta.kind != Kind::Directory {
                entry.closed = true;
                break;
            }
            entry.parts.push(*layer);
            entry.closed = is_opaque(open, name)?;
            if entry.closed {
                break;
            }
        }
        Ok(found.map_or(Found::Absent, Found::Entry))
    }
}

fn is_opaque(directory: &OwnedFd, name: &CStr) -> io::Result<bool> {
    walk::is_opaque(&walk::open_directory(directory, name)?)
}
