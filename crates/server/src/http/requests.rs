//! What goes on under an `Idempotency-Key`: with one the work does not end with its connection, so there must be another
//! way to end it.

use std::sync::Arc;

use axum::extract::{Path, State};
use hyper::StatusCode;

use crate::api::{Access, Api, look};
use crate::http::{Server, Who};
use crate::problem::Problem;

pub(super) fn enter(api: &mut Api) {
    let ended = look("request_end", Access::Known, "End what goes on under an Idempotency-Key");
    api.delete("/v1/requests/{key}", end, ended.gives_nothing());
}

/// `DELETE /v1/requests/{key}`: as the end of its connection ends what has no key.
async fn end(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(key): Path<String>,
) -> Result<StatusCode, Problem> {
    if server.memory.end(principal.tenant.name(), &key).await {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Problem::not_found("nothing goes on under this Idempotency-Key"))
}
