//! What travels: the events of a stream, and the words that both ends agree on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar::grade::{CaseResult, Grade};
use belljar::{Data, Outcome, Stream};
use serde::{Deserialize, Serialize};

use crate::problem::Problem;

pub const JSON: &str = "application/json";
pub const NDJSON: &str = "application/x-ndjson";
pub const EVENT_STREAM: &str = "text/event-stream";
pub const PROBLEM: &str = "application/problem+json";

/// Where one request is run.
pub const RUNS: &str = "/v1/runs";
/// Where many are run.
pub const BATCHES: &str = "/v1/batches";
/// Numbers of all recorded runs, and of the pool.
pub const STATS: &str = "/v1/stats";
/// Where a candidate is graded.
pub const GRADES: &str = "/v1/grades";
/// Where an evolution is begun; its id follows.
pub const EVOLUTIONS: &str = "/v1/evolutions";
/// Where sandboxes that stay are made; the name of one follows.
pub const SANDBOXES: &str = "/v1/sandboxes";
/// What the pool holds.
pub const POOL: &str = "/v1/pool";

/// The codes of problems, and what each means.
pub const PROBLEMS: &str = "/v1/problems";

/// The longest request: standard input of 64 MiB is the largest thing that one may hold.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// One event of a stream, as a client reads it. The last one is an outcome or an error, so a stream
/// without either was cut short.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    Stdout {
        data: Data,
    },
    Stderr {
        data: Data,
    },
    /// Something was tried and refused; the same again is only counted, in the outcome.
    Event(belljar::Event),
    Outcome(Box<Outcome>),
    Error(Problem),
}

/// The same as it is written, without a copy of what it says.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Told<'a> {
    Stdout { data: Chunk<'a> },
    Stderr { data: Chunk<'a> },
    Event(&'a belljar::Event),
    Outcome(&'a Outcome),
    Error(&'a Problem),
}

impl<'a> Told<'a> {
    pub(crate) fn output(stream: Stream, bytes: &'a [u8]) -> Self {
        let data = match std::str::from_utf8(bytes) {
            Ok(text) => Chunk::Text(text),
            Err(_) => Chunk::Binary { base64: STANDARD.encode(bytes) },
        };
        match stream {
            Stream::Stdout => Self::Stdout { data },
            Stream::Stderr => Self::Stderr { data },
        }
    }

    /// The name of the event, for streams that carry it outside of the data.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Stdout { .. } => "stdout",
            Self::Stderr { .. } => "stderr",
            Self::Event(_) => "event",
            Self::Outcome(_) => "outcome",
            Self::Error(_) => "error",
        }
    }
}

/// One event of a grade, as a client reads it. The last one is a grade or an error.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GradeEvent {
    Case(Box<CaseResult>),
    Grade(Box<Grade>),
    Error(Problem),
}

/// The same as it is written.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum GradeTold<'a> {
    Case(&'a CaseResult),
    Grade(&'a Grade),
    Error(&'a Problem),
}

impl GradeTold<'_> {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Case(_) => "case",
            Self::Grade(_) => "grade",
            Self::Error(_) => "error",
        }
    }
}

/// Output in the two forms that [`Data`] reads.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Chunk<'a> {
    Text(&'a str),
    Binary { base64: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_read() {
        for bytes in [&b"text\n\x00"[..], &[0xff, 0x80][..], "é€".as_bytes()] {
            let json = serde_json::to_string(&Told::output(Stream::Stderr, bytes)).unwrap();
            let read: Event = serde_json::from_str(&json).unwrap();
            assert_eq!(read, Event::Stderr { data: bytes.into() }, "{json}");
        }
        let problem = Problem::field("code", "is missing");
        let json = serde_json::to_string(&Told::Error(&problem)).unwrap();
        assert!(json.starts_with(r#"{"type":"error","status":400"#), "{json}");
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), Event::Error(problem));
    }
}
