//! `belljar run` through a server: the same as without, to the field.

use std::fs;

use belljar_tests::{Ended, LEVELS, Program, TempDir, Token, children, processes_with, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::running::{LINES, Server, bash};

fn run(options: &[&str]) -> Program {
    Program::belljar().arg("run").args(options)
}

fn through(server: &Server, options: &[&str]) -> Ended {
    run(options).env("BELLJAR_SOCKET", server.socket()).run()
}

fn alone(options: &[&str]) -> Ended {
    run(&["--no-server"]).args(options).run()
}

/// Takes out what differs between two runs of the same program: names, times and measurements.
fn comparable(mut outcome: Value) -> Value {
    for field in ["execution_id", "elapsed_ms", "cpu_ms", "memory_peak_bytes", "processes_peak"] {
        outcome.as_object_mut().expect("an object").remove(field).expect(field);
    }
    for limit in outcome["limits"].as_object_mut().expect("limits").values_mut() {
        limit["used"] = Value::Null;
    }
    // Namespaces, host ids and the exact moment of an end are each run's own.
    let mut blur = |list: &str, field: &str| {
        for one in outcome.pointer_mut(list).and_then(Value::as_array_mut).expect(list) {
            let text = one[field].as_str().expect("text");
            let kept: String = text.chars().filter(|one| !one.is_ascii_digit()).collect();
            one[field] = kept.into();
        }
    };
    blur("/receipt/layers", "mechanism");
    blur("/evidence", "found");
    blur("/events", "what");
    outcome
}

#[test]
fn outcome_is_the_same_with_and_without_a_server() {
    let server = Server::start();
    for level in LEVELS {
        for (language, code, more) in [
            ("python", "print('é'); raise SystemExit(3)", &[][..]),
            ("python", r"import os; os.write(1, b'\xff\x00'); os.write(2, b'e')", &[]),
            ("bash", "kill -SEGV $$", &["--label", "who=me", "--env", "A=b"]),
            ("bash", "seq 1 100000", &["--output", "1k"]),
            ("bash", "sleep 60", &["--timeout", "300ms"]),
        ] {
            let mut options = vec!["--json", "--level", level.name(), "--language", language];
            options.extend(more);
            options.extend(["-c", code]);
            let (there, here) = (through(&server, &options), alone(&options));
            assert_eq!(there.code, here.code, "{there:?}");
            assert_eq!(there.err(), here.err());
            assert_eq!(comparable(there.json()), comparable(here.json()), "{level} {code}");
        }
    }
}

#[test]
fn output_words_and_codes_are_the_same() {
    let server = Server::start();
    for options in [
        &["-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"][..],
        &["-c", r"import os; os.write(1, b'\xff\x00\x1b[2J' * 50000)"],
        &["--timeout", "300ms", "--language", "bash", "-c", "echo a; sleep 60"],
        &["--quiet", "--timeout", "300ms", "--language", "bash", "-c", "echo a; sleep 60"],
        &["--output", "1k", "--language", "bash", "-c", "seq 1 2000"],
        &["--language", "bash", "-c", "kill -SEGV $$"],
        &["--memory", "32m", "-c", "x = b'x' * (1 << 28)"],
        &["-c", "import sys; print(sys.argv[1:])", "--", "one", "two"],
        // Mistakes too.
        &["--memory", "1", "-c", "1"],
        &["--level", "maximum", "-c", "1"],
        &["--language", "cobol", "-c", "1"],
        &["--json", "--language", "cobol", "-c", "1"],
        &["--json", "--level", "maximum", "-c", "1"],
        &["--env", "LD_PRELOAD=x", "-c", "1"],
        &["/nonexistent.py"],
    ] {
        let (there, here) = (through(&server, options), alone(options));
        assert_eq!((there.code, there.signal), (here.code, here.signal), "{options:?}: {there:?}");
        assert_eq!(there.stdout, here.stdout, "{options:?}");
        assert_eq!(there.err(), here.err(), "{options:?}");
    }
}

#[test]
fn flood_is_ended_with_the_same_words_and_code() {
    let server = Server::start();
    let flood = ["--output-total", "100k", "--output", "1k", "--language", "bash", "-c", "yes"];
    let (there, here) = (through(&server, &flood), alone(&flood));
    assert_eq!((there.code, there.err()), (here.code, here.err()), "{there:?}");
    assert!(there.stdout.len() >= 100 << 10, "{} bytes", there.stdout.len());
}

#[test]
fn run_goes_to_the_server_unless_told_otherwise() {
    let server = Server::start();
    let code = ["-c", "import time; print('up', flush=True); time.sleep(60)"];
    let mut there = run(&code).env("BELLJAR_SOCKET", server.socket()).start();
    assert_eq!(there.read_line(), "up\n");
    assert_eq!((server.children().len(), children(there.id()).len()), (1, 0));
    there.signal(Signal::INT);
    assert_eq!(there.wait().code, Some(130));
    wait_until("the server ended it", || server.children().is_empty());
    let mut here = run(&code).arg("--no-server").env("BELLJAR_SOCKET", server.socket()).start();
    assert_eq!(here.read_line(), "up\n");
    assert_eq!((server.children().len(), children(here.id()).len()), (0, 1));
}

#[test]
fn default_socket_is_found_in_the_runtime_directory() {
    let runtime = TempDir::new();
    let socket = runtime.join("belljar/belljar.sock");
    let server = Server::with(&["--socket", &socket.display().to_string()]);
    let code = ["-c", "import time; print('up', flush=True); time.sleep(60)"];
    let found = run(&code).env("BELLJAR_SOCKET", "").env("XDG_RUNTIME_DIR", runtime.path());
    let mut found = found.start();
    assert_eq!(found.read_line(), "up\n");
    assert_eq!(server.children().len(), 1);
}

#[test]
fn files_are_read_by_the_client() {
    let server = Server::start();
    let directory = TempDir::new();
    let data = directory.file("data.bin", b"\xff\x00data");
    let program = directory.file("show.py", "print(open('in/data', 'rb').read())");
    let copy = format!("{}:in/data", data.display());
    let stdin = directory.file("input", "unused");
    let options =
        ["--stdin", &stdin.display().to_string(), "--file", &copy, &program.display().to_string()];
    let ended = through(&server, &options);
    assert_eq!((ended.code, ended.out()), (Some(0), "b'\\xff\\x00data'\n".to_owned()), "{ended:?}");
    for bad in ["/nonexistent:a", "/dev/zero:a", "/etc:a"] {
        let options = ["--file", bad, "-c", "print('must not run')"];
        let (there, here) = (through(&server, &options), alone(&options));
        assert_eq!((there.code, there.err()), (Some(2), here.err()), "{there:?}");
    }
}

#[test]
fn what_the_server_cannot_do_is_done_here() {
    let server = Server::start();
    let directory = TempDir::new();
    let (project, out) = (directory.join("project"), directory.join("out"));
    directory.file("project/data", "from the workspace");
    fs::create_dir(&out).expect("it can be made");
    let (project, shown) = (project.display().to_string(), out.display().to_string());
    let ended = through(&server, &["--workspace", &project, "-c", "print(open('data').read())"]);
    assert_eq!((ended.code, ended.out()), (Some(0), "from the workspace\n".to_owned()));
    let ended = through(&server, &["--out", &shown, "-c", "open('result', 'w').write('x')"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fs::read_to_string(out.join("result")).expect("a result"), "x");
    let ended = through(&server, &["--break-at", "clone", "-c", "1"]);
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err().contains("step clone"), "{ended:?}");
    // More than a request may hold.
    let large = directory.file("large", vec![b'x'; 65 << 20]);
    let copy = format!("{}:large", large.display());
    let code = "import os; print(os.stat('large').st_size)";
    let ended = through(&server, &["--file", &copy, "-c", code]);
    assert_eq!((ended.code, ended.out()), (Some(0), format!("{}\n", 65 << 20)), "{ended:?}");
    // A language of the caller's own.
    directory.file(
        "config/belljar/languages/shell.toml",
        "name = \"shell\"\ncommands = [\"/bin/sh\"]\nargs = [\"{file}\"]\nfile = \"main.shell\"\n",
    );
    let ended = run(&["--language", "shell", "-c", "echo own"])
        .env("BELLJAR_SOCKET", server.socket())
        .env("XDG_CONFIG_HOME", directory.join("config"))
        .run();
    assert_eq!((ended.code, ended.out()), (Some(0), "own\n".to_owned()), "{ended:?}");
    // But who names a server means it.
    let socket = server.socket().display().to_string();
    let ended = here_with_server(&socket, &["--out", &shown, "-c", "1"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("--out"), "{ended:?}");
}

fn here_with_server(socket: &str, options: &[&str]) -> Ended {
    run(&["--server", socket]).args(options).run()
}

#[test]
fn named_server_that_is_not_there_is_an_error() {
    let directory = TempDir::new();
    let socket = directory.join("none.sock").display().to_string();
    let ended = here_with_server(&socket, &["-c", "print('must not run')"]);
    assert_eq!((ended.code, ended.out()), (Some(125), String::new()), "{ended:?}");
    assert!(ended.err().contains("none.sock"), "{ended:?}");
}

#[test]
fn interrupt_ends_the_run_on_the_server() {
    let server = Server::start();
    for (level, signal) in
        LEVELS.into_iter().zip([Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL])
    {
        let token = Token::new();
        let code = format!(
            "import os\nprint('up', flush=True)\nos.execv('/bin/sleep', ['{}', '99'])",
            token.as_str()
        );
        let options = ["--level", level.name(), "--timeout", "90s", "-c", &code];
        let mut running = run(&options).env("BELLJAR_SOCKET", server.socket()).start();
        assert_eq!(running.read_line(), "up\n");
        // The client carries the word too, in the code that it was given.
        wait_until("it runs", || processes_with(token.as_str()).len() >= 2);
        running.signal(signal);
        let ended = running.wait();
        assert_eq!(ended.code, (signal != Signal::KILL).then_some(130), "{ended:?}");
        token.wait_until_gone();
    }
}

#[test]
fn busy_server_is_told_with_the_way_around() {
    let server = Server::with(&["--max-runs", "1", "--max-queue", "0"]);
    let mut occupied = server.unix();
    occupied.send("/v1/runs", &[LINES], &bash("echo up; sleep 60"));
    occupied.head();
    occupied.chunk().expect("it runs");
    let ended = through(&server, &["-c", "print('must not run')"]);
    assert_eq!((ended.code, ended.out()), (Some(125), String::new()), "{ended:?}");
    assert!(ended.err().contains("busy") && ended.err().contains("--no-server"), "{ended:?}");
    let json = through(&server, &["--json", "-c", "print('must not run')"]);
    assert_eq!(json.json()["error"]["kind"], "busy");
}

#[test]
fn server_that_dies_is_our_fault_and_not_the_programs() {
    let server = Server::start();
    let code = ["-c", "import time; print('up', flush=True); time.sleep(60)"];
    let mut running = run(&code).env("BELLJAR_SOCKET", server.socket()).start();
    assert_eq!(running.read_line(), "up\n");
    server.signal(Signal::KILL);
    let ended = running.wait();
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err().contains("went away"), "{ended:?}");
    // And with nobody listening, the next one runs by itself.
    let ended = through(&server, &["-c", "print('here')"]);
    assert_eq!((ended.code, ended.out()), (Some(0), "here\n".to_owned()), "{ended:?}");
}
