//! What fails because of us is tried again, then told, and never scored.

use belljar::grade::{CaseVerdict, Grade, GradeRequest};
use belljar::{Engine, Fault, FaultKind, Step};
use belljar_tests::{TempDir, belljar_bin, block_on, engine_with};

use crate::calls::cases;

const RIGHT: &str = "def solve(x=1):\n    return x\nif __name__ == '__main__':\n    print(1)\n";

fn grade(engine: &Engine, json: &str) -> Grade {
    let mut request = GradeRequest::python(RIGHT);
    request.cases = cases(json);
    request.parallel = std::num::NonZeroUsize::new(1);
    block_on(engine.grade(request)).expect("a grade, whatever fails")
}

/// The three kinds of case.
const KINDS: [&str; 3] = [
    r#"[{"input_args": [1], "expected_output": 1}, {"input_args": [2], "expected_output": 2}]"#,
    r#"[{"assert": "assert solve(1) == 1"}]"#,
    r#"[{"stdin": "", "expected_stdout": "1"}]"#,
];

#[test]
fn a_sandbox_that_always_fails_is_infrastructure_and_no_score() {
    for kind in [FaultKind::Error, FaultKind::Die] {
        let broken = engine_with(|config| config.fault = Some(Fault { step: Step::Seccomp, kind }));
        for json in KINDS {
            let grade = grade(&broken, json);
            assert_eq!(
                (grade.score, grade.score_trustworthy, grade.all_passed),
                (None, false, false),
                "{grade:#?}"
            );
            let ours =
                |one: &belljar::grade::CaseResult| one.verdict == CaseVerdict::Infrastructure;
            assert!(grade.test_results.iter().all(ours), "{grade:#?}");
            assert!(grade.test_results.iter().all(|one| !one.passed));
        }
    }
}

/// A launcher that fails so many times, and then starts the real one.
fn flaky(directory: &TempDir, failures: usize) -> std::path::PathBuf {
    let script = format!(
        "#!/bin/sh\nn=$(ls {top} | grep -c started-)\nif [ \"$n\" -lt {failures} ]; then\n  : > {top}/started-$n\n  exit 1\nfi\n\
         exec {bin} \"$@\"\n",
        top = directory.path().display(),
        bin = belljar_bin().display()
    );
    directory.program("launcher", script)
}

#[test]
fn a_sandbox_that_fails_now_and_then_is_tried_again() {
    for json in KINDS {
        let directory = TempDir::new();
        let launcher = flaky(&directory, 2);
        let engine = engine_with(|config| config.launcher = launcher);
        let grade = grade(&engine, json);
        assert!(
            grade.all_passed && grade.score_trustworthy && grade.score == Some(1.0),
            "{grade:#?}"
        );
    }
}

#[test]
fn the_number_of_tries_is_bounded() {
    for json in KINDS {
        let directory = TempDir::new();
        let launcher = flaky(&directory, 1000);
        let engine = engine_with(|config| config.launcher = launcher);
        let grade = grade(&engine, json);
        assert!(!grade.score_trustworthy && grade.score.is_none(), "{grade:#?}");
        let started = std::fs::read_dir(directory.path()).expect("it is there").count() - 1;
        assert_eq!(started, 3, "the first try and two more, whatever the number of cases");
    }
}
