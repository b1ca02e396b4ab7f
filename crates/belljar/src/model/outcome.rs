//! The Outcome: what the caller gets. How the program ended, whose fault it was, what was enforced.

use std::collections::BTreeMap;

use base64::Engine as _;
use belljar_jail::egress::Reached;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::egress::ReachedShape;
use super::event::{Event, Risk};
use super::limits::Used;
use super::receipt::Receipt;
use super::recording::Recording;
use super::screening::Screening;

/// Everything that is known about one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    pub execution_id: String,
    pub verdict: Verdict,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// The bytes that were kept, when they are not text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stderr_base64: Option<String>,
    pub stdout_dropped_bytes: u64,
    pub stderr_dropped_bytes: u64,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub elapsed_ms: f64,
    pub cpu_ms: f64,
    pub memory_peak_bytes: Option<u64>,
    pub processes_peak: Option<u64>,
    pub fault_domain: FaultDomain,
    /// What decided the verdict and the fault domain.
    pub evidence: Vec<Evidence>,
    pub limits: BTreeMap<String, Used>,
    /// What was tried and refused, and the limits that were met, as they came.
    pub events: Vec<Event>,
    /// What the gravest of them weighs, and why.
    pub risk: Risk,
    pub risk_reasons: Vec<String>,
    /// What was reached of the outside: whole numbers for each host and port.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    #[schemars(with = "Vec<ReachedShape>")]
    pub reached: Vec<Reached>,
    /// The timeline, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recording: Option<Recording>,
    pub labels: BTreeMap<String, String>,
    /// Whether the sandbox was made for this run or ahead of it.
    pub start: Start,
    pub receipt: Receipt,
    /// What reading the code found: advice. Left out when there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub screening: Option<Screening>,
}

/// How a run came by its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    Cold,
    Warm,
}

impl Outcome {
    /// The program ran to its own end and said that all is well.
    pub fn ok(&self) -> bool {
        self.verdict == Verdict::Exited { code: 0 }
    }
}

/// How the program ended. Decided by evidence, never by what an exit code looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    Exited { code: i32 },
    Signaled { signal: i32 },
    WallTimeLimit { limit_ms: u64 },
    CpuTimeLimit { limit_ms: u64 },
    MemoryLimit { limit_bytes: u64 },
    OutputLimit { limit_bytes: u64, stream: Stream },
    DiskLimit { limit: DiskLimit },
    SyscallDenied { signal: i32 },
    StartFailed { errno: String },
}

impl Verdict {
    /// The word on the wire.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Exited { .. } => "exited",
            Self::Signaled { .. } => "signaled",
            Self::WallTimeLimit { .. } => "wall_time_limit",
            Self::CpuTimeLimit { .. } => "cpu_time_limit",
            Self::MemoryLimit { .. } => "memory_limit",
            Self::OutputLimit { .. } => "output_limit",
            Self::DiskLimit { .. } => "disk_limit",
            Self::SyscallDenied { .. } => "syscall_denied",
            Self::StartFailed { .. } => "start_failed",
        }
    }
}

/// Which bound on files was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskLimit {
    DiskBytes,
    Inodes,
    FileBytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Who is to blame for a run that did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultDomain {
    /// The program did what it did; this is also the domain of success.
    Program,
    /// The program met a limit of its request.
    Limit,
    /// The program did what its level refuses.
    Policy,
    /// We, or the host: the program is not to be judged by this run.
    Infrastructure,
}

/// One fact and where it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    pub source: String,
    pub found: String,
}

impl Evidence {
    pub(crate) fn new(source: &str, found: impl Into<String>) -> Self {
        Self { source: source.to_owned(), found: found.into() }
    }
}

/// One output stream as kept: its beginning, its end, and how much was between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    pub dropped_bytes: u64,
}

impl Captured {
    /// Text for people and models; where bytes were dropped it says so in a line of its own.
    pub fn text(&self) -> String {
        if self.dropped_bytes == 0 {
            // Decoded as one: a character may lie across the border of the two.
            return String::from_utf8_lossy(&self.kept()).into_owned();
        }
        let head = String::from_utf8_lossy(&self.head);
        let tail = String::from_utf8_lossy(&self.tail);
        format!("{head}\n[belljar: {} bytes dropped here]\n{tail}", self.dropped_bytes)
    }

    /// The kept bytes in base64, when the text is not exactly them.
    pub fn base64(&self) -> Option<String> {
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        let exact = if self.dropped_bytes == 0 {
            is_text(&self.kept())
        } else {
            is_text(&self.head) && is_text(&self.tail)
        };
        (!exact).then(|| base64::engine::general_purpose::STANDARD.encode(self.kept()))
    }

    fn kept(&self) -> Vec<u8> {
        [&self.head[..], &self.tail[..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bytes_are_told_in_the_text() {
        let captured =
            Captured { head: b"begin".to_vec(), tail: b"end".to_vec(), dropped_bytes: 7 };
        assert_eq!(captured.text(), "begin\n[belljar: 7 bytes dropped here]\nend");
        assert_eq!(captured.base64(), None);
    }

    #[test]
    fn a_character_across_the_border_of_head_and_tail_is_whole() {
        let (head, tail) = "€".as_bytes().split_at(1);
        let kept = Captured { head: head.to_vec(), tail: tail.to_vec(), dropped_bytes: 0 };
        assert_eq!((kept.text().as_str(), kept.base64()), ("€", None));
        let cut = Captured { dropped_bytes: 3, ..kept };
        assert!(cut.base64().is_some(), "the text cannot be exact");
    }

    #[test]
    fn bytes_that_are_no_text_have_a_lossless_form() {
        let captured = Captured { head: vec![0xff, 0xfe], ..Captured::default() };
        assert_eq!(captured.base64().as_deref(), Some("//4="));
    }

    #[test]
    fn a_verdict_is_named_as_it_is_written() {
        let verdict = Verdict::MemoryLimit { limit_bytes: 1 };
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["kind"], verdict.kind());
    }
}
