//! Everything that reads a request, against bytes that nobody meant: it answers, and never falls over.

use belljar::RunRequest;
use belljar::sandbox::{CodeRequest, ExecRequest, SandboxRequest};
use belljar_evolve::TaskFile;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use proptest::prelude::*;

use crate::http::body::parse;
use crate::problem::Problem;
use crate::trace::{Collector, Trace};

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

fn told(result: Result<(), Problem>) {
    if let Err(problem) = result {
        assert_eq!(problem.status, 400, "{problem:?}");
        assert!(problem.field.is_some() && !problem.detail.is_empty(), "{problem:?}");
    }
}

fn read_all(bytes: &[u8]) {
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

proptest! {
    #[test]
    fn bytes_of_any_kind_are_read_or_told(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read_all(&bytes);
    }

    #[test]
    fn json_of_any_shape_is_read_or_told(value in json()) {
        read_all(value.to_string().as_bytes());
    }

    #[test]
    fn json_that_is_cut_or_bent_is_read_or_told(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = value.to_string().into_bytes();
        let index = at.index(bytes.len());
        bytes[index] = byte;
        read_all(&bytes);
        bytes.truncate(index);
        read_all(&bytes);
    }

    #[test]
    fn headers_and_questions_of_any_kind_are_read_or_told(bytes in prop::collection::vec(0x20u8..=0xff, 0..200)) {
        if let Ok(value) = HeaderValue::from_bytes(&bytes) {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", value);
            drop(Trace::of(&headers));
        }
        let text = String::from_utf8_lossy(&bytes);
        drop(Collector::parse(&text));
        drop(crate::http::page_part(Some(&text)));
        drop(text.parse::<crate::Rate>());
        drop(text.parse::<crate::Scope>());
        crate::http::question_of(&text);
    }

    #[test]
    fn policies_of_any_kind_are_read_or_told(text in ".{0,300}") {
        if let Err(why) = crate::policy::parse_for_test(&text) {
            prop_assert!(!why.is_empty());
        }
    }
}
