//! What is told of hidden cases: how they ended, and nothing that a candidate could spell their inputs with.

use belljar::audit::{AuditConfig, Bodies};
use belljar::grade::{Case, Grade, GradeRequest};
use belljar_tests::{Program, TempDir, block_on, engine_with};
use serde_json::Value;

use crate::calls::{cases, grade, request};

fn words(grade: &Grade) -> String {
    serde_json::to_string(grade).expect("JSON")
}

#[test]
fn what_is_refused_in_a_hidden_case_is_told_without_its_words() {
    let code = "import ctypes\ndef solve(x):\n    word = b'told %d' % x\n    ctypes.CDLL(None).mount(word, b'/' + word, b'tmpfs', 0, 0)\n    \
                return x\n";
    let asked = |x: i64| Case {
        name: "it".to_owned(),
        input_args: vec![x.into()],
        expected_output: Some(0.into()),
        ..Case::default()
    };
    let public = grade(GradeRequest { cases: vec![asked(777_001)], ..request(code, "[]") });
    let told = words(&public);
    assert!(told.contains("mount") && told.contains("told 777001"), "control: {told}");
    let hidden = grade(GradeRequest { hidden: vec![asked(777_001)], ..request(code, "[]") });
    let told = words(&hidden);
    assert!(told.contains("escape_attempt") && !told.contains("777001"), "{told}");
    let shown =
        GradeRequest { show_hidden: true, hidden: vec![asked(777_001)], ..request(code, "[]") };
    assert!(words(&grade(shown)).contains("told 777001"));
}

#[test]
fn hidden_asserts_are_not_named_by_their_text() {
    let directory = TempDir::new();
    directory.file("zero.py", "def f(x):\n    return 0\n");
    directory.file("public.py", "assert f(1) == 0\n");
    directory.file("secret.py", "assert f(7) == 777001\nassert f(8) == 777002\n");
    let test = |args: &[&str]| {
        let program = Program::belljar().arg("test").args(["zero.py", "--cases", "public.py"]);
        program.args(args).args(["--json"]).directory(directory.path()).run()
    };
    let told = test(&["--hidden", "secret.py"]);
    let json: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let names: Vec<&str> = json["test_results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|one| one["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["line 1: assert f(1) == 0", "line 1", "line 2"]);
    assert!(!told.out().contains("77700"), "{told:?}");
    let shown = test(&["--hidden", "secret.py", "--show-hidden"]);
    assert!(shown.out().contains("line 1: assert f(7) == 777001"), "{shown:?}");
}

#[test]
fn time_and_memory_of_a_hidden_case_are_told_roughly() {
    let code = "def solve(x):\n    return len(bytearray(x)) and 0\n";
    let both = |show_hidden| {
        let hidden = cases(
            r#"[{"name": "a", "input_args": [41000000], "expected_output": 0},
                {"name": "b", "input_args": [61000000], "expected_output": 0}]"#,
        );
        let asked = GradeRequest { hidden, show_hidden, timing: true, ..request(code, "[]") };
        grade(asked).test_results
    };
    let shown = both(true);
    assert!(shown.iter().all(|one| one.timing.is_some()), "{shown:?}");
    assert_ne!(shown[0].memory_bytes, shown[1].memory_bytes, "control: they differ");
    for one in both(false) {
        let memory = one.memory_bytes.expect("memory");
        assert!(memory.is_power_of_two() && memory > 41_000_000, "{one:?}");
        assert!(one.duration_ms >= 1.0 && one.duration_ms.log2().fract() == 0.0, "{one:?}");
        assert!(one.timing.is_none() && one.passed, "{one:?}");
    }
}

#[test]
fn a_file_of_hidden_cases_brings_what_belongs_to_them() {
    let directory = TempDir::new();
    directory
        .file("code.py", "def one(x):\n    return x + OFFSET\ndef two(x):\n    return x * 2\n");
    directory.file(
        "public.json",
        r#"{"func_name": "two", "cases": [{"input_args": [1], "expected_output": 2}]}"#,
    );
    directory.file(
        "secret.json",
        r#"{"func_name": "one", "setup_code": "OFFSET = 10", "cases": [{"input_args": [1], "expected_output": 11}]}"#,
    );
    let test =
        |args: &[&str]| Program::belljar().arg("test").args(args).directory(directory.path()).run();
    let told = test(&["code.py", "--cases", "public.json", "--hidden", "secret.json"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    // In sets each problem has its own.
    let set = |names: [&str; 2], factor: i64| -> String {
        let line = |name: &str, factor: i64| {
            format!(
                "{{\"task_id\": \"{name}\", \"text\": \"\", \"code\": \"def f(x):\\n    return x * {factor}\\n\", \
                     \"test_list\": [\"assert f({factor}) == {}\"]}}\n",
                factor * factor
            )
        };
        line(names[0], factor) + &line(names[1], factor + 1)
    };
    directory.file("set.jsonl", set(["a", "b"], 3));
    directory.file("more.jsonl", set(["a", "b"], 3));
    directory.file("other.jsonl", set(["c", "d"], 3));
    let told = test(&["--canonical", "--cases", "set.jsonl", "--hidden", "more.jsonl", "--json"]);
    let json: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!((&json["solved"], told.code), (&2.into(), Some(0)), "{json:#}");
    let all = json["problems"].as_array().expect("problems").iter();
    assert!(
        all.clone().all(|one| one["test_results"].as_array().map(Vec::len) == Some(2)),
        "{json:#}"
    );
    let told = test(&["--canonical", "--cases", "set.jsonl", "--hidden", "other.jsonl"]);
    assert!(told.code == Some(2) && told.err().contains("other.jsonl"), "{told:?}");
}

#[test]
fn records_of_hidden_cases_do_not_show_what_was_said() {
    let directory = TempDir::new();
    let state = directory.join("state");
    let code = "import sys\ndef solve(x):\n    print(x)\n    return x\nif __name__ == '__main__':\n    print(input())\n";
    let three = |secret: &str| {
        let json = format!(
            r#"[{{"name": "call", "input_args": ["{secret}"], "expected_output": "{secret}!"}},
                {{"name": "io", "stdin": "{secret}", "expected_stdout": "x"}},
                {{"name": "law", "assert": "assert solve('{secret}') == '{secret}!'"}}]"#
        );
        cases(&json)
    };
    let audit = AuditConfig { directory: state.clone(), bodies: Bodies::Kept, spooled: false };
    let engine = engine_with(|config| config.audit = Some(audit));
    let asked = GradeRequest {
        func_name: Some("solve".to_owned()),
        hidden: three("hidden word"),
        cases: three("public word"),
        ..request(code, "[]")
    };
    let told = block_on(engine.grade(asked)).expect("a grade");
    assert_eq!(told.executions.len(), 8, "two for each law: {told:?}");
    drop(engine);
    let trail = Program::belljar().args(["audit", "export", "--state"]).arg(&state).run();
    assert!(trail.out().contains("public word"), "control: {trail:?}");
    assert!(trail.out().contains("sha256") && !trail.out().contains("hidden word"), "{trail:?}");
}
