//! Runs as people and programs ask for them: what the two records of each say together.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::chain::Record;
use super::entry::{MAX_CODE_BYTES, Summary};
use super::filter::Filter;
use super::{Kind, show_time};
use crate::model::error::SpecError;
use crate::model::outcome::Outcome;
use crate::model::request::RunRequest;
use crate::store::{Rows, Scan, Store, StoreError};

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Ended,
    /// Its engine died first.
    Unfinished,
}

/// A run in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunLine {
    pub execution_id: String,
    pub state: State,
    pub began: String,
    /// The place of the record that says most about it. Not for tenants, whom it would tell how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The word of a verdict, or `error`, `cancelled`, `unfinished`, `running`.
    pub verdict: String,
    #[serde(flatten)]
    pub summary: Summary,
}

/// All that is recorded of one run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunRecord {
    pub execution_id: String,
    pub state: State,
    pub began: Option<String>,
    pub ended: Option<String>,
    pub verdict: String,
    pub summary: Summary,
    /// What was asked: `code`, `request`, `spec`, `engine`. Nothing if that record has been pruned.
    pub start: Option<Value>,
    /// What came of it: `outcome`, `error` or `closed`.
    pub end: Option<Value>,
    /// The places of its records in the chain; none for tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<u64>,
}

impl RunRecord {
    /// The Outcome, where there is one and this version can read it.
    pub fn outcome(&self) -> Option<Outcome> {
        serde_json::from_value(self.end.as_ref()?["outcome"].clone()).ok()
    }

    /// The request, to run it again; why not, where the trail does not hold all of it.
    pub fn request(&self) -> Result<RunRequest, &'static str> {
        let start = self.start.as_ref().ok_or("the record of its beginning has been pruned")?;
        let mut request = start["request"].clone();
        if request["stdin"].is_object() || request["files"].is_object() {
            return Err("it was given data, of which the trail keeps only digests");
        }
        if request["secret_env"].is_array() || request["canaries"].is_array() {
            return Err("it was given secrets, which the trail does not keep");
        }
        let code = &start["code"];
        if code.as_str().is_some_and(|text| text.len() >= MAX_CODE_BYTES) {
            return Err("its code is longer than what the trail keeps of one");
        }
        if code.is_null() && request["command"].is_null() && request["entry"].is_null() {
            return Err("its code was not kept");
        }
        request["code"] = code.clone();
        serde_json::from_value(request).map_err(|_| "it was recorded by another version")
    }
}

/// Runs that match, the newest first, no more than `most`; only those older than record `before`.
pub fn list(
    store: &Store,
    filter: &Filter,
    before: Option<u64>,
    most: usize,
) -> Result<Vec<RunLine>, StoreError> {
    let mut found = Vec::new();
    let which = Rows { tenant: filter.tenant.as_deref(), before, since_us: filter.since_us };
    each_run(store, which, |line| {
        let began_us = line.summary.began_us.unwrap_or_default();
        if filter.matches(began_us, &line.verdict, &line.summary) {
            found.push(line);
        }
        if found.len() >= most { Scan::Stop } else { Scan::On }
    })?;
    Ok(found)
}

/// Every run, the one that ended last first.
pub(super) fn each_run(
    store: &Store,
    which: Rows<'_>,
    mut take: impl FnMut(RunLine) -> Scan,
) -> Result<(), StoreError> {
    store.each_line_back(which, |line| {
        let (state, verdict) = match Kind::named(&line.kind) {
            Some(Kind::End) => (State::Ended, None),
            Some(Kind::Closed) => (State::Unfinished, Some("unfinished")),
            Some(Kind::Start) if line.is_open => (State::Running, Some("running")),
            Some(Kind::Start | Kind::Prune | Kind::Gap) | None => return Scan::On,
        };
        let mut summary: Summary = serde_json::from_str(&line.summary).unwrap_or_default();
        let verdict = verdict.map(ToOwned::to_owned).or(summary.verdict.take());
        let began_us = summary.began_us.unwrap_or(line.at_us);
        summary.began_us = Some(began_us);
        take(RunLine {
            execution_id: line.run,
            state,
            began: show_time(began_us),
            seq: Some(line.seq),
            verdict: verdict.unwrap_or_default(),
            summary,
        })
    })
}

/// The beginning of an execution id that is taken for the whole of it.
const LEAST_ID: usize = 6;
/// How many of several are named.
const SHOWN_IDS: usize = 4;

/// One run, by its id or the beginning of it; `last` is the newest.
pub fn show(store: &Store, id: &str) -> Result<Result<RunRecord, SpecError>, StoreError> {
    let wrong = |reason: String| Ok(Err(SpecError::new("ID", reason)));
    let mut whole = id.to_owned();
    if id == "last" {
        let newest = list(store, &Filter::default(), None, 1)?;
        let Some(newest) = newest.into_iter().next() else {
            return wrong("is \"last\", and nothing is recorded yet".to_owned());
        };
        whole = newest.execution_id;
    } else if id.len() >= LEAST_ID {
        let found = store.runs_like(&id.to_ascii_uppercase(), SHOWN_IDS)?;
        match &found[..] {
            [] => {}
            [one] => whole.clone_from(one),
            several => {
                let ids = several.join(", ");
                return wrong(format!("\"{id}\" is the beginning of several runs: {ids}"));
            }
        }
    }
    let records = store.of_run(&whole)?;
    if records.is_empty() {
        return wrong(format!(
            "\"{id}\" is no run that is recorded here: belljar audit list shows those that are"
        ));
    }
    Ok(Ok(together(&whole, &records)))
}

/// The same for a tenant: its own runs, by their whole ids. What is another's is told as what is nobody's.
pub fn show_of(
    store: &Store,
    id: &str,
    tenant: Option<&str>,
) -> Result<Result<RunRecord, SpecError>, StoreError> {
    let Some(tenant) = tenant else { return show(store, id) };
    let mut whole = id.to_ascii_uppercase();
    if id == "last" {
        let filter = Filter { tenant: Some(tenant.to_owned()), ..Filter::default() };
        let newest = list(store, &filter, None, 1)?.into_iter().next();
        whole = newest.map(|newest| newest.execution_id).unwrap_or_default();
    }
    let records = store.of_run(&whole)?;
    let own = RunRecord { records: Vec::new(), ..together(&whole, &records) };
    let own = Some(own).filter(|run| run.summary.is_of(tenant));
    Ok(own
        .filter(|_| !records.is_empty())
        .ok_or_else(|| SpecError::new("ID", format!("{id:?} is no run that is recorded here"))))
}

/// The place behind a line that a tenant was told of, in words that tell nothing of others.
pub fn place_of(line: &RunLine) -> String {
    let what = if line.state == State::Running { 's' } else { 'e' };
    format!("{}.{what}", line.execution_id)
}

/// The place that [`place_of`] named, in a tenant's own runs; nothing if there is none.
pub fn find_place(store: &Store, place: &str, tenant: &str) -> Result<Option<u64>, StoreError> {
    let Some((id, what)) = place.rsplit_once('.') else { return Ok(None) };
    let records = store.of_run(id)?;
    if records.is_empty() || !together(id, &records).summary.is_of(tenant) {
        return Ok(None);
    }
    let is_start = |one: &&Record| Kind::named(&one.entry.kind) == Some(Kind::Start);
    let found = match what {
        "s" => records.iter().find(is_start),
        _ => records.iter().find(|one| !is_start(one)),
    };
    // What was pruned meanwhile was the oldest: nothing is behind it.
    Ok(Some(found.or(records.first()).map_or(0, |one| one.seq)))
}

fn together(id: &str, records: &[Record]) -> RunRecord {
    let of = |kinds: &[Kind]| {
        let is =
            |one: &&Record| Kind::named(&one.entry.kind).is_some_and(|kind| kinds.contains(&kind));
        records.iter().find(is)
    };
    let (start, end) = (of(&[Kind::Start]), of(&[Kind::End, Kind::Closed]));
    let detail = |one: &Record| serde_json::from_str(&one.entry.detail).unwrap_or_default();
    let (state, word) = match end.and_then(|end| Kind::named(&end.entry.kind)) {
        None => (State::Running, "running"),
        Some(Kind::Closed) => (State::Unfinished, "unfinished"),
        Some(_) => (State::Ended, ""),
    };
    let text = end.or(start).map_or("{}", |one| one.entry.summary.as_str());
    let mut summary: Summary = serde_json::from_str(text).unwrap_or_default();
    let verdict = summary.verdict.take().unwrap_or_else(|| word.to_owned());
    let began_us = start.map(|one| one.entry.at_us).or(summary.began_us);
    summary.began_us = began_us;
    RunRecord {
        execution_id: id.to_owned(),
        state,
        began: began_us.map(show_time),
        ended: end.map(|one| show_time(one.entry.at_us)),
        verdict,
        summary,
        start: start.map(detail),
        end: end.map(detail),
        records: records.iter().map(|one| one.seq).collect(),
    }
}
