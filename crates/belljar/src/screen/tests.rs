//! Every rule by example: programs that cause it, with the place, and near misses that do not.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use proptest::prelude::*;
use serde::Deserialize;

use super::grammar::Grammar;
use super::{MAX_FINDINGS, Screener, TIME};
use crate::model::screening::Severity;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    rule: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    near: Vec<String>,
    causes: BTreeMap<String, Vec<String>>,
}

const CASES: [(&str, &str); 3] = [
    ("python", include_str!("cases/python.toml")),
    ("bash", include_str!("cases/bash.toml")),
    ("javascript", include_str!("cases/javascript.toml")),
];

fn screener() -> Screener {
    Screener::new(&[]).unwrap()
}

fn cases(text: &str) -> Vec<Case> {
    toml::from_str::<Cases>(text).unwrap().rule
}

/// Each finding as `rule line:column`.
fn told(screener: &Screener, language: &str, code: &str) -> Vec<String> {
    let screening = screener.screen(language, "main", code);
    let findings = screening.findings.iter();
    let mut told: Vec<_> =
        findings.map(|one| format!("{} {}:{}", one.rule, one.line, one.column)).collect();
    told.sort();
    told
}

#[test]
fn programs_cause_exactly_the_findings_that_are_written_beside_them() {
    let screener = screener();
    let mut wrong = Vec::new();
    for (language, text) in CASES {
        for case in cases(text) {
            for (code, mut expected) in case.causes {
                expected.sort();
                let found = told(&screener, language, &code);
                if found != expected {
                    wrong.push(format!("{code}\n  expected {expected:?}\n  found    {found:?}"));
                }
                assert!(expected.iter().any(|one| one.starts_with(&case.id)), "{}", case.id);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn near_misses_cause_nothing() {
    let screener = screener();
    let mut wrong = Vec::new();
    for (language, text) in CASES {
        for case in cases(text) {
            for code in &case.near {
                let found = told(&screener, language, code);
                // What looks like one rule may be another's; it must not be this one's.
                if found.iter().any(|one| one.starts_with(&format!("{} ", case.id))) {
                    wrong.push(format!("{}: {code}  found {found:?}", case.id));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_program_that_causes_it_and_one_that_does_not() {
    let all: Vec<Case> = CASES.iter().flat_map(|(_, text)| cases(text)).collect();
    for rule in screener().rules().iter().filter(|rule| rule.language.is_some()) {
        let case = all.iter().find(|case| case.id == rule.id);
        let case = case.unwrap_or_else(|| panic!("{} has no cases", rule.id));
        assert!(!case.causes.is_empty() && !case.near.is_empty(), "{}", rule.id);
    }
    for case in &all {
        assert!(screener().rules().iter().any(|rule| rule.id == case.id), "{}", case.id);
    }
}

/// Deep, long and broken texts: each is read or told to be unread, and soon.
#[test]
fn hostile_texts_are_read_within_bounds() {
    let screener = screener();
    let deep =
        |open: &str, close: &str, times: usize| open.repeat(times) + "1" + &close.repeat(times);
    for (language, code) in [
        ("python", deep("(", ")", 100_000)),
        ("python", "(".repeat(100_000)),
        ("python", deep("f(", ")", 100_000)),
        ("python", deep("[", "]", 200_000)),
        ("python", format!("x = {}", "1 + ".repeat(200_000) + "1")),
        ("python", format!("import os\n{}\n", "os.system('x')\n".repeat(20_000))),
        ("python", "lambda: ".repeat(50_000) + "eval('x')"),
        (
            "python",
            format!(
                "a0 = eval\n{}",
                (0..5000).map(|n| format!("a{} = a{n}\n", n + 1)).collect::<String>()
            ),
        ),
        (
            "python",
            format!(
                "{}a0('x')",
                (0..5000).map(|n| format!("a{n} = a{} + a{}\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
        ("python", "\u{0}\u{1}".repeat(1 << 20)),
        ("python", format!("x = '''{}'''", "y".repeat(16 << 20))),
        ("javascript", deep("(", ")", 100_000)),
        ("javascript", deep("{", "}", 100_000)),
        ("javascript", deep("`${", "}`", 50_000)),
        ("javascript", "a=>".repeat(100_000) + "eval('x')"),
        ("bash", deep("$(", ")", 50_000)),
        ("bash", deep("( ", " )", 50_000)),
        ("bash", deep("\"${a:-", "}\"", 50_000)),
        ("bash", "<<A\n".repeat(20_000)),
        (
            "bash",
            format!(
                "{}$a0 -rf /",
                (0..3000).map(|n| format!("a{n}=$a{}$a{}\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
    ] {
        let begun = Instant::now();
        let screening = screener.screen(language, "main", &code);
        let took = begun.elapsed();
        let start: String = code.chars().take(20).collect();
        // Unoptimised and among other tests; the bound itself is a twentieth of this.
        assert!(took < TIME * 20, "{language} {start:?} took {took:?}");
        assert!(screening.findings.len() <= MAX_FINDINGS, "{language} {start:?}");
        println!(
            "{language} {start:?} {took:?} {:?}",
            screening.findings.first().map(|one| (&one.rule, &one.name))
        );
    }
}
