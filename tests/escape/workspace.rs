//! A directory of the host shown inside: what is in it, and what may be left in it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use belljar_tests::{Level, Program, Sandbox, TempDir, each_level, is_root};

/// A workspace that a run may write to: as root, it belongs to somebody else.
fn shared() -> TempDir {
    let directory = TempDir::new();
    if is_root() {
        std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).expect("we are root");
    }
    directory
}

const CONNECT: &str = "import errno, socket\ntry:\n s = socket.socket(socket.AF_UNIX)\n \
    s.connect('socket')\n print('connected')\nexcept OSError as error: print(errno.errorcode[error.errno])";

fn socket_is_refused(sandbox: &Sandbox, directory: &TempDir) {
    let path = directory.join("socket");
    let _listener = UnixListener::bind(&path).expect("a socket can be made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let control =
        Program::new("/usr/bin/python3").args(["-c", CONNECT]).directory(directory.path()).run();
    assert_eq!(control.out(), "connected\n", "{control:?}");
    let outcome = sandbox.run_python(CONNECT);
    assert_eq!(outcome.stdout, "EPERM\n", "{outcome:?}");
}

each_level!(
    a_host_socket_in_a_read_only_workspace_is_refused,
    [basic, standard, strict],
    |level| {
        let directory = TempDir::new();
        let shown = directory.path().display().to_string();
        socket_is_refused(&Sandbox::at(level).with(["--workspace", &shown]), &directory);
    }
);

each_level!(a_host_socket_in_a_writable_workspace_is_refused, [basic, standard], |level| {
    let directory = shared();
    let shown = format!("{}:rw", directory.path().display());
    socket_is_refused(&Sandbox::at(level).with(["--workspace", &shown]), &directory);
});

/// Every way to a set-user-id or set-group-id file, and to privileges on a file.
const SET_ID: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
os.umask(0)
def tried(act):
    try: act(); print('worked')
    except OSError as error: print(errno.errorcode[error.errno])
def call(*args):
    if libc.syscall(*args) < 0: raise OSError(ctypes.get_errno(), '')
open('plain', 'w').close()
tried(lambda: os.open('a', os.O_CREAT | os.O_WRONLY, 0o4755))
tried(lambda: os.open('b', os.O_CREAT | os.O_WRONLY, 0o2755))
tried(lambda: os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755))
tried(lambda: os.chmod('plain', 0o4755))
tried(lambda: os.fchmod(os.open('plain', os.O_RDONLY), 0o2755))
tried(lambda: os.mknod('c', 0o104755))
tried(lambda: call(85, b'd', 0o4755))
tried(lambda: call(452, -100, b'plain', 0o4755, 0))
tried(lambda: call(437, -100, b'e', (ctypes.c_ulonglong * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24))
tried(lambda: os.setxattr('plain', 'security.capability', b'\0\0\0\2' + b'\xff' * 16))
"#;

each_level!(no_privileged_file_can_be_left, [basic, standard], |level| {
    // The control: outside, the same program makes them all. Privileges on a file are root's to give, and
    // kernels before 6.6 have no fchmodat2.
    let outside = shared();
    let control =
        Program::new("/usr/bin/python3").args(["-c", SET_ID]).directory(outside.path()).run();
    let made = control.out();
    let made: Vec<&str> = made.lines().collect();
    assert_eq!(made.len(), 10, "{control:?}");
    for (index, line) in made.iter().enumerate() {
        let fine = match index {
            7 => *line == "worked" || *line == "ENOSYS",
            9 if !is_root() => *line == "EPERM",
            _ => *line == "worked",
        };
        assert!(fine, "{index}: {control:?}");
    }
    assert_eq!(fs::metadata(outside.join("a")).expect("made").mode() & 0o4000, 0o4000);
    let directory = shared();
    let shown = format!("{}:rw", directory.path().display());
    let outcome = Sandbox::at(level).with(["--workspace", &shown]).run_python(SET_ID);
    // openat2 keeps its flags in memory, where no filter sees them: it does not exist at all.
    let mut refused = ["EPERM"; 10];
    refused[8] = "ENOSYS";
    assert_eq!(outcome.stdout.lines().collect::<Vec<_>>(), refused, "{outcome:?}");
    for entry in fs::read_dir(directory.path()).expect("it is ours").flatten() {
        let mode = entry.metadata().expect("it is there").mode();
        assert_eq!(mode & 0o6000, 0, "{:?}", entry.path());
    }
});

/// Every way to change a directory and a file in it.
const CHANGE: &str = r#"
import errno, os
def tried(name, act):
    try: act(); print(name, 'worked')
    except OSError as error: print(name, errno.errorcode[error.errno])
tried('truncate', lambda: os.truncate('kept', 0))
tried('write', lambda: open('kept', 'w'))
tried('create', lambda: open('new', 'w'))
tried('mkdir', lambda: os.mkdir('directory'))
tried('symlink', lambda: os.symlink('x', 'symlink'))
tried('link', lambda: os.link('kept', 'link'))
tried('rename', lambda: os.rename('kept', 'moved'))
tried('remove', lambda: os.remove('gone'))
"#;

each_level!(a_read_only_workspace_cannot_be_changed, [basic, standard, strict], |level| {
    // Nothing but the view itself forbids it: files and directory are open to all.
    let open_to_all = || {
        let directory = TempDir::new();
        for name in ["kept", "gone"] {
            let file = directory.file(name, "as it was");
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("it is ours");
        }
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), all).expect("it is ours");
        directory
    };
    let outside = open_to_all();
    let control =
        Program::new("/usr/bin/python3").args(["-c", CHANGE]).directory(outside.path()).run();
    let names = ["truncate", "write", "create", "mkdir", "symlink", "link", "rename", "remove"];
    let each = |answers: [&str; 8]| -> String {
        names.iter().zip(answers).map(|(name, answer)| format!("{name} {answer}\n")).collect()
    };
    assert_eq!(control.out(), each(["worked"; 8]), "{control:?}");
    let directory = open_to_all();
    let shown = directory.path().display().to_string();
    let outcome = Sandbox::at(level).with(["--workspace", &shown]).run_python(CHANGE);
    let mut refused = ["EROFS"; 8];
    if level == Level::Basic {
        // Landlock; but not every ABI of it knows of truncate, which the filter refuses.
        refused = ["EACCES"; 8];
        refused[0] = "EPERM";
    }
    assert_eq!(outcome.stdout, each(refused), "{outcome:?}");
    assert_eq!(fs::read_to_string(directory.join("kept")).expect("kept"), "as it was");
    assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 2);
});

each_level!(links_in_a_workspace_lead_nowhere, [basic, standard, strict], |level| {
    let secret = TempDir::new();
    let hidden = secret.file("secret", "42");
    let directory = TempDir::new();
    std::os::unix::fs::symlink(&hidden, directory.join("link")).expect("a link");
    std::os::unix::fs::symlink(secret.path(), directory.join("dir")).expect("a link");
    let code = "import errno, sys\nfor name in ('link', 'dir/secret', '../' * 9 + sys.argv[1], '/proc/self/root' + sys.argv[1]):\n \
                try: print(open(name).read())\n except OSError as error: print(errno.errorcode[error.errno])";
    let hidden = hidden.display().to_string();
    let control = Program::new("/usr/bin/python3")
        .args(["-c", code, &hidden])
        .directory(directory.path())
        .run();
    assert_eq!(control.out(), "42\n".repeat(4), "{control:?}");
    let shown = directory.path().display().to_string();
    let outcome = Sandbox::at(level).with(["--workspace", &shown]).args([hidden]).run_python(code);
    let refused = if level == Level::Basic { "EACCES\n" } else { "ENOENT\n" };
    assert_eq!(outcome.stdout, refused.repeat(4), "{outcome:?}");
});
