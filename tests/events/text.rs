//! Hostile text in paths and command lines harms nobody who reads the event.

use belljar_tests::Sandbox;

use super::{calling, only};

fn is_harmless(text: &str) -> bool {
    !text.chars().any(|one| one.is_control() || ('\u{202a}'..='\u{202e}').contains(&one))
}

#[test]
fn escapes_and_bytes_that_are_no_text_are_shown() {
    let path = r"b'/\x1b]0;owned\x07\xff\xfe\xe2\x80\xae' + b'x' * 3000";
    let outcome = Sandbox::standard().run_python(&calling(&format!("call(161, {path})")));
    let event = only(&outcome, "seccomp/standard/chroot");
    assert!(event.detail.starts_with(r#"chroot(path="/\u{1b}]0;owned\u{7}\xff\xfe\u{202e}xxx"#));
    assert!(is_harmless(&event.detail) && event.detail.len() < 1000, "{event:?}");
}

#[test]
fn a_command_line_may_say_anything_and_be_of_any_length() {
    let code = calling(
        r"
import subprocess, sys
child = CHILD
subprocess.run([sys.executable, '-c', child, b'\x1b[2J\xff', '', 'y' * (100 << 10)], check=True)
",
    );
    let child = format!("{:?}", super::CALL.to_owned() + "call(161, b'/tmp')");
    let outcome = Sandbox::standard().run_python(&code.replace("CHILD", &child));
    assert!(outcome.ok(), "{outcome:?}");
    let event = only(&outcome, "seccomp/standard/chroot");
    let process = event.process.as_ref().expect("a process");
    assert!(is_harmless(&process.command), "{process:?}");
    assert!(process.command.len() < 4096 && process.command.ends_with('…'), "{process:?}");
}

#[test]
fn text_that_a_program_wrote_over_its_own_command_line_is_shown_too() {
    let code = calling(
        r#"
# PR_SET_NAME is not the command line; argv[0] of a child is.
import subprocess
subprocess.run(["\x1b[31mred\x1b[0m", "-c", CHILD], executable="/usr/bin/python3", check=True)
"#,
    );
    let child = format!("{:?}", super::CALL.to_owned() + "call(155, b'a', b'b')");
    let outcome = Sandbox::standard().run_python(&code.replace("CHILD", &child));
    assert!(outcome.ok(), "{outcome:?}");
    let event = only(&outcome, "seccomp/standard/pivot_root");
    let process = event.process.as_ref().expect("a process");
    assert!(process.command.starts_with(r"\u{1b}[31mred\u{1b}[0m -c"), "{process:?}");
}

// A path at the end of a page, beside one that is not there; and an address of nothing.
#[test]
fn what_cannot_be_read_is_said_to_be_so() {
    let code = calling(
        "
import mmap
two = mmap.mmap(-1, 8192)
base = ctypes.addressof(ctypes.c_char.from_buffer(two))
libc.munmap(ctypes.c_void_p(base + 4096), 4096)
ctypes.memmove(base + 4093, b'/ab', 3)
call(161, base + 4093)
call(161, 8)
os._exit(0)
",
    );
    let outcome = Sandbox::standard().run_python(&code);
    let told: Vec<&str> = outcome.events.iter().map(|event| event.detail.as_str()).collect();
    assert_eq!(told, [r#"chroot(path="/ab")"#, "chroot(path=?)"], "{outcome:?}");
}

#[test]
fn the_summary_of_run_says_one_line_for_each_attempt() {
    let code = calling("print(call(161, b'/\\x1b[2J'), call(161, b'/\\x1b[2J'))");
    let ended = Sandbox::standard().alone().with(["--screen", "off"]).plain("python", &code);
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    let wanted = "belljar: escape attempt: chroot(path=\"/\\u{1b}[2J\"), 2 times (nothing: the kernel wants a capability for it, and no program has one here)\n";
    let more = told.strip_prefix(wanted).unwrap_or_else(|| panic!("{told}"));
    let id = more.strip_prefix("belljar: \"belljar explain ");
    let id =
        id.and_then(|id| id.strip_suffix("\" tells more\n")).unwrap_or_else(|| panic!("{more}"));
    assert_eq!(id.len(), 26, "{more}");
    let quiet = Sandbox::standard().with(["--quiet"]).plain("python", &code);
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
}
