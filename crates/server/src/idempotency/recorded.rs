//! An answer that is kept while it is made: whoever asks for it reads from its beginning and then along.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use belljar::Error;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::watch;

use super::kept::{Answer, AnswerHead};
use crate::http::lines::Outbox;
use crate::problem::Problem;
use crate::wire::EVENT_STREAM;

/// Kept of one answer. A longer one reaches its first reader whole, and nobody after.
const MOST_BYTES: usize = 4 << 20;

/// The codes of problems that are told before anything was begun, and may be gone at the next try.
const NOT_BEGUN: [&str; 8] = [
    "timeout",
    "busy",
    "rate_limited",
    "budget_spent",
    "quota",
    "unavailable",
    "draining",
    "overloaded",
];

#[derive(Debug, Default)]
struct State {
    head: Option<(StatusCode, HeaderMap, Option<Arc<Problem>>)>,
    /// From the `first`-th piece on.
    pieces: VecDeque<Bytes>,
    first: usize,
    bytes: usize,
    end: Option<End>,
    /// More came than is kept.
    overflowed: bool,
    /// The piece that the first reader wants next; nothing once it is gone.
    reader: Option<usize>,
    /// Its caller wants no more of it; and that was done.
    is_to_end: bool,
    is_ended: bool,
}

/// What is to be kept of something that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Came {
    /// It was refused, and nothing was begun: the same request may be tried, not only asked for.
    NotBegun,
    /// The end of the server broke it off after it had begun.
    BrokenOff,
    /// All of the answer, or nothing of one that is too long or was cut off.
    Answer(Option<Answer>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// Who made it broke off.
    Cut,
}

/// An answer, as far as it is made.
#[derive(Debug)]
pub(super) struct Recorded {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Default for Recorded {
    fn default() -> Self {
        let state = State { reader: Some(0), ..State::default() };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }
}

/// Says that the answer was cut off, unless it came to its end.
struct Guard<'a>(&'a Recorded);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.end = state.end.or(Some(End::Cut)));
    }
}

impl Recorded {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, act: impl FnOnce(&mut State)) {
        act(&mut self.lock());
        self.changed.send_replace(());
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(super) fn goes_on(&self) -> bool {
        self.lock().end.is_none()
    }

    /// Has it ended, and waits for that; says whether it went on until now.
    pub(super) async fn end(&self) -> bool {
        let mut went_on = false;
        self.change(|state| {
            went_on = state.end.is_none();
            state.is_to_end = true;
        });
        self.until(|state| (state.is_ended || state.end == Some(End::Whole)).then_some(())).await;
        went_on
    }

    /// Says that it was ended.
    pub(super) fn ended(&self) {
        self.change(|state| {
            state.end = state.end.or(Some(End::Cut));
            state.is_ended = true;
        });
    }

    /// Until its caller wants no more of it.
    pub(super) async fn is_to_end(&self) {
        self.until(|state| state.is_to_end.then_some(())).await;
    }

    /// Waits until something is so.
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = look(&mut self.lock()) {
                return found;
            }
            // The sender is ours, so it cannot be gone.
            changed.changed().await.ok();
        }
    }

    /// One that was made before, whole.
    pub(super) fn whole(answer: Answer) -> Self {
        let Answer { head: AnswerHead { status, headers, problem }, body } = answer;
        let read = |(name, value): (String, String)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
        };
        let headers: HeaderMap = headers.into_iter().filter_map(read).collect();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let bytes = body.len();
        let state = State {
            head: Some((status, headers, problem.map(Arc::new))),
            pieces: [body].into_iter().filter(|piece| !piece.is_empty()).collect(),
            bytes,
            end: Some(End::Whole),
            ..State::default()
        };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    /// Carries out the request and keeps its answer as it comes. Beyond what is kept the body goes at the pace of the
    /// first reader. Before anybody hears the end, `keep` is given what came of it.
    pub(super) async fn record(
        &self,
        work: impl Future<Output = Response>,
        keep: impl AsyncFnOnce(Came),
    ) {
        let guard = Guard(self);
        let mut response = work.await;
        let problem = response.extensions_mut().remove::<Arc<Problem>>();
        let written = response.extensions_mut().remove::<Outbox>();
        let kind = problem.as_ref().map(|problem| problem.kind.clone());
        let (parts, mut body) = response.into_parts();
        self.change(|state| state.head = Some((parts.status, parts.headers, problem)));
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                // Nobody can be told all of it, but that it has ended is known.
                return keep(Came::Answer(None)).await;
            };
            let Ok(piece) = frame.into_data() else { continue };
            self.change(|state| state.push(piece));
            self.until(|state| {
                state.let_go();
                let much = state.overflowed && state.bytes > MOST_BYTES && state.reader.is_some();
                (!much).then_some(())
            })
            .await;
        }
        let is_broken_off = written.is_some_and(|outbox| outbox.is_broken_off());
        let came = match kind.as_deref() {
            Some(kind) if NOT_BEGUN.contains(&kind) => Came::NotBegun,
            Some(kind) if kind == Error::Cancelled.kind() => Came::BrokenOff,
            Some(_) | None if is_broken_off => Came::BrokenOff,
            Some(_) | None => Came::Answer(self.lock().answer()),
        };
        keep(came).await;
        self.change(|state| state.end = Some(End::Whole));
        drop(guard);
    }
}

impl State {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
        self.overflowed |= self.bytes > MOST_BYTES;
    }

    /// All of it, unless some was let go.
    fn answer(&self) -> Option<Answer> {
        let (status, headers, problem) = self.head.as_ref().filter(|_| !self.overflowed)?;
        let written = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        let mut body = BytesMut::with_capacity(self.bytes);
        self.pieces.iter().for_each(|piece| body.extend_from_slice(piece));
        Some(Answer {
            head: AnswerHead {
                status: status.as_u16(),
                headers: headers.iter().filter_map(written).collect(),
                problem: problem.as_deref().cloned(),
            },
            body: body.freeze(),
        })
    }

    /// Of an answer that is too long only what the first reader still wants is kept.
    fn let_go(&mut self) {
        while self.overflowed && self.reader.is_none_or(|wants| wants > self.first) {
            let Some(piece) = self.pieces.pop_front() else { return };
            self.bytes -= piece.len();
            self.first += 1;
        }
    }
}

/// What comes next of a body.
enum Next {
    Piece(Bytes),
    End,
    Cut,
}

type Waiting = Pin<Box<dyn Future<Output = Next> + Send>>;

/// A body that reads along.
pub(super) struct Reader {
    answer: Arc<Recorded>,
    at: usize,
    /// Whether the answer is made for this one.
    is_first: bool,
    /// The event after which to go on.
    skip_to: Option<String>,
    waiting: Option<Waiting>,
}

impl Reader {
    /// The one for which the answer is made. Until it is dropped it is waited for, so it is there from the beginning
    /// on: whoever leaves before there is a head drops it.
    pub(super) fn first(answer: Arc<Recorded>) -> Self {
        Self { answer, at: 0, is_first: true, skip_to: None, waiting: None }
    }

    /// One who comes again, and saw everything up to an event.
    pub(super) fn later(answer: Arc<Recorded>, seen: Option<String>) -> Self {
        Self { answer, at: 0, is_first: false, skip_to: seen, waiting: None }
    }

    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// The answer, once it has a head.
    pub(super) async fn response(mut self) -> Result<Response, Problem> {
        let before = !self.is_first;
        let head = self.answer.until(|state| match (&state.head, state.end) {
            (Some(_), _) if before && state.overflowed => {
                let detail =
                    format!("the answer had more than {MOST_BYTES} bytes and was not kept");
                Some(Err(Problem::coded("idempotency_lost", detail)))
            }
            // A problem's body is written anew for each request: it has no end to wait with until it is kept.
            (Some((_, _, Some(_))), None) => None,
            (Some(head), _) => Some(Ok(head.clone())),
            (None, Some(_)) => {
                let detail = "what was asked for with this key broke off without an answer";
                Some(Err(Problem::coded("idempotency_lost", detail)))
            }
            (None, None) => None,
        });
        let (status, headers, problem) = head.await?;
        let is_events = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes() == EVENT_STREAM.as_bytes());
        self.skip_to = self.skip_to.take().filter(|_| is_events);
        let mut response = Response::new(Body::new(self));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if let Some(problem) = problem {
            response.extensions_mut().insert(problem);
        }
        Ok(response)
    }

    fn next(&self) -> Waiting {
        let (answer, at, is_first) = (Arc::clone(&self.answer), self.at, self.is_first);
        Box::pin(async move {
            if is_first {
                answer.change(|state| state.reader = Some(at));
            }
            answer
                .until(|state| {
                    let Some(index) = at.checked_sub(state.first) else { return Some(Next::Cut) };
                    match (state.pieces.get(index), state.end) {
                        (Some(piece), _) => Some(Next::Piece(piece.clone())),
                        (None, Some(End::Whole)) => Some(Next::End),
                        (None, Some(End::Cut)) => Some(Next::Cut),
                        (None, None) => None,
                    }
                })
                .await
        })
    }

    /// What is left of a piece when everything up to an event is left out. Pieces hold whole events.
    fn wanted(&mut self, piece: Bytes) -> Bytes {
        let Some(id) = &self.skip_to else { return piece };
        match after_event(&piece, id) {
            Some(at) => {
                self.skip_to = None;
                piece.slice(at..)
            }
            None => Bytes::new(),
        }
    }
}

/// Where the event after the one with this id begins.
fn after_event(piece: &[u8], id: &str) -> Option<usize> {
    let line = format!("id: {id}\n");
    let find = |from: usize, what: &[u8]| {
        let found = piece[from..].windows(what.len()).position(|part| part == what);
        found.map(|at| from + at)
    };
    let mut from = 0;
    loop {
        let at = find(from, line.as_bytes())?;
        if at == 0 || piece[at - 1] == b'\n' {
            return find(at, b"\n\n").map(|end| end + 2);
        }
        from = at + 1;
    }
}

/// What follows an event begins behind a whole one, and what was passed over has its id.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn resumed(answer: &[u8], id: &str) {
    let Some(at) = after_event(answer, id) else { return };
    assert!(answer[..at].ends_with(b"\n\n"), "not behind an event");
    let line = format!("id: {id}\n");
    assert!(answer[..at].windows(line.len()).any(|part| part == line.as_bytes()), "another event");
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.is_first {
            self.answer.change(|state| state.reader = None);
        }
    }
}

impl hyper::body::Body for Reader {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        loop {
            if self.waiting.is_none() {
                self.waiting = Some(self.next());
            }
            let Some(waiting) = &mut self.waiting else { return Poll::Ready(None) };
            let next = ready!(waiting.as_mut().poll(context));
            self.waiting = None;
            match next {
                Next::Piece(piece) => {
                    self.at += 1;
                    let piece = self.wanted(piece);
                    if !piece.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                Next::End => return Poll::Ready(None),
                Next::Cut => {
                    return Poll::Ready(Some(Err(std::io::Error::other("the answer was cut off"))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
