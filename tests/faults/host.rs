//! Hosts and callers that are short of something.

use belljar_tests::{Sandbox, TempDir};

use crate::guard::{Guarded, Mark, belljar_command};

#[test]
fn files_that_do_not_fit_are_told_before_the_program_runs() {
    let host = TempDir::new();
    let large = host.file("large", vec![7; 2 << 20]);
    let copy = format!("{}:large", large.display());
    let mark = Mark::new();
    let guarded = Guarded::belljar(&["--disk", "1m", "--file", &copy], &mark);
    let error = guarded.error();
    assert_eq!(guarded.code, 125, "{guarded:?}");
    assert_eq!((&error["step"], &error["errno"]), (&"placed".into(), &"ENOSPC".into()));
    let message = error["message"].to_string();
    assert!(message.contains("raise --disk") && message.contains("/workspace/large"), "{message}");
    mark.assert_unmade();
    guarded.assert_clean();
}

#[test]
fn too_few_inodes_for_the_files_are_told() {
    let host = TempDir::new();
    let file = host.file("small", "x");
    let copies: Vec<String> = (0..40).map(|at| format!("{}:d{at}/small", file.display())).collect();
    let mut options = vec!["--inodes", "32"];
    for copy in &copies {
        options.extend(["--file", copy]);
    }
    let mark = Mark::new();
    let guarded = Guarded::belljar(&options, &mark);
    let error = guarded.error();
    assert_eq!(
        (&error["step"], &error["errno"]),
        (&"placed".into(), &"ENOSPC".into()),
        "{guarded:?}"
    );
    guarded.assert_clean();
}

#[test]
fn a_caller_without_descriptors_gets_an_error_and_later_runs_work() {
    for most in ["8", "12", "16", "20"] {
        let mark = Mark::new();
        let limit = format!("--nofile={most}");
        let guarded = Guarded::run(belljar_command(&["/usr/bin/prlimit", &limit], &[], &mark));
        // prlimit becomes belljar, so the ids are the same. With enough of them left it may also work.
        if guarded.code != 0 {
            assert_eq!(guarded.code, 125, "{most}: {guarded:?}");
        }
        guarded.assert_clean();
    }
    assert!(Sandbox::standard().run_python("print(1)").ok());
}
