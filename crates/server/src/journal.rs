//! The log: one line for each thing that an operator may want to know, as text or as JSON. It names operations, never
//! paths, bodies, code or keys. It is written by a thread of its own: whoever reads it slowly loses lines, which are
//! counted, and delays nobody.

use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::metrics::Metrics;

/// Lines that wait to be written.
const WAITING: usize = 1024;

/// What is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Off,
    /// What is our fault, or the operator's to mend.
    #[default]
    Warn,
    /// Each request too.
    Info,
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            _ => Err(format!("\"{text}\" is no level: there are off, warn, info")),
        }
    }
}

/// How it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogForm {
    #[default]
    Text,
    Json,
}

impl FromStr for LogForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("\"{text}\" is no form: there are text, json")),
        }
    }
}

/// A request, once its answer has a head.
#[derive(Debug, Serialize)]
pub(crate) struct Answered<'a> {
    pub(crate) request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<&'a str>,
    pub(crate) operation: &'a str,
    pub(crate) method: &'a str,
    pub(crate) status: u16,
    /// Of a problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<&'a str>,
    /// Of a problem of ours: what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<&'a str>,
    pub(crate) elapsed_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<&'a str>,
    pub(crate) peer: &'a str,
}

#[derive(Serialize)]
struct Line<'a, T> {
    time: String,
    level: &'a str,
    message: &'a str,
    #[serde(flatten)]
    more: T,
}

/// Where lines go.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    level: LogLevel,
    form: LogForm,
    lines: SyncSender<String>,
    metrics: Arc<Metrics>,
}

impl Journal {
    pub(crate) fn start(level: LogLevel, form: LogForm, metrics: Arc<Metrics>) -> Self {
        let (lines, taken) = sync_channel::<String>(WAITING);
        std::thread::spawn(move || {
            for line in taken {
                // Without a reader there is nobody to tell.
                std::io::stderr().write_all(line.as_bytes()).ok();
            }
        });
        Self { level, form, lines, metrics }
    }

    pub(crate) fn answered(&self, answered: &Answered<'_>) {
        let ours = answered.status >= 500;
        if self.level >= LogLevel::Info || (ours && self.level >= LogLevel::Warn) {
            let level = if ours { "warn" } else { "info" };
            self.write(level, "request", answered);
        }
    }

    /// Something that the operator should know.
    pub(crate) fn warn(&self, message: &str, more: impl Serialize) {
        if self.level >= LogLevel::Warn {
            self.write("warn", message, more);
        }
    }

    pub(crate) fn info(&self, message: &str, more: impl Serialize) {
        if self.level >= LogLevel::Info {
            self.write("info", message, more);
        }
    }

    fn write(&self, level: &str, message: &str, more: impl Serialize) {
        let line = match self.form {
            LogForm::Json => serde_json::to_string(&Line { time: now(), level, message, more }),
            LogForm::Text => text(level, message, &more),
        };
        let Ok(mut line) = line else { return };
        line.push('\n');
        if self.lines.try_send(line).is_err() {
            self.metrics.log_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// `belljar: warn: message name=value …`.
fn text(level: &str, message: &str, more: &impl Serialize) -> serde_json::Result<String> {
    let more = serde_json::to_value(more)?;
    let mut line = format!("belljar: {level}: {message}");
    for (name, value) in more.as_object().into_iter().flatten() {
        // As JSON, so that no value can begin a line of its own.
        line.push_str(&format!(" {name}={value}"));
    }
    Ok(line)
}

/// RFC 3339 in UTC.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    belljar::audit::show_time(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_whatever_it_says() {
        let more = serde_json::json!({ "error": "a\nbelljar: info: all is well", "n": 3 });
        let line = text("warn", "policy", &more).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert_eq!(line, r#"belljar: warn: policy error="a\nbelljar: info: all is well" n=3"#);
    }
}
