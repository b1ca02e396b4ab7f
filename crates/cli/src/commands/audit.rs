//! `belljar audit`: looking at what was recorded. And what the commands that record agree on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar::audit::chain::Broken;
use belljar::audit::{self, AuditConfig, Bodies, Filter, RunLine, RunRecord};
use belljar::store::{Scan, Store, StoreError, Verified};
use belljar::{Error, SpecError};
use belljar_server::places;

use crate::args::audit::{
    Audit, AuditArgs, AuditExport, AuditList, AuditPrune, AuditShow, AuditVerify, FilterArgs,
};
use crate::output::put;
use crate::render;

/// The exit code for a trail that is not as it was written.
const DAMAGED: u8 = 1;

/// What kind of engine records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorder {
    /// A server: its runs are many people's, so it records or does not start.
    Server,
    /// One that runs many programs and is gone.
    Batch,
    /// One that runs one, for which opening the trail would be a good part of its time.
    Lone,
}

/// What to record, by flags and environment.
pub(crate) fn config(args: &AuditArgs, by: Recorder) -> Result<Option<AuditConfig>, Error> {
    let word = std::env::var(places::AUDIT_VARIABLE).unwrap_or_default();
    let named = args.state.is_some() || std::env::var_os(places::STATE_VARIABLE).is_some();
    let asked = args.audit || args.audit_digests || named || !word.is_empty();
    let bodies = match (args.no_audit, args.audit_digests, word.as_str()) {
        (true, _, _) => return Ok(None),
        (_, true, _) | (_, _, "digests") => Bodies::Digests,
        (_, _, "off") if !args.audit => return Ok(None),
        (_, _, "" | "on" | "off") => Bodies::Kept,
        (_, _, other) => {
            let reason = format!("is \"{other}\": on, digests or off");
            return Err(SpecError::new(places::AUDIT_VARIABLE, reason).into());
        }
    };
    let directory = match directory(args.state.as_deref()) {
        // A user without a home, who did not ask for records, has no place for them.
        Err(_) if by != Recorder::Server && !asked => return Ok(None),
        directory => directory?,
    };
    Ok(Some(AuditConfig { directory, bodies, spooled: by == Recorder::Lone }))
}

/// The state directory: as told, or where this user's is.
pub(crate) fn directory(given: Option<&Path>) -> Result<PathBuf, SpecError> {
    let reason = "has no default without HOME: give --state DIR, or --no-audit to record nothing";
    let directory = given.map(Path::to_owned).or_else(places::state);
    directory.ok_or_else(|| SpecError::new("state", reason))
}

pub(crate) fn filter(args: &FilterArgs) -> Result<Filter, SpecError> {
    Filter::parse(words(args), audit::now_us())
}

/// A filter as words, for us and for a server.
pub(crate) fn words(args: &FilterArgs) -> impl Iterator<Item = (&str, &str)> {
    let labels = args.label.iter().map(|label| ("label", label.as_str()));
    let others = [
        ("verdict", &args.verdict),
        ("since", &args.since),
        ("until", &args.until),
        ("user", &args.user),
        ("event", &args.event),
        ("risk", &args.risk),
    ];
    let others = others.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    labels.chain(others)
}

/// Why there is no answer.
pub(crate) enum Trouble {
    Asked(SpecError),
    Store(StoreError),
    Output(io::Error),
}

impl From<SpecError> for Trouble {
    fn from(error: SpecError) -> Self {
        Self::Asked(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Trouble {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Asked(error) => error.to_string(),
            Self::Store(error) => error.to_string(),
            Self::Output(error) => error.to_string(),
        }
    }

    pub(crate) fn tell(&self) -> u8 {
        match self {
            Self::Asked(error) => render::trouble(&error.to_string(), render::BAD_REQUEST),
            Self::Store(error @ StoreError::Damaged { .. }) => {
                render::trouble(&error.to_string(), DAMAGED)
            }
            Self::Store(error) => {
                render::trouble(&format!("cannot use the audit trail: {error}"), render::OURS)
            }
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Output(error) => render::trouble(&format!("cannot write: {error}"), render::OURS),
        }
    }
}

pub(crate) fn audit(command: Audit) -> u8 {
    let result = match command {
        Audit::List(args) => list(&args),
        Audit::Show(args) => show(&args),
        Audit::Export(args) => export(&args),
        Audit::Verify(args) => verify(&args),
        Audit::Prune(args) => prune(&args),
    };
    result.unwrap_or_else(|trouble| trouble.tell())
}

/// The trail of a state directory, for reading.
pub(crate) fn open(state: Option<&Path>) -> Result<Store, Trouble> {
    Ok(audit::open(&directory(state)?)?)
}

/// One run of it.
pub(crate) fn find(state: Option<&Path>, id: &str) -> Result<RunRecord, Trouble> {
    Ok(audit::show(&open(state)?, id)??)
}

fn list(args: &AuditList) -> Result<u8, Trouble> {
    let filter = filter(&args.filter)?;
    let runs = audit::list(&open(args.state.as_deref())?, &filter, None, args.limit)?;
    if args.json {
        let lines: Result<Vec<String>, _> = runs.iter().map(render::compact).collect();
        let lines = lines.map_err(|error| Trouble::Output(error.into()))?;
        return Ok(if lines.is_empty() { 0 } else { render::line(&lines.join("\n")) });
    }
    if runs.is_empty() {
        return Ok(render::trouble("no recorded run matches", 0));
    }
    let mut text =
        "EXECUTION ID                BEGAN (UTC)         VERDICT          RISK      LANGUAGE  USER\n"
            .to_owned();
    for run in &runs {
        text += &row(run);
    }
    Ok(render::line(text.trim_end()))
}

fn row(run: &RunLine) -> String {
    let summary = &run.summary;
    let began: String = run.began.chars().take(19).collect();
    let verdict = match (run.verdict.as_str(), summary.exit_code, summary.signal) {
        ("exited", Some(code), _) => format!("exited {code}"),
        ("signaled", _, Some(signal)) => format!("signal {signal}"),
        (word, ..) => word.to_owned(),
    };
    let uid = summary.uid.map(|uid| uid.to_string());
    let user = summary.key.as_ref().or(summary.user.as_ref()).or(uid.as_ref());
    let labels: Vec<String> =
        summary.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let text = format!(
        "{:<27} {} {verdict:<16} {:<9} {:<9} {} {}",
        run.execution_id,
        began.replace('T', " "),
        summary.risk.map_or("-", |risk| risk.name()),
        summary.language.as_deref().unwrap_or("-"),
        user.map_or("-", String::as_str),
        labels.join(" ")
    );
    format!("{}\n", render::visible(text.trim_end()).replace('\n', " "))
}

fn show(args: &AuditShow) -> Result<u8, Trouble> {
    let run = find(args.state.as_deref(), &args.id)?;
    if args.json {
        return Ok(render::json(&run));
    }
    // All of it: a record has too many parts for a form of its own that would show more.
    let mut all = serde_json::to_value(&run).map_err(|error| Trouble::Output(error.into()))?;
    let mut lines = String::new();
    for name in
        ["execution_id", "state", "verdict", "began", "ended", "summary", "start", "end", "records"]
    {
        outline(&mut lines, name, &all[name].take(), 1);
    }
    Ok(render::line(lines.trim_end()))
}

/// Nested values by indentation; texts of several lines as they are, below their name.
fn outline(out: &mut String, name: &str, value: &serde_json::Value, depth: usize) {
    use serde_json::Value;
    let indent = "  ".repeat(depth.saturating_sub(1));
    match value {
        Value::Null => {}
        Value::Object(all) => {
            if depth > 0 && !all.is_empty() {
                *out += &format!("{indent}{}:\n", render::visible(name));
            }
            all.iter().for_each(|(name, one)| outline(out, name, one, depth + 1));
        }
        Value::Array(all) if all.iter().all(|one| !one.is_object() && !one.is_array()) => {
            let items: Vec<String> = all.iter().map(plain).collect();
            if !items.is_empty() {
                *out += &format!("{indent}{}: {}\n", render::visible(name), items.join(", "));
            }
        }
        Value::Array(all) => {
            for (index, one) in all.iter().enumerate() {
                outline(out, &format!("{name} {}", index + 1), one, depth);
            }
        }
        Value::String(text) if text.contains('\n') => {
            *out += &format!("{indent}{}:\n", render::visible(name));
            for line in text.lines() {
                *out += &format!("{indent}  | {}\n", render::visible(line));
            }
        }
        other @ (Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
            *out += &format!("{indent}{}: {}\n", render::visible(name), plain(other))
        }
    }
}

fn plain(value: &serde_json::Value) -> String {
    render::visible(&value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
}

fn export(args: &AuditExport) -> Result<u8, Trouble> {
    let (store, filter) = (open(args.state.as_deref())?, filter(&args.filter)?);
    let written = match &args.out {
        Some(path) => {
            let mut file = io::BufWriter::new(new_file(path)?);
            let written = audit::export(&store, &filter, &mut file)?;
            written.and_then(|count| {
                file.flush()?;
                file.get_ref().sync_all()?;
                Ok(count)
            })
        }
        None => audit::export(&store, &filter, &mut Stdout)?,
    };
    let count = written.map_err(Trouble::Output)?;
    Ok(match &args.out {
        Some(path) => render::trouble(&format!("{count} records in {}", path.display()), 0),
        None => 0,
    })
}

/// A file that is not there yet, for us alone: records hold code and output.
pub(crate) fn new_file(path: &Path) -> Result<File, SpecError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let wrong = |error: io::Error| {
        let what = if error.kind() == io::ErrorKind::AlreadyExists {
            "is there already: give the name of a new file".to_owned()
        } else {
            error.to_string()
        };
        SpecError::new("FILE", format!("{}: {what}", path.display()))
    };
    opened.map_err(wrong)
}

/// Our output, in its own pace. What a terminal would obey is escaped, which JSON reads as the same.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        put(io::stdout(), bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn verify(args: &AuditVerify) -> Result<u8, Trouble> {
    let (shown, result) = match &args.file {
        Some(path) => {
            let wrong =
                |error: io::Error| SpecError::new("FILE", format!("{}: {error}", path.display()));
            let file = File::open(path).map_err(wrong)?;
            let mut seen = args.head.is_none();
            let result =
                audit::verify_export(file, |record| seen |= Some(record.hash) == args.head);
            let result = result.map_err(wrong)?;
            (path.display().to_string(), result.map(|verified| (verified, seen)))
        }
        None => {
            let store = open(args.state.as_deref())?;
            let result = store.verify()?;
            let seen = match args.head {
                Some(head) => contains(&store, head)?,
                None => true,
            };
            (store.path().display().to_string(), result.map(|verified| (verified, seen)))
        }
    };
    Ok(tell_verified(args, &shown, result))
}

fn contains(store: &Store, head: audit::chain::ChainHash) -> Result<bool, StoreError> {
    let mut found = store.anchor()?.hash == head;
    store.each_record(|record| {
        found |= record.is_ok_and(|record| record.hash == head);
        if found { Scan::Stop } else { Scan::On }
    })?;
    Ok(found)
}

fn tell_verified(args: &AuditVerify, shown: &str, result: Result<(Verified, bool), Broken>) -> u8 {
    let code = match &result {
        Ok((_, true)) => 0,
        Ok((_, false)) | Err(_) => DAMAGED,
    };
    if args.json {
        let value = match &result {
            Ok((verified, true)) => serde_json::json!({ "ok": true, "verified": verified }),
            Ok((verified, false)) => {
                serde_json::json!({ "ok": false, "verified": verified, "head_found": false })
            }
            Err(broken) => serde_json::json!({ "ok": false, "broken": broken }),
        };
        return render::json(&value).max(code);
    }
    match result {
        Err(broken) => render::trouble(&format!("{shown}: {broken}"), code),
        Ok((verified, seen)) => {
            render::line(&verified_text(shown, &verified));
            if seen {
                return code;
            }
            let why = "no record has the hash that you gave: the trail was written anew, or is another one";
            render::trouble(why, code)
        }
    }
}

fn verified_text(shown: &str, verified: &Verified) -> String {
    let mut text = format!(
        "{shown}: {} records, each as it was written\nhead {} {}",
        verified.records, verified.head.seq, verified.head.hash
    );
    if let Some(anchor) = verified.begins_after {
        text += &format!("\nbegins after record {}: what was before has been pruned", anchor.seq);
    }
    if verified.unfinished > 0 {
        text += &format!("\n{} runs have no end yet", verified.unfinished);
    }
    if verified.gaps > 0 {
        text += &format!("\nrecords were lost with the power {} times, and say so", verified.gaps);
    }
    text
}

fn prune(args: &AuditPrune) -> Result<u8, Trouble> {
    let pruned = audit::prune(&directory(args.state.as_deref())?, &args.before)??;
    if args.json {
        return Ok(render::json(&serde_json::json!({ "pruned": pruned })));
    }
    Ok(match pruned {
        None => render::trouble("nothing is older than that", 0),
        Some(pruned) => render::line(&format!(
            "{} records are gone; the trail begins after record {} {}",
            pruned.records, pruned.begins_after.seq, pruned.begins_after.hash
        )),
    })
}
