//! `belljar policy learn` and `belljar run --policy`.

use belljar_tests::{Ended, Program, TempDir};

fn belljar(words: &[&str]) -> Ended {
    Program::belljar().args(words).run()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn learnt_policy_is_proved_and_can_be_run_under() {
    let directory = TempDir::new();
    let program = directory.file(
        "solve.py",
        "import json\nopen('out.txt', 'w').write(json.dumps([1]))\nprint('solved')\n",
    );
    let program = program.to_str().expect("a name");
    let recorded = belljar(&["run", "--no-server", "--record", "--json", program]);
    let outcome = directory.file("recorded.json", text(&recorded.stdout));
    let policy = directory.join("solve.toml");
    let policy = policy.to_str().expect("a name");
    let learnt = belljar(&["policy", "learn", outcome.to_str().expect("a name"), "--out", policy]);
    let told = text(&learnt.stderr);
    assert!(told.contains("proved: the same run passes under it at level "), "{told}");
    assert_eq!(learnt.code, Some(0), "{learnt:?}");
    let written = std::fs::read_to_string(policy).expect("it was written");
    assert!(written.contains("deny_syscalls = [\"connect\"]"), "{written}");
    assert!(
        written.contains("/workspace/out.txt") && written.contains("memory_bytes"),
        "{written}"
    );
    let again = belljar(&["run", "--no-server", "--policy", policy, program]);
    assert_eq!((text(&again.stdout).as_str(), again.code), ("solved\n", Some(0)), "{again:?}");
    // And what it did not do then, it cannot do under it.
    let other =
        directory.file("other.py", "import socket; socket.socket().connect(('127.0.0.1', 1))");
    let refused =
        belljar(&["run", "--no-server", "--policy", policy, other.to_str().expect("a name")]);
    assert!(text(&refused.stderr).contains("PermissionError"), "{refused:?}");
}

#[test]
fn what_cannot_be_learnt_from_is_told() {
    let directory = TempDir::new();
    let plain = directory.file("plain.json", "{}");
    let ended = belljar(&["policy", "learn", plain.to_str().expect("a name")]);
    assert!(text(&ended.stderr).contains("is no Outcome of --json"), "{ended:?}");
    assert_eq!(ended.code, Some(2));
    let recorded = belljar(&["run", "--no-server", "--json", "-c", "1"]);
    let plain = directory.file("unrecorded.json", text(&recorded.stdout));
    let ended = belljar(&["policy", "learn", plain.to_str().expect("a name")]);
    assert!(text(&ended.stderr).contains("--record --json"), "{ended:?}");
    let ended = belljar(&["policy", "learn", "/absent.json"]);
    assert!(
        text(&ended.stderr).contains("/absent.json is no file, and no recorded run"),
        "{ended:?}"
    );
}

#[test]
fn mistake_in_a_policy_file_is_told_by_its_name() {
    let directory = TempDir::new();
    let policy = directory.file("p.toml", "levle = \"strict\"");
    let ended =
        belljar(&["run", "--no-server", "--policy", policy.to_str().expect("a name"), "-c", "1"]);
    assert!(text(&ended.stderr).contains("levle"), "{ended:?}");
    assert_eq!(ended.code, Some(2));
}
