//! Our programs for the three languages: how each is started, and how it is asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use crate::model::error::SpecError;

/// What a context speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Bash,
    Node,
}

/// The whole text has a name of its own in tracebacks, by which it is left out of them.
const PYTHON_START: &str = "import sys; exec(compile(sys.argv[1], '<belljar>', 'exec'))";
/// Node cannot copy descriptors, so the shell does.
const NODE_START: &str = "exec node -e \"$0\" 7<&0 8>&1 9>&2 </dev/null";
const PYTHON: &str = include_str!("python.py");
const NODE: &str = include_str!("node.cjs");
const BASH: &str = include_str!("bash.sh");

/// One piece of code on its way.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub call: &'a str,
    pub number: u64,
    pub code: &'a str,
    pub env: &'a BTreeMap<String, String>,
}

impl Language {
    pub(crate) const ALL: [Self; 3] = [Self::Python, Self::Bash, Self::Node];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Node => "node",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self, SpecError> {
        match name {
            "python" | "python3" => Ok(Self::Python),
            "bash" => Ok(Self::Bash),
            "node" | "javascript" | "js" => Ok(Self::Node),
            other => {
                let reason = format!("must be python, bash or node, not {other:?}");
                Err(SpecError::new("language", reason))
            }
        }
    }

    pub(super) fn command(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Python => &["python3", "-c", PYTHON_START, PYTHON],
            // The shell reads its script from its input as it comes, so there is no loop of ours that code could break. It
            // must not be opened by a name: in a sandbox the pipe belongs to somebody else.
            Self::Bash => &["bash", "-s"],
            Self::Node => &["sh", "-c", NODE_START, NODE],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// What is said first.
    pub(super) fn greeting(self, nonce: &str) -> Vec<u8> {
        match self {
            Self::Bash => BASH.replacen("NONCE", nonce, 1).into_bytes(),
            Self::Python | Self::Node => format!("{}\n", json!({ "nonce": nonce })).into_bytes(),
        }
    }

    pub(super) fn request(self, order: &Order<'_>) -> Vec<u8> {
        if self == Self::Bash {
            return bash_lines(order).into_bytes();
        }
        let line = json!({
            "call": order.call, "number": order.number, "code": order.code, "env": order.env
        });
        format!("{line}\n").into_bytes()
    }
}

/// The lines of one call. Names of variables were checked; everything else is quoted.
fn bash_lines(order: &Order<'_>) -> String {
    let mut lines = format!("trap - DEBUG; set +T; __bj_begin {}\n", order.call);
    let mut after = String::new();
    for (index, (name, value)) in order.env.iter().enumerate() {
        let value = bash_quoted(value);
        // Writing to a String cannot fail.
        writeln!(lines, "__bj_old{index}=$(declare -p {name} 2>/dev/null); export {name}={value}")
            .ok();
        write!(after, "unset {name}; eval \"$__bj_old{index}\"; unset __bj_old{index}; ").ok();
    }
    writeln!(lines, "__bj_code={}", bash_quoted(order.code)).ok();
    // Sourced, so that an interrupt can return from it, and not in a function, where `declare` is local.
    // With another input the shell moves away the one that it reads from, and no code finds it.
    lines.push_str(". /dev/fd/249 249<<<'eval -- \"$__bj_code\"' </dev/null\n");
    writeln!(lines, "__bj_status=$?; trap - DEBUG; set +T; {after}__bj_end \"$__bj_status\"").ok();
    lines
}

/// As one word on one line.
fn bash_quoted(text: &str) -> String {
    let mut quoted = String::from("$'");
    for letter in text.chars() {
        match letter {
            '\\' => quoted.push_str("\\\\"),
            '\'' => quoted.push_str("\\'"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_named_and_others_refused() {
        for language in Language::ALL {
            assert_eq!(Language::parse(language.name()), Ok(language));
        }
        assert_eq!(Language::parse("js"), Ok(Language::Node));
        assert_eq!(Language::parse("ruby").unwrap_err().field, "language");
    }

    #[test]
    fn no_quoted_text_leaves_its_word_or_its_line() {
        assert_eq!(bash_quoted("a'b\\c\nd\r$(e)`f`"), r"$'a\'b\\c\nd\r$(e)`f`'");
    }
}
