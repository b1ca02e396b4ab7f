//! `belljar test` as people and scripts use it, here and through a server.

use belljar_tests::{Ended, Program, Server, TempDir};
use serde_json::Value;

const CASES: &str = r#"[{"name": "small", "input_args": [2, 3], "expected_output": 5},
    {"name": "<large> & \"odd\"", "input_args": [123456789012345678901234567890, 1], "expected_output": 123456789012345678901234567892, "weight": 3}]"#;
const HIDDEN: &str = r#"[{"name": "secret", "input_args": [40, 2], "expected_output": 4242}]"#;

fn files() -> TempDir {
    let directory = TempDir::new();
    for (name, text) in [
        ("add.py", "def add(a, b):\n    return a + b\n"),
        ("cases.json", CASES),
        ("hidden.json", HIDDEN),
    ] {
        std::fs::write(directory.join(name), text).expect("a file");
    }
    directory
}

fn test(directory: &TempDir, args: &[&str]) -> Ended {
    Program::belljar().arg("test").args(args).directory(directory.path()).run()
}

fn json(ended: &Ended) -> Value {
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn table_json_and_exit_code_say_the_same() {
    let directory = files();
    let plain = test(&directory, &["add.py", "--cases", "cases.json"]);
    assert_eq!(plain.code, Some(1), "{plain:?}");
    assert!(plain.out().contains("1 of 2 passed, score 0.250"), "{}", plain.out());
    assert!(
        plain.out().contains(
            "expected 123456789012345678901234567892, got 123456789012345678901234567891"
        )
    );
    let told =
        test(&directory, &["add.py", "--cases", "cases.json", "--hidden", "hidden.json", "--json"]);
    let grade = json(&told);
    assert_eq!((told.code, &grade["score"]), (Some(1), &Value::from(0.2)), "{grade:#}");
    for field in ["score", "all_passed", "score_trustworthy", "test_results", "feedback"] {
        assert!(!grade[field].is_null(), "{field} is missing: {grade:#}");
    }
    for field in
        ["name", "passed", "detail", "duration_ms", "verdict", "weight", "output", "expected"]
    {
        assert!(!grade["test_results"][0][field].is_null(), "{field} is missing: {grade:#}");
    }
    let text = told.out();
    assert!(
        text.contains("secret") && !text.contains("4242") && !text.contains("\"output\": 42"),
        "{text}"
    );
    let good = test(&directory, &["add.py", "--cases", "cases.json", "--quiet", "--func", "nope"]);
    assert!(good.code == Some(1) && good.out().contains("no function \"nope\""), "{good:?}");
}

#[test]
fn junit_is_written() {
    let directory = files();
    let told = test(&directory, &["add.py", "--cases", "cases.json", "--junit", "report.xml"]);
    assert_eq!(told.code, Some(1));
    let xml = std::fs::read_to_string(directory.join("report.xml")).expect("a report");
    assert!(
        xml.contains("<testsuite name=\"add.py\" tests=\"2\" failures=\"1\" errors=\"0\""),
        "{xml}"
    );
    assert!(
        xml.contains("name=\"&lt;large&gt; &amp; &quot;odd&quot;\"")
            && xml.contains("<failure type=\"wrong_answer\""),
        "{xml}"
    );
    let nowhere =
        test(&directory, &["add.py", "--cases", "cases.json", "--junit", "no/such/place.xml"]);
    assert!(nowhere.code == Some(2) && nowhere.err().contains("junit"), "{nowhere:?}");
}

#[test]
fn mistakes_are_told_by_name_and_cost_nothing() {
    let directory = files();
    for (name, text) in [
        ("typo.json", "[{\"input_arg\": [1], \"expected_output\": 1}]"),
        ("empty.json", "[]"),
        ("nothing.json", "[{\"name\": \"x\"}]"),
        ("broken.json", "[{"),
        ("main.sh", "echo hi\n"),
        ("empty.py", "\n"),
    ] {
        std::fs::write(directory.join(name), text).expect("a file");
    }
    for (args, words) in [
        (&["add.py", "--cases", "none.json"][..], &["none.json", "No such file"][..]),
        (&["none.py", "--cases", "cases.json"], &["none.py"]),
        (&["add.py", "--cases", "typo.json"], &["typo.json", "cases[0]", "input_arg"]),
        (&["add.py", "--cases", "empty.json"], &["no case"]),
        (&["add.py", "--cases", "nothing.json"], &["cases[0].expected_output", "is missing"]),
        (&["add.py", "--cases", "broken.json"], &["not JSON"]),
        (&["main.sh", "--cases", "cases.json"], &["language", "expected_stdout"]),
        (&["empty.py", "--cases", "cases.json"], &["code", "empty"]),
        (
            &["add.py", "--cases", "cases.json", "--level", "basic"],
            &["level", "standard or strict"],
        ),
        (&["add.py", "--cases", "cases.json", "--isolate", "much"], &["process, case"]),
        (&["add.py", "--cases", "cases.json", "--format", "xml"], &["humaneval"]),
        (&["--cases", "cases.json"], &["FILE"]),
    ] {
        let told = test(&directory, args);
        assert_eq!(told.code, Some(2), "{args:?}: {told:?}");
        assert!(words.iter().all(|word| told.err().contains(word)), "{args:?}: {}", told.err());
    }
}

#[test]
fn our_own_failure_is_exit_code_125() {
    let told = test(&files(), &["add.py", "--cases", "cases.json", "--break-at", "seccomp"]);
    assert_eq!(told.code, Some(125), "{told:?}");
    assert!(told.out().contains("not to be trusted"), "{told:?}");
}

#[test]
fn a_server_grades_the_same_and_warm() {
    let server = Server::with(&["--warm", "python", "--pool-floor", "2"]);
    server.wait_until("ready", |stats| stats.waiting >= 2);
    let directory = files();
    let socket = server.socket();
    let socket = socket.to_str().expect("text");
    let args = ["add.py", "--cases", "cases.json", "--hidden", "hidden.json", "--json"];
    let here = json(&test(&directory, &[&args[..], &["--no-server"]].concat()));
    let there = test(&directory, &[&args[..], &["--server", socket, "--start", "warm"]].concat());
    assert_eq!(there.code, Some(1), "{there:?}");
    let there = json(&there);
    for field in ["score", "all_passed", "score_trustworthy"] {
        assert_eq!(here[field], there[field], "{field}");
    }
    for (one, two) in here["test_results"]
        .as_array()
        .expect("results")
        .iter()
        .zip(there["test_results"].as_array().expect("results"))
    {
        for field in ["name", "passed", "verdict", "output", "expected", "detail"] {
            assert_eq!(one[field], two[field], "{field}");
        }
    }
    let stats = server.stats();
    assert!(
        stats.shelves.iter().any(|shelf| shelf.language == "python" && shelf.hits > 0),
        "{stats:?}"
    );
    let wrong = test(
        &directory,
        &["add.py", "--cases", "cases.json", "--level", "none", "--server", socket],
    );
    assert!(wrong.code == Some(2) && wrong.err().contains("level"), "{wrong:?}");
}

/// Without a word of copies in it, so that warm ones are made without Python: see `jail/src/copies.rs`.
const LEAVING: &str = "import os, signal\nseen = []\nos.posix_spawn('/bin/sleep', ['sleep', '61'], {}, setsid=True)\n\
    def sleepers():\n    texts = [open(f'/proc/{one}/cmdline', 'rb').read() for one in os.listdir('/proc') if one.isdigit()]\n\
    \x20   return sum(text.startswith(b'sleep') for text in texts)\n\
    def solve(x):\n    seen.append(x)\n    if x == 'leave':\n        os.posix_spawn('/bin/sleep', ['sleep', '62'], {}, setsid=True)\n\
    \x20   if x == 'crash':\n        os.kill(os.getpid(), signal.SIGSEGV)\n    if x == 'exit':\n        os._exit(3)\n\
    \x20   if x == 'raise':\n        raise KeyError(x)\n    return [seen, sleepers()]\n";
/// The first case meets what was started while the candidate was loaded, which is gone with the case.
const LEFT: &str = r#"[{"input_args": ["first"], "expected_output": [["first"], 1]},
    {"input_args": ["leave"], "expected_output": [["leave"], 1]},
    {"input_args": ["crash"], "expected_output": 1}, {"input_args": ["exit"], "expected_output": 1},
    {"input_args": ["raise"], "expected_exception": "KeyError"},
    {"input_args": ["after"], "expected_output": [["after"], 0]},
    {"input_args": ["last"], "expected_output": [["last"], 0]}]"#;

#[test]
fn copies_of_a_warm_candidate_share_nothing_and_leave_nothing() {
    let server = Server::with(&["--warm", "python", "--pool-floor", "2"]);
    server.wait_until("ready", |stats| stats.waiting >= 2);
    let directory = files();
    std::fs::write(directory.join("leaving.py"), LEAVING).expect("a file");
    std::fs::write(directory.join("left.json"), LEFT).expect("a file");
    let socket = server.socket();
    let socket = socket.to_str().expect("text");
    // All in one sandbox.
    let args = ["leaving.py", "--func=solve", "--cases=left.json", "--parallel=1", "--json"];
    let wanted = ["passed", "passed", "ended", "ended", "passed", "passed", "passed"];
    for more in [&["--server", socket, "--start", "warm"][..], &["--no-server"]] {
        let grade = json(&test(&directory, &[&args[..], more].concat()));
        let results = grade["test_results"].as_array().expect("results");
        let verdicts: Vec<&str> =
            results.iter().filter_map(|one| one["verdict"].as_str()).collect();
        assert_eq!(verdicts, wanted, "{more:?}: {grade:#}");
        let details: Vec<&str> = results.iter().filter_map(|one| one["detail"].as_str()).collect();
        assert!(details[2].contains("signal 11") && details[3].contains('3'), "{details:?}");
        let told = |one: &Value| one["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20);
        assert!(results.iter().all(told), "{grade:#}");
    }
}

#[test]
fn progress_is_for_terminals_and_data_for_pipes() {
    let directory = files();
    let piped = test(&directory, &["add.py", "--cases", "cases.json"]);
    assert_eq!(piped.err(), "", "{piped:?}");
}
