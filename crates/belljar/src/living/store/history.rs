//! Undo and redo, over points that were made before each exec.

use super::points::{Care, Taking, point};
use super::record::Record;
use super::{Store, StoreError, Tag};

/// Automatic points kept; the oldest goes first.
pub(super) const MOST_AUTOMATIC: usize = 100;

impl Store {
    /// A point before an exec. It costs nothing when nothing was written since the last.
    pub(crate) fn mark(&self, id: &str, taking: Taking) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        let _attached = self.attach(&record)?;
        // After an undo nothing is new until something is written: what only looks does not end what can be redone.
        if record.standing.is_none() || !self.is_untouched(&record)? {
            self.mark_by(&mut record, taking)?;
        }
        Ok(record)
    }

    /// Says so where nothing can be undone, whatever was written.
    pub(crate) fn may_undo(&self, record: &Record) -> Result<(), StoreError> {
        let first = automatic(record).next();
        first.map(drop).ok_or(StoreError::Nothing("undo"))
    }

    pub(crate) fn may_redo(&self, record: &Record) -> Result<(), StoreError> {
        record.standing.as_ref().map(drop).ok_or(StoreError::Nothing("redo"))
    }

    /// Goes back to the newest automatic point that differs from the present.
    pub(crate) fn undo(&self, id: &str) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        self.may_undo(&record)?;
        let _attached = self.attach(&record)?;
        let here = if record.standing.is_some() && self.is_untouched(&record)? {
            record.standing.clone()
        } else {
            self.mark_here(&mut record)?;
            automatic(&record).next_back().map(|(tag, _)| tag.clone())
        };
        let points: Vec<_> = automatic(&record).collect();
        let at = points.iter().position(|(tag, _)| Some(*tag) == here.as_ref());
        let earlier = &points[..at.unwrap_or(0)];
        let target = earlier.iter().rev().find(|(_, stack)| *stack != &record.stack);
        let Some((tag, stack)) = target.map(|(tag, stack)| ((*tag).clone(), (*stack).clone()))
        else {
            return Err(StoreError::Nothing("undo"));
        };
        record.standing = Some(tag);
        self.go_to(record, stack)
    }

    /// Goes forward again, as long as nothing else was written since the undo.
    pub(crate) fn redo(&self, id: &str) -> Result<Record, StoreError> {
        let _hold = self.hold(id)?;
        let mut record = self.get(id)?;
        let _attached = self.attach(&record)?;
        let Some(here) = record.standing.clone() else {
            return Err(StoreError::Nothing("redo"));
        };
        if !self.is_untouched(&record)? {
            return Err(StoreError::Nothing("redo"));
        }
        let next = automatic(&record)
            .skip_while(|(tag, _)| **tag != here)
            .find(|(_, stack)| *stack != &record.stack)
            .map(|(tag, stack)| (tag.clone(), stack.clone()));
        let Some((tag, stack)) = next else { return Err(StoreError::Nothing("redo")) };
        record.standing = Some(tag);
        self.go_to(record, stack)
    }

    /// Makes the present files the newest automatic point, and saves.
    pub(super) fn mark_here(&self, record: &mut Record) -> Result<(), StoreError> {
        self.mark_by(record, Taking::Seal)
    }

    fn mark_by(&self, record: &mut Record, taking: Taking) -> Result<(), StoreError> {
        let taken = self.take(record, taking, Care::Quick)?;
        if let Some(standing) = record.standing.take() {
            // What was undone is over now: history goes on from here.
            let at = record.points.iter().position(|point| point.tag == standing);
            let mut number = 0;
            record.points.retain(|point| {
                number += 1;
                !point.automatic || at.is_none_or(|at| number <= at + 1)
            });
        }
        let newest = automatic(record).next_back().map(|(_, stack)| stack);
        if newest != Some(&taken.stack) {
            let tag = Tag::new(&format!("auto-{}", record.next_automatic))?;
            record.next_automatic += 1;
            record.points.push(point(tag, true, &taken));
        }
        let surplus = automatic(record).count().saturating_sub(MOST_AUTOMATIC);
        for _ in 0..surplus {
            if let Some(oldest) = record.points.iter().position(|point| point.automatic) {
                record.points.remove(oldest);
            }
        }
        self.settle(record, &taken)
    }
}

/// The oldest first.
fn automatic(record: &Record) -> impl DoubleEndedIterator<Item = (&Tag, &Vec<super::SheetId>)> {
    let points = record.points.iter().filter(|point| point.automatic);
    points.map(|point| (&point.tag, &point.stack))
}
