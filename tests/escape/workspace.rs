//! A directory of the host shown inside: what is in it, and what may be left in it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use belljar_tests::{Program, Sandbox, TempDir, each_level, is_root};

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
    assert!(UnixStream::connect(&path).is_ok(), "the control");
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
    let directory = shared();
    let shown = format!("{}:rw", directory.path().display());
    let outcome = Sandbox::at(level).with(["--workspace", &shown]).run_python(SET_ID);
    assert!(outcome.ok(), "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 10, "{outcome:?}");
    assert!(lines.iter().all(|line| ["EPERM", "ENOSYS"].contains(line)), "{outcome:?}");
    for entry in fs::read_dir(directory.path()).expect("it is ours").flatten() {
        let mode = entry.metadata().expect("it is there").mode();
        assert_eq!(mode & 0o6000, 0, "{:?}", entry.path());
    }
    // The control: outside, the same program makes one at once.
    let outside = shared();
    let control =
        Program::new("/usr/bin/python3").args(["-c", SET_ID]).directory(outside.path()).run();
    assert!(control.out().starts_with("worked\n"), "{control:?}");
    assert_eq!(fs::metadata(outside.join("a")).expect("made").mode() & 0o4000, 0o4000);
});

each_level!(a_read_only_workspace_cannot_be_changed, [basic, standard, strict], |level| {
    let directory = TempDir::new();
    directory.file("kept", "as it was");
    let shown = directory.path().display().to_string();
    let code = "import errno, os\nacts = [lambda: open('kept', 'w'), lambda: open('new', 'w'), lambda: os.remove('kept'), \
                lambda: os.rename('kept', 'moved'), lambda: os.mkdir('d'), lambda: os.truncate('kept', 0), \
                lambda: os.symlink('x', 'y'), lambda: os.link('kept', 'k')]\nfor act in acts:\n \
                try: act(); print('worked')\n except OSError as error: print(errno.errorcode[error.errno])";
    let outcome = Sandbox::at(level).with(["--workspace", &shown]).run_python(code);
    let refused = ["EROFS", "EACCES", "EPERM", "EXDEV"];
    assert_eq!(outcome.stdout.lines().count(), 8, "{outcome:?}");
    assert!(outcome.stdout.lines().all(|line| refused.contains(&line)), "{outcome:?}");
    assert_eq!(fs::read_to_string(directory.join("kept")).expect("kept"), "as it was");
    assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 1);
});

each_level!(links_in_a_workspace_lead_nowhere, [basic, standard, strict], |level| {
    let secret = TempDir::new();
    let hidden = secret.file("secret", "42");
    let directory = TempDir::new();
    std::os::unix::fs::symlink(&hidden, directory.join("link")).expect("a link");
    std::os::unix::fs::symlink(secret.path(), directory.join("dir")).expect("a link");
    assert_eq!(fs::read_to_string(directory.join("link")).expect("the control"), "42");
    let shown = directory.path().display().to_string();
    let code = "import errno\nfor name in ('link', 'dir/secret', '../' * 9 + 'etc/shadow', '/proc/self/root/etc/shadow'):\n \
                try: open(name).read(); print('worked')\n except OSError as error: print(errno.errorcode[error.errno])";
    let outcome = Sandbox::at(level).with(["--workspace", &shown]).run_python(code);
    let refused = ["ENOENT", "EACCES"];
    assert_eq!(outcome.stdout.lines().count(), 4, "{outcome:?}");
    assert!(outcome.stdout.lines().all(|line| refused.contains(&line)), "{outcome:?}");
});
