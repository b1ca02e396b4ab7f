//! Security events: what was tried and refused, which limits were met, and how much that weighs.
//!
//! An event is evidence, so each says when, who, what, which rule refused it, and the exact change that
//! would allow it. Its words are in [`super::wording`], in one place.

use std::collections::BTreeSet;
use std::fmt;

use belljar_jail::tried::WEIGHTS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::wording;

/// Reasons that a risk is given with. What weighs most comes first, so nothing is lost but repetition.
const MAX_REASONS: usize = 16;

/// Something that was tried and refused, or a limit that was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    pub kind: EventKind,
    pub severity: Severity,
    /// When it was first seen: RFC 3339, UTC, with milliseconds.
    pub time: String,
    /// Who did it, where one process did.
    pub process: Option<Process>,
    /// The system call by name, where it was one.
    pub syscall: Option<String>,
    /// What was attempted or met, with the arguments that matter.
    pub detail: String,
    /// The layer that acted, and the rule of it where there are several.
    pub rule: String,
    /// The change that would allow it, or why nothing would.
    pub fix: String,
    /// How often the same was seen.
    pub count: u64,
}

impl Event {
    /// The same attempt by the same means, whoever made it and however often.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.kind, &self.syscall, &self.detail) == (other.kind, &other.syscall, &other.detail)
    }
}

/// One process of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// As the program itself sees it.
    pub pid: u32,
    /// Its command line, or its beginning: arguments joined by blanks, what is no text escaped.
    pub command: String,
    /// The process that started it; `None` when that is outside, or gone.
    pub parent: Option<u32>,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A system call that the level, or the request, refuses.
    SyscallBlocked,
    ResourceLimitExceeded,
    /// An attempt on the boundary itself.
    EscapeAttempt,
    /// An ordinary permission that the program does not have.
    PermissionDenied,
    /// A pattern over time.
    SuspiciousBehavior,
    TimeoutExceeded,
}

impl EventKind {
    pub const ALL: [Self; 6] = [
        Self::SyscallBlocked,
        Self::ResourceLimitExceeded,
        Self::EscapeAttempt,
        Self::PermissionDenied,
        Self::SuspiciousBehavior,
        Self::TimeoutExceeded,
    ];

    /// The word on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SyscallBlocked => "syscall_blocked",
            Self::ResourceLimitExceeded => "resource_limit_exceeded",
            Self::EscapeAttempt => "escape_attempt",
            Self::PermissionDenied => "permission_denied",
            Self::SuspiciousBehavior => "suspicious_behavior",
            Self::TimeoutExceeded => "timeout_exceeded",
        }
    }
}

/// How grave one event is by itself, or a finding in code if it means what it looks like.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// What innocent software does: a runtime that asks what the kernel has.
    Info,
    /// Refused, or over a limit, and of no consequence.
    Low,
    /// Nothing that ordinary programs do; it may be a mistake.
    Medium,
    /// An attempt on the boundary.
    High,
    /// An attempt that would have taken the host.
    Critical,
}

impl Severity {
    /// From what innocent programs do upwards.
    pub(crate) const ALL: [Self; WEIGHTS] =
        [Self::Info, Self::Low, Self::Medium, Self::High, Self::Critical];

    /// As the filter and the keeper know it, who know no words.
    pub(crate) const fn weight(self) -> u8 {
        match self {
            Self::Info => 0,
            Self::Low => 1,
            Self::Medium => 2,
            Self::High => 3,
            Self::Critical => 4,
        }
    }

    pub(crate) fn of_weight(weight: u8) -> Option<Self> {
        Self::ALL.get(usize::from(weight)).copied()
    }

    /// The word on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// What a whole run weighs.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    #[default]
    Low,
    Medium,
    High,
    Critical,
}

/// A risk with its reasons, the gravest first. Low needs none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Weighed {
    pub risk: Risk,
    pub reasons: Vec<String>,
}

impl Risk {
    /// The word on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// Weighs what was attempted. The gravest attempt decides: a thousand harmless ones are harmless, and
    /// one on the host's kernel is not made lighter by what stands beside it.
    pub fn of(events: &[Event]) -> Weighed {
        let risk = events.iter().map(|event| Self::from(event.severity)).max().unwrap_or_default();
        let mut grave: Vec<&Event> =
            events.iter().filter(|event| Self::from(event.severity) > Self::Low).collect();
        grave.sort_by_key(|event| std::cmp::Reverse(event.severity)); // stable: then as they came
        let mut told = BTreeSet::new();
        let reasons = grave
            .into_iter()
            .map(wording::reason)
            .filter(|reason| told.insert(reason.clone()))
            .take(MAX_REASONS)
            .collect();
        Weighed { risk, reasons }
    }
}

impl From<Severity> for Risk {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info | Severity::Low => Self::Low,
            Severity::Medium => Self::Medium,
            Severity::High => Self::High,
            Severity::Critical => Self::Critical,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(severity: Severity, detail: &str) -> Event {
        Event {
            kind: EventKind::EscapeAttempt,
            severity,
            time: "2026-01-02T03:04:05.678Z".into(),
            process: Some(Process { pid: 2, command: "python3 a.py".into(), parent: Some(1) }),
            syscall: Some("mount".into()),
            detail: detail.into(),
            rule: "seccomp".into(),
            fix: "nothing".into(),
            count: 1,
        }
    }

    #[test]
    fn risk_is_that_of_the_gravest_attempt_however_often_the_rest() {
        let harmless = Event { count: 1_000_000, ..event(Severity::Low, "a") };
        assert_eq!(Risk::of(&vec![harmless.clone(); 500]).risk, Risk::Low);
        let weighed =
            Risk::of(&[harmless, event(Severity::High, "b"), event(Severity::Medium, "c")]);
        assert_eq!(weighed.risk, Risk::High);
        assert_eq!(weighed.reasons.len(), 2);
        assert!(weighed.reasons[0].contains('b') && weighed.reasons[1].contains('c'));
    }

    #[test]
    fn no_event_is_a_low_risk_without_reasons() {
        assert_eq!(Risk::of(&[]), Weighed::default());
    }

    #[test]
    fn reasons_are_bounded_and_not_repeated() {
        let same = vec![event(Severity::High, "same"); 100];
        assert_eq!(Risk::of(&same).reasons.len(), 1);
        let many: Vec<Event> =
            (0..100).map(|one| event(Severity::High, &one.to_string())).collect();
        assert_eq!(Risk::of(&many).reasons.len(), MAX_REASONS);
    }

    #[test]
    fn words_on_the_wire_are_those_of_the_names() {
        let json = serde_json::to_value(event(Severity::Critical, "x")).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let wanted =
            ["count", "detail", "fix", "kind", "process", "rule", "severity", "syscall", "time"];
        assert_eq!(
            {
                let mut sorted = names;
                sorted.sort_unstable();
                sorted
            },
            wanted
        );
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for severity in Severity::ALL {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity.name());
            assert_eq!(Severity::of_weight(severity.weight()), Some(severity));
        }
        for risk in [Risk::Low, Risk::Medium, Risk::High, Risk::Critical] {
            assert_eq!(serde_json::to_value(risk).unwrap(), risk.name());
        }
    }
}
