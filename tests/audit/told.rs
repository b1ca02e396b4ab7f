//! What is told of a recorded run: explanations, reports, numbers.

use crate::{Place, id};

/// Tries to mount, which no program may.
const MOUNTS: &str = "import ctypes\nctypes.CDLL(None).mount(b'a', b'/tmp', b'ext4', 0, None)";

#[test]
fn explanation_says_what_was_refused_and_what_would_allow_it() {
    let place = Place::new();
    let outcome = place.run(&["-c", MOUNTS]);
    let text = place.belljar().args(["explain", id(&outcome)]).run().out();
    for words in ["escape attempt", "mount(", "refused by: ", "to allow it: ", "What to do:"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let json = place.belljar().args(["explain", "last", "--json"]).run().json();
    assert_eq!(json["events"][0]["syscall"], "mount", "{json}");
    assert_eq!(json["risk"], outcome["risk"]);
    let short = place.belljar().args(["explain", "last", "--short", "120"]).run().out();
    assert!(short.trim_end().chars().count() <= 120 && short.contains("mount"), "{short}");
}

#[test]
fn innocent_run_has_nothing_to_explain() {
    let place = Place::new();
    place.run(&["-c", "print(1)"]);
    let text = place.belljar().args(["explain", "last"]).run().out();
    assert!(text.contains("Nothing was refused, and no limit was met."), "{text}");
    assert!(text.contains("Risk: low."), "{text}");
}

#[test]
fn limit_is_explained_with_the_flag_that_raises_it() {
    let place = Place::new();
    place.run(&["--timeout", "200ms", "-c", "while True: pass"]);
    let text = place.belljar().args(["explain", "last"]).run().out();
    assert!(text.contains("time limit of 200ms") && text.contains("--timeout 400ms"), "{text}");
}

#[test]
fn run_that_we_failed_is_explained_as_ours() {
    let place = Place::new();
    let ended = place.belljar().args(["run", "--break-at", "root", "-c", "1"]).run();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    let text = place.belljar().args(["explain", "last"]).run().out();
    assert!(text.contains("that is no fault of it") && text.contains("(step root)"), "{text}");
    assert_eq!(place.list(&["--verdict", "error"]).len(), 1);
}

#[test]
fn report_has_risk_reasons_recommendations_and_receipt() {
    let place = Place::new();
    let outcome = place.run(&["--label", "team=red", "-c", MOUNTS]);
    let json = place.belljar().args(["report", id(&outcome), "--json"]).run().json();
    assert_eq!((&json["risk"], &json["receipt"]), (&outcome["risk"], &outcome["receipt"]));
    assert_eq!(json["reasons"], outcome["risk_reasons"]);
    assert!(json["recommendations"].as_array().is_some_and(|all| !all.is_empty()), "{json}");
    let text = place.belljar().args(["report", "last"]).run().out();
    for words in [
        "Risk: high",
        "Reasons:",
        "What to do:",
        "Receipt: level standard",
        "verified seccomp",
        "team=red",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let path = place.directory().join("report.html");
    let html = ["report", "last", "--html", path.to_str().expect("text")];
    assert_eq!(place.belljar().args(html).run().code, Some(0));
    let page = std::fs::read_to_string(&path).expect("it was written");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("badge high"), "{page}");
    let ended = place.belljar().args(html).run();
    assert!(ended.code == Some(2) && ended.err().contains("is there already"), "{ended:?}");
}

#[test]
fn numbers_are_those_of_the_runs() {
    let place = Place::new();
    place.run(&["--label", "team=red", "-c", "print(1)"]);
    place.run(&["--label", "team=red", "-c", MOUNTS]);
    place.run(&["--language", "bash", "-c", "exit 1"]);
    let stats = place.belljar().args(["stats", "--json"]).run().json();
    let runs = &stats["runs"];
    let count = |table: &str, name: &str| {
        let all = runs[table].as_array().expect("a table");
        let found = all.iter().find(|one| one["name"] == name);
        found.map_or(0, |one| one["count"].as_u64().expect("a number"))
    };
    assert_eq!(runs["runs"], 3);
    assert_eq!(
        (
            count("by_verdict", "exited"),
            count("by_language", "python"),
            count("by_language", "bash")
        ),
        (3, 2, 1)
    );
    assert_eq!(
        (
            count("by_label", "team=red"),
            count("by_event", "escape_attempt"),
            count("by_risk", "high")
        ),
        (2, 1, 1)
    );
    assert_eq!(runs["by_day"].as_array().map(Vec::len), Some(1));
    assert!(runs["cpu_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    let some = place.belljar().args(["stats", "--json", "--label", "team=red"]).run().json();
    assert_eq!(some["runs"]["runs"], 2);
    let text = place.belljar().arg("stats").run().out();
    assert!(text.contains("3 recorded runs") && text.contains("by verdict   exited 3"), "{text}");
}

#[test]
fn least_policy_of_a_recorded_run_is_learnt_by_its_id() {
    let place = Place::new();
    let outcome = place.run(&["--record", "-c", "print(sum(range(10)))"]);
    let learnt = place.belljar().args(["policy", "learn", id(&outcome)]).run();
    assert_eq!(learnt.code, Some(0), "{learnt:?}");
    assert!(learnt.out().starts_with("level = \"strict\"\n"), "{learnt:?}");
    assert!(learnt.err().contains("proved: the same run passes under it"), "{learnt:?}");
    // What the trail does not hold cannot be run again.
    place.run(&["--record", "--env-secret", "KEY=s3cr3t", "-c", "print(1)"]);
    let refused = place.belljar().args(["policy", "learn", "last"]).run();
    assert_eq!((refused.code, refused.out()), (Some(2), String::new()), "{refused:?}");
    assert!(refused.err().contains("it was given secrets"), "{refused:?}");
    let refused = place.belljar().args(["policy", "learn", "nowhere"]).run();
    assert!(refused.err().contains("is no file, and no recorded run"), "{refused:?}");
}
