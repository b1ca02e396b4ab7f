//! What every request goes through, in this order: an id, the door, the scope, the rate, the host's pressure, and the
//! memory of what was asked before. Then what is the same for every answer: its id, its problem in full, its counters
//! and its line in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::{HeaderMap, Method, Uri};

use crate::api::{Access, Load, Operation};
use crate::door::Peer;
use crate::http::Server;
use crate::http::body::Reading;
use crate::idempotency;
use crate::journal::Answered;
use crate::keys::hex;
use crate::principal::Principal;
use crate::problem::{Problem, Written};
use crate::trace::{Span, Trace};

const REQUEST_ID: &str = "x-request-id";
/// A caller's own id is taken over up to this length.
const MOST_ID: usize = 128;

/// Of all headers together. What is far more is refused before it is a request.
const MOST_HEADER_BYTES: usize = 64 << 10;

/// A request's name in logs, problems and answers.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

impl RequestId {
    /// The caller's, if it is a plain word; else a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let plain = |one: u8| one.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&one);
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        let given = given.filter(|one| !one.is_empty() && one.len() <= MOST_ID);
        match given.filter(|one| one.bytes().all(plain)) {
            Some(given) => Self(given.to_owned()),
            None => Self::new(),
        }
    }

    /// Random, so that nobody learns from theirs how many others there are.
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 12];
        // Without randomness it is a name that others have too, which harms nobody.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok();
        Self(format!("req_{}", hex(&bytes)))
    }
}

/// What is known of a request when its answer comes.
struct Heard {
    begun: Instant,
    id: RequestId,
    trace: Option<Trace>,
    operation: Option<usize>,
    method: Method,
    uri: Uri,
    peer: &'static str,
    /// Its length was not told: whoever stands before us may have taken another length for true (RFC 9112, 6.3), so
    /// nothing more is heard on that connection.
    is_last: bool,
}

pub(crate) async fn front(
    State(server): State<Arc<Server>>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let found = matched.as_ref().and_then(|at| server.table.find(at.as_str(), request.method()));
    let heard = Heard {
        begun: Instant::now(),
        id: RequestId::of(request.headers()),
        trace: Trace::of(request.headers()),
        operation: found,
        method: request.method().clone(),
        uri: request.uri().clone(),
        is_last: request.headers().contains_key(TRANSFER_ENCODING),
        peer: match request.extensions().get::<Peer>() {
            Some(Peer::Local { .. }) => "socket",
            Some(Peer::Loopback { .. } | Peer::Anywhere) | None => "tcp",
        },
    };
    server.metrics.in_flight.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(&server);
    request.extensions_mut().insert(heard.id.clone());
    let (principal, answer) = match let_in(&server, &request) {
        Err(problem) => (None, problem.into_response()),
        Ok(principal) => {
            let principal = principal.map(|one| Arc::new(one.asking(&heard.id.0)));
            (principal.clone(), go_on(&server, found, principal, request, next).await)
        }
    };
    drop(counted);
    finish(&server, &heard, principal.as_deref(), answer)
}

/// A request that goes away before its answer is no longer under way.
struct Counted<'a>(&'a Server);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Nothing is read, and no route is told from another, before the caller may speak.
fn let_in(server: &Server, request: &Request) -> Result<Option<Principal>, Problem> {
    let Some(peer) = request.extensions().get::<Peer>().copied() else {
        return Err(Problem::coded("backend", "nobody asked"));
    };
    server.door.admit(peer, request.uri(), request.headers())
}

async fn go_on(
    server: &Arc<Server>,
    found: Option<usize>,
    principal: Option<Arc<Principal>>,
    mut request: Request,
    next: Next,
) -> Response {
    let operation = found.map(|index| &server.table.listed[index].operation);
    if let Err(problem) = may_begin(server, operation, principal.as_deref(), request.headers()) {
        return problem.into_response();
    }
    let Some(principal) = principal else { return next.run(request).await };
    request.extensions_mut().insert(Arc::clone(&principal));
    let (bodies, tenant) = (Arc::clone(&server.bodies), principal.tenant.name().to_owned());
    request.extensions_mut().insert(Reading { bodies, tenant });
    let once = operation.is_some_and(|operation| operation.once);
    match request.headers().get(idempotency::HEADER).cloned() {
        Some(key) if once => idempotency::answer(server, &principal, &key, request, next).await,
        Some(_) | None => next.run(request).await,
    }
}

fn may_begin(
    server: &Server,
    operation: Option<&Operation>,
    principal: Option<&Principal>,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    if let Some(principal) = principal {
        server.limits.admit_request(server, principal)?;
        if let Some(Access::Scope(scope)) = operation.map(|operation| operation.access) {
            principal.needs(scope)?;
        }
    }
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        let reason = "and Content-Length exclude each other";
        return Err(Problem::field("Transfer-Encoding", reason));
    }
    let length: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if length > MOST_HEADER_BYTES {
        let detail = format!("the headers have {length} bytes, more than {MOST_HEADER_BYTES}");
        return Err(Problem::coded("headers_too_large", detail));
    }
    // Nothing is ever decompressed here: a small body cannot become a large one.
    if !takes_as_is(headers) {
        let detail = "the body has a Content-Encoding, and bodies are taken as they are";
        return Err(Problem::coded("unsupported_encoding", detail));
    }
    if operation.is_some_and(|operation| operation.load == Load::Heavy) {
        server.admission.check().inspect_err(|_| {
            server.metrics.shed.fetch_add(1, Ordering::Relaxed);
        })?;
    }
    Ok(())
}

/// Whether the body is what it says.
pub(crate) fn takes_as_is(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().all(|one| one == "identity")
}

fn finish(
    server: &Server,
    heard: &Heard,
    principal: Option<&Principal>,
    mut answer: Response,
) -> Response {
    let id = &heard.id.0;
    let problem = answer.extensions_mut().remove::<Arc<Problem>>();
    if let Some(problem) = &problem {
        let whole = Written::answering(problem, id, heard.uri.path());
        // A Problem is strings and numbers: there is nothing in it that JSON could not say.
        let json = serde_json::to_vec(&whole).unwrap_or_default();
        answer.headers_mut().remove(CONTENT_LENGTH);
        *answer.body_mut() = Body::from(json);
    }
    if let Ok(id) = HeaderValue::from_str(id) {
        answer.headers_mut().insert(REQUEST_ID, id);
    }
    if heard.is_last {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let (status, took) = (answer.status().as_u16(), heard.begun.elapsed());
    server.metrics.answered(heard.operation, status, took);
    let listed = heard.operation.map(|index| &server.table.listed[index]);
    let operation = listed.map_or("none", |listed| listed.operation.id);
    let code = problem.as_ref().map(|problem| &*problem.kind);
    server.journal.answered(&Answered {
        request_id: id,
        trace_id: heard.trace.as_ref().map(|trace| trace.id.as_str()),
        operation,
        method: heard.method.as_str(),
        status,
        code,
        // What is wrong with a request may quote it; what is wrong with us does not.
        detail: problem.as_ref().filter(|_| status >= 500).map(|problem| &*problem.detail),
        elapsed_ms: took.as_secs_f64() * 1000.0,
        tenant: principal.map(|one| one.tenant.name()).filter(|name| !name.is_empty()),
        key: principal.and_then(|one| one.key.as_deref()),
        peer: heard.peer,
    });
    if let Some(spans) = &server.spans {
        spans.send(Span {
            trace: heard.trace.clone(),
            operation,
            route: listed.map(|listed| listed.path.clone()).unwrap_or_default(),
            method: heard.method.to_string(),
            status,
            request_id: id.clone(),
            tenant: principal.map(|one| one.tenant.name().to_owned()).unwrap_or_default(),
            code: code.map(ToOwned::to_owned),
            took,
        });
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_id_is_taken_over_and_anything_else_replaced() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            RequestId::of(&headers).0
        };
        assert_eq!(of("abc-1_2.3:4/5"), "abc-1_2.3:4/5");
        for strange in ["", "a b", "a\"b", "é", &"x".repeat(129)] {
            assert!(of(strange).starts_with("req_"), "{strange}");
        }
        let (one, other) = (RequestId::new().0, RequestId::new().0);
        assert!(one != other && one.len() == 28, "{one} {other}");
    }
}
