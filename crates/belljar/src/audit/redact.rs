//! Keeping secrets out of records: every text that is about to be recorded is looked through for the
//! values that were marked secret.

use belljar_jail::redact::Patterns;
use serde_json::{Map, Value};

/// What stands in a record where a secret stood.
pub const REDACTED: &str = "[secret]";

/// The values that must not be recorded, in every spelling that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(Patterns);

impl From<Patterns> for Secrets {
    fn from(patterns: Patterns) -> Self {
        Self(patterns)
    }
}

impl Secrets {
    pub(crate) fn new<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        Self(Patterns::new(values))
    }

    /// One more, of which no piece may be told from other text.
    pub(crate) fn add_outside(&mut self, value: &str) {
        self.0.add_outside(value);
    }

    /// A text without them.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.0.hide(text)
    }

    /// A text that was cut in the middle: what is left of a secret there goes too.
    pub(crate) fn hide_at_cut(&self, before: &str, after: &str) -> (String, String) {
        self.0.hide_at_cut(before, after)
    }

    /// A whole JSON value without them: in texts and in names.
    pub(crate) fn clean(&self, value: Value) -> Value {
        if self.0.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.hide(&text)),
            Value::Array(all) => all.into_iter().map(|one| self.clean(one)).collect(),
            Value::Object(all) => {
                let cleaned =
                    all.into_iter().map(|(name, one)| (self.hide(&name), self.clean(one)));
                Value::Object(cleaned.collect::<Map<_, _>>())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }
}

/// The beginning and the end of a text, if it is too long, with a line between them that says so.
pub(crate) fn bounded(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let head = floor(&text, most / 2);
    let tail = ceiling(&text, text.len() - most / 2);
    let left_out = tail - head;
    format!("{}\n[belljar: {left_out} bytes not recorded]\n{}", &text[..head], &text[tail..])
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn ceiling(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_in_texts_and_names_wherever_they_are() {
        let secrets = Secrets::new(["hunter22", "hunter22-long", ""].into_iter());
        let value = serde_json::json!({
            "a": ["x hunter22 y", {"hunter22": "hunter22-long"}], "n": 1, "none": null
        });
        let text = secrets.clean(value).to_string();
        assert!(!text.contains("hunter22"), "{text}");
        assert_eq!(text.matches(REDACTED).count(), 3, "{text}");
        assert!(!text.contains("-long"), "{text}");
    }

    #[test]
    fn a_piece_of_a_secret_at_a_cut_is_hidden_too() {
        let secrets = Secrets::new(["correct-horse"].into_iter());
        let (before, after) = secrets.hide_at_cut("it is correct-h", "t-horse, really");
        assert_eq!((before.as_str(), after.as_str()), ("it is [secret]", "[secret], really"));
        let (before, after) = secrets.hide_at_cut("it is cor", "rse, really");
        assert_eq!((before.as_str(), after.as_str()), ("it is cor", "rse, really"));
        let (before, after) = secrets.hide_at_cut("it is Y29ycmVjdC1", "ob3JzZQ==, really");
        assert_eq!((before.as_str(), after.as_str()), ("it is [secret]", "[secret]==, really"));
    }

    #[test]
    fn long_text_keeps_its_ends_and_its_characters() {
        let text = "é".repeat(100);
        let short = bounded(text.clone(), 51);
        assert!(short.starts_with('é') && short.ends_with('é'), "{short}");
        assert!(short.contains("[belljar: 152 bytes not recorded]"), "{short}");
        assert_eq!(bounded(text.clone(), 200), text);
    }
}
