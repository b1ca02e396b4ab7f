//! What a request must be to become a Spec: each field is looked at once, and a mistake is told by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use belljar_jail::egress::Rule;
use belljar_jail::layer::Layer;

use super::{
    CODE, Canary, Contents, LanguageFacts, MAX_ARGUMENT_BYTES, MAX_BLOCKED, MAX_CODE_BYTES,
    MAX_LABELS, PlacedFile, Program, Secret, Source, WORKSPACE,
};
use crate::model::error::SpecError;
use crate::model::level::Level;
use crate::model::limits::LimitsRequest;
use crate::model::request::{RunRequest, StartRequest};
use crate::seccomp;

/// A secret that is shorter is not one, and could not be told from ordinary text.
const LEAST_SECRET_BYTES: usize = 4;
/// What the payload itself still calls under the filter, to be released and become the program.
const NEEDED_TO_START: [&str; 6] = ["read", "write", "execve", "exit_group", "recvmsg", "sendmsg"];
/// Canaries of one run, and how long each may be. Shorter ones would be found by chance.
const MAX_CANARIES: usize = 16;
const CANARY_BYTES: std::ops::RangeInclusive<usize> = 8..=4096;

pub(super) fn canaries(given: Vec<String>) -> Result<Vec<Canary>, SpecError> {
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

pub(super) fn egress(request: &RunRequest) -> Result<Vec<Rule>, SpecError> {
    if !request.egress.is_empty() && !request.level.has_namespaces() {
        let reason = "needs a network of the sandbox's own: use level standard or strict";
        return Err(SpecError::new("egress", reason));
    }
    crate::model::egress::resolve(&request.egress)
}

pub(super) fn check_record(request: &RunRequest) -> Result<(), SpecError> {
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

pub(super) fn program(
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
pub(super) fn inside(field: &str, path: &str) -> Result<PathBuf, SpecError> {
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

pub(super) fn check_placed(placed: &[PlacedFile], host_workspace: bool) -> Result<(), SpecError> {
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
pub(super) fn check_enforceable(level: Level, limits: &LimitsRequest) -> Result<(), SpecError> {
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

pub(super) fn check_environment(request: &RunRequest) -> Result<(), SpecError> {
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
pub(super) fn secrets(
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

pub(super) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), SpecError> {
    let long = labels.iter().any(|(name, value)| name.is_empty() || name.len() + value.len() > 512);
    if labels.len() > MAX_LABELS || long {
        let reason = format!("may be {MAX_LABELS} at most, of 512 bytes each, with a name");
        return Err(SpecError::new("labels", reason));
    }
    Ok(())
}

pub(super) fn check_syscalls(request: &RunRequest) -> Result<(), SpecError> {
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

pub(super) fn layers_allowed_missing(names: &[String]) -> Result<BTreeSet<Layer>, SpecError> {
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

pub(super) fn blocked(request: &RunRequest) -> Result<Vec<PathBuf>, SpecError> {
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
