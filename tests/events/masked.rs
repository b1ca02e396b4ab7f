//! Reads of what is masked are told, warm and cold, without a recording.

use std::fs;

use belljar::{EventKind, Outcome, Severity};
use belljar_tests::Sandbox;

use super::{above_info, assert_innocent};

/// As many opens as there are covers, by different means: again, by another program, with flags that leave no
/// trace in the file's times.
#[test]
fn opening_a_covered_secret_of_proc_is_an_escape_attempt() {
    let names = ["kallsyms", "iomem", "keys"];
    for name in names {
        fs::File::open(format!("/proc/{name}"))
            .expect("the host has it, and it can be opened there");
    }
    let code = "
import os, subprocess
print(open('/proc/kallsyms', 'rb').read(10))
print(os.read(os.open('/proc/iomem', os.O_RDONLY | os.O_NOATIME), 10))
print(subprocess.run(['cat', '/proc/keys'], capture_output=True).stdout)
open('/proc/kallsyms').close()
";
    let outcome = Sandbox::standard().run_python(code);
    assert_eq!(outcome.stdout, "b''\nb''\nb''\n", "covered: {outcome:?}");
    assert_told(&outcome, &names);
}

/// The last thing that it does, and killed before it can go on: it is told all the same.
#[test]
fn an_end_right_behind_an_attempt_does_not_hide_it() {
    let code = "
import os, signal
if os.fork() == 0:
    os.execv('/bin/cat', ['cat', '/proc/iomem'])
os.wait()
try: open('/proc/keys')
finally: os.kill(os.getpid(), signal.SIGKILL)
";
    for _ in 0..5 {
        assert_told(&Sandbox::standard().run_python(code), &["iomem", "keys"]);
    }
}

/// The signal that wakes init is not evidence: only the lease is.
#[test]
fn a_signal_to_init_is_no_attempt() {
    let code = "
import os, signal
for _ in range(1000):
    try: os.kill(1, signal.SIGIO)
    except PermissionError: pass
print('ok')
";
    assert_innocent(&Sandbox::standard().run_python(code));
}

fn assert_told(outcome: &Outcome, names: &[&str]) {
    let found = above_info(outcome);
    assert_eq!(found.len(), names.len(), "{found:?}");
    for (event, name) in found.iter().zip(names) {
        assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::Medium));
        assert!(event.detail.starts_with(&format!("opened /proc/{name},")), "{event:?}");
        assert_eq!((event.rule.as_str(), event.process.as_ref()), ("proc", None));
        assert_eq!(event.count, 1);
    }
}

#[test]
fn looking_around_in_proc_is_innocent() {
    let code = "
import os
for name in ['meminfo', 'cpuinfo', 'stat', 'self/status', 'self/mountinfo', 'uptime', 'loadavg', 'diskstats', 'cmdline']:
    open('/proc/' + name).read()
os.stat('/proc/iomem'), os.listdir('/proc'), os.access('/proc/kallsyms', os.R_OK)
print('ok')
";
    assert_innocent(&Sandbox::standard().run_python(code));
}
