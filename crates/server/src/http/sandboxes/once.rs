//! One-shots: a sandbox made for one program, and torn down after it. Whoever goes away ends it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use belljar::living::{OneShot, Ran};
use belljar::sandbox::OneShotRequest;

use super::execs::{Finished, event_name, tell_error};
use super::{STATE, WRITE, may_be_made, told};
use crate::api::{Api, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Mine, Server, Who, body};
use crate::principal::Principal;
use crate::problem::Problem;
use crate::wire;

/// Their names have a `_`, which no sandbox's has.
pub(super) fn enter(api: &mut Api) {
    let one = |id, summary| {
        let one = start(id, WRITE, summary).takes::<OneShotRequest>().gives::<Finished>(200);
        one.streams().refuses(STATE)
    };
    let ran = one("run_python", "Run Python in a sandbox that is made for it");
    api.post(&format!("{}/run_python", wire::SANDBOXES), python, ran);
    let ran = one("run_shell", "Run a script of bash in a sandbox that is made for it");
    api.post(&format!("{}/run_shell", wire::SANDBOXES), shell, ran);
}

async fn python(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    request: Request,
) -> Result<Response, Problem> {
    let (format, asked) = read(&server, &principal, "python", request).await?;
    answer(sandboxes.start_python(asked).await.map_err(told)?, format).await
}

async fn shell(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    request: Request,
) -> Result<Response, Problem> {
    let (format, asked) = read(&server, &principal, "bash", request).await?;
    answer(sandboxes.start_shell(asked).await.map_err(told)?, format).await
}

async fn read(
    server: &Server,
    principal: &Principal,
    language: &str,
    request: Request,
) -> Result<(Format, OneShotRequest), Problem> {
    let format = Format::of(request.headers());
    let mut asked: OneShotRequest = body::json(request).await?;
    let applied = server.policy.of(principal, &asked.sandbox.labels);
    applied.language(Some(language))?;
    applied.timeout(asked.timeout_ms)?;
    may_be_made(principal, &applied, &mut asked.sandbox)?;
    server.limits.admit_caller(&principal.caller, 1, &applied)?;
    server.limits.admit_labels(&asked.sandbox.labels)?;
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
                Ok(Some(event)) => to.tell(format, event_name(&event), &event),
                Ok(None) => return,
                Err(error) => return tell_error(format, &to, &error),
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}
