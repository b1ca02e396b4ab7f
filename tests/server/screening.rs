//! Code is read on a server as it is anywhere, and its owner may insist.

use belljar_tests::{Program, TempDir};
use serde_json::json;

use crate::running::{Server, python};

const DANGEROUS: &str = "import os\nos.system('echo ran')\n";

#[test]
fn refused_code_is_a_problem_with_its_findings() {
    let server = Server::start();
    for accept in ["application/json", "application/x-ndjson", "text/event-stream"] {
        let mut request = python(DANGEROUS);
        request["screen"] = "refuse".into();
        let answer = server.unix().post("/v1/runs", &[("Accept", accept)], &request);
        assert_eq!(answer.status, 422, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        let problem = answer.json();
        assert_eq!((&problem["kind"], &problem["field"]), (&json!("screened"), &json!("code")));
        let finding = &problem["screening"]["findings"][0];
        assert_eq!((&finding["rule"], &finding["line"]), (&json!("python/os-system"), &json!(2)));
    }
}

#[test]
fn advice_stands_in_the_outcome() {
    let server = Server::start();
    let outcome = server.run(&python(DANGEROUS)).json();
    assert_eq!(outcome["stdout"], "ran\n", "{outcome}");
    assert_eq!(outcome["screening"]["findings"][0]["rule"], "python/os-system", "{outcome}");
    let mut request = python(DANGEROUS);
    request["screen"] = "off".into();
    assert!(server.run(&request).json().get("screening").is_none());
    request["screen"] = "maybe".into();
    let answer = server.run(&request);
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("screen")), "{answer:?}");
}

#[test]
fn owner_of_the_server_may_insist() {
    let directory = TempDir::new();
    let own = directory.file(
        "own.toml",
        "[[rule]]\nid = \"no-math\"\nlanguage = \"python\"\nseverity = \"high\"\nreason = \"counts\"\n\
         modules = [\"math\"]\n",
    );
    let server =
        Server::with(&["--screen", "refuse", "--screen-rules", &own.display().to_string()]);
    for code in [DANGEROUS, "import math\n"] {
        let mut request = python(code);
        request["screen"] = "off".into();
        assert_eq!(server.run(&request).status, 422, "{code}");
    }
    assert_eq!(server.run(&python("print(1)")).json()["stdout"], "1\n");
}

#[test]
fn run_through_a_server_tells_the_same() {
    let server = Server::start();
    let run = |options: &[&str]| {
        let program = Program::belljar().arg("run").arg("--server").arg(server.socket());
        program.args(options).args(["-c", DANGEROUS]).run()
    };
    let advised = run(&[]);
    assert_eq!(advised.out(), "ran\n", "{advised:?}");
    assert!(advised.err().contains("advice: main.py line 2: os.system"), "{advised:?}");
    let refused = run(&["--screen", "refuse", "--json"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let error = &refused.json()["error"];
    assert_eq!(error["screening"]["findings"][0]["rule"], "python/os-system", "{refused:?}");
    let here_only = run(&["--screen-rules", "x.toml"]);
    assert_eq!(here_only.code, Some(2), "{here_only:?}");
    assert!(here_only.err().contains("--screen-rules"), "{here_only:?}");
}
