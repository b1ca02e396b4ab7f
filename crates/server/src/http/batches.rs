//! `POST /v1/batches`: many requests under one budget, answered in the order of the input.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use belljar::{Budget, Error, Outcome, RunRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::api::{Access, Api, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::runs::refuse_host_paths;
use crate::http::{Server, Who, body};
use crate::limits::Left;
use crate::problem::Problem;
use crate::scope::Scope;
use crate::wire;

pub(super) fn enter(api: &mut Api) {
    let all = start("batch", Access::Scope(Scope::Runs), "Run many programs under one budget");
    let all = all.takes::<BatchRequest>().gives::<Vec<serde_json::Value>>(200).streams();
    api.post(wire::BATCHES, run, all);
}

/// More requests than this are several batches.
const MAX_REQUESTS: usize = 10_000;

/// Many requests, and what they may use together.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BatchRequest {
    requests: Vec<RunRequest>,
    /// Runs at once; one for each core unless told, and never more than the server runs.
    #[serde(default)]
    parallel: Option<usize>,
    #[serde(default)]
    budget_cpu_ms: Option<u64>,
    #[serde(default)]
    budget_wall_ms: Option<u64>,
}

/// One result: an Outcome, or why there is none.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer<'a> {
    Outcome(&'a Outcome),
    Error { error: Problem },
}

pub(crate) async fn run(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<Response, Problem> {
    let place = server.queue.enter().map_err(|error| Problem::from(&error))?;
    let (format, caller) = (Format::of(request.headers()), principal.caller.clone());
    let mut batch: BatchRequest = body::json(request).await?;
    let budget = budget(&batch, server.queue.running())?;
    let mut applied = Vec::with_capacity(batch.requests.len());
    for (index, asked) in batch.requests.iter_mut().enumerate() {
        let above = format!("requests[{index}].");
        refuse_host_paths(asked, &above)?;
        let rules = server.policy.of(&principal, &asked.labels);
        rules.check_run(asked, &above)?;
        applied.push(rules);
    }
    let at_once = budget.parallel.get().min(batch.requests.len());
    let running = server.policy.enter_all(&applied, at_once)?;
    let mut admitted = server.limits.admit(&caller, &batch.requests, &applied)?;
    let left = admitted.left();
    let (sender, requests) = mpsc::channel(batch.requests.len().max(1));
    for asked in batch.requests {
        // There is room for each, and the receiver is here.
        sender.try_send(Ok(asked)).ok();
    }
    drop(sender);
    let outbox = Outbox::default();
    let told = outbox.clone();
    let work = Box::pin(async move {
        if format == Format::Json {
            told.put(b"[");
        }
        let tell = |index, result: Result<Outcome, Error>| {
            admitted.settle(index, &result);
            tell(format, &told, index, &result);
        };
        tokio::select! {
            biased;
            () = server.stop.cancelled() => cut_short(format, &told),
            () = server.engine.run_batch_in(place, caller, requests, budget, tell) => {
                if format == Format::Json {
                    told.put(b"]\n");
                }
            }
        }
        drop(running);
    });
    let mut response = lines::answer(format, outbox, work);
    Left::mark(left.as_ref(), &mut response);
    Ok(response)
}

fn budget(batch: &BatchRequest, running: usize) -> Result<Budget, Problem> {
    if batch.requests.len() > MAX_REQUESTS {
        let reason = format!("are {}, more than {MAX_REQUESTS}", batch.requests.len());
        return Err(Problem::field("requests", &reason));
    }
    let mut budget = Budget::default();
    if let Some(asked) = batch.parallel {
        budget.parallel = NonZeroUsize::new(asked)
            .ok_or_else(|| Problem::field("parallel", "is 0; at least one run at a time"))?;
    }
    // What runs beyond this would only wait for a turn.
    let running = NonZeroUsize::new(running).unwrap_or(NonZeroUsize::MIN);
    budget.parallel = budget.parallel.min(running);
    budget.cpu = batch.budget_cpu_ms.map(Duration::from_millis);
    budget.wall = batch.budget_wall_ms.map(Duration::from_millis);
    Ok(budget)
}

fn tell(format: Format, to: &Outbox, index: usize, result: &Result<Outcome, Error>) {
    if format == Format::Json && index > 0 {
        to.put(b",");
    }
    let answer = match result {
        Ok(outcome) => Answer::Outcome(outcome),
        Err(error) => Answer::Error { error: Problem::from(error) },
    };
    to.tell(format, "result", &answer);
}

/// The server is stopped: a line says so where lines are, and a document stays without its end.
fn cut_short(format: Format, to: &Outbox) {
    to.break_off();
    if format != Format::Json {
        tell(format, to, 0, &Err(Error::Cancelled));
    }
}
