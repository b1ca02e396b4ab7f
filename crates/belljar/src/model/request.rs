//! The request: what was asked, as it came. Checked once, by [`super::spec`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::egress::EgressEntry;
use super::level::Level;
use super::limits::LimitsRequest;
use super::screening::ScreenMode;
use super::secret::SecretRequest;

/// What to run and how. The same on every surface; fields that are left out take their defaults.
///
/// ```
/// use belljar::RunRequest;
///
/// let request = RunRequest::code("python", "print(1 + 1)");
/// assert_eq!(request.level, belljar::Level::Standard);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Names of `env` whose values are secret: they are recorded nowhere.
    pub secret_env: Vec<String>,
    /// Secrets of the host, by name: the program gets the values, and nothing that it says shows them.
    pub secrets: Vec<SecretRequest>,
    pub stdin: Option<Data>,
    /// Files made before the start: path inside (relative to /workspace) to contents.
    pub files: BTreeMap<String, Data>,
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
    /// Keep a timeline of what is executed, opened, connected to and written. It makes each of those dearer.
    pub record: bool,
    /// Values that no honest program prints: one that appears in the output is an event.
    pub canaries: Vec<String>,
    /// What may be reached of the outside, by host name. Nothing if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressEntry>,
    /// Whether a sandbox that was made ahead may be used.
    pub start: StartRequest,
    /// Whether the code is read first, and what is done with what is found.
    pub screen: ScreenMode,
}

/// How a run may come by its sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartRequest {
    /// One that was made ahead if there is one, a new one otherwise.
    #[default]
    Any,
    /// Always a new one.
    Cold,
    /// One that was made ahead; waits until it is made. An error where there can be none.
    Warm,
}

/// Bytes: on the wire a string, or `{"base64": "…"}` for what is not text.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "DataForm")]
pub struct Data(pub Vec<u8>);

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum DataForm {
    Text(String),
    Binary { base64: String },
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match std::str::from_utf8(&self.0) {
            Ok(text) => DataForm::Text(text.to_owned()),
            Err(_) => DataForm::Binary { base64: STANDARD.encode(&self.0) },
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match DataForm::deserialize(deserializer)? {
            DataForm::Text(text) => Ok(Self(text.into_bytes())),
            DataForm::Binary { base64 } => {
                STANDARD.decode(base64).map(Self).map_err(serde::de::Error::custom)
            }
        }
    }
}

impl<T: Into<Vec<u8>>> From<T> for Data {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

/// A host directory shown at /workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    pub path: PathBuf,
    #[serde(default)]
    pub writable: bool,
}

impl RunRequest {
    /// Source text in a language.
    pub fn code(language: impl Into<String>, code: impl Into<String>) -> Self {
        Self { code: Some(code.into()), language: Some(language.into()), ..Self::default() }
    }

    /// A program and its arguments.
    pub fn command<T: Into<String>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self { command: Some(argv.into_iter().map(Into::into).collect()), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_travel_as_text_where_they_are_text() {
        for (bytes, json) in [(&b"hi"[..], r#""hi""#), (&[0xff][..], r#"{"base64":"/w=="}"#)] {
            let data = Data::from(bytes);
            assert_eq!(serde_json::to_string(&data).unwrap(), json);
            assert_eq!(serde_json::from_str::<Data>(json).unwrap(), data);
        }
        assert!(serde_json::from_str::<Data>(r#"{"base64": "?"}"#).is_err());
    }
}
