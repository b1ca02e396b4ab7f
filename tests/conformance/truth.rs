//! What a program may try to make the Outcome say, and what races may make of it.

use belljar_tests::{Level, Sandbox, TempDir, Verdict, each_level};

// v1 raises its alarm before anybody is killed: the limit must be told all the same, and soon.
each_level!(a_child_that_runs_out_of_memory_ends_the_run, [standard, strict], |level| {
    let code = "import os, time
if os.fork() == 0:
    x = bytearray(300 << 20)
    for i in range(0, len(x), 4096): x[i] = 1
time.sleep(20)";
    for _ in 0..4 {
        let limits = ["--memory", "64m", "--timeout", "15s"];
        let outcome = Sandbox::at(level).with(limits).run_python(code);
        assert!(matches!(outcome.verdict, Verdict::MemoryLimit { .. }), "{outcome:?}");
        assert!(outcome.elapsed_ms < 10_000.0, "it lingered: {} ms", outcome.elapsed_ms);
    }
});

// The border of head and tail lies in the middle of a character.
each_level!(text_of_wide_characters_comes_back_whole, |level| {
    let outcome = Sandbox::at(level).run_python("print('€' * 20_000, end='')");
    assert_eq!(outcome.stdout, "€".repeat(20_000));
    assert_eq!((outcome.stdout_dropped_bytes, outcome.stdout_base64), (0, None));
});

// An init without descriptors or time could not report, and the end would look like our fault.
each_level!(a_program_cannot_starve_its_init, [standard, strict], |level| {
    let out = TempDir::new();
    let code = "import resource, os
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU):
    try: resource.prlimit(1, what, (0, 0))
    except PermissionError as e: print(e.errno)
try: os.sched_setaffinity(1, {0})
except PermissionError as e: print(e.errno)
open('result', 'w').write('x')";
    let target = out.join("results").display().to_string();
    let outcome = Sandbox::at(level).with(["--out", &target]).run_python(code);
    assert_eq!(
        (outcome.verdict, outcome.stdout.as_str()),
        (Verdict::Exited { code: 0 }, "1\n1\n1\n")
    );
    assert!(out.join("results/result").exists());
});

// A process whose main thread has ended looks like a zombie, and burns on.
each_level!(cpu_time_cannot_be_hidden_behind_an_ended_main_thread, [basic, standard], |level| {
    let code = "import os, threading, ctypes, time
if os.fork() == 0:
    def burn():
        end = time.monotonic() + 8
        while time.monotonic() < end: pass
        os._exit(0)
    threading.Thread(target=burn).start()
    ctypes.CDLL(None).pthread_exit(None)
time.sleep(9)";
    let outcome = Sandbox::at(level).with(["--cpu-time", "1s"]).run_python(code);
    assert!(matches!(outcome.verdict, Verdict::CpuTimeLimit { .. }), "{outcome:?}");
});

// Inside a small disk a file full of holes may be long; on the host it would be as long for real.
each_level!(holes_do_not_become_bytes_on_the_host, [standard, strict], |level| {
    let out = TempDir::new();
    let code = "for n in range(20): open(f'hole{n}', 'w').truncate(10 << 20)";
    let target = out.join("results").display().to_string();
    let limits = ["--disk", "1m", "--file-size", "10m", "--out", &target];
    let ended = Sandbox::at(level).with(limits).plain("python", code);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err().contains("hole0 (with it more than the disk limit"), "{ended:?}");
    assert_eq!(std::fs::read_dir(out.join("results")).expect("it was made").count(), 0);
});

// At level none the program can hand its stdout to somebody who outlives it. The end of the run must not
// wait for the end of the stream.
each_level!(a_stream_that_somebody_else_holds_does_not_hold_the_run, [none], |level| {
    let host = TempDir::new();
    let path = host.join("holder");
    // Never accepted: what was sent stays in the socket's queue, open.
    let holder = std::os::unix::net::UnixListener::bind(&path).expect("the directory is ours");
    let code = format!(
        "import socket
s = socket.socket(socket.AF_UNIX); s.connect({:?})
socket.send_fds(s, [b'x'], [1]); print('handed over')",
        path.display().to_string()
    );
    let outcome = Sandbox::at(level).with(["--timeout", "60s"]).run_python(&code);
    assert_eq!((outcome.ok(), outcome.stdout.as_str()), (true, "handed over\n"));
    drop(holder);
});

#[test]
fn a_block_that_cannot_be_kept_is_refused() {
    let host = TempDir::new();
    let workspace = host.path().display().to_string();
    let inside = format!("{workspace}/.env");
    for (level, path) in [
        (Level::Standard, "/workspace/.env"),
        (Level::Basic, inside.as_str()),
        (Level::Standard, "/proc/self/environ"),
    ] {
        let options = ["--workspace", &workspace, "--block-path", path];
        let ended = Sandbox::at(level).with(options).plain("python", "print(1)");
        assert_eq!(ended.code, Some(2), "{path}: {ended:?}");
        assert!(ended.err().contains("block_paths"), "{path}: {ended:?}");
    }
}

#[test]
fn a_call_that_starting_needs_cannot_be_denied() {
    for name in ["read", "write", "execve"] {
        let ended = Sandbox::standard().with(["--deny-syscall", name]).plain("python", "print(1)");
        assert_eq!(ended.code, Some(2), "{name}: {ended:?}");
    }
}
