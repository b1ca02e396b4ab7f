//! What is on the disk of a living sandbox: how it was raised, its execs, and why it ended.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_jail::egress::Rule;
use belljar_jail::layer::{Check, Layer};
use belljar_jail::living::log::{self, Piece};
use belljar_jail::living::talk::{
    ENDED, EXEC_BEGUN, EXEC_ENDED, EXEC_EVENTS, EXECS, Over, Recorded, RecordedEnd, SandboxEnd,
    VERIFIED, is_exec_id,
};
use belljar_jail::report::Message;
use serde::{Deserialize, Serialize};

use crate::events::{Rules, Tally};
use crate::model::error::SpecError;
use crate::model::event::Event;
use crate::model::level::Level;
use crate::model::limits::Limits;
use crate::model::outcome::{DiskLimit, FaultDomain, Stream, Verdict};
use crate::model::receipt::{Missing, Receipt, Versions};
use crate::model::sandbox::{ExecEnd, ExecInfo, ExecState};
use crate::model::secret::{SecretMode, SecretRequest};
use crate::native::{Facts, end_of, judge};
use crate::seccomp::{Adjust, Hearing, Profile};

/// How it was raised, in its directory.
pub(super) const RAISED: &str = "raised.json";
/// In the directory of an exec: its sandbox was lost under it.
const LOST: &str = "lost";
/// The largest of the small files.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What must be known of a sandbox to speak with it, whoever raised it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Raised {
    pub sandbox: String,
    pub level: Level,
    pub limits: Limits,
    /// What every exec has, before its own.
    pub environment: Vec<(String, String)>,
    /// Secrets by name, of which every exec has the value of the moment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRequest>,
    pub allow_syscalls: Vec<String>,
    pub deny_syscalls: Vec<String>,
    pub refuse_unix_sockets: bool,
    #[serde(default)]
    pub egress: Vec<Rule>,
    /// Its programs believe an authority of its own.
    #[serde(default)]
    pub ends_tls: bool,
    pub missing: Vec<Missing>,
    pub spec_digest: String,
    pub versions: Versions,
}

impl Raised {
    /// What stands for its secrets, and its decoys, by variable.
    pub(super) fn tokens(&self) -> BTreeMap<String, String> {
        let made_up = self.secrets.iter().filter(|one| one.mode() != SecretMode::Env);
        let names: Vec<String> = made_up.map(SecretRequest::variable).collect();
        self.environment.iter().filter(|(name, _)| names.contains(name)).cloned().collect()
    }
}

pub(super) fn raised(directory: &Path) -> io::Result<(Raised, Receipt)> {
    let raised: Raised = read(&directory.join(RAISED))?;
    let layers: Vec<Check> = read(&directory.join(VERIFIED))?;
    let receipt = Receipt {
        level: raised.level,
        layers,
        missing: raised.missing.clone(),
        spec_digest: raised.spec_digest.clone(),
        versions: raised.versions.clone(),
    };
    Ok((raised, receipt))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    if fs::metadata(path)?.len() > MAX_FILE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Why the sandbox in this directory ended, if its keeper could say.
pub fn ended(directory: &Path) -> Option<SandboxEnd> {
    read(&directory.join(ENDED)).ok()
}

fn exec_directory(directory: &Path, exec: &str) -> io::Result<PathBuf> {
    if !is_exec_id(exec) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(directory.join(EXECS).join(exec))
}

pub(super) fn check_known(directory: &Path, exec: &str) -> Result<(), SpecError> {
    let known = exec_directory(directory, exec).is_ok_and(|path| path.join(EXEC_BEGUN).exists());
    let unknown = || SpecError::new("exec", format!("\"{exec}\" is not known in this sandbox"));
    if known { Ok(()) } else { Err(unknown()) }
}

/// Every exec that is still known of a sandbox, oldest first, whether it stands or not: one without an end runs where
/// it does, and is lost where it does not.
pub fn records(directory: &Path, sandbox: &str, stands: bool) -> io::Result<Vec<ExecInfo>> {
    let mut all = Vec::new();
    let open = if stands { ExecState::Running } else { ExecState::Lost };
    let entries = match fs::read_dir(directory.join(EXECS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let Some(exec) = name.to_str() else { continue };
        // One that is being swept, or was never begun, is not told.
        all.extend(record(directory, sandbox, exec, open));
    }
    all.sort_by(|one, other| (&one.started_at, &one.id).cmp(&(&other.started_at, &other.id)));
    Ok(all)
}

/// Marks every exec without an end as lost, for good: whoever stands here next did not start them.
pub(super) fn lose_open(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory.join(EXECS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.join(EXEC_BEGUN).exists() && !path.join(EXEC_ENDED).exists() {
            fs::write(path.join(LOST), "")?;
        }
    }
    Ok(())
}

/// One exec. `open` is its state if it has no end.
pub(super) fn record(
    directory: &Path,
    sandbox: &str,
    exec: &str,
    open: ExecState,
) -> io::Result<ExecInfo> {
    let path = exec_directory(directory, exec)?;
    let Recorded { order, started_ms } = read(&path.join(EXEC_BEGUN))?;
    let end: Option<RecordedEnd> = match read(&path.join(EXEC_ENDED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        end => Some(end?),
    };
    let length =
        |stream: &str| Ok::<_, io::Error>(log::extent(&path, stream)?.map_or(0, |one| one.1));
    let end = match end {
        Some(end) => {
            let (raised, receipt) = raised(directory)?;
            let limits = Limits { wall_ms: order.wall_ms, cpu_ms: order.cpu_ms, ..raised.limits };
            let layers: Vec<Layer> = receipt.layers.iter().map(|check| check.name).collect();
            Some(judged(&end, &limits, raised.level, &layers))
        }
        None => None,
    };
    Ok(ExecInfo {
        id: exec.to_owned(),
        sandbox: sandbox.to_owned(),
        cmd: order.argv,
        state: match &end {
            Some(_) => ExecState::Ended,
            None if path.join(LOST).exists() => ExecState::Lost,
            None => open,
        },
        started_at: time(started_ms),
        stdout_bytes: length("stdout")?,
        stderr_bytes: length("stderr")?,
        events: events(directory, exec)?,
        end,
    })
}

fn time(milliseconds: u64) -> String {
    let at: SystemTime = UNIX_EPOCH + Duration::from_millis(milliseconds);
    humantime::format_rfc3339_millis(at).to_string()
}

/// From facts to a verdict, as runs do it.
fn judged(end: &RecordedEnd, limits: &Limits, level: Level, layers: &[Layer]) -> ExecEnd {
    let RecordedEnd { report, output, over, time_ms, .. } = end;
    let facts = Facts { report, limits, level, layers, output: *output, time: &time(*time_ms) };
    let (exit_code, signal) = end_of(report);
    let (verdict, fault_domain) = match over {
        Some(over) => (Verdict::DiskLimit { limit: outgrown(*over) }, FaultDomain::Limit),
        None => judge(&facts)
            .map_or((Verdict::Signaled { signal: 9 }, FaultDomain::Infrastructure), |judged| {
                (judged.verdict, judged.fault_domain)
            }),
    };
    ExecEnd {
        verdict,
        exit_code,
        signal,
        fault_domain,
        elapsed_ms: report.elapsed_us / 1000,
        cpu_ms: Some(report.cpu_us / 1000),
        memory_peak_bytes: report.memory_peak_bytes,
    }
}

fn outgrown(over: Over) -> DiskLimit {
    match over {
        Over::Bytes { .. } => DiskLimit::DiskBytes,
        Over::Inodes { .. } => DiskLimit::Inodes,
    }
}

/// What an exec wrote, from an offset on, as far as it is kept; `None` where no more is there yet.
pub fn output(
    directory: &Path,
    exec: &str,
    stream: Stream,
    offset: u64,
    most: usize,
) -> io::Result<Option<Piece>> {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    log::read(&exec_directory(directory, exec)?, name, offset, most)
}

/// What an exec was refused.
pub fn events(directory: &Path, exec: &str) -> io::Result<Vec<Event>> {
    let (raised, _) = raised(directory)?;
    let path = exec_directory(directory, exec)?.join(EXEC_EVENTS);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let mut tally = Tally::new(rules(&raised), None).with_egress(&raised.egress);
    // What is being written is told when it is whole.
    for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        match serde_json::from_slice(line)? {
            Message::Tried(one) => tally.take(&one),
            Message::Touched(one) => tally.touch(&one),
            Message::Spilled(one) => tally.spill(&one),
            Message::Egress(told) => tally.hear_egress(&told),
            Message::Counted(some) => tally.count(&some),
            Message::Standing | Message::Started(_) | Message::Failed(_) | Message::Ended(_) => {}
        }
    }
    Ok(tally.finish(SystemTime::now()).0)
}

fn rules(raised: &Raised) -> Rules {
    let profile = if raised.level >= Level::Strict { Profile::Strict } else { Profile::Standard };
    let adjust = Adjust {
        allow: raised.allow_syscalls.clone(),
        deny: raised.deny_syscalls.clone(),
        refuse_unix_sockets: raised.refuse_unix_sockets,
    };
    Rules { profile, adjust, hearing: Hearing::Refusals }
}
