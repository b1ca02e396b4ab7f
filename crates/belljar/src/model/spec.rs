//! The Spec: a request that was checked once. Valid and complete: every limit is present.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use belljar_jail::egress::Rule;
use belljar_jail::layer::Layer;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::error::SpecError;
use super::level::Level;
use super::limits::{Limits, LimitsRequest};
use super::request::{RunRequest, StartRequest, Workspace};
use super::secret::{self, SecretRequest};
use crate::seccomp;
use crate::secrets::Sealing;

/// The longest program text. Longer ones are data, and belong in a file.
pub const MAX_CODE_BYTES: usize = 16 << 20;
/// Arguments and environment together; the kernel's own bound is not much higher.
pub(crate) const MAX_ARGUMENT_BYTES: usize = 128 << 10;
/// Labels are for accounting, not for storage.
pub(crate) const MAX_LABELS: usize = 64;
/// A secret that is shorter is not one, and could not be told from ordinary text.
const LEAST_SECRET_BYTES: usize = 4;
/// Blocked paths: each one splits the view of the host's tree around it.
pub(crate) const MAX_BLOCKED: usize = 64;

/// What the payload itself still calls under the filter, to be released and become the program.
const NEEDED_TO_START: [&str; 6] = ["read", "write", "execve", "exit_group", "recvmsg", "sendmsg"];

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

/// Canaries of one run, and how long each may be. Shorter ones would be found by chance.
const MAX_CANARIES: usize = 16;
const CANARY_BYTES: std::ops::RangeInclusive<usize> = 8..=4096;

fn canaries(given: Vec<String>) -> Result<Vec<Canary>, SpecError> {
    let wrong = |reason: String| Err(SpecError::new("canaries", reason));
    if given.len() > MAX_CANARIES {
        return wrong(format!(
            "has {} values; no more than {MAX_CANARIES} are looked for",
            given.len()
        ));
    }
    if let Some(place) = given.iter().position(|one| !CANARY_BYTES.contains(&one.len())) {
        let (least, most) = (CANARY_BYTES.start(), CANARY_BYTES.end());
        return wrong(format!("value {}: it must have {least} to {most} bytes", place + 1));
    }
    Ok(given.into_iter().map(Canary).collect())
}

fn egress(request: &RunRequest) -> Result<Vec<Rule>, SpecError> {
    if !request.egress.is_empty() && !request.level.has_namespaces() {
        let reason = "needs a network of the sandbox's own: use level standard or strict";
        return Err(SpecError::new("egress", reason));
    }
    super::egress::resolve(&request.egress)
}

fn check_record(request: &RunRequest) -> Result<(), SpecError> {
    if request.record && request.level == Level::None {
        let reason = "needs a filter to see through: use level basic, standard or strict";
        return Err(SpecError::new("record", reason));
    }
    if request.record && request.start == StartRequest::Warm {
        let reason = "is not possible in a sandbox that was made ahead: leave out --start warm";
        return Err(SpecError::new("record", reason));
    }
    Ok(())
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

fn program(
    request: &RunRequest,
    language: Option<&LanguageFacts>,
    placed: &mut Vec<PlacedFile>,
) -> Result<Program, SpecError> {
    let given = [request.code.is_some(), request.command.is_some(), request.entry.is_some()];
    if given.into_iter().filter(|one| *one).count() != 1 {
        let reason = "must be given, or command, or entry: exactly one of the three";
        return Err(SpecError::new("code", reason));
    }
    if let Some(argv) = &request.command {
        if argv.first().is_none_or(String::is_empty) {
            return Err(SpecError::new("command", "is empty: give a program and its arguments"));
        }
        return Ok(Program::Command { argv: argv.clone() });
    }
    let language = language.ok_or_else(|| SpecError::new("language", "must be given with code"))?;
    let name = language.name.clone();
    if let Some(entry) = &request.entry {
        return Ok(Program::Code { language: name, path: inside("entry", entry)? });
    }
    let code = request.code.as_deref().unwrap_or_default();
    check_code(code)?;
    let file = request.file_name.as_deref().unwrap_or(&language.file);
    if file.contains('/') {
        return Err(SpecError::new("file_name", "is a name, not a path"));
    }
    let directory = if request.workspace.is_some() { CODE } else { WORKSPACE };
    let path = inside("file_name", &format!("{directory}/{file}"))?;
    let source = Source::Given(Contents(code.as_bytes().to_vec()));
    placed.push(PlacedFile { path: path.clone(), source });
    Ok(Program::Code { language: name, path })
}

fn check_code(code: &str) -> Result<(), SpecError> {
    if code.trim().is_empty() {
        return Err(SpecError::new("code", "is empty: there is nothing to run"));
    }
    if code.len() > MAX_CODE_BYTES {
        let (size, most) = (code.len(), MAX_CODE_BYTES);
        return Err(SpecError::new(
            "code",
            format!("has {size} bytes, more than {most}: pass data as a file (--file HOST:INSIDE)"),
        ));
    }
    if code.contains('\0') {
        return Err(SpecError::new("code", "holds a NUL byte: it is not program text"));
    }
    Ok(())
}

/// A path inside, made absolute; nothing that climbs, and only where files may be placed.
fn inside(field: &str, path: &str) -> Result<PathBuf, SpecError> {
    let whole = Path::new(WORKSPACE).join(path);
    let plain =
        whole.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !plain || path.contains('\0') || path.is_empty() || path.ends_with('/') {
        let reason = format!("\"{path}\" is not a plain file path (no .., no NUL, no end in /)");
        return Err(SpecError::new(field, reason));
    }
    let placeable = [WORKSPACE, CODE, "/tmp", "/home/sandbox"];
    let below = |top: &str| whole.starts_with(top) && whole != Path::new(top);
    if !placeable.iter().any(|top| below(top)) {
        let reason = format!("\"{path}\" is outside /workspace, /tmp and /home/sandbox");
        return Err(SpecError::new(field, reason));
    }
    Ok(whole)
}

fn check_placed(placed: &[PlacedFile], host_workspace: bool) -> Result<(), SpecError> {
    let most = belljar_jail::wire::MAX_PLACED;
    if placed.len() > most {
        let reason = format!("are {}, more than {most}: use a workspace", placed.len());
        return Err(SpecError::new("files", reason));
    }
    let mut seen = BTreeSet::new();
    for file in placed {
        let path = file.path.display();
        if !seen.insert(&file.path) {
            return Err(SpecError::new("files", format!("name {path} twice")));
        }
        if placed.iter().any(|other| other.path != file.path && other.path.starts_with(&file.path))
        {
            let reason = format!("name {path} both as a file and as a directory");
            return Err(SpecError::new("files", reason));
        }
        if host_workspace && file.path.starts_with(WORKSPACE) {
            let reason = format!(
                "name {path}, but the workspace is the host's: put it there, or under /tmp"
            );
            return Err(SpecError::new("files", reason));
        }
    }
    Ok(())
}

/// A limit that the level does not enforce is refused when it is asked for by name.
fn check_enforceable(level: Level, limits: &LimitsRequest) -> Result<(), SpecError> {
    let needs_standard = [
        ("disk_bytes", limits.disk_bytes),
        ("inodes", limits.inodes),
        ("millicpus", limits.millicpus),
    ];
    let needs_basic = [
        ("cpu_ms", limits.cpu_ms),
        ("memory_bytes", limits.memory_bytes),
        ("processes", limits.processes),
        ("open_files", limits.open_files),
        ("file_bytes", limits.file_bytes),
    ];
    let unmet = |fields: &[(&'static str, Option<u64>)]| {
        fields.iter().find(|(_, asked)| asked.is_some()).map(|(name, _)| *name)
    };
    let mut found = None;
    if level < Level::Standard {
        found = unmet(&needs_standard).map(|name| (name, Level::Standard));
    }
    if level < Level::Basic {
        found = found.or(unmet(&needs_basic).map(|name| (name, Level::Basic)));
    }
    found.map_or(Ok(()), |(name, least)| {
        let reason = format!("is not enforced at level {level}: use {least} or above");
        Err(SpecError::new(format!("limits.{name}"), reason))
    })
}

fn check_environment(request: &RunRequest) -> Result<(), SpecError> {
    for (name, value) in &request.env {
        let bad = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if bad {
            let reason = format!("has \"{name}\", which cannot be an environment variable");
            return Err(SpecError::new("env", reason));
        }
        if belljar_jail::NEVER_PASSED.contains(&name.as_str()) {
            let reason = format!(
                "has {name}, which changes what is loaded before the program: never passed"
            );
            return Err(SpecError::new("env", reason));
        }
    }
    let arguments = request.args.iter().chain(request.command.iter().flatten());
    if arguments.clone().any(|one| one.contains('\0')) {
        return Err(SpecError::new("args", "hold a NUL byte"));
    }
    let environment: usize = request.env.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    let total = environment + arguments.map(|one| one.len() + 1).sum::<usize>();
    if total > MAX_ARGUMENT_BYTES {
        let reason = format!(
            "and env have {total} bytes, more than {MAX_ARGUMENT_BYTES}: use --stdin or --file"
        );
        return Err(SpecError::new("args", reason));
    }
    Ok(())
}

/// Takes the secret ones out of the environment.
fn secrets(
    env: &mut BTreeMap<String, String>,
    names: &[String],
) -> Result<BTreeMap<String, Secret>, SpecError> {
    let mut secret = BTreeMap::new();
    for name in names {
        let Some(value) = env.remove(name) else {
            if secret.contains_key(name) {
                continue;
            }
            let reason = format!("has {name}, which env does not have: give its value there");
            return Err(SpecError::new("secret_env", reason));
        };
        if !value.is_empty() && value.len() < LEAST_SECRET_BYTES {
            let reason = format!(
                "has {name}, whose value is shorter than {LEAST_SECRET_BYTES} bytes: that stands \
                 in too many texts by chance to be kept out of records"
            );
            return Err(SpecError::new("secret_env", reason));
        }
        secret.insert(name.clone(), Secret(value));
    }
    Ok(secret)
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), SpecError> {
    let long = labels.iter().any(|(name, value)| name.is_empty() || name.len() + value.len() > 512);
    if labels.len() > MAX_LABELS || long {
        let reason = format!("may be {MAX_LABELS} at most, of 512 bytes each, with a name");
        return Err(SpecError::new("labels", reason));
    }
    Ok(())
}

fn check_syscalls(request: &RunRequest) -> Result<(), SpecError> {
    let asked = !request.allow_syscalls.is_empty() || !request.deny_syscalls.is_empty();
    if asked && request.level == Level::None {
        let reason = "has no meaning at level none, which filters no system call";
        return Err(SpecError::new("allow_syscalls", reason));
    }
    if let Some(name) =
        request.deny_syscalls.iter().find(|name| NEEDED_TO_START.contains(&name.as_str()))
    {
        let reason = format!("has {name}, without which no program can be started");
        return Err(SpecError::new("deny_syscalls", reason));
    }
    for (field, names) in
        [("allow_syscalls", &request.allow_syscalls), ("deny_syscalls", &request.deny_syscalls)]
    {
        seccomp::check_names(names)
            .map_err(|unknown| SpecError::new(field, unknown.to_string()))?;
    }
    Ok(())
}

fn layers_allowed_missing(names: &[String]) -> Result<BTreeSet<Layer>, SpecError> {
    let mut layers = BTreeSet::new();
    for name in names {
        layers.extend(match name.as_str() {
            "cgroup" => &[Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu][..],
            "landlock" => &[Layer::Landlock],
            "scopes" => &[Layer::Scopes],
            "uid_per_run" => &[Layer::UidPerRun],
            _ => {
                let reason = format!(
                    "has \"{name}\": only cgroup, landlock, scopes and uid_per_run may be missing"
                );
                return Err(SpecError::new("allow_missing", reason));
            }
        });
    }
    Ok(layers)
}

fn blocked(request: &RunRequest) -> Result<Vec<PathBuf>, SpecError> {
    let (paths, level) = (&request.block_paths, request.level);
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    if level == Level::None {
        return Err(SpecError::new(
            "block_paths",
            "cannot be kept at level none: use basic or above",
        ));
    }
    if paths.len() > MAX_BLOCKED {
        return Err(SpecError::new("block_paths", format!("may be {MAX_BLOCKED} at most")));
    }
    for path in paths {
        let plain = path.is_absolute()
            && path
                .components()
                .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
            && path != Path::new("/");
        if !plain {
            let reason = format!("has {}: give an absolute path without .., not /", path.display());
            return Err(SpecError::new("block_paths", reason));
        }
        check_blockable(path, request)?;
    }
    Ok(paths.to_vec())
}

/// Refuses a block that could not be kept: inside what is mounted whole, or made anew for each process.
fn check_blockable(path: &Path, request: &RunRequest) -> Result<(), SpecError> {
    let wrong = |reason: String| Err(SpecError::new("block_paths", reason));
    let shown = path.display();
    if let Some(workspace) = &request.workspace {
        let tops = [Path::new(WORKSPACE), &workspace.path];
        if tops.iter().any(|top| path.starts_with(top)) {
            return wrong(format!("has {shown}, inside the workspace, which is shown whole"));
        }
    }
    let entry = path.strip_prefix("/proc").ok().and_then(|inner| inner.components().next());
    let entry = entry.map(|one| one.as_os_str().to_string_lossy().into_owned());
    let of_a_process = entry.is_some_and(|name| {
        name == "self" || name == "thread-self" || name.bytes().all(|byte| byte.is_ascii_digit())
    });
    if of_a_process {
        return wrong(format!("has {shown}, which each process has of its own: block /proc whole"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
