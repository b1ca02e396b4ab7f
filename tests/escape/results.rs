//! What comes out with `--out`: regular files and directories, and nothing that leads anywhere else.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use belljar_tests::{Sandbox, TempDir, each_level};

/// Leaves every kind of entry that a careless copy would follow, block on or keep.
const LEAVE: &str = r#"
import os, socket
open('plain', 'w').write('result')
os.mkdir('dir'); open('dir/inner', 'w').write('inner')
os.symlink('/etc/passwd', 'to_file'); os.symlink('/etc', 'to_dir'); os.symlink('..', 'up'); os.symlink('plain', 'to_own')
os.mkfifo('fifo')
os.link('plain', 'hard')
try:
    s = socket.socket(socket.AF_UNIX); s.bind('socket')
except OSError: pass
for name in ('new\nline', '..hidden', '...', '-rf', '\x1b[31m', ' ', '*'): open(name, 'w').write('x')
open(b'not\xffutf8', 'w').close()
open('closed', 'w').write('closed'); os.chmod('closed', 0)
os.mkdir('shut'); open('shut/inside', 'w').write('x'); os.chmod('shut', 0)
os.chmod('plain', 0o777)
with open('sparse', 'w') as f: f.truncate(50 << 20)
path = '.'
for n in range(100):
    path += '/deep'; os.mkdir(path)
"#;

/// Nothing in the tree is anything but a file or a directory without special bits; how many there are.
fn harmless(directory: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(directory).expect("it can be read").flatten() {
        let metadata = fs::symlink_metadata(entry.path()).expect("it is there");
        let kind = metadata.file_type();
        assert!(kind.is_file() || kind.is_dir(), "{:?}", entry.path());
        assert!(!kind.is_fifo() && !kind.is_socket() && !kind.is_symlink());
        assert_eq!(metadata.mode() & 0o7000, 0, "{:?}", entry.path());
        if kind.is_file() {
            assert_eq!(metadata.nlink(), 1, "{:?}", entry.path());
        }
        count += 1;
        if kind.is_dir() {
            count += harmless(&entry.path());
        }
    }
    count
}

each_level!(only_harmless_files_come_out, [standard, strict], |level| {
    let host = TempDir::new();
    let out = host.join("out");
    let shown = out.display().to_string();
    let outcome = Sandbox::at(level).with(["--out", &shown]).run_python(LEAVE);
    assert!(outcome.ok(), "{outcome:?}");
    assert!(harmless(&out) > 8);
    assert_eq!(fs::read_to_string(out.join("plain")).expect("copied"), "result");
    assert_eq!(fs::read_to_string(out.join("dir/inner")).expect("copied"), "inner");
    for gone in ["to_file", "to_dir", "up", "to_own", "fifo", "socket"] {
        assert!(fs::symlink_metadata(out.join(gone)).is_err(), "{gone}");
    }
    assert_eq!(fs::read_dir(host.path()).expect("ours").count(), 1, "nothing beside it");
});

each_level!(a_daemon_cannot_swap_files_while_they_are_copied, [standard, strict], |level| {
    // It would have to outlive the program: by the time of the copy nothing does.
    let host = TempDir::new();
    let shown = host.join("out").display().to_string();
    let code = "import os\nopen('a', 'w').write('mine')\nif os.fork() == 0:\n os.setsid()\n while True:\n  \
                for to in ('/etc/passwd', '/'):\n   try: os.symlink(to, 'b'); os.rename('b', 'a')\n   \
                except OSError: pass\n  open('c', 'w').write('mine'); os.rename('c', 'a')\n";
    let outcome = Sandbox::at(level).with(["--out", &shown]).run_python(code);
    assert!(outcome.ok(), "{outcome:?}");
    harmless(Path::new(&shown));
    let copied = fs::read_to_string(host.join("out/a"));
    assert!(copied.is_err() || copied.is_ok_and(|text| text == "mine" || text.is_empty()));
});

each_level!(a_target_that_is_not_empty_is_refused, [standard, strict], |level| {
    let host = TempDir::new();
    host.file("out/precious", "kept");
    let shown = host.join("out").display().to_string();
    let ended = Sandbox::at(level).with(["--out", &shown]).plain("python", "open('precious', 'w')");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(fs::read_to_string(host.join("out/precious")).expect("kept"), "kept");
});

each_level!(a_workspace_that_was_closed_still_comes_out, [standard, strict], |level| {
    // Otherwise a program could make its run look like a fault of ours, which is never judged.
    let host = TempDir::new();
    let shown = host.join("out").display().to_string();
    let code = "import os; open('a', 'w').write('x'); os.chmod('/workspace', 0); os._exit(3)";
    let outcome = Sandbox::at(level).with(["--out", &shown]).run_python(code);
    assert_eq!(outcome.exit_code, Some(3), "{outcome:?}");
    assert_eq!(fs::read_to_string(host.join("out/a")).expect("copied"), "x");
});
