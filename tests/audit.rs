//! The record of what happened: nothing runs unrecorded, nothing that was told is missing, and whoever
//! touches the trail is found out.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed, and says where"
)]

#[path = "audit/hostile.rs"]
mod hostile;
#[path = "audit/killed.rs"]
mod killed;
#[path = "audit/refused.rs"]
mod refused;
#[path = "audit/told.rs"]
mod told;
#[path = "audit/trail.rs"]
mod trail;

use belljar_tests::{Ended, Program, TempDir};
use serde_json::Value;

/// A state directory of a test's own.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new() }
    }

    pub(crate) fn directory(&self) -> &TempDir {
        &self.directory
    }

    pub(crate) fn state(&self) -> std::path::PathBuf {
        self.directory.join("state")
    }

    pub(crate) fn belljar(&self) -> Program {
        Program::belljar().env("BELLJAR_STATE", self.state())
    }

    /// `belljar run` with an Outcome as its answer.
    pub(crate) fn run(&self, options: &[&str]) -> Value {
        let ended = self.belljar().args(["run", "--json"]).args(options).run();
        let outcome = ended.json();
        assert!(outcome["execution_id"].is_string(), "{ended:?}");
        outcome
    }

    pub(crate) fn audit(&self, arguments: &[&str]) -> Ended {
        self.belljar().arg("audit").args(arguments).run()
    }

    /// What `audit list --json` says of the runs that match.
    pub(crate) fn list(&self, filter: &[&str]) -> Vec<Value> {
        let ended = self.audit(&[&["list", "--json", "--limit", "100000"], filter].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    pub(crate) fn show(&self, id: &str) -> Value {
        self.audit(&["show", id, "--json"]).json()
    }

    /// The chain holds; what verify says of it.
    pub(crate) fn verified(&self) -> Value {
        let ended = self.audit(&["verify", "--json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()["verified"].clone()
    }
}

/// The id of an Outcome.
pub(crate) fn id(outcome: &Value) -> &str {
    outcome["execution_id"].as_str().expect("an id")
}
