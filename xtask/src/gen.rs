//! Documents that are written by a program, so that they cannot drift from it: the references of the command line
//! and of HTTP.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::suites;

const CLI_REFERENCE: &str = "docs/reference/cli.md";
const HTTP_REFERENCE: &str = "docs/reference/openapi.json";
const HEADER: &str = "# The `belljar` command\n\n\
    <!-- Written by `cargo xtask gen` from the program's own help. Change it there. -->\n";
/// Subcommands of subcommands of subcommands are a mistake, and a loop in the help must end somewhere.
const DEPTH: usize = 3;

/// `cargo xtask gen`.
pub(crate) fn write() -> Result<()> {
    for (name, text) in documents()? {
        let path = shell::repo_root().join(name);
        let directory = path.parent().context("a file without a directory")?;
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        shell::say(format!("wrote {name}"));
    }
    Ok(())
}

/// Whether the files are what `write` would write.
pub(crate) fn check() -> Result<()> {
    for (name, wanted) in documents()? {
        let found = fs::read_to_string(shell::repo_root().join(name))
            .with_context(|| format!("cannot read {name}. hint: cargo xtask gen"))?;
        if let Some((line, wanted, found)) = first_difference(&wanted, &found) {
            bail!(
                "{name} is out of date at line {line}: the program says {wanted:?}, the file {found:?}. \
                 hint: cargo xtask gen"
            );
        }
    }
    Ok(())
}

/// Each file, and what the program says that is in it.
fn documents() -> Result<[(&'static str, String); 2]> {
    let belljar = suites::build_belljar()?;
    Ok([(CLI_REFERENCE, cli_reference(&belljar)?), (HTTP_REFERENCE, http_reference(&belljar)?)])
}

fn http_reference(belljar: &Path) -> Result<String> {
    let printed = shell::output(shell::command(belljar).args(["serve", "--print-openapi"]))?;
    let document: serde_json::Value =
        serde_json::from_str(&printed).context("the program printed no JSON")?;
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn cli_reference(belljar: &Path) -> Result<String> {
    let mut text = HEADER.to_owned();
    section(belljar, &[], &mut text)?;
    Ok(text)
}

/// Writes the help of one command, then of those below it.
fn section(belljar: &Path, words: &[&str], text: &mut String) -> Result<()> {
    let mut command = shell::command(belljar);
    // Only these: the width of the reader's terminal must not decide what is in the file.
    command.args(words).arg("--help").env_clear().env("NO_COLOR", "1").env("COLUMNS", "100");
    let help = shell::output(&mut command)?;
    let name = ["belljar"].iter().chain(words).copied().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n"))?;
    if words.len() < DEPTH {
        for below in subcommands(&help) {
            section(belljar, &[words, &[below]].concat(), text)?;
        }
    }
    Ok(())
}

/// clap lists them under `Commands:`, two spaces in, up to an empty line. A longer text is indented further.
fn subcommands(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

fn first_difference<'a>(wanted: &'a str, found: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let lines = wanted.lines().count().max(found.lines().count());
    let line = |text: &'a str, number| text.lines().nth(number).unwrap_or("(nothing)");
    (0..lines)
        .map(|number| (number + 1, line(wanted, number), line(found, number)))
        .find(|(_, wanted, found)| wanted != found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_are_read_from_the_help() {
        let help = "Runs code\n\nUsage: belljar <COMMAND>\n\nCommands:\n  run     Run a program\n          \
                    in a box\n  doctor  Look\n  help    Print this\n\nOptions:\n  -h, --help  Print help\n";
        assert_eq!(subcommands(help), ["run", "doctor"]);
        assert!(subcommands("Usage: belljar run [FILE]\n\nOptions:\n  -q\n").is_empty());
    }

    #[test]
    fn the_first_stale_line_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some((2, "b", "c")));
        assert_eq!(first_difference("a\nb\n", "a\n"), Some((2, "b", "(nothing)")));
    }
}
