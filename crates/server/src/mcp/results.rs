//! What tools answer with, beside the text: the same for programs, by schema.

use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;
use serde_json::Value;

/// How something that was run came out.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Ran {
    /// It ran to its own end and reported no error.
    pub(super) ok: bool,
    /// How it ended: exited, signaled, wall_time_limit, cpu_time_limit, memory_limit, output_limit, disk_limit,
    /// syscall_denied, start_failed, raised.
    pub(super) status: String,
    pub(super) exit_code: Option<i64>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Some of the output was left out; the text says where.
    pub(super) truncated: bool,
    pub(super) timed_out: bool,
    pub(super) elapsed_ms: f64,
    /// For explain_block. Only of runs without a sandbox.
    pub(super) execution_id: Option<String>,
    /// The value of the last expression as text. Only with a sandbox.
    pub(super) value: Option<String>,
    /// What was raised. Only with a sandbox.
    pub(super) error: Option<Raised>,
    /// What was tried and refused.
    pub(super) refused: Vec<Blocked>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Raised {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) traceback: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Blocked {
    /// What was tried.
    pub(super) what: String,
    /// The rule that refused it.
    pub(super) rule: String,
    /// What would allow it, for whoever runs the sandbox.
    pub(super) fix: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Sandbox {
    pub(super) sandbox: String,
    pub(super) state: String,
    pub(super) created_at: String,
    /// When it is removed with its files.
    pub(super) expires_at: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Sandboxes {
    pub(super) sandboxes: Vec<Sandbox>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Done {
    pub(super) sandbox: String,
    /// What was done.
    pub(super) done: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileRead {
    pub(super) path: String,
    /// The size of the whole file.
    pub(super) bytes: u64,
    pub(super) offset: u64,
    /// There is more: read on from `offset` plus what was read.
    pub(super) truncated: bool,
    /// The text; nothing if it is no text, which then comes as an image or a blob.
    pub(super) text: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileWritten {
    pub(super) path: String,
    pub(super) bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    pub(super) entries: Vec<Entry>,
    /// There are more than are shown.
    pub(super) truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Entry {
    pub(super) name: String,
    /// file, directory, symlink or other.
    pub(super) kind: String,
    pub(super) bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Point {
    pub(super) sandbox: String,
    pub(super) tag: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Graded {
    /// The passed share of the weight; nothing if none could be judged.
    pub(super) score: Option<f64>,
    pub(super) all_passed: bool,
    /// False if a failure of the sandbox, not of the code, kept cases from being judged.
    pub(super) score_trustworthy: bool,
    pub(super) cases: Vec<Case>,
    /// What to change.
    pub(super) feedback: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) passed: bool,
    pub(super) verdict: String,
    pub(super) detail: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Explained {
    pub(super) execution_id: String,
    /// How it ended, in a sentence.
    pub(super) ended: String,
    pub(super) reasons: Vec<String>,
    pub(super) refused: Vec<Blocked>,
    pub(super) recommendations: Vec<String>,
}

/// Text of a member, empty if there is none.
pub(super) fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// A list of texts.
pub(super) fn texts(value: &Value, name: &str) -> Vec<String> {
    let list = value[name].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

/// Events that tell of something refused.
pub(super) fn blocked(value: &Value) -> Vec<Blocked> {
    let events = value["events"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |event: &Value| Blocked {
        what: text(event, "detail"),
        rule: text(event, "rule"),
        fix: text(event, "fix"),
    };
    events.iter().map(one).collect()
}

impl Sandbox {
    pub(super) fn of(info: &Value) -> Self {
        Self {
            sandbox: text(info, "name"),
            state: text(info, "state"),
            created_at: text(info, "created_at"),
            expires_at: info["expires_at"].as_str().map(ToOwned::to_owned),
        }
    }
}
