//! What tools are given. The comments are what a model reads; a field that is not known is a mistake.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCode {
    /// The source text.
    pub(super) code: String,
    /// `python` (default), `bash` or `node`.
    pub(super) language: Option<String>,
    /// The name of a sandbox from create_sandbox: the code then finds the variables, imports and files of earlier
    /// calls, and the value of its last expression and its pictures come back. Without it the code runs alone.
    pub(super) sandbox: Option<String>,
    /// Seconds after which it is ended; 30 unless told.
    pub(super) timeout_s: Option<f64>,
    /// Memory in MiB; 512 unless told. Not with `sandbox`, which has its own.
    pub(super) memory_mb: Option<u64>,
    /// Text on its standard input. Not with `sandbox`.
    pub(super) stdin: Option<String>,
    /// Files to write first: path (relative to /workspace) to text.
    #[serde(default)]
    pub(super) files: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    /// A command line, or a whole script, for bash.
    pub(super) command: String,
    /// The name of a sandbox from create_sandbox. Without it the command runs alone and its files go.
    pub(super) sandbox: Option<String>,
    /// The working directory; /workspace unless told. Only with `sandbox`.
    pub(super) cwd: Option<String>,
    /// Variables of its environment.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Text on its standard input.
    pub(super) stdin: Option<String>,
    /// Seconds after which it is ended; 30 unless told.
    pub(super) timeout_s: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSandbox {
    /// Lower-case letters, digits and `-`. One is made up when left out.
    pub(super) name: Option<String>,
    /// Memory in MiB; 512 unless told.
    pub(super) memory_mb: Option<u64>,
    /// Disk in MiB; 100 unless told.
    pub(super) disk_mb: Option<u64>,
    /// Seconds that a command has if it names none; 30 unless told.
    pub(super) timeout_s: Option<f64>,
    /// Seconds after which the sandbox is removed with its files; 14400 (four hours) unless told.
    pub(super) ttl_s: Option<u64>,
    /// Variables of every program's environment.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
}

/// Nothing is asked.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneSandbox {
    /// The name of a sandbox.
    pub(super) sandbox: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// The name of a sandbox.
    pub(super) sandbox: String,
    /// A path inside; a relative one is below /workspace.
    pub(super) path: String,
    /// The first byte to read; 0 unless told.
    #[serde(default)]
    pub(super) offset: u64,
    /// The most bytes to read; 100000 unless told, 1000000 at most.
    pub(super) limit: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// The name of a sandbox.
    pub(super) sandbox: String,
    /// A path inside; a relative one is below /workspace. Missing directories are made.
    pub(super) path: String,
    /// The whole contents: text, or base64 if `encoding` says so.
    pub(super) content: String,
    /// `text` (default) or `base64`.
    pub(super) encoding: Option<Encoding>,
    /// Write at the end of a file that is there instead of replacing it.
    #[serde(default)]
    pub(super) append: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Encoding {
    Text,
    Base64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListFiles {
    /// The name of a sandbox.
    pub(super) sandbox: String,
    /// A directory inside; /workspace unless told.
    pub(super) path: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Snapshot {
    /// The name of a sandbox.
    pub(super) sandbox: String,
    /// What to call this point; s1, s2, … unless told.
    pub(super) tag: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    /// The name of a sandbox.
    pub(super) sandbox: String,
    /// The point to go back to, as snapshot_sandbox named it.
    pub(super) tag: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestCode {
    /// The program that is tested.
    pub(super) code: String,
    /// `python` unless told; other languages have cases with `stdin` only.
    pub(super) language: Option<String>,
    /// The function that cases call. May be left out if the code defines only one.
    pub(super) func_name: Option<String>,
    /// What is asked, and what is expected. Expected values are never shown to the code.
    #[schemars(with = "Vec<TestCase>")]
    pub(super) cases: Vec<Value>,
    /// Seconds for one case; 10 unless told.
    pub(super) timeout_s: Option<f64>,
}

/// A call of a function, a run with a standard input, or an assertion. Only its schema is used: null and absent differ.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it stands for what a case may hold, which is read elsewhere")]
pub(super) struct TestCase {
    /// What to call it.
    name: Option<String>,
    /// What the function is called with.
    input_args: Option<Vec<Value>>,
    input_kwargs: Option<BTreeMap<String, Value>>,
    /// What it returns.
    expected_output: Option<Value>,
    /// The name of the exception that it raises.
    expected_exception: Option<String>,
    /// Text on the program's standard input, and what it writes.
    stdin: Option<String>,
    expected_stdout: Option<String>,
    /// Python statements that hold.
    #[serde(rename = "assert")]
    assertion: Option<String>,
    /// Its share of the score; 1 unless told.
    weight: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainBlock {
    /// The `execution_id` of a run, as run_code or run_command told it.
    pub(super) execution_id: String,
}
