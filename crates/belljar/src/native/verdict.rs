//! Facts to judgement: how the program ended, and whose fault that was.
//!
//! An exit code decides nothing but itself. A limit is blamed only when the kernel, or the keeper that
//! acted on it, left evidence.

use std::collections::BTreeMap;

use belljar_jail::layer::Layer;
use belljar_jail::report::{Cause, Disk, End, Report};
use belljar_sys::{Errno, errno_name};

use crate::model::event::{Event, EventKind, Severity};
use crate::model::level::Level;
use crate::model::limits::{Limits, Used};
use crate::model::outcome::{DiskLimit, Evidence, FaultDomain, Stream, Verdict};
use crate::model::wording;

const SIGSYS: i32 = 31;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;
const SIGKILL: i32 = 9;

/// A program that goes on forking so often after it was refused is not one that made a mistake.
const FORK_STORM: u64 = 100;

/// What is judged.
pub(crate) struct Facts<'a> {
    pub report: &'a Report,
    pub limits: &'a Limits,
    pub level: Level,
    /// Layers that were in force.
    pub layers: &'a [Layer],
    /// Bytes that each stream brought.
    pub output: [u64; 2],
    /// When it ended, as events say it.
    pub time: &'a str,
}

pub(crate) struct Judgement {
    pub verdict: Verdict,
    pub fault_domain: FaultDomain,
    pub evidence: Vec<Evidence>,
    pub events: Vec<Event>,
}

/// Decides. `None` when nobody can know how the program ended.
pub(crate) fn judge(facts: &Facts<'_>) -> Option<Judgement> {
    let report = facts.report;
    if report.end == End::Lost && report.ended_by.is_none() {
        return None;
    }
    // A death by memory comes first: what else ended the run came after it.
    let judged = out_of_memory(facts)
        .or_else(|| ended_by_us(facts))
        .or_else(|| by_signal(facts))
        .or_else(|| disk_full(facts));
    Some(judged.unwrap_or_else(|| own_end(facts)))
}

fn limit(verdict: Verdict, evidence: Evidence, event: Event) -> Judgement {
    let fault_domain = FaultDomain::Limit;
    Judgement { verdict, fault_domain, evidence: vec![evidence], events: vec![event] }
}

/// A limit is met by innocent programs as well: it tells nothing of intent.
fn event(facts: &Facts<'_>, kind: EventKind, detail: String, rule: &str, fix: String) -> Event {
    Event {
        kind,
        severity: Severity::Low,
        time: facts.time.to_owned(),
        process: None,
        syscall: None,
        detail,
        rule: rule.to_owned(),
        fix,
        count: 1,
    }
}

/// The keeper ended it; the first cause is the one it acted on.
fn ended_by_us(facts: &Facts<'_>) -> Option<Judgement> {
    let Facts { report, limits, .. } = facts;
    let exceeded = EventKind::ResourceLimitExceeded;
    Some(match report.ended_by? {
        Cause::WallTime => {
            let limit_ms = limits.wall_ms;
            let found = wording::wall_time(report.elapsed_us / 1000, limit_ms);
            let fix = wording::raise_ms("--timeout", limit_ms);
            limit(
                Verdict::WallTimeLimit { limit_ms },
                Evidence::new("keeper, monotonic clock", found.clone()),
                event(facts, EventKind::TimeoutExceeded, found, "wall_timeout", fix),
            )
        }
        Cause::CpuTime => cpu_time(facts, "keeper, CPU time of all processes"),
        Cause::Memory => return None, // the kernel's count is better evidence; see out_of_memory
        Cause::Output => {
            let limit_bytes = limits.output_total_bytes;
            let stream =
                if facts.output[0] > limit_bytes { Stream::Stdout } else { Stream::Stderr };
            let found = wording::output(facts.output, limit_bytes);
            let fix = wording::raise_bytes("--output-total", limit_bytes);
            limit(
                Verdict::OutputLimit { limit_bytes, stream },
                Evidence::new("engine, bytes read from stdout and stderr", found.clone()),
                event(facts, exceeded, found, "output_cap", fix),
            )
        }
        Cause::Cancelled => return None,
    })
}

fn cpu_time(facts: &Facts<'_>, source: &str) -> Judgement {
    let limit_ms = facts.limits.cpu_ms;
    let found = wording::cpu_time(facts.report.cpu_us / 1000, limit_ms);
    let fix = wording::raise_ms("--cpu-time", limit_ms);
    limit(
        Verdict::CpuTimeLimit { limit_ms },
        Evidence::new(source, found.clone()),
        event(facts, EventKind::TimeoutExceeded, found, "rlimits", fix),
    )
}

/// The kernel killed a process of the group for memory: the run is over, whatever else came of it.
fn out_of_memory(facts: &Facts<'_>) -> Option<Judgement> {
    let kills = facts.report.oom_kills;
    if kills == 0 {
        return None;
    }
    let limit_bytes = facts.limits.memory_bytes;
    let found = wording::memory(kills, limit_bytes);
    let fix = wording::raise_bytes("--memory", limit_bytes);
    Some(limit(
        Verdict::MemoryLimit { limit_bytes },
        Evidence::new("memory cgroup", found.clone()),
        event(facts, EventKind::ResourceLimitExceeded, found, "cgroup_memory", fix),
    ))
}

/// Signals that a barrier sends, where the barrier was up and its own evidence agrees.
fn by_signal(facts: &Facts<'_>) -> Option<Judgement> {
    let End::Signaled(signal) = facts.report.end else {
        return None;
    };
    match signal {
        SIGSYS if facts.layers.contains(&Layer::Seccomp) => {
            let (kind, fix) = (EventKind::SyscallBlocked, wording::alien_call_fix());
            let told = event(facts, kind, wording::alien_call(), "seccomp", fix);
            Some(Judgement {
                verdict: Verdict::SyscallDenied { signal },
                fault_domain: FaultDomain::Policy,
                evidence: vec![Evidence::new("wait status", "SIGSYS under a seccomp filter")],
                // No compiler makes such calls by accident.
                events: vec![Event { severity: Severity::Medium, ..told }],
            })
        }
        // RLIMIT_CPU: SIGXCPU at the soft limit, SIGKILL at the hard one, which is the same here.
        SIGXCPU | SIGKILL if cpu_ran_out(facts) => Some(cpu_time(facts, "RLIMIT_CPU and rusage")),
        SIGXFSZ => {
            let largest = facts.report.disk?.largest_file_bytes;
            (largest >= facts.limits.file_bytes).then(|| {
                let found = format!("SIGXFSZ, longest file {largest} bytes");
                disk_limit(facts, DiskLimit::FileBytes, "RLIMIT_FSIZE", found)
            })
        }
        _ => None,
    }
}

fn cpu_ran_out(facts: &Facts<'_>) -> bool {
    facts.layers.contains(&Layer::Rlimits) && facts.report.cpu_us / 1000 >= facts.limits.cpu_ms
}

fn disk_limit(facts: &Facts<'_>, which: DiskLimit, source: &str, found: String) -> Judgement {
    let limits = facts.limits;
    let fix = match which {
        DiskLimit::DiskBytes => wording::raise_bytes("--disk", limits.disk_bytes),
        DiskLimit::Inodes => wording::raise_count("--inodes", limits.inodes),
        DiskLimit::FileBytes => wording::raise_bytes("--file-size", limits.file_bytes),
    };
    limit(
        Verdict::DiskLimit { limit: which },
        Evidence::new(source, found.clone()),
        event(facts, EventKind::ResourceLimitExceeded, found, "disk", fix),
    )
}

/// A program that failed and left the disk full failed because of it, or cannot be told from one that
/// did. One that succeeded is believed.
fn disk_full(facts: &Facts<'_>) -> Option<Judgement> {
    let disk: Disk = facts.report.disk?;
    if matches!(facts.report.end, End::Exited(0)) {
        return None;
    }
    if disk.bytes_free == 0 {
        let found = format!("0 of {} bytes free", facts.limits.disk_bytes);
        return Some(disk_limit(facts, DiskLimit::DiskBytes, "statfs of the disk", found));
    }
    if disk.inodes_free == 0 {
        let found = format!("0 of {} inodes free", facts.limits.inodes);
        return Some(disk_limit(facts, DiskLimit::Inodes, "statfs of the disk", found));
    }
    // Python and others ignore SIGXFSZ and see EFBIG; a file of exactly the limit is the trace.
    (disk.largest_file_bytes == facts.limits.file_bytes).then(|| {
        let found = format!("longest file {} bytes, the limit", disk.largest_file_bytes);
        disk_limit(facts, DiskLimit::FileBytes, "file sizes on the disk", found)
    })
}

/// Nothing but the program decided.
fn own_end(facts: &Facts<'_>) -> Judgement {
    let (verdict, found) = match facts.report.end {
        End::Exited(code) => (Verdict::Exited { code }, format!("exit code {code}")),
        End::Signaled(signal) => (Verdict::Signaled { signal }, format!("signal {signal}")),
        End::NotExecuted(errno) => {
            let errno = errno_name(Errno::from_raw_os_error(errno));
            let found = format!("execve: {errno}");
            (Verdict::StartFailed { errno }, found)
        }
        // Ended by us for a cause that has no verdict of its own.
        End::Lost => (Verdict::Signaled { signal: SIGKILL }, "ended by the keeper".to_owned()),
    };
    let host_short = matches!(
        facts.report.end,
        End::NotExecuted(errno) if errno == Errno::NOMEM.raw_os_error()
            || errno == Errno::AGAIN.raw_os_error()
            || errno == Errno::NFILE.raw_os_error()
    );
    Judgement {
        verdict,
        fault_domain: if host_short { FaultDomain::Infrastructure } else { FaultDomain::Program },
        evidence: vec![Evidence::new("wait status", found)],
        events: forks_refused(facts),
    }
}

/// Not a verdict (a program may live with a refused fork), but worth telling.
fn forks_refused(facts: &Facts<'_>) -> Vec<Event> {
    let times = facts.report.forks_refused;
    if times == 0 {
        return Vec::new();
    }
    let limit = facts.limits.processes;
    let (detail, fix) = (wording::forks(times, limit), wording::raise_count("--pids", limit));
    let told = event(facts, EventKind::ResourceLimitExceeded, detail, "cgroup_pids", fix);
    let met = Event { count: times, ..told };
    if times < FORK_STORM {
        return vec![met];
    }
    let storm = Event {
        kind: EventKind::SuspiciousBehavior,
        severity: Severity::Medium,
        detail: wording::fork_storm(times),
        rule: "pattern/fork_storm".to_owned(),
        fix: wording::pattern_fix(),
        ..met.clone()
    };
    vec![met, Event { count: 1, ..storm }]
}

/// Each limit with what was used of it.
pub(crate) fn usage(facts: &Facts<'_>) -> BTreeMap<String, Used> {
    let Facts { report, limits, level, .. } = facts;
    let disk = report.disk;
    let mut all = BTreeMap::new();
    let mut add = |name: &str, least: Level, limit: u64, used: Option<u64>| {
        let limit = (*level >= least).then_some(limit);
        all.insert(name.to_owned(), Used { limit, used });
    };
    let grouped = facts.layers.contains(&Layer::CgroupCpu);
    let cpus_least = if grouped { Level::Standard } else { Level::Maximum };
    let busy = report.cpu_us.saturating_mul(1000) / report.elapsed_us.max(1);
    add("wall_ms", Level::None, limits.wall_ms, Some(report.elapsed_us / 1000));
    add("cpu_ms", Level::Basic, limits.cpu_ms, Some(report.cpu_us / 1000));
    add("millicpus", cpus_least, limits.millicpus, Some(busy));
    add("memory_bytes", Level::Basic, limits.memory_bytes, report.memory_peak_bytes);
    add("processes", Level::Basic, limits.processes, report.processes_peak);
    add("disk_bytes", Level::Standard, limits.disk_bytes, disk.map(|one| one.bytes_used));
    add("inodes", Level::Standard, limits.inodes, disk.map(|one| one.inodes_used));
    add("open_files", Level::Basic, limits.open_files, None);
    add("file_bytes", Level::Basic, limits.file_bytes, disk.map(|one| one.largest_file_bytes));
    let output = facts.output.iter().copied().max();
    add("output_bytes", Level::None, limits.output_bytes, output);
    add("output_total_bytes", Level::None, limits.output_total_bytes, output);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::limits::LimitsRequest;

    fn report(end: End) -> Report {
        Report {
            end,
            ended_by: None,
            elapsed_us: 5000,
            cpu_us: 1000,
            memory_peak_bytes: None,
            processes_peak: None,
            oom_kills: 0,
            forks_refused: 0,
            disk: None,
        }
    }

    fn kind(report: &Report) -> (String, FaultDomain) {
        let limits = LimitsRequest::default().resolve().unwrap();
        let level = Level::Standard;
        let layers = level.layers();
        let facts =
            Facts { report, limits: &limits, level, layers: &layers, output: [0, 0], time: "" };
        let judged = judge(&facts).unwrap();
        assert!(!judged.evidence.is_empty());
        (judged.verdict.kind().to_owned(), judged.fault_domain)
    }

    #[test]
    fn exit_codes_that_look_like_limits_are_just_exit_codes() {
        for code in [124, 125, 137, 139] {
            let judged = kind(&report(End::Exited(code)));
            assert_eq!(judged, ("exited".to_owned(), FaultDomain::Program));
        }
    }

    #[test]
    fn a_sigkill_without_evidence_is_only_a_signal() {
        let judged = kind(&report(End::Signaled(SIGKILL)));
        assert_eq!(judged, ("signaled".to_owned(), FaultDomain::Program));
    }

    #[test]
    fn memory_is_blamed_by_the_kernels_count() {
        let killed = Report { oom_kills: 1, ..report(End::Signaled(SIGKILL)) };
        assert_eq!(kind(&killed), ("memory_limit".to_owned(), FaultDomain::Limit));
    }

    #[test]
    fn a_death_by_memory_is_told_even_if_the_deadline_came_after() {
        let late = Report {
            oom_kills: 1,
            ended_by: Some(Cause::WallTime),
            ..report(End::Signaled(SIGKILL))
        };
        assert_eq!(kind(&late).0, "memory_limit");
    }

    #[test]
    fn the_keepers_deadline_wins_over_the_way_the_program_died() {
        let late = Report { ended_by: Some(Cause::WallTime), ..report(End::Signaled(SIGKILL)) };
        assert_eq!(kind(&late), ("wall_time_limit".to_owned(), FaultDomain::Limit));
    }

    #[test]
    fn a_self_sent_sigxcpu_is_not_a_cpu_limit() {
        assert_eq!(kind(&report(End::Signaled(SIGXCPU))).0, "signaled");
        let spent = Report { cpu_us: 31_000_000, ..report(End::Signaled(SIGXCPU)) };
        assert_eq!(kind(&spent).0, "cpu_time_limit");
    }

    #[test]
    fn a_full_disk_is_blamed_only_for_a_failure() {
        let disk = Some(Disk { bytes_free: 0, inodes_free: 5, ..Disk::default() });
        assert_eq!(kind(&Report { disk, ..report(End::Exited(1)) }).0, "disk_limit");
        assert_eq!(kind(&Report { disk, ..report(End::Exited(0)) }).0, "exited");
    }

    #[test]
    fn a_lost_sandbox_has_no_verdict() {
        let limits = LimitsRequest::default().resolve().unwrap();
        let lost = report(End::Lost);
        let facts = Facts {
            report: &lost,
            limits: &limits,
            level: Level::Standard,
            layers: &[],
            output: [0, 0],
            time: "",
        };
        assert!(judge(&facts).is_none());
    }
}
