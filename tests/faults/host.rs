//! Hosts and callers that are short of something.

use belljar_tests::{Program, Sandbox, TempDir, belljar_bin};

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
fn results_that_find_no_room_leave_the_outcome_as_it_is() {
    let parent = TempDir::new();
    let out = parent.join("out");
    // A bound on our files that fails the write, as a full disk does, for root and everybody else. Only
    // the soft one: the program's own must not come out lower than asked.
    let bound = "trap '' XFSZ; ulimit -S -f 8192; exec \"$@\"";
    let code = "open('large', 'wb').write(bytes(16 << 20)); print('done'); exit(7)";
    let ended = Program::new("/bin/bash")
        .args(["-c", bound, "bash"])
        .arg(belljar_bin())
        .args(["run", "--json", "--out", &out.display().to_string(), "-c", code])
        .run();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err().contains("the results are not whole"), "{ended:?}");
    let outcome = belljar_tests::outcome(&ended);
    assert_eq!((outcome.exit_code, outcome.stdout.as_str()), (Some(7), "done\n"));
    assert!(!out.join("large").exists(), "half a result is none");
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
