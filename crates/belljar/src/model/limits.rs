//! Limits: as asked for, as resolved, and as used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::SpecError;

/// What a caller may ask for; a field that is left out takes its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsRequest {
    pub wall_ms: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub millicpus: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub inodes: Option<u64>,
    pub open_files: Option<u64>,
    pub file_bytes: Option<u64>,
    pub output_bytes: Option<u64>,
    pub output_total_bytes: Option<u64>,
}

/// Every limit of a run. All are finite: a limit that can be left out is a limit that will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Real time from release to end.
    pub wall_ms: u64,
    /// CPU time of the whole tree.
    pub cpu_ms: u64,
    /// Cores at once, in thousandths.
    pub millicpus: u64,
    pub memory_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// Everything writable together.
    pub disk_bytes: u64,
    pub inodes: u64,
    pub open_files: u64,
    /// One file.
    pub file_bytes: u64,
    /// Kept for the caller of each stream; what is between head and tail is dropped and counted.
    pub output_bytes: u64,
    /// Written to one stream before the run is ended: a flood is not worth reading on.
    pub output_total_bytes: u64,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const HOUR_MS: u64 = 3_600_000;

/// A limit's name, its default, and the least and most that make sense.
struct Range {
    field: &'static str,
    default: u64,
    least: u64,
    most: u64,
    unit: &'static str,
}

const fn range(
    field: &'static str,
    default: u64,
    least: u64,
    most: u64,
    unit: &'static str,
) -> Range {
    Range { field, default, least, most, unit }
}

const WALL: Range = range("wall_ms", 30_000, 1, 7 * 24 * HOUR_MS, "ms");
const CPU: Range = range("cpu_ms", 30_000, 1, 30 * 24 * HOUR_MS, "ms");
const MILLICPUS: Range = range("millicpus", 1000, 10, 1_024_000, "thousandths of a core");
const MEMORY: Range = range("memory_bytes", 512 * MIB, 4 * MIB, 16 * TIB, "bytes");
const PROCESSES: Range = range("processes", 64, 1, 4_194_304, "processes");
const DISK: Range = range("disk_bytes", 100 * MIB, 64 * KIB, 16 * TIB, "bytes");
const INODES: Range = range("inodes", 10_000, 32, 1 << 32, "inodes");
const FILES: Range = range("open_files", 1024, 8, 1_048_576, "descriptors");
const FILE: Range = range("file_bytes", 100 * MIB, KIB, 16 * TIB, "bytes");
const OUTPUT: Range = range("output_bytes", 100 * KIB, 1, GIB, "bytes");
const OUTPUT_TOTAL: Range = range("output_total_bytes", GIB, 1, 16 * TIB, "bytes");

impl LimitsRequest {
    /// Fills in the defaults and refuses what makes no sense; nothing is clamped.
    pub fn resolve(&self) -> Result<Limits, SpecError> {
        let limits = Limits {
            wall_ms: WALL.pick(self.wall_ms)?,
            cpu_ms: CPU.pick(self.cpu_ms)?,
            millicpus: MILLICPUS.pick(self.millicpus)?,
            memory_bytes: MEMORY.pick(self.memory_bytes)?,
            processes: PROCESSES.pick(self.processes)?,
            disk_bytes: DISK.pick(self.disk_bytes)?,
            inodes: INODES.pick(self.inodes)?,
            open_files: FILES.pick(self.open_files)?,
            file_bytes: FILE.pick(self.file_bytes)?,
            output_bytes: OUTPUT.pick(self.output_bytes)?,
            output_total_bytes: OUTPUT_TOTAL.pick(self.output_total_bytes)?,
        };
        if limits.output_total_bytes < limits.output_bytes {
            let reason = "is below output_bytes: what is kept cannot exceed what may be written";
            return Err(SpecError::new("limits.output_total_bytes", reason));
        }
        Ok(limits)
    }
}

impl Range {
    fn pick(&self, asked: Option<u64>) -> Result<u64, SpecError> {
        let value = asked.unwrap_or(self.default);
        if (self.least..=self.most).contains(&value) {
            return Ok(value);
        }
        let Self { field, default, least, most, unit } = self;
        Err(SpecError::new(
            format!("limits.{field}"),
            format!("is {value}; it must be between {least} and {most} {unit} (default {default})"),
        ))
    }
}

/// A limit and what the run used of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Used {
    /// Absent where the level does not enforce it.
    pub limit: Option<u64>,
    /// Absent where nothing could measure it.
    pub used: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_request_takes_the_documented_defaults() {
        let limits = LimitsRequest::default().resolve().unwrap();
        assert_eq!(limits.wall_ms, 30_000);
        assert_eq!(limits.memory_bytes, 512 << 20);
        assert_eq!(limits.processes, 64);
        assert_eq!(limits.disk_bytes, 100 << 20);
        assert_eq!(limits.output_bytes, 100 << 10);
    }

    #[test]
    fn zero_and_absurd_limits_are_refused_by_name() {
        let zero = LimitsRequest { memory_bytes: Some(0), ..LimitsRequest::default() };
        assert_eq!(zero.resolve().unwrap_err().field, "limits.memory_bytes");
        let absurd = LimitsRequest { processes: Some(u64::MAX), ..LimitsRequest::default() };
        assert_eq!(absurd.resolve().unwrap_err().field, "limits.processes");
    }

    #[test]
    fn unknown_limits_are_refused() {
        let unknown = serde_json::from_str::<LimitsRequest>(r#"{"ram": 1}"#);
        assert!(unknown.unwrap_err().to_string().contains("ram"));
    }
}
