//! Secrets of runs.

use belljar::{EventKind, Outcome, Severity};
use belljar_tests::{Program, Server, TempDir, outcome};

use crate::{Host, TELLING, assert_unseen, spellings};

const SECRET: &str = "k3y/with+odd&bytes~~?-7f2a";
/// Of SHA-256, in hexadecimal.
fn digest(text: &str) -> String {
    let code = "import hashlib, sys; print(hashlib.sha256(sys.argv[1].encode()).hexdigest()[:12])";
    let ended = Program::new("/usr/bin/python3").args(["-c", code, text]).run();
    ended.out().trim().to_owned()
}

fn assert_told(told: &Outcome) {
    let line = format!("digest {}", digest(SECRET));
    assert!(told.stdout.starts_with(&line), "the program has it: {told:?}");
    assert!(told.stdout.ends_with("done\n"), "{told:?}");
    assert!(told.stdout.contains("[secret]") && told.stderr.contains("<[secret]"), "{told:?}");
    assert_unseen(SECRET, &format!("{told:?}"));
    let tried = told.events.iter().find(|event| event.syscall.as_deref() == Some("chroot"));
    assert!(tried.is_some_and(|event| event.detail.contains("[secret]")), "{:?}", told.events);
}

#[test]
fn a_program_has_its_secret_and_nothing_that_it_says_shows_it() {
    let host = Host::new();
    // The control: with an ordinary variable everything shows it.
    let open = host
        .belljar()
        .args(["run", "--json", "--env"])
        .arg(format!("KEY={SECRET}"))
        .args(["-c", TELLING])
        .run();
    let shown = open.out().replace("\\\\", "\\");
    for spelling in spellings(SECRET) {
        assert!(shown.contains(&spelling), "control: {spelling} in {shown}");
    }
    assert!(!host.files_with(SECRET).is_empty(), "control: the trail has it");

    let host = Host::new();
    host.set("key", SECRET);
    let arguments = ["run", "--json", "--secret", "key", "-c", TELLING];
    assert_told(&outcome(&host.ok(&arguments)));
    let live = host.ok(&["run", "--secret", "key=env:KEY", "-c", TELLING]);
    assert!(live.out().contains("[secret]") && live.out().contains("done"), "{live:?}");
    assert_unseen(SECRET, &format!("{live:?}"));
    for spelling in spellings(SECRET) {
        assert_eq!(host.files_with(&spelling), [] as [std::path::PathBuf; 0], "{spelling}");
    }
    let shown = host.ok(&["audit", "show", "last", "--json"]).out();
    assert!(shown.contains("\"key\"") && shown.contains("[secret]"), "the name is told: {shown}");
}

#[test]
fn a_warm_sandbox_hides_it_as_well() {
    let directory = TempDir::new();
    let state = directory.join("state");
    let set = Program::belljar().args(["secret", "set", "key", "--state"]).arg(&state);
    assert_eq!(set.stdin(SECRET).run().code, Some(0));
    let server = Server::in_directory(directory, &[]);
    for start in ["warm", "cold"] {
        let ended = Program::belljar()
            .args(["run", "--json", "--secret", "key", "--start", start, "--server"])
            .arg(server.socket())
            .args(["-c", TELLING])
            .run();
        assert_told(&outcome(&ended));
    }
}

#[test]
fn values_come_from_the_environment_a_file_or_a_command() {
    let host = Host::new();
    let file = host.directory.join("key");
    std::fs::write(&file, "from-a-file\n").expect("a file");
    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, mode).expect("its mode");
    };
    mode(0o600);
    host.sources(
        "[e]\nenv = \"OF_THE_HOST\"\n[f]\nfile = \"key\"\n[c]\ncommand = [\"echo\", \"from-a-command\"]\n",
    );
    let run = || {
        host.belljar()
            .env("OF_THE_HOST", "from-the-environment")
            .args(["run", "--secret", "e", "--secret", "f", "--secret", "c=env:X", "-c"])
            .arg("import os; print(*(os.environ[n][::-1] for n in 'EFX'), os.environ.get('OF_THE_HOST'))")
            .run()
    };
    let ended = run();
    assert_eq!(ended.out(), "tnemnorivne-eht-morf elif-a-morf dnammoc-a-morf None\n", "{ended:?}");
    mode(0o644);
    let ended = run();
    assert!(ended.code == Some(2) && ended.err().contains("secrets.f.file"), "{ended:?}");
    assert!(ended.err().contains("chmod 600"), "{ended:?}");
}

#[test]
fn mistakes_name_the_fix_and_never_a_value() {
    let host = Host::new();
    host.set("key", SECRET);
    for (option, words) in [
        ("nobody-knows", "belljar secret set nobody-knows"),
        ("key=s3cr3t-typed-here", "values are never given here"),
        ("key=env:PATH=", "is none"),
        ("key@api.example.com", "add --egress api.example.com"),
        ("key@api.example.com+cookie", "only +query and +body"),
    ] {
        let ended = host.belljar().args(["run", "--secret", option, "-c", "1"]).run();
        assert_eq!(ended.code, Some(2), "{option}: {ended:?}");
        assert!(ended.err().contains(words), "{option}: {ended:?}");
        assert!(
            !ended.err().contains("s3cr3t-typed") && !ended.err().contains(SECRET),
            "{ended:?}"
        );
    }
    let twice = ["run", "--secret", "key=env:A", "--env", "A=1", "-c", "1"];
    let ended = host.belljar().args(twice).run();
    assert!(ended.code == Some(2) && ended.err().contains("given twice"), "{ended:?}");
}

#[test]
fn no_command_line_and_no_other_sandbox_has_it() {
    let host = Host::new();
    host.set("key", SECRET);
    let waiting = "import os, time; print(len(os.environ['KEY']), flush=True); time.sleep(60)";
    let mut running = host.belljar().args(["run", "--secret", "key", "-c", waiting]).start();
    assert_eq!(running.read_line(), format!("{}\n", SECRET.len()));
    let seen = || {
        let mut lines = String::new();
        for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            lines.push_str(&String::from_utf8_lossy(&line));
            lines.push('\n');
        }
        lines
    };
    let lines = seen();
    assert!(lines.contains("--secret") && !lines.contains(SECRET), "{lines}");
    // The control: a process that has it there is seen.
    let other = Program::new("/bin/sh").args(["-c", "echo; read line", SECRET]);
    let mut other = other.start_interactive();
    other.read_line();
    assert!(seen().contains(SECRET));
    drop(other);
    let everywhere = "
import glob
found = b''
for path in glob.glob('/proc/[0-9]*/environ'):
    try: found += open(path, 'rb').read()
    except OSError: pass
print('KEY=' in found.decode(errors='replace'))";
    let own = host.ok(&["run", "--secret", "key", "-c", everywhere]);
    assert_eq!(own.out(), "True\n", "control: its own it sees");
    assert_eq!(host.ok(&["run", "-c", everywhere]).out(), "False\n");
    drop(running);
}

#[test]
fn memory_that_held_a_secret_is_dumped_nowhere() {
    let host = Host::new();
    host.set("key", SECRET);
    let core_limit = |options: &[&str]| {
        let code = "import time; print('on', flush=True); time.sleep(60)";
        let mut running = host.belljar().arg("run").args(options).args(["-c", code]).start();
        running.read_line();
        let path = format!("/proc/{}", running.id());
        let limits = std::fs::read_to_string(format!("{path}/limits")).expect("limits");
        let line = limits.lines().find(|line| line.starts_with("Max core")).expect("a limit");
        let fields: Vec<String> = line.split_whitespace().map(ToOwned::to_owned).collect();
        let owner = std::os::unix::fs::MetadataExt::uid(
            &std::fs::metadata(format!("{path}/environ")).expect("its environment"),
        );
        (fields[4..6].to_vec(), owner)
    };
    let (with, owner) = core_limit(&["--secret", "key"]);
    assert_eq!(with, ["0", "0"]);
    // What is not dumpable belongs to root: proc(5).
    assert_eq!(owner, 0);
    let (without, owner) = core_limit(&[]);
    let own = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    assert_eq!(without[1] == "0", own == Some(0), "control: {without:?}");
    assert_eq!(owner, rustix::process::geteuid().as_raw(), "control");
}

#[test]
fn a_decoy_that_comes_out_is_critical_in_every_spelling() {
    let host = Host::new();
    for code in [
        "import os; print(os.environ['BAIT'])",
        "import os, base64; print(base64.b64encode(b'x' + os.environ['BAIT'].encode()))",
        "import os; print(os.environ['BAIT'].encode().hex())",
    ] {
        let arguments = ["run", "--json", "--secret", "bait=canary:BAIT", "-c", code];
        let told = outcome(&host.ok(&arguments));
        let found: Vec<_> = told.events.iter().filter(|one| one.rule == "pattern/canary").collect();
        assert_eq!(found.len(), 1, "{told:?}");
        assert_eq!(
            (found[0].kind, found[0].severity),
            (EventKind::SuspiciousBehavior, Severity::Critical)
        );
    }
    let quiet = ["run", "--json", "--secret", "bait=canary:BAIT", "-c", "print(1)"];
    let told = outcome(&host.ok(&quiet));
    assert!(told.events.iter().all(|one| one.rule != "pattern/canary"), "{told:?}");
}

#[test]
fn a_prompt_is_not_held_back_for_long() {
    let host = Host::new();
    host.set("key", "password-of-many-letters");
    let mut running = host
        .belljar()
        .args(["run", "--secret", "key", "--timeout", "60s", "-c"])
        .arg("import os, time; os.write(1, b'pas\\n70\\n'); time.sleep(60)")
        .start();
    // "70" is how the first letter begins in hexadecimal, and a line's end may stand within.
    assert_eq!((running.read_line(), running.read_line()), ("pas\n".into(), "70\n".into()));
    drop(running);
}
