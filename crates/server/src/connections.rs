//! Connections: bounded in number for each listener, so that whoever fills TCP without a key does not keep the owner
//! from the socket. One that asks for nothing makes room for the next: idle ones cost others nothing.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::door::Peer;
use crate::problem::Problem;
use crate::stall::Impatient;
use crate::stop::Stop;
use crate::wire;

/// A request's head must have come within this time; an idle connection is closed after it too.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// The longest head. What is longer is answered with 431.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// How long a connection without a request is kept after the first signal.
const LAST_REQUEST: Duration = Duration::from_millis(100);
/// How long a new connection waits for one that was told to make room.
const ROOM_LIMIT: Duration = Duration::from_secs(1);

/// One connection, as those see it who look for room.
#[derive(Debug, Default)]
struct Held {
    /// Requests without the end of their answer; with HTTP/1 none or one.
    busy: AtomicUsize,
    /// Whether there ever was one.
    asked: AtomicBool,
    leave: Notify,
}

/// Room for connections of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    permits: Arc<Semaphore>,
    held: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    next: u64,
    /// The oldest first.
    all: BTreeMap<u64, Arc<Held>>,
}

impl Room {
    pub(crate) fn new(most: usize) -> Self {
        let permits = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Self { permits, held: Arc::default() }
    }

    /// A place for a connection: one that is free, or that of the oldest which asks for nothing.
    pub(crate) async fn enter(&self) -> Option<Place> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.make_room()?;
                let waited = Arc::clone(&self.permits).acquire_owned();
                tokio::time::timeout(ROOM_LIMIT, waited).await.ok()?.ok()?
            }
        };
        let held = Arc::new(Held::default());
        let mut shelf = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let number = shelf.next;
        shelf.next += 1;
        shelf.all.insert(number, Arc::clone(&held));
        drop(shelf);
        Some(Place { room: self.clone(), number, held, _permit: permit })
    }

    fn make_room(&self) -> Option<()> {
        let mut shelf = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |held: &Held| held.busy.load(Ordering::Relaxed) == 0;
        let number = *shelf.all.iter().find(|(_, held)| idle(held))?.0;
        // Out of the list at once, so that the next who comes asks another.
        shelf.all.remove(&number)?.leave.notify_one();
        Some(())
    }
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    room: Room,
    number: u64,
    held: Arc<Held>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut shelf = self.room.held.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.all.remove(&self.number);
    }
}

/// What a client gets for which there is no room.
pub(crate) fn full() -> Vec<u8> {
    let problem = Problem::coded("busy", "too many connections, and all of them are busy");
    let problem = Problem { status: 503, ..problem };
    let body = serde_json::to_string(&problem).unwrap_or_default();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {}\r\nRetry-After: 1\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        wire::PROBLEM,
        body.len()
    )
    .into_bytes()
}

/// A request that goes on.
struct Busy(Arc<Held>);

impl Busy {
    fn new(held: &Arc<Held>) -> Self {
        held.busy.fetch_add(1, Ordering::Relaxed);
        held.asked.store(true, Ordering::Relaxed);
        Self(Arc::clone(held))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body with which its request ends.
struct Answering {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One connection to its end. When the client goes away this ends too, and with it what it asked for.
pub(crate) async fn converse<S>(
    stream: S,
    peer: Peer,
    router: Router,
    stop: Stop,
    place: Option<Place>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let held = place.as_ref().map_or_else(Arc::default, |place| Arc::clone(&place.held));
    let service = service_fn(|request: Request<Incoming>| {
        let busy = Busy::new(&held);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        // A router is always ready.
        let answer = router.clone().call(request);
        async move { answer.await.map(|response| response.map(|body| Answering { body, _busy: busy })) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(MOST_HEAD_BYTES)
        .serve_connection(TokioIo::new(Impatient::new(stream)), service)
        .with_upgrades();
    tokio::pin!(connection);
    // Whatever ends a connection is told to the client by the end of the connection.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.draining() => {}
        () = held.leave.notified() => {
            // A request may have come since; it is answered, and is the last.
            connection.as_mut().graceful_shutdown();
            if held.busy.load(Ordering::Relaxed) > 0 {
                connection.await.ok();
            }
            return;
        }
    }
    connection.as_mut().graceful_shutdown();
    if !held.asked.load(Ordering::Relaxed) {
        // Its request may be on the way; one that has none is not waited for.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = tokio::time::sleep(LAST_REQUEST) => {}
        }
    }
    if held.asked.load(Ordering::Relaxed) {
        connection.await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_full_server_has_the_length_it_says() {
        let text = String::from_utf8(full()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
        let problem: crate::Problem = serde_json::from_str(body).unwrap();
        assert_eq!((problem.status, &*problem.kind), (503, "busy"));
    }

    #[tokio::test]
    async fn the_oldest_that_asks_for_nothing_makes_room() {
        let room = Room::new(2);
        let (one, two) = (room.enter().await.unwrap(), room.enter().await.unwrap());
        let busy = Busy::new(&one.held);
        let (held, waiting) = (
            Arc::clone(&two.held),
            tokio::spawn({
                let room = room.clone();
                async move { room.enter().await.is_some() }
            }),
        );
        held.leave.notified().await;
        drop(two);
        assert!(waiting.await.unwrap(), "the idle one made room, the busy one did not");
        drop((busy, one));
    }

    #[tokio::test]
    async fn where_all_are_busy_there_is_no_room() {
        let room = Room::new(1);
        let one = room.enter().await.unwrap();
        let busy = Busy::new(&one.held);
        assert!(room.enter().await.is_none());
        drop((busy, one));
        assert!(room.enter().await.is_some());
    }
}
