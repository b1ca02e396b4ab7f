//! The table of exit codes, row by row, and the words that go with each.

use belljar_tests::{Ended, Sandbox, each_level};

fn plain(options: &[&str], language: &str, code: &str) -> Ended {
    Sandbox::standard().with(options.iter().copied()).plain(language, code)
}

each_level!(programs_code_passes_through, |level| {
    for code in [0, 1, 7, 124, 125, 126, 127, 137, 255] {
        let ended = Sandbox::at(level).plain("bash", &format!("echo out; exit {code}"));
        assert_eq!(ended.code, Some(code));
        assert_eq!(ended.out(), "out\n");
    }
});

#[test]
fn success_has_no_words_of_ours() {
    let ended = plain(&[], "python", "print('only this')");
    assert_eq!(
        (ended.code, ended.out(), ended.err()),
        (Some(0), "only this\n".into(), String::new())
    );
}

#[test]
fn time_limits_end_with_124() {
    let wall = plain(&["--timeout", "300ms"], "bash", "sleep 60");
    assert_eq!(wall.code, Some(124));
    assert!(wall.err().contains("300 ms"), "{wall:?}");
    let cpu = plain(&["--cpu-time", "300ms"], "bash", "while :; do :; done");
    assert_eq!(cpu.code, Some(124));
    assert!(cpu.err().contains("CPU"), "{cpu:?}");
}

#[test]
fn signals_end_with_128_and_their_number() {
    for (name, code) in [("SEGV", 139), ("TERM", 143), ("KILL", 137)] {
        let ended = plain(&[], "bash", &format!("kill -{name} $$"));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.err().contains("signal"), "{ended:?}");
    }
}

#[test]
fn other_limits_end_with_137() {
    let memory = plain(&["--memory", "32m"], "python", "x = b'x' * (1 << 28)");
    assert_eq!(memory.code, Some(137), "{memory:?}");
    assert!(memory.err().contains("memory"), "{memory:?}");
    let output = plain(&["--output-total", "100k", "--output", "1k"], "bash", "yes");
    assert_eq!(output.code, Some(137));
    assert!(output.err().contains("output") || output.err().contains("stdout"), "{}", output.err());
}

#[test]
fn full_disk_keeps_the_programs_own_code() {
    let ended = plain(&["--disk", "1m"], "bash", "head -c 9m /dev/zero > big || exit 5");
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.err().contains("disk"), "{ended:?}");
}

#[test]
fn quiet_says_nothing_of_its_own() {
    let ended = plain(&["--quiet", "--timeout", "300ms"], "bash", "echo theirs; sleep 60");
    assert_eq!(
        (ended.code, ended.out(), ended.err()),
        (Some(124), "theirs\n".into(), String::new())
    );
}

#[test]
fn exit_code_with_json_is_the_same() {
    for (options, code, expected) in [
        (&[][..], "exit 3", 3),
        (&["--timeout", "300ms"][..], "sleep 60", 124),
        (&[][..], "kill -SEGV $$", 139),
    ] {
        let mut all = options.to_vec();
        all.push("--json");
        let ended = plain(&all, "bash", code);
        assert_eq!(ended.code, Some(expected), "{ended:?}");
        assert_eq!(ended.err(), "");
        assert!(ended.json()["execution_id"].is_string());
    }
}
