//! A body that does the work itself: the connection asks it for the next piece, and only then does the
//! run behind it go on. So a client that reads slowly slows the program down by a full pipe, memory stays
//! bounded, nothing is lost, and a client that goes away takes the run along.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use crate::http::format::Format;

/// A server-sent event stream says so often that it lives: proxies close what is silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const ALIVE: &[u8] = b": alive\n\n";

/// What was written and not yet sent. Shared by the work, which writes, and the body, which sends; both
/// are polled by the same connection, so the lock is never waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: BytesMut,
    /// Events that were told.
    told: u64,
    broken_off: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes bytes as they are.
    pub(crate) fn put(&self, bytes: &[u8]) {
        self.lock().bytes.extend_from_slice(bytes);
    }

    /// Tells an event: a line, or a server-sent event with the number of it as its id.
    pub(crate) fn tell(&self, format: Format, name: &str, event: &impl Serialize) {
        let mut waiting = self.lock();
        waiting.told += 1;
        let id = waiting.told;
        write(format, &mut waiting.bytes, &id, name, event);
    }

    /// The same with an id that says where to go on.
    pub(crate) fn tell_as(&self, format: Format, id: &str, name: &str, event: &impl Serialize) {
        write(format, &mut self.lock().bytes, &id, name, event);
    }

    /// Says that the end of the server broke the work off, whatever its lines tell.
    pub(crate) fn break_off(&self) {
        self.lock().broken_off = true;
    }

    pub(crate) fn is_broken_off(&self) -> bool {
        self.lock().broken_off
    }

    fn take(&self) -> Option<Bytes> {
        let mut waiting = self.lock();
        (!waiting.bytes.is_empty()).then(|| waiting.bytes.split().freeze())
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.lock().bytes.to_vec()).unwrap()
    }
}

fn write(
    format: Format,
    to: &mut BytesMut,
    id: &dyn std::fmt::Display,
    name: &str,
    event: &impl Serialize,
) {
    if format == Format::Events {
        to.extend_from_slice(format!("id: {id}\nevent: {name}\ndata: ").as_bytes());
    }
    let mut writer = serde_json::Serializer::with_formatter(to.writer(), OneLine);
    // Writing to memory does not fail, and JSON can say all that an event holds.
    event.serialize(&mut writer).ok();
    to.extend_from_slice(if format == Format::Events { b"\n\n" } else { b"\n" });
}

/// JSON in which no character ends a line for anybody: some readers take U+0085, U+2028 and U+2029 for the end of one.
struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        let ends_line = |one: char| matches!(one, '\u{85}' | '\u{2028}' | '\u{2029}');
        let mut rest = fragment;
        while let Some(at) = rest.find(ends_line) {
            let (before, from) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut characters = from.chars();
            if let Some(one) = characters.next() {
                write!(writer, "\\u{:04x}", u32::from(one))?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

/// The id of the event that a client saw last, as it says when it comes back.
pub(crate) fn last_event(headers: &hyper::HeaderMap) -> Option<&str> {
    headers.get("last-event-id").and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty())
}

/// Work that writes to an outbox until it is done.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer that such work makes.
pub(crate) fn answer(format: Format, outbox: Outbox, work: Work) -> Response {
    let written = outbox.clone();
    let lines = Lines { format, outbox, work: Some(work), silence: None };
    let mut response = Response::new(Body::new(lines));
    // For whoever keeps the answer, and has to know how the work ended.
    response.extensions_mut().insert(written);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that gathers an answer before it passes it on makes no stream of it.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Lines {
    format: Format,
    outbox: Outbox,
    /// Nothing once it is done.
    work: Option<Work>,
    /// Until it is to be said that the stream lives.
    silence: Option<Pin<Box<Sleep>>>,
}

impl Lines {
    /// Whether nothing was said for too long.
    fn is_silent(&mut self, context: &mut Context<'_>) -> bool {
        if self.format != Format::Events {
            return false;
        }
        let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep(KEEP_ALIVE)));
        if silence.as_mut().poll(context).is_pending() {
            return false;
        }
        silence.as_mut().reset(Instant::now() + KEEP_ALIVE);
        true
    }
}

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(bytes) = self.outbox.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        let done = work.as_mut().poll(context).is_ready();
        if done {
            // At once: its place in the queue is for others, however slowly the rest is read.
            self.work = None;
        }
        match self.outbox.take() {
            Some(bytes) => {
                self.silence = None;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            None if done => Poll::Ready(None),
            None if self.is_silent(context) => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(ALIVE)))))
            }
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn no_character_ends_a_line_but_the_end_of_it() {
        let outbox = Outbox::default();
        let text = "a\u{2028}b\u{2029}\u{85}c\né\u{2028}";
        outbox.tell(Format::Lines, "x", &text);
        let line = outbox.text();
        assert_eq!(line, "\"a\\u2028b\\u2029\\u0085c\\né\\u2028\"\n");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn events_are_numbered() {
        let outbox = Outbox::default();
        outbox.tell(Format::Events, "a", &1);
        outbox.tell(Format::Events, "b", &2);
        outbox.tell_as(Format::Events, "3.4", "c", &3);
        let expected = "id: 1\nevent: a\ndata: 1\n\nid: 2\nevent: b\ndata: 2\n\nid: 3.4\nevent: c\ndata: 3\n\n";
        assert_eq!(outbox.text(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_events_say_that_they_live() {
        let work = || Box::pin(std::future::pending());
        let mut body = answer(Format::Events, Outbox::default(), work()).into_body();
        for _ in 0..2 {
            let begun = Instant::now();
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), ALIVE);
            assert_eq!(begun.elapsed().as_secs(), 15);
        }
        let mut lines = answer(Format::Lines, Outbox::default(), work()).into_body();
        let silent = tokio::time::timeout(KEEP_ALIVE * 4, lines.frame()).await;
        assert!(silent.is_err(), "lines hold nothing but events");
    }
}
