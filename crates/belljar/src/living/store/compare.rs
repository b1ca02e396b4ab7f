//! Comparing two points, of one sandbox or of related ones.

use std::path::{Path, PathBuf};

use super::diff::{Differences, Gathered, MOST_CHANGES, Sides, differences};
use super::disk::SheetId;
use super::points::Side;
use super::record::Record;
use super::walk::Place;
use super::{Store, StoreError, is_seen, target_of, trees_of};

impl Store {
    /// What is otherwise in `after` than in `before`.
    pub(crate) fn diff(
        &self,
        before: (&Record, &Side),
        after: (&Record, &Side),
    ) -> Result<Differences, StoreError> {
        self.diff_at_most(before, after, MOST_CHANGES)
    }

    pub(super) fn diff_at_most(
        &self,
        before: (&Record, &Side),
        after: (&Record, &Side),
        most: usize,
    ) -> Result<Differences, StoreError> {
        let _attached = (self.attach(before.0)?, self.attach(after.0)?);
        let mut gathered = Gathered::default();
        for tree in trees_of(after.0) {
            self.gather(before, after, tree, most, &mut gathered)?;
        }
        let mut changes: Vec<_> = gathered.found.into_iter().map(|one| one.change).collect();
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Differences { changes, cut: gathered.cut })
    }

    pub(super) fn gather(
        &self,
        before: (&Record, &Side),
        after: (&Record, &Side),
        tree: &str,
        most: usize,
        gathered: &mut Gathered,
    ) -> Result<(), StoreError> {
        let (old, new) = (self.stack_of(before.0, before.1)?, self.stack_of(after.0, after.1)?);
        let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
        // The highest first, and what is not there has nothing in it.
        let open = |sheets: &[SheetId]| {
            let sheets = sheets.iter().rev().filter(|sheet| is_seen(after.0, tree, sheet));
            let paths = sheets.map(|sheet| self.disks.all.sheet(sheet).join(tree));
            let paths: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
            paths.iter().map(|path| place(path.as_path())).collect::<Result<Vec<_>, _>>()
        };
        let mut common = open(&old[..same])?;
        let base = self.base_of(after.0, tree);
        let image = usize::from(base.is_some());
        common.extend(base.map(|path| place(&path)).transpose()?);
        let sides =
            Sides { before: open(&old[same..])?, after: open(&new[same..])?, common, image };
        let shown = target_of(tree);
        differences(sides, &shown.to_string_lossy(), most, gathered)
            .map_err(StoreError::files(&shown))
    }

    /// The sheets of a point, the lowest first.
    pub(super) fn stack_of(
        &self,
        record: &Record,
        side: &Side,
    ) -> Result<Vec<SheetId>, StoreError> {
        Ok(match side {
            Side::Image => Vec::new(),
            Side::Point(tag) => self.find(record, tag)?.stack,
            Side::Present => record.stack.iter().cloned().chain([record.upper_id()]).collect(),
        })
    }
}

fn place(path: &Path) -> Result<Place, StoreError> {
    Place::open(path).map_err(StoreError::files(path))
}
