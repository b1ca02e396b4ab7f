//! Each of the six kinds, from its own evidence.

use belljar::{EventKind, Risk, Severity};
use belljar_tests::{Sandbox, each_level};

use super::{above_info, assert_innocent, calling, only};

each_level!(all_kinds_of_limits_are_low_and_name_the_flag, [standard, strict], |level| {
    let sandbox = Sandbox::at(level);
    for (options, code, kind, rule, fix) in [
        (
            ["--timeout", "300ms"],
            "import time; time.sleep(60)",
            EventKind::TimeoutExceeded,
            "wall_timeout",
            "--timeout 600ms",
        ),
        (
            ["--cpu-time", "200ms"],
            "while True: pass",
            EventKind::TimeoutExceeded,
            "rlimits",
            "--cpu-time 400ms",
        ),
        (
            ["--memory", "64m"],
            "x = bytearray(300 << 20)",
            EventKind::ResourceLimitExceeded,
            "cgroup_memory",
            "--memory 128m",
        ),
        (
            ["--disk", "1m"],
            "open('/tmp/x', 'wb').write(bytes(3 << 20))",
            EventKind::ResourceLimitExceeded,
            "disk",
            "--disk 2m",
        ),
    ] {
        let outcome = sandbox.clone().with(options).run_python(code);
        let event = only(&outcome, rule);
        assert_eq!((event.kind, event.severity), (kind, Severity::Low), "{outcome:?}");
        assert_eq!(event.fix, fix);
        assert_eq!(outcome.risk, Risk::Low);
    }
});

#[test]
fn a_program_within_its_limits_has_no_event() {
    assert_innocent(&Sandbox::standard().run_python("x = bytearray(30 << 20); print(len(x))"));
}

#[test]
fn file_watches_are_refused_without_raising_the_risk_and_the_fix_is_whole() {
    let code = "
const fs = require('fs'), dir = fs.mkdtempSync('/tmp/x-');
try { fs.watch(dir).close(); console.log('watched'); } catch (error) { console.log(error.code); }";
    let outcome = Sandbox::standard().run_node(code);
    assert_eq!(outcome.stdout, "EPERM\n", "{outcome:?}");
    assert_innocent(&outcome);
    let event = only(&outcome, "seccomp/standard/inotify_init1");
    assert_eq!((event.kind, event.severity), (EventKind::PermissionDenied, Severity::Info));
    let allowed = Sandbox::standard().with(event.fix.split(' ')).run_node(code);
    assert!(allowed.stdout.starts_with("watched"), "{allowed:?}");
}

#[test]
fn connecting_to_where_clouds_keep_secrets_is_an_escape_attempt() {
    let code = "
import socket
for family, address in [(socket.AF_INET, ('169.254.169.254', 80)), (socket.AF_INET6, ('fd00:ec2::254', 80)), (socket.AF_INET6, ('::ffff:169.254.169.254', 80))]:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        print(one.connect_ex(address))
";
    let outcome = Sandbox::standard().run_python(code);
    assert_eq!(outcome.stdout, "101\n101\n101\n", "ENETUNREACH: {outcome:?}");
    let found = above_info(&outcome);
    assert_eq!(found.len(), 2, "{found:?}");
    for (event, address) in found.iter().zip(["169.254.169.254:80", "[fd00:ec2::254]:80"]) {
        assert_eq!((event.kind, event.severity), (EventKind::EscapeAttempt, Severity::High));
        assert_eq!(
            (event.rule.as_str(), event.syscall.as_deref()),
            ("net_namespace", Some("connect"))
        );
        assert!(event.detail.contains(address), "{event:?}");
    }
    assert_eq!(found[0].count, 2, "the same host by another way of writing it");
    assert_eq!(outcome.risk, Risk::High);
}

#[test]
fn connecting_elsewhere_is_only_denied() {
    let code = "import socket; print(socket.socket().connect_ex(('192.0.2.7', 443)))";
    let outcome = Sandbox::standard().run_python(code);
    let event = only(&outcome, "net_namespace");
    assert_eq!((event.kind, event.severity), (EventKind::PermissionDenied, Severity::Low));
    assert!(event.detail.contains("192.0.2.7:443"), "{event:?}");
    assert_eq!(outcome.risk, Risk::Low);
}

#[test]
fn scanning_ports_is_suspicious_and_a_few_connections_are_not() {
    let scan = |ports: u32| {
        let code = format!(
            "import socket
for port in range(2000, 2000 + {ports}): socket.socket().connect_ex(('127.0.0.1', port))"
        );
        Sandbox::standard().run_python(&code)
    };
    let outcome = scan(40);
    let event = only(&outcome, "pattern/port_scan");
    assert_eq!((event.kind, event.severity), (EventKind::SuspiciousBehavior, Severity::Medium));
    assert!(event.detail.contains("40 or more different ports of 127.0.0.1"), "{event:?}");
    assert_innocent(&scan(10));
}

#[test]
fn hosts_too_are_scanned() {
    let code = "
import socket
for last in range(1, 31):
    one = socket.socket(); one.setblocking(False); one.connect_ex((f'127.0.1.{last}', 80))";
    let outcome = Sandbox::standard().run_python(code);
    assert!(only(&outcome, "pattern/port_scan").detail.contains("30 or more different hosts"));
}

#[test]
fn forking_on_after_the_limit_is_a_storm_and_meeting_it_once_is_not() {
    let forks = |times: u32| {
        let code = format!(
            "import os, time
children = []
for _ in range(40):
    try: pid = os.fork()
    except OSError: break
    if pid == 0:
        time.sleep(30); os._exit(0)
    children.append(pid)
for _ in range({times} - 1):
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: pass
print(len(children))"
        );
        Sandbox::standard().with(["--pids", "16"]).run_python(&code)
    };
    let storm = forks(300);
    let event = only(&storm, "pattern/fork_storm");
    assert_eq!((event.kind, event.severity), (EventKind::SuspiciousBehavior, Severity::Medium));
    assert_eq!(only(&storm, "cgroup_pids").fix, "--pids 32");
    let once = forks(5);
    assert_eq!(only(&once, "cgroup_pids").kind, EventKind::ResourceLimitExceeded);
    assert_eq!(above_info(&once).len(), 1, "{once:?}");
}

#[test]
fn a_canary_in_the_output_is_told_and_not_repeated() {
    let canary = "canary-7f3a91c0";
    let sandbox = Sandbox::standard().with(["--canary", canary]);
    let code = "import sys, time
print('x' * 70000, end=''); print('canary-7f3', end='', flush=True); time.sleep(0.2); print('a91c0')
print('canary-7f3a91c0', file=sys.stderr)";
    let outcome = sandbox.run_python(code);
    let found = above_info(&outcome);
    assert_eq!(found.len(), 2, "{found:?}");
    for event in &found {
        assert_eq!(
            (event.kind, event.severity),
            (EventKind::SuspiciousBehavior, Severity::Critical)
        );
        assert_eq!(event.rule, "pattern/canary");
        assert!(!format!("{event:?}").contains(canary));
    }
    assert_eq!(outcome.risk, Risk::Critical);
    assert_innocent(&sandbox.run_python("print('canary-7f3', 'a91c0')"));
}

#[test]
fn a_call_of_another_architecture_still_dies_and_is_told() {
    // int 0x80: getpid of 32-bit x86.
    let code = calling(
        "
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    assert_eq!(outcome.verdict.kind(), "syscall_denied", "{outcome:?}");
    let event = only(&outcome, "seccomp");
    assert_eq!((event.kind, event.severity), (EventKind::SyscallBlocked, Severity::Medium));
}

// The process is the one that made the call, with its own parent.
#[test]
fn the_process_that_tried_is_named_with_its_parent() {
    let code = calling(
        "
child = os.fork()
if child == 0:
    call(161, b'/tmp'); os._exit(0)
os.waitpid(child, 0)
print(child, os.getpid())
os.execv('/bin/sh', ['sh', '-c', 'unshare --user true; true # second'])
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    let numbers: Vec<u32> =
        outcome.stdout.split_whitespace().map(|one| one.parse().expect("a pid")).collect();
    let chroot = only(&outcome, "seccomp/standard/chroot").process.as_ref().expect("a process");
    assert_eq!((chroot.pid, chroot.parent), (numbers[0], Some(numbers[1])), "{outcome:?}");
    let unshare = only(&outcome, "seccomp/standard/unshare").process.as_ref().expect("a process");
    assert_eq!(unshare.command, "unshare --user true");
    assert_eq!(unshare.parent, Some(numbers[1]));
}
