//! Output as it comes, to pipes and to terminals.

use belljar_tests::{Program, Sandbox, Token, each_level};
use rustix::process::Signal;

each_level!(output_streams_while_the_program_runs, |level| {
    // The second line comes only after the test, having read the first, lets the program go on. At
    // these levels nothing but standard input and signals reaches it, so belljar is stopped by one.
    let mut running = Sandbox::at(level).start(
        "python",
        "import signal
print('first', flush=True)
signal.pause()",
    );
    assert_eq!(running.read_line(), "first\n");
    running.signal(Signal::INT);
    assert_eq!(running.wait().code, Some(130));
});

#[test]
fn reader_that_goes_away_is_no_trouble() {
    let script = format!(
        "{} run --language bash -c 'seq 1 100000; exit 6' | head -n 1; echo ${{PIPESTATUS[0]}}",
        belljar_tests::belljar_bin().display()
    );
    let ended = Program::new("/bin/bash").args(["-c", &script]).run();
    assert_eq!(ended.out(), "1\n6\n", "{ended:?}");
    assert_eq!(ended.err(), "");
}

#[test]
fn pipe_gets_the_bytes_as_they_are() {
    let ended =
        Sandbox::standard().plain("python", r"import os; os.write(1, b'\x1b]0;title\x07\xff\x00')");
    assert_eq!(ended.stdout, b"\x1b]0;title\x07\xff\x00");
}

fn on_terminal(options: &[&str], code: &str) -> String {
    let shown = Program::belljar().args(["run"]).args(options).args(["-c", code]).run_on_terminal();
    String::from_utf8_lossy(&shown).into_owned()
}

const TRICKS: &str = r"import sys
for stream in sys.stdout, sys.stderr:
    stream.write('\x1b[1;31mred\x1b[0m ')
    stream.write('\x1b]52;c;c2VjcmV0\x07\x1b]0;title\x1b\\ \x1b[6n \x1b[2J \x1bc \x9b2J \x08 \x7f')
    stream.flush()";

#[test]
fn terminal_shows_colours_and_obeys_nothing_else() {
    let shown = on_terminal(&[], TRICKS);
    assert_eq!(shown.matches("\x1b[1;31mred\x1b[0m").count(), 2, "{shown:?}");
    let rest = shown.replace("\x1b[1;31m", "").replace("\x1b[0m", "");
    assert!(!rest.contains(['\x1b', '\x07', '\u{9b}', '\x08', '\x7f']), "{rest:?}");
    assert!(rest.contains("^[]52;c;c2VjcmV0^G"), "{rest:?}");
    assert!(rest.contains("^[[6n"), "{rest:?}");
}

#[test]
fn raw_passes_everything_to_the_terminal() {
    let shown = on_terminal(&["--raw"], TRICKS);
    assert!(shown.contains("\x1b]52;c;c2VjcmV0\x07"), "{shown:?}");
}

#[test]
fn json_on_a_terminal_is_harmless() {
    let shown = on_terminal(&["--json"], TRICKS);
    assert!(!shown.contains(['\x1b', '\x07', '\u{9b}', '\x7f']), "{shown:?}");
    assert!(shown.contains("\\u001b]52"), "{shown:?}");
}

#[test]
fn unfinished_sequence_at_the_end_is_shown() {
    let shown = on_terminal(&[], r"import sys; sys.stdout.write('end\x1b[3')");
    assert!(shown.contains("end^[[3"), "{shown:?}");
}

#[test]
fn program_never_gets_the_callers_terminal() {
    let shown = on_terminal(
        &[],
        "import os, sys
print([os.isatty(fd) for fd in range(3)])
try: open('/dev/tty')
except OSError as error: print('no terminal')",
    );
    assert!(shown.contains("[False, False, False]"), "{shown:?}");
    assert!(shown.contains("no terminal"), "{shown:?}");
}

/// Prints without end, and a word of its own in its arguments tells whether anything is left of it.
const FLOOD: &str = "import sys
while True: sys.stdout.write('x' * 1000)";

each_level!(reader_that_does_not_read_does_not_hold_an_end_back, |level| {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let token = Token::new();
        let running = Sandbox::at(level).args([token.as_str()]).start("python", FLOOD);
        running.wait_until_stuck();
        running.signal(signal);
        assert!(running.ends_unread(), "{signal:?} is not heard");
        token.assert_gone();
        let ended = running.wait();
        assert_eq!(ended.code, Some(130), "{}", ended.err());
        assert_eq!(ended.err(), "belljar: cancelled\n");
    }
});

#[test]
fn reader_that_does_not_read_json_does_not_hold_an_end_back() {
    let code = "print('x' * 500_000)";
    let running = Sandbox::standard().with(["--output", "1m"]).start_json("python", code);
    running.wait_until_stuck();
    running.signal(Signal::TERM);
    assert!(running.ends_unread());
    assert_eq!(running.wait().code, Some(130));
}

#[test]
fn slow_reader_gets_every_byte_in_order_and_memory_stays_flat() {
    let code = "import sys
for number in range(3_000_000): sys.stdout.write('%07d\\n' % number)";
    let running = Sandbox::standard().start("python", code);
    running.wait_until_stuck();
    let peak = running.peak_memory().expect("it runs");
    assert!(peak < 64 << 20, "{peak} bytes for an output of 24 MB that nobody reads");
    let ended = running.wait();
    let expected: String = (0..3_000_000).map(|number| format!("{number:07}\n")).collect();
    assert_eq!(ended.code, Some(0), "{}", ended.err());
    assert!(ended.stdout == expected.as_bytes(), "{} bytes", ended.stdout.len());
}
