//! A sandbox that is talked with: one JSON object a line goes in and comes out while it runs.
//!
//! The other side is hostile. A line that cannot be read, is too long, or comes when nobody asked is
//! tampering, and ends the session.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::case::present;
use super::value::{Value, check_bounds};
use super::{GradeRequest, Raised};
use crate::engine::Engine;
use crate::model::error::Error;
use crate::model::outcome::{Outcome, Stream};
use crate::model::request::{Data, RunRequest};

/// One line. A value is refused inside before it takes as much; what is longer is sent by somebody else.
const MAX_LINE_BYTES: usize = 32 << 20;
/// Lines that may wait: the word that the last process has ended, an answer, and the end of its process.
const MAX_WAITING: usize = 3;
/// What is kept of the output of one case.
const MAX_PRINTED_BYTES: usize = 4 << 10;
/// How long a session that has nothing more to do may take to end.
const CLOSING: Duration = Duration::from_secs(2);

/// Why a session is over.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Its run ended, with this outcome.
    Ended(Box<Outcome>),
    /// Nothing came in time.
    Time,
    /// It said what no honest side says.
    Tampered(&'static str),
    /// We failed.
    Ours(Error),
}

/// What the inside says. Which fields are there depends on what it was asked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Told {
    pub n: Option<String>,
    #[serde(deserialize_with = "present")]
    pub value: Option<Value>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub raised: Option<Raised>,
    pub refused: Option<String>,
    pub missing: Option<Vec<String>>,
    pub ended: Option<i32>,
    pub memory: Option<u64>,
    pub loaded: Option<bool>,
    pub names: Option<Vec<String>>,
    pub threads: Option<bool>,
    pub failed: Option<Raised>,
    pub changed: Option<Vec<Value>>,
    pub passed: Option<bool>,
    #[serde(rename = "do")]
    pub act: Option<String>,
    pub args: Option<Vec<Value>>,
}

type Running<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send + 'a>>;

/// A live sandbox.
pub(super) struct Session<'a> {
    to: Option<mpsc::Sender<Vec<u8>>>,
    inbox: Arc<Mutex<Inbox>>,
    run: Option<Running<'a>>,
    /// The process of the last case has answered and was not yet seen to end.
    pub expects_end: bool,
}

#[derive(Default)]
struct Inbox {
    unfinished: Vec<u8>,
    lines: VecDeque<Vec<u8>>,
    tampered: Option<&'static str>,
    printed: Vec<u8>,
}

impl Inbox {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stderr {
            let room = MAX_PRINTED_BYTES.saturating_sub(self.printed.len()).min(bytes.len());
            self.printed.extend_from_slice(&bytes[..room]);
            return;
        }
        let mut rest = bytes;
        while self.tampered.is_none() && !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
            if self.unfinished.len() + line.len() > MAX_LINE_BYTES {
                self.tampered = Some("a line on the channel is longer than any answer");
            } else if end.is_some() && self.lines.len() >= MAX_WAITING {
                self.tampered = Some("more was written to the channel than was asked for");
            } else {
                self.unfinished.extend_from_slice(line);
                if end.is_some() {
                    self.lines.push_back(std::mem::take(&mut self.unfinished));
                }
            }
            rest = after;
        }
        if self.tampered.is_some() {
            self.lines.clear();
            self.unfinished = Vec::new();
        }
    }
}

impl<'a> Session<'a> {
    /// Starts one; nothing is waited for yet.
    pub(super) fn start(engine: &'a Engine, request: RunRequest) -> Result<Self, Error> {
        let run = engine.prepare(request)?;
        let (to, input) = mpsc::channel(1);
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let heard = Arc::clone(&inbox);
        let run = Box::pin(async move {
            let mut sink = |stream, bytes: &[u8]| lock(&heard).take(stream, bytes);
            run.converse(input, &mut sink).await
        });
        Ok(Self { to: Some(to), inbox, run: Some(run), expects_end: false })
    }

    /// Says something and hears one answer.
    pub(super) async fn ask(
        &mut self,
        message: &impl Serialize,
        deadline: Instant,
    ) -> Result<Told, Stopped> {
        self.tell(message)?;
        self.hear(deadline).await
    }

    /// Says something. There is room for it: nothing is said before the last was heard.
    pub(super) fn tell(&mut self, message: &impl Serialize) -> Result<(), Stopped> {
        if lock(&self.inbox).lines.len() > usize::from(self.expects_end) {
            return Err(Stopped::Tampered(
                "something was written to the channel before it was asked",
            ));
        }
        let broken = |error: serde_json::Error| {
            Stopped::Ours(Error::Backend { operation: "write a case", source: error.into() })
        };
        let mut json = serde_json::to_vec(message).map_err(broken)?;
        json.push(b'\n');
        if let Some(to) = &self.to {
            // Closed: the run is over, which is what is heard next.
            to.try_send(json).ok();
        }
        Ok(())
    }

    /// The next line, read.
    pub(super) async fn hear(&mut self, deadline: Instant) -> Result<Told, Stopped> {
        let line = self.line(deadline).await?;
        // Who sends other lines than ours was not asked.
        let strange = Stopped::Tampered("what was written to the channel is no answer");
        if check_bounds(&line).is_err() {
            return Err(strange);
        }
        serde_json::from_slice(&line).map_err(|_| strange)
    }

    async fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, Stopped> {
        let next = poll_fn(|context| {
            let ended = match &mut self.run {
                Some(run) => run.as_mut().poll(context),
                None => Poll::Ready(Err(Error::Lost { what: "it ended before" })),
            };
            let mut inbox = lock(&self.inbox);
            if let Some(why) = inbox.tampered {
                return Poll::Ready(Err(Stopped::Tampered(why)));
            }
            match (inbox.lines.pop_front(), ended) {
                (Some(line), Poll::Pending) => Poll::Ready(Ok(line)),
                (Some(line), Poll::Ready(ended)) => {
                    // Its end is told when somebody asks for more.
                    self.run = Some(Box::pin(std::future::ready(ended)));
                    Poll::Ready(Ok(line))
                }
                (None, Poll::Pending) => Poll::Pending,
                (None, Poll::Ready(Ok(outcome))) => {
                    self.run = None;
                    Poll::Ready(Err(Stopped::Ended(Box::new(outcome))))
                }
                (None, Poll::Ready(Err(error))) => {
                    self.run = None;
                    Poll::Ready(Err(Stopped::Ours(error)))
                }
            }
        });
        timeout_at(deadline, next).await.unwrap_or(Err(Stopped::Time))
    }

    /// Hears that the process of the last case has ended, if that is still to come.
    pub(super) async fn hear_last_end(&mut self, deadline: Instant) -> Result<(), Stopped> {
        if !std::mem::take(&mut self.expects_end) {
            return Ok(());
        }
        match self.hear(deadline).await? {
            Told { ended: Some(_), n: None, .. } => Ok(()),
            _ => Err(Stopped::Tampered("a case was answered twice")),
        }
    }

    /// What was printed since this was last asked.
    pub(super) fn printed(&mut self) -> String {
        let bytes = std::mem::take(&mut lock(&self.inbox).printed);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Lets it end, and says how that went if it is known.
    pub(super) async fn close(mut self) -> Option<Outcome> {
        self.to = None;
        let deadline = Instant::now() + CLOSING;
        for _ in 0..=MAX_WAITING {
            match self.line(deadline).await {
                Err(Stopped::Ended(outcome)) => return Some(*outcome),
                Ok(_) => {} // what it still had to say
                Err(_) => return None,
            }
        }
        None
    }
}

fn lock(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run of one of our own programs beside which `files` lie.
pub(super) fn run_request(
    request: &GradeRequest,
    program: String,
    files: BTreeMap<String, Data>,
    left: Duration,
) -> RunRequest {
    let mut limits = request.limits.clone();
    // Cases have clocks of their own; this one holds when everything else fails.
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    limits.wall_ms = Some(left_ms.saturating_add(1000));
    limits.output_bytes = Some(1 << 10); // the channel is not kept
    RunRequest {
        code: Some(program),
        file_name: Some(INSIDE.to_owned()),
        language: Some("python".to_owned()),
        files,
        level: request.level,
        limits,
        labels: request.labels.clone(),
        start: request.start,
        ..RunRequest::default()
    }
}

/// The name of our own program beside a candidate.
pub(super) const INSIDE: &str = "belljar_inside.py";

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(chunks: &[&[u8]]) -> Inbox {
        let mut inbox = Inbox::default();
        chunks.iter().for_each(|chunk| inbox.take(Stream::Stdout, chunk));
        inbox
    }

    #[test]
    fn lines_are_put_together_from_what_is_read() {
        let inbox = inbox(&[b"{\"a\":", b"1}\n{\"b\"", b":2}\n"]);
        assert_eq!(inbox.lines, [b"{\"a\":1}\n".to_vec(), b"{\"b\":2}\n".to_vec()]);
        assert_eq!(inbox.tampered, None);
    }

    #[test]
    fn a_flood_is_tampering_and_costs_no_memory() {
        let many = inbox(&[&b"1\n".repeat(MAX_WAITING + 1)]);
        assert!(many.tampered.is_some() && many.lines.is_empty());
        let chunk = vec![b'x'; 1 << 20];
        let mut long = Inbox::default();
        for _ in 0..100 {
            long.take(Stream::Stdout, &chunk);
        }
        assert!(long.tampered.is_some() && long.unfinished.capacity() == 0);
        let mut loud = Inbox::default();
        for _ in 0..10 {
            loud.take(Stream::Stderr, &chunk);
        }
        assert_eq!(loud.printed.len(), MAX_PRINTED_BYTES);
    }
}
