//! Traces: a caller's `traceparent` (W3C) is taken over, and with `--otlp` each request becomes a span that is sent to
//! a collector, as OTLP over HTTP with JSON.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar::SpecError;
use hyper::HeaderMap;
use hyper::Uri;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::keys::hex;
use crate::metrics::Metrics;

/// Spans that wait to be sent.
const WAITING: usize = 4096;
/// Spans sent at once, and how long the first of them may wait.
const BATCH: usize = 512;
const PATIENCE: Duration = Duration::from_millis(500);
/// A collector that takes longer is not waited for.
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// Of a collector's answer only the beginning is read.
const MOST_ANSWER_BYTES: u64 = 4 << 10;

/// The trace that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// 32 hexadecimal digits.
    pub(crate) id: String,
    /// The caller's span; none when the trace begins here.
    parent: Option<String>,
    /// Whether the caller keeps it.
    sampled: bool,
}

impl Trace {
    /// The caller's trace. One that is not well-formed is none, as the specification says.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all("traceparent").iter();
        let (Some(value), None) = (given.next(), given.next()) else { return None };
        let text = value.to_str().ok()?;
        let mut parts = text.split('-');
        let (version, id) = (parts.next()?, parts.next()?);
        let (span, flags) = (parts.next()?, parts.next()?);
        let is = |part: &str, length: usize| {
            let digits = part.bytes().all(|one| matches!(one, b'0'..=b'9' | b'a'..=b'f'));
            part.len() == length && digits
        };
        let zero = |part: &str| part.bytes().all(|one| one == b'0');
        let well_formed = is(version, 2) && is(id, 32) && is(span, 16) && is(flags, 2);
        let known = version != "ff" && (version != "00" || parts.next().is_none());
        if !well_formed || !known || zero(id) || zero(span) {
            return None;
        }
        let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
        Some(Self { id: id.to_owned(), parent: Some(span.to_owned()), sampled })
    }

    fn new() -> Option<Self> {
        Some(Self { id: random::<16>()?, parent: None, sampled: true })
    }
}

fn random<const N: usize>() -> Option<String> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    Some(hex(&bytes))
}

/// What a request was.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace: Option<Trace>,
    pub(crate) operation: &'static str,
    pub(crate) route: String,
    pub(crate) method: String,
    pub(crate) status: u16,
    pub(crate) request_id: String,
    pub(crate) tenant: String,
    pub(crate) code: Option<String>,
    pub(crate) took: Duration,
}

impl Span {
    /// As OTLP writes it. Nothing for a trace that its caller does not keep.
    fn json(self) -> Option<Value> {
        let trace = self.trace.or_else(Trace::new).filter(|trace| trace.sampled)?;
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin = end.saturating_sub(self.took);
        let text =
            |key: &str, value: String| json!({ "key": key, "value": { "stringValue": value } });
        let mut attributes = vec![
            text("http.request.method", self.method),
            text("http.route", self.route),
            json!({ "key": "http.response.status_code", "value": { "intValue": self.status.to_string() } }),
            text("belljar.request_id", self.request_id),
            text("belljar.tenant", self.tenant),
        ];
        attributes.extend(self.code.map(|code| text("error.type", code)));
        Some(json!({
            "traceId": trace.id,
            "spanId": random::<8>()?,
            "parentSpanId": trace.parent.unwrap_or_default(),
            "name": self.operation,
            "kind": 2, // a server's
            "startTimeUnixNano": begin.as_nanos().to_string(),
            "endTimeUnixNano": end.as_nanos().to_string(),
            "attributes": attributes,
            "status": if self.status >= 500 { json!({ "code": 2 }) } else { json!({}) },
        }))
    }
}

/// Where spans go. They are dropped, and counted, when the collector does not keep up.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    waiting: Sender<Span>,
    metrics: Arc<Metrics>,
}

impl Spans {
    /// Sends spans to a collector, as long as anything holds what this gives.
    pub(crate) fn start(endpoint: Collector, metrics: &Arc<Metrics>) -> Self {
        let (waiting, taken) = channel(WAITING);
        tokio::spawn(deliver(endpoint, taken, Arc::clone(metrics)));
        Self { waiting, metrics: Arc::clone(metrics) }
    }

    pub(crate) fn send(&self, span: Span) {
        if self.waiting.try_send(span).is_err() {
            self.metrics.spans_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    authority: String,
    path: String,
}

impl Collector {
    /// `http://host:4318`, or the whole address of its traces.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let wrong = |reason: &str| SpecError::new("otlp", format!("is \"{text}\": {reason}"));
        let uri: Uri = text.parse().map_err(|_| wrong("must be http://HOST:PORT"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("must begin with http://: for TLS, put a collector on this host"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("must name a host"))?;
        let authority = match authority.port() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:4318"),
        };
        let path = match uri.path() {
            "" | "/" => "/v1/traces".to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { authority, path })
    }

    async fn post(&self, body: &[u8]) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.authority).await?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.path,
            self.authority,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        stream.take(MOST_ANSWER_BYTES).read_to_end(&mut answer).await?;
        let taken = answer.starts_with(b"HTTP/1.1 2") || answer.starts_with(b"HTTP/1.0 2");
        if taken { Ok(()) } else { Err(std::io::Error::other("the collector refused it")) }
    }
}

async fn deliver(collector: Collector, mut taken: Receiver<Span>, metrics: Arc<Metrics>) {
    let mut spans = Vec::with_capacity(BATCH);
    while let Some(first) = taken.recv().await {
        spans.push(first);
        let more = async {
            while spans.len() < BATCH
                && let Some(span) = taken.recv().await
            {
                spans.push(span);
            }
        };
        // When the time is over those that came are sent.
        tokio::time::timeout(PATIENCE, more).await.ok();
        let spans: Vec<Value> = spans.drain(..).filter_map(Span::json).collect();
        if spans.is_empty() {
            continue;
        }
        let count = spans.len() as u64;
        let name = json!([{ "key": "service.name", "value": { "stringValue": "belljar" } }]);
        let scope = json!([{ "scope": { "name": "belljar" }, "spans": spans }]);
        let all = json!({ "resourceSpans": [{ "resource": { "attributes": name }, "scopeSpans": scope }] });
        let sent =
            tokio::time::timeout(SEND_LIMIT, collector.post(all.to_string().as_bytes())).await;
        let counter =
            if matches!(sent, Ok(Ok(()))) { &metrics.spans_sent } else { &metrics.spans_dropped };
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Trace> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", text.parse().unwrap());
        Trace::of(&headers)
    }

    #[test]
    fn a_traceparent_is_taken_over_if_it_is_one() {
        let (id, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let trace = of(&format!("00-{id}-{span}-01")).unwrap();
        assert_eq!(
            (trace.id.as_str(), trace.parent.as_deref(), trace.sampled),
            (id, Some(span), true)
        );
        assert!(!of(&format!("00-{id}-{span}-00")).unwrap().sampled);
        assert!(of(&format!("cc-{id}-{span}-01-more")).is_some(), "a later version may say more");
        for wrong in [
            String::new(),
            format!("00-{id}-{span}"),
            format!("00-{id}-{span}-01-more"),
            format!("ff-{id}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{id}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", id.to_uppercase()),
            format!("00-{id}x-{span}-01"),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn collectors_are_read_and_mistakes_told() {
        let of = |text: &str| Collector::parse(text).map(|one| (one.authority, one.path));
        assert_eq!(
            of("http://127.0.0.1:4318").unwrap(),
            ("127.0.0.1:4318".into(), "/v1/traces".into())
        );
        assert_eq!(of("http://here/own").unwrap(), ("here:4318".into(), "/own".into()));
        for wrong in ["", "here:4318", "https://here", "ftp://here"] {
            assert!(of(wrong).unwrap_err().to_string().starts_with("otlp is"), "{wrong}");
        }
    }
}
