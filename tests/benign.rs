//! Ordinary programs must not notice that they are confined: at standard and at strict.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

use belljar_tests::{Level, Sandbox};

#[path = "benign/bash.rs"]
mod bash;
#[path = "benign/node.rs"]
mod node;
#[path = "benign/python.rs"]
mod python;

/// Runs it and wants this output, an exit code of 0, and not a word on stderr.
fn expect(level: Level, language: &str, code: &str, output: &str) {
    let outcome = Sandbox::at(level).run_code(language, code);
    assert_eq!(outcome.stderr, "", "{outcome:?}");
    assert_eq!(outcome.stdout, output);
    assert!(outcome.ok(), "{outcome:?}");
    // That there is no network is told whoever asks for it, and is true.
    let told = |event: &&belljar::Event| event.rule != "net_namespace";
    let worse = outcome.events.iter().filter(|event| event.severity > belljar::Severity::Info);
    let worse = worse.filter(told);
    assert_eq!(worse.count(), 0, "{:?}", outcome.events);
    assert_eq!(outcome.risk, belljar::Risk::Low);
}
