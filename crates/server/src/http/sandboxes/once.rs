//! One-shots: a sandbox made for one program, and torn down after it. Whoever goes away ends it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use belljar::living::{OneShot, Ran};
use belljar::sandbox::OneShotRequest;

use super::execs::{Finished, event_name, tell, tell_error};
use super::{may_name_its_workspace, only, told};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Server, body};
use crate::problem::Problem;
use crate::wire;

/// Their names have a `_`, which no sandbox's has.
pub(super) fn routes(router: Router<Arc<Server>>) -> Router<Arc<Server>> {
    router
        .route(&format!("{}/run_python", wire::SANDBOXES), only(post(python), "POST"))
        .route(&format!("{}/run_shell", wire::SANDBOXES), only(post(shell), "POST"))
}

async fn python(State(server): State<Arc<Server>>, request: Request) -> Result<Response, Problem> {
    let (format, asked) = read(&server, request).await?;
    answer(server.sandboxes.start_python(asked).await.map_err(told)?, format).await
}

async fn shell(State(server): State<Arc<Server>>, request: Request) -> Result<Response, Problem> {
    let (format, asked) = read(&server, request).await?;
    answer(server.sandboxes.start_shell(asked).await.map_err(told)?, format).await
}

async fn read(server: &Server, request: Request) -> Result<(Format, OneShotRequest), Problem> {
    let format = Format::of(request.headers());
    let ours = super::is_ours(server, &request);
    let asked: OneShotRequest = body::json(request).await?;
    may_name_its_workspace(ours, &asked.sandbox)?;
    Ok((format, asked))
}

async fn answer(mut running: OneShot, format: Format) -> Result<Response, Problem> {
    if format == Format::Json {
        let Ran { exec, stdout, stderr } = running.collect().await.map_err(told)?;
        return Ok(axum::Json(Finished::new(exec, &stdout, &stderr)).into_response());
    }
    let outbox = Outbox::default();
    let to = outbox.clone();
    let work = Box::pin(async move {
        loop {
            match running.next().await {
                Ok(Some(event)) => tell(format, &mut to.write(), event_name(&event), &event),
                Ok(None) => return,
                Err(error) => return tell_error(format, &mut to.write(), &error),
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}
