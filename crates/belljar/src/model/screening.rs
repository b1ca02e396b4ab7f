//! What reading a program before its run found. Advice: nothing here keeps anything in or out.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event::Severity;

/// What every screening says of itself.
pub(crate) const NOTE: &str =
    "advice from reading the code; the sandbox is the wall, whatever this says";

/// What is done with the findings.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ScreenMode {
    /// The code is not read.
    Off,
    /// It is read beside the start, and what is found stands in the Outcome.
    #[default]
    Advise,
    /// It is read first, and nothing is run if a finding is grave enough.
    Refuse,
}

impl FromStr for ScreenMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "off" => Ok(Self::Off),
            "advise" => Ok(Self::Advise),
            "refuse" => Ok(Self::Refuse),
            _ => Err("is none of off, advise, refuse".to_owned()),
        }
    }
}

/// One place in the code that a rule speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub rule: String,
    pub severity: Severity,
    /// What was found there, by its full name: `os.system`, however the code spells it.
    pub name: String,
    /// Why this is worth a look.
    pub reason: String,
    /// What to do instead, or what keeps it harmless.
    pub advice: String,
    pub language: String,
    /// Which text: `code`, a path inside the sandbox, or `command`.
    pub source: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line, cut to a bound, with what a terminal would obey escaped.
    pub excerpt: String,
}

/// Where the language itself says that the code cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyntaxFault {
    pub language: String,
    pub source: String,
    pub line: Option<usize>,
    pub column: Option<usize>,
    /// In the language's own words.
    pub message: String,
}

/// All that one screening says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Screening {
    /// Gravest first, then by place.
    pub findings: Vec<Finding>,
    /// Findings beyond the bound.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub left_out: usize,
    /// What the language's own parser refuses; looked for by `belljar screen`, and before a refusal.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub syntax_errors: Vec<SyntaxFault>,
    /// Why the language itself could not be asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub syntax_unchecked: Option<String>,
    /// That this is advice, and what is not.
    pub note: String,
}

impl Default for Screening {
    fn default() -> Self {
        Self {
            findings: Vec::new(),
            left_out: 0,
            syntax_errors: Vec::new(),
            syntax_unchecked: None,
            note: NOTE.to_owned(),
        }
    }
}

impl Screening {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.left_out == 0 && self.syntax_errors.is_empty()
    }

    /// The gravest thing in one line; nothing if there is none of that severity or above.
    pub fn headline(&self, least: Severity) -> Option<String> {
        let grave: Vec<&Finding> =
            self.findings.iter().filter(|one| one.severity >= least).collect();
        let rest = |counted: usize| match counted + self.left_out {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        if let Some(fault) = self.syntax_errors.first() {
            let line = fault.line.map_or_else(String::new, |line| format!(" line {line}"));
            let SyntaxFault { source, message, .. } = fault;
            return Some(format!("{source}{line}: {message}{}", rest(grave.len())));
        }
        let first = grave.first()?;
        let Finding { source, line, name, reason, rule, .. } = first;
        let more = rest(grave.len() - 1);
        Some(format!("{source} line {line}: {name}: {reason} ({rule}){more}"))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}
