//! Files in, files out, and the host's own directory as workspace.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use belljar_tests::{Level, Program, Sandbox, TempDir, Verdict, each_level, is_root};

fn option(name: &str, value: impl std::fmt::Display) -> [String; 2] {
    [name.to_owned(), value.to_string()]
}

each_level!(copied_files_arrive_as_they_are, |level| {
    let directory = TempDir::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let path = directory.file("data", &bytes);
    let outcome = Sandbox::at(level)
        .with(option("--file", format!("{}:deep/er/data.bin", path.display())))
        .run_python(
            "data = open('deep/er/data.bin', 'rb').read()
print(len(data), data == bytes(i % 256 for i in range(len(data))))
open('deep/er/data.bin', 'ab').write(b'mine now')",
        );
    assert_eq!(outcome.stdout, "100000 True\n", "{outcome:?}");
    assert_eq!(fs::read(&path).expect("still there"), bytes, "the host's is untouched");
});

each_level!(program_works_in_a_writable_directory_of_its_own, |level| {
    let code = "import os
open('made', 'w').write('1'); os.mkdir('sub'); os.rename('made', 'sub/moved')
print(sorted(os.listdir('.')), os.access('.', os.W_OK))
print(open(os.path.join(os.environ['TMPDIR'], 't'), 'w').write('tmp'))
print(open(os.path.join(os.environ['HOME'], 'h'), 'w').write('home'))";
    let outcome = Sandbox::at(level).run_python(code);
    assert_eq!(outcome.stdout, "['main.py', 'sub'] True\n3\n4\n", "{outcome:?}");
    // The next run starts from nothing.
    let next = Sandbox::at(level).run_python("import os; print(os.listdir('.'))");
    assert_eq!(next.stdout, "['main.py']\n");
});

#[test]
fn working_directory_is_workspace_from_standard_up() {
    for level in [Level::Standard, Level::Strict] {
        let outcome = Sandbox::at(level).run_python("import os; print(os.getcwd())");
        assert_eq!(outcome.stdout, "/workspace\n");
    }
}

each_level!(host_workspace_is_read_only_unless_asked, [basic, standard, strict], |level| {
    let directory = TempDir::new();
    directory.file("given", "seen");
    let code = "print(open('given').read())
try: open('new', 'w')
except OSError as error: print(type(error).__name__)
try: open('given', 'w')
except OSError as error: print(type(error).__name__)
import os
try: os.unlink('given')
except OSError as error: print('kept')";
    let sandbox = Sandbox::at(level).with(option("--workspace", directory.path().display()));
    let outcome = sandbox.run_python(code);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(
        (lines.first(), lines.last(), lines.len()),
        (Some(&"seen"), Some(&"kept"), 4),
        "{outcome:?}"
    );
    assert_eq!(fs::read_to_string(directory.join("given")).expect("kept"), "seen");
    assert_eq!(fs::read_dir(directory.path()).expect("kept").count(), 1);
});

#[test]
fn read_only_workspace_at_none_is_refused() {
    let directory = TempDir::new();
    let ended = Sandbox::at(Level::None)
        .with(option("--workspace", directory.path().display()))
        .plain("python", "pass");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("workspace"), "{ended:?}");
}

each_level!(writable_workspace_keeps_what_is_written, [basic, standard], |level| {
    let directory = TempDir::new();
    // As root, a directory of an ordinary user: files in it are to be that user's.
    let owner = if is_root() { 999 } else { rustix::process::geteuid().as_raw() };
    if is_root() {
        std::os::unix::fs::chown(directory.path(), Some(owner), Some(owner)).expect("we are root");
    }
    let outcome = Sandbox::at(level)
        .with(option("--workspace", format!("{}:rw", directory.path().display())))
        .run_python("open('result', 'w').write('42'); print(open('result').read())");
    assert_eq!(outcome.stdout, "42\n", "{outcome:?}");
    let result = directory.join("result");
    assert_eq!(fs::read_to_string(&result).expect("written"), "42");
    assert_eq!(fs::metadata(&result).expect("written").uid(), owner);
});

#[test]
fn writable_workspace_at_strict_is_refused() {
    let directory = TempDir::new();
    let ended = Sandbox::at(Level::Strict)
        .with(option("--workspace", format!("{}:rw", directory.path().display())))
        .plain("python", "pass");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("strict") && ended.err().contains("--out"), "{ended:?}");
}

each_level!(program_inside_the_workspace_runs_in_place, [basic, standard, strict], |level| {
    let directory = TempDir::new();
    directory.file("lib/helper.py", "value = 42");
    let entry = directory.file(
        "lib/main.py",
        "import helper, os; print(helper.value, os.path.basename(os.getcwd()) != 'lib')",
    );
    let outcome =
        Sandbox::at(level).with(option("--workspace", directory.path().display())).run_file(&entry);
    assert_eq!(outcome.stdout, "42 True\n", "{outcome:?}");
});

each_level!(program_outside_the_workspace_can_read_it, [basic, standard, strict], |level| {
    let project = TempDir::new();
    project.file("data", "42");
    let elsewhere = TempDir::new();
    let program = elsewhere.file("main.py", "print(open('data').read())");
    let outcome =
        Sandbox::at(level).with(option("--workspace", project.path().display())).run_file(&program);
    assert_eq!(outcome.stdout, "42\n", "{outcome:?}");
});

#[test]
fn workspace_that_is_readable_by_a_group_of_the_caller_is_read() {
    let directory = TempDir::new();
    directory.file("data", "42");
    let closed = |mode| fs::Permissions::from_mode(mode);
    let run = |level: &str| {
        let belljar = belljar_tests::belljar_bin();
        let workspace = directory.path().display().to_string();
        // Root's pass stands for a user who is in a group of the directory and does not own it.
        let user = "exec setpriv --reuid 4242 --regid 4242 --groups 4243 \"$@\"";
        let before = if is_root() { user } else { "exec \"$@\"" };
        Program::new("/bin/sh")
            .args(["-c", before, "sh"])
            .arg(belljar)
            .args(["run", "--level", level, "--allow-missing", "cgroup", "--quiet", "--no-audit"])
            .args(["--workspace", &workspace, "-c", "print(open('data').read())"])
            .run()
    };
    if is_root() {
        std::os::unix::fs::chown(directory.path(), Some(0), Some(4243)).expect("we are root");
    }
    fs::set_permissions(directory.path(), closed(0o750)).expect("it is ours");
    let ended = run("standard");
    assert_eq!((ended.code, ended.out()), (Some(0), "42\n".to_owned()), "{ended:?}");
    fs::set_permissions(directory.path(), closed(0o000)).expect("it is ours");
    let ended = run("standard");
    fs::set_permissions(directory.path(), closed(0o755)).expect("it is ours");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("closed to uid"), "the true reason: {ended:?}");
}

#[test]
fn links_in_a_workspace_lead_nowhere() {
    let secret = TempDir::new();
    secret.file("secret", "host's");
    let directory = TempDir::new();
    std::os::unix::fs::symlink(secret.join("secret"), directory.join("link")).expect("a link");
    for level in [Level::Basic, Level::Standard, Level::Strict] {
        let outcome = Sandbox::at(level)
            .with(option("--workspace", directory.path().display()))
            .run_python("open('link')");
        assert_eq!(outcome.verdict, Verdict::Exited { code: 1 }, "{outcome:?}");
        assert!(outcome.stderr.contains("Error: [Errno"), "{}", outcome.stderr);
    }
}

/// Everything below, with its kind.
fn tree(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).expect("a directory").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            found.extend(tree(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}")));
        } else {
            assert!(kind.is_file(), "{name} is {kind:?}");
            found.push(name);
        }
    }
    found.sort();
    found
}

each_level!(only_plain_files_are_copied_out, [standard, strict], |level| {
    let parent = TempDir::new();
    let out = parent.join("out");
    let code = "import os, socket
open('result.txt', 'w').write('42')
os.makedirs('sub/deep'); open('sub/deep/run.sh', 'w').write('#!'); os.chmod('sub/deep/run.sh', 0o755)
open('closed', 'w').write('c'); os.chmod('closed', 0)
os.symlink('/etc/passwd', 'link'); os.symlink('..', 'sub/up'); os.symlink('sub', 'dirlink')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
for mode in (0o4755, 0o2755):
    try: os.chmod('result.txt', mode)
    except OSError as error: print(error.errno)";
    let outcome = Sandbox::at(level).with(option("--out", out.display())).run_python(code);
    assert_eq!(outcome.stdout, "1\n1\n", "{outcome:?}");
    let found = tree(&out);
    assert!(found.contains(&"result.txt".to_owned()), "{found:?}");
    assert!(found.contains(&"sub/deep/run.sh".to_owned()), "{found:?}");
    assert!(found.contains(&"closed".to_owned()), "{found:?}");
    let others: Vec<_> = found
        .iter()
        .filter(|name| !["result.txt", "sub/deep/run.sh", "closed"].contains(&name.as_str()))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    let status = |name: &str| fs::metadata(out.join(name)).expect("copied");
    assert_eq!(status("result.txt").permissions().mode() & 0o7777, 0o644);
    assert_eq!(status("sub/deep/run.sh").permissions().mode() & 0o7777, 0o755);
    let me = rustix::process::geteuid().as_raw();
    assert_eq!(status("result.txt").uid(), me, "results belong to the caller");
});

each_level!(results_that_the_program_kept_to_itself_come_out, [standard, strict], |level| {
    let parent = TempDir::new();
    let out = parent.join("out");
    let code = "import os
os.umask(0o077)
os.makedirs('private/deeper')
open('private/deeper/key', 'w').write('42')
open('tool', 'w').write('#!'); os.chmod('tool', 0o700)
os.mkdir('closed'); open('closed/in', 'w').write('c')
for path in 'closed/in', 'closed', '.': os.chmod(path, 0)";
    let ended = Sandbox::at(level).with(option("--out", out.display())).plain("python", code);
    assert_eq!((ended.code, ended.err()), (Some(0), String::new()), "nothing is left behind");
    assert_eq!(tree(&out), ["closed/in", "private/deeper/key", "tool"]);
    let mode = |name: &str| fs::metadata(out.join(name)).expect("copied").permissions().mode();
    assert_eq!(mode("private/deeper/key") & 0o7777, 0o644);
    assert_eq!(mode("tool") & 0o7777, 0o755);
});

#[test]
fn results_of_a_failed_run_come_out_too() {
    let parent = TempDir::new();
    let out = parent.join("out");
    let outcome = Sandbox::standard()
        .with(option("--out", out.display()))
        .with(["--timeout", "1s"])
        .run_python("open('partial', 'w').write('so far')\nwhile True: pass");
    assert_eq!(outcome.verdict.kind(), "wall_time_limit");
    assert_eq!(fs::read_to_string(out.join("partial")).expect("copied"), "so far");
}

#[test]
fn results_never_overwrite() {
    let parent = TempDir::new();
    parent.file("out/mine", "kept");
    let ended = Sandbox::standard()
        .with(option("--out", parent.join("out").display()))
        .plain("python", "open('mine', 'w').write('gone')");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("not empty"), "{ended:?}");
    assert_eq!(fs::read_to_string(parent.join("out/mine")).expect("kept"), "kept");
}
