//! Which tool does what: arguments read strictly, then one or two requests, then the answer in both forms.

use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::arguments::{
    CreateSandbox, ExplainBlock, Nothing, OneSandbox, Rollback, Snapshot, TestCode,
};
use super::lines::{Lines, Progress};
use super::reach::{Reach, json as body, segment};
use super::results::{self, Case, Done, Explained, Graded, Point, Sandbox, Sandboxes, text, texts};
use super::told::Refused;
use super::{files, running};
use crate::wire;

/// How long a sandbox of a model stays unless told.
const USUAL_TTL_S: u64 = 4 * 3600;
/// Sandboxes that are told at once.
const MOST_LISTED: usize = 1000;
/// Longer than a run may be anyway; what does not fit a number of milliseconds is refused here.
const MOST_SECONDS: f64 = 1e9;

pub(super) type Answered = Result<CallToolResult, Refused>;

/// Carries out a call. What goes wrong is told to the model; only a tool that there is not is an error of the protocol.
pub(super) async fn call(
    reach: &Reach,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    let reach = &reach.for_request(&context);
    let given = Value::Object(request.arguments.unwrap_or_default());
    let mut progress = Progress::of(&context);
    let answered = match &*request.name {
        "run_code" => running::code(reach, read(given), &mut progress).await,
        "run_command" => running::command(reach, read(given), &mut progress).await,
        "create_sandbox" => create(reach, read(given)).await,
        "list_sandboxes" => list(reach, read(given)).await,
        "remove_sandbox" => remove(reach, read(given)).await,
        "read_file" => files::read(reach, read(given)).await,
        "write_file" => files::write(reach, read(given)).await,
        "list_files" => files::list(reach, read(given)).await,
        "snapshot_sandbox" => snapshot(reach, read(given)).await,
        "rollback_sandbox" => rollback(reach, read(given)).await,
        "test_code" => test(reach, read(given), &mut progress).await,
        "explain_block" => explain(reach, read(given)).await,
        name => {
            let known = super::tools::all().into_iter().map(|tool| tool.name).collect::<Vec<_>>();
            let words = format!("no tool is called {name}; there are: {}", known.join(", "));
            return Err(ErrorData::invalid_params(words, None));
        }
    };
    Ok(answered
        .unwrap_or_else(|refused| CallToolResult::error(vec![ContentBlock::text(refused.text())])))
}

/// What a tool is given, or the mistake in it, by the field's name.
pub(super) type Given<T> = Result<T, Refused>;

fn read<T: DeserializeOwned>(given: Value) -> Given<T> {
    serde_path_to_error::deserialize(given).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "arguments".to_owned() } else { path };
        Refused::mistake(format!("{field}: {}", error.inner()))
    })
}

/// An answer in both forms.
pub(super) fn answer(text: impl Into<String>, structured: &impl Serialize) -> Answered {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    let value = serde_json::to_value(structured).map_err(|error| Refused::ours(&error.to_string()));
    result.structured_content = Some(value?);
    Ok(result)
}

/// Seconds as they travel.
pub(super) fn milliseconds(field: &str, seconds: Option<f64>) -> Result<Option<u64>, Refused> {
    let Some(seconds) = seconds else { return Ok(None) };
    if !(seconds > 0.0 && seconds < MOST_SECONDS) {
        let words = format!("{field} is {seconds}; it must be a positive number of seconds");
        return Err(Refused::mistake(words));
    }
    let millis = std::time::Duration::from_secs_f64(seconds).as_millis();
    Ok(Some(u64::try_from(millis).unwrap_or(u64::MAX).max(1)))
}

pub(super) fn mebibytes(field: &str, mb: Option<u64>) -> Result<Option<u64>, Refused> {
    let bytes = |mb: u64| {
        let words = || Refused::mistake(format!("{field} is {mb}, which is too much"));
        mb.checked_mul(1 << 20).ok_or_else(words)
    };
    mb.map(bytes).transpose()
}

pub(super) fn at(sandbox: &str, rest: &str) -> String {
    format!("{}/{}{rest}", wire::SANDBOXES, segment(sandbox))
}

async fn create(reach: &Reach, given: Given<CreateSandbox>) -> Answered {
    let given = given?;
    let limits = json!({
        "memory_bytes": mebibytes("memory_mb", given.memory_mb)?,
        "disk_bytes": mebibytes("disk_mb", given.disk_mb)?,
        "wall_ms": milliseconds("timeout_s", given.timeout_s)?,
    });
    let request = json!({
        "name": given.name,
        "limits": limits,
        "env": given.env,
        "ttl_ms": given.ttl_s.unwrap_or(USUAL_TTL_S).saturating_mul(1000),
        "labels": { "made-by": "mcp" },
    });
    let made: Value = reach.post(wire::SANDBOXES, &request).await?;
    let made = Sandbox::of(&made);
    let until = made.expires_at.clone().unwrap_or_else(|| "it is removed".to_owned());
    answer(format!("sandbox {} is ready, until {until}", made.sandbox), &made)
}

async fn list(reach: &Reach, given: Given<Nothing>) -> Answered {
    given?;
    let (found, _) = reach.list(wire::SANDBOXES, "sandboxes", MOST_LISTED).await?;
    let sandboxes: Vec<Sandbox> = found.iter().map(Sandbox::of).collect();
    let line = |one: &Sandbox| format!("{} ({})", one.sandbox, one.state);
    let text = if sandboxes.is_empty() {
        "there are no sandboxes".to_owned()
    } else {
        sandboxes.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    answer(text, &Sandboxes { sandboxes })
}

async fn remove(reach: &Reach, given: Given<OneSandbox>) -> Answered {
    let OneSandbox { sandbox } = given?;
    let path = at(&sandbox, "?force=true");
    reach.send(hyper::Method::DELETE, &path, wire::JSON, axum::body::Body::empty()).await?;
    answer(format!("sandbox {sandbox} is gone"), &Done { sandbox, done: "removed".to_owned() })
}

async fn snapshot(reach: &Reach, given: Given<Snapshot>) -> Answered {
    let Snapshot { sandbox, tag } = given?;
    let taken: Value = reach.post(&at(&sandbox, "/snapshots"), &json!({ "tag": tag })).await?;
    let tag = text(&taken, "tag");
    answer(format!("snapshot {tag} of {sandbox} is taken"), &Point { sandbox, tag })
}

async fn rollback(reach: &Reach, given: Given<Rollback>) -> Answered {
    let Rollback { sandbox, tag } = given?;
    let _: Value = reach.post(&at(&sandbox, "/rollback"), &json!({ "tag": tag })).await?;
    let done = format!("files are as they were at {tag}");
    answer(format!("{sandbox}: {done}"), &Done { sandbox, done })
}

async fn test(reach: &Reach, given: Given<TestCode>, progress: &mut Progress) -> Answered {
    let given = given?;
    let request = json!({
        "code": given.code,
        "language": given.language.as_deref().unwrap_or("python"),
        "func_name": given.func_name,
        "cases": given.cases,
        "limits": { "wall_ms": milliseconds("timeout_s", given.timeout_s)? },
    });
    let method = hyper::Method::POST;
    let response = reach.send(method, wire::GRADES, wire::NDJSON, body(&request)?).await?;
    let mut lines = Lines::of(response);
    while let Some(line) = lines.next().await? {
        if line["type"] == "grade" {
            return graded(&line);
        }
        let words = format!("{}: {}\n", text(&line, "name"), text(&line, "verdict"));
        progress.advance(1, &words).await;
    }
    Err(Refused::ours("the stream ended before the grade"))
}

fn graded(grade: &Value) -> Answered {
    let found = grade["test_results"].as_array().map_or(&[][..], Vec::as_slice);
    let cases: Vec<Case> = found
        .iter()
        .map(|one| Case {
            name: text(one, "name"),
            passed: one["passed"] == true,
            verdict: text(one, "verdict"),
            detail: text(one, "detail"),
        })
        .collect();
    let graded = Graded {
        score: grade["score"].as_f64(),
        all_passed: grade["all_passed"] == true,
        score_trustworthy: grade["score_trustworthy"] == true,
        feedback: text(grade, "feedback_text"),
        cases,
    };
    let passed = graded.cases.iter().filter(|case| case.passed).count();
    let mut words = format!("{passed} of {} cases passed", graded.cases.len());
    for case in graded.cases.iter().filter(|case| !case.passed) {
        words = format!("{words}\n{}: {} {}", case.name, case.verdict, case.detail);
    }
    if !graded.score_trustworthy {
        words.push_str("\nthe score is not to be trusted: the sandbox failed, not the code");
    }
    if !graded.feedback.is_empty() {
        words = format!("{words}\n\n{}", graded.feedback);
    }
    answer(words, &graded)
}

async fn explain(reach: &Reach, given: Given<ExplainBlock>) -> Answered {
    let ExplainBlock { execution_id } = given?;
    let path = format!("{}/{}/explanation", wire::RUNS, segment(&execution_id));
    let found: Value = reach.get(&path).await.map_err(|refused| Refused {
        detail: format!(
            "{} (only recorded runs without a sandbox can be explained)",
            refused.detail
        ),
        code: String::new(),
    })?;
    let explained = Explained {
        execution_id,
        ended: text(&found, "ended"),
        reasons: texts(&found, "reasons"),
        refused: results::blocked(&found),
        recommendations: texts(&found, "recommendations"),
    };
    let mut words = explained.ended.clone();
    for one in &explained.refused {
        words = format!("{words}\nrefused by {}: {}. to allow it: {}", one.rule, one.what, one.fix);
    }
    for one in &explained.recommendations {
        words = format!("{words}\n{one}");
    }
    answer(words, &explained)
}
