//! Asking the language itself whether a text is one of its programs. Its parser is a large program in C that reads
//! hostile text, so it is asked inside a sandbox like any other program, and what it says is data.

use serde::Deserialize;

use super::excerpt;
use super::grammar::Grammar;
use super::sources::SourceText;
use crate::engine::Engine;
use crate::model::limits::LimitsRequest;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::request::{Data, RunRequest};
use crate::model::screening::SyntaxFault;

/// For the question, which a parser answers in milliseconds.
const WALL_MS: u64 = 10_000;
const OUTPUT_BYTES: u64 = 64 << 10;
/// Where the text lies; the program beside it asks.
const DIRECTORY: &str = "asked";

/// The text is compiled and not run. What it says of itself comes as one line of JSON.
const PYTHON: &str = r#"
import json, os, sys, warnings
warnings.simplefilter("ignore")
path = os.path.join("asked", os.listdir("asked")[0])
try:
    with open(path, "rb") as file:
        compile(file.read(), path, "exec", dont_inherit=True)
except SyntaxError as error:
    print(json.dumps({"line": error.lineno, "column": error.offset, "message": f"{type(error).__name__}: {error.msg}"}))
except (ValueError, MemoryError, RecursionError, OverflowError) as error:
    print(json.dumps({"line": None, "column": None, "message": f"{type(error).__name__}: {error}"}))
"#;
const BASH: &str = "cd asked && exec \"$BASH\" -n -- *\n";
const NODE: &str = r#"
const { spawnSync } = require("child_process");
const { readdirSync } = require("fs");
const asked = spawnSync(process.execPath, ["--check", "asked/" + readdirSync("asked")[0]]);
process.stderr.write(asked.stderr);
process.exitCode = asked.status;
"#;

/// What the language says is wrong with it, if anything. The error says why it could not be asked.
pub(super) async fn syntax(
    engine: &Engine,
    source: &SourceText,
) -> Result<Option<SyntaxFault>, String> {
    let grammar = Grammar::of_language(&source.language).ok_or("there is no grammar for it")?;
    let text = source.text.as_ref().map_err(Clone::clone)?;
    let (program, language) = match grammar {
        Grammar::Python => (PYTHON, "python"),
        Grammar::Bash => (BASH, "bash"),
        Grammar::Javascript => (NODE, "node"),
    };
    let mut request = RunRequest::code(language, program);
    let name = file_name(&source.source, grammar);
    request.files.insert(format!("{DIRECTORY}/{name}"), Data::from(text.as_bytes()));
    request.limits = LimitsRequest {
        wall_ms: Some(WALL_MS),
        output_bytes: Some(OUTPUT_BYTES),
        ..LimitsRequest::default()
    };
    // In a box: a run may ask for this, and this is a run.
    let outcome =
        Box::pin(engine.run_unscreened(request)).await.map_err(|error| error.to_string())?;
    let Verdict::Exited { code } = outcome.verdict else {
        return Err(format!("its parser did not end well ({})", outcome.verdict.kind()));
    };
    let said = match grammar {
        Grammar::Python => from_python(&outcome)?,
        Grammar::Bash => (code != 0).then(|| from_bash(&outcome)),
        Grammar::Javascript => (code != 0).then(|| from_node(&outcome)),
    };
    Ok(said.map(|said| SyntaxFault {
        language: grammar.name().to_owned(),
        source: excerpt::name(&source.source),
        line: said.line,
        column: said.column,
        message: excerpt::message(&said.message),
    }))
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
struct Said {
    line: Option<usize>,
    column: Option<usize>,
    message: String,
}

/// The text's own name where it is harmless: messages show it, and its end tells node what it is.
fn file_name(source: &str, grammar: Grammar) -> String {
    let name = source.rsplit('/').next().unwrap_or_default();
    let plain = |one: char| one.is_ascii_alphanumeric() || matches!(one, '.' | '_' | '-');
    let harmless = !name.starts_with(['.', '-']) && name.len() <= 64 && name.chars().all(plain);
    let (rest, end) = name.rsplit_once('.').unwrap_or((name, ""));
    let ends = match grammar {
        Grammar::Python => &["py"][..],
        Grammar::Bash => &["sh", "bash"],
        Grammar::Javascript => &["js", "mjs", "cjs"],
    };
    if harmless && !rest.is_empty() && ends.contains(&end) {
        name.to_owned()
    } else {
        format!("source.{}", ends[0])
    }
}

fn from_python(outcome: &Outcome) -> Result<Option<Said>, String> {
    let Some(line) = outcome.stdout.lines().next() else {
        return if outcome.ok() { Ok(None) } else { Err("its parser did not end well".to_owned()) };
    };
    serde_json::from_str(line).map(Some).map_err(|_| "its parser said nothing clear".to_owned())
}

/// `main.sh: line 3: syntax error near unexpected token `done'`.
fn from_bash(outcome: &Outcome) -> Said {
    let told = outcome.stderr.lines().find_map(|line| {
        let (_, rest) = line.split_once(": line ")?;
        let (number, message) = rest.split_once(": ")?;
        let (line, column) = (Some(number.parse().ok()?), None);
        let is_warning = message.starts_with("warning");
        (!is_warning).then(|| Said { line, column, message: message.to_owned() })
    });
    told.unwrap_or_else(|| first_line(outcome))
}

/// The path with the line, the line itself, carets below it, and `SyntaxError: …`.
fn from_node(outcome: &Outcome) -> Said {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let place = lines.iter().find_map(|line| {
        line.contains(DIRECTORY).then(|| line.rsplit_once(':')?.1.parse().ok()).flatten()
    });
    let carets = lines
        .iter()
        .find(|line| line.contains('^') && line.chars().all(|one| matches!(one, '^' | ' ' | '\t')));
    let message = lines.iter().find(|line| {
        line.split_once(": ")
            .is_some_and(|(kind, _)| kind.ends_with("Error") && !kind.contains(' '))
    });
    match message {
        Some(message) => Said {
            line: place,
            column: carets.and_then(|line| line.find('^')).map(|before| before + 1),
            message: (*message).to_owned(),
        },
        None => first_line(outcome),
    }
}

fn first_line(outcome: &Outcome) -> Said {
    let message = outcome.stderr.lines().next().unwrap_or("is refused").to_owned();
    Said { message, ..Said::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_be_taken_for_something_else_is_not_used() {
        for (name, grammar, used) in [
            ("dir/tool.mjs", Grammar::Javascript, "tool.mjs"),
            ("main.py", Grammar::Python, "main.py"),
            ("-n.sh", Grammar::Bash, "source.sh"),
            ("a b.py", Grammar::Python, "source.py"),
            ("../..", Grammar::Python, "source.py"),
            (".py", Grammar::Python, "source.py"),
            ("tool", Grammar::Bash, "source.sh"),
            ("\u{1b}.js", Grammar::Javascript, "source.js"),
        ] {
            assert_eq!(file_name(name, grammar), used);
        }
    }
}
