//! The trail as lines of JSON, for other programs and other places. The first line tells where the chain
//! begins and ends, so that the file can be verified on its own.

use std::collections::HashSet;
use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::chain::{Broken, ChainHash, Damage, Entry, Position, Record, Walk};
use super::filter::Filter;
use super::read::list;
use super::{read_time, show_time};
use crate::store::{Scan, Store, StoreError, Tally, Verified};

/// The form of the lines.
const FORMAT: u32 = 1;
/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// The first line of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportHead {
    pub belljar_audit: u32,
    /// Where the chain begins; the first record follows from this.
    pub begins_after: Position,
    /// Where it ended when this was written.
    pub head: Position,
    /// Only some records follow: each can be verified by itself, not that none is missing.
    pub filtered: bool,
}

/// One record as a line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportLine {
    seq: u64,
    time: String,
    kind: String,
    run: String,
    /// As they were hashed, letter by letter.
    summary: Box<RawValue>,
    detail: Box<RawValue>,
    prev: ChainHash,
    hash: ChainHash,
}

/// The first line of what a tenant gets: where its records stand in the chain would tell of others'.
#[derive(Serialize)]
struct TenantHead {
    belljar_audit: u32,
    of_tenant: bool,
}

/// A record of a tenant's as a line.
#[derive(Serialize)]
struct TenantLine {
    time: String,
    kind: String,
    run: String,
    summary: Box<RawValue>,
    detail: Box<RawValue>,
}

/// Writes a tenant's records, those of the oldest run first; says how many. They are outside of any chain.
pub fn export_of_tenant(
    store: &Store,
    filter: &Filter,
    out: &mut dyn Write,
) -> Result<io::Result<u64>, StoreError> {
    let mut count = 0;
    if let Err(error) = put(out, &TenantHead { belljar_audit: FORMAT, of_tenant: true }) {
        return Ok(Err(error));
    }
    for run in list(store, filter, None, usize::MAX)?.into_iter().rev() {
        for record in store.of_run(&run.execution_id)? {
            let put = line(&record).and_then(|line| {
                let ExportLine { time, kind, run, summary, detail, .. } = line;
                put(out, &TenantLine { time, kind, run, summary, detail })
            });
            if let Err(error) = put {
                return Ok(Err(error));
            }
            count += 1;
        }
    }
    Ok(Ok(count))
}

/// Writes the trail, or the records of the runs that match; says how many. What fails while writing to
/// `out` is told apart from what fails while reading the trail.
pub fn export(
    store: &Store,
    filter: &Filter,
    out: &mut dyn Write,
) -> Result<io::Result<u64>, StoreError> {
    let head = ExportHead {
        belljar_audit: FORMAT,
        begins_after: store.anchor()?,
        head: store.end()?,
        filtered: !filter.is_empty(),
    };
    let wanted = match head.filtered {
        true => Some(runs_that_match(store, filter)?),
        false => None,
    };
    let mut written = put(out, &head).map(|()| 0);
    let mut unreadable = None;
    store.each_record(|record| {
        let (Ok(count), None) = (&mut written, &unreadable) else { return Scan::Stop };
        match record {
            Err(broken) => unreadable = Some(broken),
            Ok(record) if record.seq > head.head.seq => return Scan::Stop, // added since
            Ok(record) if wanted.as_ref().is_some_and(|all| !all.contains(&record.entry.run)) => {}
            Ok(record) => match line(&record).and_then(|line| put(out, &line)) {
                Ok(()) => *count += 1,
                Err(error) => written = Err(error),
            },
        }
        Scan::On
    })?;
    match unreadable {
        Some(broken) => Err(StoreError::Damaged { path: store.path().to_owned(), broken }),
        None => Ok(written),
    }
}

fn runs_that_match(store: &Store, filter: &Filter) -> Result<HashSet<String>, StoreError> {
    let all = list(store, filter, None, usize::MAX)?;
    Ok(all.into_iter().map(|line| line.execution_id).collect())
}

fn put(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(value)?)
}

fn line(record: &Record) -> io::Result<ExportLine> {
    let raw = |text: &str| RawValue::from_string(text.to_owned());
    Ok(ExportLine {
        seq: record.seq,
        time: show_time(record.entry.at_us),
        kind: record.entry.kind.clone(),
        run: record.entry.run.clone(),
        summary: raw(&record.entry.summary)?,
        detail: raw(&record.entry.detail)?,
        prev: record.prev,
        hash: record.hash,
    })
}

fn read(line: ExportLine) -> Result<Record, String> {
    let at_us =
        read_time(&line.time).ok_or_else(|| format!("its time \"{}\" is none", line.time))?;
    let (summary, detail) = (line.summary.get().to_owned(), line.detail.get().to_owned());
    let entry = Entry { at_us, kind: line.kind, run: line.run, summary, detail };
    Ok(Record { seq: line.seq, entry, prev: line.prev, hash: line.hash })
}

/// Verifies a file that [`export`] wrote. The outer error is about the file, the inner one about what it
/// says. `seen` gets every record that holds.
pub fn verify_export(
    source: impl Read,
    mut seen: impl FnMut(&Record),
) -> io::Result<Result<Verified, Broken>> {
    let mut lines = Lines { source: io::BufReader::new(source), number: 0 };
    let head: ExportHead = match lines.next()? {
        Some(text) => lines.parse(&text)?,
        None => return Err(io::Error::other("it is empty")),
    };
    if head.belljar_audit != FORMAT {
        let found = head.belljar_audit;
        return Err(io::Error::other(format!("it has form {found}, this belljar knows {FORMAT}")));
    }
    let mut walk = Walk::from(head.begins_after, head.head.seq, Some(head.head));
    let (mut tally, mut last) = (Tally::default(), head.begins_after.seq);
    while let Some(text) = lines.next()? {
        let record = match lines.parse(&text).map(read) {
            Ok(Ok(record)) => record,
            Ok(Err(why)) => return Ok(Err(Broken { seq: last + 1, damage: Damage::Changed, why })),
            Err(error) => {
                let why = error.to_string();
                return Ok(Err(Broken { seq: last + 1, damage: Damage::Changed, why }));
            }
        };
        if head.filtered {
            // Alone, each record is as it was written; it stands after those before it.
            walk = Walk::from(
                Position { seq: record.seq.saturating_sub(1), hash: record.prev },
                head.head.seq,
                Some(head.head),
            );
            if record.seq <= last {
                let why = format!("it stands after record {last}");
                return Ok(Err(Broken { seq: record.seq, damage: Damage::Reordered, why }));
            }
        }
        if let Err(broken) = walk.step(&record) {
            return Ok(Err(broken));
        }
        last = record.seq;
        tally.take(&record);
        seen(&record);
    }
    if head.filtered {
        return Ok(Ok(tally.some_of(head.head)));
    }
    Ok(walk.finish().and_then(|end| tally.close(head.begins_after, end)))
}

struct Lines<R> {
    source: io::BufReader<R>,
    number: u64,
}

impl<R: Read> Lines<R> {
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut text = String::new();
        self.number += 1;
        let read = self.source.by_ref().take(MAX_LINE_BYTES).read_line(&mut text)?;
        Ok((read > 0).then_some(text))
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, text: &str) -> io::Result<T> {
        let wrong = |error| io::Error::other(format!("line {}: {error}", self.number));
        serde_json::from_str(text).map_err(wrong)
    }
}
