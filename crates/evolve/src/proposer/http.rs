//! Asking a model over HTTP/1.1: one connection for each question, nothing followed, everything bounded.
//!
//! hyper and rustls are here anyway, for the server and for what is to come of it; a client of these two is a page of
//! code, and what larger clients add (redirects, cookies, pools, proxies found in the environment) are ways for a
//! key to go where nobody meant it to.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use belljar::SpecError;
use belljar::secrets::{Secret, SecretSource};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::wire::{Bad, Dialect, Reply, message_of};
use super::{Answer, Ask, Endpoint, MAX_ANSWER_BYTES, NoAnswer};
use crate::chance::Chance;
use crate::step::Usage;

const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// The first pause before another try; each one is twice as long as the last, to a most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// An endpoint that wants to be left alone for longer has refused.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);
/// What is told of an endpoint's own words.
const MAX_WORDS_CHARS: usize = 500;
/// Too many requests at once, as one endpoint says it.
const OVERLOADED: u16 = 529;

type Sent = Result<Response<Incoming>, String>;

/// Where to send a question, checked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    host: String,
    port: u16,
    secure: bool,
    path: String,
    authority: String,
}

impl Target {
    pub(super) fn new(endpoint: &Endpoint, dialect: Dialect) -> Result<Self, SpecError> {
        let url = endpoint.url.as_deref().unwrap_or(dialect.default_url());
        let told = |why: &str| SpecError::new("proposer.url", format!("is \"{url}\", {why}"));
        let uri: Uri =
            url.parse().map_err(|_| told("which is no address: write https://HOST/…"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(told("which must begin with https:// or http://")),
        };
        let authority = uri.authority().ok_or_else(|| told("which names no host"))?;
        if authority.as_str().contains('@') {
            return Err(told("which holds a password: keys come by key_env, or by secret"));
        }
        if uri.query().is_some() {
            return Err(told("which has a query: only a path is added to"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let loopback = host == "localhost"
            || host.parse().is_ok_and(|one: std::net::IpAddr| one.is_loopback());
        let has_key = key_source(endpoint, dialect).is_some();
        if !secure && !loopback && has_key {
            return Err(told("which would carry the key in the open: use https://"));
        }
        Ok(Self {
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: format!("{}{}", uri.path().trim_end_matches('/'), dialect.path()),
            authority: authority.to_string(),
            host,
            secure,
        })
    }
}

/// Where its key is to be found, and the field that says so.
fn key_source(endpoint: &Endpoint, dialect: Dialect) -> Option<(String, SecretSource)> {
    if let Some(source) = &endpoint.secret_source {
        let name = endpoint.secret.as_deref().unwrap_or("key");
        return Some((format!("secrets.{name}"), source.clone()));
    }
    let name = match (&endpoint.key_env, &endpoint.url) {
        (Some(name), _) => name,
        // Somewhere else than at the vendor's, its key is not to be given away unasked.
        (None, Some(_)) => "",
        (None, None) => dialect.default_key_env(),
    };
    (!name.is_empty()).then(|| ("proposer.key_env".to_owned(), SecretSource::variable(name)))
}

/// An endpoint that can be asked.
#[derive(Debug)]
pub(crate) struct Client {
    endpoint: Endpoint,
    dialect: Dialect,
    target: Target,
    key: Option<Secret>,
    tls: Option<Arc<ClientConfig>>,
}

/// Why one try came to nothing.
enum Try {
    Again { why: String, after: Option<Duration>, usage: Usage },
    Failed { why: String, usage: Usage },
    Fatal { why: String },
}

impl Client {
    pub(super) fn open(endpoint: &Endpoint, dialect: Dialect) -> Result<Self, SpecError> {
        let target = Target::new(endpoint, dialect)?;
        let source = key_source(endpoint, dialect);
        let key = source.map(|(field, source)| {
            let named = endpoint.secret_source.is_some();
            // A variable that was named without a table is told by the field that names it.
            source.resolve(&field).map_err(|error| match named {
                true => error,
                false => SpecError::new(field, error.reason),
            })
        });
        let key = key.transpose()?;
        let tls = target.secure.then(|| trust(endpoint.ca_file.as_deref())).transpose()?;
        Ok(Self { endpoint: endpoint.clone(), dialect, target, key, tls })
    }

    pub(super) async fn ask(&self, ask: &Ask<'_>) -> Result<Answer, NoAnswer> {
        let body = self.dialect.body(&self.endpoint, ask.prompt, ask.seed).to_string();
        let limit = Duration::from_millis(self.endpoint.timeout_ms);
        let mut usage = Usage::default();
        let mut chance = Chance::of(ask.seed, &[2]);
        for attempt in 0..=self.endpoint.retries {
            usage.retries = attempt;
            let tried = tokio::time::timeout(limit, self.once(body.clone().into())).await;
            let tried = tried.unwrap_or_else(|_| {
                let why = format!("no answer within {} ms", self.endpoint.timeout_ms);
                Err(Try::Again { why, after: None, usage: Usage::default() })
            });
            let (why, after) = match tried {
                Ok(reply) => {
                    add(&mut usage, &used(&reply));
                    return Ok(Answer { text: self.scrub(&reply.text), usage });
                }
                Err(Try::Fatal { why }) => return Err(NoAnswer::Fatal { why: self.scrub(&why) }),
                Err(Try::Failed { why, usage: more }) => {
                    add(&mut usage, &more);
                    return Err(NoAnswer::Failed { why: self.scrub(&why), usage });
                }
                Err(Try::Again { why, after, usage: more }) => {
                    add(&mut usage, &more);
                    (why, after)
                }
            };
            if attempt == self.endpoint.retries || after.is_some_and(|one| one > MAX_RETRY_AFTER) {
                let why = self.scrub(&format!("after {} tries: {why}", attempt + 1));
                return Err(NoAnswer::Failed { why, usage });
            }
            tokio::time::sleep(after.unwrap_or_else(|| pause(attempt, &mut chance))).await;
        }
        Err(NoAnswer::Failed { why: "it was not asked".to_owned(), usage })
    }

    async fn once(&self, body: Bytes) -> Result<Reply, Try> {
        let again = |why: String| Try::Again { why, after: None, usage: Usage::default() };
        // The connection lives in here, and ends with it.
        let mut driver = JoinSet::new();
        let mut response = self.send(body, &mut driver).await.map_err(again)?;
        let status = response.status();
        let after = retry_after(&response);
        let bytes = collect(response.body_mut()).await;
        if status != StatusCode::OK {
            return Err(refusal(status, after, &bytes.unwrap_or_default()));
        }
        let bytes = bytes.map_err(again)?;
        let read = if self.endpoint.stream && !self.dialect.is_whole(&bytes) {
            self.dialect.read_stream(&bytes)
        } else {
            self.dialect.read(&bytes)
        };
        let reply = read.map_err(|bad| match bad {
            Bad::Malformed(why) => again(format!("a malformed answer: {why}")),
            Bad::HungUp => again("it hung up in the middle of its answer".to_owned()),
            Bad::Told(why) => again(format!("an error in the middle of its answer: {why}")),
        })?;
        if reply.text.trim().is_empty() {
            let usage = used(&reply);
            return Err(Try::Again { why: "an empty answer".to_owned(), after: None, usage });
        }
        if reply.cut {
            let why = "its answer was cut off: raise proposer.max_tokens".to_owned();
            return Err(Try::Failed { why, usage: used(&reply) });
        }
        Ok(reply)
    }

    async fn send(&self, body: Bytes, driver: &mut JoinSet<()>) -> Sent {
        let target = &self.target;
        let mut request = Request::post(&target.path)
            .header(HOST, &target.authority)
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in self.dialect.headers(self.key.as_ref().map(Secret::reveal)) {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        let told =
            |why: &dyn std::fmt::Display| format!("cannot reach {}: {why}", target.authority);
        let connecting = TcpStream::connect((target.host.as_str(), target.port));
        let stream = tokio::time::timeout(CONNECT_LIMIT, connecting).await;
        let stream =
            stream.map_err(|_| told(&"no connection in time"))?.map_err(|error| told(&error))?;
        match &self.tls {
            None => exchange(stream, request, driver).await,
            Some(tls) => {
                let name =
                    ServerName::try_from(target.host.clone()).map_err(|error| told(&error))?;
                let stream = TlsConnector::from(Arc::clone(tls))
                    .connect(name, stream)
                    .await
                    .map_err(|error| told(&error))?;
                exchange(stream, request, driver).await
            }
        }
        .map_err(|why| told(&why))
    }

    fn scrub(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.scrub(text))
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>, driver: &mut JoinSet<()>) -> Sent
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    driver.spawn(async move {
        // Whoever waits for the answer hears of its end as well.
        connection.await.ok();
    });
    sender.send_request(request).await.map_err(|error| error.to_string())
}

/// Reads a body to its end, or to the most that an answer may be.
async fn collect(body: &mut Incoming) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("it hung up: {error}"))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > MAX_ANSWER_BYTES {
                return Err(format!("its answer is longer than {MAX_ANSWER_BYTES} bytes"));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

fn refusal(status: StatusCode, after: Option<Duration>, bytes: &[u8]) -> Try {
    let words = match serde_json::from_slice(bytes) {
        Ok(value) => message_of(&value),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    };
    let words: String = words.trim().chars().take(MAX_WORDS_CHARS).collect();
    let why = format!("HTTP {status}: {words}");
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    if later.contains(&status) || status.is_server_error() || status.as_u16() == OVERLOADED {
        return Try::Again { why, after, usage: Usage::default() };
    }
    Try::Fatal { why }
}

/// How long it wants to be left alone: seconds, or a date.
fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Twice as long as the last one, and between half and all of that, so that many who were refused at once do not
/// come back at once.
fn pause(attempt: u32, chance: &mut Chance) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << attempt.min(16)).min(MAX_PAUSE);
    let half = whole / 2;
    let share = u32::try_from(chance.below(1000)).unwrap_or_default();
    half + half * share / 1000
}

fn used(reply: &Reply) -> Usage {
    Usage { input_tokens: reply.input_tokens, output_tokens: reply.output_tokens, retries: 0 }
}

fn add(to: &mut Usage, more: &Usage) {
    to.input_tokens += more.input_tokens;
    to.output_tokens += more.output_tokens;
}

/// Trusts whom this host trusts, or whom a file of certificates names.
fn trust(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, SpecError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca_file {
        let told = |why: &dyn std::fmt::Display| {
            SpecError::new("proposer.ca_file", format!("{}: {why}", path.display()))
        };
        for one in CertificateDer::pem_file_iter(path).map_err(|error| told(&error))? {
            let one = one.map_err(|error| told(&error))?;
            roots.add(one).map_err(|error| told(&error))?;
        }
        if roots.is_empty() {
            return Err(told(&"holds no certificate: it must be PEM"));
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        let reason = "begins with https://, and this host trusts nobody: install ca-certificates, or give ca_file";
        return Err(SpecError::new("proposer.url", reason));
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SpecError::new("proposer.url", format!("cannot use TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str, key_env: Option<&str>) -> Endpoint {
        let mut endpoint: Endpoint = toml::from_str("model = \"m\"").unwrap();
        endpoint.url = Some(url.to_owned());
        endpoint.key_env = key_env.map(ToOwned::to_owned);
        endpoint
    }

    #[test]
    fn a_key_is_never_sent_in_the_open() {
        let with_key = |url: &str| Target::new(&endpoint(url, Some("KEY")), Dialect::Openai);
        let error = with_key("http://models.example/v1").unwrap_err().to_string();
        assert!(error.contains("https://") && error.contains("proposer.url"), "{error}");
        assert!(with_key("http://127.0.0.1:8000/v1").is_ok());
        assert!(with_key("http://[::1]:8000/v1").is_ok());
        assert!(with_key("https://models.example/v1").is_ok());
        assert!(Target::new(&endpoint("http://models.example", None), Dialect::Ollama).is_ok());
    }

    #[test]
    fn the_vendors_key_goes_to_the_vendor_only() {
        let elsewhere = endpoint("https://models.example/v1", None);
        assert_eq!(key_source(&elsewhere, Dialect::Openai), None);
        let vendor = Endpoint { url: None, ..elsewhere };
        let (_, source) = key_source(&vendor, Dialect::Openai).unwrap();
        assert_eq!(source, SecretSource::variable("OPENAI_API_KEY"));
        assert_eq!(key_source(&vendor, Dialect::Ollama), None);
    }

    #[test]
    fn addresses_are_put_together() {
        let target =
            Target::new(&endpoint("https://a.example:99/v1/", None), Dialect::Openai).unwrap();
        assert_eq!((target.path.as_str(), target.port), ("/v1/chat/completions", 99));
        for (url, words) in [
            ("ftp://x", "https://"),
            ("nonsense", "https://"),
            ("https://u:p@x/", "key_env"),
            ("https://x/?a=b", "query"),
        ] {
            let error = Target::new(&endpoint(url, None), Dialect::Openai).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let mut chance = Chance::of(1, &[]);
        let pauses: Vec<_> = (0..20).map(|attempt| pause(attempt, &mut chance)).collect();
        assert!(pauses[0] >= FIRST_PAUSE / 2 && pauses[0] <= FIRST_PAUSE);
        assert!(pauses[3] >= FIRST_PAUSE * 4);
        assert!(pauses.iter().all(|one| *one <= MAX_PAUSE));
    }
}
