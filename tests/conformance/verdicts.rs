//! Every verdict, from the evidence that belongs to it and from nothing else.

use belljar::{DiskLimit, RunRequest, Stream};
use belljar_tests::{FaultDomain, Level, Outcome, Sandbox, Verdict, block_on, each_level, engine};

fn assert_limit(outcome: &Outcome, verdict: &Verdict) {
    assert_eq!(&outcome.verdict, verdict, "{outcome:?}");
    assert_eq!(outcome.fault_domain, FaultDomain::Limit);
    assert!(!outcome.evidence.is_empty());
    assert!(!outcome.events.is_empty(), "a limit that was met is an event");
}

each_level!(exit_codes_that_look_like_limits_are_exit_codes, |level| {
    for code in [1, 2, 124, 125, 126, 127, 137, 139, 255] {
        let outcome = Sandbox::at(level).run_bash(&format!("exit {code}"));
        assert_eq!(outcome.verdict, Verdict::Exited { code });
        assert_eq!(outcome.fault_domain, FaultDomain::Program);
    }
});

each_level!(signals_of_its_own_are_the_programs_fault, |level| {
    for (name, signal) in [("SIGSEGV", 11), ("SIGKILL", 9), ("SIGABRT", 6), ("SIGTERM", 15)] {
        let code = format!("import os, signal; os.kill(os.getpid(), signal.{name})");
        let outcome = Sandbox::at(level).run_python(&code);
        assert_eq!(outcome.verdict, Verdict::Signaled { signal }, "{outcome:?}");
        assert_eq!(outcome.signal, Some(signal));
        assert_eq!(outcome.exit_code, None);
        assert_eq!(outcome.fault_domain, FaultDomain::Program);
    }
});

each_level!(real_segmentation_fault_is_a_signal, |level| {
    let outcome = Sandbox::at(level).run_python("import ctypes; ctypes.string_at(0)");
    assert_eq!(outcome.verdict, Verdict::Signaled { signal: 11 }, "{outcome:?}");
});

each_level!(sleeper_meets_the_wall_time_limit, |level| {
    let code = "import time
print('slept', flush=True)
while True: time.sleep(1)";
    let outcome = Sandbox::at(level).with(["--timeout", "700ms"]).run_python(code);
    assert_limit(&outcome, &Verdict::WallTimeLimit { limit_ms: 700 });
    assert_eq!(outcome.stdout, "slept\n");
    assert!((700.0..20_000.0).contains(&outcome.elapsed_ms), "{}", outcome.elapsed_ms);
    assert!(outcome.cpu_ms < 700.0, "sleeping costs nothing: {}", outcome.cpu_ms);
});

each_level!(ignored_signals_do_not_move_the_deadline, |level| {
    let code = "import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: signal.pause()";
    let outcome = Sandbox::at(level).with(["--timeout", "500ms"]).run_python(code);
    assert_limit(&outcome, &Verdict::WallTimeLimit { limit_ms: 500 });
});

each_level!(busy_loop_meets_the_cpu_time_limit, [basic, standard, strict], |level| {
    let outcome = Sandbox::at(level).with(["--cpu-time", "1s"]).run_python("while True: pass");
    assert_limit(&outcome, &Verdict::CpuTimeLimit { limit_ms: 1000 });
    assert!((1000.0..4000.0).contains(&outcome.cpu_ms), "{}", outcome.cpu_ms);
});

each_level!(cpu_time_is_counted_over_all_processes, [basic, standard, strict], |level| {
    // Eight of them: none comes near the limit alone.
    let code = "import os
for _ in range(3): os.fork()
while True: pass";
    let outcome = Sandbox::at(level).with(["--cpu-time", "1s"]).run_python(code);
    assert_limit(&outcome, &Verdict::CpuTimeLimit { limit_ms: 1000 });
});

each_level!(touched_memory_meets_the_memory_limit, [standard, strict], |level| {
    let code = "keep = []
while True: keep.append(b'x' * (1 << 20))";
    let outcome = Sandbox::at(level).with(["--memory", "64m"]).run_python(code);
    assert_limit(&outcome, &Verdict::MemoryLimit { limit_bytes: 64 << 20 });
    let peak = outcome.memory_peak_bytes.expect("a peak");
    assert!((60 << 20..=65 << 20).contains(&peak), "{peak}");
});

each_level!(memory_of_a_child_counts, [standard, strict], |level| {
    let code = "import subprocess, sys
hog = 'x = bytearray(1 << 28)\\nfor i in range(0, len(x), 4096): x[i] = 1'
print(subprocess.run([sys.executable, '-c', hog]).returncode)";
    let outcome = Sandbox::at(level).with(["--memory", "64m"]).run_python(code);
    assert_limit(&outcome, &Verdict::MemoryLimit { limit_bytes: 64 << 20 });
});

each_level!(memory_of_many_small_processes_counts_together, [standard, strict], |level| {
    let code = "import os, signal
for _ in range(20):
    if os.fork() == 0:
        x = bytearray(8 << 20)
        for i in range(0, len(x), 4096): x[i] = 1
        signal.pause()
signal.pause()";
    let outcome = Sandbox::at(level).with(["--memory", "64m"]).run_python(code);
    assert_limit(&outcome, &Verdict::MemoryLimit { limit_bytes: 64 << 20 });
});

each_level!(files_in_memory_count_as_memory, [standard, strict], |level| {
    for place in ["/dev/shm/big", "/tmp/big", "/workspace/big"] {
        let code = format!(
            "chunk = b'x' * (1 << 20)
with open('{place}', 'wb') as file:
    while True: file.write(chunk)"
        );
        let outcome = Sandbox::at(level)
            .with(["--memory", "48m", "--disk", "400m", "--file-size", "400m"])
            .run_python(&code);
        assert_limit(&outcome, &Verdict::MemoryLimit { limit_bytes: 48 << 20 });
    }
});

#[test]
fn memory_at_basic_is_bounded_for_each_process() {
    let outcome =
        Sandbox::at(Level::Basic).with(["--memory", "64m"]).run_python("x = bytearray(1 << 28)");
    assert_eq!(outcome.verdict, Verdict::Exited { code: 1 }, "{outcome:?}");
    assert!(outcome.stderr.contains("MemoryError"), "{}", outcome.stderr);
}

each_level!(output_flood_meets_the_output_limit, |level| {
    for (fd, stream) in [(1, Stream::Stdout), (2, Stream::Stderr)] {
        let code = format!("import os\nwhile True: os.write({fd}, b'z' * 65536)");
        let outcome =
            Sandbox::at(level).with(["--output-total", "1m", "--output", "1k"]).run_python(&code);
        assert_limit(&outcome, &Verdict::OutputLimit { limit_bytes: 1 << 20, stream });
        let (kept, dropped) = match stream {
            Stream::Stdout => (&outcome.stdout, outcome.stdout_dropped_bytes),
            Stream::Stderr => (&outcome.stderr, outcome.stderr_dropped_bytes),
        };
        assert!(kept.len() < 1200 && dropped >= (1 << 20) - 1024, "{} {dropped}", kept.len());
    }
});

each_level!(full_disk_is_a_disk_limit, [standard, strict], |level| {
    for place in ["/workspace", "/tmp", "/home/sandbox", "/dev/shm"] {
        let code = format!("open('{place}/big', 'wb').write(b'x' * (8 << 20))");
        let outcome = Sandbox::at(level).with(["--disk", "2m"]).run_python(&code);
        assert_limit(&outcome, &Verdict::DiskLimit { limit: DiskLimit::DiskBytes });
        assert!(outcome.stderr.contains("No space left"), "{}", outcome.stderr);
    }
});

each_level!(many_files_are_a_disk_limit, [standard, strict], |level| {
    let code = "for i in range(1000): open(f'/tmp/{i}', 'w').close()";
    let outcome = Sandbox::at(level).with(["--inodes", "100"]).run_python(code);
    assert_limit(&outcome, &Verdict::DiskLimit { limit: DiskLimit::Inodes });
});

each_level!(long_file_is_a_disk_limit, [standard, strict], |level| {
    let limit = Verdict::DiskLimit { limit: DiskLimit::FileBytes };
    // Python ignores SIGXFSZ and sees EFBIG; with the default action it dies of the signal.
    let write = "open('big', 'wb', buffering=0).write(b'x' * (2 << 20)) == 2 << 20 or \
                 open('big', 'ab', buffering=0).write(b'x')";
    let sandbox = Sandbox::at(level).with(["--file-size", "1m"]);
    let refused = sandbox.run_python(write);
    assert_limit(&refused, &limit);
    assert!(refused.stderr.contains("File too large"), "{}", refused.stderr);
    let default = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n";
    let killed = sandbox.run_python(&format!("{default}{write}"));
    assert_limit(&killed, &limit);
    assert_eq!(killed.signal, Some(25));
});

each_level!(full_disk_that_the_program_survives_is_its_own_affair, [standard, strict], |level| {
    let code = "try: open('/tmp/big', 'wb').write(b'x' * (8 << 20))
except OSError as error: print(error.strerror)";
    let outcome = Sandbox::at(level).with(["--disk", "2m"]).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, "No space left on device\n");
});

/// Machine code run from Python: what a C program would do in one instruction.
fn machine_code(bytes: &str) -> String {
    format!(
        "import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex('{bytes}'))
call = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print('called', call() > 0, flush=True)"
    )
}

/// `mov eax, 20; int 0x80; ret`: getpid of the 32-bit table.
const GETPID_32_BIT: &str = "b814000000cd80c3";
/// `mov eax, 0x40000027; syscall; ret`: getpid of the x32 table.
const GETPID_X32: &str = "b8270000400f05c3";

each_level!(calls_of_other_architectures_are_syscall_denied, [basic, standard, strict], |level| {
    for bytes in [GETPID_32_BIT, GETPID_X32] {
        let outcome = Sandbox::at(level).run_python(&machine_code(bytes));
        assert_eq!(outcome.verdict, Verdict::SyscallDenied { signal: 31 }, "{outcome:?}");
        assert_eq!(outcome.fault_domain, FaultDomain::Policy);
        assert_eq!(outcome.stdout, "");
        assert_eq!(outcome.events.len(), 1);
    }
});

#[test]
fn the_same_machine_code_works_without_a_filter() {
    // `mov eax, 39; syscall; ret`: the call that every table has.
    let plain = Sandbox::at(Level::None).run_python(&machine_code("b8270000000f05c3"));
    assert_eq!(plain.stdout, "called True\n", "{plain:?}");
    let inside = Sandbox::at(Level::Strict).run_python(&machine_code("b8270000000f05c3"));
    assert_eq!(inside.stdout, "called True\n", "{inside:?}");
}

fn command_at(level: Level, argv: &[&str]) -> Outcome {
    let mut request = RunRequest::command(argv.iter().copied());
    request.level = level;
    request.files.insert("garbage".into(), "neither script nor program\n".into());
    block_on(engine().run(request)).expect("an outcome")
}

each_level!(what_cannot_be_executed_is_start_failed, |level| {
    let garbage = "/workspace/garbage";
    for (argv, errno) in [
        (&["/nonexistent/program"][..], "ENOENT"),
        (&["no-such-command"][..], "ENOENT"),
        (&["/etc/passwd"][..], "EACCES"),
        (&[garbage][..], "ENOEXEC"),
    ] {
        let outcome = command_at(level, argv);
        let expected = Verdict::StartFailed { errno: errno.into() };
        assert_eq!(outcome.verdict, expected, "{argv:?}");
        assert_eq!((outcome.exit_code, outcome.signal), (None, None));
        assert_eq!(outcome.fault_domain, FaultDomain::Program);
    }
});

each_level!(command_runs_without_a_shell, |level| {
    let outcome = command_at(level, &["echo", "$HOME", "a  b", ";", "ls"]);
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, "$HOME a  b ; ls\n");
});
