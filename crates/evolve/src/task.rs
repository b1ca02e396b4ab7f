//! What is to be evolved: as it is written down, and as it is kept, whole and checked.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use belljar::grade::{Case, GradeRequest, formats};
use belljar::secrets::SecretSources;
use belljar::{Level, LimitsRequest, MAX_CODE_BYTES, ScreenMode, SpecError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proposer::ProposerSpec;
use crate::regions::Regions;
use crate::strategy::StrategySpec;

/// The longest task file; cases of that size go to a file of their own.
const MAX_TASK_BYTES: u64 = 16 << 20;
const MAX_PROMPT_CHARS: usize = 100_000;
const MAX_ITERATIONS: u32 = 100_000;
const MAX_CANDIDATES: u32 = 64;
/// Characters of feedback that go into one prompt.
const FEEDBACK_CHARS: usize = 2000;

/// A task as it is written: in TOML, or as JSON over HTTP.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TaskFile {
    pub name: Option<String>,
    /// What the program is to do, in words for whoever proposes.
    pub prompt: String,
    pub language: Option<String>,
    /// The function that the cases call.
    #[serde(alias = "func_name")]
    pub func: Option<String>,
    /// Code that runs before the candidate, in its module.
    pub setup_code: Option<String>,
    pub cases: Vec<Case>,
    pub cases_file: Option<PathBuf>,
    pub hidden: Vec<Case>,
    pub hidden_file: Option<PathBuf>,
    /// The seed program: where evolution begins, and what says which regions are protected.
    pub program: Option<String>,
    pub program_file: Option<PathBuf>,
    pub max_iterations: Option<u32>,
    pub target_score: Option<f64>,
    /// Proposals in each iteration, made and graded side by side.
    pub candidates: Option<u32>,
    /// Every choice that we make follows from it.
    pub seed: u64,
    pub answers: AnswerForm,
    /// Whether candidates are read before they are run, and what is done with what is found.
    pub screen: ScreenMode,
    pub level: Level,
    pub limits: LimitsRequest,
    pub feedback_chars: Option<usize>,
    pub budget: Budget,
    pub strategy: StrategySpec,
    pub cascade: Cascade,
    pub proposer: Option<ProposerSpec>,
    /// Where secrets that the proposer names are to be found.
    pub secrets: SecretSources,
}

/// The form in which a proposer may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerForm {
    /// Whichever it likes.
    #[default]
    Any,
    /// The whole program.
    Rewrite,
    /// Search/replace blocks against the parent.
    Edit,
}

/// What may be used up by the whole evolution, resumed ones counted together. Left out is unbounded, but
/// for `max_iterations`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Sandboxes.
    pub executions: Option<u64>,
    pub seconds: Option<f64>,
    /// Tokens of prompts and answers.
    pub tokens: Option<u64>,
    /// In the currency of the proposer's prices.
    pub money: Option<f64>,
}

/// How a candidate is graded: cheap questions first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cascade {
    /// Public cases that are asked first, alone. A candidate that passes none of them is not asked further.
    pub smoke: usize,
    /// The least share of the public weight with which the hidden cases are asked.
    pub hidden_from: f64,
    /// Measure the CPU time of candidates that are as good as the best, to tell the faster one.
    pub timing: bool,
}

impl Default for Cascade {
    fn default() -> Self {
        Self { smoke: 1, hidden_from: 0.0, timing: false }
    }
}

/// A task that is whole: nothing in it names a file, and every number is there. This is what is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    pub name: String,
    pub prompt: String,
    pub language: String,
    pub func: Option<String>,
    pub setup_code: Option<String>,
    pub assert_setup: Option<String>,
    pub cases: Vec<Case>,
    pub hidden: Vec<Case>,
    pub program: Option<String>,
    pub max_iterations: u32,
    pub target_score: f64,
    pub candidates: u32,
    pub seed: u64,
    pub answers: AnswerForm,
    pub screen: ScreenMode,
    pub level: Level,
    pub limits: LimitsRequest,
    pub feedback_chars: usize,
    pub budget: Budget,
    pub strategy: StrategySpec,
    pub cascade: Cascade,
    pub proposer: ProposerSpec,
}

fn wrong<T>(field: &str, reason: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError::new(field, reason))
}

impl Task {
    /// Reads a task file; paths in it are meant from where it lies.
    pub fn load(path: &Path) -> Result<Self, SpecError> {
        let told = |why: &dyn Display| SpecError::new("TASK", format!("{}: {why}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| told(&error))?.len();
        if size > MAX_TASK_BYTES {
            return Err(told(&format!("is longer than {MAX_TASK_BYTES} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| told(&error))?;
        let file: TaskFile =
            toml::from_str(&text).map_err(|error| told(&error.to_string().trim_end()))?;
        let above = path.parent().filter(|one| !one.as_os_str().is_empty());
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let mut task = Self::of_file(file, above.unwrap_or(Path::new(".")))?;
        if task.name.is_empty() {
            task.name = name.unwrap_or_default();
        }
        Ok(task)
    }

    /// Makes a task whole that was written by somebody who may read this host's files.
    pub fn of_file(mut file: TaskFile, base: &Path) -> Result<Self, SpecError> {
        let cases = read_cases(base, file.cases_file.take(), "cases_file")?;
        let hidden = read_cases(base, file.hidden_file.take(), "hidden_file")?;
        if let Some(path) = file.program_file.take() {
            if file.program.is_some() {
                return wrong("program_file", "stands beside program: leave one of the two out");
            }
            file.program = Some(read_text(&base.join(path), "program_file")?);
        }
        if let Some(proposer) = &mut file.proposer {
            proposer.read_files(base, &file.secrets)?;
        }
        Self::whole(file, cases, hidden)
    }

    /// Makes a task whole that came from elsewhere: it may name no file.
    pub fn of_request(file: TaskFile) -> Result<Self, SpecError> {
        let named = [
            ("cases_file", file.cases_file.is_some()),
            ("hidden_file", file.hidden_file.is_some()),
            ("program_file", file.program_file.is_some()),
            ("secrets", !file.secrets.is_empty()),
        ];
        if let Some((field, _)) = named.into_iter().find(|(_, given)| *given) {
            return wrong(
                field,
                "names a file or a secret of the host, which a request may not: give what is no secret inline",
            );
        }
        Self::whole(file, None, None)
    }

    fn whole(
        mut file: TaskFile,
        public: Option<formats::Problem>,
        hidden: Option<formats::Problem>,
    ) -> Result<Self, SpecError> {
        let mut problem = public.unwrap_or_default();
        hidden.into_iter().for_each(|more| problem.hide(more));
        file.func = file.func.or(problem.func_name);
        file.setup_code = file.setup_code.or(problem.setup_code);
        file.cases.extend(problem.cases);
        file.hidden.extend(problem.hidden);
        // A case that says itself that it is hidden is none that is shown.
        let (hidden, cases) = file.cases.into_iter().partition(|case| case.hidden);
        let hidden: Vec<Case> = hidden;
        let Some(proposer) = file.proposer else {
            return wrong(
                "proposer",
                "is missing: say who proposes, as in [proposer] kind = \"command\"",
            );
        };
        let task = Self {
            name: file.name.unwrap_or_default(),
            prompt: file.prompt,
            language: file.language.unwrap_or_else(|| "python".to_owned()),
            func: file.func,
            setup_code: file.setup_code,
            assert_setup: problem.assert_setup,
            cases: named(cases, "case"),
            hidden: named(hidden.into_iter().chain(file.hidden).collect(), "hidden"),
            program: file.program,
            max_iterations: file.max_iterations.unwrap_or(5),
            target_score: file.target_score.unwrap_or(1.0),
            candidates: file.candidates.unwrap_or(1),
            seed: file.seed,
            answers: file.answers,
            screen: file.screen,
            level: file.level,
            limits: file.limits,
            feedback_chars: file.feedback_chars.unwrap_or(FEEDBACK_CHARS),
            budget: file.budget,
            strategy: file.strategy,
            cascade: file.cascade,
            proposer,
        };
        task.check()?;
        Ok(task)
    }

    /// Says what is wrong with it; the engine has its own word on cases, language and limits.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.prompt.trim().is_empty() {
            return wrong("prompt", "is missing: say what the program is to do");
        }
        if self.prompt.chars().count() > MAX_PROMPT_CHARS {
            return wrong("prompt", format!("is longer than {MAX_PROMPT_CHARS} characters"));
        }
        if self.cases.is_empty() {
            return wrong(
                "cases",
                "are none: give [[cases]] or cases_file; hidden ones alone would leave nothing to learn from",
            );
        }
        if !(1..=MAX_ITERATIONS).contains(&self.max_iterations) {
            return wrong("max_iterations", format!("must be between 1 and {MAX_ITERATIONS}"));
        }
        if !(1..=MAX_CANDIDATES).contains(&self.candidates) {
            return wrong("candidates", format!("must be between 1 and {MAX_CANDIDATES}"));
        }
        share("target_score", self.target_score)?;
        share("cascade.hidden_from", self.cascade.hidden_from)?;
        if self.cascade.smoke > self.cases.len() {
            let reason = format!("is more than the {} public cases", self.cases.len());
            return wrong("cascade.smoke", reason);
        }
        self.check_budget()?;
        self.strategy.check()?;
        self.proposer.check()?;
        match &self.program {
            Some(code) if code.trim().is_empty() => wrong("program", "is empty: leave it out"),
            Some(code) if code.len() > MAX_CODE_BYTES => {
                wrong("program", format!("is longer than {MAX_CODE_BYTES} bytes"))
            }
            Some(code) => Regions::of(code).map(drop).map_err(|why| SpecError::new("program", why)),
            None if self.answers == AnswerForm::Edit => wrong(
                "answers",
                "is \"edit\", which needs a program to edit: give program or program_file",
            ),
            None => Ok(()),
        }
    }

    fn check_budget(&self) -> Result<(), SpecError> {
        let Budget { executions, seconds, tokens, money } = self.budget;
        for (field, zero) in [
            ("budget.executions", executions == Some(0)),
            ("budget.tokens", tokens == Some(0)),
            ("budget.seconds", seconds.is_some_and(|one| !one.is_finite() || one <= 0.0)),
            ("budget.money", money.is_some_and(|one| !one.is_finite() || one <= 0.0)),
        ] {
            if zero {
                return wrong(field, "must be more than 0; leave it out for no bound");
            }
        }
        if money.is_some() && !self.proposer.has_price() {
            return wrong("budget.money", "needs prices to count by: give proposer.price");
        }
        Ok(())
    }

    /// A request to grade this candidate; cases are for the caller to choose.
    pub(crate) fn request(&self, code: &str) -> GradeRequest {
        GradeRequest {
            code: code.to_owned(),
            language: Some(self.language.clone()),
            func_name: self.func.clone(),
            setup_code: self.setup_code.clone(),
            assert_setup: self.assert_setup.clone(),
            level: self.level,
            limits: self.limits.clone(),
            feedback_chars: Some(self.feedback_chars),
            labels: BTreeMap::from([("evolution".to_owned(), self.name.clone())]),
            ..GradeRequest::default()
        }
    }
}

fn share(field: &str, value: f64) -> Result<(), SpecError> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    wrong(field, format!("is {value}; it must be between 0 and 1"))
}

/// Every case gets a name that says which it is, however it is grouped with others later.
fn named(cases: Vec<Case>, word: &str) -> Vec<Case> {
    let name = |(index, case): (usize, Case)| {
        if case.name.is_empty() {
            Case { name: format!("{word} {}", index + 1), ..case }
        } else {
            case
        }
    };
    cases.into_iter().enumerate().map(name).collect()
}

fn read_cases(
    base: &Path,
    path: Option<PathBuf>,
    field: &str,
) -> Result<Option<formats::Problem>, SpecError> {
    let Some(path) = path else { return Ok(None) };
    let problems = formats::read(&base.join(path), None)
        .map_err(|error| SpecError::new(field, error.reason))?;
    match <[_; 1]>::try_from(problems) {
        Ok([one]) => Ok(Some(one)),
        Err(all) => wrong(field, format!("holds {} problems; a task is one", all.len())),
    }
}

/// Reads a file that a task names, bounded.
pub(crate) fn read_text(path: &Path, field: &str) -> Result<String, SpecError> {
    let told = |why: &dyn Display| SpecError::new(field, format!("{}: {why}", path.display()));
    let status = std::fs::metadata(path).map_err(|error| told(&error))?;
    if !status.is_file() {
        return Err(told(&"is not a file"));
    }
    if status.len() > MAX_TASK_BYTES {
        return Err(told(&format!("is longer than {MAX_TASK_BYTES} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| told(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "prompt = \"add\"\nfunc = \"add\"\n[[cases]]\ninput_args = [1, 2]\nexpected_output = 3\n[proposer]\nkind = \"command\"\ncommand = [\"true\"]\n";

    fn read(text: &str) -> Result<Task, String> {
        let file: TaskFile = toml::from_str(text).map_err(|error| error.to_string())?;
        Task::of_file(file, Path::new("/nowhere")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let task = read(PLAIN).unwrap();
        assert_eq!((task.max_iterations, task.target_score, task.candidates), (5, 1.0, 1));
        assert_eq!((task.language.as_str(), task.cases[0].name.as_str()), ("python", "case 1"));
    }

    #[test]
    fn a_stored_task_is_read_back_as_it_was() {
        let task = read(PLAIN).unwrap();
        let json = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&json).unwrap(), task);
    }

    #[test]
    fn a_mistake_names_its_field_and_the_fix() {
        let with = |line: &str| format!("{line}\n{PLAIN}");
        let after = |lines: &str| format!("{PLAIN}{lines}");
        for (text, words) in [
            (with("max_iterations = 0"), ["max_iterations", "between 1 and"]),
            (with("candidates = 65"), ["candidates", "64"]),
            (with("target_score = 1.5"), ["target_score", "between 0 and 1"]),
            (with("colour = 1"), ["colour", "unknown field"]),
            (with("answers = \"edit\""), ["answers", "program_file"]),
            (with("program = \" \""), ["program", "leave it out"]),
            (with("cases_file = \"none.json\""), ["cases_file", "none.json"]),
            (with("program = \"x\"\nprogram_file = \"y\""), ["program_file", "leave one"]),
            (with("program = \"# EVOLVE-BLOCK-START\""), ["program", "EVOLVE-BLOCK-END"]),
            (after("[cascade]\nsmoke = 9"), ["cascade.smoke", "1 public"]),
            (after("[budget]\nmoney = 1.0"), ["budget.money", "proposer.price"]),
            (after("[budget]\nexecutions = 0"), ["budget.executions", "more than 0"]),
            (after("[strategy]\nkind = \"luck\""), ["luck", "hill_climb"]),
            (PLAIN.replace("prompt = \"add\"", ""), ["prompt", "missing"]),
            (PLAIN.replace("kind = \"command\"", "kind = \"oracle\""), ["oracle", "anthropic"]),
            (PLAIN.replace("[\"true\"]", "[]"), ["proposer.command", "program"]),
        ] {
            let error = read(&text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_request_names_no_file() {
        let file: TaskFile =
            toml::from_str(&format!("program_file = \"/etc/passwd\"\n{PLAIN}")).unwrap();
        let error = Task::of_request(file).unwrap_err().to_string();
        assert!(error.contains("program_file") && error.contains("inline"), "{error}");
    }
}
