//! What cannot be recorded is not run.

use std::fs;

use belljar_tests::{Program, belljar_bin, is_root};

use crate::Place;

#[test]
fn nothing_runs_where_nothing_can_be_recorded() {
    let place = Place::new();
    let witness = place.directory().join("state");
    fs::write(&witness, "a file where the directory should be").expect("it is ours");
    let ended = place.belljar().args(["run", "-c", "print('must not run')"]).run();
    assert_eq!((ended.code, ended.out().as_str()), (Some(125), ""), "{ended:?}");
    for words in ["cannot record this run", "--state DIR", "--no-audit"] {
        assert!(ended.err().contains(words), "{ended:?}");
    }
    let ended = place.belljar().args(["run", "--json", "-c", "1"]).run();
    assert_eq!(ended.json()["error"]["kind"], "audit", "{ended:?}");
    let ended = place.belljar().args(["serve", "--listen", "none"]).run();
    assert!(ended.code == Some(125) || ended.code == Some(2), "{ended:?}");
    fs::remove_file(&witness).expect("it is ours");
    assert_eq!(place.belljar().args(["run", "-c", "print('runs')"]).run().out(), "runs\n");
}

#[test]
fn place_that_cannot_be_made_is_told_and_can_be_done_without() {
    // Without HOME the one of the host's list of users would do: so a place is named that nobody can make.
    let run = |more: &[&str]| {
        let program = Program::new("/usr/bin/env").args([
            "-i",
            "BELLJAR_SOCKET=/none",
            "XDG_STATE_HOME=/proc/none",
        ]);
        program.arg(belljar_bin()).arg("run").args(more).args(["-c", "print(1)"]).run()
    };
    for asked in [&["--audit"][..], &[]] {
        let ended = run(asked);
        assert_eq!((ended.code, ended.out().as_str()), (Some(125), ""), "{ended:?}");
        assert!(ended.err().contains("--no-audit"), "{ended:?}");
    }
    assert_eq!(run(&["--no-audit"]).out(), "1\n");
}

/// A shell that runs the command given as its arguments, in a place that gets full.
fn on_a_full_disk(place: &Place, script: &str) -> belljar_tests::Ended {
    let state = place.state();
    let program = if is_root() {
        // In a mount namespace of its own, so that nothing is left.
        let mount = "mount -t tmpfs -o size=512k,mode=0700 none \"$STATE\"";
        Program::new("/usr/bin/unshare")
            .args(["--mount", "/bin/sh", "-ec"])
            .arg(format!("{mount}\n{script}"))
    } else {
        Program::new("/bin/sh").args(["-ec", script])
    };
    fs::create_dir(&state).expect("it is ours");
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("it is ours");
    program.env("BELLJAR_STATE", &state).env("STATE", &state).env("BELLJAR", belljar_bin()).run()
}

#[test]
fn full_disk_refuses_runs_until_there_is_room_again() {
    let place = Place::new();
    let fill = if is_root() {
        "cat /dev/zero > \"$STATE/filler\" 2>/dev/null || true"
    } else {
        // No file may grow any more; the signal that tells so is not for us.
        "trap '' XFSZ; OLD=$(ulimit -S -f); ulimit -S -f 0"
    };
    let free = if is_root() { "rm \"$STATE/filler\"" } else { "ulimit -S -f $OLD" };
    let script = format!(
        "\"$BELLJAR\" run --level none -l bash -c 'echo before'\n\
         {fill}\n\
         \"$BELLJAR\" run --level none -l bash -c 'echo MUST-NOT-RUN' || echo \"refused $?\"\n\
         {free}\n\
         \"$BELLJAR\" run --level none -l bash -c 'echo after'\n\
         \"$BELLJAR\" audit verify > /dev/null && echo verified\n\
         \"$BELLJAR\" audit list --json | wc -l"
    );
    let ended = on_a_full_disk(&place, &script);
    assert_eq!(ended.out(), "before\nrefused 125\nafter\nverified\n2\n", "{ended:?}");
    let told = ended.err();
    assert!(told.contains("cannot record this run") && told.contains("/audit."), "{ended:?}");
    if is_root() {
        assert!(told.contains("no room is left on its disk"), "{ended:?}");
    }
}

#[test]
fn newer_layout_is_left_alone() {
    let place = Place::new();
    place.run(&["--level", "none", "--language", "bash", "-c", ":"]);
    place.verified(); // brings all into the file
    let path = place.state().join("audit.db");
    let mut bytes = fs::read(&path).expect("the trail");
    bytes[63] = 9; // user_version, in the header of SQLite's file
    fs::write(&path, &bytes).expect("it is ours");
    let ended = place.belljar().args(["run", "-c", "print('must not run')"]).run();
    assert_eq!((ended.code, ended.out().as_str()), (Some(125), ""), "{ended:?}");
    assert!(ended.err().contains("newer belljar (layout 9"), "{ended:?}");
    assert!(place.audit(&["list"]).err().contains("newer belljar"));
    assert_eq!(fs::read(&path).expect("the trail"), bytes);
}

#[test]
fn flags_say_more_than_the_environment() {
    let place = Place::new();
    let run = |word: &str, flags: &[&str]| {
        let program = place.belljar().env("BELLJAR_AUDIT", word).arg("run").args(flags);
        program.args(["--level", "none", "-l", "bash", "-c", ":"]).run();
        if place.state().exists() { place.list(&[]).len() } else { 0 }
    };
    assert_eq!(run("off", &[]), 0);
    assert_eq!(run("off", &["--audit"]), 1);
    assert_eq!(run("on", &["--no-audit"]), 1);
    assert_eq!(run("", &[]), 2);
}
