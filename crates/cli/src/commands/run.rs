//! `belljar run`: one program, once.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use belljar::{
    Ahead, Config, CopiedOut, Data, Engine, Error, Fault, FaultKind, LimitsRequest, MAX_CODE_BYTES,
    Outcome, Policy, RunRequest, SpecError, Workspace,
};
use serde::Serialize;

use super::audit::Recorder;
use crate::args::{LimitArgs, Run};
use crate::output;
use crate::remote::{self, Failure};
use crate::render::{self, Live};

pub(crate) async fn run(args: Run, ahead: Option<Ahead>) -> u8 {
    let (as_json, quiet, record) = (args.json, args.quiet, args.record);
    match carry_out(args, ahead).await {
        Ok(Done { outcome, copied, request, recorded }) => {
            let mut code = render::exit_code(&outcome);
            if as_json {
                let printed = match request.filter(|_| record) {
                    Some(request) => render::json(&Recorded { outcome: &outcome, request }),
                    None => render::json(&outcome),
                };
                code = if printed == 0 { code } else { printed };
            } else if !quiet {
                let tried = render::tried(&outcome);
                let more = (recorded && !tried.is_empty()).then(|| render::explained(&outcome));
                let words = tried.into_iter().chain(more).chain(render::summary(&outcome));
                for line in words.chain(render::advice(&outcome)) {
                    render::trouble(&line, 0);
                }
            }
            match copied.and_then(|copied| copied.stopped) {
                // Whoever asked for results and reads only the code must not take them for whole.
                Some(why) => render::copy_stopped(&why),
                None => code,
            }
        }
        Err(failure) => {
            if as_json {
                render::json(&failure.json());
            } else {
                render::trouble(&failure.text(), 0);
            }
            failure.code()
        }
    }
}

/// A run that came to its end.
struct Done {
    outcome: Outcome,
    copied: Option<CopiedOut>,
    request: Option<RunRequest>,
    /// By us, in the audit trail of this user.
    recorded: bool,
}

/// A recorded run with what was asked, so that it can be run again (`belljar policy learn`).
#[derive(Serialize)]
struct Recorded<'a> {
    #[serde(flatten)]
    outcome: &'a Outcome,
    request: RunRequest,
}

async fn carry_out(args: Run, ahead: Option<Ahead>) -> Result<Done, Failure> {
    let fault = args.fault.as_deref().map(parse_fault).transpose()?;
    let (recorded, screen_rules) = (args.audit.clone(), args.screen_rules.clone());
    // Where `explain` looks by itself.
    let recorded_here = args.audit.state.is_none();
    let open = || {
        let audit = super::audit::config(&recorded, Recorder::Lone)?;
        let secrets = super::secret::places(recorded.state.as_deref());
        let config = Config { fault, audit, screen_rules, secrets, ..Config::default() };
        let engine = Engine::open(config)?;
        Ok::<_, Error>(match ahead {
            Some(ahead) => engine.with_keeper(ahead),
            None => engine,
        })
    };
    let (out, as_json, raw, quiet) = (args.out.clone(), args.json, args.raw, args.quiet);
    let (engine, request) = match remote::find(&args)? {
        Some(server) => {
            let request = request(args)?;
            if let Some(sent) = server.takes(&request)? {
                let outcome = elsewhere(server, sent, as_json, raw).await?;
                let request = Some(request);
                return Ok(Done { outcome, copied: None, request, recorded: false });
            }
            (open()?, request)
        }
        None => (open()?, request(args)?),
    };
    let asked = request.record.then(|| request.clone());
    let mut run = engine.prepare(request)?;
    if let Some(directory) = out {
        run = run.copy_out(directory)?;
    }
    let mut live = Live::new(raw);
    let mut reader_gone = false;
    let mut sink = |stream, bytes: &[u8]| {
        if !as_json && !reader_gone {
            // Nobody reads (`| head`): the program may go on, but is heard no more. Or we were asked
            // to end while we waited for a reader, which is seen below.
            reader_gone = live.write(stream, bytes).is_err();
        }
    };
    let (outcome, copied) = tokio::select! {
        result = run.run_with_files(&mut sink) => result?,
        () = super::interrupted() => return Err(super::cancelled(&engine).await.into()),
    };
    if output::asked_to_end() {
        return Err(super::cancelled(&engine).await.into()); // in the same moment; the output is not whole
    }
    if !reader_gone {
        // As above: a reader that is gone by now misses nothing that it asked for.
        live.finish().ok();
    }
    for skipped in copied.iter().flat_map(|one| &one.skipped).filter(|_| !quiet) {
        render::trouble(&format!("not copied out: {} ({})", skipped.path, skipped.reason), 0);
    }
    Ok(Done { outcome, copied, request: asked, recorded: recorded_here && engine.records() })
}

/// The same by a server. Whoever interrupts us closes the connection, and the server ends the run.
async fn elsewhere(
    server: remote::Server,
    sent: remote::Sent,
    as_json: bool,
    raw: bool,
) -> Result<Outcome, Failure> {
    let mut live = Live::new(raw);
    let mut reader_gone = false;
    let mut sink = |stream, bytes: &[u8]| {
        if !reader_gone {
            reader_gone = live.write(stream, bytes).is_err();
        }
    };
    let outcome = tokio::select! {
        result = server.run(sent, as_json, &mut sink) => result?,
        () = super::interrupted() => return Err(Error::Cancelled.into()),
    };
    if !reader_gone {
        // A reader that is gone by now misses nothing that it asked for.
        live.finish().ok();
    }
    Ok(outcome)
}

/// The request that the arguments ask for.
fn request(args: Run) -> Result<RunRequest, Error> {
    let workspace = args.workspace.as_deref().map(parse_workspace);
    let policy = args.confine.policy.as_deref().map(read_policy).transpose()?;
    let mut request = RunRequest {
        language: args.language.clone(),
        env: environment(&args)?,
        secret_env: args.env_secret.iter().map(|one| name_of(one).to_owned()).collect(),
        secrets: super::secret::asked(&args.secrets)?,
        labels: pairs("labels", &args.labels)?,
        stdin: args.stdin.as_deref().map(read_stdin).transpose()?,
        copies: copies(&args.copies)?,
        level: args.confine.level,
        limits: limits(&args.limits),
        allow_missing: args.confine.allow_missing,
        allow_syscalls: args.confine.allow_syscall,
        deny_syscalls: args.confine.deny_syscall,
        block_paths: args.confine.block_path,
        args: args.args,
        start: args.start,
        record: args.record,
        canaries: args.canaries,
        egress: args.egress.into_iter().map(belljar::EgressEntry::Text).collect(),
        screen: args.screen,
        ..RunRequest::default()
    };
    match (args.code, args.program) {
        (Some(code), _) => {
            request.code = Some(code);
            request.language = request.language.or(Some("python".to_owned()));
        }
        (None, Some(file)) if file == Path::new("-") => {
            request.code = Some(text("code", "standard input", read_bounded(std::io::stdin()))?);
            if request.language.is_none() && !starts_with_shebang(request.code.as_deref()) {
                let reason = "must be given for code on standard input without a #! line: --language python, bash or node";
                return Err(SpecError::new("language", reason).into());
            }
        }
        (None, Some(file)) => program_file(&mut request, &file, workspace.as_ref())?,
        (None, None) => return Err(SpecError::new("FILE", "is missing").into()),
    }
    request.workspace = workspace;
    if let Some(policy) = policy {
        policy.apply(&mut request);
    }
    Ok(request)
}

/// A policy is short; what is longer is another file.
const MAX_POLICY_BYTES: u64 = 1 << 20;

fn read_policy(path: &Path) -> Result<Policy, SpecError> {
    let wrong = |reason: String| SpecError::new("policy", format!("{}: {reason}", path.display()));
    let mut text = String::new();
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|file| file.take(MAX_POLICY_BYTES).read_to_string(&mut text));
    read.map_err(|error| wrong(error.to_string()))?;
    Policy::parse(&text).map_err(wrong)
}

fn starts_with_shebang(code: Option<&str>) -> bool {
    code.is_some_and(|code| code.starts_with("#!"))
}

/// A file inside the workspace runs in place; any other is copied in.
fn program_file(
    request: &mut RunRequest,
    file: &Path,
    workspace: Option<&Workspace>,
) -> Result<(), Error> {
    let inside = workspace.and_then(|workspace| {
        let top = workspace.path.canonicalize().ok()?;
        let real = file.canonicalize().ok()?;
        Some(real.strip_prefix(top).ok()?.to_str()?.to_owned())
    });
    let shown = file.display().to_string();
    let opened = std::fs::File::open(file).and_then(|opened| {
        if opened.metadata()?.is_dir() {
            return Err(std::io::Error::other("is a directory; give the file to run"));
        }
        Ok(opened)
    });
    let code = text("FILE", &shown, opened.and_then(read_bounded))?;
    if let Some(inside) = inside {
        if request.language.is_none() && starts_with_shebang(Some(&code)) {
            let languages =
                belljar::languages::Languages::load(&Config::default().language_directories)?;
            request.language = Some(languages.detect(Some(file), &code)?.name.clone());
        }
        request.entry = Some(inside);
        return Ok(());
    }
    request.file_name = file.file_name().and_then(|name| name.to_str()).map(ToOwned::to_owned);
    request.code = Some(code);
    Ok(())
}

/// Reads no more than a program may have, plus one byte, so that too long is seen without reading on.
pub(super) fn read_bounded(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_CODE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn text(
    field: &str,
    shown: &str,
    bytes: std::io::Result<Vec<u8>>,
) -> Result<String, SpecError> {
    let bytes = bytes.map_err(|error| SpecError::new(field, format!("{shown}: {error}")))?;
    if bytes.len() > MAX_CODE_BYTES {
        let reason = format!(
            "{shown} is longer than {MAX_CODE_BYTES} bytes: programs are text; pass data with --file"
        );
        return Err(SpecError::new(field, reason));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        SpecError::new(field, format!("{shown} is not UTF-8 text (byte {at}); save it as UTF-8"))
    })
}

/// Standard input travels in the request; more than this belongs in a file.
const MAX_STDIN_BYTES: u64 = 64 << 20;

pub(super) fn read_stdin(path: &Path) -> Result<Data, SpecError> {
    let wrong = |reason: String| SpecError::new("stdin", format!("{}: {reason}", path.display()));
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?)
    };
    let mut bytes = Vec::new();
    let read = source.take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        let reason = format!("is longer than {MAX_STDIN_BYTES} bytes: copy it in with --file");
        return Err(wrong(reason));
    }
    Ok(bytes.into())
}

pub(super) fn pairs(field: &str, given: &[String]) -> Result<BTreeMap<String, String>, SpecError> {
    given
        .iter()
        .map(|pair| {
            pair.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .ok_or_else(|| SpecError::new(field, format!("\"{pair}\" is not NAME=VALUE")))
        })
        .collect()
}

/// Plain variables and secret ones. A secret without a value has ours.
fn environment(args: &Run) -> Result<BTreeMap<String, String>, SpecError> {
    let mut all = pairs("env", &args.env)?;
    for given in &args.env_secret {
        let name = name_of(given);
        let value = match given.split_once('=') {
            Some((_, value)) => value.to_owned(),
            None => std::env::var(name).map_err(|_| {
                let reason = format!("names {name}, which our environment has not, or not as text");
                SpecError::new("env-secret", reason)
            })?,
        };
        if all.insert(name.to_owned(), value).is_some() {
            return Err(SpecError::new("env-secret", format!("names {name}, which --env has too")));
        }
    }
    Ok(all)
}

fn name_of(given: &str) -> &str {
    given.split_once('=').map_or(given, |(name, _)| name)
}

fn copies(given: &[String]) -> Result<BTreeMap<String, PathBuf>, SpecError> {
    let mut copies = BTreeMap::new();
    for pair in given {
        let (host, inside) = pair.rsplit_once(':').ok_or_else(|| {
            SpecError::new(
                "file",
                format!("\"{pair}\" is not HOST:INSIDE, as in data.csv:data.csv"),
            )
        })?;
        if copies.insert(inside.to_owned(), PathBuf::from(host)).is_some() {
            return Err(SpecError::new("file", format!("names {inside} twice")));
        }
    }
    Ok(copies)
}

fn parse_workspace(text: &str) -> Workspace {
    let (path, writable) = match text.strip_suffix(":rw") {
        Some(path) => (path, true),
        None => (text.strip_suffix(":ro").unwrap_or(text), false),
    };
    Workspace { path: PathBuf::from(path), writable }
}

pub(super) fn limits(args: &LimitArgs) -> LimitsRequest {
    LimitsRequest {
        wall_ms: args.timeout,
        cpu_ms: args.cpu_time,
        millicpus: args.cpus,
        memory_bytes: args.memory,
        processes: args.pids,
        disk_bytes: args.disk,
        inodes: args.inodes,
        open_files: args.files,
        file_bytes: args.file_size,
        output_bytes: args.output,
        output_total_bytes: args.output_total,
    }
}

pub(super) fn parse_fault(text: &str) -> Result<Fault, SpecError> {
    let (name, kind) = match text.strip_suffix(":die") {
        Some(name) => (name, FaultKind::Die),
        None => (text, FaultKind::Error),
    };
    let step = serde_json::from_value(serde_json::Value::String(name.to_owned()))
        .map_err(|_| SpecError::new("fault", format!("\"{name}\" is not a step")))?;
    Ok(Fault { step, kind })
}
