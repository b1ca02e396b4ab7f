//! One program for all targets: which one is meant says `BELLJAR_FUZZ`, as `cargo xtask fuzz` sets it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("BELLJAR_FUZZ").unwrap_or_default();
    let all = belljar_server::parsing::TARGETS.into_iter().chain(belljar_egress::parsing::TARGETS);
    let found = all.into_iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("no target {wanted:?}: use cargo xtask fuzz")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
