//! Why there is no result, in words for a model.

use hyper::StatusCode;
use serde_json::Value;

/// A call that was refused or failed: by the server's rules, by a mistake, or by us.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) code: String,
    pub(super) detail: String,
}

impl Refused {
    pub(super) fn ours(detail: &str) -> Self {
        Self { code: "ours".to_owned(), detail: detail.to_owned() }
    }

    /// A mistake in what the caller said.
    pub(super) fn mistake(detail: impl Into<String>) -> Self {
        Self { code: "spec".to_owned(), detail: detail.into() }
    }

    /// A problem as the server wrote it.
    pub(super) fn read(text: &[u8], status: StatusCode) -> Self {
        match serde_json::from_slice::<Value>(text) {
            Ok(problem) if problem.is_object() => Self::of(&problem),
            Ok(_) | Err(_) => Self::ours(&format!("the server answered {status}")),
        }
    }

    pub(super) fn of(problem: &Value) -> Self {
        let word = |name: &str| problem.get(name).and_then(Value::as_str).unwrap_or_default();
        let code = if word("code").is_empty() { word("kind") } else { word("code") };
        let (mut detail, hint) = (word("detail").to_owned(), word("hint"));
        if !hint.is_empty() && !detail.contains(hint) {
            detail = format!("{detail}. hint: {hint}");
        }
        Self { code: code.to_owned(), detail }
    }

    /// For a model: what went wrong and what to do.
    pub(super) fn text(&self) -> String {
        match self.code.as_str() {
            "not_found" => format!(
                "{}. If it is a sandbox: it expired or was removed; create_sandbox makes a new one",
                self.detail
            ),
            _ => self.detail.clone(),
        }
    }
}
