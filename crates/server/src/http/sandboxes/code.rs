//! Code in contexts that keep their variables.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::Error;
use belljar::living::Sandboxes;
use belljar::sandbox::{CodeEvent, CodeRequest, CodeResult, ContextInfo, Interruption};
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::execs::tell_error;
use super::{Answer, Beginning, Paged, READ, STATE, WRITE, at, question, screened, told};
use crate::api::{Api, look, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Mine, Server, Who, body};
use crate::limits::Left;
use crate::policy::Running;
use crate::problem::Problem;

pub(super) fn enter(api: &mut Api) {
    let ran = start("code", WRITE, "Run code in a context, which keeps its variables");
    let ran = ran.takes::<CodeRequest>().gives::<CodeResult>(200).streams().refuses(STATE);
    api.post(&at("/code"), run, ran);
    let all = look("context_list", READ, "The contexts of a sandbox");
    let all = all.asks::<Paged>().gives::<All>(200).refuses(STATE);
    api.get(&at("/contexts"), list, all);
    let made = start("context_create", WRITE, "Make a context");
    let made = made.may_take::<Creating>().gives::<ContextInfo>(201).refuses(STATE);
    api.post(&at("/contexts"), create, made);
    let done = |id, summary| look(id, WRITE, summary).gives_nothing().refuses(STATE);
    api.delete(&at("/contexts/{id}"), remove, done("context_remove", "End a context"));
    let interrupted = look("context_interrupt", WRITE, "Interrupt what a context runs");
    let interrupted = interrupted.gives::<Interruption>(200).refuses(STATE);
    api.post(&at("/contexts/{id}/interrupt"), interrupt, interrupted);
    let restarted = done("context_restart", "Begin a context anew").heavy();
    api.post(&at("/contexts/{id}/restart"), restart, restarted);
}

/// The last that is told of code.
#[derive(Serialize)]
#[serde(tag = "type", rename = "ended")]
struct Ended<'a> {
    #[serde(flatten)]
    result: &'a CodeResult,
}

async fn run(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of(request.headers());
    let asked: CodeRequest = body::json(request).await?;
    let beginning = Beginning::of(&server, &principal, &sandboxes, &name)?;
    let language = asked.language.as_deref().unwrap_or("python");
    beginning.applied.language(Some(language))?;
    beginning.applied.timeout(asked.timeout_ms)?;
    screened(&server, &beginning.applied, language, &asked.code).await?;
    let running = beginning.enter(&server)?;
    let left = beginning.admit(&server, &principal)?;
    let mut answer = if format == Format::Json {
        let done = carry_out(&server, &sandboxes, &name, asked, &mut |_| {}).await;
        drop(running);
        axum::Json(done.map_err(told)?).into_response()
    } else {
        stream((server, running), sandboxes, (name, asked), format)
    };
    Left::mark(left.as_ref(), &mut answer);
    Ok(answer)
}

/// To its end, or that of the server.
async fn carry_out(
    server: &Server,
    sandboxes: &Sandboxes,
    name: &str,
    asked: CodeRequest,
    sink: &mut (dyn FnMut(CodeEvent) + Send),
) -> Result<CodeResult, Error> {
    tokio::select! {
        biased;
        () = server.stop.cancelled() => Err(Error::Cancelled),
        done = sandboxes.code(name, asked, sink) => done,
    }
}

/// What it writes, as it writes it, and its result.
fn stream(
    (server, running): (Arc<Server>, Running),
    sandboxes: Sandboxes,
    (name, asked): (String, CodeRequest),
    format: Format,
) -> Response {
    let outbox = Outbox::default();
    let to = outbox.clone();
    let work = Box::pin(async move {
        let mut sink = |event: CodeEvent| to.tell(format, "code", &event);
        let done = carry_out(&server, &sandboxes, &name, asked, &mut sink).await;
        match &done {
            Ok(result) => to.tell(format, "ended", &Ended { result }),
            Err(error) => {
                if matches!(error, Error::Cancelled) {
                    to.break_off();
                }
                tell_error(format, &to, error);
            }
        }
        drop(running);
    });
    lines::answer(format, outbox, work)
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ContextList")]
struct All {
    contexts: Vec<ContextInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(Mine(sandboxes): Mine, Path(name): Path<String>, request: Request) -> Answer<All> {
    let part = question::<Paged>(&request)?.part()?;
    let mut contexts = sandboxes.contexts(&name).await.map_err(told)?;
    contexts.sort_by(|one, other| one.id.cmp(&other.id));
    let page = part.of(contexts, |one| one.id.clone());
    Ok(axum::Json(All { contexts: page.items, next_cursor: page.next_cursor }))
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "ContextRequest")]
struct Creating {
    language: Option<String>,
    cwd: Option<PathBuf>,
    env: BTreeMap<String, String>,
}

async fn create(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let Creating { language, cwd, env } = body::json_or_default(request).await?;
    let beginning = Beginning::of(&server, &principal, &sandboxes, &name)?;
    beginning.applied.language(language.as_deref().or(Some("python")))?;
    let left = beginning.admit(&server, &principal)?;
    let made = sandboxes.create_context(&name, language, cwd, env).await.map_err(told)?;
    let mut answer = (StatusCode::CREATED, axum::Json(made)).into_response();
    Left::mark(left.as_ref(), &mut answer);
    Ok(answer)
}

async fn remove(
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    sandboxes.remove_context(&name, &id).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn interrupt(
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
) -> Answer<Interruption> {
    sandboxes.interrupt_context(&name, &id).await.map(axum::Json).map_err(told)
}

async fn restart(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    Beginning::of(&server, &principal, &sandboxes, &name)?.admit(&server, &principal)?;
    sandboxes.restart_context(&name, &id).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}
