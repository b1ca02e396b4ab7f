//! Reading a request's body: bounded in length and time, strict in what it may say.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::problem::Problem;
use crate::shares::Shares;
use crate::wire::MAX_BODY_BYTES;

/// The whole body must have come within this time.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of bodies that are being read, of all and of one tenant: what has been read is held by places in queues.
const MOST_BYTES: u64 = 512 << 20;
const SHARE_BYTES: u64 = MOST_BYTES / 4;

/// What may be read at once.
#[derive(Debug)]
pub(crate) struct Bodies {
    bytes: Arc<Shares>,
    count: Arc<Shares>,
}

impl Bodies {
    /// A body that comes slowly has a place in the queue meanwhile, so no tenant reads more than half as many as there
    /// are places.
    pub(crate) fn new(places: usize) -> Arc<Self> {
        let places = u64::try_from(places).unwrap_or(u64::MAX);
        let count = Shares::new(u64::MAX, (places / 2).max(2));
        Arc::new(Self { bytes: Shares::new(MOST_BYTES, SHARE_BYTES), count })
    }

    #[cfg(test)]
    fn of_bytes(most: u64, share: u64) -> Arc<Self> {
        Arc::new(Self { bytes: Shares::new(most, share), count: Shares::new(u64::MAX, 2) })
    }
}

/// Whose body it is, and what may be read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) tenant: String,
}

/// The body as JSON. A mistake is told with the path of the field.
pub(crate) async fn json<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    parse(&bytes(request).await?)
}

/// The same where nothing need be said.
pub(crate) async fn json_or_default<T: DeserializeOwned + Default>(
    request: Request,
) -> Result<T, Problem> {
    json_or(request, T::default).await
}

/// The same with something else for an empty body.
pub(crate) async fn json_or<T: DeserializeOwned>(
    request: Request,
    empty: impl FnOnce() -> T,
) -> Result<T, Problem> {
    let bytes = bytes(request).await?;
    if bytes.is_empty() { Ok(empty()) } else { parse(&bytes) }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "body" } else { path.as_str() };
        Problem::field(field, &format!("cannot be read: {}", error.inner()))
    })?;
    reader.end().map_err(|error| {
        Problem::field("body", &format!("must be one JSON object and nothing more: {error}"))
    })?;
    Ok(value)
}

/// The body as text.
pub(crate) async fn text(request: Request) -> Result<String, Problem> {
    let bytes = bytes(request).await?;
    String::from_utf8(bytes.into()).map_err(|_| Problem::field("body", "is not UTF-8 text"))
}

/// The body as it is.
pub(crate) async fn bytes(request: Request) -> Result<Bytes, Problem> {
    let (head, body) = request.into_parts();
    let reading = head.extensions.get::<Reading>();
    // The front lets nobody pass without.
    let reading = reading.ok_or_else(|| Problem::coded("ours", "nobody asked"))?;
    whole(body, reading, MAX_BODY_BYTES).await
}

/// The next piece of a body of any length: it must come within the time that a whole short one has. Nothing at the end.
pub(crate) async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        let Ok(frame) = tokio::time::timeout(BODY_LIMIT, body.frame()).await else {
            let detail = format!("nothing more came for {} s", BODY_LIMIT.as_secs());
            return Err(Problem::coded("timeout", detail));
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(Problem::field("body", &format!("could not be read: {error}")));
            }
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}

/// A body that stands alone, of so many bytes at most.
pub(crate) async fn whole(body: Body, reading: &Reading, most: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::coded("too_large", format!("the body has more than {most} bytes"));
    if hyper::body::Body::size_hint(&body).lower() > most as u64 {
        return Err(too_large());
    }
    let busy = || Problem::coded("busy", "too much is being read of bodies");
    let Reading { bodies, tenant } = reading;
    let _counted = bodies.count.take(tenant, 1).ok_or_else(busy)?;
    let mut held = bodies.bytes.take(tenant, 0).ok_or_else(busy)?;
    let collected = async {
        let (mut whole, mut body) = (BytesMut::new(), body);
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| Problem::field("body", &format!("could not be read: {error}")))?;
            let Ok(piece) = frame.into_data() else { continue };
            if whole.len() + piece.len() > most {
                return Err(too_large());
            }
            if !held.grow(piece.len() as u64) {
                return Err(busy());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(BODY_LIMIT, collected).await.unwrap_or_else(|_| {
        let detail = format!("the body did not come within {} s", BODY_LIMIT.as_secs());
        Err(Problem::coded("timeout", detail))
    })
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    /// A body that never comes.
    struct Endless;

    impl hyper::body::Body for Endless {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn what_is_read_at_once_is_bounded_for_all_and_for_each() {
        let bodies = Bodies::of_bytes(100, 40);
        let reading = |tenant: &str| Reading { bodies: Arc::clone(&bodies), tenant: tenant.into() };
        let read = async |tenant: &str, length: usize| {
            let body = Body::from(vec![b'x'; length]);
            whole(body, &reading(tenant), 1000).await.map(|all| all.len()).map_err(|one| one.status)
        };
        assert_eq!((read("one", 40).await, read("one", 41).await), (Ok(40), Err(429)));
        assert_eq!((read("", 100).await, read("", 101).await), (Ok(100), Err(429)), "given back");
        assert_eq!(read("", 1001).await, Err(413));
        // Two that never end: a third is not waited for, and another tenant reads.
        let endless = || Body::new(Endless);
        let one = reading("one");
        let slow = async { tokio::join!(whole(endless(), &one, 9), whole(endless(), &one, 9)) };
        tokio::select! {
            biased;
            _ = slow => panic!("they never end"),
            both = async { (read("one", 1).await, read("two", 1).await) } => {
                assert_eq!(both, (Err(429), Ok(1)));
            }
        }
    }
}
