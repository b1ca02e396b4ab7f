//! A sandbox that is talked with: messages go in and come out while it runs, each after its length in four bytes.
//! Most are one JSON object; what is short and plain has a shorter form.
//!
//! The other side is hostile. A message that cannot be read, is too long, or comes when nobody asked is
//! tampering, and ends the session.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::case::present;
use super::instructions::Counts;
use super::integer::Integer;
use super::lanes::Shared;
use super::marshal;
use super::value::{Value, check_bounds};
use super::{GradeRequest, Raised};
use crate::model::error::Error;
use crate::model::outcome::{Outcome, Stream};
use crate::model::request::{Data, RunRequest};

/// One message. A value is refused inside before it takes as much; what is longer is sent by somebody else.
const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// The bytes of its length.
const HEAD: usize = 4;
/// Messages that may wait: an answer, the end of its process, and one for the word that came between.
const MAX_WAITING: usize = 3;
/// The first byte of messages that are not JSON: what to load, that it is loaded, a call, one that may come in pieces, its
/// value, the end of a process.
pub(super) const LOAD: u8 = b'o';
const LOADED: u8 = b'l';
pub(super) const CALL: u8 = b'c';
const LONG_CALL: u8 = b'C';
/// What is written to a pipe in one piece.
const ONE_PIECE: usize = 4096;
const VALUE: u8 = b'v';
const END: u8 = b'e';
/// Characters of the word that only one case's process is given.
pub(super) const NONCE: usize = 24;
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

impl Told {
    /// Reads a message; `None` if no honest side sends such a one.
    fn read(message: &[u8]) -> Option<Self> {
        match message.split_first()? {
            (&VALUE, rest) => {
                let (nonce, rest) = rest.split_first_chunk::<{ NONCE }>()?;
                let (memory, value) = rest.split_first_chunk()?;
                let value = marshal::read(value)?;
                Some(Self {
                    n: Some(String::from_utf8(nonce.to_vec()).ok()?),
                    memory: Some(u64::from_le_bytes(*memory)),
                    kind: Some(value.type_name().to_owned()),
                    value: Some(value),
                    ..Self::default()
                })
            }
            (&LOADED, rest) => {
                let Some(Value::List(names)) = marshal::read(rest) else { return None };
                let name = |one| if let Value::Str(name) = one { Some(name) } else { None };
                let names = names.into_iter().map(name).collect::<Option<_>>()?;
                Some(Self { loaded: Some(true), names: Some(names), ..Self::default() })
            }
            (&END, rest) => {
                let Some(Value::List(pair)) = marshal::read(rest) else { return None };
                let [Value::Int(Integer::Small(status)), Value::Int(Integer::Small(kib))] =
                    pair.as_slice()
                else {
                    return None;
                };
                let status = ExitStatus::from_raw(i32::try_from(*status).ok()?);
                let signal = status.signal().map(|signal| -signal);
                Some(Self {
                    ended: Some(signal.or(status.code()).unwrap_or(-1)),
                    memory: Some(u64::try_from(*kib).ok()?.saturating_mul(1024)),
                    ..Self::default()
                })
            }
            _ => {
                check_bounds(message).ok()?;
                serde_json::from_slice(message).ok()
            }
        }
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send + 'a>>;

/// A live sandbox.
pub(super) struct Session<'a> {
    to: Option<mpsc::Sender<Vec<u8>>>,
    inbox: Arc<Mutex<Inbox>>,
    run: Option<Running<'a>>,
    /// Instructions, counted where somebody asked for it before it began.
    pub counts: Counts,
}

#[derive(Default)]
struct Inbox {
    unfinished: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
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
        if self.tampered.is_some() {
            return;
        }
        self.unfinished.extend_from_slice(bytes);
        while let Some((head, rest)) = self.unfinished.split_first_chunk::<HEAD>() {
            let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
            if length > MAX_MESSAGE_BYTES {
                return self.tamper("a message on the channel is longer than any answer");
            }
            let Some(message) = rest.get(..length) else { return };
            if self.messages.len() >= MAX_WAITING {
                return self.tamper("more was written to the channel than was asked for");
            }
            self.messages.push_back(message.to_vec());
            self.unfinished.drain(..HEAD + length);
        }
    }

    fn tamper(&mut self, why: &'static str) {
        *self = Self {
            tampered: Some(why),
            printed: std::mem::take(&mut self.printed),
            ..Self::default()
        };
    }
}

impl<'a> Session<'a> {
    /// Starts one; nothing is waited for yet. `candidate` is what its record shows as its code; of hidden cases it does not
    /// show what was said.
    pub(super) fn start(
        shared: &'a Shared,
        request: RunRequest,
        candidate: Option<&str>,
        hidden: bool,
    ) -> Result<Self, Error> {
        let mut run = shared.engine.prepare(request)?.by(shared.caller.clone());
        if shared.conceals(hidden) {
            run = run.recorded_without_words();
        }
        if let Some(code) = candidate {
            run = run.recorded_with(code);
        }
        let (to, input) = mpsc::channel(1);
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let heard = Arc::clone(&inbox);
        let counts = Counts::default();
        let counting = counts.clone();
        let run = Box::pin(async move {
            let mut sink = |stream, bytes: &[u8]| lock(&heard).take(stream, bytes);
            run.converse(input, &mut sink, &mut |keeper| counting.begin(keeper)).await
        });
        Ok(Self { to: Some(to), inbox, run: Some(run), counts })
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
        let broken = |error: serde_json::Error| {
            Stopped::Ours(Error::Backend { operation: "write a case", source: error.into() })
        };
        let mut whole = vec![0; HEAD];
        serde_json::to_writer(&mut whole, message).map_err(broken)?;
        self.send(whole)
    }

    /// Says what is in Python's own form, after its sign.
    pub(super) fn tell_plain(&mut self, plain: &[u8]) -> Result<(), Stopped> {
        let mut whole = [&[0; HEAD], plain].concat();
        if whole[HEAD] == CALL && whole.len() > ONE_PIECE {
            whole[HEAD] = LONG_CALL;
        }
        self.send(whole)
    }

    fn send(&mut self, mut whole: Vec<u8>) -> Result<(), Stopped> {
        if !lock(&self.inbox).messages.is_empty() {
            return Err(Stopped::Tampered(
                "something was written to the channel before it was asked",
            ));
        }
        let length = u32::try_from(whole.len() - HEAD).unwrap_or(u32::MAX);
        whole[..HEAD].copy_from_slice(&length.to_le_bytes());
        if let Some(to) = &self.to {
            // Closed: the run is over, which is what is heard next.
            to.try_send(whole).ok();
        }
        Ok(())
    }

    /// The next message, read.
    pub(super) async fn hear(&mut self, deadline: Instant) -> Result<Told, Stopped> {
        let message = self.message(deadline).await?;
        // Who sends other messages than ours was not asked.
        Told::read(&message)
            .ok_or(Stopped::Tampered("what was written to the channel is no answer"))
    }

    async fn message(&mut self, deadline: Instant) -> Result<Vec<u8>, Stopped> {
        let next = poll_fn(|context| {
            let ended = match &mut self.run {
                Some(run) => run.as_mut().poll(context),
                None => Poll::Ready(Err(Error::Lost { what: "it ended before" })),
            };
            let mut inbox = lock(&self.inbox);
            if let Some(why) = inbox.tampered {
                return Poll::Ready(Err(Stopped::Tampered(why)));
            }
            match (inbox.messages.pop_front(), ended) {
                (Some(message), Poll::Pending) => Poll::Ready(Ok(message)),
                (Some(message), Poll::Ready(ended)) => {
                    // Its end is told when somebody asks for more.
                    self.run = Some(Box::pin(std::future::ready(ended)));
                    Poll::Ready(Ok(message))
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

    /// Hears that the process that has answered is gone, with all that it left; and the memory that it had.
    pub(super) async fn hear_end(&mut self, deadline: Instant) -> Result<Option<u64>, Stopped> {
        match self.hear(deadline).await? {
            Told { ended: Some(_), n: None, memory, .. } => Ok(memory),
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
            match self.message(deadline).await {
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
    fn messages_are_put_together_from_what_is_read() {
        let inbox = inbox(&[b"\x02\0", b"\0\0{", b"}\x01\0\0\0\n\x05\0\0\0abc"]);
        assert_eq!(inbox.messages, [b"{}".to_vec(), b"\n".to_vec()]);
        assert_eq!((inbox.tampered, inbox.unfinished.len()), (None, 7));
    }

    #[test]
    fn a_flood_is_tampering_and_costs_no_memory() {
        let many = inbox(&[&b"\x01\0\0\0x".repeat(MAX_WAITING + 1)]);
        assert!(many.tampered.is_some() && many.messages.is_empty());
        let chunk = vec![b'x'; 1 << 20]; // the length of a message is in it, and far too long
        let long = inbox(&[&chunk]);
        assert!(long.tampered.is_some() && long.unfinished.capacity() == 0);
        let mut loud = Inbox::default();
        for _ in 0..10 {
            loud.take(Stream::Stderr, &chunk);
        }
        assert_eq!(loud.printed.len(), MAX_PRINTED_BYTES);
    }

    #[test]
    fn only_what_an_honest_side_says_is_read() {
        let nonce = "0123456789abcdef01234567";
        let value =
            Told::read(&[b"v", nonce.as_bytes(), &7_u64.to_le_bytes(), b"T"].concat()).unwrap();
        assert_eq!((value.n.as_deref(), value.memory), (Some(nonce), Some(7)));
        assert_eq!((value.value, value.kind.as_deref()), (Some(Value::Bool(true)), Some("bool")));
        let end = |status: i32| {
            let pair = [b"e[\x02\0\0\0i", &status.to_le_bytes()[..], b"i\x07\0\0\0"].concat();
            let told = Told::read(&pair).unwrap();
            assert_eq!(told.memory, Some(7 << 10));
            told.ended
        };
        assert_eq!((end(3 << 8), end(9), end(0)), (Some(3), Some(-9), Some(0)));
        let loaded = Told::read(b"l[\x01\0\0\0u\x03\0\0\0sum").unwrap();
        assert_eq!((loaded.loaded, loaded.names), (Some(true), Some(vec!["sum".to_owned()])));
        let wrong: [&[u8]; 8] =
            [b"", b"v", b"vshort", b"e\0\0\0\0", b"x", b"{\"strange\":1}", b"l", b"l[\x01\0\0\0N"];
        for message in wrong {
            assert!(Told::read(message).is_none(), "{message:?}");
        }
    }
}
