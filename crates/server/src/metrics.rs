//! Counters, as Prometheus reads them. All of them are numbers that are added to: nothing waits, nothing is kept for
//! each request, and there are no more of them than operations.

use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use belljar::RunCounts;

use crate::api::Table;

/// Upper bounds of the classes of time, in microseconds.
const BOUNDS_US: [u64; 13] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
];

#[derive(Debug, Default)]
struct PerOperation {
    /// By the first digit of the status: 1xx to 5xx.
    by_class: [AtomicU64; 5],
    by_time: [AtomicU64; BOUNDS_US.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    operations: Vec<PerOperation>,
    /// Requests for what there is not.
    strays: PerOperation,
    pub(crate) in_flight: AtomicI64,
    pub(crate) connections: AtomicI64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) shed: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) policy_reloads: AtomicU64,
    pub(crate) policy_refusals: AtomicU64,
    pub(crate) log_dropped: AtomicU64,
    pub(crate) spans_dropped: AtomicU64,
    pub(crate) spans_sent: AtomicU64,
}

impl Metrics {
    pub(crate) fn new(operations: usize) -> Self {
        let operations = (0..operations).map(|_| PerOperation::default()).collect();
        Self { operations, ..Self::default() }
    }

    /// One answer: its head was ready after this time.
    pub(crate) fn answered(&self, operation: Option<usize>, status: u16, took: Duration) {
        let of = operation.and_then(|index| self.operations.get(index)).unwrap_or(&self.strays);
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        of.by_class[class].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(index) = BOUNDS_US.iter().position(|bound| us <= *bound) {
            of.by_time[index].fetch_add(1, Ordering::Relaxed);
        }
        of.count.fetch_add(1, Ordering::Relaxed);
        of.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The text that Prometheus reads; `runs` and `gauges` are numbers that others know.
    pub(crate) fn text(
        &self,
        table: &Table,
        runs: &RunCounts,
        gauges: &[(&str, &str, f64)],
    ) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        self.write(&mut text, table, gauges).and_then(|()| write_runs(&mut text, runs)).ok();
        text
    }

    fn write(
        &self,
        to: &mut String,
        table: &Table,
        gauges: &[(&str, &str, f64)],
    ) -> std::fmt::Result {
        let named = table.listed.iter().zip(&self.operations);
        let named = named.map(|(listed, counts)| (listed.operation.id, counts));
        let all: Vec<_> = named.chain([("none", &self.strays)]).collect();
        head(
            to,
            "belljar_http_requests_total",
            "counter",
            "Answers by operation and class of status",
        )?;
        for (id, counts) in &all {
            for (class, count) in counts.by_class.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let class = class + 1;
                    writeln!(
                        to,
                        "belljar_http_requests_total{{operation=\"{id}\",class=\"{class}xx\"}} {count}"
                    )?;
                }
            }
        }
        let name = "belljar_http_request_seconds";
        head(to, name, "histogram", "Time until the head of an answer was ready")?;
        for (id, counts) in &all {
            histogram(to, name, id, counts)?;
        }
        for (name, kind, help, value) in self.plain() {
            head(to, name, kind, help)?;
            writeln!(to, "{name} {value}")?;
        }
        for (name, help, value) in gauges {
            head(to, name, "gauge", help)?;
            writeln!(to, "{name} {value}")?;
        }
        Ok(())
    }

    fn plain(&self) -> [(&'static str, &'static str, &'static str, i128); 10] {
        let count = |counter: &AtomicU64| i128::from(counter.load(Ordering::Relaxed));
        let gauge = |gauge: &AtomicI64| i128::from(gauge.load(Ordering::Relaxed));
        [
            (
                "belljar_http_in_flight",
                "gauge",
                "Requests without the head of an answer",
                gauge(&self.in_flight),
            ),
            ("belljar_http_connections", "gauge", "Open connections", gauge(&self.connections)),
            (
                "belljar_http_connections_refused_total",
                "counter",
                "Connections for which there was no room",
                count(&self.connections_refused),
            ),
            (
                "belljar_shed_total",
                "counter",
                "Requests refused because the host was under pressure",
                count(&self.shed),
            ),
            (
                "belljar_idempotent_replays_total",
                "counter",
                "Answers that were given again",
                count(&self.replayed),
            ),
            (
                "belljar_policy_reloads_total",
                "counter",
                "Policies that were taken over",
                count(&self.policy_reloads),
            ),
            (
                "belljar_policy_refusals_total",
                "counter",
                "Policy files that could not be taken over",
                count(&self.policy_refusals),
            ),
            (
                "belljar_log_dropped_total",
                "counter",
                "Lines of the log that nobody could take in time",
                count(&self.log_dropped),
            ),
            (
                "belljar_spans_dropped_total",
                "counter",
                "Spans that no collector took",
                count(&self.spans_dropped),
            ),
            (
                "belljar_spans_sent_total",
                "counter",
                "Spans that a collector took",
                count(&self.spans_sent),
            ),
        ]
    }
}

/// How runs ended and what was refused, by words that are ours.
fn write_runs(to: &mut String, runs: &RunCounts) -> std::fmt::Result {
    for (name, label, help, counts) in [
        ("belljar_runs_total", "verdict", "Runs by how they ended, or by our error", runs.runs()),
        ("belljar_events_total", "kind", "What runs tried and were refused", runs.events()),
    ] {
        head(to, name, "counter", help)?;
        for (word, count) in counts {
            writeln!(to, "{name}{{{label}=\"{word}\"}} {count}")?;
        }
    }
    Ok(())
}

fn head(to: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    write!(to, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
}

fn histogram(to: &mut String, name: &str, id: &str, counts: &PerOperation) -> std::fmt::Result {
    let count = counts.count.load(Ordering::Relaxed);
    if count == 0 {
        return Ok(());
    }
    let mut below = 0;
    for (bound, here) in BOUNDS_US.iter().zip(&counts.by_time) {
        below += here.load(Ordering::Relaxed);
        let seconds = Duration::from_micros(*bound).as_secs_f64();
        writeln!(to, "{name}_bucket{{operation=\"{id}\",le=\"{seconds}\"}} {below}")?;
    }
    let sum = Duration::from_micros(counts.sum_us.load(Ordering::Relaxed)).as_secs_f64();
    writeln!(to, "{name}_bucket{{operation=\"{id}\",le=\"+Inf\"}} {count}")?;
    writeln!(to, "{name}_sum{{operation=\"{id}\"}} {sum}")?;
    writeln!(to, "{name}_count{{operation=\"{id}\"}} {count}")
}
