//! Every step is kept; what was paid for is not asked for again; nothing leaves the store unasked.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{Rig, essence, holds};

/// Counts its calls in a file; the second candidate takes long.
const COUNTING: &str = "open('calls', 'a').write(request['step'] + '\\n')\n\
     slow = 'import time\\n    time.sleep(8)\\n    ' if request['iteration'] == 2 else ''\n\
     print('def add(a, b):\\n    ' + slow + 'return a - b - ' + str(request['iteration']))";

#[test]
fn killed_evolution_goes_on_without_asking_again() {
    let rig = Rig::new();
    let table = rig.proposer(COUNTING);
    let task = rig.adding("max_iterations = 3", &table);
    let running = rig.program(&[&task.display().to_string(), "--quiet"]).start();
    let step = Duration::from_millis(20);
    // The proposal is stored, and its grade is on the way.
    for _ in 0..6000 {
        let there = rig.state().exists() && holds(&rig.stored(), "\"step\":\"2.0\",\"parent\"");
        if there {
            break;
        }
        assert!(running.is_running(), "{:?}", running.wait());
        std::thread::park_timeout(step);
    }
    running.signal(Signal::KILL);
    running.wait();
    let list = rig.run(&["list", "--json"]).json();
    let id = list[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!((&list[0]["end"], &list[0]["running"]), (&Value::Null, &json!(false)), "{list}");
    assert_eq!(rig.of_type(&id, "proposed").len(), 2);
    assert_eq!(rig.of_type(&id, "graded").len(), 1, "killed too late");
    let resumed = rig.run(&["resume", &id, "--json"]).json();
    assert_eq!(resumed["end"], json!("iterations"), "{resumed}");
    assert_eq!(resumed["iterations"], json!(3));
    let calls = std::fs::read_to_string(rig.directory.join("calls")).expect("calls");
    assert_eq!(calls, "1.0\n2.0\n3.0\n", "a proposal was asked for twice");
    // It is as if nobody had killed it.
    let whole = rig.evolve(&task);
    assert_eq!(essence(&resumed), essence(&whole));
}

#[test]
fn torn_last_line_is_dropped_and_a_changed_one_refused() {
    let rig = Rig::new();
    let table =
        rig.proposer("print('def add(a, b):\\n    return a - b - ' + str(request['iteration']))");
    let task = rig.adding("max_iterations = 2", &table);
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let path = rig.state().join(id).join("log.jsonl");
    let whole = std::fs::read(&path).expect("the log");
    std::fs::write(&path, &whole[..whole.len() - 7]).expect("it can be written");
    let resumed = rig.run(&["resume", id, "--json"]).json();
    assert_eq!(essence(&resumed), essence(&summary));
    let text =
        String::from_utf8(whole).expect("text").replacen("return a - b - 1", "return a + b + 0", 1);
    std::fs::write(&path, text).expect("it can be written");
    let ended = rig.run(&["show", id]);
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err().contains("damaged at line"), "{ended:?}");
}

#[test]
fn resumed_with_more_iterations_it_goes_further() {
    let rig = Rig::new();
    let table =
        rig.proposer("print('def add(a, b):\\n    return a - b - ' + str(request['iteration']))");
    let task = rig.adding("max_iterations = 1", &table);
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let more = rig.run(&["resume", id, "--json", "--max-iterations", "3"]).json();
    assert_eq!(
        (more["iterations"].as_u64(), &more["end"]),
        (Some(3), &json!("iterations")),
        "{more}"
    );
}

#[test]
fn recording_of_an_evolution_gives_the_same_again() {
    let rig = Rig::new();
    let table = rig
        .proposer("print('def add(a, b):\\n    return a - b - ' + str(request['iteration'] % 3))");
    let task = rig.adding("max_iterations = 4\ncandidates = 2", &table);
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let recording = rig.directory.join("recording.jsonl").display().to_string();
    assert_eq!(rig.run(&["export", id, "--recording", &recording]).code, Some(0));
    let table = "[proposer]\nkind = \"replay\"\nfile = \"recording.jsonl\"";
    let task = rig.adding("max_iterations = 4\ncandidates = 2", table);
    assert_eq!(essence(&rig.evolve(&task)), essence(&summary));
    let task = rig.adding("max_iterations = 9\ncandidates = 2", table);
    assert_eq!(rig.evolve(&task)["end"], json!("recording"));
}

#[test]
fn program_leaves_the_store_by_promote_alone() {
    let rig = Rig::new();
    let table = rig.proposer("print('def add(a, b):\\n    return a + b')");
    let task = rig.adding("", &table);
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let files = || std::fs::read_dir(rig.directory.path()).expect("a directory").count();
    let before = files();
    let shown = rig.run(&["best", id]);
    assert!(shown.out().contains("    1 | def add(a, b):"), "{shown:?}");
    assert_eq!(rig.run(&["show", id]).code, Some(0));
    assert_eq!(files(), before, "something was written");
    let out = rig.directory.join("better.py");
    let promoted = rig.run(&["promote", id, "--out", &out.display().to_string()]);
    assert_eq!(promoted.code, Some(0), "{promoted:?}");
    assert_eq!(std::fs::read_to_string(&out).expect("it"), "def add(a, b):\n    return a + b\n");
    assert_eq!(rig.of_type(id, "promoted").len(), 1);
    let twice = rig.run(&["promote", id, "--out", &out.display().to_string()]);
    assert_eq!(twice.code, Some(2), "{twice:?}");
    assert!(twice.err().contains("exists"), "{twice:?}");
}

#[test]
fn report_is_one_page_and_all_in_it_is_text() {
    let rig = Rig::new();
    let table = rig.proposer(
        "print('def add(a, b):\\n    return \"<script>alert(1)</script>\" # ' + str(request['iteration']))",
    );
    let task = rig.adding("name = \"<img src=x onerror=alert(2)>\"\nmax_iterations = 2", &table);
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let path = rig.directory.join("report.html");
    let ended = rig.run(&["export", id, "--report", &path.display().to_string()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let page = std::fs::read_to_string(&path).expect("a page");
    assert!(page.contains("<svg") && page.contains("&lt;script&gt;"), "{page}");
    for word in ["<script", "<img", "http://", "https://", "src=", "77700"] {
        assert!(!page.replace("&lt;img src=x", "").contains(word), "{word} in {page}");
    }
}

#[test]
fn cut_short_at_any_moment_it_goes_on_to_the_same_end() {
    let rig = Rig::new();
    let script = "open('calls', 'a').write(request['step'] + '\\n')\n\
                  print('def add(a, b):\\n    return a - b - ' + str(int(float(request['step']) * 10)))";
    let table = rig.proposer(script);
    let task = rig.adding("max_iterations = 2\ncandidates = 2", &table);
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let path = rig.state().join(id).join("log.jsonl");
    let whole = std::fs::read(&path).expect("the log");
    let ends: Vec<usize> =
        (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    // Only the beginning is needed. A line is on the disk whole or in part: both, for every one of them.
    for at in ends.iter().flat_map(|end| [*end, end + 40]).filter(|at| *at < whole.len()) {
        std::fs::write(&path, &whole[..at]).expect("it can be written");
        std::fs::remove_file(rig.directory.join("calls")).ok();
        let stored: Vec<String> = rig
            .of_type(id, "proposed")
            .iter()
            .map(|one| one["step"].as_str().expect("a step").to_owned())
            .collect();
        let resumed = rig.run(&["resume", id, "--json"]).json();
        let (mut one, mut two) = (essence(&resumed), essence(&summary));
        one.sort_by_key(Value::to_string);
        two.sort_by_key(Value::to_string);
        assert_eq!(one, two, "cut at {at}: {resumed}");
        let calls = std::fs::read_to_string(rig.directory.join("calls")).unwrap_or_default();
        let again: Vec<&str> =
            calls.lines().filter(|call| stored.iter().any(|one| one == call)).collect();
        assert!(again.is_empty(), "cut at {at}: {again:?} was asked for twice");
        assert_eq!(calls.lines().count() + stored.len(), 4, "cut at {at}: {calls}");
    }
}

#[test]
fn nothing_of_hidden_cases_is_in_prompts_lines_and_pages() {
    let rig = Rig::new();
    rig.directory.file(
        "secret.py",
        "SECRET = 777101\ndef test_known():\n    assert add(1, 1) == 777102\nassert add(777103, 1) == 777104\n",
    );
    let table = rig.proposer(
        "open('prompts', 'a').write(json.dumps(request))\nprint('def add(a, b):\\n    return 1 # ' + str(request['iteration']))",
    );
    let lines = "max_iterations = 2\nhidden_file = \"secret.py\"";
    let task = rig.adding(lines, &table);
    // One that says so itself, among those that are shown.
    let text = std::fs::read_to_string(&task).expect("the task");
    let own = "cases = [\n{name = \"own\", hidden = true, input_args = [777105, 0], expected_output = 777106},";
    std::fs::write(&task, text.replace("cases = [", own)).expect("it can be written");
    let summary = rig.evolve(&task);
    let id = summary["id"].as_str().expect("an id");
    let page = rig.directory.join("page.html");
    rig.run(&["export", id, "--report", &page.display().to_string()]);
    let read = |name: &str| std::fs::read(rig.directory.join(name)).expect("a file");
    let places = [
        ("prompts", read("prompts")),
        ("lines", rig.run(&["export", id]).stdout),
        ("summary", summary.to_string().into_bytes()),
        ("page", read("page.html")),
    ];
    assert!(holds(&rig.stored(), "777105"), "control: the store has them");
    assert!(holds(&places[0].1, "own"), "control: they are named");
    for (place, bytes) in places {
        assert!(!holds(&bytes, "7771"), "{place}: {}", String::from_utf8_lossy(&bytes));
    }
}
