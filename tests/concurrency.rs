//! The suite concurrency.

use belljar_tests::Sandbox;

#[test]
fn a_program_runs_and_says_so() {
    let outcome = Sandbox::standard().run_python("print(6 * 7)");
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, "42\n");
}
