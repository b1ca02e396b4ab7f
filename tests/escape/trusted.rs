//! Our own processes, seen from inside: init cannot be read, traced or ended, and what the caller had
//! open or set does not arrive.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use belljar_tests::{Program, Sandbox, each_level};
use rustix::io::{FdFlags, fcntl_setfd};

const TRY_INIT: &str = r#"
import ctypes, errno, os, signal
def tried(name, act):
    try: print(name, 'worked', act())
    except OSError as error: print(name, errno.errorcode[error.errno])
def open_(path, flags=os.O_RDONLY): return os.close(os.open(path, flags))
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0: raise OSError(ctypes.get_errno(), '')
tried('exe', lambda: os.readlink('/proc/1/exe'))
tried('root', lambda: os.listdir('/proc/1/root/'))
tried('cwd', lambda: os.listdir('/proc/1/cwd/'))
tried('fd', lambda: os.listdir('/proc/1/fd'))
tried('environ', lambda: open('/proc/1/environ').read())
tried('mem', lambda: open_('/proc/1/mem', os.O_RDWR))
tried('maps', lambda: open('/proc/1/maps').read())
tried('ptrace', lambda: call(101, 16, 1, 0, 0))
tried('setns', lambda: call(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0))
print('alive')
"#;

each_level!(init_cannot_be_looked_into, [standard, strict], |level| {
    let outcome = Sandbox::at(level).run_python(TRY_INIT);
    assert!(outcome.ok(), "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 10, "{outcome:?}");
    for line in &lines[..9] {
        let refused = ["EACCES", "EPERM", "ENOENT"];
        assert!(refused.iter().any(|errno| line.ends_with(errno)), "{line}");
    }
    assert_eq!(lines[9], "alive");
});

#[test]
fn a_process_of_the_same_user_can_be_looked_into_outside() {
    // The control: the same files of an ordinary process are open to its user.
    let victim = Program::new("/bin/cat").start_interactive();
    for name in ["exe", "cwd", "root"] {
        assert!(std::fs::read_link(format!("/proc/{}/{name}", victim.id())).is_ok(), "{name}");
    }
    assert!(std::fs::read_dir(format!("/proc/{}/fd", victim.id())).is_ok());
    assert!(std::fs::read(format!("/proc/{}/environ", victim.id())).is_ok());
}

each_level!(init_cannot_be_ended, [standard, strict], |level| {
    let code = "import os, signal\nfor number in range(1, 65):\n try: os.kill(1, number)\n except OSError: pass\n\
                os.kill(1, signal.SIGKILL)\nos.kill(1, signal.SIGSTOP)\nprint('still here')";
    let outcome = Sandbox::at(level).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    assert_eq!(outcome.stdout, "still here\n");
});

each_level!(own_program_file_cannot_be_written, [basic, standard, strict], |level| {
    let code = "import errno, os, sys\nfor path in ('/proc/self/exe', os.path.realpath(sys.executable)):\n \
                for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):\n  \
                try: os.open(path, flags); print('opened')\n  \
                except OSError as error: print(errno.errorcode[error.errno])";
    let outcome = Sandbox::at(level).run_python(code);
    let refused = ["EACCES", "EROFS", "ETXTBSY", "EPERM"];
    assert_eq!(outcome.stdout.lines().count(), 6, "{outcome:?}");
    assert!(outcome.stdout.lines().all(|line| refused.contains(&line)), "{outcome:?}");
});

each_level!(callers_environment_does_not_arrive, |level| {
    let code = "import os; print(sorted(os.environ))";
    let canary = ("BELLJAR_CANARY", "c4n4ry");
    let control = Program::new("/usr/bin/python3").args(["-c", code]).env(canary.0, canary.1).run();
    assert!(control.out().contains(canary.0));
    let hostile = Sandbox::at(level)
        .host_env(canary.0, canary.1)
        .host_env("LD_DEBUG", "all")
        .host_env("PYTHONSTARTUP", "/etc/passwd");
    let outcome = hostile.run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    for name in [canary.0, "LD_DEBUG", "PYTHONSTARTUP"] {
        assert!(!outcome.stdout.contains(name), "{outcome:?}");
    }
    let everywhere = "import glob\nfor path in glob.glob('/proc/[0-9]*/environ'):\n \
                      try: print('c4n4ry' in open(path).read())\n except OSError: pass\nprint('looked')";
    let outcome = Sandbox::at(level).host_env(canary.0, canary.1).run_python(everywhere);
    // At none the caller's own processes can be read: that level hides nothing of the host.
    if level > belljar_tests::Level::None {
        assert!(!outcome.stdout.contains("True"), "{outcome:?}");
    }
});

/// Descriptors that a careless caller leaves open over exec.
fn leaky() -> Vec<File> {
    let leak = |_| {
        let file = File::open("/etc/passwd").expect("everyone may read it");
        fcntl_setfd(file.as_fd(), FdFlags::empty()).expect("it is open");
        file
    };
    (0..18).map(leak).collect()
}

each_level!(callers_open_files_do_not_arrive, |level| {
    let _held = leaky();
    let code = "import os\nfound = []\nfor fd in range(3, 256):\n try: os.fstat(fd); found.append(fd)\n \
                except OSError: pass\nprint(len(found))";
    let control = Program::new("/usr/bin/python3").args(["-c", code]).run();
    let seen: usize = control.out().trim().parse().expect("a number");
    assert!(seen >= 18, "{control:?}");
    let outcome = Sandbox::at(level).run_python(code);
    assert_eq!(outcome.stdout, "0\n", "{outcome:?}");
});

each_level!(standard_streams_are_pipes_of_the_run, |level| {
    // Reopening a stream by name must not give a terminal or a file of the caller.
    let code = "import os, stat; print([stat.S_ISFIFO(os.fstat(n).st_mode) for n in range(3)])";
    let outcome = Sandbox::at(level).run_python(code);
    assert_eq!(outcome.stdout, "[True, True, True]\n", "{outcome:?}");
    std::io::stdout().flush().expect("our own stays open");
});
