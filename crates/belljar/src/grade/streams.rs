//! Cases with a standard input and an expected output, in any language: one run each.

use std::sync::Arc;
use std::time::Duration;

use super::case::Case;
use super::feedback::find_error;
use super::judge::{self, Facts, Judged};
use super::lanes::{Group, RETRIES, Shared, is_final};
use super::{CaseVerdict, GradeRequest};
use crate::model::error::Error;
use crate::model::outcome::{Outcome, Stream};
use crate::model::request::RunRequest;

/// Kept of an output beyond the length of the one expected, to show what is wrong with it.
const MORE_BYTES: u64 = 64 << 10;

/// Takes cases until there are none.
pub(super) async fn lane(shared: &Arc<Shared>, group: &Group) -> Result<(), Error> {
    while let Some(index) = group.next() {
        let (judged, facts) = settle(shared, shared.case(index)).await?;
        let failed = judged.verdict == CaseVerdict::Infrastructure;
        let detail = judged.detail.clone();
        shared.tell(index, judged, facts);
        if failed {
            let why = format!("not run: {detail}");
            shared.tell_rest(group, || Judged::new(CaseVerdict::Infrastructure, why.clone()));
        }
    }
    Ok(())
}

async fn settle(shared: &Arc<Shared>, case: &Case) -> Result<(Judged, Facts), Error> {
    let mut last = None;
    for _ in 0..=RETRIES {
        if shared.is_over() {
            let why = "not run: the time of the whole grade is over";
            return Ok((Judged::new(CaseVerdict::TimeLimit, why), Facts::default()));
        }
        let _turn = shared.turn().await?;
        let judged = match run(shared, case).await {
            Ok((outcome, stdout)) => {
                shared.note(&outcome, case.hidden);
                let mut judged = judge::output(case, &outcome, &stdout);
                if judged.verdict == CaseVerdict::Ended {
                    judged.raised = find_error(&shared.checked.language, &outcome.stderr);
                    if let Some(raised) = &mut judged.raised {
                        raised.line = own_line(&shared.checked.request, raised.line);
                        // Better than the last line: node ends with its version.
                        let how = judged.detail.split(':').next().unwrap_or_default();
                        judged.detail = format!("{how}: {}", judge::one_line(raised));
                    }
                }
                let facts = Facts {
                    duration: Duration::from_secs_f64(outcome.elapsed_ms.max(0.0) / 1000.0),
                    memory_bytes: outcome.memory_peak_bytes,
                    printed: judge::beginning(&outcome.stderr),
                };
                if judged.verdict != CaseVerdict::Infrastructure {
                    return Ok((judged, facts));
                }
                judged
            }
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => Judged::new(CaseVerdict::Infrastructure, error.to_string()),
        };
        last = Some(judged);
    }
    let judged = last.unwrap_or_else(|| Judged::new(CaseVerdict::Infrastructure, ""));
    Ok((judged, Facts::default()))
}

/// Runs the candidate, and keeps as much of its output as is compared.
async fn run(shared: &Shared, case: &Case) -> Result<(Outcome, Vec<u8>), Error> {
    let checked = &shared.checked;
    let request = &checked.request;
    let mut limits = request.limits.clone();
    let limit_ms = checked.limit(case).min(checked.left()).as_millis();
    limits.wall_ms = Some(u64::try_from(limit_ms).unwrap_or(u64::MAX).max(1));
    let expected = case.expected_stdout.as_ref().map_or(0, |data| data.0.len() as u64);
    let most = expected.saturating_mul(2).saturating_add(MORE_BYTES);
    limits.output_total_bytes = limits.output_total_bytes.or(Some(most.max(16 << 20)));
    let run = shared.engine.prepare(RunRequest {
        code: Some(with_setup(request.setup_code.as_deref(), &request.code)),
        language: Some(checked.language.clone()),
        file_name: Some(checked.file.clone()),
        stdin: case.stdin.clone(),
        files: request.files.clone(),
        level: request.level,
        limits,
        labels: request.labels.clone(),
        start: request.start,
        ..RunRequest::default()
    })?;
    let mut run = run.by(shared.caller.clone());
    if shared.conceals(case.hidden) {
        run = run.recorded_without_words();
    }
    let mut kept = Vec::new();
    let mut sink = |stream, bytes: &[u8]| {
        if stream == Stream::Stdout {
            let room = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(kept.len());
            kept.extend_from_slice(&bytes[..room.min(bytes.len())]);
        }
    };
    let mut outcome = run.run(&mut sink).await?;
    let total = kept.len() as u64;
    outcome.stdout_truncated = total >= most;
    Ok((outcome, kept))
}

/// The CPU time of one run that passes; `None` for one that does not.
pub(super) async fn cpu_ms(shared: &Shared, case: &Case) -> Result<Option<f64>, Error> {
    match run(shared, case).await {
        Ok((outcome, stdout)) => {
            let judged = judge::output(case, &outcome, &stdout);
            Ok((judged.verdict == CaseVerdict::Passed).then_some(outcome.cpu_ms))
        }
        Err(error) if is_final(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// A line of the candidate, of one of the program that it was run as; none for one of the set-up.
fn own_line(request: &GradeRequest, line: Option<u32>) -> Option<u32> {
    let before = request.setup_code.as_ref().map_or(0, |setup| setup.matches('\n').count() + 1);
    line?.checked_sub(u32::try_from(before).ok()?).filter(|line| *line > 0)
}

fn with_setup(setup: Option<&str>, code: &str) -> String {
    setup.map_or_else(|| code.to_owned(), |setup| format!("{setup}\n{code}"))
}
