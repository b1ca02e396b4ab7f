//! Every decoded call: the exact event, and its near miss.

use belljar_tests::{Sandbox, each_level};

use super::{assert_innocent, calling, names};

/// A call as the program makes it, the errno that it is answered with, and the event: its kind and
/// severity, and its words.
type Case = (&'static str, i32, &'static str, &'static str);

const HIGH: &str = "escape_attempt high";
const CRITICAL: &str = "escape_attempt critical";

static CASES: &[Case] = &[
    (
        "165, b'none', b'/mnt', b'tmpfs', 1 | 2 | 4096, 0",
        1,
        HIGH,
        r#"mount(source="none", target="/mnt", type="tmpfs", flags=MS_RDONLY|MS_NOSUID|MS_BIND)"#,
    ),
    ("166, b'/proc', 2", 1, HIGH, r#"umount2(target="/proc", flags=MNT_DETACH)"#),
    ("155, b'/a', b'/b'", 1, HIGH, r#"pivot_root(new_root="/a", put_old="/b")"#),
    ("161, b'/tmp'", 1, HIGH, r#"chroot(path="/tmp")"#),
    ("428, -100, b'/', 1", 1, HIGH, r#"open_tree(path="/", flags=OPEN_TREE_CLONE)"#),
    (
        "429, -100, b'/a', -100, b'/b', 4",
        1,
        HIGH,
        r#"move_mount(from="/a", to="/b", flags=MOVE_MOUNT_F_EMPTY_PATH)"#,
    ),
    ("430, b'ext4', 0", 1, HIGH, r#"fsopen(type="ext4")"#),
    (
        "431, 77, 1, b'source', b'x', 0",
        1,
        HIGH,
        r#"fsconfig(fd=77, command=FSCONFIG_SET_STRING, key="source")"#,
    ),
    ("432, 77, 0, 1", 1, HIGH, "fsmount(fd=77, attributes=MOUNT_ATTR_RDONLY)"),
    ("433, -100, b'/', 0", 1, HIGH, r#"fspick(path="/")"#),
    ("442, -100, b'/', 0, 0, 0", 1, HIGH, r#"mount_setattr(path="/")"#),
    ("308, 77, 0x20000000", 1, HIGH, "setns(fd=77, type=CLONE_NEWPID)"),
    ("272, 0x10020000", 1, "escape_attempt medium", "unshare(flags=CLONE_NEWNS|CLONE_NEWUSER)"),
    ("272, 0x200", 1, "syscall_blocked info", "unshare(flags=CLONE_FS)"),
    ("56, 0x40000011, 0, 0, 0, 0", 1, "escape_attempt medium", "clone(flags=CLONE_NEWNET|0x11)"),
    ("101, 16, 1", 1, HIGH, "ptrace(request=PTRACE_ATTACH, pid=1)"),
    ("101, 0, 0", 1, "syscall_blocked info", "ptrace(request=PTRACE_TRACEME, pid=0)"),
    ("310, 1, 0, 0, 0, 0, 0", 1, HIGH, "process_vm_readv(pid=1)"),
    ("311, 1, 0, 0, 0, 0, 0", 1, HIGH, "process_vm_writev(pid=1)"),
    ("438, 77, 1, 0", 1, HIGH, "pidfd_getfd(pidfd=77, fd=1)"),
    ("312, 1, 2, 0, 0, 0", 1, "syscall_blocked low", "kcmp(pid1=1, pid2=2)"),
    ("304, 77, 0, 0o2000002", 1, CRITICAL, "open_by_handle_at(mount=77, flags=O_RDWR|O_CLOEXEC)"),
    ("303, -100, b'/etc', 0, 0, 0", 1, "syscall_blocked low", r#"name_to_handle_at(path="/etc")"#),
    ("175, 0, 5, b'a=1'", 1, CRITICAL, r#"init_module(length=5, parameters="a=1")"#),
    (
        "313, 77, b'x', 4",
        1,
        CRITICAL,
        r#"finit_module(fd=77, parameters="x", flags=MODULE_INIT_COMPRESSED_FILE)"#,
    ),
    ("176, b'kvm', 0", 1, CRITICAL, r#"delete_module(name="kvm")"#),
    ("246, 0, 0, 0, 0", 1, CRITICAL, "kexec_load()"),
    ("320, 77, 78, 0, 0, 0", 1, CRITICAL, "kexec_file_load(kernel=77)"),
    ("321, 5, 0, 0", 1, HIGH, "bpf(command=BPF_PROG_LOAD)"),
    ("298, 0, -1, 0, -1, 0", 1, "syscall_blocked medium", "perf_event_open(pid=-1, cpu=0)"),
    ("250, 11, 1, 0, 0", 1, "syscall_blocked medium", "keyctl(operation=KEYCTL_READ)"),
    (
        "248, b'user', b'mine', b'v', 1, -2",
        1,
        "syscall_blocked medium",
        r#"add_key(type="user", description="mine")"#,
    ),
    (
        "249, b'user', b'theirs', 0, -2",
        1,
        "syscall_blocked medium",
        r#"request_key(type="user", description="theirs")"#,
    ),
    ("323, 0", 1, "syscall_blocked medium", "userfaultfd()"),
    ("425, 8, 0", 38, "syscall_blocked info", "io_uring_setup(entries=8)"),
    ("426, 0", 38, "syscall_blocked info", "io_uring_enter()"),
    ("427, 0", 38, "syscall_blocked info", "io_uring_register()"),
    (
        "169, 0xfee1dead, 672274793, 0x4321fedc, 0",
        1,
        HIGH,
        "reboot(command=LINUX_REBOOT_CMD_POWER_OFF)",
    ),
    ("167, b'/swap', 0", 1, HIGH, r#"swapon(path="/swap")"#),
    ("168, b'/swap'", 1, HIGH, r#"swapoff(path="/swap")"#),
    ("163, b'/acct'", 1, HIGH, r#"acct(path="/acct")"#),
    ("172, 3", 1, HIGH, "iopl(level=3)"),
    ("173, 0x3f8, 8, 1", 1, HIGH, "ioperm(from=1016, number=8, on=1)"),
    (
        "41, 38, 5, 0",
        1,
        "syscall_blocked medium",
        "socket(family=AF_ALG, type=SOCK_SEQPACKET, protocol=0)",
    ),
    (
        "41, 17, 3, 768",
        1,
        "syscall_blocked medium",
        "socket(family=AF_PACKET, type=SOCK_RAW, protocol=768)",
    ),
    (
        "41, 40, 1, 0",
        1,
        "syscall_blocked medium",
        "socket(family=AF_VSOCK, type=SOCK_STREAM, protocol=0)",
    ),
    (
        "41, 2, 3 | 0x80000, 1",
        1,
        "syscall_blocked low",
        "socket(family=AF_INET, type=SOCK_CLOEXEC|SOCK_RAW, protocol=1)",
    ),
    (
        "41, 16, 3, 0",
        1,
        "syscall_blocked info",
        "socket(family=AF_NETLINK, type=SOCK_RAW, protocol=0)",
    ),
    ("135, 0x400000", 1, "syscall_blocked info", "personality(persona=READ_IMPLIES_EXEC)"),
    (
        "179, 0x80000200, b'/dev/sda1', 0, 0",
        1,
        "syscall_blocked medium",
        r#"quotactl(command=Q_QUOTAON, device="/dev/sda1")"#,
    ),
    (
        "133, b'/tmp/sda', 0o60600, 0x800",
        1,
        HIGH,
        r#"mknod(path="/tmp/sda", type=block device, device=8:0)"#,
    ),
    (
        "259, -100, b'/tmp/mem', 0o20600, 0x101",
        1,
        HIGH,
        r#"mknodat(path="/tmp/mem", type=character device, device=1:1)"#,
    ),
    ("170, b'other\\0', 5", 1, "permission_denied low", r#"sethostname(name="other")"#),
    ("171, b'other\\0', 5", 1, "permission_denied low", r#"setdomainname(name="other")"#),
    ("164, 0, 0", 1, "permission_denied low", "settimeofday()"),
    ("227, 0, 0", 1, "permission_denied low", "clock_settime(clock=CLOCK_REALTIME)"),
    ("300, 0, 0", 1, "syscall_blocked medium", "fanotify_init()"),
    ("212, 0, 0, 0", 1, "syscall_blocked medium", "lookup_dcookie()"),
    ("153", 1, "syscall_blocked medium", "vhangup()"),
    ("103, 3, 0, 0", 1, "permission_denied low", "syslog(type=READ_ALL)"),
    ("278, 0, 0, 0, 0", 1, "syscall_blocked medium", "vmsplice()"),
    ("16, 77, 0x5412, b'x'", 1, HIGH, "ioctl(fd=77, command=TIOCSTI)"),
];

// Calls that are answered alike at both levels.
each_level!(each_decoded_call_is_the_exact_event, [standard, strict], |level| {
    let mut code = String::new();
    for (args, ..) in CASES {
        code.push_str(&format!("print(call({args}))\n"));
    }
    let outcome = Sandbox::at(level).run_python(&calling(&code));
    assert!(outcome.ok(), "{outcome:?}");
    let answers: Vec<i32> =
        outcome.stdout.lines().map(|line| line.parse().expect("an errno")).collect();
    let wanted: Vec<i32> = CASES.iter().map(|(_, errno, ..)| *errno).collect();
    assert_eq!(answers, wanted, "the errno of the filter");
    let told = outcome.events.iter().filter(|event| {
        // The C library's own questions are not what this is about.
        event.syscall.as_deref() != Some("prctl")
    });
    let told: Vec<(String, &str)> =
        told.map(|event| (names(event.kind, event.severity), event.detail.as_str())).collect();
    for ((_, _, kind, detail), found) in CASES.iter().zip(&told) {
        assert_eq!((*kind, *detail), (found.0.as_str(), found.1));
    }
    assert_eq!(told.len(), CASES.len(), "{told:?}");
    for event in &outcome.events {
        let process = event.process.as_ref().expect("a process");
        assert!(process.pid > 1 && process.parent == Some(1), "{event:?}");
        assert!(process.command.contains("python"), "{event:?}");
        let name = event.syscall.as_deref().expect("a call");
        assert!(event.rule == format!("seccomp/{level}/{name}"), "{event:?}");
        assert!(event.time.ends_with('Z') && event.time.len() == 24, "{event:?}");
        assert!(!event.fix.is_empty() && event.count == 1, "{event:?}");
    }
});

// What is next to each of those, and allowed.
each_level!(near_misses_are_no_event, [standard, strict], |level| {
    let code = r"
import os, socket, resource, stat
pid = os.fork()
if pid == 0: os._exit(0)
os.waitpid(pid, 0)
assert call(133, b'/tmp/fifo', 0o10600, 0) == 0
assert call(135, 0xffffffff) == 0
assert call(435, 0, 0) == 38 and call(437, -100, b'/', 0, 0) == 38 # clone3, openat2: probes
os.chmod('/tmp/fifo', 0o700)
os.kill(os.getpid(), 0)
resource.getrlimit(resource.RLIMIT_NOFILE)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
for family, kind in [(socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET6, socket.SOCK_STREAM)]:
    socket.socket(family, kind).close()
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
os.stat('/proc/self/ns/net'), open('/proc/self/status').read(), os.listdir('/proc')
open('/tmp/x', 'w').write('y')
print(os.isatty(0))
";
    let outcome = Sandbox::at(level).run_python(&calling(code));
    assert_eq!(outcome.stdout, "False\n", "{outcome:?}");
    assert_innocent(&outcome);
    let told: Vec<_> = outcome.events.iter().filter_map(|event| event.syscall.as_deref()).collect();
    assert!(told.iter().all(|name| ["prctl", "ioctl", "fcntl"].contains(name)), "{told:?}");
});

// The fix is real: with it the same call is made.
#[test]
fn what_a_fix_names_allows_the_call() {
    let code = calling("print(call(135, 0x400000), call(298, 0, -1, 0, -1, 0))");
    let outcome = Sandbox::standard().run_python(&code);
    assert_eq!(outcome.stdout, "1 1\n");
    let fixes: Vec<&str> = outcome.events.iter().map(|event| event.fix.as_str()).collect();
    assert_eq!(fixes, ["--allow-syscall personality", "--allow-syscall perf_event_open"]);
    let options = fixes.iter().flat_map(|fix| fix.split(' '));
    let outcome = Sandbox::standard().with(options).run_python(&code);
    assert_eq!(outcome.stdout, "0 14\n", "allowed, and then EFAULT for its address");
    assert!(outcome.events.is_empty(), "{:?}", outcome.events);
}

#[test]
fn a_call_that_the_request_denies_is_told_as_its_own_choice() {
    let sandbox = Sandbox::standard().with(["--deny-syscall", "mkdir"]);
    let outcome = sandbox.run_python(&calling("print(call(83, b'/tmp/d', 0o700))"));
    assert_eq!(outcome.stdout, "1\n");
    let event = super::only(&outcome, "seccomp/request/mkdir");
    assert_eq!(event.fix, "leave out --deny-syscall mkdir");
    assert_eq!(names(event.kind, event.severity), "syscall_blocked low");
}

#[test]
fn a_lower_level_is_named_where_it_would_allow_the_call() {
    let outcome =
        Sandbox::at(belljar::Level::Strict).run_python(&calling("print(call(105, 1000))"));
    assert_eq!(outcome.stdout, "1\n");
    let event = super::only(&outcome, "seccomp/strict/setuid");
    assert_eq!(event.fix, "--level standard, or --allow-syscall setuid");
    assert_eq!(event.detail, "setuid(uid=1000)");
}
