//! The Spec: a request that was checked once. Valid and complete: every limit is present.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_jail::egress::Rule;
use belljar_jail::layer::Layer;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::error::SpecError;
use super::level::Level;
use super::limits::Limits;
use super::request::{RunRequest, Workspace};
use super::secret::{self, SecretRequest};
use crate::secrets::Sealing;
use checks::{
    blocked, canaries, check_enforceable, check_environment, check_labels, check_placed,
    check_record, check_syscalls, egress, inside, layers_allowed_missing, program, secrets,
};

mod checks;

/// The longest program text. Longer ones are data, and belong in a file.
pub const MAX_CODE_BYTES: usize = 16 << 20;
/// Arguments and environment together; the kernel's own bound is not much higher.
pub(crate) const MAX_ARGUMENT_BYTES: usize = 128 << 10;
/// Labels are for accounting, not for storage.
pub(crate) const MAX_LABELS: usize = 64;
/// Blocked paths: each one splits the view of the host's tree around it.
pub(crate) const MAX_BLOCKED: usize = 64;

/// Where a program's own files live.
pub(crate) const WORKSPACE: &str = "/workspace";
/// Where the program stands when the workspace is the host's.
pub(crate) const CODE: &str = "/code";

/// A run that may be planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spec {
    pub program: Program,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Variables whose values are recorded nowhere, not even as a digest.
    pub secret_env: BTreeMap<String, Secret>,
    /// Secrets by name. Their values are filled in just before the run.
    pub secrets: Vec<SecretRequest>,
    /// What must not be seen of what the program says: the values of `secrets`.
    #[serde(skip)]
    pub(crate) hidden: Vec<Secret>,
    /// The same, of what the program does not have: no piece of it may be told from other text.
    #[serde(skip)]
    pub(crate) hidden_outside: Vec<Secret>,
    /// What stands for secrets inside, and what the egress process knows of them.
    #[serde(skip)]
    pub(crate) sealing: Option<Arc<Sealing>>,
    pub stdin: Option<Contents>,
    pub placed: Vec<PlacedFile>,
    pub workspace: Option<Workspace>,
    pub level: Level,
    pub limits: Limits,
    pub allow_missing: BTreeSet<Layer>,
    pub allow_syscalls: Vec<String>,
    pub deny_syscalls: Vec<String>,
    pub block_paths: Vec<PathBuf>,
    pub labels: BTreeMap<String, String>,
    pub record: bool,
    /// Each a digest where the Spec is written down.
    pub canaries: Vec<Canary>,
    /// What may be reached of the outside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<Rule>,
}

/// What is executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A file run by its language's interpreter. The path is inside.
    Code {
        language: String,
        path: PathBuf,
    },
    Command {
        argv: Vec<String>,
    },
}

/// A value that may be given to the program and to nobody else. It shows itself to no log and no digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(…)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("[secret]")
    }
}

/// Bytes that appear in a digest as their own digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents(pub Vec<u8>);

impl Serialize for Contents {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&sha256(&self.0))
    }
}

/// A file that exists before the program starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacedFile {
    pub path: PathBuf,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Given(Contents),
    Host(PathBuf),
}

impl Spec {
    /// Checks a request. `language` was looked up (or detected) by the engine; it is needed for code.
    pub fn resolve(
        request: RunRequest,
        language: Option<&LanguageFacts>,
    ) -> Result<Self, SpecError> {
        let limits = request.limits.resolve()?;
        check_enforceable(request.level, &request.limits)?;
        check_environment(&request)?;
        check_labels(&request.labels)?;
        check_syscalls(&request)?;
        check_record(&request)?;
        let egress = egress(&request)?;
        let block_paths = blocked(&request)?;
        let mut env = request.env.clone();
        secret::check(&request.secrets, |name| env.contains_key(name))?;
        let secret_env = secrets(&mut env, &request.secret_env)?;
        let mut placed = Vec::new();
        let program = program(&request, language, &mut placed)?;
        for (path, data) in request.files {
            let path = inside("files", &path)?;
            let source = Source::Given(Contents(data.0));
            placed.push(PlacedFile { path, source });
        }
        for (path, host) in request.copies {
            placed.push(PlacedFile { path: inside("copies", &path)?, source: Source::Host(host) });
        }
        check_placed(&placed, request.workspace.is_some())?;
        Ok(Self {
            program,
            args: request.args,
            env,
            secret_env,
            secrets: request.secrets,
            hidden: Vec::new(),
            hidden_outside: Vec::new(),
            sealing: None,
            stdin: request.stdin.map(|data| Contents(data.0)),
            placed,
            workspace: request.workspace,
            level: request.level,
            limits,
            allow_missing: layers_allowed_missing(&request.allow_missing)?,
            allow_syscalls: request.allow_syscalls,
            deny_syscalls: request.deny_syscalls,
            block_paths,
            labels: request.labels,
            record: request.record,
            canaries: canaries(request.canaries)?,
            egress,
        })
    }

    /// SHA-256 over everything that decides how the run is carried out: text by its content, what is
    /// copied or mounted from the host by its path.
    pub fn digest(&self) -> String {
        // The map types are ordered, so the text is canonical; and nothing here fails to serialise.
        serde_json::to_vec(self).map_or_else(|_| String::new(), |json| sha256(&json))
    }

    /// SHA-256 over what confines the run, whatever it runs.
    pub fn policy_digest(&self) -> String {
        let policy = serde_json::json!({
            "level": self.level,
            "limits": self.limits,
            "allow_missing": self.allow_missing,
            "allow_syscalls": self.allow_syscalls,
            "deny_syscalls": self.deny_syscalls,
            "block_paths": self.block_paths,
            "egress": self.egress,
        });
        sha256(policy.to_string().as_bytes())
    }

    /// Every variable that the program gets, the secret ones too.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&String, &str)> {
        let plain = self.env.iter().map(|(name, value)| (name, value.as_str()));
        let tokens = self.sealing.iter().flat_map(|one| &one.tokens);
        let tokens = tokens.map(|(name, token)| (name, token.as_str()));
        let secret = self.secret_env.iter().map(|(name, value)| (name, value.reveal()));
        plain.chain(tokens).chain(secret)
    }

    /// Every file that is copied in, those of the sandbox's own authority too.
    pub(crate) fn all_placed(&self) -> impl Iterator<Item = &PlacedFile> {
        self.placed.iter().chain(self.sealing.iter().flat_map(|one| &one.files))
    }
}

impl Spec {
    /// Gives the program a secret, under this name.
    pub(crate) fn give(&mut self, variable: String, value: &str) -> Result<(), SpecError> {
        self.secret_env.insert(variable, Secret(value.to_owned()));
        let total: usize = self.variables().map(|(name, value)| name.len() + value.len() + 2).sum();
        if total > MAX_ARGUMENT_BYTES {
            let reason = format!("and env have {total} bytes, more than {MAX_ARGUMENT_BYTES}");
            return Err(SpecError::new("secrets", reason));
        }
        Ok(())
    }

    /// Has a value hidden in all that is told of the run.
    pub(crate) fn hide(&mut self, value: &str) {
        self.hidden.push(Secret(value.to_owned()));
    }

    /// The same for a value that stays outside.
    pub(crate) fn hide_outside(&mut self, value: &str) {
        self.hidden_outside.push(Secret(value.to_owned()));
    }

    /// Whether anything is hidden.
    pub(crate) fn hides(&self) -> bool {
        !self.hidden.is_empty() || !self.hidden_outside.is_empty()
    }

    /// One more value that no honest program says.
    pub(crate) fn watch_for(&mut self, value: String) {
        self.canaries.push(Canary(value));
    }

    /// The same, for texts.
    pub(crate) fn hidden_secrets(&self) -> crate::audit::Secrets {
        crate::audit::Secrets::from(self.patterns())
    }

    /// What is looked for in the output, to be hidden.
    pub(crate) fn patterns(&self) -> belljar_jail::redact::Patterns {
        let own = self.hidden.iter().map(Secret::reveal);
        let mut patterns = belljar_jail::redact::Patterns::new(own);
        for one in &self.hidden_outside {
            patterns.add_outside(one.reveal());
        }
        patterns
    }
}

/// A value to look for in the output, which appears in a digest as its own digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Canary(pub(crate) String);

impl Serialize for Canary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&sha256(self.0.as_bytes()))
    }
}

impl std::fmt::Debug for Canary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Canary(…)")
    }
}

/// What the Spec needs to know of the language of its code.
#[derive(Clone, Debug)]
pub struct LanguageFacts {
    pub name: String,
    pub file: String,
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::from("sha256:"), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn facts() -> LanguageFacts {
        LanguageFacts { name: "python".into(), file: "main.py".into() }
    }

    fn refused(change: impl FnOnce(&mut RunRequest)) -> SpecError {
        let mut request = RunRequest::code("python", "print(1)");
        change(&mut request);
        Spec::resolve(request, Some(&facts())).unwrap_err()
    }

    #[test]
    fn a_plain_request_is_complete() {
        let spec = Spec::resolve(RunRequest::code("python", "1"), Some(&facts())).unwrap();
        assert_eq!(spec.placed[0].path, Path::new("/workspace/main.py"));
        assert!(spec.digest().starts_with("sha256:"));
    }

    #[test]
    fn each_mistake_is_told_by_its_field() {
        assert_eq!(refused(|r| r.code = Some("  \n".into())).field, "code");
        assert_eq!(refused(|r| r.code = Some("a\0b".into())).field, "code");
        assert_eq!(refused(|r| r.code = Some("x".repeat(MAX_CODE_BYTES + 1))).field, "code");
        assert_eq!(refused(|r| r.command = Some(vec!["ls".into()])).field, "code");
        assert_eq!(refused(|r| drop(r.env.insert("A=B".into(), "1".into()))).field, "env");
        assert_eq!(refused(|r| drop(r.env.insert("LD_PRELOAD".into(), "x".into()))).field, "env");
        assert_eq!(refused(|r| drop(r.files.insert("../x".into(), "".into()))).field, "files");
        assert_eq!(refused(|r| drop(r.files.insert("/etc/x".into(), "".into()))).field, "files");
        assert_eq!(refused(|r| drop(r.files.insert("main.py".into(), "".into()))).field, "files");
        assert_eq!(refused(|r| r.allow_missing.push("seccomp".into())).field, "allow_missing");
        assert_eq!(refused(|r| r.allow_syscalls.push("opeen".into())).field, "allow_syscalls");
        assert_eq!(refused(|r| r.block_paths.push("/".into())).field, "block_paths");
        assert_eq!(refused(|r| r.args.push("x".repeat(MAX_ARGUMENT_BYTES))).field, "args");
        assert_eq!(refused(|r| r.secret_env.push("A".into())).field, "secret_env");
    }

    #[test]
    fn a_limit_that_the_level_cannot_keep_is_refused() {
        let error = refused(|r| {
            r.level = Level::Basic;
            r.limits.disk_bytes = Some(1 << 20);
        });
        assert_eq!(error.field, "limits.disk_bytes");
        assert!(error.reason.contains("standard"));
    }

    #[test]
    fn a_secret_is_in_no_text_of_the_spec() {
        let with = |value: &str| {
            let mut request = RunRequest::code("python", "1");
            request.env.insert("KEY".into(), value.into());
            request.secret_env.push("KEY".into());
            Spec::resolve(request, Some(&facts()))
        };
        let spec = with("correct-horse").unwrap();
        let shown = format!("{spec:?} {}", serde_json::to_string(&spec).unwrap());
        assert!(!shown.contains("correct"), "{shown}");
        assert_eq!(spec.variables().next(), Some((&"KEY".to_owned(), "correct-horse")));
        assert_eq!(spec.digest(), with("another-horse").unwrap().digest());
        let short = with("abc").unwrap_err();
        assert!(short.to_string().contains("shorter than 4"), "{short}");
    }

    #[test]
    fn the_digest_tells_specs_apart() {
        let digest = |code: &str| {
            Spec::resolve(RunRequest::code("python", code), Some(&facts())).unwrap().digest()
        };
        assert_eq!(digest("1"), digest("1"));
        assert_ne!(digest("1"), digest("2"));
    }
}
