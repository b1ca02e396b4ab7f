//! Our own processes, seen from inside: init cannot be read, traced or ended, and what the caller had
//! open or set does not arrive.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_tests::{
    Level, Program, Sandbox, TempDir, Verdict, children, each_level, is_root, warm,
};
use rustix::io::{FdFlags, fcntl_setfd};

/// Every way to look into a process: process 1, or a child of its own with `child`.
const LOOK_INTO: &str = r#"
import ctypes, errno, os, subprocess, sys
child = subprocess.Popen(['/bin/cat'], stdin=subprocess.PIPE) if sys.argv[1:] == ['child'] else None
pid = child.pid if child else 1
def tried(name, act):
    try: act(); print(name, 'worked')
    except OSError as error: print(name, errno.errorcode[error.errno])
def open_(path, flags=os.O_RDONLY): return os.close(os.open(path, flags))
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0: raise OSError(ctypes.get_errno(), '')
tried('exe', lambda: os.readlink(f'/proc/{pid}/exe'))
tried('root', lambda: os.listdir(f'/proc/{pid}/root/'))
tried('cwd', lambda: os.listdir(f'/proc/{pid}/cwd/'))
tried('fd', lambda: os.listdir(f'/proc/{pid}/fd'))
tried('environ', lambda: open(f'/proc/{pid}/environ').read())
tried('mem', lambda: open_(f'/proc/{pid}/mem', os.O_RDWR))
tried('maps', lambda: open(f'/proc/{pid}/maps').read())
tried('namespace', lambda: open_(f'/proc/{pid}/ns/mnt'))
tried('ptrace', lambda: call(101, 16, pid, 0, 0))
if child: child.kill(), child.wait()
"#;

/// The sockets that a process has, by number.
fn sockets(pid: u32) -> Vec<String> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("root may look");
    let link = |one: std::fs::DirEntry| {
        std::fs::read_link(one.path()).ok()?.into_os_string().into_string().ok()
    };
    all.flatten().filter_map(link).filter(|link| link.starts_with("socket:")).collect()
}

/// What the keeper hears from the engine, and says to it, is not init's to hear or say.
#[test]
fn init_has_no_line_of_its_keepers() {
    if !is_root() {
        return; // nobody else may look into either: they are not dumpable
    }
    let code = "import time; print('on', flush=True); time.sleep(60)";
    let mut running = Sandbox::standard().alone().start("python", code);
    running.read_line();
    let named = |pids: Vec<u32>, name: &str| {
        let found = pids.into_iter().find(|pid| belljar_tests::name_of(*pid).trim() == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let keeper = named(children(running.id()), "belljar-keeper");
    let init = named(children(keeper), "belljar-init");
    let (of_keeper, of_init) = (sockets(keeper), sockets(init));
    assert!(of_keeper.len() > 1 && !of_init.is_empty(), "control: both have some");
    let both: Vec<&String> = of_init.iter().filter(|one| of_keeper.contains(one)).collect();
    assert_eq!(both, [] as [&String; 0], "{of_keeper:?} {of_init:?}");
}

fn each(names: &[&str], answer: &str) -> String {
    names.iter().map(|name| format!("{name} {answer}\n")).collect()
}

each_level!(init_cannot_be_looked_into, [standard, strict], |level| {
    let files = ["exe", "root", "cwd", "fd", "environ", "mem", "maps", "namespace"];
    // The control: an ordinary process is open to its user.
    let control = Program::new("/usr/bin/python3").args(["-c", LOOK_INTO, "child"]).run();
    assert_eq!(control.out(), each(&files, "worked") + "ptrace worked\n", "{control:?}");
    let outcome = Sandbox::at(level).run_python(LOOK_INTO);
    // At strict /proc shows a program nothing that it may not look into; the filter refuses the rest.
    let errno = if level == Level::Strict { "ENOENT" } else { "EACCES" };
    assert_eq!(outcome.stdout, each(&files, errno) + "ptrace EPERM\n", "{outcome:?}");
});

each_level!(init_cannot_be_ended, [standard, strict], |level| {
    let code = "import os, sys\nsent = 0\nfor number in range(64, 0, -1):\n try: os.kill(int(sys.argv[1]), number); sent += 1\n \
                except ProcessLookupError: pass\nprint(sent)";
    // The control: outside, the first of these signals ends an ordinary process.
    let victim = Program::new("/bin/cat").start_interactive();
    let id = victim.id().to_string();
    let control = Program::new("/usr/bin/python3").args(["-c", code, &id]).run();
    assert_eq!(control.code, Some(0), "{control:?}");
    assert_eq!(victim.wait().signal, Some(64));
    // Inside they may all be sent, as init has the same id. To it, from its own namespace, the kernel
    // delivers none, SIGKILL and SIGSTOP included: it is there to report the end.
    let outcome = Sandbox::at(level).args(["1"]).run_python(code);
    assert_eq!(outcome.stdout, "64\n", "{outcome:?}");
    assert_eq!(outcome.verdict, Verdict::Exited { code: 0 });
});

each_level!(own_program_file_cannot_be_written, [basic, standard, strict], |level| {
    let code = "import errno, os, sys\nfor path in sys.argv[1:]:\n \
                for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):\n  \
                try: os.open(path, flags); print('opened')\n  \
                except OSError as error: print(errno.errorcode[error.errno])";
    // The control: an interpreter that belongs to its user, while nobody runs it.
    let host = TempDir::new();
    let copy = interpreter(&host).display().to_string();
    let control = Program::new("/usr/bin/python3").args(["-c", code, &copy]).run();
    assert_eq!(control.out(), "opened\n".repeat(3), "{control:?}");
    let outcome = Sandbox::at(level).args(["/proc/self/exe", "/usr/bin/python3"]).run_python(code);
    // The file is root's, which nobody inside is; to cut it off, the view's being read-only comes first.
    let cut = if level == Level::Basic { "EACCES" } else { "EROFS" };
    // A copy of a zygote was executed outside, through no view of the sandbox; Landlock comes first there.
    let copied = warm::server().is_some() && level == Level::Standard;
    let own = if copied { "EACCES" } else { cut };
    let refused = format!("EACCES\nEACCES\n{own}\nEACCES\nEACCES\n{cut}\n");
    assert_eq!(outcome.stdout, refused, "{outcome:?}");
});

each_level!(
    own_program_file_cannot_be_kept_and_written_later,
    [basic, standard, strict],
    |level| {
        // CVE-2019-5736: a running program is busy, so hold it by path only, become another, and open the
        // held one then.
        let code = "import os\nheld = os.open('/proc/self/exe', os.O_PATH)\nos.set_inheritable(held, True)\n\
                os.execv('/bin/sh', ['sh', '-c', f'(: >>/proc/self/fd/{held}) 2>&1 && echo opened'])";
        let host = TempDir::new();
        let control = Program::new(interpreter(&host)).args(["-c", code]).run();
        assert_eq!(control.out(), "opened\n", "{control:?}");
        let outcome = Sandbox::at(level).run_python(code);
        assert!(outcome.stdout.ends_with(": Permission denied\n"), "{outcome:?}");
        assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
    }
);

/// A copy of the interpreter that belongs to us.
fn interpreter(host: &TempDir) -> PathBuf {
    host.program("python3", std::fs::read("/usr/bin/python3").expect("everyone may read it"))
}

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
    let control =
        Program::new("/usr/bin/python3").args(["-c", everywhere]).env(canary.0, canary.1).run();
    assert!(control.out().contains("True") && control.out().ends_with("looked\n"), "{control:?}");
    let outcome = Sandbox::at(level).host_env(canary.0, canary.1).run_python(everywhere);
    assert!(outcome.stdout.ends_with("looked\n"), "{outcome:?}");
    // At none the caller's own processes can be read: that level hides nothing of the host.
    assert_eq!(outcome.stdout.contains("True"), level == Level::None, "{outcome:?}");
});

/// Reads all that can be read below a directory and says where words are. They come spelt backwards, so that
/// this program's own arguments do not hold them. Links are passed over: the streams are such.
const SEARCH: &str = r#"
import os, sys, time
words, found, read = [word[::-1].encode() for word in sys.argv[2:]], set(), 0
for top, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(top, name) for name in names):
        if os.path.islink(path) or path.endswith('/mem'): continue # its own memory has the words
        try: file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError: continue
        try: bytes = os.read(file, 1 << 18)
        except OSError: continue
        finally: os.close(file)
        read += 1
        if any(word in bytes for word in words): found.add(os.path.basename(path))
print(*sorted(found), 'of some' if read else 'of none', flush=True)
time.sleep(100)
"#;

each_level!(callers_words_cannot_be_read, [basic, standard, strict], |level| {
    // Two words of the caller's that are none of the program's business.
    let words = ["argument", "variable"].map(|kind| format!("s3cret-{kind}-{level}"));
    let backwards = words.each_ref().map(|word| word.chars().rev().collect::<String>());
    let mut run = Sandbox::at(level)
        .alone()
        .with(["--timeout", "90s", "--label", &format!("note={}", words[0])])
        .host_env("BELLJAR_NOTE", &words[1])
        .args(["/proc", &backwards[0], &backwards[1]])
        .start("python", SEARCH);
    let found = run.read_line();
    // The control: outside, the same search finds both in belljar's own process.
    let belljar = run.id();
    let control = ["-c", SEARCH, &format!("/proc/{belljar}"), &backwards[0], &backwards[1]];
    let mut control = Program::new("/usr/bin/python3").args(control).start();
    assert_eq!(control.read_line(), "cmdline environ of some\n");
    // Inside nowhere; at basic nothing of /proc can be read at all.
    let read = if level == Level::Basic { "none" } else { "some" };
    assert_eq!(found, format!("of {read}\n"));
    // Nor do our own processes beside the program carry them, to which a hole could lead.
    let holds = |bytes: &[u8], word: &str| {
        bytes.windows(word.len()).any(|window| window == word.as_bytes())
    };
    let keeper = children(belljar)[0];
    for pid in [keeper, children(keeper)[0]] {
        let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
        let cmdline = file("cmdline").expect("anybody may read it");
        let environ = match file("environ") {
            Ok(bytes) if is_root() => bytes,
            Err(error) if !is_root() && error.kind() == ErrorKind::PermissionDenied => Vec::new(),
            other => panic!("{pid}: {other:?}"),
        };
        for word in &words {
            assert!(!holds(&cmdline, word) && !holds(&environ, word), "{word} in {pid}");
        }
    }
});

each_level!(init_is_in_the_programs_network, [standard, strict], |level| {
    let mut run = Sandbox::at(level).alone().with(["--timeout", "90s"]).start(
        "python",
        "import os, time\nprint(os.readlink('/proc/self/ns/net'), flush=True)\ntime.sleep(100)",
    );
    let inside = run.read_line();
    let network = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net"));
    let own = network(std::process::id()).expect("our own");
    let init = children(children(run.id())[0])[0];
    let program = children(init)[0];
    // The control: belljar itself is in the host's, and the program is where it says.
    assert_eq!(network(run.id()).expect("our own child"), own);
    assert_eq!(network(program).expect("its owner may"), Path::new(inside.trim_end()));
    assert_ne!(Path::new(inside.trim_end()), own);
    match network(init) {
        Ok(found) => assert!(is_root() && found == Path::new(inside.trim_end()), "{found:?}"),
        Err(error) => {
            assert!(!is_root() && error.kind() == ErrorKind::PermissionDenied, "{error}");
        }
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
    // The control: a plain child has its caller's terminal.
    let control = Program::new("/usr/bin/python3").args(["-c", code]).run_on_terminal();
    assert_eq!(String::from_utf8_lossy(&control), "[False, False, False]\r\n");
    let inside = Program::belljar()
        .args(["run", "--level", level.name(), "--quiet", "-c", code])
        .run_on_terminal();
    assert_eq!(String::from_utf8_lossy(&inside), "[True, True, True]\r\n");
});
