//! What a program tried, in raw numbers: how it travels from the keeper to the engine, which knows names.

use serde::{Deserialize, Serialize};

use crate::alarm::Alarm;

/// What the keeper listens for, beside answering: made by the engine, so that the keeper knows no calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// What to read of the calls that take addresses, in the order of call numbers.
    pub looks: Vec<Look>,
    /// Arguments, beside what is read, by which two calls are told apart: call and place, in the same order.
    pub distinct: Vec<(u32, u8)>,
    /// What makes an allowed call worth telling, however much was told before.
    pub alarms: Vec<Alarm>,
    /// Allowed calls that are brought to us for their alarms alone, in the same order.
    pub only_alarms: Vec<u32>,
    /// Allowed calls are brought to us to be recorded, so there are many.
    pub record: bool,
}

/// Weights say how grave a call is, from nought for what innocent programs do up to this.
pub const GRAVEST: u8 = 4;
pub const WEIGHTS: usize = GRAVEST as usize + 1;

/// What the filter says of a refused call, in the 16 bits of its answer that the kernel ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Zero lets the call go on.
    pub errno: u16,
    pub weight: u8,
}

impl Answer {
    /// Numbers of errors end at 133 (errno.h), so eight bits are enough.
    const ERRNO_BITS: u32 = 8;

    pub const fn to_bits(self) -> u16 {
        self.errno | (self.weight as u16) << Self::ERRNO_BITS
    }

    pub fn from_bits(bits: u16) -> Self {
        let [errno, weight] = bits.to_le_bytes();
        Self { errno: errno.into(), weight }
    }
}

/// One argument of one call that is worth a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    pub call: u32,
    pub argument: u8,
    pub what: What,
}

/// What an argument points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Text that ends in a zero byte.
    Text,
    /// A list of such, which ends in a zero address.
    Texts,
    /// So many bytes.
    Bytes(u8),
    /// As many bytes as this other argument says.
    BytesOf(u8),
    /// A descriptor, told as the kernel names its file.
    Descriptor,
}

/// One thing that a program tried. The same again is only counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// By which later counts name it.
    pub number: u32,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    pub process: Seen,
    pub call: u32,
    pub args: [u64; 6],
    /// What was read, for each of the call's looks; `None` where nothing could be.
    pub read: Vec<Option<Vec<u8>>>,
    /// What the caller was answered; zero if the call went on.
    pub errno: u16,
    /// How grave it is, as the filter says, or an alarm.
    pub weight: u8,
}

/// A process of the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// As it sees itself.
    pub pid: u32,
    pub parent: u32,
    /// The beginning of its arguments, each ended by a zero byte.
    pub command: Vec<u8>,
}

/// Something that only stands in the place of a secret was opened; told once of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touched {
    pub time_ms: u64,
    /// Below /proc.
    pub name: String,
}

/// A decoy in what a program said: told when it is first seen, and again with how often it was when all is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spilled {
    pub time_ms: u64,
    /// Its place among the decoys.
    pub decoy: usize,
    /// The place of the stream: standard output, standard error.
    pub stream: usize,
    pub count: u64,
}

/// How often, when all is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Number of a [`Tried`], how often it was seen in all, and the sum of the third argument of all but
    /// the first.
    pub counts: Vec<(u32, u64, u64)>,
    /// Refusals beyond what is told one by one.
    pub untold: Vec<Untold>,
    /// Allowed calls beyond what is recorded one by one.
    pub unrecorded: u64,
}

/// One call that was refused and not told, all that are as grave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Untold {
    pub call: u32,
    pub weight: u8,
    /// Of the first, in milliseconds since 1970.
    pub time_ms: u64,
    pub count: u64,
}
