//! Every rule by example: programs that cause it, with the place, and near misses that do not.

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;
use serde::Deserialize;

use super::grammar::Grammar;
use super::rules::Rulebook;
use super::{MAX_FINDINGS, Screener, TIME};
use crate::model::event::Severity;

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
    for rule in screener().rules().unwrap().iter().filter(|rule| rule.language.is_some()) {
        let case = all.iter().find(|case| case.id == rule.id);
        let case = case.unwrap_or_else(|| panic!("{} has no cases", rule.id));
        assert!(!case.causes.is_empty() && !case.near.is_empty(), "{}", rule.id);
    }
    for case in &all {
        assert!(screener().rules().unwrap().iter().any(|rule| rule.id == case.id), "{}", case.id);
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
    }
}

#[test]
fn findings_beyond_the_bound_are_counted_gravest_first() {
    let code = "import ctypes\n".to_owned() + &"open('p', 'w')\n".repeat(MAX_FINDINGS + 20);
    let screening = screener().screen("python", "main", &code);
    assert_eq!((screening.findings.len(), screening.left_out), (MAX_FINDINGS, 21));
    assert_eq!(screening.findings[0].rule, "python/ctypes");
    let json = serde_json::to_value(&screening).unwrap();
    assert_eq!(json["left_out"], 21);
    assert!(json["note"].as_str().unwrap().contains("the sandbox is the wall"));
}

#[test]
fn a_finding_says_what_where_and_why() {
    let screening =
        screener().screen("python", "tool.py", "import os as o\nif 1:\n\to.system('ls')\n");
    let json = serde_json::to_value(&screening.findings[0]).unwrap();
    let expected = serde_json::json!({
        "rule": "python/os-system",
        "severity": "medium",
        "name": "os.system",
        "reason": "starts a shell",
        "advice": json["advice"],
        "language": "python",
        "source": "tool.py",
        "line": 3,
        "column": 2,
        "excerpt": "o.system('ls')",
    });
    assert_eq!(json, expected);
}

#[test]
fn nothing_that_a_terminal_obeys_leaves_a_screening() {
    let code = "import os\nos.system('\u{1b}]0;x\u{7}\u{202e}')  # \u{9b}2J \u{200b}\r\u{85}\n\
                __import__('\u{1b}[2Jos')\n";
    let name = "a\u{1b}b\u{202e}.py";
    let json = serde_json::to_string(&screener().screen("python", name, code)).unwrap();
    let shell = screener().screen("bash", "x", "mkfs.\u{1b}\u{202e} x\n");
    let told = json + &serde_json::to_string(&shell).unwrap();
    assert!(told.contains("os-system") && told.contains("bash/mkfs"), "{told}");
    let obeyed = |one: char| one.is_control() || ('\u{200b}'..='\u{202e}').contains(&one);
    assert!(!told.contains(obeyed) && !told.contains("\\u001b"), "{told}");
}

#[test]
fn own_rules_add_replace_and_switch_off() {
    let directory = std::env::temp_dir().join(format!("belljar-rules-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("own.toml");
    let text = r#"
refuse = "high"
off = ["python/open-write"]
severity = { "python/socket" = "high" }

[[rule]]
id = "no-boto"
language = "python"
severity = "medium"
reason = "speaks to the cloud"
modules = ["boto3"]

[[rule]]
id = "no-print"
language = "python"
severity = "info"
reason = "is loud"
calls = ["print", "secret.tools.*"]

[[rule]]
id = "bare-except"
language = "python"
severity = "low"
reason = "hides every error"
query = '''
(except_clause !value) @found
'''

[[rule]]
id = "sleeps"
language = "python"
severity = "low"
reason = "waits"
query = '(call function: (_) @found (#names? @found "time.sleep"))'

[[rule]]
id = "bash/curl"
language = "bash"
severity = "low"
reason = "is allowed here with a proxy"
commands = ["curl"]
words = "^--proxy$"

[[rule]]
id = "no-left-pad"
language = "node"
severity = "low"
reason = "is not ours"
modules = ["left-pad"]
"#;
    std::fs::write(&path, text).unwrap();
    let screener = Screener::new(std::slice::from_ref(&path));
    std::fs::remove_dir_all(&directory).unwrap();
    let screener = screener.unwrap();
    assert_eq!(screener.refuses_at(), Severity::High);
    for (language, code, expected) in [
        ("python", "from boto3 import client\n", &["no-boto 1:1"][..]),
        ("python", "p = print\np(1)\n", &["no-print 2:1"]),
        ("python", "from secret import tools as t\nt.go()\n", &["no-print 2:1"]),
        ("python", "try:\n    x\nexcept:\n    pass\n", &["bare-except 3:1"]),
        ("python", "from time import sleep as s\ns(1)\ntime.time()\n", &["sleeps 2:1"]),
        ("python", "open('p', 'w')\n", &[]),
        ("bash", "curl x\n", &[]),
        ("bash", "curl --proxy p x\n", &["bash/curl 1:1"]),
        ("node", "require('left-pad')\n", &["no-left-pad 1:1"]),
    ] {
        assert_eq!(told(&screener, language, code), expected, "{code}");
    }
    let socket = screener.screen("python", "x", "import socket\n");
    assert_eq!(socket.findings[0].severity, Severity::High);
}

#[test]
fn rules_of_the_guide_do_what_it_says() {
    let guide = include_str!("../../../../docs/guides/screening.md");
    let rules = guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut screener = screener();
    let mut book = Rulebook::built_in(&Grammar::ALL).unwrap();
    book.add(rules, "the guide").unwrap();
    screener.own = Some(book);
    for (language, code, expected) in [
        ("python", "from google.cloud import storage\n", &["no-cloud 1:1"][..]),
        ("python", "requests.get('u', verify=False)\n", &["verify-off 1:1"]),
        ("python", "requests.get('u', verify=True)\n", &[]),
        ("bash", "git push -f\n", &["force-push 1:1"]),
        ("bash", "git push\ngit fetch --force\n", &[]),
        ("python", "try:\n    x\nexcept:\n    pass\n", &["bare-except 3:1"]),
        ("python", "try:\n    x\nexcept ValueError:\n    pass\n", &[]),
    ] {
        assert_eq!(told(&screener, language, code), expected, "{code}");
    }
}

#[test]
fn rules_for_what_cannot_be_read_can_be_switched_off() {
    let mut screener = screener();
    let unread = |screener: &Screener| {
        let nested = format!("{}1{}", "(".repeat(20_000), ")".repeat(20_000));
        let screening = screener.screen("python", "x", &nested);
        screening.findings.iter().any(|one| one.rule == "unread")
    };
    assert!(unread(&screener));
    screener.own = Some(Rulebook::built_in(&Grammar::ALL).unwrap());
    let switched_off = "off = [\"unread\", \"partly-read\"]";
    screener.own.as_mut().unwrap().add(switched_off, "own.toml").unwrap();
    assert!(!unread(&screener));
    assert!(screener.screen("python", "x", "def f(:\n").is_empty());
}

#[test]
fn languages_without_a_grammar_have_no_findings() {
    let screener = screener();
    assert!(!screener.reads("perl") && screener.screen("perl", "x", "system('ls')").is_empty());
}

/// Text that looks like code: pieces that mean something, in any order.
fn code() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "os",
        "import ",
        "from ",
        "system",
        ".",
        "(",
        ")",
        "\"",
        "'",
        "=",
        "\n",
        "    ",
        "eval",
        "def f(",
        ":",
        "lambda x: ",
        "getattr(",
        "[::-1]",
        "+",
        "f\"{",
        "}\"",
        "`${",
        "require(",
        "=>",
        "{",
        "}",
        "const ",
        "$(",
        "rm -rf /",
        "<<EOF\n",
        "EOF\n",
        "$x",
        "x=",
        "${x[@]}",
        "\\",
        "é",
        "\u{202e}",
        "\u{0}",
        "#",
        "//",
        "async ",
        "class A",
        "[",
        "]",
        ",",
        ";",
        "|",
        "&",
        "*",
        " for c in ",
        "case ",
        "esac",
        "\r\n",
        "\t",
        "'''",
    ]);
    prop::collection::vec(pieces, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_screened_without_a_panic(text in ".{0,300}") {
        within_the_text(&text);
    }

    #[test]
    fn what_looks_like_code_is_screened_without_a_panic(text in code()) {
        within_the_text(&text);
    }
}

thread_local! {
    static SCREENER: Screener = screener();
}

/// Every finding lies in the text, and is the same each time.
fn within_the_text(text: &str) {
    let lines: Vec<usize> = text.split('\n').map(|line| line.chars().count()).collect();
    for language in Grammar::ALL.map(Grammar::name) {
        let screen = || SCREENER.with(|screener| screener.screen(language, "main", text));
        let screening = screen();
        for one in &screening.findings {
            let length = lines.get(one.line - 1);
            assert!(length.is_some_and(|length| one.column <= length + 1), "{one:?} in {text:?}");
            assert!(!one.excerpt.contains('\n') && one.excerpt.chars().count() <= 1200, "{one:?}");
        }
        assert_eq!(screen(), screening, "{text:?}");
    }
}
