//! What belljar says about itself.

use belljar_tests::{Level, Program};

fn say(args: &[&str]) -> belljar_tests::Ended {
    Program::belljar().args(args).run()
}

#[test]
fn version_is_told() {
    let ended = say(&["--version"]);
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.out(), format!("belljar {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_names_every_command_and_exit_code() {
    let ended = say(&["--help"]);
    assert_eq!((ended.code, ended.err()), (Some(0), String::new()));
    for word in [
        "run",
        "batch",
        "serve",
        "doctor",
        "levels",
        "languages",
        "124",
        "125",
        "126",
        "127",
        "128+n",
    ] {
        assert!(ended.out().contains(word), "no {word} in {ended:?}");
    }
}

#[test]
fn help_of_run_names_every_option() {
    let ended = say(&["run", "--help"]);
    assert_eq!(ended.code, Some(0));
    for option in [
        "-c",
        "--language",
        "--level",
        "--timeout",
        "--cpu-time",
        "--cpus",
        "--memory",
        "--pids",
        "--disk",
        "--inodes",
        "--files",
        "--file-size",
        "--output",
        "--stdin",
        "--env",
        "--file",
        "--workspace",
        "--out",
        "--json",
        "--quiet",
        "--allow-missing",
        "--allow-syscall",
        "--deny-syscall",
        "--block-path",
        "--raw",
        "--server",
        "--no-server",
    ] {
        assert!(ended.out().contains(option), "no {option} in {ended:?}");
    }
    assert!(!ended.out().contains("--break-at"), "a hook for tests is not an option");
}

#[test]
fn levels_are_printed_with_their_contracts() {
    let text = say(&["levels"]);
    assert_eq!(text.code, Some(0));
    for level in Level::ALL {
        assert!(text.out().contains(level.summary()), "{text:?}");
    }
    assert!(text.out().contains("standard (default)"), "{text:?}");
    let json = say(&["levels", "--json"]).json();
    let all = json.as_array().expect("a list");
    assert_eq!(all.len(), Level::ALL.len());
    for (shown, level) in all.iter().zip(Level::ALL) {
        assert_eq!(shown["name"], level.name());
        assert_eq!(shown["layers"].as_array().map(Vec::len), Some(level.layers().len()));
    }
}

#[test]
fn nothing_asked_is_a_bad_request_with_help() {
    let ended = say(&[]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err().contains("Usage: belljar"), "{ended:?}");
}
