//! What candidates and tasks may not do.

use serde_json::{Value, json};

use crate::rig::Rig;

/// What came of each of these answers, proposed one after the other.
fn outcomes(rig: &Rig, lines: &str, answers: &[&str]) -> Vec<Value> {
    let told = json!(answers);
    let table =
        rig.proposer(&format!("print(json.loads(r'''{told}''')[request['iteration'] - 1])"));
    let task = rig.adding(
        &format!("max_iterations = {}\ntarget_score = 1.0\n{lines}", answers.len()),
        &table,
    );
    let summary = rig.evolve(&task);
    let steps = summary["steps"].as_array().expect("steps");
    steps.iter().filter(|one| one["step"] != "0.0").cloned().collect()
}

const SEED: &str = "program = '''\nLIMIT = 10\n# EVOLVE-BLOCK-START\ndef inner(a, b):\n    return 0\n# EVOLVE-BLOCK-END\ndef add(a, b):\n    return inner(a, b)\n'''\nanswers = \"any\"";

#[test]
fn protected_regions_stay_as_they_are() {
    let whole = |inner: &str, limit: &str| {
        format!(
            "LIMIT = {limit}\n# EVOLVE-BLOCK-START\ndef inner(a, b):\n    return {inner}\n# EVOLVE-BLOCK-END\ndef add(a, b):\n    return inner(a, b)\n"
        )
    };
    let edit =
        |old: &str, new: &str| format!("<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE");
    let rig = Rig::new();
    let steps = outcomes(
        &rig,
        SEED,
        &[
            &whole("a - b", "11"),
            "def add(a, b):\n    return a + b\n",
            &edit("    return inner(a, b)", "    return a + b"),
            &edit("    return 0", "    return a * b"),
            &edit("    return 7", "    return a"),
            &edit("    return 0", "    return 0\n@lambda _: lambda a, b: a + b"),
            &whole("a + b", "10"),
        ],
    );
    let statuses: Vec<&Value> = steps.iter().map(|one| &one["status"]).collect();
    assert_eq!(
        statuses,
        ["protected", "protected", "protected", "scored", "no_program", "protected", "scored"],
        "{steps:?}"
    );
    assert!(
        steps[4]["error"].as_str().expect("an error").contains("not in the program"),
        "{}",
        steps[4]
    );
    assert_eq!(steps[6]["score"], json!(1.0), "control: what is open may change");
}

#[test]
fn cheating_candidates_gain_nothing() {
    let rig = Rig::new();
    let cheats = [
        // Says yes to every comparison.
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef add(a, b):\n    return Yes(12345)",
        // Ends well, early.
        "import os\ndef add(a, b):\n    os._exit(0)",
        // Looks for the expected values in every object there is.
        "import gc\ndef add(a, b):\n    for one in gc.get_objects():\n        if isinstance(one, dict) and 'expected_output' in one:\n            return one['expected_output']\n    return None",
        // Prints what a grader might look for.
        "print('{\"score\": 1.0, \"all_passed\": true}')\ndef add(a, b):\n    print('PASSED')\n    return 'PASSED'",
        // Leaves something for the next case.
        "def add(a, b):\n    open('/tmp/answer', 'a').write('x')\n    return len(open('/tmp/answer').read()) - 100",
    ];
    for (step, cheat) in outcomes(&rig, "", &cheats).iter().zip(cheats) {
        assert_eq!(
            (&step["status"], &step["score"]),
            (&json!("scored"), &json!(0.0)),
            "{cheat}: {step}"
        );
    }
    let honest = outcomes(&Rig::new(), "", &["def add(a, b):\n    return a + b"]);
    assert_eq!(honest[0]["score"], json!(1.0), "control");
}

#[test]
fn screening_is_kept_with_the_step_or_refuses_it() {
    let cheat = "import os\ndef add(a, b):\n    os.system('id')\n    return a + b";
    let rig = Rig::new();
    let steps = outcomes(&rig, "screen = \"refuse\"", &[cheat, "def add(a, b):\n    return a + b"]);
    assert_eq!(
        (&steps[0]["status"], &steps[1]["score"]),
        (&json!("screened"), &json!(1.0)),
        "{steps:?}"
    );
    assert!(steps[0]["error"].as_str().expect("an error").contains("os.system"), "{}", steps[0]);
    let rig = Rig::new();
    let steps = outcomes(&rig, "", &[cheat]);
    assert_eq!(steps[0]["status"], json!("scored"), "advice refuses nothing: {steps:?}");
    assert!(String::from_utf8_lossy(&rig.stored()).contains("os.system in line 3"));
}

#[test]
fn answers_without_a_program_are_told_and_go_on() {
    let rig = Rig::new();
    let steps = outcomes(
        &rig,
        "",
        &["", "def add(a, b:\n", "I cannot do that.", "def add(a, b):\n    return a + b"],
    );
    let statuses: Vec<&Value> = steps.iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, ["no_program", "scored", "scored", "scored"], "{steps:?}");
    assert_eq!((&steps[1]["score"], &steps[3]["score"]), (&json!(0.0), &json!(1.0)));
}

#[test]
fn mistakes_in_a_task_name_the_field_and_the_fix() {
    let rig = Rig::new();
    let table = rig.proposer("print('x')");
    for (lines, tables, words) in [
        ("max_iterations = 0", table.as_str(), "max_iterations must be between"),
        ("colour = 1", &table, "unknown field `colour`"),
        ("language = \"cobol\"", &table, "language"),
        ("level = \"none\"", &table, "level must be standard or strict"),
        ("program_file = \"gone.py\"", &table, "gone.py"),
        ("", "", "proposer is missing"),
        (
            "",
            "[proposer]\nkind = \"openai\"\nmodel = \"m\"\nurl = \"http://192.0.2.1/\"\nkey_env = \"K\"",
            "https://",
        ),
        ("", "[proposer]\nkind = \"openai\"\nmodel = \"m\"\nkey = \"sk-1\"", "unknown field `key`"),
    ] {
        let task = rig.adding(lines, tables);
        let ended = rig.run(&[&task.display().to_string()]);
        assert_eq!(ended.code, Some(2), "{lines} {tables}: {ended:?}");
        assert!(ended.err().contains(words), "{words}: {ended:?}");
    }
    for (words, told) in [
        (vec!["show", "../../etc"], "letters and digits"),
        (vec!["show", "0123456789abcdef"], "evolve list"),
        (vec!["resume", "0123456789abcdef"], "evolve list"),
        (vec!["best", "0123456789abcdef", "--step", "x"], "no step"),
        (vec!["/no/such/task.toml"], "/no/such/task.toml"),
    ] {
        let ended = rig.run(&words);
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.err().contains(told), "{told}: {ended:?}");
    }
}

#[test]
fn proposer_that_does_not_answer_ends_it() {
    let rig = Rig::new();
    let table = rig.proposer("sys.exit('out of ideas')");
    let task = rig.adding("max_iterations = 99", &table);
    let summary = rig.evolve(&task);
    assert_eq!(
        (&summary["end"], &summary["iterations"]),
        (&json!("proposer"), &json!(3)),
        "{summary}"
    );
    assert!(summary.to_string().contains("out of ideas"));
    let task = rig.adding("", "[proposer]\nkind = \"command\"\ncommand = [\"/no/such/program\"]");
    let summary = rig.evolve(&task);
    assert!(
        summary["why"].as_str().is_some_and(|why| why.contains("/no/such/program")),
        "{summary}"
    );
}
