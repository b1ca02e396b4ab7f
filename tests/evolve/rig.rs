//! A directory with a task and a store in it.

use std::path::{Path, PathBuf};

use belljar_tests::{Ended, Program, TempDir};
use serde_json::{Value, json};

/// What a `command` proposer of the tests begins with.
const PROPOSER: &str = "import json, sys\nrequest = json.load(sys.stdin)\n";

#[derive(Debug)]
pub(crate) struct Rig {
    pub directory: TempDir,
    variables: Vec<(String, String)>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new(), variables: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// A task for a function `add` with three public cases and two hidden ones, and more lines before the tables.
    pub(crate) fn adding(&self, lines: &str, tables: &str) -> PathBuf {
        let task = format!(
            "prompt = \"Write add(a, b).\"\nfunc = \"add\"\n{lines}\n\
             cases = [\n{{input_args = [1, 2], expected_output = 3}},\n\
             {{input_args = [0, 0], expected_output = 0}},\n{{input_args = [-4, 1], expected_output = -3}}]\n\
             hidden = [{{name = \"large\", input_args = [777001, 1], expected_output = 777002}},\n\
             {{name = \"small\", input_args = [-777003, 0], expected_output = -777003}}]\n{tables}\n"
        );
        self.directory.file("task.toml", task)
    }

    /// The table of a proposer that runs this Python after it has read its `request`.
    pub(crate) fn proposer(&self, script: &str) -> String {
        self.directory.file("propose.py", format!("{PROPOSER}{script}"));
        "[proposer]\nkind = \"command\"\ncommand = [\"python3\", \"propose.py\"]".to_owned()
    }

    pub(crate) fn program(&self, words: &[&str]) -> Program {
        let mut program =
            Program::belljar().arg("evolve").args(words).arg("--state").arg(self.state());
        for (name, value) in &self.variables {
            program = program.env(name, value);
        }
        program
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        self.program(words).run()
    }

    /// Evolves the task to its end; the summary.
    pub(crate) fn evolve(&self, task: &Path) -> Value {
        let ended = self.run(&[&task.display().to_string(), "--json"]);
        let summary = ended.json();
        assert!(summary["id"].is_string(), "{ended:?}");
        summary
    }

    /// Every line of an evolution.
    pub(crate) fn lines(&self, id: &str) -> Vec<Value> {
        let ended = self.run(&["export", id]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let read = |line: &str| serde_json::from_str(line).expect("JSON");
        ended.out().lines().map(read).collect()
    }

    pub(crate) fn of_type(&self, id: &str, kind: &str) -> Vec<Value> {
        self.lines(id).into_iter().filter(|line| line["type"] == kind).collect()
    }

    /// All bytes of the store.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut waiting = vec![self.state()];
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("a directory");
                waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
            } else {
                all.extend(std::fs::read(&path).expect("a file"));
            }
        }
        all
    }
}

pub(crate) fn holds(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// What two runs of the same evolution have in common.
pub(crate) fn essence(summary: &Value) -> Vec<Value> {
    let steps = summary["steps"].as_array().expect("steps");
    let told = |one: &Value| {
        json!([one["step"], one["parent"], one["status"], one["score"], one["accepted"]])
    };
    steps.iter().map(told).collect()
}
