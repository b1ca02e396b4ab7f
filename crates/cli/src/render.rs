//! What the user sees: data to stdout, words to stderr, nothing that needs colour to be read.

pub(crate) mod evolution;
pub(crate) mod tests_table;

use std::io::{self, IsTerminal};

use belljar::units::show_bytes;
use belljar::visible::{escaped_json, is_unseen};
use belljar::{DiskLimit, Error, Event, EventKind, Outcome, Screening, Severity, Stream, Verdict};

use crate::output::put;

/// Our own exit codes; see `belljar --help`.
pub(crate) const BAD_REQUEST: u8 = 2;
const TIME: u8 = 124;
pub(crate) const OURS: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNAL_BASE: i32 = 128;
const KILLED: u8 = 137;
const CANCELLED: u8 = 130;

/// The one mapping from an Outcome to an exit code.
pub(crate) fn exit_code(outcome: &Outcome) -> u8 {
    verdict_code(&outcome.verdict, outcome.exit_code)
}

/// The same from a verdict and the program's own code, if it had one.
pub(crate) fn verdict_code(verdict: &Verdict, exit_code: Option<i32>) -> u8 {
    let low_byte = |code: i32| code.to_le_bytes()[0];
    match verdict {
        Verdict::Exited { code } => low_byte(*code),
        Verdict::Signaled { signal } | Verdict::SyscallDenied { signal } => {
            low_byte(SIGNAL_BASE + signal)
        }
        Verdict::WallTimeLimit { .. } | Verdict::CpuTimeLimit { .. } => TIME,
        Verdict::MemoryLimit { .. } | Verdict::OutputLimit { .. } => KILLED,
        Verdict::DiskLimit { .. } => {
            // A program that failed by itself on a full disk keeps its own code.
            exit_code.filter(|code| *code != 0).map_or(KILLED, low_byte)
        }
        Verdict::StartFailed { errno } if errno == "ENOENT" => NOT_FOUND,
        Verdict::StartFailed { .. } => NOT_EXECUTABLE,
    }
}

/// The one mapping from an Error to an exit code.
pub(crate) fn error_code(error: &Error) -> u8 {
    match error {
        Error::Spec(_) | Error::Screened(_) | Error::NotFound { .. } | Error::Conflict { .. } => {
            BAD_REQUEST
        }
        Error::Cancelled => CANCELLED,
        Error::Setup { .. }
        | Error::NotVerified { .. }
        | Error::Unavailable { .. }
        | Error::Backend { .. }
        | Error::Budget { .. }
        | Error::Busy { .. }
        | Error::Audit { .. }
        | Error::Lost { .. } => OURS,
    }
}

/// Says what is wrong, in one line, and passes the code through.
pub(crate) fn trouble(message: &str, code: u8) -> u8 {
    // A closed stderr leaves nobody to tell.
    put(io::stderr(), format!("belljar: {}\n", visible(message)).as_bytes()).ok();
    code
}

/// Says something on the way, that is neither data nor trouble.
pub(crate) fn words(text: &str) {
    // A closed stderr leaves nobody to tell.
    put(io::stderr(), format!("{}\n", visible(text)).as_bytes()).ok();
}

/// The run ended and was told; its results did not all reach the caller.
pub(crate) fn copy_stopped(why: &str) -> u8 {
    trouble(&format!("the results are not whole: cannot copy them out: {why}"), OURS)
}

/// An error as a JSON object, for --json and batches.
pub(crate) fn error_json(error: &Error) -> serde_json::Value {
    let mut inner = serde_json::json!({ "kind": error.kind(), "message": error.to_string() });
    match error {
        Error::Spec(spec) => inner["field"] = spec.field.clone().into(),
        Error::Screened(screening) => screened(&mut inner, screening),
        Error::Setup { step, errno, .. } => {
            inner["step"] = belljar::step_name(*step).into();
            inner["errno"] = errno.clone().into();
        }
        Error::NotVerified { .. }
        | Error::Unavailable { .. }
        | Error::Backend { .. }
        | Error::Lost { .. }
        | Error::Budget { .. }
        | Error::Busy { .. }
        | Error::Audit { .. }
        | Error::NotFound { .. }
        | Error::Conflict { .. }
        | Error::Cancelled => {}
    }
    serde_json::json!({ "error": inner })
}

/// Adds what screening found to an error.
pub(crate) fn screened(error: &mut serde_json::Value, screening: &Screening) {
    error["field"] = "code".into();
    // It is text and numbers: there is nothing in it that JSON could not say.
    error["screening"] = serde_json::to_value(screening).unwrap_or_default();
}

/// What reading the code found that is worth a line; nothing for what ordinary programs do.
pub(crate) fn advice(outcome: &Outcome) -> Option<String> {
    let headline = outcome.screening.as_ref()?.headline(Severity::Medium)?;
    Some(format!("advice: {headline}. \"belljar screen\" tells more; --screen off is silent"))
}

/// Prints a value as JSON on stdout, readable, with control characters escaped.
pub(crate) fn json(value: &impl serde::Serialize) -> u8 {
    match pretty(value) {
        Ok(text) => line(&text),
        Err(error) => trouble(&format!("cannot write JSON: {error}"), OURS),
    }
}

/// Prints a line of data.
pub(crate) fn line(text: &str) -> u8 {
    match put(io::stdout(), format!("{text}\n").as_bytes()) {
        Ok(()) => 0,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => CANCELLED,
        // The reader went away (`| head`): its choice, no trouble of ours.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => trouble(&format!("cannot write to stdout: {error}"), OURS),
    }
}

/// One line of JSON, with control characters escaped.
pub(crate) fn compact(value: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(|text| escaped_json(&text))
}

fn pretty(value: &impl serde::Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| escaped_json(&text))
}

/// The program's output on its way to the caller's own streams.
pub(crate) struct Live {
    stdout: Terminal,
    stderr: Terminal,
}

impl Live {
    pub(crate) fn new(raw: bool) -> Self {
        Self {
            stdout: Terminal::new(!raw && io::stdout().is_terminal()),
            stderr: Terminal::new(!raw && io::stderr().is_terminal()),
        }
    }

    /// Passes bytes on. Fails when nobody reads any more, or we were asked to end.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Stdout => put(io::stdout(), &self.stdout.filter(bytes)),
            Stream::Stderr => put(io::stderr(), &self.stderr.filter(bytes)),
        }
    }

    /// Shows what was held back as the beginning of a sequence that never ended.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        put(io::stdout(), &self.stdout.rest())?;
        put(io::stderr(), &self.stderr.rest())
    }
}

/// Keeps a program from talking to the caller's terminal: colours pass, everything else that starts
/// with ESC or is a control character is shown, not obeyed (window titles, clipboard writes, answers).
#[derive(Debug)]
struct Terminal {
    active: bool,
    /// An unfinished escape sequence at the end of the last chunk.
    pending: Vec<u8>,
}

const ESC: u8 = 0x1b;
/// A colour sequence is short; a longer one is not a colour.
const MAX_COLOUR: usize = 32;

impl Terminal {
    fn new(active: bool) -> Self {
        Self { active, pending: Vec::new() }
    }

    fn rest(&mut self) -> Vec<u8> {
        let pending = std::mem::take(&mut self.pending);
        match pending.split_first() {
            Some((&ESC, after)) => [b"^[", after].concat(),
            Some(_) | None => pending,
        }
    }

    fn filter(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !self.active {
            return bytes.to_vec();
        }
        let input = [std::mem::take(&mut self.pending), bytes.to_vec()].concat();
        let mut shown = Vec::with_capacity(input.len());
        let mut rest = &input[..];
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            match *first {
                ESC => match colour_length(after) {
                    Colour::Whole(length) => {
                        shown.push(ESC);
                        shown.extend_from_slice(&after[..length]);
                        rest = &after[length..];
                    }
                    Colour::Unfinished => {
                        self.pending = [&[ESC], after].concat();
                        return shown;
                    }
                    Colour::Other => shown.extend_from_slice(b"^["),
                },
                b'\n' | b'\t' | b'\r' => shown.push(*first),
                // C1 controls in UTF-8 are 0xc2 0x80..0x9f.
                0xc2 if after.first().is_some_and(|next| (0x80..=0x9f).contains(next)) => {
                    shown.extend_from_slice(b"?");
                    rest = &after[1..];
                }
                0xc2 if after.is_empty() => self.pending = vec![0xc2],
                0x00..=0x1f => shown.extend_from_slice(&[b'^', first + 0x40]),
                0x7f => shown.extend_from_slice(b"^?"),
                _ => shown.push(*first),
            }
        }
        shown
    }
}

enum Colour {
    Whole(usize),
    Unfinished,
    Other,
}

/// Whether what follows an ESC is `[`, digits and semicolons, `m`.
fn colour_length(after: &[u8]) -> Colour {
    match after.first() {
        None => return Colour::Unfinished,
        Some(b'[') => {}
        Some(_) => return Colour::Other,
    }
    for (index, byte) in after.iter().enumerate().skip(1).take(MAX_COLOUR) {
        match byte {
            b'0'..=b'9' | b';' | b':' => {}
            b'm' => return Colour::Whole(index + 1),
            _ => return Colour::Other,
        }
    }
    if after.len() <= MAX_COLOUR { Colour::Unfinished } else { Colour::Other }
}

/// Text with control characters made visible: file names and messages may hold anything.
pub(crate) fn visible(text: &str) -> String {
    text.chars().map(|one| if is_unseen(one) && one != '\n' { '\u{fffd}' } else { one }).collect()
}

/// What went wrong with a run that did not simply exit, in one line; nothing for a plain exit.
pub(crate) fn summary(outcome: &Outcome) -> Option<String> {
    let fix = limits_met(outcome).next().map_or("", |event| event.fix.as_str());
    if let Verdict::Exited { code } = outcome.verdict {
        return beside(outcome, code);
    }
    if let Verdict::StartFailed { errno } = &outcome.verdict {
        let program = &outcome.receipt.versions.interpreter;
        return Some(format!("the program could not be started: {program}: {errno}"));
    }
    let what = verdict_words(&outcome.verdict)?;
    Some(if fix.is_empty() { what } else { format!("{what} ({fix} raises it)") })
}

/// How a program ended that did not end by itself.
pub(crate) fn verdict_words(verdict: &Verdict) -> Option<String> {
    let what = match verdict {
        Verdict::Exited { .. } => return None,
        Verdict::Signaled { signal } => format!("ended by signal {signal}"),
        Verdict::WallTimeLimit { limit_ms } => format!("ended at its time limit of {limit_ms} ms"),
        Verdict::CpuTimeLimit { limit_ms } => {
            format!("ended at its CPU time limit of {limit_ms} ms")
        }
        Verdict::MemoryLimit { limit_bytes } => {
            format!("ended at its memory limit of {}", show_bytes(*limit_bytes))
        }
        Verdict::OutputLimit { limit_bytes, .. } => {
            format!("ended after {} of output", show_bytes(*limit_bytes))
        }
        Verdict::DiskLimit { limit } => {
            let met = match limit {
                DiskLimit::DiskBytes => "its disk full",
                DiskLimit::Inodes => "no room for another file",
                DiskLimit::FileBytes => "a file as long as one may be",
            };
            format!("failed with {met}")
        }
        Verdict::SyscallDenied { .. } => {
            "ended by the system-call filter: 32-bit and x32 calls are never allowed".to_owned()
        }
        Verdict::StartFailed { errno } => format!("could not be started: {errno}"),
    };
    Some(format!("the program {what}"))
}

/// Prints rows in columns. The last column may be of any width.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> u8 {
    let shown: Vec<[String; N]> =
        rows.iter().map(|row| row.clone().map(|cell| visible(&cell).replace('\n', " "))).collect();
    let width = |column: usize| shown.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let text = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    if shown.is_empty() {
        return 0;
    }
    line(&shown.iter().map(text).collect::<Vec<_>>().join("\n"))
}

/// Attempts that are worth a line each; the rest is a number.
const MAX_TRIED: usize = 5;

/// What was tried and refused, above what innocent programs do: one short line each.
pub(crate) fn tried(outcome: &Outcome) -> Vec<String> {
    let limits = [EventKind::ResourceLimitExceeded, EventKind::TimeoutExceeded];
    // What ended the program is told by the summary.
    let told = |event: &Event| limits.contains(&event.kind) || event.rule == "seccomp";
    let worth = |event: &&Event| event.severity > Severity::Info && !told(event);
    let all: Vec<&Event> = outcome.events.iter().filter(worth).collect();
    let line = |event: &&Event| {
        let times =
            if event.count > 1 { format!(", {} times", event.count) } else { String::new() };
        let kind = event.kind.name().replace('_', " ");
        format!("{kind}: {}{times} ({})", event.detail, event.fix)
    };
    let mut lines: Vec<String> = all.iter().take(MAX_TRIED).map(line).collect();
    if all.len() > MAX_TRIED {
        lines.push(format!("and {} more, see --json", all.len() - MAX_TRIED));
    }
    lines
}

/// Where to ask what else is known of it.
pub(crate) fn explained(outcome: &Outcome) -> String {
    format!("\"belljar explain {}\" tells more", outcome.execution_id)
}

fn limits_met(outcome: &Outcome) -> impl Iterator<Item = &Event> {
    let kinds = [EventKind::ResourceLimitExceeded, EventKind::TimeoutExceeded];
    outcome.events.iter().filter(move |event| kinds.contains(&event.kind))
}

/// What is worth saying of a program that simply exited: a limit that may be why it failed, and the
/// layers it ran without.
fn beside(outcome: &Outcome, code: i32) -> Option<String> {
    let met = limits_met(outcome).filter(|_| code != 0);
    let met = met.map(|event| format!("{} ({} raises the limit)", event.detail, event.fix));
    let missing: Vec<String> = outcome
        .receipt
        .missing
        .iter()
        .map(|one| format!("{} ({})", one.name, one.stand_in))
        .collect();
    let without = (!missing.is_empty()).then(|| format!("ran without {}", missing.join("; ")));
    let all: Vec<String> = met.chain(without).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(chunks: &[&[u8]]) -> String {
        let mut terminal = Terminal::new(true);
        let shown: Vec<u8> = chunks.iter().flat_map(|chunk| terminal.filter(chunk)).collect();
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn colours_pass_and_commands_to_the_terminal_do_not() {
        assert_eq!(filtered(&[b"\x1b[1;31mred\x1b[0m\n"]), "\x1b[1;31mred\x1b[0m\n");
        assert_eq!(filtered(&[b"\x1b]52;c;aGk=\x07"]), "^[]52;c;aGk=^G");
        assert_eq!(filtered(&[b"\x1b[2J\x1b[6n"]), "^[[2J^[[6n");
        assert_eq!(filtered(&["\u{9b}2J".as_bytes()]), "?2J");
    }

    #[test]
    fn a_sequence_split_between_chunks_is_still_seen() {
        assert_eq!(filtered(&[b"a\x1b", b"[3", b"1mb"]), "a\x1b[31mb");
        assert_eq!(filtered(&[b"a\x1b", b"]0;x\x07"]), "a^[]0;x^G");
        assert_eq!(filtered(&[b"\xc2", b"\x9d0;x\xc2", b"\x9c"]), "?0;x?");
        assert_eq!(filtered(&[b"caf\xc3", b"\xa9 \xc2", b"\xa9"]), "café ©");
    }

    #[test]
    fn json_escapes_what_terminals_obey() {
        let text = compact(&"\u{1b}[2J\u{9b}2J\u{7f}").unwrap();
        assert_eq!(text, r#""\u001b[2J\u009b2J\u007f""#);
    }
}
