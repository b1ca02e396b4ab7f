//! Cases as they are written down, and what is wrong with one that cannot be used.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::value::Value;
use crate::model::error::SpecError;
use crate::model::request::Data;

/// The longest name: it stands in tables, messages and prompts.
const MAX_NAME_CHARS: usize = 200;
/// One assert; more is a program, not a test.
const MAX_ASSERT_BYTES: usize = 1 << 20;
/// The longest time for one case.
const MAX_TIMEOUT_MS: u64 = 3_600_000;

/// One test of a candidate: a call with what is expected of it, a standard input with the output that is
/// expected, or an assert.
///
/// ```
/// let case: belljar::grade::Case =
///     serde_json::from_str(r#"{"input_args": [2, 3], "expected_output": 5}"#).unwrap();
/// assert_eq!(case.weight, 1.0);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    pub name: String,
    /// The function to call, if it is another than the request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub func_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input_args: Vec<Value>,
    /// A dict with strings as keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_kwargs: Option<Value>,
    /// Left out is not the same as `null`, which expects None.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub expected_output: Option<Value>,
    /// The name of the type of what is returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_type: Option<String>,
    /// The name of the exception that is raised, or of a base of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_exception: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_stdout: Option<Data>,
    /// Statements that run beside nothing of the candidate: what they call of it is called where it is.
    #[serde(rename = "assert", skip_serializing_if = "Option::is_none")]
    pub assertion: Option<String>,
    pub weight: f64,
    /// How far a float may be off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<Tolerance>,
    /// The elements of a list or tuple, or the lines of an output, may come in any order.
    #[serde(skip_serializing_if = "is_false")]
    pub unordered: bool,
    /// Whether an output must agree to the last byte; otherwise white space at the end of lines and of
    /// the whole is passed over.
    #[serde(skip_serializing_if = "is_false")]
    pub exact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Neither its input nor what is expected, nor what came of it, is ever shown.
    #[serde(skip_serializing_if = "is_false")]
    pub hidden: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: String::new(),
            func_name: None,
            input_args: Vec::new(),
            input_kwargs: None,
            expected_output: None,
            expected_type: None,
            expected_exception: None,
            stdin: None,
            expected_stdout: None,
            assertion: None,
            weight: 1.0,
            tolerance: None,
            unordered: false,
            exact: false,
            timeout_ms: None,
            hidden: false,
        }
    }
}

/// How far a float may be off: by so much, or by such a share of the larger one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "ToleranceForm")]
pub struct Tolerance {
    pub abs: f64,
    pub rel: f64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum ToleranceForm {
    /// Both at once.
    Number(f64),
    Pair(TolerancePair),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TolerancePair {
    #[serde(default)]
    abs: f64,
    #[serde(default)]
    rel: f64,
}

impl From<ToleranceForm> for Tolerance {
    fn from(form: ToleranceForm) -> Self {
        match form {
            ToleranceForm::Number(both) => Self { abs: both, rel: both },
            ToleranceForm::Pair(TolerancePair { abs, rel }) => Self { abs, rel },
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_false(value: &bool) -> bool {
    !*value
}

/// Reads a field so that `null` is a value and not the absence of one.
pub(super) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The three kinds of case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Streams,
    Assert,
}

impl Case {
    /// An assert as a case.
    pub fn assertion(name: impl Into<String>, source: impl Into<String>) -> Self {
        Self { name: name.into(), assertion: Some(source.into()), ..Self::default() }
    }

    /// What kind of case it is. Valid once [`Self::check`] said so.
    pub(crate) fn kind(&self) -> Kind {
        if self.assertion.is_some() {
            Kind::Assert
        } else if self.expected_stdout.is_some() || self.stdin.is_some() {
            Kind::Streams
        } else {
            Kind::Call
        }
    }

    /// Its name where it must not tell what it holds: without the text of an assert that it was named by.
    pub(crate) fn concealing_name(&self) -> String {
        let named = self.name.split_once(": ").zip(self.assertion.as_deref());
        named
            .filter(|((_, said), text)| text.trim_start().starts_with(said.trim_end_matches('…')))
            .map_or_else(|| self.name.clone(), |((place, _), _)| place.to_owned())
    }

    /// Says what is wrong with it; `field` names the case.
    pub(crate) fn check(&self, field: &str) -> Result<(), SpecError> {
        let wrong = |name: &str, reason: &str| {
            Err(SpecError::new(format!("{field}.{name}"), reason.to_owned()))
        };
        let call = [
            ("input_args", !self.input_args.is_empty()),
            ("input_kwargs", self.input_kwargs.is_some()),
            ("func_name", self.func_name.is_some()),
            ("expected_output", self.expected_output.is_some()),
            ("expected_type", self.expected_type.is_some()),
            ("expected_exception", self.expected_exception.is_some()),
        ];
        let streams =
            [("stdin", self.stdin.is_some()), ("expected_stdout", self.expected_stdout.is_some())];
        let given = |fields: &[(&'static str, bool)]| {
            fields.iter().find(|(_, given)| *given).map(|(name, _)| *name)
        };
        match self.kind() {
            Kind::Assert => {
                if let Some(name) = given(&call).or(given(&streams)) {
                    return wrong(name, "has no meaning beside assert: leave one of the two out");
                }
                let source = self.assertion.as_deref().unwrap_or_default();
                if source.trim().is_empty()
                    || source.len() > MAX_ASSERT_BYTES
                    || source.contains('\0')
                {
                    return wrong("assert", "must be program text, at most 1 MiB, and not empty");
                }
            }
            Kind::Streams => {
                if let Some(name) = given(&call) {
                    return wrong(name, "has no meaning beside stdin: leave one of the two out");
                }
                if self.expected_stdout.is_none() {
                    return wrong(
                        "expected_stdout",
                        "is missing: nothing is expected of the output",
                    );
                }
            }
            Kind::Call => self.check_call(&wrong)?,
        }
        self.check_bounds(&wrong)
    }

    fn check_call(
        &self,
        wrong: &dyn Fn(&str, &str) -> Result<(), SpecError>,
    ) -> Result<(), SpecError> {
        let (output, kind) = (self.expected_output.is_some(), self.expected_type.is_some());
        if !output && !kind && self.expected_exception.is_none() {
            let reason = "is missing: give it, or expected_type, expected_exception, \
                          expected_stdout, or assert";
            return wrong("expected_output", reason);
        }
        if self.expected_exception.is_some() && (output || kind) {
            let reason = "cannot be expected together with a value: what raises returns none";
            return wrong("expected_exception", reason);
        }
        if self.input_args.iter().chain(&self.expected_output).any(Value::holds_object) {
            return wrong("input_args", "has a $object, which is no value of a case");
        }
        match &self.input_kwargs {
            Some(Value::Dict(pairs))
                if pairs.iter().all(|(key, _)| matches!(key, Value::Str(_)))
                    && !pairs.iter().any(|(_, value)| value.holds_object()) =>
            {
                Ok(())
            }
            None => Ok(()),
            Some(_) => wrong("input_kwargs", "must be an object: names of parameters and values"),
        }
    }

    fn check_bounds(
        &self,
        wrong: &dyn Fn(&str, &str) -> Result<(), SpecError>,
    ) -> Result<(), SpecError> {
        if self.name.chars().count() > MAX_NAME_CHARS {
            return wrong("name", "is longer than 200 characters");
        }
        if !self.weight.is_finite() || self.weight < 0.0 {
            return wrong("weight", "must be a number from 0 on");
        }
        let bad = |one: f64| !one.is_finite() || one < 0.0;
        if self.tolerance.is_some_and(|one| bad(one.abs) || bad(one.rel)) {
            return wrong("tolerance", "must be a number from 0 on, or {\"abs\": …, \"rel\": …}");
        }
        if self.timeout_ms.is_some_and(|one| one == 0 || one > MAX_TIMEOUT_MS) {
            return wrong("timeout_ms", "must be between 1 and 3600000 ms");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(json: &str) -> Case {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn none_is_not_the_same_as_missing() {
        assert_eq!(case(r#"{"expected_output": null}"#).expected_output, Some(Value::None));
        assert_eq!(case(r#"{"expected_type": "int"}"#).expected_output, None);
        let back = serde_json::to_string(&case(r#"{"expected_output": null}"#)).unwrap();
        assert_eq!(case(&back).expected_output, Some(Value::None), "{back}");
    }

    #[test]
    fn each_mistake_is_told_by_its_field() {
        for (json, field) in [
            (r#"{"name": "a"}"#, "c.expected_output"),
            (
                r#"{"expected_output": 1, "expected_exception": "ValueError"}"#,
                "c.expected_exception",
            ),
            (r#"{"expected_output": 1, "input_kwargs": [1]}"#, "c.input_kwargs"),
            (r#"{"stdin": "1"}"#, "c.expected_stdout"),
            (r#"{"stdin": "1", "expected_stdout": "2", "input_args": [1]}"#, "c.input_args"),
            (r#"{"assert": "assert f()", "stdin": "1"}"#, "c.stdin"),
            (r#"{"assert": " "}"#, "c.assert"),
            (r#"{"expected_output": 1, "weight": -1}"#, "c.weight"),
            (r#"{"expected_output": 1, "tolerance": -1}"#, "c.tolerance"),
            (r#"{"expected_output": 1, "timeout_ms": 0}"#, "c.timeout_ms"),
            (r#"{"expected_output": 1, "input_args": [{"$object": 1}]}"#, "c.input_args"),
        ] {
            assert_eq!(case(json).check("c").unwrap_err().field, field, "{json}");
        }
        assert!(case(r#"{"expected_stdout": ""}"#).check("c").is_ok());
    }

    #[test]
    fn tolerance_is_a_number_or_two() {
        let both = case(r#"{"expected_output": 1, "tolerance": 0.5}"#).tolerance.unwrap();
        assert_eq!((both.abs, both.rel), (0.5, 0.5));
        let one = case(r#"{"expected_output": 1, "tolerance": {"rel": 0.1}}"#).tolerance.unwrap();
        assert_eq!((one.abs, one.rel), (0.0, 0.1));
    }
}
