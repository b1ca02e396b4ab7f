//! How tools reach the routes: inside of a server, as whoever sent the request; from outside, over its socket.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tower_service::Service;

use super::told::Refused;
use crate::wire;

/// An answer that is one document.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// What says who asks: it goes with what is asked in their name.
const WHO: [HeaderName; 2] = [AUTHORIZATION, HOST];

/// A connection that is being made.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>;

#[derive(Clone)]
enum Way {
    Inside(Router),
    Outside(Arc<dyn Fn() -> Connecting + Send + Sync>),
}

/// The way to the routes, and in whose name.
#[derive(Clone)]
pub struct Reach {
    way: Way,
    who: Option<Arc<Parts>>,
}

impl fmt::Debug for Reach {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.way {
            Way::Inside(_) => "inside",
            Way::Outside(_) => "outside",
        };
        out.debug_tuple("Reach").field(&way).finish()
    }
}

impl Reach {
    pub(crate) fn inside(router: Router) -> Self {
        Self { way: Way::Inside(router), who: None }
    }

    /// Over a socket, which is connected anew for each request.
    pub fn outside(connect: impl Fn() -> Connecting + Send + Sync + 'static) -> Self {
        Self { way: Way::Outside(Arc::new(connect)), who: None }
    }

    /// In the name of whoever sent this.
    pub(super) fn for_request(&self, context: &RequestContext<RoleServer>) -> Self {
        let who = context.extensions.get::<Parts>().cloned().map(Arc::new);
        Self { way: self.way.clone(), who }
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Body,
    ) -> Result<Response<Body>, Refused> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, wire::JSON)
            .body(body)
            .map_err(|error| Refused::ours(&format!("{path} cannot be asked: {error}")))?;
        let response = match &self.way {
            Way::Inside(router) => {
                let Some(who) = &self.who else { return Err(Refused::ours("nobody asked")) };
                *request.extensions_mut() = who.extensions.clone();
                for name in WHO {
                    if let Some(value) = who.headers.get(&name) {
                        request.headers_mut().insert(name, value.clone());
                    }
                }
                match router.clone().call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            Way::Outside(connect) => {
                let stream = connect().await.map_err(|error| Refused::ours(&error.to_string()))?;
                request
                    .headers_mut()
                    .insert(HOST, hyper::header::HeaderValue::from_static("localhost"));
                converse(stream, request).await?.map(Body::new)
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = collect(response).await?;
        Err(Refused::read(&text, status))
    }

    /// Asks for a document.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refused> {
        document(self.send(Method::GET, path, wire::JSON, Body::empty()).await?).await
    }

    /// Says something, and is answered with a document.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        said: &impl Serialize,
    ) -> Result<T, Refused> {
        document(self.send(Method::POST, path, wire::JSON, json(said)?).await?).await
    }

    /// The members of a list, over all of its pages, and whether there are more than were wanted.
    pub(super) async fn list(
        &self,
        path: &str,
        name: &str,
        most: usize,
    ) -> Result<(Vec<Value>, bool), Refused> {
        let (mut found, mut next) = (Vec::new(), path.to_owned());
        loop {
            let mut page: Value = self.get(&next).await?;
            if let Value::Array(items) = page[name].take() {
                found.extend(items);
            }
            let cursor = page["next_cursor"].as_str();
            let more = found.len() > most || (found.len() == most && cursor.is_some());
            let Some(cursor) = cursor.filter(|_| !more) else {
                found.truncate(most);
                return Ok((found, more));
            };
            let joint = if path.contains('?') { '&' } else { '?' };
            next = format!("{path}{joint}cursor={}", segment(cursor));
        }
    }

    /// The bytes of an answer.
    pub(super) async fn bytes(&self, path: &str) -> Result<Bytes, Refused> {
        collect(self.send(Method::GET, path, wire::JSON, Body::empty()).await?).await
    }
}

async fn converse(
    stream: UnixStream,
    request: Request<Body>,
) -> Result<Response<hyper::body::Incoming>, Refused> {
    let lost = |error: hyper::Error| Refused::ours(&format!("the server hung up: {error}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    // It ends with the answer; how is told there.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(lost)
}

pub(super) fn json(said: &impl Serialize) -> Result<Body, Refused> {
    let bytes = serde_json::to_vec(said);
    bytes.map(Body::from).map_err(|error| Refused::ours(&error.to_string()))
}

async fn document<T: DeserializeOwned>(response: Response<Body>) -> Result<T, Refused> {
    let bytes = collect(response).await?;
    let text = if bytes.is_empty() { Bytes::from_static(b"null") } else { bytes };
    serde_json::from_slice(&text)
        .map_err(|error| Refused::ours(&format!("the server's answer cannot be read: {error}")))
}

async fn collect(response: Response<Body>) -> Result<Bytes, Refused> {
    let body = Limited::new(response.into_body(), MAX_DOCUMENT_BYTES);
    let whole = body.collect().await;
    whole
        .map(|whole| whole.to_bytes())
        .map_err(|error| Refused::ours(&format!("the server hung up: {error}")))
}

/// One segment of a path.
pub(super) fn segment(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A path inside of a sandbox, in a URL; a relative one is below /workspace.
pub(super) fn inside(path: &str) -> String {
    let absolute =
        if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") };
    let parts = absolute.split('/').filter(|part| !part.is_empty());
    // Dots are the sandbox's business, not that of whoever reads the URL.
    let escaped = |part: &str| segment(part).replace('.', "%2E");
    let joined = parts.map(escaped).collect::<Vec<_>>().join("/");
    if joined.is_empty() { "%2E".to_owned() } else { joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_what_they_say() {
        assert_eq!(inside("a b/ü?#"), "workspace/a%20b/%C3%BC%3F%23");
        assert_eq!(inside("/x/../y.txt"), "x/%2E%2E/y%2Etxt");
        assert_eq!(inside("/"), "%2E");
        assert_eq!(segment("a/../b"), "a%2F..%2Fb");
    }
}
