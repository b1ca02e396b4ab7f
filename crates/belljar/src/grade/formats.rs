//! Files of cases: our own forms, and those that others have made common.

mod folder;
mod python;
mod sets;

use std::path::Path;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::case::{Case, Kind};
use super::value::keep_large_integers;
use super::{Grade, GradeRequest};
use crate::model::error::SpecError;

/// The longest file of cases.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// How a file of cases is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A list of cases, or an object with `cases` and what belongs to them.
    Json,
    /// One case a line.
    Jsonl,
    /// The same object as in JSON.
    Toml,
    /// Python: asserts, functions whose names begin with `test`, and what they need.
    Asserts,
    /// Problems with `prompt`, `test` and `entry_point`, one a line.
    Humaneval,
    /// Problems with `test_list`, one a line or in a list.
    Mbpp,
    /// A directory with `N.in` and `N.out`.
    Folder,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Ok(match word {
            "json" => Self::Json,
            "jsonl" => Self::Jsonl,
            "toml" => Self::Toml,
            "asserts" => Self::Asserts,
            "humaneval" => Self::Humaneval,
            "mbpp" => Self::Mbpp,
            "folder" => Self::Folder,
            _ => {
                return Err(
                    "is none of json, jsonl, toml, asserts, humaneval, mbpp, folder".to_owned()
                );
            }
        })
    }
}

/// Cases that belong together, with what there is to know of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Problem {
    /// Its name in a set of problems; empty for a file that is one problem.
    pub id: String,
    /// What a completion continues.
    pub prompt: String,
    /// The solution that comes with the set.
    pub canonical: Option<String>,
    pub func_name: Option<String>,
    pub setup_code: Option<String>,
    pub assert_setup: Option<String>,
    pub cases: Vec<Case>,
    pub hidden: Vec<Case>,
}

impl Problem {
    /// A request to grade this candidate by it.
    pub fn request(&self, code: impl Into<String>) -> GradeRequest {
        GradeRequest {
            code: code.into(),
            func_name: self.func_name.clone(),
            setup_code: self.setup_code.clone(),
            assert_setup: self.assert_setup.clone(),
            cases: self.cases.clone(),
            hidden: self.hidden.clone(),
            ..GradeRequest::default()
        }
    }

    /// Takes in the cases of another as hidden ones, with what belongs to them.
    pub fn hide(&mut self, more: Self) {
        let Self { func_name, setup_code, assert_setup, cases, hidden, .. } = more;
        let is_call = |case: &Case| case.kind() == Kind::Call;
        let named = |mut case: Case| {
            if is_call(&case) && case.func_name.is_none() {
                case.func_name.clone_from(&func_name);
            }
            case
        };
        self.hidden.extend(cases.into_iter().chain(hidden).map(named));
        // An assert knows it by the request's.
        if self.func_name.is_none() && !self.cases.iter().any(is_call) {
            self.func_name = func_name;
        }
        add(&mut self.setup_code, setup_code);
        add(&mut self.assert_setup, assert_setup);
    }

    /// A completion as a candidate: what repeats the function stands for itself.
    pub fn complete(&self, completion: &str) -> String {
        let own = self.func_name.as_ref().is_some_and(|name| {
            let head = format!("def {name}(");
            completion.lines().any(|line| line.starts_with(&head))
        });
        if own { completion.to_owned() } else { format!("{}{completion}", self.prompt) }
    }
}

/// Puts a text behind another, unless it is the same.
fn add(to: &mut Option<String>, more: Option<String>) {
    *to = match (to.take(), more) {
        (Some(one), Some(two)) if one != two => Some(format!("{one}\n{two}")),
        (one, two) => one.or(two),
    };
}

/// A completion of one problem of a set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Sample {
    pub task_id: TaskId,
    #[serde(alias = "solution", alias = "code")]
    pub completion: String,
}

/// A name, or a number, which is as good.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "TaskIdForm")]
pub struct TaskId(pub String);

#[derive(Deserialize)]
#[serde(untagged)]
enum TaskIdForm {
    Number(i64),
    Name(String),
}

impl From<TaskIdForm> for TaskId {
    fn from(form: TaskIdForm) -> Self {
        match form {
            TaskIdForm::Number(number) => Self(number.to_string()),
            TaskIdForm::Name(name) => Self(name),
        }
    }
}

/// Reads a file of cases, in a form that is told or found out.
pub fn read(path: &Path, format: Option<Format>) -> Result<Vec<Problem>, SpecError> {
    let is_directory = std::fs::metadata(path).map_err(|error| wrong(path, error))?.is_dir();
    match format {
        Some(Format::Folder) | None if is_directory => folder::read(path).map(|one| vec![one]),
        Some(Format::Folder) => Err(wrong(path, "is no directory with N.in and N.out")),
        _ => {
            let text = read_text(path)?;
            let format = format.unwrap_or_else(|| detect(path, &text));
            parse(&text, format).map_err(|error| {
                let place = if error.field.is_empty() { String::new() } else { error.field + " " };
                wrong(path, format!("{place}{}", error.reason))
            })
        }
    }
}

/// Reads completions, one a line.
pub fn read_samples(path: &Path) -> Result<Vec<Sample>, SpecError> {
    let text = read_text(path)?;
    lines(&text).map_err(|error| {
        let reason = format!("{}: {} {}", path.display(), error.field, error.reason);
        SpecError::new("FILE", reason)
    })
}

fn wrong(path: &Path, why: impl std::fmt::Display) -> SpecError {
    SpecError::new("cases", format!("{}: {why}", path.display()))
}

fn read_text(path: &Path) -> Result<String, SpecError> {
    let status = std::fs::metadata(path).map_err(|error| wrong(path, error))?;
    if status.len() > MAX_FILE_BYTES {
        return Err(wrong(path, format!("is longer than {MAX_FILE_BYTES} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| wrong(path, error))
}

/// The form of a file, by its name and then by what it holds.
fn detect(path: &Path, text: &str) -> Format {
    let extension = path.extension().and_then(|one| one.to_str()).unwrap_or_default();
    let one_a_line = match extension {
        "toml" => return Format::Toml,
        "py" => return Format::Asserts,
        "jsonl" | "ndjson" => true,
        "json" => false,
        _ => !text.trim_start().starts_with('['),
    };
    let head: String = text.chars().take(1 << 16).collect();
    let holds = |name: &str| head.contains(&format!("\"{name}\""));
    match one_a_line {
        _ if holds("entry_point") && holds("test") => Format::Humaneval,
        _ if holds("test_list") => Format::Mbpp,
        true => Format::Jsonl,
        false => Format::Json,
    }
}

/// Reads the text of a file of cases.
pub fn parse(text: &str, format: Format) -> Result<Vec<Problem>, SpecError> {
    let problems = match format {
        Format::Json => vec![json(text)?],
        Format::Jsonl => vec![Problem { cases: lines(text)?, ..Problem::default() }],
        Format::Toml => {
            let read = toml::from_str(text);
            vec![read.map_err(|error| SpecError::new("", error.to_string().trim_end().to_owned()))?]
        }
        Format::Asserts => vec![python::read(text)],
        Format::Humaneval => sets::humaneval(text)?,
        Format::Mbpp => sets::mbpp(text)?,
        Format::Folder => return Err(SpecError::new("", "a folder is read from its directory")),
    };
    if problems.iter().all(|one| one.cases.is_empty() && one.hidden.is_empty()) {
        return Err(SpecError::new("", "holds no case"));
    }
    Ok(problems)
}

fn json(text: &str) -> Result<Problem, SpecError> {
    let not_json = |error: serde_json::Error| SpecError::new("", format!("is not JSON: {error}"));
    let whole: serde_json::Value =
        serde_json::from_str(&keep_large_integers(text)).map_err(not_json)?;
    if let serde_json::Value::Array(all) = whole {
        return Ok(Problem { cases: each("cases", all)?, ..Problem::default() });
    }
    serde_json::from_value(whole).map_err(|error| {
        let reason = format!("{error}: it must be a list of cases, or an object with cases");
        SpecError::new("", reason)
    })
}

fn each<T: DeserializeOwned>(
    field: &str,
    all: Vec<serde_json::Value>,
) -> Result<Vec<T>, SpecError> {
    let read = |(index, one)| {
        serde_json::from_value(one)
            .map_err(|error| SpecError::new(format!("{field}[{index}]:"), error.to_string()))
    };
    all.into_iter().enumerate().map(read).collect()
}

/// One object a line; empty lines are passed over.
fn lines<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, SpecError> {
    let filled = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    filled
        .map(|(index, line)| {
            serde_json::from_str(&keep_large_integers(line))
                .map_err(|error| SpecError::new(format!("line {}:", index + 1), error.to_string()))
        })
        .collect()
}

/// Reads a request to grade, as it comes over HTTP, without losing a digit.
pub fn read_request(json: &str) -> Result<GradeRequest, SpecError> {
    serde_json::from_str(&keep_large_integers(json))
        .map_err(|error| SpecError::new("body", format!("cannot be read: {error}")))
}

/// What came of a set of problems.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Graded {
    pub task_id: String,
    #[serde(flatten)]
    pub grade: Grade,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grade::Value;

    fn cases(text: &str, format: Format) -> Vec<Case> {
        parse(text, format).unwrap().remove(0).cases
    }

    #[test]
    fn the_same_case_in_every_form_of_ours() {
        let json = r#"[{"name": "a", "input_args": [1, {"$tuple": [2]}], "expected_output": 3, "weight": 2}]"#;
        let line = json.trim_matches(['[', ']']).to_owned() + "\n\n";
        let line = format!("{{{}", line.trim_start_matches('{'));
        let toml = "[[cases]]\nname = \"a\"\ninput_args = [1, {\"$tuple\" = [2]}]\nexpected_output = 3\nweight = 2.0\n";
        let expected = cases(json, Format::Json);
        assert_eq!(expected[0].input_args[1], Value::Tuple(vec![2.into()]));
        assert_eq!(cases(&line, Format::Jsonl), expected);
        assert_eq!(cases(toml, Format::Toml), expected);
        assert_eq!(
            cases(&format!("{{\"func_name\": \"f\", \"cases\": {json}}}"), Format::Json),
            expected
        );
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (text, format, words) in [
            ("[{\"name\": 1}]", Format::Json, ["cases[0]", "string"]),
            ("[{\"nam\": \"x\"}]", Format::Json, ["cases[0]", "nam"]),
            ("{\"expected_output\": 1}\n{\"x\": 1}\n", Format::Jsonl, ["line 2", "`x`"]),
            ("[[cases]]\ncolour = 1\n", Format::Toml, ["colour", "line 2"]),
            ("[1", Format::Json, ["not JSON", "column"]),
            ("[]", Format::Json, ["no case", ""]),
            ("3", Format::Json, ["list of cases", ""]),
        ] {
            let error = parse(text, format).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    #[test]
    fn long_numbers_keep_their_digits() {
        let long = "[{\"input_args\": [123456789012345678901234567890], \"expected_output\": -98765432109876543210}]";
        let case = &cases(long, Format::Json)[0];
        assert_eq!(
            case.input_args[0],
            Value::Int("123456789012345678901234567890".parse().unwrap())
        );
        assert_eq!(
            case.expected_output,
            Some(Value::Int("-98765432109876543210".parse().unwrap()))
        );
    }

    #[test]
    fn the_form_is_found_out() {
        let of = |name: &str, text: &str| detect(Path::new(name), text);
        assert_eq!(of("a.json", "[{\"name\": \"x\"}]"), Format::Json);
        assert_eq!(of("a.jsonl", "{\"name\": \"x\"}"), Format::Jsonl);
        assert_eq!(of("a.toml", ""), Format::Toml);
        assert_eq!(of("a.py", ""), Format::Asserts);
        assert_eq!(of("a.jsonl", "{\"entry_point\": \"f\", \"test\": \"\"}"), Format::Humaneval);
        assert_eq!(of("a.json", "[{\"test_list\": []}]"), Format::Mbpp);
        assert_eq!(of("cases", "[]"), Format::Json);
    }
}
