//! Programs become better, by chance and selection alone, and the same way each time.

use serde_json::{Value, json};

use crate::rig::{Rig, essence};

const PROGRAM: &str = include_str!("../../examples/evolve/regression.py");
const MUTATE: &str = include_str!("../../examples/evolve/mutate.py");
const TASK: &str = include_str!("../../examples/evolve/regression.toml");
const PUBLIC: &str = include_str!("../../examples/evolve/public.json");
const HIDDEN: &str = include_str!("../../examples/evolve/hidden.json");

/// The example, as it stands in the repository.
fn example(iterations: u32, strategy: &str) -> (Rig, std::path::PathBuf) {
    let rig = Rig::new();
    for (name, text) in [
        ("regression.py", PROGRAM),
        ("mutate.py", MUTATE),
        ("public.json", PUBLIC),
        ("hidden.json", HIDDEN),
    ] {
        rig.directory.file(name, text);
    }
    let task = TASK
        .replace("max_iterations = 150", &format!("max_iterations = {iterations}"))
        .replace("kind = \"hill_climb\"", strategy);
    assert_ne!(task, TASK, "the example has changed");
    let path = rig.directory.file("regression.toml", task);
    (rig, path)
}

fn score(summary: &Value) -> f64 {
    summary["best"]["score"].as_f64().expect("a score")
}

#[test]
fn mutation_and_selection_improve_a_program_the_same_way_each_time() {
    let (rig, task) = example(6, "kind = \"hill_climb\" # short");
    let summary = rig.evolve(&task);
    let seed = summary["steps"][0]["score"].as_f64().expect("the seed's score");
    assert!(score(&summary) > seed + 0.15, "{seed} to {}", score(&summary));
    // Each one that was kept is better than the one before it, and descends from it.
    let steps = summary["steps"].as_array().expect("steps");
    let kept: Vec<&Value> = steps.iter().filter(|one| one["accepted"] == true).collect();
    assert!(kept.len() > 2, "{summary}");
    for pair in kept.windows(2) {
        assert!(pair[1]["score"].as_f64() > pair[0]["score"].as_f64(), "{pair:?}");
    }
    let again = rig.evolve(&task);
    assert_ne!(summary["id"], again["id"]);
    assert_eq!(essence(&summary), essence(&again), "not the same under the same seed");
    let code = |summary: &Value| {
        let id = summary["id"].as_str().expect("an id").to_owned();
        rig.run(&["best", &id, "--json"]).json()["code"].clone()
    };
    assert_eq!(code(&summary), code(&again));
    let id = summary["id"].as_str().expect("an id");
    let other = rig.run(&[&task.display().to_string(), "--json", "--seed", "99"]).json();
    assert_ne!(essence(&summary), essence(&other), "{id}: another seed, another way");
}

#[test]
fn islands_improve_too_and_keep_different_kinds() {
    let (rig, task) = example(4, "kind = \"islands\"\nislands = 2\nmigrate_every = 3");
    let summary = rig.evolve(&task);
    let seed = summary["steps"][0]["score"].as_f64().expect("the seed's score");
    assert!(score(&summary) > seed, "{seed} to {}", score(&summary));
    let islands: Vec<u64> = summary["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .filter_map(|one| one["island"].as_u64())
        .collect();
    assert!(islands.contains(&0) && islands.contains(&1), "{islands:?}");
    assert_eq!(essence(&summary), essence(&rig.evolve(&task)));
}

#[test]
fn the_target_ends_it_early_and_feedback_reaches_the_next_prompt() {
    let rig = Rig::new();
    // Learns from what it is told: without the feedback it would stay wrong.
    let table = rig.proposer(
        "told = 'Failing: small' in request['prompt'] and '# What is wrong' in request['prompt']\n\
         print('```python\\ndef add(a, b):\\n    return a + b if a >= ' + ('-1e9' if told else '0') + ' else 0\\n```')",
    );
    let task = rig.adding("max_iterations = 9", &table);
    let summary = rig.evolve(&task);
    assert_eq!(summary["end"], json!("target"), "{summary}");
    assert_eq!((summary["iterations"].as_u64(), score(&summary)), (Some(2), 1.0), "{summary}");
    let id = summary["id"].as_str().expect("an id");
    let prompts: Vec<String> = rig
        .of_type(id, "proposed")
        .iter()
        .map(|one| one["prompt"]["user"].as_str().expect("a prompt").to_owned())
        .collect();
    assert!(
        !prompts[0].contains("# What is wrong") && prompts[1].contains("# What is wrong"),
        "{prompts:?}"
    );
    // What is hidden is told by its name at most.
    for prompt in &prompts {
        assert!(!prompt.contains("77700"), "a hidden value is in the prompt: {prompt}");
    }
    assert!(prompts[1].contains("Hidden tests: "), "{}", prompts[1]);
}

#[test]
fn the_same_program_is_not_run_twice() {
    let rig = Rig::new();
    let table = rig.proposer(
        "print('def add(a, b):\\n' + '    # ' + 'x' * request['iteration'] + '\\n    return a  -  b')",
    );
    let task = rig.adding("max_iterations = 3", &table);
    let summary = rig.evolve(&task);
    let statuses: Vec<&Value> =
        summary["steps"].as_array().expect("steps").iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, ["scored", "duplicate", "duplicate"]);
    let id = summary["id"].as_str().expect("an id");
    let used: Vec<Value> =
        rig.of_type(id, "graded").iter().map(|one| one["executions"].clone()).collect();
    assert_eq!(used[1..], [json!(0), json!(0)], "{used:?}");
}

#[test]
fn budgets_end_it() {
    for (budget, end) in [
        ("executions = 2", "executions"),
        ("seconds = 0.000001", "seconds"),
        ("money = 0.5", "money"),
    ] {
        let rig = Rig::new();
        let table = rig
            .proposer("print('def add(a, b):\\n    return a - b * ' + str(request['iteration']))");
        let tables = format!("[budget]\n{budget}\n{table}\nprice = {{call = 0.3}}");
        let task = rig.adding("max_iterations = 9", &tables);
        let summary = rig.evolve(&task);
        assert_eq!(summary["end"], json!(end), "{summary}");
        assert!(summary["iterations"].as_u64() < Some(4), "{summary}");
        if end == "money" {
            assert_eq!(summary["spent"]["money"], json!(0.6), "{summary}");
        }
    }
}

#[test]
fn time_decides_among_equals_when_it_is_measured() {
    let rig = Rig::new();
    let slow = "def add(a, b):\\n    for _ in range(200000): pass\\n    return a + b";
    let fast = "def add(a, b):\\n    return a + b";
    let table =
        rig.proposer(&format!("print('{slow}' if request['iteration'] == 1 else '{fast}')"));
    let tables = format!("[cascade]\ntiming = true\n{table}");
    // A target that cannot be reached, so that it goes on.
    let task = rig.adding("max_iterations = 2\nprogram = \"def add(a, b): return 0\\n\"", &tables);
    let text = std::fs::read_to_string(&task).expect("the task");
    let one_wrong = text.replace("expected_output = -777003", "expected_output = 1");
    std::fs::write(&task, one_wrong).expect("it can be written");
    let summary = rig.evolve(&task);
    let steps = summary["steps"].as_array().expect("steps");
    assert_eq!(steps[1]["score"], steps[2]["score"], "{summary}");
    let measured = |index: usize| steps[index]["measures"]["time_measured"] == true;
    // On a host that is too busy to measure nothing is decided by time.
    let expected = if measured(1) && measured(2) { "2.0" } else { "1.0" };
    assert_eq!(summary["best"]["step"], json!(expected), "{summary}");
}
