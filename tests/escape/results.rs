//! What comes out with `--out`: regular files and directories, and nothing that leads anywhere else.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

use belljar_tests::{DEADLINE, Program, Sandbox, TempDir, Token, each_level};

/// Leaves every kind of entry that a careless copy would follow, block on or keep.
const LEAVE: &str = r#"
import os, socket
open('plain', 'w').write('result')
os.mkdir('dir'); open('dir/inner', 'w').write('inner')
os.symlink('/etc/passwd', 'to_file'); os.symlink('/etc', 'to_dir'); os.symlink('..', 'up'); os.symlink('plain', 'to_own')
os.mkfifo('fifo')
os.link('plain', 'hard')
s = socket.socket(socket.AF_UNIX); s.bind('socket')
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
    // The control: outside, the same program leaves all of it, and a link shows what it leads to.
    let outside = TempDir::new();
    let control =
        Program::new("/usr/bin/python3").args(["-c", LEAVE]).directory(outside.path()).run();
    assert_eq!(control.code, Some(0), "{control:?}");
    let kind = |name: &str| {
        let found = fs::symlink_metadata(outside.join(name)).expect("it was left");
        found.file_type()
    };
    for link in ["to_file", "to_dir", "up", "to_own"] {
        assert!(kind(link).is_symlink(), "{link}");
    }
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    assert_eq!(fs::metadata(outside.join("plain")).expect("left").nlink(), 2);
    let theirs = fs::read(outside.join("to_file")).expect("a careless copy follows");
    assert_eq!(theirs, fs::read("/etc/passwd").expect("everyone may read it"));
    // What was shut has to be opened for the directory to vanish.
    let open = fs::Permissions::from_mode(0o700);
    fs::set_permissions(outside.join("shut"), open).expect("it is ours");

    let host = TempDir::new();
    let out = host.join("out");
    let shown = out.display().to_string();
    let outcome = Sandbox::at(level).with(["--out", &shown]).run_python(LEAVE);
    assert!(outcome.ok(), "{outcome:?}");
    assert!(harmless(&out) > 8);
    assert_eq!(fs::read_to_string(out.join("plain")).expect("copied"), "result");
    assert_eq!(fs::read_to_string(out.join("dir/inner")).expect("copied"), "inner");
    for gone in ["to_file", "to_dir", "up", "to_own", "fifo", "socket"] {
        let absent = fs::symlink_metadata(out.join(gone)).map_err(|error| error.kind());
        assert_eq!(absent.err(), Some(ErrorKind::NotFound), "{gone}");
    }
    assert_eq!(fs::read_dir(host.path()).expect("ours").count(), 1, "nothing beside it");
});

/// Leaves a process behind that goes on changing the file, link and file in turn.
const SWAP: &str = r#"
import os, sys
open('a', 'w').write('mine')
if os.fork() == 0:
    os.setsid()
    null = os.open('/dev/null', os.O_RDWR)
    for n in range(3): os.dup2(null, n)
    while True:
        for to in ('/etc/passwd', '/'):
            try: os.symlink(to, 'b'); os.rename('b', 'a')
            except OSError: pass
        open('c', 'w').write('mine'); os.rename('c', 'a')
"#;

each_level!(a_daemon_cannot_swap_files_while_they_are_copied, [standard, strict], |level| {
    // The control: outside, the file is seen to be a link after its program has ended.
    let (outside, token) = (TempDir::new(), Token::new());
    let control = Program::new("/usr/bin/python3")
        .args(["-c", SWAP, token.as_str()])
        .directory(outside.path())
        .run();
    assert_eq!(control.code, Some(0), "{control:?}");
    let deadline = Instant::now() + DEADLINE;
    while !fs::symlink_metadata(outside.join("a")).is_ok_and(|one| one.is_symlink()) {
        assert!(Instant::now() < deadline, "the file is never swapped");
    }
    for (pid, _) in belljar_tests::processes_with(token.as_str()) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it still runs");
    }
    token.wait_until_gone();

    // Inside it would have to outlive the program: by the time of the copy nothing does.
    let (host, token) = (TempDir::new(), Token::new());
    let shown = host.join("out").display().to_string();
    let sandbox = Sandbox::at(level).with(["--out", &shown]).args([token.as_str()]);
    let outcome = sandbox.run_python(SWAP);
    assert!(outcome.ok(), "{outcome:?}");
    token.assert_gone();
    harmless(Path::new(&shown));
    // It was ended at any moment: what was a link then is not there, and a file may be empty yet.
    match fs::read_to_string(host.join("out/a")) {
        Ok(text) => assert!(text == "mine" || text.is_empty(), "{text}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
    }
});

each_level!(a_target_that_is_not_empty_is_refused, [standard, strict], |level| {
    let code = "open('precious', 'w').write('other')";
    let host = TempDir::new();
    let shown = host.join("out").display().to_string();
    let run = || Sandbox::at(level).with(["--out", &shown]).plain("python", code);
    // The control: one that is empty takes the file.
    fs::create_dir(host.join("out")).expect("it is ours");
    assert_eq!(run().code, Some(0));
    assert_eq!(fs::read_to_string(host.join("out/precious")).expect("copied"), "other");
    host.file("out/precious", "kept");
    let ended = run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("not empty"), "{ended:?}");
    assert_eq!(fs::read_to_string(host.join("out/precious")).expect("kept"), "kept");
});

each_level!(a_workspace_that_was_closed_still_comes_out, [standard, strict], |level| {
    // Otherwise a program could make its run look like a fault of ours, which is never judged.
    let code = "import os; open('a', 'w').write('x'); os.chmod(os.getcwd(), 0); os._exit(3)";
    // The control: outside, the directory is closed then, and to its own user.
    let outside = TempDir::new();
    let closed = outside.join("closed");
    fs::create_dir(&closed).expect("it is ours");
    let control = Program::new("/usr/bin/python3").args(["-c", code]).directory(&closed).run();
    assert_eq!(control.code, Some(3), "{control:?}");
    assert_eq!(fs::metadata(&closed).expect("it is there").mode() & 0o777, 0);
    let open = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&closed, open).expect("it is ours");

    let host = TempDir::new();
    let shown = host.join("out").display().to_string();
    let outcome = Sandbox::at(level).with(["--out", &shown]).run_python(code);
    assert_eq!(outcome.exit_code, Some(3), "{outcome:?}");
    assert_eq!(fs::read_to_string(host.join("out/a")).expect("copied"), "x");
});
