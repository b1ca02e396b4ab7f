//! `/v1/sandboxes`: sandboxes that stay. What each verb does is in `belljar::living`; here is how it is asked for.

mod code;
mod execs;
mod files;
mod once;
mod points;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::living::{Force, Sandboxes};
use belljar::sandbox::{EgressChange, NetworkInfo, SandboxInfo, SandboxRequest, SandboxState};
use belljar::{RunRequest, ScreenMode};
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Access, Api, look, start as starts};
use crate::http::page::Part;
use crate::http::{Mine, Server, Who, body, terminal};
use crate::limits::Left;
use crate::policy::{Applied, Running};
use crate::principal::Principal;
use crate::problem::Problem;
use crate::scope::Scope;
use crate::wire;

pub(crate) use execs::Seen;

/// How long programs have to end by themselves, unless the caller says.
const USUAL_GRACE: Duration = Duration::from_secs(5);
/// The longest that they may be given.
const MOST_GRACE_MS: u64 = 600_000;

const READ: Access = Access::Scope(Scope::SandboxesRead);
const WRITE: Access = Access::Scope(Scope::SandboxesWrite);
/// Statuses of what depends on a sandbox's state.
const STATE: &[u16] = &[409];

/// The answers that are JSON.
type Answer<T> = Result<axum::Json<T>, Problem>;

fn at(rest: &str) -> String {
    format!("{}/{{name}}{rest}", wire::SANDBOXES)
}

pub(crate) fn enter(api: &mut Api) {
    let made = starts("sandbox_create", WRITE, "Make a sandbox that stays, and start it");
    let made = made.may_take::<SandboxRequest>().gives::<SandboxInfo>(201).refuses(STATE);
    api.post(wire::SANDBOXES, create, made);
    let all = look("sandbox_list", READ, "The caller's sandboxes, by name");
    api.get(wire::SANDBOXES, list, all.asks::<Listing>().gives::<All>(200));
    let one = look("sandbox_info", READ, "What is known of a sandbox");
    api.get(&at(""), info, one.gives::<SandboxInfo>(200));
    let gone = look("sandbox_remove", WRITE, "Remove it with all its files");
    api.delete(&at(""), remove, gone.asks::<Removal>().gives_nothing().refuses(STATE));
    let now = |id, summary| look(id, WRITE, summary).gives::<SandboxInfo>(200).refuses(STATE);
    api.post(&at("/start"), start, now("sandbox_start", "Start one that was stopped").heavy());
    let stopped = now("sandbox_stop", "End what runs in it, in order; its files stay");
    api.post(&at("/stop"), stop, stopped.may_take::<Stopping>());
    api.post(&at("/kill"), kill, now("sandbox_kill", "End what runs in it at once"));
    api.post(&at("/pause"), pause, now("sandbox_pause", "Make what runs stand still"));
    api.post(&at("/resume"), resume, now("sandbox_resume", "Let it go on"));
    let network =
        look("sandbox_network", READ, "What it may reach, what it reached, and what was refused");
    api.get(&at("/network"), network_of, network.gives::<NetworkInfo>(200).refuses(STATE));
    let reach = now("sandbox_egress", "What it may reach from now on, in place of what it may now");
    api.post(&at("/egress"), set_egress, reach.takes::<EgressChange>());
    once::enter(api);
    execs::enter(api);
    code::enter(api);
    files::enter(api);
    points::enter(api);
    terminal::enter(api);
}

fn told(error: belljar::Error) -> Problem {
    Problem::from(&error)
}

/// A list that is asked for in parts.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paged {
    limit: Option<u64>,
    cursor: Option<Word>,
}

impl Paged {
    pub(crate) fn part(&self) -> Result<Part, Problem> {
        Part::new(self.limit, self.cursor.as_ref().map(|one| &*one.0))
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_question(text: &str) {
    let request = hyper::Request::builder().uri(format!("/?{text}"));
    if let Ok(request) = request.body(axum::body::Body::empty()) {
        drop(question::<Listing>(&request));
        drop(question::<Paged>(&request));
    }
}

/// The words behind the question mark. One that is not known is a mistake, not a wish to be ignored.
pub(crate) fn question<T: for<'de> Deserialize<'de>>(request: &Request) -> Result<T, Problem> {
    let pairs = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
    let mut object = serde_json::Map::new();
    for (name, value) in pairs.into_owned() {
        // Of two that differ neither is what was meant.
        if object.contains_key(&name) {
            return Err(Problem::field(&name, "is given twice"));
        }
        object.insert(name, word(value));
    }
    serde_json::from_value(serde_json::Value::Object(object))
        .map_err(|error| Problem::field("query", &format!("cannot be read: {error}")))
}

/// A word of a question that may look like a number: a label, a name, a cursor.
#[derive(Debug, JsonSchema)]
#[schemars(with = "String")]
pub(super) struct Word(pub(super) String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)))
    }
}

/// Numbers and truth values as such: a question has only text.
fn word(value: String) -> serde_json::Value {
    match &*value {
        "true" => true.into(),
        "false" => false.into(),
        // Only as it would be written again, so that a word that begins with a nought keeps it.
        text => match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => number.into(),
            Ok(_) | Err(_) => value.into(),
        },
    }
}

async fn create(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    request: Request,
) -> Result<Response, Problem> {
    let mut asked: SandboxRequest = body::json_or_default(request).await?;
    let applied = server.policy.of(&principal, &asked.labels);
    may_be_made(&principal, &applied, &mut asked)?;
    let _making = points::room(&server, &principal, &sandboxes, 1).await?;
    let info = sandboxes.create(asked).await.map_err(told)?;
    let place = HeaderValue::from_str(&format!("{}/{}", wire::SANDBOXES, info.name));
    let mut response = (StatusCode::CREATED, axum::Json(info)).into_response();
    if let Ok(place) = place {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// Whether a sandbox may be as it is asked for.
fn may_be_made(
    principal: &Principal,
    applied: &Applied,
    asked: &mut SandboxRequest,
) -> Result<(), Problem> {
    if !principal.is_local
        && let Some(path) = asked.workspace.as_mut().and_then(|one| one.path.as_mut())
    {
        *path = applied.check_workspace(path)?;
    }
    applied.check_sandbox(asked)
}

/// What `GET /v1/sandboxes` may be asked. Labels come as `label=name=value`, once.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Listing {
    state: Option<SandboxState>,
    label: Option<Word>,
    limit: Option<u64>,
    cursor: Option<Word>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SandboxList")]
struct All {
    sandboxes: Vec<SandboxInfo>,
    /// For the next part; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(Mine(sandboxes): Mine, request: Request) -> Answer<All> {
    let asked: Listing = question(&request)?;
    let part = Part::new(asked.limit, asked.cursor.as_ref().map(|one| &*one.0))?;
    let label = match asked.label.as_ref().map(|text| text.0.split_once('=')) {
        Some(None) => return Err(Problem::field("label", "must be name=value")),
        Some(Some(pair)) => Some(pair),
        None => None,
    };
    let all = sandboxes.list(label, asked.state).await.map_err(told)?;
    let page = part.of(all, |one| one.name.clone());
    Ok(axum::Json(All { sandboxes: page.items, next_cursor: page.next_cursor }))
}

async fn info(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.info(&name).await.map(axum::Json).map_err(told)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Removal {
    #[serde(default)]
    force: bool,
}

async fn remove(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let asked: Removal = question(&request)?;
    let force = if asked.force { Force::Yes } else { Force::No };
    sandboxes.remove(&name, force).await.map_err(told)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "StopRequest")]
struct Stopping {
    grace_ms: Option<u64>,
}

async fn stop(
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let asked: Stopping = body::json_or_default(request).await?;
    if asked.grace_ms.is_some_and(|grace| grace > MOST_GRACE_MS) {
        let reason = format!("must be no more than {MOST_GRACE_MS}: kill ends it at once");
        return Err(Problem::field("grace_ms", &reason));
    }
    let grace = asked.grace_ms.map_or(USUAL_GRACE, Duration::from_millis);
    sandboxes.stop(&name, grace).await.map(axum::Json).map_err(told)
}

async fn start(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.start(&name).await.map(axum::Json).map_err(told)
}

async fn kill(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.kill(&name).await.map(axum::Json).map_err(told)
}

async fn pause(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.pause(&name).await.map(axum::Json).map_err(told)
}

/// What it may reach from now on, in place of what it may now.
async fn set_egress(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Mine(sandboxes): Mine,
    Path(name): Path<String>,
    request: Request,
) -> Answer<SandboxInfo> {
    let labels = sandboxes.info(&name).await.map_err(told)?.labels;
    let asked: EgressChange = body::json(request).await?;
    server.policy.of(&principal, &labels).check_egress("egress", &asked.egress)?;
    sandboxes.set_egress(&name, asked.egress).await.map(axum::Json).map_err(told)
}

async fn network_of(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<NetworkInfo> {
    sandboxes.network(&name).await.map(axum::Json).map_err(told)
}

async fn resume(Mine(sandboxes): Mine, Path(name): Path<String>) -> Answer<SandboxInfo> {
    sandboxes.resume(&name).await.map(axum::Json).map_err(told)
}

/// Reads code that is to run in a sandbox that stays as that of a run is read, where a rule wants it refused for what is
/// found. Advice has no place in its result.
async fn screened(
    server: &Server,
    applied: &Applied,
    language: &str,
    code: &str,
) -> Result<(), Problem> {
    let mut mode = ScreenMode::Off;
    applied.screen(&mut mode);
    if mode != ScreenMode::Refuse {
        return Ok(());
    }
    let read = RunRequest { screen: mode, ..RunRequest::code(language, code) };
    let run = server.engine.prepare(read).map_err(told)?;
    run.screen().await.map(drop).map_err(told)
}

/// What is asked of a program before it begins in a sandbox.
struct Beginning {
    applied: Applied,
    id: String,
    labels: BTreeMap<String, String>,
}

impl Beginning {
    /// The sandbox's labels say which parts of the policy apply.
    fn of(
        server: &Server,
        principal: &Principal,
        sandboxes: &Sandboxes,
        name: &str,
    ) -> Result<Self, Problem> {
        let (id, labels) = sandboxes.marks(name).map_err(told)?;
        Ok(Self { applied: server.policy.of(principal, &labels), id, labels })
    }

    /// A place among what the tenant runs, which is held as long as somebody waits for it.
    fn enter(&self, server: &Server) -> Result<Running, Problem> {
        server.policy.enter(&self.applied, 1)
    }

    /// Takes it from the rates, last of all that can be refused.
    fn admit(&self, server: &Server, principal: &Principal) -> Result<Option<Left>, Problem> {
        server.limits.admit_exec(&principal.caller, (&self.id, &self.labels), &self.applied)
    }
}
