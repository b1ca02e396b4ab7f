//! Reads of what is masked are told of warm runs, whoever asks for them and without a recording.

use belljar::{EventKind, Severity};
use belljar_tests::{Level, Sandbox, Server};

use super::{above_info, assert_innocent};

#[test]
fn opening_a_covered_secret_of_proc_is_an_escape_attempt() {
    let code = "
for name in ['kallsyms', 'iomem', 'keys']: print(open('/proc/' + name, 'rb').read(10))
open('/proc/kallsyms').close()
";
    let server = Server::with(&["--warm", "python"]);
    let outcome = server.warm(Level::Standard).run_python(code);
    assert_eq!(outcome.stdout, "b''\nb''\nb''\n", "covered: {outcome:?}");
    let found = above_info(&outcome);
    let names = ["kallsyms", "iomem", "keys"];
    assert_eq!(found.len(), names.len(), "{found:?}");
    for (event, name) in found.iter().zip(names) {
        assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::Medium));
        assert!(event.detail.starts_with(&format!("opened /proc/{name},")), "{event:?}");
        assert_eq!((event.rule.as_str(), event.process.as_ref()), ("proc", None));
    }
    assert_eq!(found[0].count, 2);
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
