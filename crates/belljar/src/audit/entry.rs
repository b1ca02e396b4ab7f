//! What is recorded of a run. Pure: a Spec or an Outcome goes in, an entry comes out, without secrets
//! and of bounded length.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::chain::Entry;
use super::redact::{Secrets, bounded};
use super::{AuditConfig, Bodies, Caller, Kind, user_name};
use crate::model::error::Error;
use crate::model::event::Risk;
use crate::model::level::Level;
use crate::model::outcome::{FaultDomain, Outcome, Start};
use crate::model::request::RunRequest;
use crate::model::spec::{Program, Source, Spec, sha256};
use crate::visible::escaped_json;

/// Kept of the program's text; its digest is of the whole.
pub(crate) const MAX_CODE_BYTES: usize = 256 << 10;
/// Kept of each output stream, half head, half tail.
pub(crate) const MAX_STREAM_BYTES: usize = 32 << 10;
/// A record longer than this says only how long it would have been.
const MAX_DETAIL_BYTES: usize = 8 << 20;

/// What lists, filters and statistics look at. A start has no verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Summary {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub peer: String,
    /// The name of the request that it came with: `X-Request-Id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// SHA-256 of the program's text; of the command with its arguments where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_digest: Option<String>,
    pub spec_digest: String,
    /// SHA-256 of everything that confines: level, limits, calls, paths.
    pub policy_digest: String,
    /// When the run began, for records of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_us: Option<u64>,
    /// How it ended: the word of a verdict, or `error`, `cancelled`, `unfinished`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault_domain: Option<FaultDomain>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// How many events of each kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// The kind of error, when there is no verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Summary {
    /// Whether a key of this tenant asked for it: keys are recorded as `tenant`, or as `tenant/key`.
    pub(crate) fn is_of(&self, tenant: &str) -> bool {
        let key = self.key.as_deref().unwrap_or_default();
        key.split_once('/').map_or(key, |(tenant, _)| tenant) == tenant
    }
}

/// A request that was checked, as far as its record needs it.
#[derive(Debug)]
pub(crate) struct Asked {
    request: Value,
    /// What is recorded as the code, where the program that runs is one of ours.
    pub code: Option<String>,
    /// What it says is recorded by its digest, whatever else is kept: hidden cases could be read in it.
    pub says_nothing: bool,
}

impl Asked {
    /// The request without code, data and secrets. The Spec has the digests of those.
    pub(crate) fn new(request: &RunRequest) -> Self {
        let short = RunRequest {
            code: None,
            stdin: None,
            files: BTreeMap::new(),
            env: request.env.keys().map(|name| (name.clone(), env_shown(request, name))).collect(),
            entry: request.entry.clone(),
            command: request.command.clone(),
            language: request.language.clone(),
            file_name: request.file_name.clone(),
            args: request.args.clone(),
            secret_env: request.secret_env.clone(),
            secrets: request.secrets.clone(),
            copies: request.copies.clone(),
            workspace: request.workspace.clone(),
            limits: request.limits.clone(),
            allow_missing: request.allow_missing.clone(),
            allow_syscalls: request.allow_syscalls.clone(),
            deny_syscalls: request.deny_syscalls.clone(),
            block_paths: request.block_paths.clone(),
            labels: request.labels.clone(),
            egress: request.egress.clone(),
            canaries: request.canaries.iter().map(|_| super::REDACTED.to_owned()).collect(),
            ..*request
        };
        let mut request_json = serde_json::to_value(&short).unwrap_or_default();
        let bytes = |length: usize| json!({ "bytes": length });
        request_json["stdin"] =
            request.stdin.as_ref().map_or(Value::Null, |one| bytes(one.0.len()));
        for (path, data) in &request.files {
            request_json["files"][path] = bytes(data.0.len());
        }
        if let Some(all) = request_json.as_object_mut() {
            all.retain(|_, value| !is_nothing(value));
        }
        Self { request: request_json, code: None, says_nothing: false }
    }
}

fn env_shown(request: &RunRequest, name: &String) -> String {
    if request.secret_env.contains(name) {
        return super::REDACTED.to_owned();
    }
    request.env.get(name).cloned().unwrap_or_default()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.values().all(is_nothing),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What is known of a run before it begins, and stands in both of its records.
#[derive(Debug)]
pub(crate) struct Subject {
    pub run: String,
    pub secrets: Secrets,
    summary: Summary,
    bodies: Bodies,
    streams: Bodies,
}

impl Subject {
    pub(crate) fn new(
        run: &str,
        spec: &Spec,
        asked: &Asked,
        caller: &Caller,
        config: &AuditConfig,
    ) -> Self {
        let language = match &spec.program {
            Program::Code { language, .. } => Some(language.clone()),
            Program::Command { .. } => None,
        };
        let summary = Summary {
            uid: caller.uid,
            user: caller.uid.and_then(user_name),
            key: caller.key.clone(),
            peer: caller.peer.to_owned(),
            request_id: caller.request_id.clone(),
            labels: spec.labels.clone(),
            language,
            level: Some(spec.level),
            code_digest: code_digest(spec, asked),
            spec_digest: spec.digest(),
            policy_digest: spec.policy_digest(),
            ..Summary::default()
        };
        let secret = spec.secret_env.values().map(|one| one.reveal());
        let hidden = spec.hidden.iter().map(|one| one.reveal());
        let canaries = spec.canaries.iter().map(|one| one.0.as_str());
        let mut secrets = Secrets::new(secret.chain(hidden).chain(canaries));
        spec.hidden_outside.iter().for_each(|one| secrets.add_outside(one.reveal()));
        let streams = if asked.says_nothing { Bodies::Digests } else { config.bodies };
        Self { run: run.to_owned(), secrets, summary, bodies: config.bodies, streams }
    }

    /// The record of a run's beginning.
    pub(crate) fn start(&mut self, spec: &Spec, asked: &Asked, engine: &str, at_us: u64) -> Entry {
        let mut detail = json!({ "request": asked.request, "spec": spec, "engine": engine });
        if let (Bodies::Kept, Some(code)) = (self.bodies, code(spec, asked)) {
            let code = self.secrets.hide(&String::from_utf8_lossy(code));
            detail["code"] = bounded(code, MAX_CODE_BYTES).into();
        }
        let entry = self.entry(Kind::Start, at_us, self.summary.clone(), detail);
        self.summary.began_us = Some(at_us);
        entry
    }

    /// The record of a run's end.
    pub(crate) fn end(&self, result: &Result<Outcome, Error>, at_us: u64) -> Entry {
        let summary = self.summary.clone();
        let (summary, detail) = match result {
            Ok(outcome) => (ended(summary, outcome), json!({ "outcome": self.outcome(outcome) })),
            Err(error) => {
                let verdict = if matches!(error, Error::Cancelled) { "cancelled" } else { "error" };
                let told = json!({ "kind": error.kind(), "message": error.to_string() });
                let summary = Summary {
                    verdict: Some(verdict.to_owned()),
                    error: Some(error.kind().to_owned()),
                    ..summary
                };
                (summary, json!({ "error": told }))
            }
        };
        self.entry(Kind::End, at_us, summary, detail)
    }

    fn entry(&self, kind: Kind, at_us: u64, summary: Summary, detail: Value) -> Entry {
        let summary = serde_json::to_value(summary).unwrap_or_default();
        let mut detail = self.secrets.clean(detail).to_string();
        if detail.len() > MAX_DETAIL_BYTES {
            detail = json!({ "too_long_bytes": detail.len(), "digest": sha256(detail.as_bytes()) })
                .to_string();
        }
        Entry {
            at_us,
            kind: kind.name().to_owned(),
            run: self.run.clone(),
            summary: escaped_json(&self.secrets.clean(summary).to_string()),
            detail: escaped_json(&detail),
        }
    }

    /// An Outcome as it is recorded: text, bounded, no second form of the same bytes.
    fn outcome(&self, outcome: &Outcome) -> Value {
        let short = Outcome {
            stdout: self.stream(&outcome.stdout, outcome.stdout_dropped_bytes),
            stderr: self.stream(&outcome.stderr, outcome.stderr_dropped_bytes),
            stdout_base64: None,
            stderr_base64: None,
            ..outcome.clone()
        };
        serde_json::to_value(short).unwrap_or_default()
    }

    fn stream(&self, text: &str, dropped_bytes: u64) -> String {
        let mark = format!("\n[belljar: {dropped_bytes} bytes dropped here]\n");
        let text = match text.split_once(&mark).filter(|_| dropped_bytes > 0) {
            Some((head, tail)) => {
                let (head, tail) = self.secrets.hide_at_cut(head, tail);
                format!("{head}{mark}{tail}")
            }
            None => self.secrets.hide(text),
        };
        match self.streams {
            Bodies::Digests if !text.is_empty() => sha256(text.as_bytes()),
            Bodies::Digests | Bodies::Kept => bounded(text, MAX_STREAM_BYTES),
        }
    }
}

/// The record that a later engine makes of a run whose own engine died.
pub(crate) fn closed(run: &str, start: Option<&Entry>, engine: &str, at_us: u64) -> Entry {
    let began = start.and_then(|entry| serde_json::from_str::<Summary>(&entry.summary).ok());
    let summary = Summary {
        verdict: Some("unfinished".to_owned()),
        began_us: start.map(|entry| entry.at_us),
        ..began.unwrap_or_default()
    };
    let why = "its engine ended before it could tell how the run did";
    let detail = json!({ "closed": why, "engine": engine });
    Entry {
        at_us,
        kind: Kind::Closed.name().to_owned(),
        run: run.to_owned(),
        summary: serde_json::to_string(&summary).unwrap_or_default(),
        detail: detail.to_string(),
    }
}

fn ended(summary: Summary, outcome: &Outcome) -> Summary {
    let mut events = BTreeMap::new();
    for event in &outcome.events {
        let count: &mut u64 = events.entry(event.kind.name().to_owned()).or_default();
        *count = count.saturating_add(event.count);
    }
    Summary {
        verdict: Some(outcome.verdict.kind().to_owned()),
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        fault_domain: Some(outcome.fault_domain),
        risk: Some(outcome.risk),
        events,
        elapsed_ms: Some(outcome.elapsed_ms),
        cpu_ms: Some(outcome.cpu_ms),
        memory_peak_bytes: outcome.memory_peak_bytes,
        start: Some(outcome.start),
        ..summary
    }
}

/// The program's text, where we have it.
fn code<'a>(spec: &'a Spec, asked: &'a Asked) -> Option<&'a [u8]> {
    if let Some(code) = &asked.code {
        return Some(code.as_bytes());
    }
    let Program::Code { path, .. } = &spec.program else { return None };
    spec.placed.iter().filter(|file| file.path == *path).find_map(|file| match &file.source {
        Source::Given(contents) => Some(contents.0.as_slice()),
        Source::Host(_) => None,
    })
}

fn code_digest(spec: &Spec, asked: &Asked) -> Option<String> {
    match &spec.program {
        Program::Code { .. } => code(spec, asked).map(sha256),
        Program::Command { argv } => serde_json::to_vec(argv).ok().map(|json| sha256(&json)),
    }
}
