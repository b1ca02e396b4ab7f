//! The hash chain: each record carries the hash of the one before it, so that none can be changed, taken
//! out, put in or moved without breaking what follows. Pure: no file, no clock.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Separates our hashes from all others, and this way of making them from the next one.
const DOMAIN: &[u8] = b"belljar audit record 1\0";

/// SHA-256, written in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainHash(pub [u8; 32]);

impl ChainHash {
    /// What the first record of all has as the hash before it.
    pub const BEGINNING: Self = Self([0; 32]);

    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl std::str::FromStr for ChainHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a hash: 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for ChainHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChainHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A place in the chain: how far it goes, and the hash there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub seq: u64,
    pub hash: ChainHash,
}

impl Position {
    pub const BEGINNING: Self = Self { seq: 0, hash: ChainHash::BEGINNING };
}

/// What is to be recorded: a record without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Microseconds since 1970.
    pub at_us: u64,
    /// The word for what happened; see [`super::Kind`].
    pub kind: String,
    /// The execution id; empty for what concerns the trail itself.
    pub run: String,
    /// JSON: what lists, filters and statistics look at.
    pub summary: String,
    /// JSON: all the rest.
    pub detail: String,
}

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub seq: u64,
    pub entry: Entry,
    /// The hash of the record before it.
    pub prev: ChainHash,
    pub hash: ChainHash,
}

impl Record {
    /// The next link after `head`.
    pub fn after(head: Position, entry: Entry) -> Self {
        let seq = head.seq + 1;
        let hash = Sealed::of(&entry).hash(head.hash, seq);
        Self { seq, entry, prev: head.hash, hash }
    }

    pub fn position(&self) -> Position {
        Position { seq: self.seq, hash: self.hash }
    }
}

/// An entry's own part of the hash. Lengths are hashed too, so that nothing can move from one field to
/// the next.
struct Sealed([u8; 32]);

impl Sealed {
    fn of(entry: &Entry) -> Self {
        let mut sha = Sha256::new();
        sha.update(entry.at_us.to_le_bytes());
        for text in [&entry.kind, &entry.run, &entry.summary, &entry.detail] {
            sha.update((text.len() as u64).to_le_bytes());
            sha.update(text.as_bytes());
        }
        Self(sha.finalize().into())
    }

    fn hash(&self, prev: ChainHash, seq: u64) -> ChainHash {
        let mut sha = Sha256::new();
        sha.update(DOMAIN);
        sha.update(prev.0);
        sha.update(seq.to_le_bytes());
        sha.update(self.0);
        ChainHash(sha.finalize().into())
    }
}

/// What is wrong with a trail, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("record {seq} {damage}: {why}")]
pub struct Broken {
    /// The first record that is not as it was written.
    pub seq: u64,
    pub damage: Damage,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    Changed,
    Removed,
    Reordered,
    Truncated,
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Changed => "was changed",
            Self::Removed => "was removed",
            Self::Reordered => "was reordered",
            Self::Truncated => "was cut off",
        })
    }
}

/// Walks a chain record by record.
#[derive(Clone, Debug)]
pub struct Walk {
    last: Position,
    /// The highest place that anybody may claim, for telling a moved record from a changed one.
    most: u64,
    /// Where the chain was seen to reach, as it was kept elsewhere.
    head: Option<Position>,
}

impl Walk {
    /// Begins after `anchor`, in a chain of `most` records that was seen to reach `head`.
    pub fn from(anchor: Position, most: u64, head: Option<Position>) -> Self {
        Self { last: anchor, most, head }
    }

    pub fn position(&self) -> Position {
        self.last
    }

    /// Takes the next record, or says what is wrong with it.
    pub fn step(&mut self, record: &Record) -> Result<(), Broken> {
        let expected = self.last.seq + 1;
        let broken = |seq, damage, why: String| Err(Broken { seq, damage, why });
        let sealed = Sealed::of(&record.entry);
        if record.seq != expected {
            if record.seq < expected {
                let why = format!("it stands after record {}", self.last.seq);
                return broken(record.seq, Damage::Reordered, why);
            }
            let why = format!("record {} follows record {}", record.seq, self.last.seq);
            return broken(expected, Damage::Removed, why);
        }
        if sealed.hash(record.prev, record.seq) != record.hash {
            let elsewhere = (1..=self.most)
                .find(|seq| *seq != record.seq && sealed.hash(record.prev, *seq) == record.hash);
            return match elsewhere {
                Some(seq) => {
                    let why = format!("what stands here was written as record {seq}");
                    broken(expected, Damage::Reordered, why)
                }
                None => {
                    broken(expected, Damage::Changed, "its hash is not that of its contents".into())
                }
            };
        }
        if record.prev != self.last.hash {
            let why = "it does not follow from the record before it".into();
            return broken(expected, Damage::Changed, why);
        }
        if self.head.is_some_and(|head| head.seq == record.seq && head.hash != record.hash) {
            let why = "the head that was kept beside the trail has another hash for it".into();
            return broken(expected, Damage::Changed, why);
        }
        self.last = record.position();
        Ok(())
    }

    /// After the last record: the chain may go beyond the head that was kept, not fall short of it.
    pub fn finish(&self) -> Result<Position, Broken> {
        let Some(head) = self.head.filter(|head| head.seq > self.last.seq) else {
            return Ok(self.last);
        };
        let why = format!(
            "the trail ends with record {}, and its head says that there were {}",
            self.last.seq, head.seq
        );
        Err(Broken { seq: self.last.seq + 1, damage: Damage::Truncated, why })
    }
}

#[cfg(test)]
mod tests;
