//! `belljar secret`: values at rest.

use belljar_tests::Program;

use crate::Host;

const SECRET: &str = "correct-horse-battery-staple";

#[test]
fn a_secret_is_set_listed_and_removed_and_never_shown() {
    let host = Host::new();
    host.set("one", SECRET);
    host.set("two.b-c", &format!("{SECRET}\n"));
    let listed = host.ok(&["secret", "list"]).out();
    assert!(listed.contains("one") && listed.contains("two.b-c"), "{listed}");
    let json = host.ok(&["secret", "list", "--json"]).json();
    assert_eq!(json["secrets"][0]["name"], "one", "{json}");
    assert!(!listed.contains(SECRET) && !json.to_string().contains(SECRET));
    assert_eq!(host.files_with(SECRET), [] as [std::path::PathBuf; 0]);
    assert!(!host.files_with("two.b-c").is_empty(), "control: the store is read");
    let reversed = "import os; print(os.environ['V'][::-1])";
    let told = host.ok(&["run", "--secret", "two.b-c=env:V", "-c", reversed]).out();
    assert_eq!(told.trim().chars().rev().collect::<String>(), SECRET);
    host.ok(&["secret", "remove", "one"]);
    let again = host.belljar().args(["secret", "remove", "one"]).run();
    assert!(again.code == Some(2) && again.err().contains("no secret of that name"), "{again:?}");
    for (name, value, words) in [
        ("a b", SECRET, "a name is"),
        ("short", "abc", "shorter than 4 bytes"),
        ("empty", "\n", "holds nothing"),
        ("long", &"x".repeat(70_000), "more than 65536 bytes"),
    ] {
        let ended = host.belljar().args(["secret", "set", name]).stdin(value).run();
        assert!(ended.code == Some(2) && ended.err().contains(words), "{name}: {ended:?}");
    }
    let typed = host.belljar().args(["secret", "set", "one", SECRET]).run();
    assert_eq!(typed.code, Some(2), "no value on a command line: {typed:?}");
}

#[test]
fn a_terminal_shows_nothing_of_what_is_typed() {
    let host = Host::new();
    let typing = "
import os, pty, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b''
while b'not shown' not in shown:
    shown += os.read(terminal, 1000)
assert not termios.tcgetattr(terminal)[3] & termios.ECHO
os.write(terminal, b'correct-horse-battery-staple\\n')
try:
    while True:
        piece = os.read(terminal, 1000)
        if not piece: break
        shown += piece
except OSError: pass
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, shown)";
    let ended = Program::new("/usr/bin/python3")
        .args(["-c", typing])
        .arg(belljar_tests::belljar_bin())
        .args(["secret", "set", "typed", "--state"])
        .arg(host.state())
        .run();
    assert!(ended.out().starts_with("0 ") && !ended.out().contains("horse"), "{ended:?}");
    let code = "import os; print(os.environ['TYPED'][::-1])";
    let told = host.ok(&["run", "--secret", "typed", "-c", code]).out();
    assert_eq!(told.trim().chars().rev().collect::<String>(), SECRET);
}

#[test]
fn a_kill_at_any_moment_leaves_the_old_value_or_the_new() {
    let host = Host::new();
    host.set("key", "value-number-0");
    let mut known = 0;
    for round in 1..=15 {
        let mut setting = host.belljar().args(["secret", "set", "key"]).start_interactive();
        setting.write(format!("value-number-{round}").as_bytes());
        setting.close_stdin();
        // A little later each time: before, within and after the change.
        let until = std::time::Instant::now() + std::time::Duration::from_micros(700 * round);
        while std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        drop(setting); // by SIGKILL
        let code = "import os; print(os.environ['KEY'].rpartition('-')[2])";
        let told = host.ok(&["run", "--secret", "key", "--no-audit", "-c", code]).out();
        let value: u64 = told.trim().parse().unwrap_or_else(|error| panic!("{error}: {told}"));
        assert!(value == known || value == round, "{value} after {known}, {round}");
        known = value;
    }
    host.set("key", "value-number-99");
}
