//! Names of sandboxes and of points, checked where they come in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::error::SpecError;

/// The length that DNS gives a label: a name can be a host name.
const MOST: usize = 63;
/// `/v1/sandboxes/import` is no sandbox.
const RESERVED: &str = "import";

/// A sandbox's name: lower-case letters, digits and `-`, a letter or digit first. It can be no path, no option
/// and no other name's look-alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Name(String);

/// A point's name: as a sandbox's, with `.` and `_` beside it, so that versions and dates can be named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Tag(String);

impl Name {
    pub(crate) fn new(text: &str) -> Result<Self, SpecError> {
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        check(text, "name", "lower-case letters, digits and '-'", letters)?;
        if text == RESERVED {
            let reason = format!("is {text:?}, which is a word of the API: choose another");
            return Err(SpecError::new("name", reason));
        }
        Ok(Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Tag {
    pub(crate) fn new(text: &str) -> Result<Self, SpecError> {
        let letters =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        check(text, "tag", "lower-case letters, digits, '-', '_' and '.'", letters)?;
        Ok(Self(text.to_owned()))
    }
}

fn check(text: &str, field: &str, of: &str, may: impl Fn(char) -> bool) -> Result<(), SpecError> {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if first && text.len() <= MOST && text.chars().all(may) {
        return Ok(());
    }
    // What is shown of it is short and harmless, whatever it holds.
    let shown: String = text.chars().take(20).flat_map(char::escape_default).collect();
    let more = if text.chars().count() > 20 { "…" } else { "" };
    let reason = format!(
        "is \"{shown}{more}\"; it must be 1 to {MOST} {of}, beginning with a letter or digit"
    );
    Err(SpecError::new(field, reason))
}

impl TryFrom<String> for Name {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        Self::new(&text)
    }
}

impl TryFrom<String> for Tag {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_anything_else_is_refused_by_field() {
        for good in ["a", "0", "agent-7", &"a".repeat(63)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(300);
        let bad = [
            "", "../x", "/", ".", "..", "-a", "A", "a b", "a/b", "a\0", "\0", "ä", "a_b", "名",
            "a\n", &long,
        ];
        for bad in bad {
            let error = Name::new(bad).unwrap_err();
            assert_eq!(error.field, "name", "{bad:?}");
            assert!(error.reason.contains("1 to 63 lower-case letters"), "{error}");
            assert!(error.reason.len() < 300 && !error.reason.contains('\0'), "{error}");
        }
    }

    #[test]
    fn tags_may_be_versions_and_no_paths() {
        assert!(Tag::new("v1.2_rc-3").is_ok());
        for bad in ["", "..", ".a", "a/b", "_a", "V1", &"a".repeat(64)] {
            assert_eq!(Tag::new(bad).unwrap_err().field, "tag", "{bad:?}");
        }
    }
}
