//! Opens that write to what must be there already, of files that are the boundary itself: told without a recording.

use std::fs::OpenOptions;

use belljar::{EventKind, Outcome, Severity};
use belljar_tests::{Sandbox, each_level};

use super::{above_info, assert_innocent};

const PATHS: [&str; 5] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sysrq-trigger",
    "/dev/mem",
    "/dev/sda",
    "/sys/kernel/uevent_helper",
];

fn details(outcome: &Outcome) -> Vec<&str> {
    above_info(outcome).iter().map(|event| event.detail.as_str()).collect()
}

each_level!(
    opening_the_boundarys_files_for_writing_is_an_escape_attempt,
    [basic, standard, strict],
    |level| {
        if belljar_tests::is_root() {
            // Opened, and not written to.
            OpenOptions::new().write(true).open(PATHS[0]).expect("outside it can be opened");
        }
        let code = format!(
            "
import os
for path in {PATHS:?}:
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_SYNC):
        try: os.open(path, flags); print('opened', path)
        except OSError as error: pass
print('done')
"
        );
        let outcome = Sandbox::at(level).run_python(&code);
        assert_eq!(outcome.stdout, "done\n", "all refused: {outcome:?}");
        let found = above_info(&outcome);
        assert_eq!(found.len(), PATHS.len(), "{found:?}");
        for (event, path) in found.iter().zip(PATHS) {
            assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::High));
            assert_eq!(event.detail, format!("tried to open {path} for writing"));
            let layer = if path.starts_with("/dev") { "devices" } else { "proc" };
            assert_eq!((event.rule.as_str(), event.count), (layer, 2), "{event:?}");
            assert_eq!(event.syscall.as_deref(), Some("openat"));
            let process = event.process.as_ref().expect("a process");
            assert!(process.command.contains("python"), "{event:?}");
        }
    }
);

#[test]
fn a_path_is_known_by_whichever_way_it_is_written() {
    let code = "
import os
def attempt(path, directory=None):
    try: os.close(os.open(path, os.O_WRONLY, dir_fd=directory)); print('opened', path)
    except OSError: pass
attempt('//proc/./sys/../sys/kernel/modprobe')
os.chdir('/proc/sys/kernel'); attempt('hotplug')
attempt('sda', os.open('/dev', os.O_RDONLY))
";
    let outcome = Sandbox::standard().run_python(code);
    assert_eq!(outcome.stdout, "", "{outcome:?}");
    let wanted = ["/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/dev/sda"];
    let wanted = wanted.map(|path| format!("tried to open {path} for writing"));
    assert_eq!(details(&outcome), wanted);
}

// More files of its own than are told of in a run come first, each opened in the same way.
#[test]
fn many_files_of_its_own_hide_none_of_the_boundarys() {
    let code = "
import os
for n in range(300):
    open('f%d' % n, 'w').close()
    with open('f%d' % n, 'r+') as one: one.write('x')
try: os.open('/dev/mem', os.O_RDWR)
except OSError: print('refused')
";
    let outcome = Sandbox::standard().run_python(code);
    assert_eq!(outcome.stdout, "refused\n", "{outcome:?}");
    assert_eq!(details(&outcome), ["tried to open /dev/mem for writing"]);
}

each_level!(writing_to_its_own_files_and_looking_is_innocent, [basic, standard, strict], |level| {
    let code = "
import os, subprocess, sys
os.makedirs('proc/sys/kernel'); os.makedirs('dev')
for path in ('proc/sys/kernel/core_pattern', 'dev/sda', 'x'):
    open(path, 'w').close()
    with open(path, 'r+') as one: one.write('mine')
os.close(os.open('/dev/null', os.O_RDWR)); os.close(os.open('/dev/zero', os.O_WRONLY))
subprocess.run([sys.executable, '-c', ''], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
for path in ('/dev/mem', '/dev/sda', '/dev/kvm'): os.path.exists(path), os.access(path, os.W_OK)
try: open('/proc/sys/kernel/ostype').read()
except OSError: pass # closed at basic, absent at strict
print(open('x').read())
";
    let outcome = Sandbox::at(level).run_python(code);
    assert_eq!(outcome.stdout, "mine\n", "{outcome:?}");
    assert_innocent(&outcome);
});
