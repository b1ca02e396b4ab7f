//! Two runs at once share nothing that either could see.

use belljar_tests::{Layer, Level, Sandbox, Token, each_level, is_root};

/// Leaves a trace of the token wherever a program can, says so, and stays.
const LEAVE: &str = r#"
import ctypes, os, socket, sys
token = sys.argv[1]
for directory in ('/tmp', '/dev/shm', '/home/sandbox', '/workspace'):
    try: open(f'{directory}/{token}', 'w').close()
    except OSError: pass
try:
    held = socket.socket(socket.AF_UNIX); held.bind('\0' + token); held.listen()
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget(int(sys.argv[2]), 4096, 0o1666)
libc.syscall(248, b'user', token.encode(), b'x', 1, -3)
print(os.getuid(), flush=True)
sys.stdin.read()
import time; time.sleep(100)
"#;

/// Looks for all of it, and names what it finds.
const LOOK: &str = r#"
import ctypes, os, socket, sys
token = sys.argv[1]
for directory in ('/tmp', '/dev/shm', '/home/sandbox', '/workspace'):
    if os.path.exists(f'{directory}/{token}'): print('found', directory)
try:
    socket.socket(socket.AF_UNIX).connect('\0' + token); print('found socket')
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(int(sys.argv[2]), 0, 0) != -1: print('found segment')
if libc.syscall(250, 10, -3, b'user', token.encode(), 0) != -1: print('found key')
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        if token.encode() in open(f'/proc/{pid}/cmdline', 'rb').read() and int(pid) != os.getpid(): print('found process')
    except OSError: pass
print('looked')
"#;

each_level!(nothing_of_a_neighbour_is_seen, [standard, strict], |level| {
    let token = Token::new();
    let key = (std::process::id() & 0xff_ffff).to_string();
    let mut first = Sandbox::at(level)
        .with(["--timeout", "60s"])
        .args([token.as_str(), key.as_str()])
        .start("python", LEAVE);
    assert_eq!(first.read_line(), "1000\n");
    let second = Sandbox::at(level).args([token.as_str(), key.as_str()]).run_python(LOOK);
    assert_eq!(second.stdout, "looked\n", "{second:?}");
});

#[test]
fn the_same_look_outside_finds_a_neighbour() {
    // The control: two programs without a sandbox find each other at once.
    let token = Token::new();
    let key = (std::process::id() & 0xff_ffff | 0x100_0000).to_string();
    let start = |code: &str| {
        belljar_tests::Program::new("/usr/bin/python3").args(["-c", code, token.as_str(), &key])
    };
    let mut first = start(LEAVE).start_interactive();
    first.read_line();
    let second = start(LOOK).run();
    for name in ["/tmp", "/dev/shm", "socket", "segment", "process"] {
        assert!(second.out().contains(&format!("found {name}")), "{name}: {second:?}");
    }
    drop(first);
    let clean = format!(
        "import ctypes, os\nfor d in ('/tmp', '/dev/shm'): os.remove(d + '/{}')\n\
         libc = ctypes.CDLL(None)\nlibc.shmctl(libc.shmget({key}, 0, 0), 0, None)",
        token.as_str()
    );
    let cleaned = belljar_tests::Program::new("/usr/bin/python3").args(["-c", &clean]).run();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}

each_level!(two_runs_at_once_have_different_host_ids, [basic, standard, strict], |level| {
    let start = || {
        let code = "import time; print('up', flush=True); time.sleep(100)";
        let mut run = Sandbox::at(level).with(["--timeout", "60s"]).start("python", code);
        assert_eq!(run.read_line(), "up\n");
        run
    };
    let runs = [start(), start()];
    let ids = runs.each_ref().map(|run| host_id_of_program(run.id()));
    let own = rustix::process::geteuid().as_raw();
    // An ordinary user has ids to give only at strict, from its subordinate range.
    if is_root() || level == Level::Strict {
        assert_ne!(ids[0], ids[1]);
        assert!(!ids.contains(&own) && !ids.contains(&0), "{ids:?}: {:?}", Layer::UidPerRun);
    } else {
        assert_eq!(ids, [own, own]);
    }
});

/// The owner of the last process in the chain belljar, keeper, init, program.
fn host_id_of_program(belljar: u32) -> u32 {
    let mut pid = belljar;
    loop {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("it runs");
        match children.split_ascii_whitespace().next() {
            Some(child) => pid = child.parse().expect("a process id"),
            None => break,
        }
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let first = line.and_then(|line| line.split_ascii_whitespace().next());
    first.and_then(|id| id.parse().ok()).expect("an id")
}
