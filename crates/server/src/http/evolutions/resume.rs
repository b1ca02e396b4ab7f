//! Going on with an evolution that ended, was stopped or was cut short.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use belljar_evolve::{Budget, Evolution, ProposerSpec, Task};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Evolutions, is_of_id, read, set_going, store};
use crate::http::{Server, Who, body};
use crate::limits::Left;
use crate::policy::Applied;
use crate::problem::Problem;

/// How far it may go now. Numbers count what is done already.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "ResumeEvolution")]
pub(super) struct Further {
    /// As before, when left out.
    max_iterations: Option<u32>,
    /// Each as before, when left out.
    budget: Budget,
}

pub(super) async fn resume(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let room = server.evolutions.enter(&principal)?;
    let asked: Further = body::json_or_default(request).await?;
    let root = server.evolutions.root_of(&principal);
    let task = read(root.clone(), &id, Evolution::task_of).await?;
    let applied = server.policy.of(&principal, &BTreeMap::new());
    keeps_rules(&applied, &task)?;
    server.evolutions.still_described(&task.proposer)?;
    let counted = server.policy.enter(&applied, 1)?;
    let left = server.limits.admit_caller(&principal.caller, &applied)?;
    let resumed = store(root, &id, move |root, id| {
        let evolution = Evolution::resume(root, id, asked.max_iterations, asked.budget)?;
        Ok((evolution, Evolution::lines(root, id)?.len()))
    });
    let (evolution, lines) = resumed.await.map_err(|error| match is_of_id(&error) {
        true => Problem::coded("conflict", error.to_string()), // it was found just now
        false => Problem::from(&error),
    })?;
    let evolution = evolution.by(principal.caller.clone());
    let mut response = set_going(&server, evolution, lines, (room, counted));
    Left::mark(left.as_ref(), &mut response);
    Ok(response)
}

/// What was asked for once is held to the rules of today. It cannot be changed any more: what a rule would change is refused.
fn keeps_rules(applied: &Applied, task: &Task) -> Result<(), Problem> {
    let (mut limits, mut screen) = (task.limits.clone(), task.screen);
    applied.check_parts(task.level, &mut limits, Some(&task.language))?;
    applied.case_times("cases", &task.cases)?;
    applied.case_times("hidden", &task.hidden)?;
    applied.screen(&mut screen);
    if limits != task.limits || screen != task.screen {
        let detail = "the rules for it have changed since it was begun: begin another";
        return Err(Problem::coded("conflict", detail));
    }
    Ok(())
}

impl Evolutions {
    /// A proposer that the operator has taken away, or changed, is asked no more; nor one that no request may name.
    fn still_described(&self, proposer: &ProposerSpec) -> Result<(), Problem> {
        let is_replay = matches!(proposer, ProposerSpec::Replay(replay) if replay.file.is_none());
        if is_replay || self.proposers.values().any(|one| one == proposer) {
            return Ok(());
        }
        let detail = "its proposer is not described here any more, or otherwise: begin another";
        Err(Problem::coded("conflict", detail))
    }
}
