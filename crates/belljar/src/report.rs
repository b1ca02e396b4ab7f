//! The security report of a run: risk, reasons, recommendations, receipt; as text, JSON or one page of HTML.

mod html;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::audit::{RunRecord, Summary};
use crate::explain::Explanation;
use crate::model::event::{Event, Risk};
use crate::model::receipt::Receipt;
use crate::model::wording::report as words;
use crate::visible::visible_line;

/// All that there is to say about the safety of one run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    pub execution_id: String,
    /// Nothing when the program did not run.
    pub risk: Option<Risk>,
    pub ended: String,
    pub reasons: Vec<String>,
    pub recommendations: Vec<String>,
    pub events: Vec<Event>,
    pub began: Option<String>,
    pub finished: Option<String>,
    pub verdict: String,
    pub summary: Summary,
    pub receipt: Option<Receipt>,
    /// The places of its records in the audit trail.
    pub records: Vec<u64>,
    #[serde(skip)]
    code: Option<String>,
    #[serde(skip)]
    output: Vec<(&'static str, String)>,
    #[serde(skip)]
    explained: Explanation,
}

impl Report {
    pub fn of(run: &RunRecord) -> Self {
        let explained = Explanation::of(run);
        let outcome = run.outcome();
        let code = run.start.as_ref().and_then(|start| start["code"].as_str());
        let streams = outcome.iter().flat_map(|one| {
            [("standard output", one.stdout.clone()), ("standard error", one.stderr.clone())]
        });
        Self {
            execution_id: run.execution_id.clone(),
            risk: run.summary.risk,
            ended: explained.ended.clone(),
            reasons: explained.reasons.clone(),
            recommendations: explained.recommendations.clone(),
            events: explained.events.clone(),
            began: run.began.clone(),
            finished: run.ended.clone(),
            verdict: run.verdict.clone(),
            summary: run.summary.clone(),
            code: code.map(ToOwned::to_owned),
            output: streams.filter(|(_, text)| !text.is_empty()).collect(),
            receipt: outcome.map(|one| one.receipt),
            records: run.records.clone(),
            explained,
        }
    }

    /// For people at a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n{}\n", words::TITLE, self.explained.text());
        text += "\nReasons:\n";
        for reason in &self.reasons {
            text += &format!("  - {}\n", visible_line(reason));
        }
        if self.reasons.is_empty() {
            text += &format!("  {}\n", words::NO_REASONS);
        }
        text += "\nThe run:\n";
        for (name, value) in self.facts() {
            text += &format!("  {name:<14} {}\n", visible_line(&value));
        }
        if let Some(receipt) = &self.receipt {
            text += &format!("\nReceipt: level {}, spec {}\n", receipt.level, receipt.spec_digest);
            for layer in &receipt.layers {
                let mark = if layer.verified { "verified" } else { "MISSING " };
                text += &format!(
                    "  {mark} {:<20} {}\n",
                    layer.name.to_string(),
                    visible_line(&layer.mechanism)
                );
            }
        }
        text
    }

    /// One page, complete in itself: no script, nothing from elsewhere.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// What is known of the run, by name.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let summary = &self.summary;
        let who = summary.key.clone().or_else(|| summary.user.clone());
        let labels = summary.labels.iter().map(|(name, value)| format!("{name}={value}"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        let records = self.records.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let number = |value: Option<f64>| value.map(|ms| format!("{ms:.1} ms"));
        let all = [
            ("verdict", Some(self.verdict.clone())),
            ("began", self.began.clone()),
            ("ended", self.finished.clone()),
            ("asked by", who.or_else(|| summary.uid.map(|uid| format!("uid {uid}")))),
            ("came by", Some(summary.peer.clone())),
            ("labels", Some(labels)),
            ("language", summary.language.clone()),
            ("level", summary.level.map(|level| level.name().to_owned())),
            ("elapsed", number(summary.elapsed_ms)),
            ("CPU time", number(summary.cpu_ms)),
            ("memory peak", summary.memory_peak_bytes.map(crate::model::units::show_bytes)),
            ("code digest", summary.code_digest.clone()),
            ("spec digest", Some(summary.spec_digest.clone())),
            ("policy digest", Some(summary.policy_digest.clone())),
            ("audit records", Some(records)),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
            .collect()
    }
}

/// The events of a run, as they are told on their own.
pub fn events_of(run: &RunRecord) -> Value {
    let recorded = run.end.as_ref().map(|end| end["outcome"]["events"].clone());
    let events = recorded.filter(Value::is_array).unwrap_or_else(|| Value::Array(Vec::new()));
    serde_json::json!({ "execution_id": run.execution_id, "state": run.state, "events": events })
}
