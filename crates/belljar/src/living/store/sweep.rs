//! What a start finds: records are read, what was half done is finished or removed, and what nobody names is swept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::disk::{SheetId, remove_tree};
use super::record::Record;
use super::walk::Place;
use super::{Hold, Store, StoreError, copy, trees_of};

/// What a sweep did, for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub disks: usize,
    pub sheets: usize,
    pub leftovers: usize,
}

impl Store {
    /// Reads all records. One that cannot be read is an error: to go on would be to sweep its files.
    pub(super) fn read_records(&self) -> Result<(), StoreError> {
        for name in names(&self.sandboxes)? {
            if name.starts_with(".made-") {
                self.finish_new(&name)?;
            }
        }
        for name in names(&self.sandboxes)? {
            let directory = self.sandboxes.join(&name);
            if name.starts_with('.') || !directory.join(super::record::FILE).exists() {
                continue;
            }
            let record = Record::read(&directory)?;
            if record.id != name {
                let reason = format!("its id is {}", super::shown(&record.id));
                return Err(StoreError::Damaged { path: directory, reason });
            }
            self.records().insert(name, record);
        }
        let unfinished: Vec<_> =
            self.records().values().filter(|record| record.took.is_some()).cloned().collect();
        for record in unfinished {
            let from = record.took.as_ref().map(|took| took.from.clone()).unwrap_or_default();
            if let Some(hold) = Hold::take(&self.held, &from) {
                self.finish_taking(record, hold)?;
            }
        }
        for mut record in self.list() {
            if record.workspace.is_some() {
                self.settle_commit(&record)?;
            }
            if record.points.iter().any(|point| point.passing) {
                record.points.retain(|point| !point.passing);
                self.save(&record)?;
            }
        }
        Ok(())
    }

    /// Removes what no record names, and detaches disks that nothing uses. `live` are the ids whose keepers run: theirs stay
    /// as they are, whatever the records say.
    pub(crate) fn sweep(&self, live: &BTreeSet<String>) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        for name in names(&self.sandboxes)? {
            let is_record = self.records().contains_key(&name);
            if name != "lock" && !is_record {
                remove_any(&self.sandboxes, &name)?;
                swept.leftovers += 1;
            }
        }
        for name in names(&self.disks.all.templates)? {
            if !name.ends_with(".img") {
                // A crash may have left it mounted.
                let mounted = self.disks.all.templates.join(&name).join("mounted");
                belljar_sys::mount::detach(&mounted).ok();
                remove_any(&self.disks.all.templates, &name)?;
                swept.leftovers += 1;
            }
        }
        let (named, busy) = self.named(live);
        for disk in names(&self.disks.all.root)? {
            if self.disks.is_used(&disk) {
                continue;
            }
            if busy.contains(&disk) {
                // What lives has a view of its own; ours, which a crash may have left, is for nobody.
                self.disks.all.detach(&disk)?;
                continue;
            }
            match named.get(&disk) {
                None => {
                    self.disks.all.remove(&disk)?;
                    swept.disks += 1;
                }
                Some(sheets) => swept.sheets += self.sweep_disk(&disk, sheets)?,
            }
        }
        Ok(swept)
    }

    /// The sheets that records name, by disk (true: it is an upper), and the disks of living sandboxes.
    fn named(
        &self,
        live: &BTreeSet<String>,
    ) -> (BTreeMap<String, BTreeMap<u32, bool>>, BTreeSet<String>) {
        let mut named: BTreeMap<String, BTreeMap<u32, bool>> = BTreeMap::new();
        let mut busy = BTreeSet::new();
        for record in self.records().values() {
            for sheet in record.sheets() {
                if live.contains(&record.id) {
                    busy.insert(sheet.disk.clone());
                }
                let upper = sheet == record.upper_id();
                *named.entry(sheet.disk).or_default().entry(sheet.number).or_default() |= upper;
            }
        }
        (named, busy)
    }

    fn sweep_disk(&self, disk: &str, sheets: &BTreeMap<u32, bool>) -> Result<usize, StoreError> {
        let _attached = self.disks.attach(BTreeSet::from([disk.to_owned()]))?;
        let files = self.disks.all.files(disk);
        let mut swept = 0;
        for name in names(&files)? {
            let number = name.strip_prefix("work-").unwrap_or(&name).parse();
            let Ok(number) = number else { continue };
            let keep = match sheets.get(&number) {
                Some(is_upper) => *is_upper || !name.starts_with("work-"),
                None => false,
            };
            if !keep {
                remove_tree(&files, &name)?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Removes files that agents of a sandbox were about to put in their place when its keeper was killed. What else lies there
    /// is the sandbox's own.
    pub(crate) fn sweep_unfinished(&self, id: &str) -> Result<usize, StoreError> {
        let _hold = self.hold(id)?;
        let record = self.get(id)?;
        let _attached = self.attach(&record)?;
        let upper = self.disks.all.sheet(&record.upper_id());
        let mut swept = 0;
        for tree in trees_of(&record) {
            let place = Place::open(&upper.join(tree));
            swept += place.map_or(0, |place| copy::remove_unfinished(&place));
        }
        Ok(swept)
    }

    /// Removes those of these sheets that no record names any more.
    pub(super) fn collect(&self, sheets: impl Iterator<Item = SheetId>) -> Result<(), StoreError> {
        let mut candidates: BTreeSet<SheetId> = sheets.collect();
        let mut disks = BTreeSet::new();
        for record in self.records().values() {
            for sheet in record.sheets() {
                candidates.remove(&sheet);
                disks.insert(sheet.disk);
            }
        }
        for sheet in candidates {
            self.steps.reach("about to collect")?;
            if disks.contains(&sheet.disk) {
                let _attached = self.disks.attach(BTreeSet::from([sheet.disk.clone()]))?;
                self.disks.all.remove_sheet(&sheet)?;
            } else {
                self.disks.all.remove(&sheet.disk)?;
            }
        }
        Ok(())
    }
}

fn names(directory: &Path) -> Result<Vec<String>, StoreError> {
    let entries = fs::read_dir(directory).map_err(StoreError::io(directory))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::io(directory))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn remove_any(parent: &Path, name: &str) -> Result<(), StoreError> {
    let path = parent.join(name);
    match fs::symlink_metadata(&path) {
        Ok(status) if status.is_dir() => remove_tree(parent, name),
        Ok(_) => fs::remove_file(&path).map_err(StoreError::io(&path)),
        Err(_) => Ok(()),
    }
}
