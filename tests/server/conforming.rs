//! schemathesis over the OpenAPI document: whatever is sent, the answers are those that the document tells.

use std::time::Duration;

use belljar_tests::Program;

use crate::running::Server;

/// Streams without an end (the events of a program have none that has none), what is no HTTP after its head, archives, which it cannot make, an archive of a whole root,
/// which is all of the host's image.
const LEFT_OUT: [&str; 9] = [
    "watch",
    "root_watch",
    "exec_attach",
    "exec_events",
    "sandbox_logs",
    "tar_put",
    "root_tar_put",
    "import",
    "root_tar_get",
];

/// For a host that has much else to do: on a calm one it takes less than one of these minutes.
const PATIENCE: Duration = Duration::from_secs(1200);

/// A host under pressure would be told honestly, as 503, and that is not what is asked here.
const SHEDS_NOTHING: [&str; 8] = [
    "--shed-memory",
    "0",
    "--shed-memory-pressure",
    "0",
    "--shed-io-pressure",
    "0",
    "--shed-cpu-pressure",
    "0",
];

#[test]
fn answers_are_those_of_the_document() {
    let python = std::env::var_os("BELLJAR_TEST_PYTHON").expect("cargo xtask test sets it");
    let options = [&["--rate", "off", "--max-runs", "4"][..], &SHEDS_NOTHING].concat();
    let server = Server::with(&options);
    let address = format!("http://127.0.0.1:{}", server.port);
    let token = format!("Authorization: Bearer {}", server.token());
    let mut program = Program::new(python)
        .args(["-m", "schemathesis.cli", "run", &format!("{address}/openapi.json"), "--url", &address, "--header", &token])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "3", "--seed", "7"])
        .args(["--workers", "1", "--request-timeout", "40", "--no-color", "--generation-database", "none"])
        .env("HOME", server.path().display().to_string())
        // It leaves files where it is.
        .directory(server.path());
    for id in LEFT_OUT {
        program = program.args(["--exclude-operation-id", id]);
    }
    let ended = program.start().within(PATIENCE).wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.out(), ended.err());
}
