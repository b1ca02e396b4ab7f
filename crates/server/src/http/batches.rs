//! `POST /v1/batches`: many requests under one budget, answered in the order of the input.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use belljar::{Budget, Error, Outcome, RunRequest};
use bytes::{BufMut, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::runs::{caller, refuse_host_paths};
use crate::http::{Server, body};
use crate::limits::Admitted;
use crate::problem::Problem;

/// More requests than this are several batches.
const MAX_REQUESTS: usize = 10_000;

/// Many requests, and what they may use together.
#[derive(Debug, Deserialize)]
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
    request: Request,
) -> Result<Response, Problem> {
    let place = server.queue.enter().map_err(|error| Problem::from(&error))?;
    let (format, caller) = (Format::of(request.headers()), caller(&request));
    let batch: BatchRequest = body::json(request).await?;
    let budget = budget(&batch, server.queue.running())?;
    for (index, asked) in batch.requests.iter().enumerate() {
        refuse_host_paths(asked, &format!("requests[{index}]."))?;
    }
    let mut admitted = server.limits.admit(&caller, &batch.requests)?;
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
        begin(format, &mut told.write());
        let tell = |index, result: Result<Outcome, Error>| {
            admitted.settle(index, &result);
            tell(format, &mut told.write(), index, &result);
        };
        tokio::select! {
            biased;
            () = server.stop.cancelled() => cut_short(format, &mut told.write()),
            () = server.engine.run_batch_in(place, caller, requests, budget, tell) => {
                end(format, &mut told.write());
            }
        }
    });
    let mut response = lines::answer(format, outbox, work);
    Admitted::mark(left.as_ref(), &mut response);
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

fn begin(format: Format, to: &mut BytesMut) {
    if format == Format::Json {
        to.put_u8(b'[');
    }
}

fn tell(format: Format, to: &mut BytesMut, index: usize, result: &Result<Outcome, Error>) {
    match format {
        Format::Json if index > 0 => to.extend_from_slice(b",\n"),
        Format::Json | Format::Lines => {}
        Format::Events => to.extend_from_slice(b"data: "),
    }
    let answer = match result {
        Ok(outcome) => Answer::Outcome(outcome),
        Err(error) => Answer::Error { error: Problem::from(error) },
    };
    // Writing to memory does not fail, and JSON can say all that an answer holds.
    serde_json::to_writer(to.writer(), &answer).ok();
    match format {
        Format::Json => {}
        Format::Lines => to.put_u8(b'\n'),
        Format::Events => to.extend_from_slice(b"\n\n"),
    }
}

fn end(format: Format, to: &mut BytesMut) {
    if format == Format::Json {
        to.extend_from_slice(b"]\n");
    }
}

/// The server is stopped: a line says so where lines are, and a document stays without its end.
fn cut_short(format: Format, to: &mut BytesMut) {
    if format != Format::Json {
        tell(format, to, 0, &Err(Error::Cancelled));
    }
}
