//! What is done beside the requests, for as long as a server lives.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use crate::http::Server;
use crate::policy::{self, Reload};

/// How often old records are let go.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

pub(crate) async fn tend(server: Arc<Server>) {
    let sandboxes = server.all_sandboxes.clone();
    tokio::join!(
        server.engine.tend_pool(),
        sandboxes.tend(),
        server.admission.tend(),
        watch_policy(&server),
        prune(&server)
    );
}

/// Takes over a policy whose file has changed.
async fn watch_policy(server: &Server) {
    loop {
        tokio::time::sleep(policy::LOOK_AGAIN).await;
        report(server, server.policy.look());
    }
}

/// Says what came of a look at the policy.
pub(crate) fn report(server: &Server, reload: Reload) {
    match reload {
        Reload::Same => {}
        Reload::Changed => {
            server.metrics.policy_reloads.fetch_add(1, Ordering::Relaxed);
            server.journal.info("the policy was taken over", json!({}));
        }
        Reload::Refused(error) => {
            server.metrics.policy_refusals.fetch_add(1, Ordering::Relaxed);
            let message = "the policy was not taken over, and the one before stays in force";
            server.journal.warn(message, json!({ "error": error }));
        }
    }
}

/// Lets go of records that are older than the policy wants.
async fn prune(server: &Server) {
    loop {
        if let (Some(directory), Some(keep)) = (server.audit.clone(), server.policy.retention()) {
            let before = format!("{}s", keep.as_secs());
            let pruned = tokio::task::spawn_blocking(move || prune_now(directory, &before)).await;
            if let Ok(Err(error)) = pruned {
                server.journal.warn("old records were not let go", json!({ "error": error }));
            }
        }
        tokio::time::sleep(PRUNE_EVERY).await;
    }
}

fn prune_now(directory: PathBuf, before: &str) -> Result<(), String> {
    match belljar::audit::prune(&directory, before) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
