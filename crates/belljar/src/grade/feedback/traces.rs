//! Finding the error in what an interpreter says of a program that failed.

use super::super::{Raised, judge};

/// What bash says after the line's number, where it names no error by a word.
const BASH: [&str; 7] = [
    "command not found",
    "unbound variable",
    "syntax error",
    "No such file or directory",
    "Permission denied",
    "integer expression expected",
    "bad substitution",
];

/// The error that ended a program, with the line of it; nothing if none is told.
pub(in super::super) fn find_error(language: &str, stderr: &str) -> Option<Raised> {
    let found = match language {
        "python" => python(stderr),
        "node" => node(stderr),
        "bash" => bash(stderr),
        _ => None,
    };
    found.map(judge::bounded)
}

/// `Type: message` at the end, below lines that say `File "…", line N`.
fn python(stderr: &str) -> Option<Raised> {
    let lines: Vec<&str> = stderr.lines().collect();
    let is_error = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        let plain = |one: char| one.is_alphanumeric() || matches!(one, '_' | '.');
        name.starts_with(char::is_alphabetic) && name.chars().all(plain)
    };
    let at = lines.iter().rposition(is_error)?;
    let place = lines[..at].iter().rposition(|line| is_own_frame(line))?;
    let line = number_after(lines[place], "\", line ");
    let (kind, message) =
        lines[at].split_once(": ").unwrap_or((lines[at].trim_end_matches(':'), ""));
    let kind = kind.rsplit('.').next().unwrap_or(kind).to_owned();
    Some(Raised { kind, message: message.to_owned(), line, bases: Vec::new() })
}

fn is_own_frame(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("File \"/workspace/") || line.starts_with("File \"/code/")
}

/// `/workspace/main.js:3` first, then the code, then `TypeError: …`.
fn node(stderr: &str) -> Option<Raised> {
    let error = stderr.lines().find_map(|line| {
        let (kind, message) = line.split_once(": ")?;
        let kind = kind.trim_start_matches("Uncaught ").split(' ').next()?;
        let plain = kind.chars().all(char::is_alphanumeric);
        (plain && kind.ends_with("Error")).then(|| (kind.to_owned(), message.to_owned()))
    })?;
    let line = stderr
        .lines()
        .find_map(|line| ["/workspace/", "/code/"].iter().find_map(|top| place_in(line, top)));
    Some(Raised { kind: error.0, message: error.1, line, bases: Vec::new() })
}

/// The number after `file:` in a line that names a file below `top`.
fn place_in(line: &str, top: &str) -> Option<u32> {
    let path = &line[line.find(top)? + top.len()..];
    let after = &path[path.find(':')? + 1..];
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// `main.sh: line 3: foo: command not found`.
fn bash(stderr: &str) -> Option<Raised> {
    stderr.lines().rev().find_map(|text| {
        let line = number_after(text, ": line ")?;
        let rest = text.split_once(": line ")?.1;
        let message = rest.split_once(": ").map_or(rest, |(_, message)| message);
        let kind = BASH.iter().find(|kind| message.contains(**kind))?;
        let (kind, message) = ((*kind).to_owned(), message.to_owned());
        Some(Raised { kind, message, line: Some(line), bases: Vec::new() })
    })
}

fn number_after(text: &str, mark: &str) -> Option<u32> {
    let rest = &text[text.find(mark)? + mark.len()..];
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(language: &str, stderr: &str) -> (String, String, Option<u32>) {
        let raised = find_error(language, stderr).unwrap();
        (raised.kind, raised.message, raised.line)
    }

    #[test]
    fn the_error_of_each_language_is_found_with_its_line() {
        let python = "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 4, in <module>\n    \
                      f()\n  File \"/workspace/main.py\", line 2, in f\n    return 1 / 0\n           ~~^~~\n  \
                      File \"/usr/lib/python3.11/x.py\", line 99, in g\nZeroDivisionError: division by zero\n";
        let zero = ("ZeroDivisionError".to_owned(), "division by zero".to_owned(), Some(2));
        assert_eq!(told("python", python), zero);
        let syntax = "  File \"/workspace/main.py\", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n";
        assert_eq!(told("python", syntax).2, Some(1));
        let node = "/workspace/main.js:3\nfoo.bar();\n    ^\n\nTypeError: foo.bar is not a function\n    at Object.<anonymous> (/workspace/main.js:3:5)\n";
        assert_eq!(
            told("node", node),
            ("TypeError".into(), "foo.bar is not a function".into(), Some(3))
        );
        let bash = "noise\n/workspace/main.sh: line 7: frob: command not found\n";
        assert_eq!(
            told("bash", bash),
            ("command not found".into(), "frob: command not found".into(), Some(7))
        );
    }

    #[test]
    fn words_that_are_no_error_are_none() {
        for (language, text) in
            [("python", "all is well\n"), ("node", "hm"), ("bash", "x: y"), ("perl", "x")]
        {
            assert_eq!(find_error(language, text), None, "{language}");
        }
    }
}
