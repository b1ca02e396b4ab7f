//! Cases that call a function: values of every type, and cases that do not disturb each other.

use belljar::grade::{Case, CaseResult, CaseVerdict, Grade, GradeRequest, Isolate};
use belljar::{Error, Level, Value};
use belljar_tests::{block_on, engine};

pub(crate) fn cases(json: &str) -> Vec<Case> {
    serde_json::from_str(json).expect("cases")
}

pub(crate) fn request(code: &str, json: &str) -> GradeRequest {
    let mut request = GradeRequest::python(code);
    request.cases = cases(json);
    request.limits.wall_ms = Some(5000);
    request
}

pub(crate) fn grade(request: GradeRequest) -> Grade {
    block_on(engine().grade(request)).expect("a grade")
}

fn verdicts(grade: &Grade) -> Vec<CaseVerdict> {
    grade.test_results.iter().map(|one| one.verdict).collect()
}

fn one(code: &str, case: &str) -> CaseResult {
    grade(request(code, &format!("[{case}]"))).test_results.remove(0)
}

#[test]
fn values_of_every_type_go_in_and_come_out_as_they_are() {
    let echo = "def echo(x):\n    return x\n";
    let values = [
        "null",
        "true",
        "0",
        "-1",
        "1.5",
        "-0.0",
        "1e300",
        "\"\"",
        "\"h\\u00e9 \\ud83d\\ude00\\u0000\"",
        "[]",
        "[1, [2, [null]]]",
        "{}",
        "{\"a\": {\"b\": [1]}}",
        "{\"$tuple\": [1, {\"$tuple\": []}]}",
        "{\"$set\": [1, \"x\"]}",
        "{\"$frozenset\": [{\"$tuple\": [1, 2]}]}",
        "{\"$bytes\": \"/wAB\"}",
        "{\"$complex\": [1.5, -2.0]}",
        "{\"$float\": \"nan\"}",
        "{\"$float\": \"inf\"}",
        "{\"$float\": \"-inf\"}",
        "{\"$int\": \"123456789012345678901234567890123456789\"}",
        "{\"$int\": \"-9223372036854775809\"}",
        "9223372036854775807",
        "{\"$dict\": [[1, 2], [{\"$tuple\": [1]}, null], [\"$x\", 0]]}",
    ];
    let all: Vec<String> = values
        .iter()
        .map(|value| format!("{{\"input_args\": [{value}], \"expected_output\": {value}}}"))
        .collect();
    let grade = grade(request(echo, &format!("[{}]", all.join(","))));
    for (value, result) in values.iter().zip(&grade.test_results) {
        assert!(result.passed, "{value}: {result:?}");
        let shown = serde_json::to_string(&result.output).expect("JSON");
        let wanted: Value = serde_json::from_str(value).expect("a value");
        let wanted = serde_json::to_string(&wanted).expect("JSON");
        if !value.contains("set") {
            assert_eq!(shown, wanted); // the order of a set is its own affair
        }
    }
    assert_eq!((grade.score, grade.all_passed), (Some(1.0), true));
}

#[test]
fn what_is_no_value_is_refused_in_words() {
    let code = "import sys\ndef solve(what):\n    if what == 'self':\n        x = []\n        x.append(x)\n        return x\n\
                \x20   if what == 'deep':\n        x = []\n        for _ in range(100):\n            x = [x]\n        return x\n\
                \x20   if what == 'long':\n        return 'x' * 100_000_000\n    if what == 'many':\n        return [0] * 2_000_000\n\
                \x20   if what == 'object':\n        return object()\n    if what == 'function':\n        return solve\n\
                \x20   if what == 'generator':\n        return (i for i in range(3))\n    if what == 'half':\n        return '\\ud800'\n\
                \x20   if what == 'digits':\n        return 1 << 4_000_000\n";
    for (what, word) in [
        ("self", "holds itself"),
        ("deep", "nested deeper than"),
        ("long", "longer than"),
        ("many", "more than"),
        ("object", "is of type object"),
        ("function", "is of type function"),
        ("generator", "is of type generator"),
        ("half", "surrogate"),
        ("digits", "digits"),
    ] {
        let result =
            one(code, &format!("{{\"input_args\": [\"{what}\"], \"expected_output\": 1}}"));
        assert_eq!(result.verdict, CaseVerdict::NotComparable, "{what}: {result:?}");
        assert!(result.detail.contains(word), "{what}: {}", result.detail);
    }
}

#[test]
fn what_is_expected_can_be_a_type_an_exception_or_nothing() {
    let code = "import collections, enum\nclass Colour(enum.IntEnum):\n    RED = 1\n\
                Point = collections.namedtuple('Point', 'x y')\nclass Own(KeyError):\n    pass\n\
                def solve(x):\n    if x == 'none':\n        return None\n    if x == 'enum':\n        return Colour.RED\n\
                \x20   if x == 'point':\n        return Point(1, 2)\n    if x == 'counter':\n        return collections.Counter('aab')\n\
                \x20   if x == 'generator':\n        return iter([1])\n    if x == 'own':\n        raise Own('x')\n    return x\n";
    let grade = grade(request(
        code,
        r#"[
        {"input_args": ["none"], "expected_output": null}, {"input_args": [0], "expected_output": null},
        {"input_args": ["enum"], "expected_output": 1}, {"input_args": ["point"], "expected_output": {"$tuple": [1, 2]}},
        {"input_args": ["counter"], "expected_output": {"a": 2, "b": 1}, "expected_type": "Counter"},
        {"input_args": [true], "expected_type": "bool"}, {"input_args": [1], "expected_type": "bool"},
        {"input_args": ["generator"], "expected_type": "list_iterator"}, {"input_args": ["own"], "expected_exception": "Own"},
        {"input_args": ["own"], "expected_exception": "LookupError"}, {"input_args": ["own"], "expected_exception": "ValueError"},
        {"input_args": [1], "expected_exception": "ValueError"}, {"input_args": ["own"], "expected_output": 1}
        ]"#,
    ));
    use CaseVerdict::{Passed, Raised, WrongAnswer};
    let wanted = [
        Passed,
        WrongAnswer,
        Passed,
        Passed,
        Passed,
        Passed,
        WrongAnswer,
        Passed,
        Passed,
        Passed,
        WrongAnswer,
        WrongAnswer,
        Raised,
    ];
    assert_eq!(verdicts(&grade), wanted, "{grade:#?}");
}

#[test]
fn one_case_cannot_poison_the_next() {
    let code = "seen = []\ndef solve(x):\n    seen.append(x)\n    import builtins\n    builtins.sorted = None\n    return seen\n";
    let all: Vec<String> = (0..5)
        .map(|one| format!("{{\"input_args\": [{one}], \"expected_output\": [{one}]}}"))
        .collect();
    let mut asked = request(code, &format!("[{}]", all.join(",")));
    asked.shuffle = Some(3);
    assert!(grade(asked).all_passed);
}

#[test]
fn a_daemon_of_one_case_is_gone_before_the_next() {
    let code = "import os, time\ndef solve(x):\n    if x == 0:\n        if os.fork() == 0:\n            os.setsid()\n            time.sleep(60)\n\
                \x20   return sorted(one for one in os.listdir('/proc') if one.isdigit() and b'belljar_inside' in \
                open(f'/proc/{one}/cmdline', 'rb').read()).__len__()\n";
    // The loaded candidate and its copy; after the first case there would be a third. The last case is answered by
    // the loaded candidate itself, alone.
    let mut asked = request(
        code,
        r#"[{"input_args": [0], "expected_output": 3}, {"input_args": [1], "expected_output": 2},
            {"input_args": [2], "expected_output": 1}]"#,
    );
    asked.parallel = Some(std::num::NonZeroUsize::MIN); // all in one sandbox, however slow the machine is
    let grade = grade(asked);
    assert!(grade.all_passed, "{grade:#?}");
}

#[test]
fn cases_that_meet_a_limit_do_not_end_the_others() {
    let code = "import os, signal\ndef solve(x):\n    if x == 'sleep':\n        while True:\n            pass\n\
                \x20   if x == 'memory':\n        return len(bytearray(2 << 30))\n    if x == 'crash':\n        os.kill(os.getpid(), signal.SIGSEGV)\n\
                \x20   return x\n";
    let grade = grade(request(
        code,
        r#"[{"input_args": [1], "expected_output": 1}, {"input_args": ["sleep"], "expected_output": 1, "timeout_ms": 300},
            {"input_args": [2], "expected_output": 2}, {"input_args": ["memory"], "expected_output": 1, "timeout_ms": 60000},
            {"input_args": [3], "expected_output": 3}, {"input_args": ["crash"], "expected_output": 1},
            {"input_args": [4], "expected_output": 4}]"#,
    ));
    use CaseVerdict::{Ended, MemoryLimit, Passed, Raised, TimeLimit};
    let mut found = verdicts(&grade);
    if found[3] == Raised {
        found[3] = MemoryLimit; // where the allocation itself is refused
    }
    assert_eq!(
        found,
        [Passed, TimeLimit, Passed, MemoryLimit, Passed, Ended, Passed],
        "{grade:#?}"
    );
    assert!(
        grade.score_trustworthy
            && grade.score.is_some_and(|score| (score - 4.0 / 7.0).abs() < 1e-9)
    );
}

#[test]
fn candidates_with_threads_are_not_copied() {
    let code = "import threading, time\nlock = threading.Lock()\nticks = []\ndef tick():\n    while True:\n        ticks.append(1)\n        time.sleep(0.001)\n\
                threading.Thread(target=tick, daemon=True).start()\ndef solve(x):\n    before = len(ticks)\n    while len(ticks) == before:\n        pass\n    return x\n";
    let pair =
        r#"[{"input_args": [1], "expected_output": 1}, {"input_args": [2], "expected_output": 2}]"#;
    let mut asked = request(code, pair);
    asked.func_name = Some("solve".to_owned());
    let grade = grade(asked);
    assert!(grade.all_passed, "a copy would wait for a thread that it does not have: {grade:#?}");
}

#[test]
fn a_sandbox_for_each_case_shares_no_file() {
    let code = "import os\ndef solve(x):\n    seen = os.path.exists('/tmp/seen')\n    open('/tmp/seen', 'w').close()\n    return seen\n";
    let pair = r#"[{"expected_output": false, "input_args": [1]}, {"expected_output": false, "input_args": [2]}]"#;
    let mut apart = request(code, pair);
    apart.isolate = Isolate::Case;
    let mut together = request(code, pair);
    together.parallel = std::num::NonZeroUsize::new(1);
    assert_eq!(
        verdicts(&grade(together))[1],
        CaseVerdict::WrongAnswer,
        "the control shares its files"
    );
    assert!(grade(apart).all_passed);
}

#[test]
fn candidates_that_cannot_be_loaded_fail_every_case_with_the_reason() {
    let two = r#"[{"expected_output": 1}, {"expected_output": 2}]"#;
    for (code, kind, line) in [
        ("def solve(:\n    pass\n", "SyntaxError", Some(1)),
        ("import nothing_of_that_name\n", "ModuleNotFoundError", Some(1)),
        ("x = 1\nraise ValueError('at once')\n", "ValueError", Some(2)),
    ] {
        let grade = grade(request(code, two));
        assert_eq!(verdicts(&grade), [CaseVerdict::NotLoaded; 2], "{grade:#?}");
        let raised = grade.test_results[1].raised.as_ref().expect("what was raised");
        assert_eq!((raised.kind.as_str(), raised.line), (kind, line));
        assert_eq!(grade.feedback[0].error_type.as_deref(), Some(kind), "{:?}", grade.feedback);
        assert_eq!(grade.feedback[0].cases.len(), 2);
    }
}

#[test]
fn the_function_is_found_or_asked_for() {
    let code = "def first():\n    return 1\n\nclass Solution:\n    def two(self):\n        return 2\n\nasync def third():\n    return 3\n";
    let mut asked = request(
        code,
        r#"[{"expected_output": 1}, {"func_name": "Solution.two", "expected_output": 2},
            {"func_name": "third", "expected_output": 3}, {"func_name": "fourth", "expected_output": 4}]"#,
    );
    let grade_of_all = grade(asked.clone());
    use CaseVerdict::{NotLoaded, Passed};
    assert_eq!(
        verdicts(&grade_of_all),
        [NotLoaded, Passed, Passed, NotLoaded],
        "{grade_of_all:#?}"
    );
    assert!(grade_of_all.test_results[0].detail.contains("first, third"), "{grade_of_all:#?}");
    assert!(grade_of_all.test_results[3].detail.contains("no function \"fourth\""));
    asked.func_name = Some("first".to_owned());
    assert!(grade(asked).test_results[0].passed);
}

#[test]
fn setup_files_weights_and_prints_are_as_asked() {
    let mut asked = request(
        "def solve(x):\n    print('thinking about', x)\n    return SCALE * x + int(open('data.txt').read())\n",
        r#"[{"input_args": [1], "expected_output": 15, "weight": 3}, {"input_args": [2], "expected_output": 0}]"#,
    );
    asked.setup_code = Some("SCALE = 10\n".to_owned());
    asked.files.insert("data.txt".to_owned(), "5".into());
    let grade = grade(asked);
    assert_eq!(grade.score, Some(0.75), "{grade:#?}");
    assert_eq!(grade.test_results[0].printed, "thinking about 1\n");
    assert!(grade.test_results[1].detail.contains("expected 0, got 25"));
    assert!(grade.feedback_text.contains("case 2"), "{}", grade.feedback_text);
    assert!(grade.test_results[0].memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
}

#[test]
fn levels_without_a_process_table_are_refused_and_strict_works() {
    let case = r#"[{"input_args": [1], "expected_output": 1}]"#;
    for level in [Level::None, Level::Basic] {
        let mut asked = request("def solve(x):\n    return x\n", case);
        asked.level = level;
        let error = block_on(engine().grade(asked)).expect_err("refused");
        assert!(matches!(&error, Error::Spec(spec) if spec.field == "level"), "{error}");
    }
    let mut strict = request("def solve(x):\n    return x\n", case);
    strict.level = Level::Strict;
    assert!(grade(strict).all_passed);
}

#[test]
fn timing_tells_slow_from_fast_with_an_interval() {
    let code =
        "def solve(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return n\n";
    let mut asked = request(
        code,
        r#"[{"input_args": [10], "expected_output": 10}, {"input_args": [3000000], "expected_output": 3000000},
            {"input_args": [1], "expected_output": 2}]"#,
    );
    asked.timing = true;
    let grade = grade(asked);
    let timing = |index: usize| grade.test_results[index].timing.clone();
    let (fast, slow) = (timing(0).expect("measured"), timing(1).expect("measured"));
    assert!(slow.cpu_ms > 20.0 && slow.cpu_ms > 3.0 * fast.cpu_ms, "{grade:#?}");
    for one in [&fast, &slow] {
        assert!(
            one.low_ms <= one.cpu_ms && one.cpu_ms <= one.high_ms && one.repetitions >= 6,
            "{one:?}"
        );
    }
    assert_eq!(timing(2), None, "what does not pass is not measured");
    // Counted where the machine can, else the reason; three million rounds are some instructions each.
    match (slow.instructions, &slow.no_instructions) {
        (Some(count), None) => {
            assert!(count > 3_000_000 && fast.instructions < Some(count), "{grade:#?}");
        }
        (None, Some(why)) => assert!(why.starts_with("not available here: "), "{why}"),
        both => panic!("one of the two: {both:?}"),
    }
}

#[test]
fn a_candidate_that_idles_where_nobody_asks_gains_no_time() {
    let work = "def solve(x):\n    end = time.process_time() + 0.2\n    while time.process_time() < end:\n        pass\n    return x\n";
    // Takes twice as long where it is only loaded: its first copy is told that nothing will come.
    let idle = "import os, time\nforks, fork, leave = 0, os.fork, os._exit\ndef counted():\n    global forks\n    forks += 1\n    \
                return fork()\ndef late(code):\n    if code == 77 and forks == 1:\n        solve(0), solve(0)\n    leave(code)\n\
                os.fork, os._exit = counted, late\n";
    for code in [format!("import time\n{work}"), format!("{idle}{work}")] {
        let mut asked = request(&code, r#"[{"input_args": [1], "expected_output": 1}]"#);
        (asked.timing, asked.func_name) = (true, Some("solve".to_owned()));
        let told = grade(asked).test_results.remove(0);
        let timing = told.timing.as_ref().expect("measured");
        assert!((150.0..400.0).contains(&timing.cpu_ms), "{code}: {told:?}");
    }
}
