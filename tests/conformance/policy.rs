//! What a request may adjust: system calls one by one, and paths that shall not exist.

use belljar_tests::{Level, Sandbox, TempDir, each_level};

each_level!(denied_call_is_refused_that_was_allowed, [basic, standard, strict], |level| {
    let code = "import os
try: os.mkdir('made'); print('made')
except OSError as error: print(error.errno)";
    assert_eq!(Sandbox::at(level).run_python(code).stdout, "made\n");
    let denied = Sandbox::at(level).with(["--deny-syscall", "mkdir", "--deny-syscall", "mkdirat"]);
    assert_eq!(denied.run_python(code).stdout, "1\n");
});

#[test]
fn allowed_call_works_that_was_refused() {
    let code = "import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.memfd_create(b'x', 0) > 2, ctypes.get_errno())";
    assert_eq!(Sandbox::at(Level::Strict).run_python(code).stdout, "False 38\n");
    let allowed = Sandbox::at(Level::Strict).with(["--allow-syscall", "memfd_create"]);
    assert_eq!(allowed.run_python(code).stdout, "True 0\n");
}

#[test]
fn denial_wins_over_permission() {
    let sandbox = Sandbox::standard().with([
        "--allow-syscall",
        "memfd_create",
        "--deny-syscall",
        "memfd_create",
    ]);
    let code =
        "import os\ntry: os.memfd_create('x'); print('made')\nexcept OSError as e: print(e.errno)";
    assert_eq!(sandbox.run_python(code).stdout, "1\n");
}

#[test]
fn unknown_call_is_a_bad_request() {
    let ended = Sandbox::standard().with(["--allow-syscall", "opeen"]).plain("python", "pass");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("opeen"), "{ended:?}");
}

each_level!(blocked_path_does_not_exist, [standard, strict], |level| {
    let code = "import os
for path in '/usr/bin/env', '/usr/share/doc', '/etc/passwd', '/bin/env':
    try: os.stat(path); print('there')
    except OSError as error: print(error.errno)
print(os.path.exists('/usr/bin/python3'), 'env' in os.listdir('/usr/bin'))";
    let free = Sandbox::at(level).run_python(code);
    assert_eq!(free.stdout, "there\nthere\nthere\nthere\nTrue True\n", "{free:?}");
    let blocked = Sandbox::at(level)
        .with(["--block-path", "/usr/bin/env", "--block-path", "/usr/share/doc"])
        .with(["--block-path", "/etc/passwd"])
        .run_python(code);
    assert_eq!(blocked.stdout, "2\n2\n2\n2\nTrue False\n", "{blocked:?}");
});

#[test]
fn blocked_path_at_basic_cannot_be_read() {
    let code = "try: open('/usr/bin/env', 'rb'); print('read')
except OSError as error: print(type(error).__name__)
import json; print('others work')";
    let free = Sandbox::at(Level::Basic).run_python(code);
    assert_eq!(free.stdout, "read\nothers work\n", "{free:?}");
    let blocked = Sandbox::at(Level::Basic).with(["--block-path", "/usr/bin/env"]).run_python(code);
    assert_eq!(blocked.stdout, "PermissionError\nothers work\n", "{blocked:?}");
}

#[test]
fn host_files_are_absent_whatever_their_mode() {
    let directory = TempDir::new();
    let path = directory.file("world-readable", "host's");
    let code = format!("open('{}')", path.display());
    let outside = Sandbox::at(Level::None).run_python(&code);
    assert!(outside.ok(), "{outside:?}");
    for level in [Level::Standard, Level::Strict] {
        let inside = Sandbox::at(level).run_python(&code);
        assert!(inside.stderr.contains("FileNotFoundError"), "{inside:?}");
    }
    let basic = Sandbox::at(Level::Basic).run_python(&code);
    assert!(basic.stderr.contains("PermissionError"), "{basic:?}");
}
