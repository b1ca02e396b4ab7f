//! A body that does the work itself: the connection asks it for the next piece, and only then does the
//! run behind it go on. So a client that reads slowly slows the program down by a full pipe, memory stays
//! bounded, nothing is lost, and a client that goes away takes the run along.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use crate::http::format::Format;

/// What was written and not yet sent. Shared by the work, which writes, and the body, which sends; both
/// are polled by the same connection, so the lock is never waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Mutex<BytesMut>>);

impl Outbox {
    pub(crate) fn write(&self) -> MutexGuard<'_, BytesMut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Bytes> {
        let mut waiting = self.write();
        (!waiting.is_empty()).then(|| waiting.split().freeze())
    }
}

/// Work that writes to an outbox until it is done.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer that such work makes.
pub(crate) fn answer(format: Format, outbox: Outbox, work: Work) -> Response {
    let mut response = Response::new(Body::new(Lines { outbox, work: Some(work) }));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

struct Lines {
    outbox: Outbox,
    /// Nothing once it is done.
    work: Option<Work>,
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
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if done => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
