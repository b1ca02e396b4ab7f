//! Several sealed sheets made into one that means the same. Contents are shared by hard links where they lie on one disk, so
//! it costs names and no space.

use std::collections::BTreeSet;
use std::io;

use super::copy::{Counts, How, Maker, make_whiteout};
use super::view::{Found, Layers};
use super::walk::{Kind, Place, join};

/// Merges one tree of each sheet, the highest first, into an empty directory.
pub(super) fn merge(sheets: Vec<Place>, to: &Place, how: How) -> io::Result<Counts> {
    let mut layers = Layers::default();
    let stack: Vec<usize> = sheets.into_iter().map(|sheet| layers.add(sheet)).collect();
    let mut maker = Maker::new(to, how);
    let (parts, closed) = layers.top(&stack)?;
    let mut waiting = vec![(Vec::new(), parts, closed)];
    while let Some((path, parts, closed)) = waiting.pop() {
        let opened = layers.open(&path, &parts)?;
        let target = to.directory(&path)?;
        let mut names = BTreeSet::new();
        opened.names(|_| true, &mut names)?;
        for name in names {
            match opened.find(&name)? {
                Found::Absent => {}
                Found::Removed => make_whiteout(&target, &name)?,
                Found::Entry(entry) => {
                    let Some(source) = opened.of(entry.layer) else { continue };
                    maker.make(source, &name, &entry.meta, &target, &path)?;
                    if entry.meta.kind == Kind::Directory {
                        waiting.push((join(&path, &name), entry.parts, entry.closed));
                    }
                }
            }
        }
        if let Some(source) = opened.first() {
            maker.directory_made(source, &path, closed)?;
        }
    }
    maker.finish()
}
