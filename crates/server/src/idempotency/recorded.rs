//! An answer that is kept while it is made: whoever asks for it reads from its beginning and then along.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::watch;

use super::kept::{Answer, AnswerHead};
use crate::problem::Problem;
use crate::wire::EVENT_STREAM;

/// Kept of one answer. A longer one reaches its first reader whole, and nobody after.
const MOST_BYTES: usize = 4 << 20;

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
    /// first reader. Before anybody hears the end, `keep` is given the answer, or nothing of one that is too long.
    pub(super) async fn record(
        &self,
        work: impl Future<Output = Response>,
        keep: impl AsyncFnOnce(Option<Answer>, StatusCode),
    ) {
        let guard = Guard(self);
        let mut response = work.await;
        let problem = response.extensions_mut().remove::<Arc<Problem>>();
        let (parts, mut body) = response.into_parts();
        let status = parts.status;
        self.change(|state| state.head = Some((parts.status, parts.headers, problem)));
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return };
            let Ok(piece) = frame.into_data() else { continue };
            self.change(|state| state.push(piece));
            self.until(|state| {
                state.let_go();
                let much = state.overflowed && state.bytes > MOST_BYTES && state.reader.is_some();
                (!much).then_some(())
            })
            .await;
        }
        let whole = self.lock().answer();
        keep(whole, status).await;
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
    /// The answer, once it has a head.
    pub(super) async fn response(
        answer: Arc<Recorded>,
        before: bool,
        resume: Option<String>,
    ) -> Result<Response, Problem> {
        let head = answer.until(|state| match (&state.head, state.end) {
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
        let skip_to = resume.filter(|_| before && is_events);
        let reader = Self { answer, at: 0, is_first: !before, skip_to, waiting: None };
        let mut response = Response::new(Body::new(reader));
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
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn events_are_skipped_up_to_the_last_that_was_seen() {
        let piece =
            b"id: 1\nevent: a\ndata: \"id: 2\"\n\nid: 2\nevent: b\ndata: 2\n\nid: 3\ndata: 3\n\n";
        let rest = |id: &str| {
            after_event(piece, id).map(|at| String::from_utf8_lossy(&piece[at..]).into_owned())
        };
        assert_eq!(rest("2").unwrap(), "id: 3\ndata: 3\n\n");
        assert_eq!(rest("3").unwrap(), "");
        assert_eq!(rest("4"), None);
    }

    fn made(pieces: &[&'static str]) -> Response {
        Response::new(Body::from(pieces.concat()))
    }

    async fn read(answer: &Arc<Recorded>, before: bool) -> Result<Bytes, Problem> {
        let response = Reader::response(Arc::clone(answer), before, None).await?;
        Ok(response.into_body().collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn an_answer_is_read_by_all_who_ask_also_while_it_is_made() {
        let answer = Arc::new(Recorded::default());
        let waiting = tokio::spawn({
            let answer = Arc::clone(&answer);
            async move { read(&answer, true).await.unwrap() }
        });
        let first = tokio::spawn({
            let answer = Arc::clone(&answer);
            async move { read(&answer, false).await.unwrap() }
        });
        let mut kept = None;
        let keep = async |whole: Option<Answer>, _| kept = whole;
        answer.record(async { made(&["one ", "two"]) }, keep).await;
        assert_eq!(
            (first.await.unwrap(), waiting.await.unwrap()),
            ("one two".into(), "one two".into())
        );
        assert_eq!(read(&answer, true).await.unwrap(), "one two");
        let again = Arc::new(Recorded::whole(kept.unwrap()));
        assert_eq!(read(&again, true).await.unwrap(), "one two");
    }

    #[tokio::test]
    async fn a_problem_is_not_told_before_it_is_kept() {
        let answer = Arc::new(Recorded::default());
        let mut told = Box::pin(read(&answer, false));
        let keep = async |whole: Option<Answer>, _| {
            assert!(whole.unwrap().head.problem.is_some());
            let early = std::future::poll_fn(|context| Poll::Ready(told.as_mut().poll(context)));
            assert!(early.await.is_pending());
        };
        let problem = Problem::coded("conflict", "x");
        answer.record(async { problem.into_response() }, keep).await;
        told.await.unwrap();
    }

    #[tokio::test]
    async fn one_that_breaks_off_is_told_so() {
        let answer = Arc::new(Recorded::default());
        drop(Guard(&answer));
        assert_eq!(&*read(&answer, true).await.unwrap_err().kind, "idempotency_lost");
    }

    #[tokio::test]
    async fn a_long_answer_reaches_its_first_reader_whole_and_is_not_kept() {
        let answer = Arc::new(Recorded::default());
        let piece = Bytes::from(vec![7; MOST_BYTES / 2]);
        let frames = vec![piece; 6];
        let body = Body::new(Pieces(frames.into()));
        let maker = tokio::spawn({
            let answer = Arc::clone(&answer);
            async move {
                let keep = async |whole: Option<Answer>, _| assert_eq!(whole, None);
                answer.record(async { Response::new(body) }, keep).await;
            }
        });
        tokio::task::yield_now().await;
        assert!(!maker.is_finished(), "it waits for its reader");
        assert_eq!(read(&answer, false).await.unwrap().len(), MOST_BYTES * 3);
        maker.await.unwrap();
        assert!(answer.kept_bytes() <= MOST_BYTES);
        assert_eq!(&*read(&answer, true).await.unwrap_err().kind, "idempotency_lost");
    }

    struct Pieces(VecDeque<Bytes>);

    impl hyper::body::Body for Pieces {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }
}
