//! Every limit is told with what was used of it, and the numbers are plausible.

use belljar_tests::{Level, Outcome, Sandbox, each_level};

const NAMES: [&str; 11] = [
    "cpu_ms",
    "disk_bytes",
    "file_bytes",
    "inodes",
    "memory_bytes",
    "millicpus",
    "open_files",
    "output_bytes",
    "output_total_bytes",
    "processes",
    "wall_ms",
];

fn used(outcome: &Outcome, name: &str) -> u64 {
    let used = outcome.limits[name].used;
    used.unwrap_or_else(|| panic!("{name} was not measured: {:?}", outcome.limits))
}

each_level!(all_limits_are_named, |level| {
    let outcome = Sandbox::at(level).run_python("print('x' * 999)");
    let names: Vec<_> = outcome.limits.keys().map(String::as_str).collect();
    assert_eq!(names, NAMES);
    assert_eq!(outcome.limits["wall_ms"].limit, Some(30_000));
    assert_eq!(used(&outcome, "output_bytes"), 1000);
    // What a level does not enforce has no limit to show.
    assert_eq!(outcome.limits["memory_bytes"].limit.is_some(), level >= Level::Basic);
    assert_eq!(outcome.limits["disk_bytes"].limit.is_some(), level >= Level::Standard);
});

each_level!(asked_limits_are_the_ones_in_force, [standard, strict], |level| {
    let outcome = Sandbox::at(level)
        .with(["--timeout", "9s", "--cpu-time", "8s", "--cpus", "0.5", "--memory", "100m"])
        .with(["--pids", "17", "--disk", "3m", "--inodes", "99", "--files", "55"])
        .with(["--file-size", "2m", "--output", "5k", "--output-total", "6k"])
        .run_python("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))");
    assert_eq!(outcome.stdout, "(55, 55)\n");
    let asked = [8000, 3 << 20, 2 << 20, 99, 100 << 20, 500, 55, 5 << 10, 6 << 10, 17, 9000];
    for (name, value) in NAMES.into_iter().zip(asked) {
        assert_eq!(outcome.limits[name].limit, Some(value), "{name}");
    }
});

each_level!(used_memory_is_plausible, |level| {
    let code = "x = bytearray(60 << 20)
for i in range(0, len(x), 4096): x[i] = 1";
    let outcome = Sandbox::at(level).run_python(code);
    let peak = outcome.memory_peak_bytes.expect("a peak at every level");
    assert!((60 << 20..100 << 20).contains(&peak), "{peak}");
    assert_eq!(used(&outcome, "memory_bytes"), peak);
});

each_level!(used_cpu_time_is_plausible, |level| {
    // Its own time: an interpreter that waited for it has used some before.
    let code = "import time
start = time.process_time()
while time.process_time() - start < 0.3: pass";
    let outcome = Sandbox::at(level).run_python(code);
    assert!((290.0..1500.0).contains(&outcome.cpu_ms), "{}", outcome.cpu_ms);
    assert!(outcome.elapsed_ms >= 250.0, "{}", outcome.elapsed_ms);
});

each_level!(peak_of_processes_is_counted, [standard, strict], |level| {
    let code = "import os, signal
children = []
for _ in range(9):
    child = os.fork()
    if child == 0: signal.pause()
    children.append(child)
for child in children: os.kill(child, 9); os.waitpid(child, 0)";
    let outcome = Sandbox::at(level).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    // The program and nine children; init may or may not be of the group.
    let peak = outcome.processes_peak.expect("a peak");
    assert!((10..=12).contains(&peak), "{peak}");
});

each_level!(forks_beyond_the_limit_are_refused_and_told, [standard, strict], |level| {
    let code = "import os, signal
made = 0
try:
    while True:
        if os.fork() == 0: signal.pause()
        made += 1
except OSError as error: print(made, error.strerror)";
    let outcome = Sandbox::at(level).with(["--pids", "10"]).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    assert!(outcome.stdout.ends_with(" Resource temporarily unavailable\n"), "{outcome:?}");
    let made: u32 = outcome.stdout.split(' ').next().and_then(|n| n.parse().ok()).expect("a count");
    assert!((8..=10).contains(&made), "{made}");
    assert_eq!(outcome.events.len(), 1, "{:?}", outcome.events);
    assert!(outcome.events[0].fix.contains("--pids"));
});

each_level!(used_disk_and_inodes_are_counted, [standard, strict], |level| {
    let code = "for i in range(10): open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))";
    let outcome = Sandbox::at(level).run_python(code);
    let (bytes, inodes) = (used(&outcome, "disk_bytes"), used(&outcome, "inodes"));
    assert!((10 << 20..11 << 20).contains(&bytes), "{bytes}");
    assert!((11..40).contains(&inodes), "{inodes}");
    assert_eq!(used(&outcome, "file_bytes"), 1 << 20);
});

each_level!(half_a_core_takes_twice_as_long, [standard, strict], |level| {
    let code = "import time
start = time.monotonic()
while time.process_time() < 0.6: pass
print(time.monotonic() - start)";
    let outcome = Sandbox::at(level).with(["--cpus", "0.5"]).run_python(code);
    let took: f64 = outcome.stdout.trim().parse().expect("seconds");
    assert!(took > 0.9, "0.6 s of CPU time took {took} s");
});
