//! Sets of problems in the two forms that most of them have.

use serde::Deserialize;

use super::super::case::Case;
use super::super::value::keep_large_integers;
use super::{Problem, TaskId, each, lines};
use crate::model::error::SpecError;

/// As HumanEval is written. Other fields may stand beside these.
#[derive(Deserialize)]
struct HumanEval {
    task_id: TaskId,
    prompt: String,
    entry_point: String,
    #[serde(default)]
    canonical_solution: Option<String>,
    test: String,
}

/// As MBPP is written, in both of its editions.
#[derive(Deserialize)]
struct Mbpp {
    task_id: TaskId,
    #[serde(default, alias = "text")]
    prompt: String,
    #[serde(default)]
    code: Option<String>,
    test_list: Vec<String>,
    #[serde(default)]
    challenge_test_list: Vec<String>,
    #[serde(default)]
    test_setup_code: String,
    #[serde(default)]
    test_imports: Vec<String>,
}

pub(super) fn humaneval(text: &str) -> Result<Vec<Problem>, SpecError> {
    let all: Vec<HumanEval> = lines_or_list(text)?;
    Ok(all.into_iter().map(Problem::from).collect())
}

pub(super) fn mbpp(text: &str) -> Result<Vec<Problem>, SpecError> {
    let all: Vec<Mbpp> = lines_or_list(text)?;
    Ok(all.into_iter().map(Problem::from).collect())
}

fn lines_or_list<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>, SpecError> {
    if !text.trim_start().starts_with('[') {
        return lines(text);
    }
    let all = serde_json::from_str(&keep_large_integers(text));
    each("", all.map_err(|error| SpecError::new("", format!("is not JSON: {error}")))?)
}

impl From<HumanEval> for Problem {
    fn from(one: HumanEval) -> Self {
        let source = format!("{}\n\ncheck(candidate)\n", one.test);
        Self {
            cases: vec![Case::assertion("check", source)],
            // What stands before the function, for tests that use it: theirs, not the candidate's.
            assert_setup: Some(one.prompt.clone()),
            canonical: one.canonical_solution.map(|rest| format!("{}{rest}", one.prompt)),
            id: one.task_id.0,
            prompt: one.prompt,
            func_name: Some(one.entry_point),
            ..Self::default()
        }
    }
}

impl From<Mbpp> for Problem {
    fn from(one: Mbpp) -> Self {
        let cases = |name: &str, all: Vec<String>| {
            let numbered = all.into_iter().enumerate();
            numbered.map(|(at, test)| Case::assertion(format!("{name} {}", at + 1), test)).collect()
        };
        let setup = [one.test_imports.join("\n"), one.test_setup_code].join("\n");
        let func_name = one.code.as_deref().and_then(|code| tested(code, &one.test_list));
        Self {
            func_name,
            id: one.task_id.0,
            cases: cases("test", one.test_list),
            hidden: cases("challenge", one.challenge_test_list),
            assert_setup: (!setup.trim().is_empty()).then_some(setup),
            canonical: one.code,
            // It is a sentence for people; a completion is a program of its own.
            prompt: String::new(),
            ..Self::default()
        }
        .with_question(&one.prompt)
    }
}

/// The function of a solution that every test calls: a test does not say which one is tested if the name is one that
/// Python has as well.
fn tested(code: &str, tests: &[String]) -> Option<String> {
    let names = code.lines().filter_map(|line| Some(line.strip_prefix("def ")?.split_once('(')?.0));
    let called = |name: &&str| tests.iter().all(|test| test.contains(&format!("{name}(")));
    names.map(str::trim).rfind(called).map(ToOwned::to_owned)
}

impl Problem {
    fn with_question(mut self, question: &str) -> Self {
        self.prompt = question.lines().map(|line| format!("# {line}\n")).collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_is_tested_is_told_by_the_solution() {
        let code =
            "import math\ndef half(x):\n    return x / 2\ndef sum(a, b):\n    return half(a) + b\n";
        let tests = |one: &str, two: &str| [one.to_owned(), two.to_owned()];
        let both = tests("assert sum(1, 2) == 3", "assert abs(sum(1, 1) - 2) < 1");
        assert_eq!(tested(code, &both), Some("sum".to_owned()));
        assert_eq!(tested(code, &tests("assert sum(1, 2) == 3", "assert half(2) == 1")), None);
    }
}
