//! The evaluators for other evolvers, called as these call them.

use std::path::{Path, PathBuf};

use belljar_tests::{Ended, Program, TempDir, belljar_bin};
use serde_json::{Value, json};

const GOOD: &str = "def add(a, b):\n    return a + b\n";
const HALF: &str = "def add(a, b):\n    return 3\n";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

/// A directory with a program and two cases, and a `belljar` on the path that may be another one.
struct Place(TempDir);

impl Place {
    fn new(program: &str) -> Self {
        let directory = TempDir::new();
        directory.file("program.py", program);
        directory.file(
            "cases.json",
            "[{\"input_args\": [1, 2], \"expected_output\": 3}, {\"input_args\": [1, 1], \"expected_output\": 2}]",
        );
        let place = Self(directory);
        std::os::unix::fs::symlink(belljar_bin(), place.0.join("belljar")).expect("a link");
        place
    }

    fn python(&self, args: &[&str]) -> Ended {
        let path = format!("{}:/usr/bin:/bin", self.0.join("").display());
        Program::new("/usr/bin/python3")
            .args(args)
            .env("PATH", path)
            .env("BELLJAR_CASES", self.0.join("cases.json"))
            .run()
    }

    /// As OpenEvolve does: the module is loaded, and `evaluate` called with the program's path.
    fn openevolve(&self) -> Ended {
        let script = format!(
            "import importlib.util, json\n\
             spec = importlib.util.spec_from_file_location('evaluation_module', {:?})\n\
             module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n\
             print(json.dumps(module.evaluate({:?})))",
            example("openevolve/evaluator.py"),
            self.0.join("program.py")
        );
        self.python(&["-c", &script])
    }

    /// As ShinkaEvolve does: a script with two options, which leaves two files.
    fn shinka(&self) -> (Value, Value) {
        let results = self.0.join("results");
        let (program, results) = (self.0.join("program.py"), results.display().to_string());
        let script = example("shinkaevolve/evaluate.py").display().to_string();
        let program = program.display().to_string();
        let ended = self.python(&[&script, "--program_path", &program, "--results_dir", &results]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let read = |name: &str| {
            let text = std::fs::read(Path::new(&results).join(name)).expect("a file");
            serde_json::from_slice(&text).expect("JSON")
        };
        (read("metrics.json"), read("correct.json"))
    }

    /// A belljar that fails because of us.
    fn break_it(&self) {
        std::fs::remove_file(self.0.join("belljar")).expect("our own link");
        self.0.program(
            "belljar",
            "#!/bin/sh\necho '{\"score\": null, \"all_passed\": false, \"score_trustworthy\": false}'\n",
        );
    }
}

#[test]
fn openevolve_gets_a_score_and_no_score_for_a_fault_of_ours() {
    for (program, score) in [(GOOD, 1.0), (HALF, 0.5)] {
        let ended = Place::new(program).openevolve();
        let told = ended.json();
        assert_eq!(told["combined_score"], json!(score), "{ended:?}");
        assert_eq!(told["all_passed"], json!(if score < 1.0 { 0.0 } else { 1.0 }));
    }
    let place = Place::new(GOOD);
    place.break_it();
    let ended = place.openevolve();
    assert!(ended.code == Some(1) && ended.err().contains("RuntimeError"), "{ended:?}");
}

#[test]
fn shinkaevolve_gets_its_two_files_and_no_score_for_a_fault_of_ours() {
    for (program, score) in [(GOOD, 1.0), (HALF, 0.5)] {
        let (metrics, correct) = Place::new(program).shinka();
        assert_eq!(metrics["combined_score"], json!(score), "{metrics}");
        assert_eq!(metrics["text_feedback"] == "", score >= 1.0, "{metrics}");
        assert_eq!(correct, json!({"correct": true, "error": null}));
    }
    let place = Place::new(GOOD);
    place.break_it();
    let (_, correct) = place.shinka();
    assert_eq!(correct["correct"], json!(false), "{correct}");
}
