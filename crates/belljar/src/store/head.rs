//! How far the chain reaches, kept in a second place: whoever cuts the end of the trail has to know of
//! this file too, and what was cut by mistake is seen.
//!
//! Two slots of fixed length are written in turn, so that one is whole whatever happens to a write. Behind them
//! stands whether somebody was at work on the trail, how long the spool is, and what the database looked like.
//! Whoever changes the trail, in whichever of its files, holds the lock of this one meanwhile.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::StoreError;
use crate::audit::chain::Position;
use crate::native::boot;

pub(super) const FILE: &str = "audit.head";
const SLOT_BYTES: usize = 160;
/// The word behind the slots, and where it is.
const WORD_BYTES: usize = 64;
const WORD_AT: u64 = 2 * SLOT_BYTES as u64;

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

    /// Sets the head where the trail really ends.
    pub(super) fn force(&self, position: Position) -> Result<(), StoreError> {
        let lock = self.lock()?;
        let put = |slot| self.put(slot, position).map_err(StoreError::io(&self.path));
        put(0)?;
        put(1)?;
        drop(lock);
        Ok(())
    }

    /// Waits until nobody else is at work on the trail.
    pub(super) fn lock(&self) -> Result<Locked<'_>, StoreError> {
        let locked = flock(&self.file, FlockOperation::LockExclusive).map_err(io::Error::from);
        locked.map(|()| Locked(self)).map_err(StoreError::io(&self.path))
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

/// How the other files were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub spool_bytes: u64,
    /// Stands for the sizes and times of the database and its log: who changed them by hand is noticed by those
    /// who do not open them.
    pub looks: u64,
}

impl Left {
    pub(super) fn looks_of(directory: &Path) -> u64 {
        let mut sha = Sha256::new();
        for name in [super::FILE.to_owned(), format!("{}-wal", super::FILE)] {
            let Ok(status) = std::fs::metadata(directory.join(name)) else { continue };
            for number in [status.ino(), status.size()] {
                sha.update(number.to_le_bytes());
            }
            for number in [status.mtime(), status.mtime_nsec()] {
                sha.update(number.to_le_bytes());
            }
        }
        let sum: [u8; 32] = sha.finalize().into();
        u64::from_le_bytes([sum[0], sum[1], sum[2], sum[3], sum[4], sum[5], sum[6], sum[7]])
    }
}

/// The trail, while nobody else is at work on it.
#[derive(Debug)]
pub(super) struct Locked<'a>(&'a Head);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // What cannot be unlocked is so when the file is closed.
        flock(&self.0.file, FlockOperation::Unlock).ok();
    }
}

impl Locked<'_> {
    pub(super) fn kept(&self) -> Result<Option<Kept>, StoreError> {
        self.0.read()
    }

    /// How the files were left, if whoever was at work last came to an end with it.
    pub(super) fn left(&self) -> Result<Option<Left>, StoreError> {
        let mut word = [0; WORD_BYTES];
        match self.0.file.read_exact_at(&mut word, WORD_AT) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(StoreError::io(&self.0.path)(error)),
        }
        let text = std::str::from_utf8(&word).ok().and_then(|text| text.strip_prefix("whole "));
        let (bytes, looks) = text.and_then(|text| text.trim().split_once(' ')).unzip();
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        let looks = looks.and_then(|looks| u64::from_str_radix(looks, 16).ok());
        Ok(bytes.zip(looks).map(|(spool_bytes, looks)| Left { spool_bytes, looks }))
    }

    /// Says that we are at work: what the head says may be less than what there is.
    pub(super) fn begin(&self) -> Result<(), StoreError> {
        self.say("at work")
    }

    /// Says how far the trail reaches now. The head never moves back.
    pub(super) fn finish(&self, position: Position, left: Left) -> Result<(), StoreError> {
        let wrong = StoreError::io;
        let slots = self.0.slots().map_err(wrong(&self.0.path))?;
        let newest = slots.iter().flatten().map(|kept| kept.position.seq).max();
        if newest.is_none_or(|seq| seq < position.seq) {
            self.0.put(older(&slots), position).map_err(wrong(&self.0.path))?;
        }
        self.say(&format!("whole {} {:016x}", left.spool_bytes, left.looks))
    }

    fn say(&self, text: &str) -> Result<(), StoreError> {
        let mut word = [b' '; WORD_BYTES];
        word[WORD_BYTES - 1] = b'\n';
        for (place, byte) in word.iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        self.0.file.write_all_at(&word, WORD_AT).map_err(StoreError::io(&self.0.path))
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
