//! Every mistake is told by its name, with what would be right, and nothing is left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_tests::{Ended, Level, Program, Sandbox, TempDir, is_root};

/// A bad request: exit code 2, these words on stderr, nothing on stdout.
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(ended.out(), "", "{ended:?}");
    for word in words {
        assert!(ended.err().contains(word), "no \"{word}\" in {ended:?}");
    }
}

fn run(options: &[&str]) -> Ended {
    Program::belljar().arg("run").args(options).run()
}

fn refused(options: &[&str], words: &[&str]) {
    let mut all = options.to_vec();
    all.extend(["-c", "print('must not run')"]);
    assert_refused(&run(&all), words);
}

#[test]
fn unknown_flags_are_refused_by_name() {
    refused(&["--colour"], &["--colour"]);
    refused(&["--memori", "1m"], &["--memori", "--memory"]);
    assert_refused(&Program::belljar().arg("rum").run(), &["rum", "run"]);
    assert_refused(
        &Program::belljar().args(["run", "-c", "1", "file.py"]).run(),
        &["cannot be used"],
    );
}

#[test]
fn no_program_is_refused() {
    assert_refused(&run(&[]), &["FILE"]);
}

#[test]
fn zero_limits_are_refused_by_name() {
    for (flag, field) in [
        ("--timeout", "wall_ms"),
        ("--cpu-time", "cpu_ms"),
        ("--cpus", "millicpus"),
        ("--memory", "memory_bytes"),
        ("--pids", "processes"),
        ("--disk", "disk_bytes"),
        ("--inodes", "inodes"),
        ("--files", "open_files"),
        ("--file-size", "file_bytes"),
        ("--output", "output_bytes"),
        ("--output-total", "output_total_bytes"),
    ] {
        refused(&[flag, "0"], &[field, "between"]);
    }
}

#[test]
fn negative_limits_are_refused_by_flag() {
    for flag in ["--timeout", "--cpu-time", "--cpus", "--memory", "--pids", "--disk", "--output"] {
        refused(&[flag, "-1"], &["-1"]);
        refused(&[&format!("{flag}=-1")], &[flag]);
    }
}

#[test]
fn absurd_limits_are_refused_by_name() {
    refused(&["--timeout", "99999h"], &["wall_ms", "between"]);
    refused(&["--memory", "99999g"], &["memory_bytes"]);
    refused(&["--memory", "1k"], &["memory_bytes"]);
    refused(&["--pids", "99999999"], &["processes"]);
    refused(&["--cpus", "5000"], &["millicpus"]);
    refused(&["--cpus", "18446744073709551"], &["millicpus"]);
    refused(&["--files", "3"], &["open_files"]);
    refused(&["--output", "2g", "--output-total", "1g"], &["output"]);
    refused(&["--output", "2k", "--output-total", "1k"], &["output_total_bytes", "output_bytes"]);
}

#[test]
fn overflowing_limits_are_refused_by_flag() {
    for (flag, value) in [
        ("--timeout", "99999999999999999999s"),
        ("--timeout", "9999999999999999999m"),
        ("--memory", "99999999999999999999"),
        ("--memory", "18014398509481984k"),
        ("--disk", "17179869184g"),
        ("--pids", "18446744073709551616"),
        ("--cpus", "99999999999999999999"),
    ] {
        refused(&[flag, value], &[flag]);
    }
}

#[test]
fn what_is_no_number_is_refused_with_the_units() {
    refused(&["--timeout", "soon"], &["--timeout", "number"]);
    refused(&["--timeout", "5 parsecs"], &["use ms, s or m"]);
    refused(&["--memory", "10q"], &["use k, m or g"]);
    refused(&["--memory", ""], &["--memory"]);
    refused(&["--cpus", "NaN"], &["cores"]);
    refused(&["--cpus", "1e3"], &["cores"]);
    refused(&["--pids", "1.5"], &["--pids"]);
}

#[test]
fn limits_that_a_level_cannot_keep_are_refused() {
    refused(&["--level", "none", "--memory", "64m"], &["memory_bytes", "none", "basic"]);
    refused(&["--level", "basic", "--disk", "64m"], &["disk_bytes", "basic", "standard"]);
    refused(&["--level", "none", "--allow-syscall", "ptrace"], &["syscall", "none"]);
    refused(&["--level", "none", "--block-path", "/usr/bin/env"], &["block_paths", "none"]);
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    refused(&["--level", "high"], &["high", "standard"]);
    refused(&["--language", "cobol"], &["cobol", "python", "bash", "node"]);
    refused(&["--allow-missing", "seccomp"], &["seccomp", "cgroup"]);
    refused(&["--deny-syscall", "opeen"], &["opeen"]);
    refused(&["--block-path", "relative/path"], &["relative/path", "absolute"]);
    refused(&["--block-path", "/usr/../etc"], &["block_paths"]);
    refused(&["--block-path", "/"], &["block_paths"]);
}

#[test]
fn bad_environment_is_refused() {
    refused(&["--env", "NOEQUALS"], &["env", "NOEQUALS", "NAME=VALUE"]);
    refused(&["--env", "=value"], &["env"]);
    refused(&["--env", "LD_PRELOAD=/tmp/x.so"], &["LD_PRELOAD"]);
    refused(&["--label", "nothing"], &["labels", "nothing"]);
}

#[test]
fn bad_copies_are_refused() {
    let directory = TempDir::new();
    let file = directory.file("data", "x");
    let host = file.display();
    refused(&["--file", "no-colon"], &["no-colon", "HOST:INSIDE"]);
    refused(&["--file", "/nonexistent:in"], &["/nonexistent"]);
    refused(&["--file", &format!("{host}:../out")], &["../out"]);
    refused(&["--file", &format!("{host}:/etc/passwd")], &["/etc/passwd", "/workspace"]);
    refused(&["--file", &format!("{host}:main.py")], &["main.py", "twice"]);
    refused(&["--file", &format!("{host}:a"), "--file", &format!("{host}:a/b")], &["directory"]);
    refused(&["--file", &format!("{}:d", directory.path().display())], &["regular file"]);
    refused(&["--file", "/dev/zero:endless"], &["regular file"]);
    refused(&["--stdin", "/nonexistent"], &["stdin", "/nonexistent"]);
}

#[test]
fn files_that_do_not_fit_are_told_with_the_limit_to_raise() {
    let directory = TempDir::new();
    let file = directory.file("data", vec![0; 3 << 20]);
    let copy = format!("{}:data", file.display());
    let ended = run(&["--disk", "1m", "--file", &copy, "-c", "pass"]);
    assert!(ended.err().contains("--disk"), "{ended:?}");
    assert_ne!(ended.code, Some(0));
}

fn run_file(path: &Path) -> Ended {
    Program::belljar().arg("run").arg(path).run()
}

#[test]
fn programs_that_cannot_be_read_are_refused() {
    let directory = TempDir::new();
    assert_refused(&run_file(Path::new("/nonexistent.py")), &["/nonexistent.py", "No such file"]);
    assert_refused(&run_file(directory.path()), &["directory"]);
    let closed = directory.file("closed.py", "print('must not run')");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).expect("it is ours");
    if !is_root() {
        assert_refused(&run_file(&closed), &["closed.py", "Permission denied"]);
    }
    assert_refused(&run_file(&directory.file("what", "print(1)")), &["language", "--language"]);
}

#[test]
fn programs_that_are_no_text_are_refused() {
    let directory = TempDir::new();
    let bad = directory.file("bad.py", b"print('\xff\xfe')");
    assert_refused(&run_file(&bad), &["bad.py", "not UTF-8", "byte 7"]);
    assert_refused(&run_file(&directory.file("nul.py", "print(1)\0")), &["NUL"]);
    for empty in ["", "  \n\t\n"] {
        assert_refused(&run_file(&directory.file("empty.py", empty)), &["empty"]);
        assert_refused(&run(&["-c", empty]), &["code", "empty"]);
    }
    let on_stdin = Program::belljar().args(["run", "--language", "python", "-"]);
    assert_refused(&on_stdin.stdin(*b"\xff").run(), &["standard input", "UTF-8"]);
    let unnamed = Program::belljar().args(["run", "-"]).stdin("print(1)");
    assert_refused(&unnamed.run(), &["language"]);
}

#[test]
fn program_of_a_hundred_megabytes_is_refused_without_being_read() {
    let directory = TempDir::new();
    let path = directory.file("big.py", "");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
    file.set_len(100 << 20).expect("a sparse file");
    assert_refused(&run_file(&path), &["big.py", "16777216", "--file"]);
}

#[test]
fn large_programs_within_the_bound_run() {
    let directory = TempDir::new();
    let code = format!("print(len('''{}'''))", "x".repeat(8 << 20));
    let ended = run_file(&directory.file("large.py", code));
    assert_eq!((ended.code, ended.out()), (Some(0), format!("{}\n", 8 << 20)), "{}", ended.err());
}

#[test]
fn workspace_must_be_one_project() {
    for system in ["/", "/usr", "/etc", "/home", "/tmp", "/proc", "/tmp/.."] {
        refused(&["--workspace", system], &["workspace", "part of the system"]);
        refused(&["--workspace", &format!("{system}:rw")], &["workspace"]);
    }
    refused(&["--workspace", "/nonexistent"], &["workspace", "/nonexistent"]);
    let directory = TempDir::new();
    let file = directory.file("file", "");
    refused(&["--workspace", &file.display().to_string()], &["not a directory"]);
    std::os::unix::fs::symlink("/", directory.join("link")).expect("a link");
    let link = directory.join("link").display().to_string();
    refused(&["--workspace", &link], &["part of the system"]);
}

#[test]
fn workspace_of_root_is_never_writable() {
    if is_root() {
        let directory = TempDir::new();
        refused(
            &["--workspace", &format!("{}:rw", directory.path().display())],
            &["belongs to root"],
        );
    } else {
        // Ours by name, root's by owner: nothing that we could have written either.
        let ended = run(&["--workspace", "/usr/share/doc:rw", "-c", "open('x', 'w')"]);
        assert_ne!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn maximum_says_what_it_needs() {
    let ended = run(&["--level", "maximum", "-c", "print(1)"]);
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(
        ended.err().contains("second kernel") && ended.err().contains("--level strict"),
        "{ended:?}"
    );
}

#[test]
fn errors_are_json_when_asked_for() {
    let spec = run(&["--json", "--memory", "1", "-c", "pass"]);
    assert_eq!(spec.code, Some(2));
    assert_eq!(spec.json()["error"]["kind"], "spec");
    assert_eq!(spec.json()["error"]["field"], "limits.memory_bytes");
    assert_eq!(spec.err(), "");
    let unavailable = run(&["--json", "--level", "maximum", "-c", "pass"]);
    assert_eq!(unavailable.code, Some(125));
    assert_eq!(unavailable.json()["error"]["kind"], "unavailable");
}

#[test]
fn messages_show_control_characters_instead_of_sending_them() {
    let ended = run(&["--language", "\u{1b}]0;owned\u{7}", "-c", "pass"]);
    assert_eq!(ended.code, Some(2));
    assert!(!ended.err().contains(['\u{1b}', '\u{7}']), "{:?}", ended.err());
}

#[test]
fn interpreter_that_is_missing_is_told_with_the_fix() {
    let config = TempDir::new();
    config.file(
        "belljar/languages/ghost.toml",
        "name = \"ghost\"\ncommands = [\"/nonexistent/ghost\", \"no-such-ghost\"]\nargs = [\"{file}\"]\n\
         file = \"main.gh\"\nextensions = [\"gh\"]\ninstall = \"apt-get install ghost\"\n",
    );
    let ended = Sandbox::at(Level::Standard)
        .host_env("XDG_CONFIG_HOME", config.path())
        .plain("ghost", "boo");
    assert_refused(&ended, &["ghost", "not installed", "apt-get install ghost"]);
}

#[test]
fn broken_language_file_is_told_by_its_path() {
    let config = TempDir::new();
    config.file("belljar/languages/broken.toml", "name = \"x\"\ncolour = 1\n");
    let ended =
        Sandbox::standard().host_env("XDG_CONFIG_HOME", config.path()).plain("python", "pass");
    assert_refused(&ended, &["broken.toml", "colour"]);
}
