//! What clients and the keeper of a living sandbox say to each other, over the socket in its directory.
//!
//! One packet is one line of JSON; what follows the line's end are bytes for an exec's input. Descriptors travel beside it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::egress::{Reached, Refused, Rule};
use crate::layer::Check;
use crate::plan::Plan;
use crate::redact::Patterns;
use crate::report::{Failed, Report};

/// The name of the socket in a sandbox's directory.
pub const SOCKET: &str = "keeper.sock";
/// Where execs are recorded, in a sandbox's directory.
pub const EXECS: &str = "execs";
/// What was found of its layers when it was raised.
pub const VERIFIED: &str = "verified.json";
/// Why the sandbox ended.
pub const ENDED: &str = "ended.json";
/// In the directory of an exec: what was asked for, how it ended, what it was refused.
pub const EXEC_BEGUN: &str = "exec.json";
pub const EXEC_ENDED: &str = "end.json";
pub const EXEC_EVENTS: &str = "events.jsonl";

/// The largest packet, and how much of it may be input.
pub const MAX_PACKET_BYTES: usize = 96 << 10;
pub const MAX_INPUT_BYTES: usize = 64 << 10;
/// Execs that run at once in one sandbox.
pub const MAX_EXECS: usize = 64;
/// Ended execs whose records are kept; the oldest go first.
pub const MAX_KEPT: usize = 256;
/// What all ended execs of a sandbox may keep of their output on the host's disk; the oldest go first.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;
/// Clients at once.
pub const MAX_CLIENTS: usize = 64;
/// File agents at once.
pub const MAX_AGENTS: usize = 16;

/// What a keeper stands a sandbox up from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LivingPlan {
    /// Of every exec in it, but for its program.
    pub plan: Plan,
    /// The filter of file agents, in the form of [`crate::plan::Lockdown::filter`]: what they need and nothing else.
    pub agent_filter: Vec<u64>,
    pub directory: PathBuf,
    pub idle_ms: Option<u64>,
    /// Milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// Values in its variables that no honest program says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decoys: Vec<String>,
}

/// One packet of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Comes back with the answer.
    pub id: u64,
    pub ask: Ask,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Start a program: the descriptor is a sealed memory that holds an [`Order`].
    Exec,
    /// The bytes after the line are for its input. As many as fit are taken.
    Input {
        exec: String,
    },
    CloseInput {
        exec: String,
    },
    Resize {
        exec: String,
        rows: u16,
        columns: u16,
    },
    /// To the process group of its program; 9 ends its whole tree.
    Signal {
        exec: String,
        signal: i32,
    },
    /// Tell how far its output reaches from now on, and its end.
    Follow {
        exec: String,
    },
    Unfollow {
        exec: String,
    },
    List,
    Usage,
    Freeze,
    Thaw,
    /// Start a file agent; its socket comes with the answer.
    Agent,
    /// What the descriptor's memory holds, [`Hidden`], is to be hidden in all output from now on.
    Hide,
    /// Placeholders stand for other values from now on, which the descriptor's memory holds.
    Renew,
    /// From now on this may be reached: the descriptor holds an [`crate::egress::EgressPlan`].
    Egress,
    /// What may be reached, what was, and what was refused: a [`NetworkState`] in the answer's descriptor.
    Network,
    /// It is in use.
    Touch,
    /// Its host name is another from now on.
    Rename {
        name: String,
    },
    Stop {
        grace_ms: u64,
    },
    Kill,
}

/// What must not be seen.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hidden {
    /// Values that programs have.
    pub inside: Vec<String>,
    /// Values that they do not have, and must not find by guessing at pieces of them.
    pub outside: Vec<String>,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Hidden({}, {})", self.inside.len(), self.outside.len())
    }
}

/// A program for a sandbox that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub exec: String,
    /// Tried one after the other until one can be executed.
    pub paths: Vec<PathBuf>,
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Variables whose values are written down nowhere and hidden in its output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<(String, String)>,
    /// What is hidden besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
    pub directory: PathBuf,
    pub wall_ms: u64,
    pub cpu_ms: u64,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
    pub keep_stdin: bool,
    /// Written down with it, whatever it is.
    pub note: serde_json::Value,
}

impl Order {
    /// Every variable of the program.
    pub fn variables(&self) -> impl Iterator<Item = &(String, String)> {
        self.environment.iter().chain(&self.secrets)
    }

    /// As it may be written down.
    pub(crate) fn without_secrets(&self, patterns: &Patterns) -> Self {
        let argv = self.argv.iter().map(|word| patterns.hide(word)).collect();
        Self { secrets: Vec::new(), hidden: Vec::new(), argv, ..self.clone() }
    }
}

/// One packet of the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Answer {
        id: u64,
        answer: Answer,
    },
    /// Of an exec that is followed.
    Reach {
        exec: String,
        reach: Reach,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    /// Released, with every layer as it was found.
    Begun {
        checks: Vec<Check>,
    },
    /// Nothing of the program ran.
    Failed(Failed),
    /// So many bytes of input were taken.
    Taken {
        bytes: usize,
    },
    List {
        execs: Vec<String>,
    },
    Usage(Usage),
    /// Not done, and why.
    Refused {
        why: Refusal,
        message: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// There is no such exec, or it has ended.
    Unknown,
    /// All that may run runs.
    Full,
    /// It is frozen.
    Frozen,
    /// It is about to end.
    Ending,
    /// This host, or this exec, has no such thing.
    Unable,
    /// The request cannot be understood.
    Wrong,
}

/// How far an exec has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Bytes that stdout and stderr have brought.
    pub output: [u64; 2],
    /// How it ended is on the disk.
    pub ended: bool,
}

/// What is used now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_us: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub inodes: Option<u64>,
    pub execs: u64,
    pub frozen: bool,
}

/// What is known of a sandbox's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkState {
    pub rules: Vec<Rule>,
    pub refused: Vec<Refused>,
    pub reached: Vec<Reached>,
}

/// What `exec.json` holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    pub order: Order,
    /// Milliseconds since 1970.
    pub started_ms: u64,
}

/// What `end.json` holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEnd {
    pub report: Report,
    /// Bytes that each stream had brought by then.
    pub output: [u64; 2],
    /// Bytes after those that could not be written down: the host's disk was full.
    pub lost: [u64; 2],
    /// Set when the files of the sandbox had outgrown their bound.
    pub over: Option<Over>,
    pub time_ms: u64,
}

/// What the files of a sandbox had outgrown, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    Bytes { used: u64 },
    Inodes { used: u64 },
}

/// What `ended.json` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxEnd {
    pub reason: EndReason,
    pub time_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    Stopped,
    Killed,
    /// Nothing ran in it for so long.
    Idle,
    Expired,
    /// Init died, and all in it.
    Lost,
}

/// A request in the form in which it travels.
pub fn packet(request: &impl Serialize, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut packet = serde_json::to_vec(request).ok()?;
    packet.push(b'\n');
    packet.extend(bytes);
    (packet.len() <= MAX_PACKET_BYTES).then_some(packet)
}

/// The reverse of [`packet`]: what was said, and the bytes after it.
pub fn parse<T: serde::de::DeserializeOwned>(packet: &[u8]) -> Option<(T, &[u8])> {
    let end = packet.iter().position(|byte| *byte == b'\n')?;
    Some((serde_json::from_slice(&packet[..end]).ok()?, &packet[end + 1..]))
}

/// Whether a name can be an exec's: it is a directory's too.
pub fn is_exec_id(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_survives_the_wire_with_any_bytes_behind_it() {
        let request = Request { id: 7, ask: Ask::Input { exec: "A\nB".to_owned() } };
        let bytes = b"\n\0raw\n";
        let packet = packet(&request, bytes).unwrap();
        assert_eq!(parse::<Request>(&packet), Some((request, &bytes[..])));
        assert_eq!(parse::<Request>(b"{}\n"), None);
        assert_eq!(parse::<Request>(b"no end"), None);
    }

    #[test]
    fn what_is_too_long_is_no_packet() {
        let request = Request { id: 7, ask: Ask::Usage };
        assert!(packet(&request, &vec![0; MAX_INPUT_BYTES]).is_some());
        assert!(packet(&request, &vec![0; MAX_PACKET_BYTES]).is_none());
    }

    #[test]
    fn an_execs_name_is_never_a_path() {
        assert!(is_exec_id("01J9ZZ-a"));
        for bad in ["", ".", "..", "a/b", "a.b", "ü", &"a".repeat(65)] {
            assert!(!is_exec_id(bad), "{bad}");
        }
    }
}
