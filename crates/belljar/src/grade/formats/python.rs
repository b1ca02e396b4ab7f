//! A Python file of tests: its asserts and test functions become cases, the rest is what they need.

use super::super::case::Case;
use super::super::show::cut;
use super::Problem;

/// Characters of an assert in its name.
const MAX_NAME: usize = 80;

pub(super) fn read(text: &str) -> Problem {
    let (mut setup, mut cases) = (String::new(), Vec::new());
    for (line, statement) in statements(text) {
        let first = statement.trim_start();
        if first.starts_with("assert ") || first.starts_with("assert(") {
            let name =
                format!("line {line}: {}", cut(first.lines().next().unwrap_or(first), MAX_NAME));
            cases.push(Case::assertion(name, statement));
            continue;
        }
        if let Some(name) = test_function(first) {
            cases.push(Case::assertion(name, format!("{name}()\n")));
        }
        setup.push_str(&statement);
    }
    let assert_setup = (!setup.trim().is_empty()).then_some(setup);
    Problem { cases, assert_setup, ..Problem::default() }
}

/// The name of a function of tests without parameters.
fn test_function(statement: &str) -> Option<&str> {
    let name = statement.strip_prefix("def ")?.split_once("()")?.0;
    let plain = name.chars().all(|one| one.is_alphanumeric() || one == '_');
    (plain && name.starts_with("test")).then_some(name)
}

/// Statements at the outermost level with the number of their first line. A line goes on in the next when it
/// ends inside a bracket, a long string, or with a backslash; what is indented belongs to what is above.
fn statements(text: &str) -> Vec<(usize, String)> {
    let (mut all, mut state): (Vec<(usize, String)>, _) = (Vec::new(), State::default());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        let inside = state.goes_on() || line.starts_with([' ', '\t']) || blank;
        let decorated = all.last().is_some_and(|(_, one)| ends_with_decorator(one));
        let continues = ["else", "elif", "except", "finally"]
            .iter()
            .any(|word| line.strip_prefix(word).is_some_and(|rest| rest.starts_with([':', ' '])));
        state.read(line);
        match all.last_mut() {
            Some((_, statement)) if inside || decorated || continues => statement.push_str(line),
            _ => all.push((index + 1, line.to_owned())),
        }
    }
    all
}

fn ends_with_decorator(statement: &str) -> bool {
    statement.lines().next_back().is_some_and(|line| line.starts_with('@'))
}

/// What is open at the end of a line.
#[derive(Default)]
struct State {
    brackets: usize,
    /// The quotes that end a long string.
    long: Option<&'static str>,
    backslash: bool,
}

impl State {
    fn goes_on(&self) -> bool {
        self.brackets > 0 || self.long.is_some() || self.backslash
    }

    fn read(&mut self, line: &str) {
        let mut rest = line.trim_end_matches(['\n', '\r']);
        self.backslash = false;
        while let Some(one) = rest.chars().next() {
            if let Some(end) = self.long {
                match rest.find(end) {
                    Some(at) => (self.long, rest) = (None, &rest[at + end.len()..]),
                    None => return,
                }
                continue;
            }
            let after = &rest[one.len_utf8()..];
            rest = match one {
                '#' => return,
                '(' | '[' | '{' => {
                    self.brackets += 1;
                    after
                }
                ')' | ']' | '}' => {
                    self.brackets = self.brackets.saturating_sub(1);
                    after
                }
                '\\' if after.is_empty() => {
                    self.backslash = true;
                    after
                }
                '"' | '\'' => {
                    let long = if one == '"' { "\"\"\"" } else { "'''" };
                    match rest.strip_prefix(long) {
                        Some(inner) => {
                            self.long = Some(long);
                            inner
                        }
                        None => short_string(after, one),
                    }
                }
                _ => after,
            };
        }
    }
}

/// What follows a string on its line.
fn short_string(text: &str, quote: char) -> &str {
    let mut escaped = false;
    for (at, one) in text.char_indices() {
        match one {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if one == quote => return &text[at + one.len_utf8()..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asserts_and_test_functions_are_cases_and_the_rest_is_what_they_need() {
        let text = "import math\n\nassert f(1) == 2\nassert f(\n    '(',  # (\n) == 3, \"\"\"long\nassert x\n\"\"\"\n\
                    if True:\n    assert g()\nelse:\n    y = 1\ndef test_a():\n    assert f(2) == 4\n\
                    def test_b(fixture):\n    pass\n@cache\ndef helper():\n    return 1\nassert \\\n    f(3)\n";
        let problem = read(text);
        let sources: Vec<&str> =
            problem.cases.iter().map(|case| case.assertion.as_deref().unwrap()).collect();
        assert_eq!(sources.len(), 4, "{sources:?}");
        assert_eq!(sources[0], "assert f(1) == 2\n");
        assert!(sources[1].ends_with("assert x\n\"\"\"\n"), "{sources:?}");
        assert_eq!((sources[2], sources[3]), ("test_a()\n", "assert \\\n    f(3)\n"));
        assert_eq!(problem.cases[0].name, "line 3: assert f(1) == 2");
        let setup = problem.assert_setup.unwrap();
        assert!(setup.contains("import math") && setup.contains("else:\n    y = 1"), "{setup}");
        assert!(setup.contains("@cache\ndef helper()") && setup.contains("test_b"), "{setup}");
    }
}
