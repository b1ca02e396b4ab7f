//! Points to come back to: sealing, copying, snapshots and rollback. None but the copy looks at files that did not
//! change.

use super::copy::{self, Counts, How};
use super::disk::{SheetId, private_directory};
use super::merge::merge;
use super::record::{Point, Record};
use super::walk::{self, Place};
use super::{Store, StoreError, Tag, ids_of, new_id, now_ms, trees_of};

/// Sheets on a sandbox's own disk in one stack; from here on some are merged. The kernel takes 500 in all.
pub(super) const MOST_SHEETS: usize = 64;
/// How many are merged then.
const MERGED: usize = 33;
/// Layers of a stack, with those of the sandboxes that it was forked from.
pub(super) const MOST_LAYERS: usize = 400;
/// Points that are kept by name.
const MOST_POINTS: usize = 1000;

/// How the present files come into a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    /// Nothing runs: what was written becomes a sheet as it is.
    Seal,
    /// The sandbox is frozen and goes on with its upper: what was written is copied.
    Copy,
}

/// One end of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The image, as if nothing had ever been written.
    Image,
    Point(Tag),
    /// With what was written last.
    Present,
}

/// Whether a point must outlive the host's crash. Those before each exec need not: they would make each wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    Durable,
    Quick,
}

/// A stack that holds the present files.
#[derive(Debug)]
pub(super) struct Taken {
    pub stack: Vec<SheetId>,
    pub counts: Counts,
    pub copied: bool,
    /// The upper that was sealed; its work directory goes when the record is saved.
    pub sealed: Option<SheetId>,
}

impl Store {
    /// A point for something that is under way, which removes it: nobody is told of it, and the next start removes it if we
    /// die before.
    pub(crate) fn pass(&self, id: &str, taking: Taking) -> Result<Point, StoreError> {
        let tag = Tag::new(&format!("passing-{}", new_id()?.to_ascii_lowercase()))?;
        self.keep_point(id, Some(tag), taking, true)
    }

    /// Makes a point of the present files; a tag is made up when none is given.
    pub(crate) fn snapshot(
        &self,
        id: &str,
        tag: Option<Tag>,
        taking: Taking,
    ) -> Result<Point, StoreError> {
        self.keep_point(id, tag, taking, false)
    }

    fn keep_point(
        &self,
        id: &str,
        tag: Option<Tag>,
        taking: Taking,
        passing: bool,
    ) -> Result<Point, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        let tag = tag.map_or_else(|| free_tag(&record), Ok)?;
        if record.point(&tag).is_some() {
            return Err(StoreError::PointTaken { sandbox: record.name, tag });
        }
        if record.points.iter().filter(|point| !point.automatic).count() >= MOST_POINTS {
            return Err(StoreError::Full {
                what: format!("{} has {MOST_POINTS} points", record.name),
                most: MOST_POINTS as u64,
                hint: "remove some",
            });
        }
        let _attached = self.attach(&record)?;
        let taken = self.take(&mut record, taking, Care::Durable)?;
        let point = Point { passing, ..point(tag, false, &taken) };
        record.points.push(point.clone());
        self.settle(&record, &taken)?;
        Ok(point)
    }

    pub(crate) fn remove_snapshot(&self, id: &str, tag: &Tag) -> Result<(), StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        let point = self.find(&record, tag)?;
        record.points.retain(|other| other.tag != *tag);
        if record.standing.as_ref() == Some(tag) {
            record.standing = None;
        }
        self.save(&record)?;
        self.collect(point.stack.into_iter())
    }

    /// Makes the files what they were at a point; what was written since is gone, unless the sandbox can undo.
    pub(crate) fn rollback(&self, id: &str, tag: &Tag) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        let point = self.find(&record, tag)?;
        let _attached = self.attach(&record)?;
        if record.request.undo {
            self.mark_here(&mut record)?;
        }
        record.standing = None;
        self.go_to(record, point.stack)
    }

    /// Puts the sandbox on a stack, with nothing written on it yet. Returns when that is the state that is found.
    pub(super) fn go_to(
        &self,
        mut record: Record,
        stack: Vec<SheetId>,
    ) -> Result<Record, StoreError> {
        let before: Vec<SheetId> = record.sheets().collect();
        record.stack = stack;
        self.fresh_upper(&mut record)?;
        self.save(&record)?;
        self.collect(before.into_iter())?;
        Ok(record)
    }

    pub(super) fn fresh_upper(&self, record: &mut Record) -> Result<(), StoreError> {
        record.upper = record.next_sheet;
        record.next_sheet += 1;
        self.disks.all.new_sheet(&record.upper_id(), trees_of(record), ids_of(record))?;
        self.steps.reach("upper made")
    }

    /// Gets the present files into a stack that will not change. The record is changed, and not saved.
    pub(super) fn take(
        &self,
        record: &mut Record,
        taking: Taking,
        care: Care,
    ) -> Result<Taken, StoreError> {
        let upper = record.upper_id();
        let mut taken = Taken {
            stack: record.stack.clone(),
            counts: Counts::default(),
            copied: false,
            sealed: None,
        };
        if self.is_untouched(record)? {
            return Ok(taken);
        }
        if taking == Taking::Copy {
            let (sheet, counts) = self.copy_upper(record)?;
            taken.stack.push(sheet);
            return Ok(Taken { counts, copied: true, ..taken });
        }
        taken.counts = self.count(&upper, trees_of(record))?;
        if care == Care::Durable {
            self.disks.all.sync(&record.disk)?;
            self.steps.reach("synced")?;
        }
        self.fresh_upper(record)?;
        record.stack.push(upper.clone());
        self.shorten(record)?;
        Ok(Taken { stack: record.stack.clone(), sealed: Some(upper), ..taken })
    }

    /// Saves a record whose files were taken, and drops what only the old one needed.
    pub(super) fn settle(&self, record: &Record, taken: &Taken) -> Result<(), StoreError> {
        let before = self.get(&record.id)?;
        self.save(record)?;
        if let Some(sealed) = &taken.sealed {
            self.disks.all.remove_work(sealed)?;
        }
        self.collect(before.sheets())
    }

    /// Whether nothing was written since the last sheet.
    pub(super) fn is_untouched(&self, record: &Record) -> Result<bool, StoreError> {
        let upper = self.disks.all.sheet(&record.upper_id());
        for tree in trees_of(record) {
            let path = upper.join(tree);
            let found = Place::open(&path).and_then(|place| {
                let open = place.directory(b"")?;
                let meta = walk::look_at(&open)?;
                let changed = meta.mode != 0o755 || !walk::attributes(&open)?.is_empty();
                Ok(changed || !walk::names(&open)?.is_empty())
            });
            if found.map_err(StoreError::files(&path))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn count(&self, sheet: &SheetId, trees: &[&str]) -> Result<Counts, StoreError> {
        let mut sum = Counts::default();
        for tree in trees {
            let path = self.disks.all.sheet(sheet).join(tree);
            let counts = Place::open(&path).and_then(|place| copy::count(&place));
            let counts = counts.map_err(StoreError::files(&path))?;
            sum = Counts { bytes: sum.bytes + counts.bytes, files: sum.files + counts.files };
        }
        Ok(sum)
    }

    /// Copies the upper into a sheet of its own. On a place of its own too: a sandbox that has filled more than half of its
    /// disk could not be copied onto it.
    fn copy_upper(&self, record: &Record) -> Result<(SheetId, Counts), StoreError> {
        let sheet = SheetId { disk: new_id()?, number: 0 };
        self.disks.all.make_plain(&sheet.disk)?;
        self.steps.reach("place of the copy made")?;
        let (from, to) = (self.disks.all.sheet(&record.upper_id()), self.disks.all.sheet(&sheet));
        private_directory(&to)?;
        let mut sum = Counts::default();
        for tree in trees_of(record) {
            private_directory(&to.join(tree))?;
            let copied = Place::open(&from.join(tree))
                .and_then(|source| copy::copy_tree(&source, &Place::open(&to.join(tree))?));
            let counts = copied.map_err(StoreError::files(&to))?;
            sum = Counts { bytes: sum.bytes + counts.bytes, files: sum.files + counts.files };
        }
        self.disks.all.sync(&sheet.disk)?;
        self.steps.reach("copied")?;
        Ok((sheet, sum))
    }

    /// Merges sheets when there are many: those that hold least, so that a large one is not made anew each time.
    fn shorten(&self, record: &mut Record) -> Result<(), StoreError> {
        let own = |sheet: &SheetId| sheet.disk == record.disk;
        let first = record.stack.iter().position(own).unwrap_or(record.stack.len());
        // Forks stand on their parents' sheets, and their own come after.
        let sheets = &record.stack[first..];
        if sheets.len() <= MOST_SHEETS || !sheets.iter().all(own) {
            return Ok(());
        }
        let mut sizes = Vec::new();
        for sheet in sheets {
            sizes.push(self.count(sheet, trees_of(record))?.files);
        }
        let weight = |start: &usize| sizes[*start..start + MERGED].iter().sum::<u64>();
        let start = (0..=sizes.len() - MERGED).min_by_key(weight).unwrap_or(0);
        let window: Vec<SheetId> = sheets[start..start + MERGED].to_vec();
        let merged = self.merge_sheets(record, &window)?;
        let replace = |stack: &mut Vec<SheetId>| {
            if let Some(at) = stack.windows(MERGED).position(|some| some == window) {
                stack.splice(at..at + MERGED, [merged.clone()]);
            }
        };
        replace(&mut record.stack);
        record.points.iter_mut().for_each(|point| replace(&mut point.stack));
        Ok(())
    }

    fn merge_sheets(&self, record: &mut Record, window: &[SheetId]) -> Result<SheetId, StoreError> {
        let merged = SheetId { disk: record.disk.clone(), number: record.next_sheet };
        record.next_sheet += 1;
        let to = self.disks.all.sheet(&merged);
        private_directory(&to)?;
        for tree in trees_of(record) {
            private_directory(&to.join(tree))?;
            let merge = || {
                let places =
                    window.iter().rev().map(|sheet| self.disks.all.sheet(sheet).join(tree));
                let places = places.map(|path| Place::open(&path)).collect::<Result<_, _>>()?;
                merge(places, &Place::open(&to.join(tree))?, How::Link)
            };
            merge().map_err(StoreError::files(&to))?;
        }
        self.disks.all.sync(&record.disk)?;
        self.steps.reach("merged")?;
        Ok(merged)
    }

    pub(crate) fn find(&self, record: &Record, tag: &Tag) -> Result<Point, StoreError> {
        record.point(tag).cloned().ok_or_else(|| StoreError::NoPoint {
            sandbox: record.name.clone(),
            tag: tag.to_string(),
        })
    }
}

pub(super) fn point(tag: Tag, automatic: bool, taken: &Taken) -> Point {
    Point {
        tag,
        created_ms: now_ms(),
        automatic,
        passing: false,
        stack: taken.stack.clone(),
        bytes: taken.counts.bytes,
        files: taken.counts.files,
        copied: taken.copied,
    }
}

fn free_tag(record: &Record) -> Result<Tag, StoreError> {
    for number in 1..=MOST_POINTS + 1 {
        let tag = Tag::new(&format!("s{number}"))?;
        if record.point(&tag).is_none() {
            return Ok(tag);
        }
    }
    Err(StoreError::Nothing("name the point after"))
}
