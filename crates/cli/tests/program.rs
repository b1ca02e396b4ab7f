//! The command as cargo built it: that it starts, and how it answers somebody who says nothing. All else that it does needs a
//! sandbox, and is in the suite `cli`.

use std::process::{Command, Output};

#[allow(clippy::panic, reason = "only tests call it")]
fn belljar(arguments: &[&str]) -> Output {
    #[allow(clippy::disallowed_methods, reason = "a test starts the program as anybody would")]
    let told = Command::new(env!("CARGO_BIN_EXE_belljar")).args(arguments).output();
    told.unwrap_or_else(|error| panic!("it does not start: {error}"))
}

#[test]
fn it_says_which_version_it_is() {
    let told = belljar(&["--version"]);
    assert!(told.status.success(), "{told:?}");
    assert_eq!(told.stdout, format!("belljar {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
}

#[test]
fn without_a_word_it_says_what_can_be_asked() {
    let told = belljar(&[]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    let help = String::from_utf8(told.stderr).unwrap();
    assert!(help.contains("Usage: belljar"), "{help}");
    assert!(help.contains("\n  run "), "{help}");
}
