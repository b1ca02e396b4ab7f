//! What the trail says in numbers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::read::{State, each_run};
use super::show_time;
use crate::store::{Rows, Scan, Store, StoreError};

/// Days, labels and whatever else programs can make many of: the most frequent are told.
const MOST_NAMES: usize = 50;
/// While counting, more names than this are not told apart.
const MOST_COUNTED: usize = 10_000;

/// One name and how often it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    pub name: String,
    pub count: u64,
}

/// Totals over all runs that match a filter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    pub runs: u64,
    pub running: u64,
    pub cpu_ms: f64,
    pub elapsed_ms: f64,
    /// When the first and the last of them began.
    pub first: Option<String>,
    pub last: Option<String>,
    pub by_verdict: Vec<Count>,
    /// Events, not runs: one run can have many.
    pub by_event: Vec<Count>,
    pub by_risk: Vec<Count>,
    pub by_language: Vec<Count>,
    pub by_level: Vec<Count>,
    /// As `name=value`.
    pub by_label: Vec<Count>,
    pub by_user: Vec<Count>,
    pub by_start: Vec<Count>,
    /// Runs of each day, in UTC, in order.
    pub by_day: Vec<Count>,
    /// Runs of each hour of the last day of all, in order.
    pub by_hour: Vec<Count>,
}

#[derive(Default)]
struct Counter(BTreeMap<String, u64>);

impl Counter {
    fn add(&mut self, name: &str, count: u64) {
        let full = self.0.len() >= MOST_COUNTED && !self.0.contains_key(name);
        let name = if full { "(others)" } else { name };
        let found = self.0.entry(name.to_owned()).or_default();
        *found = found.saturating_add(count);
    }

    /// The most frequent first.
    fn ranked(self) -> Vec<Count> {
        let mut all = self.in_order();
        all.sort_by_key(|one| std::cmp::Reverse(one.count));
        all.truncate(MOST_NAMES);
        all
    }

    fn in_order(self) -> Vec<Count> {
        self.0.into_iter().map(|(name, count)| Count { name, count }).collect()
    }

    /// The last so many, in order.
    fn latest(self, most: usize) -> Vec<Count> {
        let mut all = self.in_order();
        all.drain(..all.len().saturating_sub(most));
        all
    }
}

/// Counts all runs that match.
pub fn statistics(store: &Store, filter: &Filter) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    let mut counters: [Counter; 9] = Default::default();
    let [verdict, event, risk, language, level, label, user, start, day] = &mut counters;
    let mut hours = Counter::default();
    let (mut first, mut last) = (u64::MAX, 0);
    let (tenant, since_us) = (filter.tenant.as_deref(), filter.since_us);
    let which = Rows { tenant, before: None, since_us };
    each_run(store, which, |line| {
        let summary = &line.summary;
        let began_us = summary.began_us.unwrap_or_default();
        if !filter.matches(began_us, &line.verdict, summary) {
            return Scan::On;
        }
        stats.runs += 1;
        stats.running += u64::from(line.state == State::Running);
        stats.cpu_ms += summary.cpu_ms.unwrap_or_default();
        stats.elapsed_ms += summary.elapsed_ms.unwrap_or_default();
        (first, last) = (first.min(began_us), last.max(began_us));
        verdict.add(&line.verdict, 1);
        summary.events.iter().for_each(|(kind, count)| event.add(kind, *count));
        summary.labels.iter().for_each(|(name, value)| label.add(&format!("{name}={value}"), 1));
        language.add(summary.language.as_deref().unwrap_or("(command)"), 1);
        if let Some(one) = summary.risk {
            risk.add(one.name(), 1);
        }
        if let Some(one) = summary.level {
            level.add(one.name(), 1);
        }
        if let Some(one) = summary.start {
            start.add(&format!("{one:?}").to_lowercase(), 1);
        }
        let name = summary.key.as_ref().or(summary.user.as_ref()).cloned();
        let number = || summary.uid.map(|uid| format!("uid {uid}"));
        user.add(&name.or_else(number).unwrap_or_else(|| "(unknown)".to_owned()), 1);
        day.add(line.began.get(..10).unwrap_or_default(), 1);
        hours.add(line.began.get(..13).unwrap_or_default(), 1);
        Scan::On
    })?;
    if stats.runs > 0 {
        (stats.first, stats.last) = (Some(show_time(first)), Some(show_time(last)));
    }
    let [verdict, event, risk, language, level, label, user, start, day] = counters;
    Ok(Stats {
        by_verdict: verdict.ranked(),
        by_event: event.ranked(),
        by_risk: risk.ranked(),
        by_language: language.ranked(),
        by_level: level.ranked(),
        by_label: label.ranked(),
        by_user: user.ranked(),
        by_start: start.ranked(),
        by_day: day.latest(MOST_NAMES),
        by_hour: hours.latest(24),
        ..stats
    })
}
