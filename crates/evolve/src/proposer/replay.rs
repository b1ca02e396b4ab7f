//! Recordings: one answer a line.

use belljar::SpecError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// More answers than any evolution has.
const MAX_ANSWERS: usize = 1_000_000;

/// A line of a recording.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Recorded {
    pub answer: String,
}

/// Reads a recording; empty lines are passed over.
pub(super) fn read(text: &str) -> Result<Vec<String>, SpecError> {
    let filled = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(index, line): (usize, &str)| {
        let one: Recorded = serde_json::from_str(line).map_err(|error| {
            let reason = format!("line {}: {error}: each is {{\"answer\": \"…\"}}", index + 1);
            SpecError::new("proposer.file", reason)
        })?;
        Ok(one.answer)
    };
    filled.take(MAX_ANSWERS).map(read).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mistake_is_told_with_its_line() {
        assert_eq!(super::read("{\"answer\": \"a\"}\n\n{\"answer\": \"b\"}").unwrap(), ["a", "b"]);
        let error = super::read("{\"answer\": \"a\"}\n{}").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("answer"), "{error}");
    }
}
