//! What is recorded, how it is found again, and that it cannot be changed unseen.

use std::fs;

use crate::{Place, id};

#[test]
fn run_has_a_record_of_its_start_and_one_of_its_end() {
    let place = Place::new();
    let outcome = place.run(&["--label", "team=red", "-c", "print(6 * 7)"]);
    let run = place.show(id(&outcome));
    assert_eq!((&run["state"], &run["verdict"]), (&"ended".into(), &"exited".into()));
    assert_eq!(run["records"], serde_json::json!([1, 2]));
    assert_eq!(run["start"]["code"], "print(6 * 7)");
    assert_eq!(run["start"]["spec"]["level"], "standard");
    assert_eq!(run["start"]["request"]["labels"]["team"], "red");
    assert_eq!(run["end"]["outcome"]["stdout"], "42\n");
    assert_eq!(run["end"]["outcome"]["receipt"], outcome["receipt"]);
    assert_eq!(run["end"]["outcome"]["events"], outcome["events"]);
    let summary = &run["summary"];
    assert_eq!(summary["uid"], rustix::process::geteuid().as_raw());
    assert_eq!(summary["spec_digest"], outcome["receipt"]["spec_digest"]);
    for digest in ["code_digest", "spec_digest", "policy_digest"] {
        assert!(summary[digest].as_str().is_some_and(|one| one.starts_with("sha256:")), "{digest}");
    }
    assert_eq!(place.verified()["records"], 2);
}

#[test]
fn runs_of_a_batch_are_recorded_too() {
    let place = Place::new();
    let line = r#"{"language": "bash", "code": "exit 3", "labels": {"batch": "yes"}}"#;
    let ended = place.belljar().args(["batch", "-"]).stdin(format!("{line}\n{line}\n")).run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(place.list(&["--label", "batch=yes", "--verdict", "exited"]).len(), 2);
}

#[test]
fn filters_find_what_they_name() {
    let place = Place::new();
    place.run(&["--label", "team=red", "-c", "print(1)"]);
    place.run(&["--label", "team=blue", "--timeout", "300ms", "-c", "while True: pass"]);
    place.run(&["--language", "bash", "-c", "exit 1"]);
    let count = |filter: &[&str]| place.list(filter).len();
    assert_eq!(count(&[]), 3);
    assert_eq!(count(&["--label", "team"]), 2);
    assert_eq!(count(&["--label", "team=blue"]), 1);
    assert_eq!(count(&["--verdict", "wall_time_limit"]), 1);
    assert_eq!(count(&["--verdict", "exited", "--label", "team=blue"]), 0);
    assert_eq!(count(&["--event", "timeout_exceeded"]), 1);
    assert_eq!(count(&["--event", "escape_attempt"]), 0);
    assert_eq!(count(&["--risk", "critical"]), 0);
    assert_eq!(count(&["--since", "1h"]), 3);
    assert_eq!(count(&["--until", "1h"]), 0);
    assert_eq!(count(&["--user", &rustix::process::geteuid().as_raw().to_string()]), 3);
    assert_eq!(count(&["--user", "nobody-of-this-name"]), 0);
    for (filter, words) in [
        (["--verdict", "crashed"], "verdict is \"crashed\": there are exited"),
        (["--since", "yesterday"], "since is \"yesterday\": write 2026-01-31"),
        (["--risk", "huge"], "risk is \"huge\": there are low"),
        (["--event", "explosion"], "event is \"explosion\": there are syscall_blocked"),
    ] {
        let ended = place.audit(&[&["list"][..], &filter[..]].concat());
        assert!(ended.code == Some(2) && ended.err().contains(words), "{ended:?}");
    }
}

#[test]
fn id_may_be_its_beginning_and_last_is_the_newest() {
    let place = Place::new();
    let (first, second) = (place.run(&["-c", "1"]), place.run(&["-c", "2"]));
    assert_eq!(place.show("last")["execution_id"], second["execution_id"]);
    assert_eq!(place.show(&id(&first).to_lowercase())["execution_id"], first["execution_id"]);
    let ended = place.audit(&["show", "01HZZZZZ"]);
    assert!(
        ended.code == Some(2) && ended.err().contains("is no run that is recorded"),
        "{ended:?}"
    );
}

#[test]
fn without_a_trail_its_absence_is_told() {
    let place = Place::new();
    for command in [&["audit", "list"][..], &["audit", "verify"], &["explain", "last"], &["stats"]]
    {
        let ended = place.belljar().args(command).run();
        let told = ended.code == Some(125) && ended.err().contains("there is no audit trail at");
        assert!(told, "{command:?}: {ended:?}");
    }
    assert!(!place.state().exists(), "to look makes nothing");
}

#[test]
fn every_kind_of_tampering_with_the_file_is_found() {
    let place = Place::new();
    for number in ["1", "2", "3"] {
        place.run(&["--level", "none", "--language", "bash", "-c", number]);
    }
    place.verified();
    let trail = place.state().join("audit.db");
    let kept = fs::read(&trail).expect("verify has brought all into the file");
    // One byte of what was recorded.
    let mut changed = kept.clone();
    let wanted = b"\"language\":\"bash\"";
    let mut places = 0;
    for at in 0..changed.len() - wanted.len() {
        if changed[at..].starts_with(wanted) {
            changed[at + 12] = b'B';
            places += 1;
        }
    }
    assert!(places >= 6, "{places}");
    fs::write(&trail, &changed).expect("it is ours");
    let ended = place.audit(&["verify"]);
    let named = ended.err().contains("was changed: its hash is not that of its contents");
    assert!(ended.code == Some(1) && named, "{ended:?}");
    // All of it.
    fs::remove_file(&trail).expect("it is ours");
    let ended = place.belljar().args(["run", "-c", "print('must not run')"]).run();
    assert_eq!((ended.code, ended.out().as_str()), (Some(125), ""), "{ended:?}");
    assert!(ended.err().contains("record 1 was cut off"), "{ended:?}");
    fs::write(&trail, &kept).expect("it is ours");
    place.verified();
}

#[test]
fn export_is_verified_on_its_own_and_tampering_with_it_is_found() {
    let place = Place::new();
    for number in ["1", "2", "3"] {
        place.run(&["--level", "none", "--language", "bash", "--label", "n=x", "-c", number]);
    }
    let path = place.directory().join("trail.jsonl");
    let shown = path.to_str().expect("text");
    let ended = place.audit(&["export", "--out", shown]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let whole = fs::read_to_string(&path).expect("it was written");
    assert_eq!(whole.lines().count(), 7);
    let verify = |text: &str| {
        fs::write(&path, text).expect("it is ours");
        place.audit(&["verify", shown])
    };
    let ended = verify(&whole);
    assert!(ended.code == Some(0) && ended.out().contains("6 records"), "{ended:?}");
    let lines: Vec<&str> = whole.lines().collect();
    let without = |index: usize| {
        let left: Vec<&str> = lines
            .iter()
            .enumerate()
            .filter(|(one, _)| *one != index)
            .map(|(_, line)| *line)
            .collect();
        left.join("\n")
    };
    let swapped = {
        let mut all = lines.clone();
        all.swap(2, 4);
        all.join("\n")
    };
    for (text, words) in [
        (whole.replacen("\"code\":\"2\"", "\"code\":\"9\"", 1), "record 3 was changed"),
        (without(2), "record 2 was removed"),
        (without(6), "record 6 was cut off"),
        (swapped, "record 2 was removed"),
        (lines[..3].join("\n"), "record 3 was cut off"),
    ] {
        let ended = verify(&text);
        assert!(ended.code == Some(1) && ended.err().contains(words), "{words}: {ended:?}");
    }
    // With a filter: each one by itself.
    let ended = place.audit(&["export", "--label", "n=x", "--verdict", "error"]);
    assert_eq!(ended.out().lines().count(), 1, "{ended:?}");
    let some = place.audit(&["export", "--label", "n=x"]).out();
    assert!(some.lines().next().is_some_and(|head| head.contains("\"filtered\":true")), "{some}");
    assert_eq!(verify(&some).code, Some(0));
    let ended = verify(&some.replacen("\"code\":\"3\"", "\"code\":\"9\"", 1));
    assert!(ended.code == Some(1) && ended.err().contains("record 5 was changed"), "{ended:?}");
    for strange in ["", "hello\n", "{\"belljar_audit\": 9}\n"] {
        assert_eq!(verify(strange).code, Some(2), "{strange:?}");
    }
}

#[test]
fn head_that_was_kept_elsewhere_finds_a_trail_that_was_written_anew() {
    let place = Place::new();
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    let head = place.verified()["head"]["hash"].as_str().expect("a hash").to_owned();
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    assert_eq!(place.audit(&["verify", "--head", &head]).code, Some(0));
    fs::remove_dir_all(place.state()).expect("it is ours");
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    let ended = place.audit(&["verify", "--head", &head]);
    assert!(ended.code == Some(1) && ended.err().contains("was written anew"), "{ended:?}");
    assert_eq!(place.audit(&["verify", "--head", "abc"]).code, Some(2));
}

#[test]
fn pruned_trail_can_be_verified_and_goes_on() {
    let place = Place::new();
    let old = place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    let ended = place.audit(&["prune", "--before", "1h"]);
    assert!(ended.code == Some(0) && ended.err().contains("nothing is older"), "{ended:?}");
    let ended = place.audit(&["prune", "--before", "0s", "--json"]);
    assert_eq!(ended.json()["pruned"]["records"], 2, "{ended:?}");
    assert_eq!(place.audit(&["show", id(&old)]).code, Some(2));
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    let verified = place.verified();
    assert_eq!((&verified["records"], &verified["begins_after"]["seq"]), (&3.into(), &2.into()));
    let ended = place.audit(&["prune", "--before", "soon"]);
    assert!(ended.code == Some(2) && ended.err().contains("before is \"soon\""), "{ended:?}");
}

#[test]
fn nothing_is_recorded_when_that_is_asked_for() {
    let place = Place::new();
    let quiet = ["run", "--no-audit", "-c", "print(1)"];
    assert_eq!(place.belljar().args(quiet).run().out(), "1\n");
    let ended = place.belljar().env("BELLJAR_AUDIT", "off").args(["run", "-c", "print(1)"]).run();
    assert_eq!(ended.out(), "1\n");
    assert!(!place.state().exists());
    let ended = place.belljar().env("BELLJAR_AUDIT", "maybe").args(["run", "-c", "1"]).run();
    assert!(
        ended.code == Some(2) && ended.err().contains("BELLJAR_AUDIT is \"maybe\""),
        "{ended:?}"
    );
}

#[test]
fn digests_stand_for_code_and_output_when_that_is_asked_for() {
    let place = Place::new();
    let outcome = place.run(&["--audit-digests", "-c", "print('a-word-of-its-own')"]);
    let run = place.show(id(&outcome)).to_string();
    assert!(!run.contains("a-word-of-its-own") && run.contains("sha256:"), "{run}");
}
