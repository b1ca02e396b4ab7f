//! The clients are of other languages: their tests are beside this file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar_tests::{Program, Server, TempDir, belljar_bin};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mcp").join(name)
}

fn provided(name: &str) -> OsString {
    std::env::var_os(name).expect("run by cargo xtask test")
}

/// Runs the tests with these words in their names; that none was found is a failure.
fn pytest(names: &str) {
    let directory = TempDir::new();
    let ended = Program::new(provided("BELLJAR_TEST_PYTHON"))
        .args(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", names])
        .arg(format!("--basetemp={}", directory.join("pytest").display()))
        .arg(file("test_tools.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BELLJAR_BIN", belljar_bin())
        .directory(directory.path())
        .run();
    assert!(ended.code == Some(0) && ended.out().contains(" passed"), "{ended:?}");
}

#[test]
fn everything_is_listed_in_both_revisions() {
    pytest("everything_is_listed");
}

#[test]
fn code_runs_and_failures_are_told_with_their_traceback() {
    pytest("code_and_commands");
}

#[test]
fn mistakes_name_the_field() {
    pytest("mistakes");
}

#[test]
fn sandbox_keeps_files_variables_and_points() {
    pytest("sandbox_keeps");
}

#[test]
fn pictures_are_image_content() {
    pytest("pictures");
}

#[test]
fn progress_comes_from_output() {
    pytest("progress");
}

#[test]
fn cancelled_call_ends_what_it_had_started() {
    pytest("cancelled");
}

#[test]
fn tests_are_graded_and_refusals_explained() {
    pytest("graded");
}

#[test]
fn environment_of_the_launcher_is_not_seen_inside() {
    pytest("environment");
}

#[test]
fn pages_and_strangers_are_refused() {
    pytest("strangers");
}

#[test]
fn standard_output_holds_messages_only_and_ends_with_the_input() {
    pytest("standard_output or named");
}

#[test]
fn desktop_hosts_are_answered_with_nearly_no_environment() {
    pytest("desktop_hosts");
}

#[test]
fn messages_beside_the_usual_ones_are_answered_and_break_nothing() {
    pytest("beside_the_usual");
}

fn javascript(transport: &str, environment: &[(&str, &str)]) {
    let mut program = Program::new("/usr/bin/node")
        .arg(file("client.cjs"))
        .arg(transport)
        .env("BELLJAR_BIN", belljar_bin());
    for (name, value) in environment {
        program = program.env(name, value);
    }
    let ended = program.run();
    assert_eq!((ended.code, ended.out().as_str()), (Some(0), "all held\n"), "{ended:?}");
}

#[test]
fn npm_client_over_standard_input_and_output() {
    let directory = TempDir::new();
    let inside = |name: &str| directory.join(name).display().to_string();
    let environment =
        [("BELLJAR_SOCKET", &*inside("b.sock")), ("BELLJAR_STATE", &*inside("state"))];
    javascript("stdio", &environment);
}

#[test]
fn npm_client_over_http() {
    let server = Server::with(&["--listen", "127.0.0.1:0"]);
    let line = server.lines().iter().find(|line| line.contains("http://")).expect("an address");
    let address = line.trim().rsplit(' ').next().expect("a word");
    let token = std::fs::read_to_string(server.path().join("state/token")).expect("the token");
    let url = format!("{address}/mcp");
    javascript("http", &[("MCP_URL", &url), ("MCP_TOKEN", token.trim())]);
}
