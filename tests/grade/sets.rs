//! Sets of problems and folders, as the importers read them, through the command.

use belljar_tests::{Ended, Program, TempDir};
use serde_json::Value;

const HUMANEVAL: &str = include_str!("samples/humaneval.jsonl");
const HUMANEVAL_MUTANTS: &str = include_str!("samples/humaneval-mutants.jsonl");
const MBPP: &str = include_str!("samples/mbpp.jsonl");
const MBPP_MUTANTS: &str = include_str!("samples/mbpp-mutants.jsonl");

struct Files(TempDir);

impl Files {
    fn with(files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new();
        for (name, text) in files {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().expect("in a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        Self(directory)
    }

    fn test(&self, args: &[&str]) -> Ended {
        Program::belljar().arg("test").args(args).directory(self.0.path()).run()
    }
}

fn json(ended: &Ended) -> Value {
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn canonical_solutions_pass_and_mutants_fail() {
    for (name, set, mutants) in
        [("humaneval", HUMANEVAL, HUMANEVAL_MUTANTS), ("mbpp", MBPP, MBPP_MUTANTS)]
    {
        let files = Files::with(&[("set.jsonl", set), ("mutants.jsonl", mutants)]);
        let good = files.test(&["--canonical", "--cases", "set.jsonl", "--json"]);
        let told = json(&good);
        assert_eq!(
            (&told["solved"], &told["total"], good.code),
            (&10.into(), &10.into(), Some(0)),
            "{name}: {told:#}"
        );
        let bad =
            files.test(&["mutants.jsonl", "--cases", "set.jsonl", "--format", name, "--json"]);
        let told = json(&bad);
        assert_eq!((&told["solved"], bad.code), (&0.into(), Some(1)), "{name}: {told:#}");
        assert_eq!(told["score_trustworthy"], true);
        // None of them fails for another reason than its answer.
        for problem in told["problems"].as_array().expect("problems") {
            let all = problem["test_results"].as_array().expect("results");
            assert!(
                all.iter().all(|one| ["passed", "wrong_answer", "raised"]
                    .contains(&one["verdict"].as_str().unwrap_or_default())),
                "{problem:#}"
            );
        }
    }
}

#[test]
fn one_problem_of_a_set_can_be_chosen_for_a_file() {
    let solution = "def split_words(text, longest):\n    return [one.lower() for one in text.split() if len(one) <= longest]\n";
    let files = Files::with(&[("set.jsonl", HUMANEVAL), ("solution.py", solution)]);
    let told = files.test(&["solution.py", "--cases", "set.jsonl", "--task", "Belljar/1"]);
    assert!(told.code == Some(0) && told.out().contains("1 of 1 passed"), "{told:?}");
    let told = files.test(&["solution.py", "--cases", "set.jsonl"]);
    assert!(told.code == Some(2) && told.err().contains("--task"), "{told:?}");
    let told = files.test(&["solution.py", "--cases", "set.jsonl", "--task", "Belljar/99"]);
    assert!(told.code == Some(2) && told.err().contains("Belljar/99"), "{told:?}");
}

#[test]
fn folders_files_of_asserts_toml_and_lines_are_read() {
    let files = Files::with(&[
        ("sum.py", "print(sum(map(int, open(0).read().split())))\n"),
        ("io/1.in", "1 2\n"),
        ("io/1.out", "3\n"),
        ("io/2.in", "5\n"),
        ("io/2.ans", "5"),
        ("io/10.in", "1 1 1\n"),
        ("io/10.out", "4\n"),
        ("half/1.in", "1"),
        ("add.py", "def add(a, b):\n    return a + b\n"),
        (
            "checks.py",
            "SMALL = 1\nassert add(SMALL, 2) == 3\ndef test_text():\n    assert add('a', 'b') == 'ab'\nassert add(1, 1) == 3\n",
        ),
        (
            "cases.toml",
            "func_name = \"add\"\n[[cases]]\nname = \"t\"\ninput_args = [1, 2]\nexpected_output = 3\n",
        ),
        (
            "cases.jsonl",
            "{\"input_args\": [1, 2], \"expected_output\": 3}\n\n{\"input_args\": [1, 2], \"expected_output\": 4}\n",
        ),
    ]);
    let names = |told: &Value| -> Vec<(String, bool)> {
        let all = told["test_results"].as_array().expect("results").iter();
        all.map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one["passed"] == true))
            .collect()
    };
    let pair = |name: &str, passed: bool| (name.to_owned(), passed);
    let told = json(&files.test(&["sum.py", "--cases", "io", "--json"]));
    assert_eq!(names(&told), [pair("1", true), pair("2", true), pair("10", false)], "{told:#}");
    let half = files.test(&["sum.py", "--cases", "half"]);
    assert!(half.code == Some(2) && half.err().contains("1.out"), "{half:?}");
    let told = json(&files.test(&["add.py", "--cases", "checks.py", "--json"]));
    let wanted = [
        pair("line 2: assert add(SMALL, 2) == 3", true),
        pair("test_text", true),
        pair("line 5: assert add(1, 1) == 3", false),
    ];
    assert_eq!(names(&told), wanted, "{told:#}");
    assert_eq!(files.test(&["add.py", "--cases", "cases.toml"]).code, Some(0));
    let lines = files.test(&["add.py", "--cases", "cases.jsonl"]);
    assert!(lines.code == Some(1) && lines.out().contains("1 of 2 passed"), "{lines:?}");
}
