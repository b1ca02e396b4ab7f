//! Every code that a problem can have, in one table. Codes are stable: clients decide by them, so one that is in
//! this table keeps its meaning, and its words may only become better.

use serde::Serialize;

/// What a code means, whatever the occasion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Code {
    pub code: &'static str,
    /// The usual status; a few codes have another one on occasion.
    pub status: u16,
    pub title: &'static str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What to do about it.
    pub hint: &'static str,
}

const fn code(
    code: &'static str,
    status: u16,
    title: &'static str,
    retryable: bool,
    hint: &'static str,
) -> Code {
    Code { code, status, title, retryable, hint }
}

const NO: bool = false;
const YES: bool = true;

/// All of them, by status.
pub const CODES: [Code; 50] = [
    code("spec", 400, "The request is wrong", NO, "correct the field that is named"),
    code("links", 400, "Too many symbolic links", NO, "name the file itself"),
    code("name_too_long", 400, "A name is too long", NO, "use a shorter path"),
    code("refused", 400, "The files refused it", NO, "read the detail"),
    code("unauthorized", 401, "No valid key", NO, "send Authorization: Bearer KEY"),
    code("forbidden", 403, "Not for this caller", NO, "read the detail"),
    code("scope", 403, "The key lacks a scope", NO, "use a key with the scope that is named"),
    code("policy", 403, "The policy forbids it", NO, "ask for less, or have the rule changed"),
    code("denied", 403, "The sandbox's files deny it", NO, "change the file's mode inside"),
    code("read_only", 403, "A read-only file system", NO, "write to /workspace or /tmp"),
    code(
        "not_found",
        404,
        "There is no such thing",
        NO,
        "check the name; a list shows what there is",
    ),
    code("method_not_allowed", 405, "Another method", NO, "use a method that Allow names"),
    code("timeout", 408, "The body came too slowly", YES, "send it faster, or in parts"),
    code("conflict", 409, "Its state forbids it", NO, "look at its state first"),
    code("exists", 409, "It is there already", NO, "choose another name, or replace it"),
    code("not_a_directory", 409, "Not a directory", NO, "check the path"),
    code("is_a_directory", 409, "A directory", NO, "name a file, or say recursive"),
    code("not_empty", 409, "The directory is not empty", NO, "say recursive"),
    code("not_regular", 409, "Not a regular file", NO, "only files can be read and written"),
    code("paused", 409, "The sandbox is paused", NO, "resume it first"),
    code("changed", 409, "It changed meanwhile", YES, "try again"),
    code("other_file_system", 409, "On another file system", NO, "copy it, then remove it"),
    code(
        "idempotency_lost",
        409,
        "The first answer is not kept",
        NO,
        "look at what was made, or use a new key",
    ),
    code(
        "outcome_unknown",
        409,
        "The server ended before the answer was kept",
        NO,
        "look at the executions that are named, then use a new key",
    ),
    code("too_large", 413, "Too large", NO, "send less, or in parts"),
    code(
        "unsupported_encoding",
        415,
        "The body is encoded",
        NO,
        "send it without Content-Encoding",
    ),
    code("screened", 422, "Screening refused the code", NO, "read the findings"),
    code("budget", 422, "The batch's budget is spent", NO, "give the batch a larger budget"),
    code(
        "idempotency_mismatch",
        422,
        "The key was used for another request",
        NO,
        "use a new Idempotency-Key",
    ),
    code("upgrade_required", 426, "Only by WebSocket", NO, "connect with a WebSocket client"),
    code("busy", 429, "All places are taken", YES, "come back after Retry-After"),
    code("rate_limited", 429, "Too many requests", YES, "come back after Retry-After"),
    code("budget_spent", 429, "The CPU budget is spent", YES, "come back after Retry-After"),
    code("quota", 429, "A quota is used up", YES, "let something end first"),
    code("headers_too_large", 431, "The head is too large", NO, "send fewer or shorter headers"),
    code(
        "setup",
        500,
        "A barrier could not be raised",
        NO,
        "run belljar doctor on the server's host",
    ),
    code(
        "not_verified",
        500,
        "A barrier could not be verified",
        NO,
        "run belljar doctor on the server's host",
    ),
    code(
        "backend",
        500,
        "The host failed us",
        YES,
        "tell the operator; the log has the request id",
    ),
    code("lost", 500, "What ran was lost", YES, "try again; tell the operator if it stays"),
    code(
        "audit",
        500,
        "The audit trail failed",
        NO,
        "run belljar audit verify on the server's host",
    ),
    code(
        "kernel",
        500,
        "The kernel refused it",
        NO,
        "tell the operator; the log has the request id",
    ),
    code(
        "agent",
        500,
        "The sandbox's agent failed",
        YES,
        "try again; restart the sandbox if it stays",
    ),
    code("ours", 500, "A fault of ours", YES, "tell the operator; the log has the request id"),
    code(
        "not_implemented",
        501,
        "This host cannot do it",
        NO,
        "run belljar doctor on the server's host",
    ),
    code(
        "unavailable",
        503,
        "This host cannot keep the level",
        NO,
        "ask for another level; belljar doctor says why",
    ),
    code(
        "idempotency_unavailable",
        503,
        "The key cannot be kept",
        YES,
        "nothing was begun: try again, and tell the operator if it stays",
    ),
    code("cancelled", 503, "The server is stopping", YES, "try again when it is back"),
    code("draining", 503, "The server is stopping", YES, "try again when it is back"),
    code("overloaded", 503, "The host is under pressure", YES, "come back after Retry-After"),
    code(
        "disk_full",
        507,
        "The sandbox's disk is full",
        NO,
        "remove files, or make it with more disk_bytes",
    ),
];

/// What is said of a code that nobody wrote down: a fault of ours.
const UNKNOWN: Code = code("ours", 500, "A fault of ours", false, "tell the operator");

impl Code {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        CODES.iter().find(|one| one.code == name)
    }

    pub(crate) fn of(name: &str) -> &'static Self {
        Self::named(name).unwrap_or(&UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_stands_once_and_in_the_order_of_its_status() {
        for pair in CODES.windows(2) {
            assert!(pair[0].status <= pair[1].status, "{} before {}", pair[0].code, pair[1].code);
        }
        for one in &CODES {
            assert_eq!(CODES.iter().filter(|other| other.code == one.code).count(), 1, "{one:?}");
            assert!(!one.title.is_empty() && !one.hint.is_empty(), "{one:?}");
        }
    }

    #[test]
    fn every_error_of_the_engine_has_its_code() {
        use belljar::{Error, SpecError};
        let all = [
            Error::from(SpecError::new("a", "b")),
            Error::Busy { running: 1, waiting: 1 },
            Error::Lost { what: "x" },
            Error::Cancelled,
            Error::NotFound { what: String::new() },
            Error::Conflict { what: String::new() },
        ];
        for error in all {
            assert!(Code::named(error.kind()).is_some(), "{}", error.kind());
        }
    }
}
