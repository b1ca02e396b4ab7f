//! Reading a request's body: bounded in length and time, strict in what it may say.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::problem::Problem;
use crate::wire::MAX_BODY_BYTES;

/// The whole body must have come within this time.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// The body as JSON. A mistake is told with the path of the field.
pub(crate) async fn json<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    parse(&read(request.into_body()).await?)
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
    let bytes = read(request.into_body()).await?;
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
    let bytes = read(request.into_body()).await?;
    String::from_utf8(bytes.into()).map_err(|_| Problem::field("body", "is not UTF-8 text"))
}

/// The body as it is.
pub(crate) async fn bytes(request: Request) -> Result<Bytes, Problem> {
    read(request.into_body()).await
}

/// The same of a body that stands alone.
pub(crate) async fn whole(body: Body) -> Result<Bytes, Problem> {
    read(body).await
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

async fn read(body: Body) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the body has more than {MAX_BODY_BYTES} bytes");
        Problem::coded("too_large", detail)
    };
    let announced = hyper::body::Body::size_hint(&body).lower();
    if announced > MAX_BODY_BYTES as u64 {
        return Err(too_large());
    }
    let collected = Limited::new(body, MAX_BODY_BYTES).collect();
    match tokio::time::timeout(BODY_LIMIT, collected).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Problem::field("body", &format!("could not be read: {error}"))),
        Err(_) => {
            let detail = format!("the body did not come within {} s", BODY_LIMIT.as_secs());
            Err(Problem::coded("timeout", detail))
        }
    }
}
