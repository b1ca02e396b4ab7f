//! One-shots: a sandbox made for one program, and torn down after it. Whoever goes away ends it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use belljar::Error;
use belljar::living::{OneShot, Ran};
use belljar::sandbox::OneShotRequest;

use super::execs::{Finished, event_name, tell_error};
use super::points::room;
use super::{STATE, WRITE, may_be_made, screened, told};
use crate::api::{Api, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::{Mine, Server, Who, body};
use crate::limits::Left;
use crate::policy::Running;
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
    let Read { format, asked, held } = read(&server, &principal, "python", request).await?;
    let making = room(&server, &principal, &sandboxes, 1).await?;
    let running = sandboxes.start_python(asked).await.map_err(told)?;
    drop(making);
    answer(&server, running, format, held).await
}

async fn shell(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    request: Request,
) -> Result<Response, Problem> {
    let Read { format, asked, held } = read(&server, &principal, "bash", request).await?;
    let making = room(&server, &principal, &sandboxes, 1).await?;
    let running = sandboxes.start_shell(asked).await.map_err(told)?;
    drop(making);
    answer(&server, running, format, held).await
}

/// What was asked, and what is kept free for it.
struct Read {
    format: Format,
    asked: OneShotRequest,
    held: (Option<Left>, Running),
}

async fn read(
    server: &Server,
    principal: &Principal,
    language: &str,
    request: Request,
) -> Result<Read, Problem> {
    let format = Format::of(request.headers());
    let mut asked: OneShotRequest = body::json(request).await?;
    let applied = server.policy.of(principal, &asked.sandbox.labels);
    applied.language(Some(language))?;
    applied.timeout(asked.timeout_ms)?;
    may_be_made(principal, &applied, &mut asked.sandbox)?;
    screened(server, &applied, language, &asked.code).await?;
    let running = server.policy.enter(&applied, 1)?;
    let left = server.limits.admit_caller(&principal.caller, &applied)?;
    server.limits.admit_labels(&principal.caller, &asked.sandbox.labels)?;
    Ok(Read { format, asked, held: (left, running) })
}

async fn answer(
    server: &Arc<Server>,
    mut running: OneShot,
    format: Format,
    (left, held): (Option<Left>, Running),
) -> Result<Response, Problem> {
    if format == Format::Json {
        let ended = tokio::select! {
            biased;
            () = server.stop.cancelled() => Err(Error::Cancelled),
            ended = running.collect() => ended,
        };
        let Ran { exec, stdout, stderr } = ended.map_err(told)?;
        let mut answer = axum::Json(Finished::new(exec, &stdout, &stderr)).into_response();
        Left::mark(left.as_ref(), &mut answer);
        return Ok(answer);
    }
    let outbox = Outbox::default();
    let (to, stop) = (outbox.clone(), server.stop.clone());
    let work = Box::pin(async move {
        let _held = held;
        loop {
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    to.break_off();
                    Err(Error::Cancelled)
                }
                next = running.next() => next,
            };
            match next {
                Ok(Some(event)) => to.tell(format, event_name(&event), &event),
                Ok(None) => return,
                Err(error) => return tell_error(format, &to, &error),
            }
        }
    });
    let mut answer = lines::answer(format, outbox, work);
    Left::mark(left.as_ref(), &mut answer);
    Ok(answer)
}
