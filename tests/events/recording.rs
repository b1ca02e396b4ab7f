//! A recorded run: what it executed, opened, connected to and wrote.

use belljar::{Act, Entry, Recording};
use belljar_tests::{Sandbox, each_level};

fn recorded(sandbox: Sandbox, code: &str) -> (belljar_tests::Outcome, Recording) {
    let outcome = sandbox.with(["--record", "--no-server"]).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    let recording = outcome.recording.clone().expect("a recording");
    (outcome, recording)
}

fn find(recording: &Recording, act: Act, target: &str) -> Entry {
    let mut found = recording.entries.iter().filter(|one| one.act == act && one.target == target);
    let first = found.next().cloned();
    first.unwrap_or_else(|| panic!("no {act:?} of {target}: {recording:#?}"))
}

each_level!(acts_are_told_with_their_targets, [basic, standard, strict], |level| {
    let code = "
import os, subprocess
os.makedirs('d', exist_ok=True); os.chdir('d')
open('made', 'w').write('12345')
open('../d/./made').read(); open('made').read()
print(subprocess.run(['/bin/echo', 'a b', 'c'], capture_output=True).stdout)
os.write(1, b'xyz'); os.write(1, b'xyz')
here = os.getcwd(); print(here)
";
    let (outcome, recording) = recorded(Sandbox::at(level), code);
    let here = outcome.stdout.lines().last().expect("a line").trim_start_matches("xyzxyz");
    let made = format!("{here}/made");
    find(&recording, Act::Change, &made);
    find(&recording, Act::Read, &made);
    assert_eq!(find(&recording, Act::Write, &made).bytes, Some(5));
    let echo = find(&recording, Act::Exec, "/bin/echo");
    assert_eq!(echo.command.as_deref(), Some("/bin/echo a b c"));
    assert_eq!(recording.dropped, 0);
    let pipe = |one: &&Entry| one.act == Act::Write && one.target.starts_with("pipe:");
    let pipes: u64 = recording.entries.iter().filter(pipe).map(|one| one.count).sum();
    assert!(pipes >= 3, "{recording:#?}");
    assert_eq!(outcome.risk, belljar::Risk::Low);
});

#[test]
fn connections_are_recorded() {
    let code = "
import socket
listener = socket.create_server(('127.0.0.1', 4321))
for _ in range(3): socket.create_connection(('127.0.0.1', 4321)).close()
";
    let (_, recording) = recorded(Sandbox::standard(), code);
    assert_eq!(find(&recording, Act::Connect, "127.0.0.1:4321").count, 3);
}

// What no filter sees is seen here: files of the boundary that are absent or read-only.
#[test]
fn attempts_on_files_of_the_boundary_are_events_of_a_recorded_run() {
    let code = "
for path in ['/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/dev/sda', '/sys/kernel/uevent_helper']:
    try: open(path, 'w')
    except OSError as error: print(error.errno)
open('/proc/sys/kernel/ostype').read()
";
    let (outcome, _) = recorded(Sandbox::standard(), code);
    assert_eq!(outcome.stdout.lines().count(), 4, "all refused: {outcome:?}");
    let told: Vec<&str> =
        super::above_info(&outcome).iter().map(|event| event.detail.as_str()).collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].contains("/proc/sys/kernel/core_pattern"), "{told:?}");
    assert!(told[2].contains("/dev/sda"), "{told:?}");
}

#[test]
fn an_endless_recording_is_bounded_and_says_what_is_missing() {
    let code = "
import os
for n in range(6000):
    try: os.open('/tmp/%d' % n, os.O_RDONLY)
    except OSError: pass
";
    let (_, recording) = recorded(Sandbox::standard(), code);
    assert!(recording.entries.len() <= 4096, "{}", recording.entries.len());
    assert!(recording.dropped >= 1900, "{}", recording.dropped);
}

#[test]
fn a_recording_cannot_be_warm_nor_without_a_filter() {
    for (options, field) in [(&["--level", "none"][..], "record"), (&["--start", "warm"], "record")]
    {
        let program =
            belljar_tests::Program::belljar().args(["run", "--record", "--no-server", "-c", "1"]);
        let ended = program.args(options).run();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(told.starts_with(&format!("belljar: {field} ")), "{told}");
    }
}
