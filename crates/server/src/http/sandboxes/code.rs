//! Code in contexts that keep their variables.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use belljar::sandbox::{CodeEvent, CodeRequest, CodeResult, ContextInfo};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::execs::{tell, tell_error};
use super::{Answer, only, told};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Server, body};
use crate::problem::Problem;

pub(super) fn routes(
    router: Router<Arc<Server>>,
    at: impl Fn(&str) -> String,
) -> Router<Arc<Server>> {
    router
        .route(&at("/code"), only(post(run), "POST"))
        .route(&at("/contexts"), only(get(list).post(create), "GET, POST"))
        .route(&at("/contexts/{id}"), only(delete(remove), "DELETE"))
        .route(&at("/contexts/{id}/interrupt"), only(post(interrupt), "POST"))
        .route(&at("/contexts/{id}/restart"), only(post(restart), "POST"))
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
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of(request.headers());
    let asked: CodeRequest = body::json(request).await?;
    if format == Format::Json {
        let done = server.sandboxes.code(&name, asked, &mut |_| {}).await.map_err(told)?;
        return Ok(axum::Json(done).into_response());
    }
    let outbox = Outbox::default();
    let to = outbox.clone();
    let work = Box::pin(async move {
        let mut sink = |event: CodeEvent| tell(format, &mut to.write(), "code", &event);
        let done = server.sandboxes.code(&name, asked, &mut sink).await;
        match &done {
            Ok(result) => tell(format, &mut to.write(), "ended", &Ended { result }),
            Err(error) => tell_error(format, &mut to.write(), error),
        }
    });
    Ok(lines::answer(format, outbox, work))
}

#[derive(Serialize)]
struct All {
    contexts: Vec<ContextInfo>,
}

async fn list(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer<All> {
    let contexts = server.sandboxes.contexts(&name).await.map_err(told)?;
    Ok(axum::Json(All { contexts }))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Creating {
    language: Option<String>,
    cwd: Option<PathBuf>,
    env: BTreeMap<String, String>,
}

async fn create(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<ContextInfo>), Problem> {
    let Creating { language, cwd, env } = body::json_or_default(request).await?;
    let made = server.sandboxes.create_context(&name, language, cwd, env).await.map_err(told)?;
    Ok((StatusCode::CREATED, axum::Json(made)))
}

async fn remove(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    server.sandboxes.remove_context(&name, &id).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn interrupt(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    server.sandboxes.interrupt_context(&name, &id).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restart(
    State(server): State<Arc<Server>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    server.sandboxes.restart_context(&name, &id).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}
