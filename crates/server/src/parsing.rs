//! Everything that reads a request, against bytes that nobody meant: it answers, and never falls over. The same functions
//! are the targets of `cargo xtask fuzz`, whose corpus the tests here replay.

use std::path::PathBuf;

use belljar::RunRequest;
use belljar::sandbox::{CodeRequest, ExecRequest, SandboxRequest};
use belljar_evolve::TaskFile;
use hyper::HeaderMap;
use hyper::header::HeaderValue;

use crate::http::body::parse;
use crate::problem::Problem;
use crate::trace::{Collector, Trace};

/// A name, and what reads bytes of that kind.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 7] = [
    ("bodies", bodies),
    ("headers", headers),
    ("questions", questions),
    ("policy", policy),
    ("keys", keys),
    ("frames", frames),
    ("resuming", resuming),
];

fn told(result: Result<(), Problem>) {
    if let Err(problem) = result {
        assert_eq!(problem.status, 400, "{problem:?}");
        assert!(problem.field.is_some() && !problem.detail.is_empty(), "{problem:?}");
    }
}

/// The bodies of requests.
fn bodies(bytes: &[u8]) {
    told(parse::<RunRequest>(bytes).map(drop));
    told(parse::<SandboxRequest>(bytes).map(drop));
    told(parse::<ExecRequest>(bytes).map(drop));
    told(parse::<CodeRequest>(bytes).map(drop));
    told(parse::<TaskFile>(bytes).map(drop));
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Err(error) = belljar::grade::formats::read_request(text)
    {
        assert!(!error.to_string().is_empty());
    }
}

/// A value as every header has it that is looked into.
fn headers(bytes: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let mut all = HeaderMap::new();
    for name in ["traceparent", "accept", "x-request-id", "last-event-id"] {
        all.insert(name, value.clone());
    }
    drop(Trace::of(&all));
    crate::http::forms_of(&all);
    assert!(!crate::front::RequestId::of(&all).0.is_empty());
    match crate::idempotency::check(&value) {
        Ok(key) => assert!(!key.is_empty() && key.len() <= 255),
        Err(problem) => assert_eq!(problem.status, 400),
    }
}

/// What follows a question mark, cursors, and words of options.
fn questions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    drop(Collector::parse(&text));
    drop(crate::http::page_part(Some(&text)));
    drop(text.parse::<crate::Rate>());
    drop(text.parse::<crate::Scope>());
    crate::http::question_of(&text);
}

fn policy(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Err(why) = crate::policy::parse_for_test(text)
    {
        assert!(!why.is_empty());
    }
}

/// A key as it is shown: no bytes lead to a file outside of the directory of keys.
fn keys(bytes: &[u8]) {
    let keys = crate::keys::Keys::new(PathBuf::from("/proc/self/no-such-directory"));
    assert!(keys.find(bytes).is_none());
}

/// Where to go on, as clients say it: ids of events, cursors, filters of the trail, and words of a terminal. What is not
/// ours is told, and of an answer that is given again nothing is told twice.
fn resuming(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    crate::http::resumed(&text);
    let (id, answer) = text.split_once('\n').unwrap_or((&text, ""));
    crate::idempotency::resumed(answer.as_bytes(), id);
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let headers: HeaderMap = [(hyper::header::CONTENT_ENCODING, value)].into_iter().collect();
        crate::front::takes_as_is(&headers);
    }
}

/// What an MCP client sends.
fn frames(bytes: &[u8]) {
    drop(serde_json::from_slice::<rmcp::model::ClientJsonRpcMessage>(bytes));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// JSON that is like ours, of any shape: known names, strange values, deep nesting.
    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".{0,20}".prop_map(Into::into),
            prop_oneof![Just("python"), Just("standard"), Just("refuse"), Just("warm")]
                .prop_map(Into::into),
        ];
        let name = prop_oneof![
            Just("code".to_owned()),
            Just("language".to_owned()),
            Just("limits".to_owned()),
            Just("wall_ms".to_owned()),
            Just("files".to_owned()),
            Just("base64".to_owned()),
            Just("cases".to_owned()),
            Just("cmd".to_owned()),
            Just("workspace".to_owned()),
            ".{0,8}",
        ];
        leaf.prop_recursive(6, 64, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::btree_map(name.clone(), inner, 0..8)
                    .prop_map(|all| serde_json::Value::Object(all.into_iter().collect())),
            ]
        })
    }

    /// What the fuzzer found worth keeping.
    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        let files = std::fs::read_dir(PathBuf::from(place).join(target)).unwrap();
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn what_the_fuzzer_kept_is_read_or_told() {
        for (name, target) in TARGETS {
            let all = corpus(name);
            assert!(!all.is_empty(), "{name}");
            all.iter().for_each(|bytes| target(bytes));
        }
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_read_or_told(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            bodies(&bytes);
        }

        #[test]
        fn json_of_any_shape_is_read_or_told(value in json()) {
            bodies(value.to_string().as_bytes());
        }

        #[test]
        fn json_that_is_cut_or_bent_is_read_or_told(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = value.to_string().into_bytes();
            let index = at.index(bytes.len());
            bytes[index] = byte;
            bodies(&bytes);
            bytes.truncate(index);
            bodies(&bytes);
        }

        #[test]
        fn headers_and_questions_of_any_kind_are_read_or_told(bytes in prop::collection::vec(0x20u8..=0xff, 0..200)) {
            headers(&bytes);
            questions(&bytes);
        }

        #[test]
        fn policies_of_any_kind_are_read_or_told(text in ".{0,300}") {
            policy(text.as_bytes());
        }
    }
}
