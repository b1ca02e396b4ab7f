//! The request: what was asked, as it came. Checked once, by [`super::spec`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::level::Level;
use super::limits::LimitsRequest;

/// What to run and how. The same on every surface; fields that are left out take their defaults.
///
/// ```
/// use belljar::RunRequest;
///
/// let request = RunRequest::code("python", "print(1 + 1)");
/// assert_eq!(request.level, belljar::Level::Standard);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunRequest {
    /// The source text. Exactly one of `code`, `entry` and `command` is given.
    pub code: Option<String>,
    /// A file of the workspace to run, relative to it.
    pub entry: Option<String>,
    /// A program and its arguments, without a shell. Looked up on the sandbox's PATH.
    pub command: Option<Vec<String>>,
    /// `python`, `bash`, `node`, or another that a language file describes.
    pub language: Option<String>,
    /// The name that `code` gets in the workspace.
    pub file_name: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: Option<String>,
    /// Files made before the start: path inside (relative to /workspace) to text.
    pub files: BTreeMap<String, String>,
    /// Files copied in from the host: path inside to host path.
    pub copies: BTreeMap<String, PathBuf>,
    pub workspace: Option<Workspace>,
    pub level: Level,
    pub limits: LimitsRequest,
    /// Layers that may be absent: `cgroup`, `landlock`, `scopes`, `uid_per_run`.
    pub allow_missing: Vec<String>,
    pub allow_syscalls: Vec<String>,
    pub deny_syscalls: Vec<String>,
    /// Paths that shall not exist inside.
    pub block_paths: Vec<PathBuf>,
    pub labels: BTreeMap<String, String>,
}

/// A host directory shown at /workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    pub path: PathBuf,
    #[serde(default)]
    pub writable: bool,
}

impl RunRequest {
    /// Source text in a language.
    pub fn code(language: impl Into<String>, code: impl Into<String>) -> Self {
        Self {
            code: Some(code.into()),
            language: Some(language.into()),
            ..Self::default()
        }
    }

    /// A program and its arguments.
    pub fn command<T: Into<String>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self {
            command: Some(argv.into_iter().map(Into::into).collect()),
            ..Self::default()
        }
    }
}
