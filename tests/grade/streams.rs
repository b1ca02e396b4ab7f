//! Cases with a standard input and an expected output, in any language.

use belljar::grade::{CaseVerdict, GradeRequest};

use crate::calls::{cases, grade};

fn verdicts(language: &str, code: &str, json: &str) -> Vec<CaseVerdict> {
    let request = GradeRequest {
        code: code.to_owned(),
        language: Some(language.to_owned()),
        cases: cases(json),
        ..GradeRequest::default()
    };
    grade(request).test_results.iter().map(|one| one.verdict).collect()
}

#[test]
fn every_language_is_judged_by_what_it_writes() {
    use CaseVerdict::{Passed, WrongAnswer};
    let both = r#"[{"stdin": "3 4\n", "expected_stdout": "7"}, {"stdin": "1 1\n", "expected_stdout": "3\n"}]"#;
    for (language, code) in [
        ("python", "a, b = map(int, input().split())\nprint(a + b)\n"),
        ("bash", "read a b\necho $((a + b))\n"),
        (
            "node",
            "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);\nconsole.log(a + b);\n",
        ),
    ] {
        assert_eq!(verdicts(language, code, both), [Passed, WrongAnswer], "{language}");
    }
}

#[test]
fn how_an_output_is_compared_can_be_chosen() {
    use CaseVerdict::{Passed, WrongAnswer};
    let code = "print('b 0.30000000000000004  ')\nprint('a')\nprint()\n";
    let found = verdicts(
        "python",
        code,
        r#"[{"expected_stdout": "b 0.30000000000000004\na\n"}, {"expected_stdout": "b 0.30000000000000004\na\n", "exact": true},
            {"expected_stdout": "b 0.3\na"}, {"expected_stdout": "b 0.3\na", "tolerance": 1e-9},
            {"expected_stdout": "a\nb 0.30000000000000004", "unordered": true}]"#,
    );
    assert_eq!(found, [Passed, WrongAnswer, WrongAnswer, Passed, Passed]);
}

#[test]
fn failures_and_limits_are_no_wrong_answers() {
    use CaseVerdict::{Ended, OutputLimit, Passed, TimeLimit};
    let code = "import sys\nx = input()\nif x == 'fail':\n    print('right')\n    sys.exit(3)\nif x == 'raise':\n    print(1 / 0)\n\
                if x == 'hang':\n    while True:\n        pass\nif x == 'flood':\n    while True:\n        print('x' * 1000)\nprint('right')\n";
    let request = GradeRequest {
        cases: cases(
            r#"[{"stdin": "fail", "expected_stdout": "right"}, {"stdin": "raise", "expected_stdout": "right"},
                {"stdin": "hang", "expected_stdout": "right", "timeout_ms": 500},
                {"stdin": "flood", "expected_stdout": "right"}, {"stdin": "", "expected_stdout": "right"},
                {"stdin": "well\n", "expected_stdout": "right"}]"#,
        ),
        ..GradeRequest::python(code)
    };
    let grade = grade(request);
    let found: Vec<CaseVerdict> = grade.test_results.iter().map(|one| one.verdict).collect();
    assert_eq!(found, [Ended, Ended, TimeLimit, OutputLimit, Ended, Passed], "{grade:#?}");
    let raised = grade.test_results[1].raised.as_ref().expect("found in its words");
    assert_eq!((raised.kind.as_str(), raised.line), ("ZeroDivisionError", Some(7)));
    assert!(grade.feedback_text.contains("divisor is zero"), "{}", grade.feedback_text);
}

#[test]
fn lines_are_those_of_the_candidate_whatever_runs_before_it() {
    let request = GradeRequest {
        setup_code: Some("import math\nLIMIT = 1\n\ndef helper():\n    return 0".to_owned()),
        cases: cases(r#"[{"stdin": "", "expected_stdout": "x"}]"#),
        ..GradeRequest::python("x = LIMIT\nprint(x / helper())\n")
    };
    let grade = grade(request);
    let raised = grade.test_results[0].raised.as_ref().expect("found in its words");
    assert_eq!((raised.kind.as_str(), raised.line), ("ZeroDivisionError", Some(2)));
    assert!(grade.feedback_text.contains(">   2 | print(x / helper())"), "{}", grade.feedback_text);
}
