//! Sheds load before the host suffers: while the kernel says that programs wait for memory, disks or processors too
//! much, or memory runs out, nothing new is begun. What runs goes on, and looking is always allowed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::problem::{Problem, Refusal};

/// How often the host is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Seconds until another try is worth it.
const RETRY_AFTER_S: u64 = 2;

/// When too much is too much.
#[derive(Clone, Debug)]
pub struct AdmissionOptions {
    /// Memory that stays free for the host.
    pub least_memory_bytes: u64,
    /// Share of the last ten seconds in which all programs waited for memory, in percent; 0 is off.
    pub memory_pressure: f64,
    /// The same for disks.
    pub io_pressure: f64,
    /// Share in which some program waited for a processor; 0 is off.
    pub cpu_pressure: f64,
    /// Where the kernel tells: /proc, but for tests.
    pub proc: PathBuf,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self {
            least_memory_bytes: 128 << 20,
            memory_pressure: 20.0,
            io_pressure: 60.0,
            cpu_pressure: 0.0,
            proc: PathBuf::from("/proc"),
        }
    }
}

impl AdmissionOptions {
    /// Nothing is too much.
    pub(crate) fn none() -> Self {
        Self {
            least_memory_bytes: 0,
            memory_pressure: 0.0,
            io_pressure: 0.0,
            cpu_pressure: 0.0,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Open = 0,
    Memory = 1,
    MemoryPressure = 2,
    IoPressure = 3,
    CpuPressure = 4,
}

/// Whether something may begin.
#[derive(Debug)]
pub(crate) struct Admission {
    options: AdmissionOptions,
    state: AtomicU8,
}

impl Admission {
    pub(crate) fn new(options: AdmissionOptions) -> Self {
        let this = Self { options, state: AtomicU8::new(State::Open as u8) };
        this.look();
        this
    }

    /// Looks at the host, for ever.
    pub(crate) async fn tend(&self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            self.look();
        }
    }

    /// These files are made by the kernel when they are read: no disk is waited for.
    fn look(&self) {
        self.state.store(self.options.state() as u8, Ordering::Relaxed);
    }

    /// Lets something begin, or says for what the host waits.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let Some((rule, what)) = self.why() else { return Ok(()) };
        let detail = format!("nothing new is begun: {what} (rule {rule})");
        let mut problem = Problem::coded("overloaded", detail);
        let refusal = Refusal { rule: rule.to_owned(), retry_after_s: Some(RETRY_AFTER_S) };
        problem.refusal = Some(Box::new(refusal));
        Err(problem)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.why().is_none()
    }

    fn why(&self) -> Option<(&'static str, &'static str)> {
        match self.state.load(Ordering::Relaxed) {
            1 => Some(("shed-memory", "the host has too little memory left")),
            2 => Some(("shed-memory-pressure", "the host's programs wait for memory")),
            3 => Some(("shed-io-pressure", "the host's programs wait for its disks")),
            4 => Some(("shed-cpu-pressure", "the host's programs wait for its processors")),
            _ => None,
        }
    }
}

impl AdmissionOptions {
    fn state(&self) -> State {
        // What the kernel does not tell keeps nobody out: these files are not everywhere.
        let is_short =
            available_memory(&self.proc).is_some_and(|one| one < self.least_memory_bytes);
        let over = |file: &str, kind: &str, most: f64| {
            most > 0.0
                && pressure(&self.proc.join("pressure").join(file), kind)
                    .is_some_and(|one| one > most)
        };
        if is_short {
            State::Memory
        } else if over("memory", "full", self.memory_pressure) {
            State::MemoryPressure
        } else if over("io", "full", self.io_pressure) {
            State::IoPressure
        } else if over("cpu", "some", self.cpu_pressure) {
            State::CpuPressure
        } else {
            State::Open
        }
    }
}

fn available_memory(proc: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// `avg10` of a line of /proc/pressure, as proc_pressure(5) has it.
fn pressure(path: &Path, kind: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(kind))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(available_kib: u64, memory: f64, io: f64, cpu: f64) -> (PathBuf, AdmissionOptions) {
        let name = format!("bj-psi-{}-{available_kib}-{memory}-{io}-{cpu}", std::process::id());
        let proc = std::env::temp_dir().join(name);
        fs::create_dir_all(proc.join("pressure")).unwrap();
        fs::write(
            proc.join("meminfo"),
            format!("MemTotal: 9 kB\nMemAvailable:   {available_kib} kB\n"),
        )
        .unwrap();
        for (file, full, some) in [("memory", memory, 0.0), ("io", io, 0.0), ("cpu", 0.0, cpu)] {
            let text = format!(
                "some avg10={some:.2} avg60=0.00 avg300=0.00 total=1\nfull avg10={full:.2} avg60=0.00 avg300=0.00 total=1\n"
            );
            fs::write(proc.join("pressure").join(file), text).unwrap();
        }
        (proc.clone(), AdmissionOptions { proc, cpu_pressure: 90.0, ..AdmissionOptions::default() })
    }

    #[test]
    fn each_kind_of_pressure_closes_the_door_by_its_name() {
        for (available, memory, io, cpu, rule) in [
            (1 << 20, 0.0, 0.0, 0.0, None),
            (1 << 20, 19.0, 59.0, 89.0, None),
            (1 << 10, 0.0, 0.0, 0.0, Some("shed-memory")),
            (1 << 20, 21.0, 0.0, 0.0, Some("shed-memory-pressure")),
            (1 << 20, 0.0, 61.0, 0.0, Some("shed-io-pressure")),
            (1 << 20, 0.0, 0.0, 91.0, Some("shed-cpu-pressure")),
        ] {
            let (directory, options) = host(available, memory, io, cpu);
            let told = Admission::new(options).check().err();
            assert_eq!(told.as_ref().map(|one| one.status), rule.map(|_| 503));
            assert_eq!(told.and_then(|one| one.refusal).map(|one| one.rule).as_deref(), rule);
            fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn a_host_that_tells_nothing_is_open() {
        let options =
            AdmissionOptions { proc: "/nonexistent".into(), ..AdmissionOptions::default() };
        assert!(Admission::new(options).is_open());
    }
}
