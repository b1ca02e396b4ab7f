//! What a program tried, in raw numbers: how it travels from the keeper to the engine, which knows names.

use serde::{Deserialize, Serialize};

/// What the keeper listens for, beside answering: made by the engine, so that the keeper knows no calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// What to read of the calls that take addresses, in the order of call numbers.
    pub looks: Vec<Look>,
    /// Arguments, beside what is read, by which two calls are told apart: call and place, in the same order.
    pub distinct: Vec<(u32, u8)>,
    /// Allowed calls are brought to us to be recorded, so there are many.
    pub record: bool,
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
    /// Calls beyond what is told one by one: the call, and how often it was refused.
    pub untold: Vec<(u32, u64)>,
    /// Allowed calls beyond what is recorded one by one.
    pub unrecorded: u64,
}
