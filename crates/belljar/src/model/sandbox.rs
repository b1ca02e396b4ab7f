//! Living sandboxes on the wire: what is asked of them and what is told.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use belljar_jail::egress::Reached;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::egress::{EgressEntry, ReachedShape};
use super::event::Event;
use super::level::Level;
use super::limits::LimitsRequest;
use super::outcome::{FaultDomain, Stream, Verdict};
use super::receipt::Receipt;
use super::request::Data;
use super::secret::SecretRequest;

/// A sandbox to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxRequest {
    /// Lower-case letters, digits and `-`, 1 to 63 of them, a letter or digit first. One is made up when left out.
    pub name: Option<String>,
    /// `host` is the only image of this version.
    pub image: Option<String>,
    pub level: Level,
    /// Of the sandbox as a whole: memory, processes, cores, disk, inodes; the time limits are those of an exec
    /// that names none.
    pub limits: LimitsRequest,
    pub env: BTreeMap<String, String>,
    /// Secrets of the host, by name, for every program in it. Each gets the value of the moment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRequest>,
    pub labels: BTreeMap<String, String>,
    pub workspace: Option<SandboxWorkspace>,
    pub allow_missing: Vec<String>,
    pub allow_syscalls: Vec<String>,
    pub deny_syscalls: Vec<String>,
    /// What may be reached of the outside, by host name. Nothing if empty; it can be changed while it lives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressEntry>,
    /// Stopped when nothing ran in it for so long.
    pub idle_ms: Option<u64>,
    /// Removed, with its files, so long after it was made.
    pub ttl_ms: Option<u64>,
    /// A point to go back to is made before each exec.
    pub undo: bool,
    /// Paths inside that programs may write; everything that is writable when empty.
    pub write_paths: Vec<PathBuf>,
}

/// On whose account a sandbox is: who made it, as the server knows them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Owner(String);

impl Owner {
    /// A user of this host, for whom the kernel vouches.
    pub fn local(uid: u32) -> Self {
        Self(format!("uid {uid}"))
    }

    /// Whoever holds a key of this name.
    pub fn key(name: &str) -> Self {
        Self(format!("key {name}"))
    }
}

/// Of a sandbox that was made before this was written down.
impl Default for Owner {
    fn default() -> Self {
        Self("unknown".to_owned())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What is at /workspace in place of the sandbox's own directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxWorkspace {
    /// A host directory; or `volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// A named volume, made when it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(default)]
    pub mode: WorkspaceMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceMode {
    #[default]
    ReadOnly,
    ReadWrite,
    /// Changes stay in the sandbox until they are committed.
    CopyOnWrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Files and a record; nothing runs yet.
    Created,
    Running,
    Paused,
    Stopped,
    Failed,
    Removing,
}

/// What is known of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxInfo {
    pub id: String,
    pub name: String,
    pub state: SandboxState,
    /// On whose account it is: `uid 1000` or `key NAME`.
    #[serde(default)]
    pub owner: Owner,
    pub image: String,
    pub level: Level,
    pub labels: BTreeMap<String, String>,
    /// RFC 3339.
    pub created_at: String,
    pub expires_at: Option<String>,
    /// What went wrong last, kept until it is started again.
    pub error: Option<String>,
    /// The sandbox that this one was forked from.
    pub parent: Option<String>,
    pub usage: Option<SandboxUsage>,
    pub receipt: Option<Receipt>,
}

/// What is known of a sandbox's network, or of a run's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkInfo {
    /// What may be reached, as it would be asked for.
    pub egress: Vec<EgressEntry>,
    #[schemars(with = "Vec<ReachedShape>")]
    pub reached: Vec<Reached>,
    /// What was tried and refused, each with the line that would allow it.
    pub refused: Vec<Event>,
    /// Secrets that are put in on the way out, each with its hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRequest>,
    /// Hosts whose TLS is ended on the way and looked into, because a rule says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inspected: Vec<String>,
}

/// What may be reached from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressChange {
    pub egress: Vec<EgressEntry>,
}

/// Resource use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxUsage {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub inodes: Option<u64>,
    pub execs: u64,
}

/// A program to run in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExecRequest {
    /// A program and its arguments, without a shell.
    pub cmd: Vec<String>,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    /// `sandbox`, the one user there is.
    pub user: Option<String>,
    /// What is on its standard input. Without it, the input is empty; with `keep_stdin` it stays open.
    pub stdin: Option<Data>,
    pub keep_stdin: bool,
    pub timeout_ms: Option<u64>,
    /// Answer when it has started; it is followed by its id.
    pub background: bool,
    /// A terminal of this size in place of pipes.
    pub terminal: Option<TerminalSize>,
}

/// One program in a sandbox that is made for it and torn down after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneShotRequest {
    /// Python code, or a script for bash.
    #[serde(alias = "script")]
    pub code: String,
    /// What it runs in.
    pub sandbox: SandboxRequest,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub stdin: Option<Data>,
    pub timeout_ms: Option<u64>,
}

impl OneShotRequest {
    /// This code, in a sandbox as it is without a word about it.
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    Running,
    Ended,
    /// The sandbox was stopped or lost under it.
    Lost,
}

/// One exec: while it runs, and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecInfo {
    pub id: String,
    pub sandbox: String,
    pub cmd: Vec<String>,
    pub state: ExecState,
    pub started_at: String,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub end: Option<ExecEnd>,
    /// What it tried and was refused, as of a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// How an exec ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecEnd {
    pub verdict: Verdict,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub fault_domain: FaultDomain,
    pub elapsed_ms: u64,
    pub cpu_ms: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
}

/// Something of an exec, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecEvent {
    Started {
        id: String,
    },
    Output {
        stream: Stream,
        offset: u64,
        data: Data,
    },
    /// Bytes that are no longer kept.
    Gap {
        stream: Stream,
        from: u64,
        to: u64,
    },
    Ended(ExecInfo),
}

/// A point to come back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotInfo {
    pub tag: String,
    pub created_at: String,
    /// Made before an exec, not by name.
    pub automatic: bool,
    /// What it holds beyond the point before it.
    pub bytes: u64,
    pub files: u64,
    /// Whether what ran went on meanwhile and its files were copied.
    pub copied: bool,
}

/// One difference between two points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    pub path: String,
    pub kind: ChangeKind,
    /// What is there now: `file`, `directory`, `symlink`, `fifo`, `socket`.
    pub what: String,
    pub bytes_before: Option<u64>,
    pub bytes_after: Option<u64>,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Modified,
    /// The same contents with another mode, owner or attribute.
    Metadata,
    Removed,
}

/// A file of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileInfo {
    pub name: String,
    pub path: String,
    /// The path's bytes in base64, when they are no UTF-8 and `name` and `path` show only what can be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_path: Option<String>,
    pub kind: FileKind,
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
    pub target: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// Code for a context, which keeps its variables between calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CodeRequest {
    pub code: String,
    /// A context of this sandbox; the language's own default one is made when it is not there.
    pub context: Option<String>,
    /// `python` (default), `bash` or `node`; of a context that is there already it must be its language.
    pub language: Option<String>,
    pub timeout_ms: Option<u64>,
    pub env: BTreeMap<String, String>,
}

/// What a piece of code came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeResult {
    pub context: String,
    pub ok: bool,
    pub stdout: String,
    pub stderr: String,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    /// The value of the last expression first, then what was displayed, in order.
    pub results: Vec<RichResult>,
    /// Results beyond what a call may have, or that could not be read.
    pub dropped_results: u64,
    pub error: Option<CodeError>,
    /// Of bash: the status of the last command.
    pub exit_code: Option<i32>,
    pub elapsed_ms: u64,
    /// How often this context has run code.
    pub count: u64,
    /// The context had died, so this ran in a fresh one: nothing of the calls before was there.
    pub restarted: bool,
    /// How the context's process ended, if it did in this call.
    pub end: Option<ExecEnd>,
}

/// Something of a piece of code while it runs, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeEvent {
    /// It is this context's turn for it.
    Started {
        context: String,
        count: u64,
        restarted: bool,
    },
    /// Whole characters; what is no UTF-8 is replaced.
    Output {
        stream: Stream,
        text: String,
    },
    Result(RichResult),
}

/// One value in every form that it has: MIME type to contents (base64 for images).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RichResult {
    /// It is the value of the last expression, not something displayed on the way.
    pub main: bool,
    pub data: BTreeMap<String, serde_json::Value>,
    /// Forms that it has and that are too large to be told: type and size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeError {
    pub name: String,
    pub value: String,
    pub traceback: String,
    pub line: Option<u64>,
}

/// What came of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interruption {
    pub context: String,
    pub outcome: Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Interrupted {
    /// No code ran.
    Idle,
    /// The code has heard it, and may be clearing up.
    Heard,
    /// The code has ended; the variables stay.
    Ended,
    /// The code did not heed it, so its context was ended with it: the next call begins in a fresh one.
    Restarted,
}

/// A context of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextInfo {
    pub id: String,
    pub language: String,
    pub cwd: String,
    pub busy: bool,
    pub count: u64,
}
