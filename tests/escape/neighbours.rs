//! Two runs at once share nothing that either could see.

use std::sync::atomic::{AtomicU32, Ordering};

use belljar_tests::{
    Layer, Level, Program, Sandbox, Token, each_level, is_root, name_of, processes_with, wait_for,
};

/// What both begin with: a list of what was tried, and how it went.
const TRY: &str = r#"
import ctypes, errno, os, socket, sys
token, key = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
told = []
def call(*args):
    if libc.syscall(*args) < 0: raise OSError(ctypes.get_errno(), '')
def tried(name, act):
    try: act(); told.append(name)
    except OSError as error: told.append(f'{name}:{errno.errorcode[error.errno]}')
"#;

/// Leaves a trace of the token wherever a program can, says where, and stays.
const LEAVE: &str = r#"
for directory in ('/tmp', '/dev/shm', '/home/sandbox', '/workspace'):
    tried(directory, lambda: open(f'{directory}/{token}', 'w').close())
held = socket.socket(socket.AF_UNIX)
tried('socket', lambda: (held.bind('\0' + token), held.listen()))
tried('segment', lambda: call(29, key, 4096, 0o1666))
tried('key', lambda: call(248, b'user', token.encode(), b'x', 1, -4))
print(*told, flush=True)
import time; time.sleep(100)
"#;

/// Looks for all of it, and says what it finds.
const LOOK: &str = r#"
for directory in ('/tmp', '/dev/shm', '/home/sandbox', '/workspace'):
    tried(directory, lambda: os.stat(f'{directory}/{token}'))
tried('socket', lambda: socket.socket(socket.AF_UNIX).connect('\0' + token))
tried('segment', lambda: call(29, key, 0, 0))
tried('key', lambda: call(250, 10, -4, b'user', token.encode(), 0))
print(*told)
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        if token.encode() in open(f'/proc/{pid}/cmdline', 'rb').read() and int(pid) != os.getpid(): print('process')
    except OSError: pass
print('looked')
"#;

/// A System V key that no other test uses: they are numbers of the host.
fn segment_key() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    ((std::process::id() & 0xff_ffff) | (count << 24)).to_string()
}

/// The control: two programs without a sandbox find each other at once.
fn neighbours_outside_find_each_other() {
    let (token, key) = (Token::new(), segment_key());
    let start = |code: &str| {
        Program::new("/usr/bin/python3").args(["-c", &format!("{TRY}{code}"), token.as_str(), &key])
    };
    let mut first = start(LEAVE).start_interactive();
    // The sandbox's own directories are not there outside.
    let found = "/tmp /dev/shm /home/sandbox:ENOENT /workspace:ENOENT socket segment key\n";
    assert_eq!(first.read_line(), found);
    let second = start(LOOK).run();
    assert_eq!(second.out(), format!("{found}process\nlooked\n"), "{second:?}");
    drop(first);
    let clean = format!(
        "import ctypes, os\nfor d in ('/tmp', '/dev/shm'): os.remove(d + '/{0}')\n\
         libc = ctypes.CDLL(None)\nlibc.shmctl(libc.shmget({key}, 0, 0), 0, None)\n\
         libc.syscall(250, 9, libc.syscall(250, 10, -4, b'user', b'{0}', 0), -4)",
        token.as_str()
    );
    let cleaned = Program::new("/usr/bin/python3").args(["-c", &clean]).run();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}

each_level!(nothing_of_a_neighbour_is_seen, [standard, strict], |level| {
    neighbours_outside_find_each_other();
    let (token, key) = (Token::new(), segment_key());
    let sandbox =
        Sandbox::at(level).with(["--timeout", "60s"]).args([token.as_str(), key.as_str()]);
    let mut first = sandbox.start("python", &format!("{TRY}{LEAVE}"));
    // The filter refuses keys, and at strict segments too, so there is nothing of them to be found.
    let (made, segment) = if level == Level::Strict {
        ("segment:EPERM", "segment:EPERM")
    } else {
        ("segment", "segment:ENOENT")
    };
    let left = format!("/tmp /dev/shm /home/sandbox /workspace socket {made} key:EPERM\n");
    assert_eq!(first.read_line(), left);
    let second = sandbox.run_python(&format!("{TRY}{LOOK}"));
    let found = format!(
        "/tmp:ENOENT /dev/shm:ENOENT /home/sandbox:ENOENT /workspace:ENOENT socket:ECONNREFUSED \
         {segment} key:EPERM\nlooked\n"
    );
    assert_eq!(second.stdout, found, "{second:?}");
});

/// Watches the directory of programs, says so, and tells when the one that it was told of is run.
const WATCH: &str = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0)
if watch < 0 or libc.inotify_add_watch(watch, b'/usr/bin', 0x20) < 0:
    sys.exit(errno.errorcode[ctypes.get_errno()])
print('watching', flush=True)
while sys.argv[1].encode() not in os.read(watch, 1 << 16): pass
print('saw', sys.argv[1])
"#;

each_level!(programs_that_others_start_cannot_be_watched, [basic, standard, strict], |level| {
    // The control: outside, who watches sees what anybody starts.
    let mut watcher = Program::new("/usr/bin/python3").args(["-c", WATCH, "tsort"]).start();
    assert_eq!(watcher.read_line(), "watching\n");
    assert_eq!(Program::new("/usr/bin/tsort").run().code, Some(0));
    assert_eq!(watcher.wait().out(), "saw tsort\n");
    // The view of /usr is the host's own, and so would the watch be: nothing but the filter is in its way.
    let outcome = Sandbox::at(level).args(["tsort"]).run_python(WATCH);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", "EPERM\n"), "{outcome:?}");
});

each_level!(two_runs_at_once_have_different_host_ids, [basic, standard, strict], |level| {
    // The control: two plain programs have one id, their caller's.
    let own = rustix::process::geteuid().as_raw();
    let plain = [(); 2].map(|()| Program::new("/bin/cat").start_interactive());
    assert_eq!(plain.each_ref().map(|one| host_id_of(one.id())), [own, own]);
    let start = || {
        let token = Token::new();
        let code = format!(
            "import os\nprint('up', flush=True)\nos.execv('/bin/sleep', ['{}', '100'])",
            token.as_str()
        );
        let mut run = Sandbox::at(level).with(["--timeout", "60s"]).start("python", &code);
        assert_eq!(run.read_line(), "up\n");
        (run, token)
    };
    let runs = [start(), start()];
    let ids = runs.each_ref().map(|(_, token)| host_id_of(process_named(token)));
    // An ordinary user has ids to give only at strict, from its subordinate range.
    if is_root() || level == Level::Strict {
        assert_ne!(ids[0], ids[1]);
        assert!(!ids.contains(&own) && !ids.contains(&0), "{ids:?}: {:?}", Layer::UidPerRun);
    } else {
        assert_eq!(ids, [own, own]);
    }
});

/// The program that has become one of this name. Belljar carries the word too, in the code it was given.
fn process_named(token: &Token) -> u32 {
    // No event tells that it has executed.
    wait_for("it runs", || {
        let mut found = processes_with(token.as_str()).into_iter();
        found.find_map(|(pid, _)| {
            u32::try_from(pid.as_raw_pid()).ok().filter(|pid| name_of(*pid) == "sleep")
        })
    })
}

fn host_id_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let first = line.and_then(|line| line.split_ascii_whitespace().next());
    first.and_then(|id| id.parse().ok()).expect("an id")
}
