//! How far the chain reaches, kept in a second place: whoever cuts the end of the trail has to know of
//! this file too, and what was cut by mistake is seen.
//!
//! Two slots of fixed length are written in turn, so that one is whole whatever happens to a write.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::StoreError;
use crate::audit::chain::Position;
use crate::native::boot;

pub(super) const FILE: &str = "audit.head";
const SLOT_BYTES: usize = 160;

/// What a slot says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub position: Position,
    /// Which run of the kernel wrote it.
    pub boot: String,
}

#[derive(Debug)]
pub(crate) struct Head {
    file: File,
    path: PathBuf,
}

impl Head {
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        Ok(Self { file: file.map_err(StoreError::io(&path))?, path })
    }

    /// The head of a directory, without making anything there.
    pub(super) fn kept(directory: &Path) -> Result<Option<Kept>, StoreError> {
        let path = directory.join(FILE);
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(&path)(error)),
            Ok(file) => Self { file, path }.read(),
        }
    }

    pub(crate) fn read(&self) -> Result<Option<Kept>, StoreError> {
        let slots = self.slots().map_err(StoreError::io(&self.path))?;
        Ok(slots.into_iter().flatten().max_by_key(|kept| kept.position.seq))
    }

    /// Moves the head on. Whoever committed later may have written it sooner, so it never moves back.
    pub(super) fn write(&self, position: Position) -> Result<(), StoreError> {
        self.locked(|slots| {
            let newest = slots.iter().flatten().map(|kept| kept.position.seq).max();
            if newest.is_some_and(|seq| seq >= position.seq) {
                return Ok(());
            }
            self.put(older(slots), position)
        })
    }

    /// Sets the head where the trail really ends.
    pub(super) fn force(&self, position: Position) -> Result<(), StoreError> {
        self.locked(|_| {
            self.put(0, position)?;
            self.put(1, position)
        })
    }

    fn locked(
        &self,
        act: impl FnOnce(&[Option<Kept>; 2]) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let run = || {
            flock(&self.file, FlockOperation::LockExclusive)?;
            let result = self.slots().and_then(|slots| act(&slots));
            flock(&self.file, FlockOperation::Unlock)?;
            result
        };
        run().map_err(StoreError::io(&self.path))
    }

    fn slots(&self) -> io::Result<[Option<Kept>; 2]> {
        let mut bytes = [0; 2 * SLOT_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        let (one, other) = bytes.split_at(SLOT_BYTES);
        Ok([parse(one), parse(other)])
    }

    fn put(&self, slot: usize, position: Position) -> io::Result<()> {
        let body = format!("{} {} {}", position.seq, position.hash, boot());
        let text = format!("{body} {}", check(&body));
        let mut bytes = [b' '; SLOT_BYTES];
        bytes[SLOT_BYTES - 1] = b'\n';
        let room = bytes.get_mut(..text.len()).ok_or(io::ErrorKind::InvalidData)?;
        room.copy_from_slice(text.as_bytes());
        self.file.write_all_at(&bytes, (slot * SLOT_BYTES) as u64)
    }
}

/// The slot to write next: the empty one, or the one that says less.
fn older(slots: &[Option<Kept>; 2]) -> usize {
    let seq = |slot: &Option<Kept>| slot.as_ref().map(|kept| kept.position.seq);
    usize::from(seq(&slots[1]) < seq(&slots[0]))
}

fn parse(bytes: &[u8]) -> Option<Kept> {
    let text = std::str::from_utf8(bytes).ok()?.trim_ascii_end();
    let (body, sum) = text.rsplit_once(' ')?;
    (sum == check(body)).then_some(())?;
    let mut words = body.split(' ');
    let seq = words.next()?.parse().ok()?;
    let hash = words.next()?.parse().ok()?;
    Some(Kept { position: Position { seq, hash }, boot: words.next()?.to_owned() })
}

/// Tells a slot that was written half.
pub(super) fn check(body: &str) -> String {
    let sum = Sha256::digest(body.as_bytes());
    sum.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
