//! Carrying the probes into a sandbox: the attacker is our own binary, copied in and run there.

use super::fixture::Prepared;
use super::{Attempt, Probe, collect};
use crate::engine::Engine;
use crate::model::error::{Error, SpecError};
use crate::model::level::Level;
use crate::model::limits::LimitsRequest;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::request::RunRequest;
use belljar_sys::attempt::names;

/// The word in `argv[1]` that makes the binary try the probes; see [`super::main_inside`].
pub const ROLE: &str = "__attempt";

/// Under the workspace, so that the name is the program's own at every level.
const ATTACKER: &str = "/workspace/belljar";

/// All probes one after the other; each has a bound of its own far below this.
const WALL_MS: u64 = 120_000;
/// A line for each probe, none longer than an answer may be.
const OUTPUT_BYTES: u64 = 4 << 20;

/// Makes every attempt inside one sandbox of that level. All limits but time and output are the
/// defaults, which is what the probes of resources count on.
pub async fn run_level(
    engine: &Engine,
    level: Level,
    prepared: &Prepared,
) -> Result<Vec<(&'static Probe, Attempt)>, Error> {
    let outcome = engine.run(request(engine, level, "all", prepared)?).await?;
    Ok(collect_outcome(&outcome))
}

/// What every probe came to in a run of all of them, however it was started.
pub fn collect_outcome(outcome: &Outcome) -> Vec<(&'static Probe, Attempt)> {
    collect(&outcome.stdout, ended_by(outcome))
}

/// What runs one probe, or `all`, at that level.
pub fn request(
    engine: &Engine,
    level: Level,
    which: &str,
    prepared: &Prepared,
) -> Result<RunRequest, Error> {
    let fixture = serde_json::to_string(&prepared.at(level.name()))
        .map_err(|error| SpecError::new("fixture", error.to_string()))?;
    Ok(RunRequest {
        copies: [(ATTACKER.to_owned(), engine.launcher().to_owned())].into(),
        level,
        limits: LimitsRequest {
            wall_ms: Some(WALL_MS),
            output_bytes: Some(OUTPUT_BYTES),
            ..LimitsRequest::default()
        },
        ..RunRequest::command([ATTACKER, ROLE, which, &fixture])
    })
}

/// The signal that ended the sandbox before its time, if one did.
fn ended_by(outcome: &Outcome) -> Option<&'static str> {
    match outcome.verdict {
        Verdict::MemoryLimit { .. } => Some("SIGKILL"),
        Verdict::Signaled { signal } | Verdict::SyscallDenied { signal } => {
            Some(names::signal(signal))
        }
        Verdict::Exited { .. }
        | Verdict::WallTimeLimit { .. }
        | Verdict::CpuTimeLimit { .. }
        | Verdict::OutputLimit { .. }
        | Verdict::DiskLimit { .. }
        | Verdict::StartFailed { .. } => None,
    }
}
