//! What went wrong, as RFC 9457 problem details. Here is the one mapping from our errors to HTTP; what each code
//! means stands in [`codes`].

mod codes;

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use belljar::{Error, Screening};
use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::{Deserialize, Serialize, Serializer};

pub use codes::{CODES, Code};

use crate::wire;

/// Seconds until a full server is worth another try: most runs are shorter.
const RETRY_AFTER_S: u64 = 1;

/// A request without a result. `kind` is its code; the words that belong to the code are added where it is written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Problem {
    pub status: u16,
    /// What was attempted, on what, and what to do.
    pub detail: Box<str>,
    /// One of [`CODES`]; for errors of the engine its word everywhere in Belljar.
    pub kind: Box<str>,
    /// The field of the request that is wrong.
    #[serde(default)]
    pub field: Option<Box<str>>,
    /// The set-up step that failed, and the kernel's word for it.
    #[serde(default)]
    pub step: Option<Box<str>>,
    #[serde(default)]
    pub errno: Option<Box<str>>,
    /// What was found in code that was to be refused for it.
    #[serde(default)]
    pub screening: Option<Box<Screening>>,
    /// The runs that a request began whose answer is unknown.
    #[serde(default)]
    pub executions: Option<Box<[String]>>,
    /// `rule` and `retry_after_s`, where a limit on callers was met.
    #[serde(flatten)]
    pub refusal: Option<Box<Refusal>>,
}

/// The rule that was broken, and in how many seconds it would not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub rule: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

/// A problem as it is written.
#[derive(Debug, Serialize)]
pub(crate) struct Written<'a> {
    /// A page about the code, at this server. Not inside of streams, whose events have a type of their own.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    about: Option<String>,
    status: u16,
    title: &'static str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    code: &'a str,
    /// The same word, as all of Belljar's JSON has it.
    kind: &'a str,
    retryable: bool,
    hint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Mistake<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    screening: Option<&'a Screening>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executions: Option<&'a [String]>,
    #[serde(flatten)]
    refusal: Option<&'a Refusal>,
}

/// Where in the body a mistake is.
#[derive(Debug, Serialize)]
struct Mistake<'a> {
    /// RFC 6901.
    pointer: String,
    message: &'a str,
}

impl<'a> Written<'a> {
    fn of(problem: &'a Problem) -> Self {
        let code = Code::of(&problem.kind);
        let field = problem.field.as_deref();
        let mistake = |field: &str| Mistake { pointer: pointer(field), message: &problem.detail };
        Self {
            about: None,
            status: problem.status,
            title: code.title,
            detail: &problem.detail,
            instance: None,
            code: &problem.kind,
            kind: &problem.kind,
            retryable: code.retryable,
            hint: code.hint,
            request_id: None,
            field,
            errors: field.map(mistake).into_iter().collect(),
            step: problem.step.as_deref(),
            errno: problem.errno.as_deref(),
            screening: problem.screening.as_deref(),
            executions: problem.executions.as_deref(),
            refusal: problem.refusal.as_deref(),
        }
    }

    /// As the answer to a request.
    pub(crate) fn answering(problem: &'a Problem, request_id: &'a str, path: &'a str) -> Self {
        let about = Some(format!("{}/{}", wire::PROBLEMS, problem.kind));
        Self { about, instance: Some(path), request_id: Some(request_id), ..Self::of(problem) }
    }
}

/// `limits.memory_bytes` and `requests[3].code` as JSON pointers.
fn pointer(field: &str) -> String {
    let mut pointer = String::new();
    for part in field.split(['.', '[']).map(|part| part.trim_end_matches(']')) {
        pointer.push('/');
        pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
    }
    pointer
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::of(self).serialize(serializer)
    }
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &str, detail: impl Into<Box<str>>) -> Self {
        Self {
            status: status.as_u16(),
            detail: detail.into(),
            kind: kind.into(),
            field: None,
            step: None,
            errno: None,
            executions: None,
            refusal: None,
            screening: None,
        }
    }

    /// The same with the status that the code has.
    pub(crate) fn coded(kind: &'static str, detail: impl Into<Box<str>>) -> Self {
        let status = StatusCode::from_u16(Code::of(kind).status);
        Self::new(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), kind, detail)
    }

    /// A rule of the operator's forbids it.
    pub(crate) fn ruled(rule: &str, field: &str, detail: impl Into<Box<str>>) -> Self {
        let mut problem = Self::coded("policy", detail);
        problem.field = Some(field.into());
        let refusal = Refusal { rule: rule.to_owned(), retry_after_s: None };
        problem.refusal = Some(Box::new(refusal));
        problem
    }

    /// There is nothing of that name, or it is another tenant's: the same words for both.
    pub(crate) fn not_found(detail: impl Into<Box<str>>) -> Self {
        Self::coded("not_found", detail)
    }

    /// A mistake of the caller in a field, before there is a request that the engine could check.
    pub(crate) fn field(field: &str, reason: &str) -> Self {
        Self::from(&Error::from(belljar::SpecError::new(field, reason)))
    }
}

impl From<&Error> for Problem {
    /// Caller's mistakes are 4xx, ours 5xx; a Verdict never comes here, it is a 200.
    fn from(error: &Error) -> Self {
        let status = match error {
            Error::Spec(_) => StatusCode::BAD_REQUEST,
            // Well said, and asked not to be done.
            Error::Screened(_) => StatusCode::UNPROCESSABLE_ENTITY,
            // Only inside the answer to a batch: the batch's own budget was too small for this one.
            Error::Budget { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Error::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::Conflict { .. } => StatusCode::CONFLICT,
            // Nobody is told of a cancelled run but those whom the end of the server cut short.
            Error::Unavailable { .. } | Error::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            Error::Setup { .. }
            | Error::NotVerified { .. }
            | Error::Backend { .. }
            | Error::Audit { .. }
            | Error::Lost { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut problem = Self::new(status, error.kind(), error.to_string());
        match error {
            Error::Spec(spec) => problem.field = Some(spec.field.as_str().into()),
            Error::Screened(screening) => {
                problem.field = Some("code".into());
                problem.screening = Some(screening.clone());
            }
            Error::Setup { step, errno, .. } => {
                problem.step = Some(belljar::step_name(*step).into());
                problem.errno = Some(errno.as_str().into());
            }
            Error::Cancelled => problem.detail = "cancelled: the server was stopped".into(),
            Error::NotVerified { .. }
            | Error::Unavailable { .. }
            | Error::Backend { .. }
            | Error::Lost { .. }
            | Error::Busy { .. }
            | Error::Audit { .. }
            | Error::NotFound { .. }
            | Error::Conflict { .. }
            | Error::Budget { .. } => {}
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        // A Problem is strings and a number: there is nothing in it that JSON could not say.
        let json = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(json));
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(wire::PROBLEM));
        let told = self.refusal.as_ref().and_then(|one| one.retry_after_s);
        let soon = Code::of(&self.kind).retryable && matches!(self.status, 429 | 503);
        if let Some(seconds) = told.or(soon.then_some(RETRY_AFTER_S)) {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let (true, Some(told)) = (&*self.kind == "rate_limited", &self.refusal) {
            let of = if told.rule.ends_with(".requests") { "requests" } else { "runs" };
            let reset = told.retry_after_s.unwrap_or(RETRY_AFTER_S);
            headers.insert("ratelimit-remaining", 0.into());
            headers.insert("ratelimit-reset", reset.into());
            if let Ok(value) = HeaderValue::from_str(&format!("\"{of}\";r=0;t={reset}")) {
                headers.insert("ratelimit", value);
            }
        }
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"belljar\"");
            headers.insert(WWW_AUTHENTICATE, scheme);
        }
        // For the front, which knows the request's id.
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// The answer to a method that a path does not have.
pub(crate) fn method_not_allowed(allowed: &str) -> Response {
    let detail = format!("this path answers {allowed} only");
    let mut response = Problem::coded("method_not_allowed", detail).into_response();
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    use belljar::{Level, SpecError};

    use super::*;

    #[test]
    fn each_plane_of_errors_has_its_status() {
        let lost = Error::Lost { what: "x" };
        let busy = Error::Busy { running: 1, waiting: 0 };
        let unavailable = Error::Unavailable {
            level: Level::Maximum,
            missing: "a second kernel".into(),
            hint: "use strict".into(),
        };
        for (error, status) in [
            (SpecError::new("code", "is missing").into(), 400),
            (busy, 429),
            (unavailable, 503),
            (lost, 500),
            (Error::Cancelled, 503),
        ] {
            let problem = Problem::from(&error);
            assert_eq!((problem.status, &*problem.kind), (status, error.kind()));
        }
    }

    #[test]
    fn fields_are_pointed_at() {
        assert_eq!(pointer("limits.memory_bytes"), "/limits/memory_bytes");
        assert_eq!(pointer("requests[3].code"), "/requests/3/code");
        assert_eq!(pointer("a~b/c"), "/a~0b~1c");
        let json = serde_json::to_value(Problem::field("limits.wall_ms", "is 0")).unwrap();
        assert_eq!(json["errors"][0]["pointer"], "/limits/wall_ms");
        assert_eq!((&json["code"], &json["retryable"]), (&"spec".into(), &false.into()));
    }

    #[test]
    fn a_problem_is_read_as_it_was_written() {
        let problem = Problem::ruled("keys.ci.languages", "language", "is node");
        let json = serde_json::to_string(&problem).unwrap();
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem, "{json}");
    }

    #[test]
    fn a_full_server_says_when_to_come_back() {
        let response = Problem::from(&Error::Busy { running: 1, waiting: 0 }).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], wire::PROBLEM);
    }
}
