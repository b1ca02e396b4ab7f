//! The tests of the package, which are written in Python, file by file.

use std::path::{Path, PathBuf};

use belljar_tests::{Ended, Program, TempDir, belljar_bin};

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdks/python")
}

fn python(arguments: &[&str]) -> Ended {
    let python = std::env::var_os("BELLJAR_TEST_PYTHON").expect("run by cargo xtask test");
    Program::new(python)
        .args(arguments)
        .env("PYTHONPATH", package().join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BELLJAR_BIN", belljar_bin())
        .directory(&package())
        .run()
}

/// Runs some files of tests; that none was found is a failure.
fn pytest(files: &[&str]) {
    let directory = TempDir::new();
    let base = format!("--basetemp={}", directory.join("pytest").display());
    let files: Vec<String> = files.iter().map(|file| format!("tests/{file}")).collect();
    let mut arguments = vec!["-m", "pytest", &base];
    arguments.extend(files.iter().map(String::as_str));
    let ended = python(&arguments);
    assert!(ended.code == Some(0) && ended.out().contains(" passed in "), "{ended:?}");
}

#[test]
fn synchronous_client_does_all_that_a_server_can() {
    pytest(&["synchronous"]);
}

#[test]
fn asynchronous_client_does_all_that_a_server_can() {
    pytest(&["asynchronous"]);
}

#[test]
fn client_starts_a_server_that_ends_with_it() {
    pytest(&["test_local.py"]);
}

#[test]
fn client_builds_requests_reads_problems_and_tries_again() {
    pytest(&["test_pieces.py"]);
}

#[test]
fn client_ends_what_it_leaves_and_finds_what_it_lost() {
    pytest(&["test_ending.py"]);
}

#[test]
fn examples_of_the_guide_print_what_it_says() {
    pytest(&["test_guide.py"]);
}

#[test]
fn types_hold_under_a_strict_checker() {
    let directory = TempDir::new();
    let cache = format!("--cache-dir={}", directory.join("mypy").display());
    let ended = python(&["-m", "mypy", &cache]);
    assert!(ended.code == Some(0) && ended.out().contains("Success: no issues"), "{ended:?}");
    // The control: a mistake is found.
    directory.file("wrong.py", "import belljar\nbelljar.run('print(1)').exit_code + 'x'\n");
    let wrong = directory.join("wrong.py").display().to_string();
    let ended = python(&["-m", "mypy", &cache, &wrong]);
    assert!(ended.code == Some(1) && ended.out().contains("[operator]"), "{ended:?}");
}

/// The type checker knows no Python that old, and the machine has a newer one.
#[test]
fn package_needs_no_newer_python_than_it_says() {
    let vermin =
        ["-c", "from vermin import main; main()", "--target=3.9-", "--no-tips", "--violations"];
    let ended = python(&[&vermin[..], &["src/belljar"]].concat());
    assert!(ended.code == Some(0) && ended.out().contains("Minimum required"), "{ended:?}");
    // The control: what came later is found.
    let directory = TempDir::new();
    directory.file("newer.py", "match 1:\n    case 1:\n        pass\n");
    let newer = directory.join("newer.py").display().to_string();
    let ended = python(&[&vermin[..], &[&newer]].concat());
    assert!(ended.code == Some(1) && ended.out().contains("requires !2, 3.10"), "{ended:?}");
}

#[test]
fn synchronous_half_is_made_out_of_the_asynchronous_one() {
    let ended = python(&["tools/make_sync.py", "--check"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
