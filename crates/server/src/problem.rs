//! What went wrong, as RFC 9457 problem details. Here is the one mapping from our errors to HTTP.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use belljar::{Error, Screening};
use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::{Deserialize, Serialize};

use crate::wire;

/// Seconds until a full server is worth another try: most runs are shorter.
const RETRY_AFTER_S: u64 = 1;

/// A request without a result. There is no `type` member: `kind` names the problem, `title` only says
/// the status in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub status: u16,
    pub title: Box<str>,
    /// What was attempted, on what, and what to do.
    pub detail: Box<str>,
    /// `spec`, `screened`, `setup`, `not_verified`, `unavailable`, `backend`, `lost`, `budget`, `busy`, `cancelled`,
    /// `audit`, `not_found`, `conflict` as everywhere in Belljar; `rate_limited`, `budget_spent`, `unauthorized`, `forbidden`, `method_not_allowed`,
    /// `too_large`, `timeout` for requests that never reached the engine.
    pub kind: Box<str>,
    /// The field of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub field: Option<Box<str>>,
    /// The set-up step that failed, and the kernel's word for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub errno: Option<Box<str>>,
    /// What was found in code that was to be refused for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub screening: Option<Box<Screening>>,
    /// `rule` and `retry_after_s`, where a limit on callers was met.
    #[serde(flatten)]
    pub refusal: Option<Box<Refusal>>,
}

/// The rule that was broken, and in how many seconds it would not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub rule: String,
    pub retry_after_s: u64,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &str, detail: impl Into<Box<str>>) -> Self {
        Self {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or_default().into(),
            detail: detail.into(),
            kind: kind.into(),
            field: None,
            step: None,
            errno: None,
            refusal: None,
            screening: None,
        }
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
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(wire::PROBLEM));
        match response.status() {
            StatusCode::TOO_MANY_REQUESTS => {
                let seconds = self.refusal.map_or(RETRY_AFTER_S, |one| one.retry_after_s);
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer realm=\"belljar\"");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
        response
    }
}

/// The answer to a method that a path does not have.
pub(crate) fn method_not_allowed(allowed: &'static str) -> Response {
    let detail = format!("this path answers {allowed} only");
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail);
    let mut response = problem.into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
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
    fn a_full_server_says_when_to_come_back() {
        let response = Problem::from(&Error::Busy { running: 1, waiting: 0 }).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], wire::PROBLEM);
    }
}
