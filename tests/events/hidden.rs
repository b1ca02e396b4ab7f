//! What is grave is not hidden by what is not, however much of that comes first.

use belljar::{EventKind, Risk, Severity};
use belljar_tests::{Sandbox, each_level};

use super::{above_info, calling, names, only};

/// The rest of a program: it has done enough harmless things before.
const GRAVE: &str = "
assert call(165, b'none', b'/mnt', b'tmpfs', 0, 0) == 1
assert call(175, 0, 5, b'a=1') == 1
print('done')
";

// More different processes than are counted apart, and more calls than are told one by one; real programs make these.
each_level!(a_flood_of_harmless_refusals_hides_no_grave_one, [standard, strict], |level| {
    let code = format!(
        "
for n in range(1100):
    if os.fork() == 0:
        call(425, n + 1, 0); os._exit(0)
    os.wait()
{GRAVE}"
    );
    let outcome = Sandbox::at(level).run_python(&calling(&code));
    assert_eq!(outcome.stdout, "done\n", "{outcome:?}");
    let told: Vec<(String, &str)> = above_info(&outcome)
        .iter()
        .map(|event| (names(event.kind, event.severity), event.detail.as_str()))
        .collect();
    let mount = r#"mount(source="none", target="/mnt", type="tmpfs", flags=0)"#;
    let module = r#"init_module(length=5, parameters="a=1")"#;
    let wanted =
        [("escape_attempt high".to_owned(), mount), ("escape_attempt critical".to_owned(), module)];
    assert_eq!(told, wanted);
    assert_eq!(outcome.risk, Risk::Critical);
    let probes =
        outcome.events.iter().filter(|one| one.syscall.as_deref() == Some("io_uring_setup"));
    assert_eq!(probes.map(|event| event.count).sum::<u64>(), 1100);
});

#[test]
fn harmless_forms_of_a_call_hide_no_grave_form_of_it() {
    let code = calling(
        "
for n in range(50): call(101, 0, n); call(41, 16, 3, n); call(272, 0x200)
call(101, 16, 1); call(41, 38, 5, 0); call(272, 0x10000000)
print('done')
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    assert_eq!(outcome.stdout, "done\n", "{outcome:?}");
    let told: Vec<(String, &str, u64)> = above_info(&outcome)
        .iter()
        .map(|event| (names(event.kind, event.severity), event.detail.as_str(), event.count))
        .collect();
    let wanted = [
        ("escape_attempt high", "ptrace(request=PTRACE_ATTACH, pid=1)", 1),
        ("syscall_blocked medium", "socket(family=AF_ALG, type=SOCK_SEQPACKET, protocol=0)", 1),
        ("escape_attempt medium", "unshare(flags=CLONE_NEWUSER)", 1),
    ];
    assert_eq!(told, wanted.map(|(kind, detail, count)| (kind.to_owned(), detail, count)));
}

#[test]
fn a_call_that_comes_after_all_that_is_told_is_an_event_without_arguments() {
    let code = calling(
        "
for n in range(40):
    if os.fork() == 0:
        for m in range(8): call(161, b'/%d-%d' % (n, m))
        os._exit(0)
    os.wait()
for n in range(3): call(165, b'none', b'/%d' % n, b'tmpfs', 0, 0)
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    assert!(outcome.ok(), "{outcome:?}");
    let event = only(&outcome, "seccomp/standard/mount");
    assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::High));
    assert_eq!((event.syscall.as_deref(), event.count), (Some("mount"), 3));
    assert!(event.detail.starts_with("mount(…)") && event.process.is_none(), "{event:?}");
    assert!(event.fix.starts_with("nothing: the kernel wants a capability"), "{event:?}");
}

#[test]
fn many_connections_hide_none_to_where_clouds_keep_secrets() {
    let code = "
import os, socket
for n in range(150):
    if os.fork() == 0:
        socket.socket().connect_ex(('127.0.0.1', 9)); os._exit(0)
    os.wait()
socket.socket().connect_ex(('169.254.169.254', 80))
socket.socket(socket.AF_INET6).connect_ex(('::ffff:100.100.100.200', 80))
";
    let outcome = Sandbox::standard().run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    let told: Vec<&str> = above_info(&outcome).iter().map(|one| one.detail.as_str()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("169.254.169.254:80") && told[1].contains("100.100.100.200:80"));
    assert_eq!(outcome.risk, Risk::High);
}
