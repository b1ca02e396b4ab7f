//! Which runs a sandbox that was made ahead can serve, and what it must be made with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_jail::plan::{Hold, MAX_DELIVERY_BYTES};

use crate::engine::Run;
use crate::languages::{How, Language};
use crate::model::level::Level;
use crate::model::limits::LimitsRequest;
use crate::model::spec::{MAX_ARGUMENT_BYTES, Program, Spec, WORKSPACE};

/// Languages whose interpreters read certificates when they start, which is before the program comes.
const BELIEVES_AT_START: [&str; 1] = ["node"];
/// What interpreters and the C library read then.
const READ_AT_START: [&str; 12] = [
    "PYTHON", "NODE_", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "OPENSSL_", "SSL_", "UV_",
    "RES_",
];

// The longest arguments and variables fit into a delivery, with the language's own beside them.
const _: () = assert!(MAX_ARGUMENT_BYTES + (16 << 10) <= MAX_DELIVERY_BYTES);

/// What a sandbox depends on that is made before its program is known.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub spec: Spec,
    pub hold: Hold,
    pub(super) key: String,
}

impl Profile {
    fn new(spec: Spec, hold: Hold) -> Self {
        let key = format!("{hold:?} {}", spec.digest());
        Self { spec, hold, key }
    }

    pub(crate) fn language(&self) -> &str {
        match &self.spec.program {
            Program::Code { language, .. } => language,
            Program::Command { .. } => "",
        }
    }
}

/// A run that a sandbox made ahead can serve.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub profile: Profile,
}

impl Wanted {
    /// Says why not, where none can.
    pub(crate) fn new(run: &Run<'_>) -> Result<Self, &'static str> {
        let spec = run.spec();
        let (Program::Code { path, .. }, Some(language)) = (&spec.program, run.language()) else {
            return Err("it is a command, not code in a language");
        };
        let warm = language.warm.as_ref().ok_or("its language has no [warm] section")?;
        if !matches!(spec.level, Level::Standard | Level::Strict) {
            return Err("only the levels standard and strict are kept ready");
        }
        if spec.workspace.is_some() || run.keeps_files() {
            return Err("it shares a workspace with the host, or its files are wanted");
        }
        if spec.record {
            return Err("it is recorded");
        }
        if spec.placed.iter().any(|file| !file.path.starts_with(WORKSPACE)) {
            return Err("a file of it lies outside of /workspace");
        }
        let hold = match (warm.how, spec.level) {
            (How::Park, _) => Hold::Exec,
            (How::Fork, Level::Standard) if run.can_fork() => Hold::Forked,
            (How::Fork | How::Start, _) if !warm.start.is_empty() => Hold::Started,
            (How::Fork | How::Start, _) => return Err("its language has no warm start here"),
        };
        let at_start = |name: &String| READ_AT_START.iter().any(|one| name.starts_with(one));
        if hold != Hold::Exec && spec.variables().any(|(name, _)| at_start(name)) {
            return Err("a variable of it is read when the interpreter starts");
        }
        let believes = spec.sealing.as_ref().is_some_and(|one| !one.files.is_empty());
        if hold != Hold::Exec && believes && BELIEVES_AT_START.contains(&language.name.as_str()) {
            return Err("its language reads certificates when the interpreter starts");
        }
        let keeps_path =
            hold == Hold::Started && warm.start.iter().any(|one| one.contains("{file}"));
        let path = if keeps_path { path.clone() } else { program_path(language) };
        Ok(Self { profile: Profile::new(stripped(spec, &language.name, path), hold) })
    }
}

fn program_path(language: &Language) -> PathBuf {
    Path::new(WORKSPACE).join(&language.file)
}

/// A Spec without all that comes with the program.
fn stripped(spec: &Spec, language: &str, path: PathBuf) -> Spec {
    let mut limits = spec.limits;
    if let Ok(plain) = LimitsRequest::default().resolve() {
        limits.wall_ms = plain.wall_ms;
        limits.output_bytes = plain.output_bytes;
        limits.output_total_bytes = plain.output_total_bytes;
    }
    Spec {
        program: Program::Code { language: language.to_owned(), path },
        args: Vec::new(),
        env: BTreeMap::new(),
        secret_env: BTreeMap::new(),
        secrets: Vec::new(),
        hidden: Vec::new(),
        hidden_outside: Vec::new(),
        sealing: None,
        stdin: None,
        placed: Vec::new(),
        workspace: None,
        level: spec.level,
        limits,
        allow_missing: spec.allow_missing.clone(),
        allow_syscalls: spec.allow_syscalls.clone(),
        deny_syscalls: spec.deny_syscalls.clone(),
        block_paths: spec.block_paths.clone(),
        labels: BTreeMap::new(),
        record: false,
        canaries: Vec::new(),
        // It comes with the program.
        egress: Vec::new(),
    }
}
