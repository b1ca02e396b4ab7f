//! What a recorded run did: every program executed, file opened, connection made and file written, as a
//! timeline. It is what was seen when each call began; what a call finds in memory a moment later may
//! differ, so a recording is for understanding, never for deciding.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A run's timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recording {
    /// In the order in which each was first seen. The same again by the same thread is counted.
    pub entries: Vec<Entry>,
    /// Calls beyond those that are kept.
    pub dropped: u64,
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// When it was first seen: RFC 3339, UTC, with milliseconds.
    pub time: String,
    pub pid: u32,
    pub act: Act,
    /// The path or the address; what is no text is escaped.
    pub target: String,
    /// The command line of an exec.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command: Option<String>,
    pub count: u64,
    /// Asked to be written, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    Exec,
    /// Opened for reading.
    Read,
    /// Opened for writing, or made.
    Change,
    Connect,
    Write,
}

impl Act {
    /// The word on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Read => "read",
            Self::Change => "change",
            Self::Connect => "connect",
            Self::Write => "write",
        }
    }
}
