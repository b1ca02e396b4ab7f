//! Candidates that attack the comparison itself: values, names and exceptions that are made for it. Each fools an
//! ordinary grader first.

use std::time::{Duration, Instant};

use belljar::grade::{Case, CaseVerdict, GradeRequest};

use crate::attacks::{ANSWERS, is_fooled, naive};
use crate::calls::{cases, grade, request};

/// What came of asserts about a candidate; the function to be tested may be named.
fn judged(code: &str, func_name: Option<&str>, asserts: &[&str]) -> Vec<(CaseVerdict, String)> {
    let mut request = GradeRequest::python(code);
    request.func_name = func_name.map(ToOwned::to_owned);
    request.cases = asserts.iter().map(|source| Case::assertion(*source, *source)).collect();
    let told = grade(request).test_results.into_iter();
    told.map(|one| (one.verdict, one.detail)).collect()
}

fn none_passes(code: &str, asserts: &[&str]) {
    for func_name in [None, Some("solve")] {
        for ((verdict, detail), source) in judged(code, func_name, asserts).iter().zip(asserts) {
            assert_ne!(*verdict, CaseVerdict::Passed, "{source}: {detail}");
        }
    }
}

#[test]
fn an_infinite_answer_is_near_nothing() {
    let code = "def solve(x):\n    return {'inf': float('inf'), 'large': 10 ** 400, 'near': 2.5000001}.get(x, float('inf'))\n";
    assert!(is_fooled(&naive("with_a_tolerance", code)));
    let told = grade(request(
        code,
        r#"[{"input_args": ["inf"], "expected_output": 2.5, "tolerance": 1e-3},
            {"input_args": ["inf"], "expected_output": 2.5, "tolerance": {"rel": 0.5}},
            {"input_args": ["large"], "expected_output": 2.5, "tolerance": 1e-3},
            {"input_args": ["large"], "expected_output": {"$float": "inf"}, "tolerance": 1e-3},
            {"input_args": ["inf"], "expected_output": {"$complex": [1.0, 0.0]}, "tolerance": 1e-3},
            {"input_args": ["near"], "expected_output": 2.5, "tolerance": 1e-3},
            {"input_args": ["inf"], "expected_output": {"$float": "inf"}, "tolerance": 1e-3}]"#,
    ));
    let passed: Vec<bool> = told.test_results.iter().map(|one| one.passed).collect();
    assert_eq!(passed, [false, false, false, false, false, true, true], "{told:#?}");
    let printed = GradeRequest {
        cases: cases(
            r#"[{"stdin": "inf", "expected_stdout": "2.5", "tolerance": 1e-3},
                {"stdin": "2.5000001", "expected_stdout": "2.5", "tolerance": 1e-3}]"#,
        ),
        ..GradeRequest::python("print(input())\n")
    };
    let told = grade(printed);
    assert_eq!((told.test_results[0].passed, told.test_results[1].passed), (false, true));
}

#[test]
fn functions_named_like_built_in_ones_are_not_asked_in_their_place() {
    let code = "def abs(x):\n    return 0.0\ndef len(x):\n    return 3\ndef isinstance(*_):\n    return True\n\
                def all(x):\n    return True\ndef solve(x):\n    return 1.5\n";
    assert!(is_fooled(&naive("in_its_namespace", code)));
    let near = format!("assert abs(solve(7) - {}) < 1e-6", ANSWERS[0]);
    let inside = format!(
        "def check(candidate):\n    assert abs(candidate(7) - {}) < 1e-6\ncheck(solve)",
        ANSWERS[0]
    );
    none_passes(
        code,
        &[
            &near,
            &inside,
            "assert len([solve(1)]) == 3",
            "assert isinstance(solve(1), str)",
            "assert all([solve(1) > 2])",
        ],
    );
    // One that the test means is: by its name, or since there is nothing else of the candidate.
    let sum = "def sum(a, b):\n    return a + b\ndef abs(x):\n    return 0.0\n";
    use CaseVerdict::{Passed, Raised, WrongAnswer};
    let of = |func_name, source| judged(sum, func_name, &[source]).remove(0);
    assert_eq!(of(None, "assert sum(10, 15) == 25").0, Passed);
    assert_eq!(of(None, "assert sum(10, 15) == 26").0, WrongAnswer);
    assert_eq!(of(Some("sum"), "assert abs(sum(10, 15) - 25) < 1").0, Passed);
    assert_eq!(of(Some("sum"), "assert abs(sum(10, 15) - 90) < 1").0, WrongAnswer);
    let (verdict, detail) = of(None, "assert abs(sum(10, 15) - 25) < 1");
    assert!(verdict == Raised && detail.contains("func_name"), "{verdict:?} {detail}");
}

#[test]
fn a_module_that_a_test_names_is_not_an_object_of_the_candidate() {
    let code = "class Yes:\n    def isclose(self, *_):\n        return True\nmath = Yes()\nclass Own:\n    def put(self, x):\n        return x\n\
         queue = Own()\ndef solve(x):\n    return 1.5\n";
    assert!(is_fooled(&naive("with_its_modules", code)));
    none_passes(code, &["assert math.isclose(solve(7), 2.5)"]);
    // What no module has is the candidate's.
    assert_eq!(judged(code, None, &["assert queue.put(5) == 5"])[0].0, CaseVerdict::Passed);
}

#[test]
fn an_exception_that_ends_loops_does_not_end_the_tests() {
    let code = "def solve(x):\n    raise StopIteration\ndef odd(x):\n    if x > 1:\n        raise StopIteration\n    return x\n";
    assert!(is_fooled(&naive("by_map", code)));
    none_passes(
        code,
        &[
            "assert all(map(solve, [1, 2]))",
            "for found, wanted in zip(map(odd, [1, 2]), [1, 4]):\n    assert found == wanted",
        ],
    );
    // A test that means it gets it.
    let meant = "try:\n    solve(1)\n    assert False\nexcept StopIteration:\n    pass";
    assert_eq!(judged(code, None, &[meant])[0].0, CaseVerdict::Passed);
}

#[test]
fn the_name_of_a_class_makes_no_type() {
    let code = "class int(float):\n    pass\ndef solve(x):\n    return int(x)\n";
    assert!(is_fooled(&naive("by_the_name_of_its_type", code)));
    let told = grade(request(
        code,
        r#"[{"input_args": [5], "expected_output": 5, "expected_type": "int"},
            {"input_args": [5], "expected_type": "int"},
            {"input_args": [5], "expected_output": 5, "expected_type": "float"}]"#,
    ));
    let passed: Vec<bool> = told.test_results.iter().map(|one| one.passed).collect();
    assert_eq!(passed, [false, false, true], "{told:#?}");
}

#[test]
fn values_that_are_hard_to_compare_cost_no_more_than_others() {
    // Three sets of which each two agree up to their last element, inside of each other.
    let code = "def solve(depth):\n    a, b, c = 1, 2, 3\n    for _ in range(depth):\n        \
                a, b, c = frozenset({a, b}), frozenset({a, c}), frozenset({b, c})\n    return {a, b}\n";
    let started = Instant::now();
    let told = grade(request(
        code,
        r#"[{"input_args": [17], "expected_output": {"$set": [1]}, "timeout_ms": 20000},
            {"input_args": [11], "expected_output": {"$set": [1]}, "tolerance": 1e-9, "timeout_ms": 20000}]"#,
    ));
    let verdicts: Vec<CaseVerdict> = told.test_results.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [CaseVerdict::WrongAnswer; 2], "{told:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}
