//! `belljar sandbox` as a user types it, without a server and with one: every verb, and every verb in a wrong state.

use std::path::{Path, PathBuf};

use belljar_tests::{Ended, Program, Running, TempDir, is_root};

/// An id that is nobody's.
const ORDINARY: u32 = 54_321;

/// A state directory, and the commands that work in it. What is left in it at the end is removed.
pub(crate) struct Desk {
    pub directory: TempDir,
    pub socket: PathBuf,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new();
        let socket = directory.join("socket");
        Self { directory, socket }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    pub(crate) fn program(&self) -> Program {
        let program = Program::belljar().env("BELLJAR_STATE", self.state());
        program.env("BELLJAR_SOCKET", &self.socket)
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        self.program().arg("sandbox").args(words).run()
    }

    /// Does it, and gives what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let ended = self.run(words);
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        text(&ended.stdout)
    }

    /// It is refused with these words, as the caller's mistake.
    #[track_caller]
    pub(crate) fn refused(&self, words: &[&str], why: &str) {
        let ended = self.run(words);
        let told = text(&ended.stderr);
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(told.contains(why), "{words:?}: {told}");
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        let told = self.ok(&[words, &["--json"]].concat());
        serde_json::from_str(&told).expect("JSON")
    }

    pub(crate) fn state_of(&self, name: &str) -> String {
        self.json(&["info", name])["state"].as_str().expect("a state").to_owned()
    }

    pub(crate) fn serve(&self) -> Running {
        let state = self.state();
        let words = ["serve", "--listen", "none", "--pool", "0", "--socket"];
        let program = self.program().args(words).arg(&self.socket).arg("--state").arg(state);
        let server = program.start();
        let deadline = std::time::Instant::now() + belljar_tests::DEADLINE;
        while std::os::unix::net::UnixStream::connect(&self.socket).is_err() {
            assert!(std::time::Instant::now() < deadline, "the server does not listen");
            std::thread::yield_now();
        }
        self.ok(&["list"]); // it listens before it has taken the sandboxes over, and answers after
        server
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if !self.state().exists() {
            return;
        }
        let listed = self.run(&["list", "--json"]);
        let all: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        for one in all["sandboxes"].as_array().into_iter().flatten() {
            self.run(&["rm", "--force", one["name"].as_str().unwrap_or_default()]);
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn states_lead_to_each_other_and_what_does_not_fit_is_refused() {
    let desk = Desk::new();
    assert_eq!(desk.ok(&["create", "one"]), "one\n");
    assert_eq!(desk.state_of("one"), "running");
    desk.refused(&["create", "one"], "the name one is taken");
    desk.refused(&["start", "one"], "cannot start one, which is running");
    desk.refused(&["resume", "one"], "it is not paused");
    desk.refused(&["rm", "one"], "stop it first, or --force");
    desk.ok(&["pause", "one"]);
    assert_eq!(desk.state_of("one"), "paused");
    desk.refused(&["pause", "one"], "cannot pause one, which is paused");
    desk.refused(&["exec", "one", "--", "true"], "belljar sandbox resume one");
    desk.refused(&["rollback", "one", "x"], "resume it first");
    desk.ok(&["resume", "one"]);
    desk.ok(&["shell", "one", "-c", "echo kept > file"]);
    desk.ok(&["stop", "one"]);
    assert_eq!(desk.state_of("one"), "stopped");
    desk.refused(&["stop", "one"], "cannot stop one, which is stopped");
    desk.refused(&["kill", "one"], "cannot kill one, which is stopped");
    desk.refused(&["exec", "one", "--", "true"], "belljar sandbox start one");
    desk.ok(&["start", "one"]);
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "file"]), "kept\n");
    desk.ok(&["kill", "one"]);
    desk.ok(&["rm", "one"]);
    desk.refused(&["info", "one"], "there is no sandbox one");
}

#[test]
fn names_that_are_none_are_refused_by_name() {
    let desk = Desk::new();
    let long = "a".repeat(300);
    for name in ["../x", "", long.as_str(), "ünï", "A", "-x", "a b"] {
        desk.refused(&["create", "--", name], "name is \"");
    }
}

#[test]
fn exec_passes_output_and_codes_on() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--env", "WHO=all"]);
    let script = "echo out; echo err >&2; echo $WHO $MINE; pwd; exit 7";
    let ended = desk.run(&["shell", "one", "--env", "MINE=this", "--cwd", "/tmp", "-c", script]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert_eq!(text(&ended.stdout), "out\nall this\n/tmp\n");
    assert_eq!(text(&ended.stderr), "err\n");
    let late = desk.run(&["exec", "one", "--timeout", "200ms", "--", "sleep", "60"]);
    assert_eq!(late.code, Some(124), "{late:?}");
    let absent = desk.run(&["exec", "one", "--", "/no/such/program"]);
    assert_eq!(absent.code, Some(127), "{absent:?}");
    let given = desk.program().args(["sandbox", "exec", "one", "--stdin", "-", "--", "cat"]);
    assert_eq!(text(&given.stdin("read\n").run().stdout), "read\n");
}

#[test]
fn programs_in_the_background_outlive_the_command_and_are_followed_from_any_byte() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    let script = "echo first; read line; echo got $line; exit 3";
    let words = ["exec", "one", "--background", "--keep-stdin", "--", "bash", "-c", script];
    let id = desk.ok(&words).trim().to_owned();
    let attach = ["sandbox", "attach", "one", &id, "--from", "2", "--stdin"];
    let ended = desk.program().args(attach).stdin("it\n").run();
    assert_eq!((text(&ended.stdout).as_str(), ended.code), ("rst\ngot it\n", Some(3)), "{ended:?}");
    let execs = desk.json(&["execs", "one"]);
    assert_eq!(execs["execs"][0]["state"], "ended", "{execs}");
    assert_eq!(desk.ok(&["logs", "one", "--tail", "1"]), "got it\n");
    let id = desk.ok(&["exec", "one", "--background", "--", "sleep", "100"]).trim().to_owned();
    desk.ok(&["signal", "one", &id, "TERM"]);
    let ended = desk.run(&["attach", "one", &id]);
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
}

#[test]
fn points_bring_files_back_and_tell_what_differs() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    desk.ok(&[
        "shell",
        "one",
        "-c",
        "echo 1 > kept; echo 1 > changed; mkdir -m 700 empty; ln kept link",
    ]);
    assert_eq!(desk.ok(&["snapshot", "one", "good"]), "good\n");
    desk.refused(&["snapshot", "one", "good"], "has a point good already");
    desk.ok(&[
        "shell",
        "one",
        "-c",
        "rm kept; echo 22 > changed; rmdir empty; touch new; chmod 600 link",
    ]);
    let told = desk.ok(&["diff", "one", "good"]);
    let expected = "M /workspace/changed\nD /workspace/empty\nD /workspace/kept\nm /workspace/link\nA /workspace/new\n";
    assert_eq!(told, expected);
    desk.ok(&["rollback", "one", "good"]);
    assert_eq!(desk.ok(&["diff", "one", "good"]), "");
    let look = "cat kept changed; stat -c %a empty link; ls";
    assert_eq!(
        desk.ok(&["shell", "one", "-c", look]),
        "1\n1\n700\n644\nchanged\nempty\nkept\nlink\n"
    );
    desk.refused(&["rollback", "one", "none"], "has no point none");
    let points = desk.json(&["snapshots", "one"]);
    assert_eq!(points["snapshots"][0]["tag"], "good", "{points}");
    desk.ok(&["snapshots", "one", "--remove", "good"]);
    desk.refused(&["rollback", "one", "good"], "has no point good");
}

#[test]
fn a_point_of_a_busy_sandbox_lets_its_programs_go_on() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    let script = "echo before > file; echo ready; read line; echo after > file; echo done";
    let words = ["exec", "one", "--background", "--keep-stdin", "--", "bash", "-c", script];
    let id = desk.ok(&words).trim().to_owned();
    while !desk.ok(&["logs", "one"]).contains("ready") {}
    desk.ok(&["snapshot", "one", "busy"]);
    let attach = ["sandbox", "attach", "one", &id, "--stdin"];
    let ended = desk.program().args(attach).stdin("go\n").run();
    assert_eq!(text(&ended.stdout), "ready\ndone\n", "{ended:?}");
    assert_eq!(desk.ok(&["diff", "one", "busy"]), "M /workspace/file\n");
    desk.ok(&["rollback", "one", "busy"]);
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "file"]), "before\n");
}

#[test]
fn undo_goes_back_before_an_exec_and_redo_forward() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--undo"]);
    for number in ["1", "2", "3"] {
        desk.ok(&["shell", "one", "-c", &format!("echo {number} > file")]);
    }
    let read = |desk: &Desk| {
        let to = desk.directory.join("copied");
        desk.ok(&["cp", "one:/workspace/file", to.to_str().expect("a name")]);
        std::fs::read_to_string(to).expect("a file")
    };
    assert_eq!(read(&desk), "3\n");
    desk.ok(&["undo", "one"]);
    assert_eq!(read(&desk), "2\n");
    desk.ok(&["undo", "one"]);
    assert_eq!(read(&desk), "1\n");
    desk.ok(&["redo", "one"]);
    assert_eq!(read(&desk), "2\n");
}

#[test]
fn forks_share_files_and_nothing_else() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    desk.ok(&["shell", "one", "-c", "echo shared > file"]);
    assert_eq!(desk.ok(&["fork", "one", "-n", "2", "--as", "try"]), "try-1\ntry-2\n");
    assert_eq!(desk.state_of("try-1"), "created");
    let chance = "cat file; hostname; python3 -c 'import os; print(os.urandom(8).hex())'";
    let [first, second] = ["try-1", "try-2"].map(|name| desk.ok(&["shell", name, "-c", chance]));
    assert!(
        first.starts_with("shared\ntry-1\n") && second.starts_with("shared\ntry-2\n"),
        "{first}{second}"
    );
    assert_ne!(first.lines().nth(2), second.lines().nth(2), "chance is each one's own");
    desk.ok(&["shell", "try-1", "-c", "echo mine > file"]);
    assert_eq!(desk.ok(&["exec", "try-2", "--", "cat", "file"]), "shared\n");
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "file"]), "shared\n");
    desk.ok(&["promote", "try-1", "one"]);
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "file"]), "mine\n");
    desk.refused(&["info", "try-1"], "there is no sandbox try-1");
}

#[test]
fn a_sandbox_travels_as_one_file() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    desk.ok(&["shell", "one", "-c", "mkdir -p a/b; echo here > a/b/file; ln -s b a/link"]);
    let file = desk.directory.join("one.tar");
    let file = file.to_str().expect("a name");
    desk.ok(&["export", "one", file]);
    assert_eq!(desk.ok(&["import", file, "two"]), "two\n");
    assert_eq!(desk.ok(&["exec", "two", "--", "cat", "a/link/file"]), "here\n");
    let broken = desk.directory.file("broken.tar", "no archive");
    desk.refused(&["import", broken.to_str().expect("a name"), "three"], "the archive is refused");
    desk.refused(&["info", "three"], "there is no sandbox three");
}

#[test]
fn code_keeps_its_variables_over_commands() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    assert_eq!(desk.ok(&["code", "one", "-c", "x = 6 * 7; print('hi')"]), "hi\n");
    assert_eq!(desk.ok(&["code", "one", "-c", "x + 1"]), "43\n");
    assert_eq!(desk.ok(&["code", "one", "-l", "bash", "-c", "y=5"]), "");
    assert_eq!(desk.ok(&["code", "one", "-l", "bash", "-c", "echo $y"]), "5\n");
    let failed = desk.run(&["code", "one", "-c", "1/0"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(text(&failed.stderr).contains("ZeroDivisionError: division by zero"), "{failed:?}");
    let contexts = desk.json(&["contexts", "one"]);
    assert_eq!(contexts["contexts"].as_array().map(Vec::len), Some(2), "{contexts}");
}

#[test]
fn trees_are_copied_in_and_out() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    let tree = desk.directory.join("tree");
    std::fs::create_dir_all(tree.join("sub")).expect("a directory");
    std::fs::write(tree.join("sub/file"), "here").expect("a file");
    desk.ok(&["cp", tree.to_str().expect("a name"), "one:/workspace/"]);
    assert_eq!(desk.ok(&["exec", "one", "--", "cat", "tree/sub/file"]), "here");
    let out = desk.directory.join("out");
    desk.ok(&["cp", "one:/workspace/tree", out.to_str().expect("a name")]);
    assert_eq!(std::fs::read_to_string(out.join("sub/file")).expect("a file"), "here");
    assert!(desk.ok(&["ls", "one", "/workspace"]).ends_with("tree\n"));
    desk.refused(&["cp", "one:/no/such", out.to_str().expect("a name")], "does not exist");
    desk.refused(&["cp", "a", "b"], "NAME:PATH");
}

#[test]
fn changes_of_a_copied_workspace_reach_the_host_when_committed() {
    let desk = Desk::new();
    let project = desk.directory.join("project");
    std::fs::create_dir(&project).expect("a directory");
    std::fs::write(project.join("file"), "old").expect("a file");
    if is_root() {
        let shown = format!("{}:cow", project.display());
        desk.refused(&["create", "none", "--workspace", &shown], "belongs to root");
        for path in [&project, &project.join("file")] {
            std::os::unix::fs::chown(path, Some(ORDINARY), Some(ORDINARY)).expect("root may");
        }
    }
    let shown = format!("{}:cow", project.display());
    desk.ok(&["create", "one", "--workspace", &shown]);
    desk.ok(&["shell", "one", "-c", "printf new > file; echo evil > .bashrc; echo more > added"]);
    let read = |name: &str| std::fs::read_to_string(project.join(name)).ok();
    assert_eq!(read("file").as_deref(), Some("old"), "nothing is written before it is committed");
    let told = desk.ok(&["workspace", "changes", "one"]);
    assert!(told.contains("file") && told.contains("added"), "{told}");
    let ended = desk.run(&["workspace", "commit", "one"]);
    assert!(text(&ended.stderr).contains("left: .bashrc"), "{ended:?}");
    assert_eq!((read("file").as_deref(), read("added").as_deref()), (Some("new"), Some("more\n")));
    assert_eq!(read(".bashrc"), None);
}

#[test]
fn a_volume_outlives_its_sandboxes() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--volume", "data"]);
    desk.ok(&["shell", "one", "-c", "echo kept > file"]);
    desk.ok(&["rm", "--force", "one"]);
    assert!(desk.state().join("volumes/data/file").exists());
}

#[test]
fn a_server_finds_what_commands_began_and_a_killed_one_loses_nothing() {
    let desk = Desk::new();
    desk.ok(&["create", "one"]);
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done";
    let id = desk.ok(&["exec", "one", "--background", "--", "bash", "-c", script]);
    let server = desk.serve();
    assert_eq!(desk.state_of("one"), "running");
    desk.ok(&["snapshot", "one", "by-server"]);
    drop(server); // by SIGKILL
    let ended = desk.run(&["attach", "one", id.trim()]);
    assert_eq!(
        (text(&ended.stdout).as_str(), ended.code),
        ("1\n2\n3\n4\n5\n6\n", Some(0)),
        "{ended:?}"
    );
    let points = desk.json(&["snapshots", "one"]);
    assert_eq!(points["snapshots"][0]["tag"], "by-server", "{points}");
}

#[test]
fn a_second_server_is_told_who_owns_the_state() {
    let desk = Desk::new();
    let _server = desk.serve();
    let other = desk.directory.join("other");
    let words = ["serve", "--listen", "none", "--pool", "0", "--socket"];
    let second = desk.program().args(words).arg(&other).arg("--state").arg(desk.state()).run();
    assert!(text(&second.stderr).contains("is in use by process"), "{second:?}");
    assert_ne!(second.code, Some(0));
}

#[test]
fn time_to_live_is_kept_though_nobody_is_there() {
    let desk = Desk::new();
    desk.ok(&["create", "one", "--ttl", "300ms"]);
    let gone = || !desk.ok(&["list"]).contains("one");
    let deadline = std::time::Instant::now() + belljar_tests::DEADLINE;
    while !gone() {
        assert!(std::time::Instant::now() < deadline, "it outlives its time");
    }
    assert!(is_empty(&desk.state().join("disks")), "its files go with it");
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}
