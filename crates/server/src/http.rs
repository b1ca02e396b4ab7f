//! The routes, each with what the table of operations has to know of it.

mod audit;
mod batches;
pub(crate) mod body;
pub(crate) mod evolutions;
pub(crate) mod format;
mod grades;
pub(crate) mod lines;
mod meta;
mod page;
mod pipe;
mod requests;
mod runs;
mod sandboxes;
mod terminal;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::middleware;
use belljar::living::Sandboxes;
use belljar::{Engine, Queue};
use hyper::http::request::Parts;

use crate::admission::Admission;
use crate::api::{Api, Table};
use crate::door::Door;
use crate::front;
use crate::idempotency::Memory;
use crate::journal::Journal;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::principal::{Principal, Tenant};
use crate::problem::Problem;
use crate::scope::Scope;
use crate::shares::Shares;
use crate::stop::Stop;
use crate::trace::Spans;

pub(crate) use terminal::terminals;

/// Names the tenant whose sandboxes somebody with the scope `admin` means.
pub(crate) const TENANT: &str = "belljar-tenant";

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) queue: Queue,
    pub(crate) door: Door,
    pub(crate) stop: Stop,
    pub(crate) evolutions: evolutions::Evolutions,
    /// The state directory with the audit trail, when runs are recorded.
    pub(crate) audit: Option<PathBuf>,
    pub(crate) limits: Limits,
    /// The sandboxes that stay, of all tenants: a request has its own by [`Mine`].
    pub(crate) all_sandboxes: Sandboxes,
    pub(crate) policy: Policy,
    pub(crate) admission: Admission,
    pub(crate) memory: Memory,
    /// Bodies that are being read.
    pub(crate) bodies: Arc<body::Bodies>,
    pub(crate) table: Table,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) journal: Journal,
    pub(crate) spans: Option<Spans>,
    /// Taken while a sandbox is made by somebody who may have only so many.
    pub(crate) making: tokio::sync::Mutex<()>,
    /// Room for terminals, which outlive their connections.
    pub(crate) terminals: Arc<Shares>,
}

/// Every operation there is.
pub(crate) fn api() -> Api {
    let mut api = Api::default();
    meta::enter(&mut api);
    runs::enter(&mut api);
    requests::enter(&mut api);
    batches::enter(&mut api);
    grades::enter(&mut api);
    evolutions::enter(&mut api);
    audit::enter(&mut api);
    sandboxes::enter(&mut api);
    api
}

pub(crate) fn router(routes: Router<Arc<Server>>, server: Arc<Server>) -> Router {
    let front = middleware::from_fn_with_state(Arc::clone(&server), front::front);
    let stop = server.stop.clone();
    let api = routes.fallback(not_found).layer(front.clone()).with_state(server);
    let mcp = crate::mcp::mount(api.clone(), &stop).layer(front);
    api.merge(mcp)
}

/// Who asks.
pub(crate) struct Who(pub(crate) Arc<Principal>);

impl FromRequestParts<Arc<Server>> for Who {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, _: &Arc<Server>) -> Result<Self, Problem> {
        let found = head.extensions.get::<Arc<Principal>>();
        // The front lets nobody pass without.
        found
            .map(|found| Self(Arc::clone(found)))
            .ok_or_else(|| Problem::coded("ours", "nobody asked"))
    }
}

/// The sandboxes that whoever asks may see.
pub(crate) struct Mine(pub(crate) Sandboxes);

impl FromRequestParts<Arc<Server>> for Mine {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, server: &Arc<Server>) -> Result<Self, Problem> {
        let Who(principal) = Who::from_request_parts(head, server).await?;
        let named = match head.headers.get(TENANT) {
            None => {
                let own = server.all_sandboxes.of(principal.tenant.name());
                return Ok(Self(own.on_account_of(principal.owner())));
            }
            Some(named) => named.to_str().ok().filter(|name| {
                // Nothing is the owner, who has no name.
                name.is_empty() || crate::keys::check_name(TENANT, name).is_ok()
            }),
        };
        let Some(named) = named else {
            return Err(Problem::field("Belljar-Tenant", "is no name of a tenant"));
        };
        if principal.tenant != Tenant::Owner {
            principal.needs(Scope::Admin)?;
        }
        Ok(Self(server.all_sandboxes.of(named).on_account_of(principal.owner())))
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn page_part(cursor: Option<&str>) -> Result<(), Problem> {
    page::Part::new(None, cursor).map(drop)
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn question_of(text: &str) {
    sandboxes::any_question(text);
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn resumed(text: &str) {
    if let Ok(seen) = sandboxes::Seen::read(text) {
        let again = sandboxes::Seen::read(&seen.id());
        assert_eq!(again.ok(), Some(seen), "an id is read as it is written");
    }
    audit::any_question(text);
    terminal::any_word(text);
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn forms_of(headers: &hyper::HeaderMap) {
    format::Format::of(headers);
    assert_ne!(format::Format::of_stream(headers), format::Format::Json, "a stream is none");
    lines::last_event(headers);
}

async fn not_found(request: Request) -> Problem {
    let path = request.uri().path();
    Problem::not_found(format!("nothing is at {path}: /openapi.json and /docs tell what there is"))
}
