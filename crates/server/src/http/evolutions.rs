//! `/v1/evolutions`: one is begun by a POST and goes on whether anybody listens or not; its summary and its lines can
//! be asked for at any time. Whoever asks names no file, no command and no key of this host: proposers are those
//! that the operator has described, by name, or a recording that comes with the request.

mod resume;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use belljar::Error;
use belljar::grade::keep_large_integers;
use belljar_evolve::{End, Evolution, Line, ProposerSpec, Record, Summary, Task, TaskFile};
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};

use crate::api::{Access, Api, look, start};
use crate::http::format::Format;
use crate::http::lines::{self, Outbox};
use crate::http::sandboxes::{Paged, question};
use crate::http::{Server, Who, body};
use crate::limits::Left;
use crate::policy::Running;
use crate::principal::{Principal, Tenant};
use crate::problem::Problem;
use crate::scope::Scope;
use crate::shares::{Share, Shares};
use crate::wire;

pub(super) fn enter(api: &mut Api) {
    let runs = Access::Scope(Scope::Runs);
    let one = start("evolve", runs, "Begin an evolution; it goes on whether anybody listens");
    api.post(
        wire::EVOLUTIONS,
        begin,
        one.takes::<TaskFile>().gives::<Summary>(202).refuses(&[409]),
    );
    let all = look("evolution_list", runs, "The caller's evolutions, by id").asks::<Paged>();
    api.get(wire::EVOLUTIONS, list, all.gives::<All>(200));
    let stopped = look("evolution_stop", runs, "Stop one; what is done stays, and can be resumed");
    let path = format!("{}/{{id}}/stop", wire::EVOLUTIONS);
    api.post(&path, stop, stopped.gives_nothing().refuses(&[409]));
    let further = start("evolution_resume", runs, "Go on with one that ended or was stopped");
    let further = further.may_take::<resume::Further>().gives::<Summary>(202).refuses(&[409]);
    api.post(&format!("{}/{{id}}/resume", wire::EVOLUTIONS), resume::resume, further);
    let one = look("evolution", runs, "An evolution in short");
    api.get(&format!("{}/{{id}}", wire::EVOLUTIONS), show, one.gives::<Summary>(200));
    let lines = look(
        "evolution_events",
        runs,
        "Its lines from the first on, and further ones as they come",
    );
    api.get(&format!("{}/{{id}}/events", wire::EVOLUTIONS), events, lines.streams());
}

/// Evolutions that go on at once, of all and of one tenant.
const MAX_RUNNING: u64 = 4;
const SHARE: u64 = 2;
/// Lines that wait for somebody who reads slowly; who misses some reads the file again.
const MAX_BEHIND: usize = 64;

/// A line, and which one it is.
type Numbered = (usize, Arc<Line>);

/// The evolutions of a server.
#[derive(Debug)]
pub(crate) struct Evolutions {
    root: PathBuf,
    proposers: BTreeMap<String, ProposerSpec>,
    room: Arc<Shares>,
    running: Mutex<HashMap<String, Going>>,
}

/// An evolution that goes on.
#[derive(Clone, Debug)]
struct Going {
    sender: broadcast::Sender<Numbered>,
    stop: Arc<Notify>,
}

impl Evolutions {
    pub(crate) fn new(root: PathBuf, proposers: BTreeMap<String, ProposerSpec>) -> Self {
        let room = Shares::new(MAX_RUNNING, SHARE);
        Self { root, proposers, room, running: Mutex::default() }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Going>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the evolutions of a tenant are: nobody else's are found there.
    fn root_of(&self, principal: &Principal) -> PathBuf {
        match &principal.tenant {
            Tenant::Owner => self.root.clone(),
            Tenant::Named(name) => self.root.join(".tenants").join(&**name),
        }
    }

    fn enter(&self, principal: &Principal) -> Result<Share, Problem> {
        self.room.take(principal.tenant.name(), 1).ok_or_else(|| {
            let detail = format!(
                "as many evolutions go on as may: {MAX_RUNNING} in all, and {SHARE} of one tenant"
            );
            Problem::coded("busy", detail)
        })
    }

    /// The proposer that a request means.
    fn proposer(&self, asked: Option<ProposerSpec>) -> Result<Option<ProposerSpec>, Problem> {
        match asked {
            None => Ok(None),
            Some(ProposerSpec::Replay(replay)) if replay.file.is_none() => {
                Ok(Some(ProposerSpec::Replay(replay)))
            }
            Some(ProposerSpec::Named(named)) => match self.proposers.get(&named.name) {
                Some(found) => Ok(Some(found.clone())),
                None => {
                    let known: Vec<&str> = self.proposers.keys().map(String::as_str).collect();
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    let reason = format!(
                        "is \"{}\", which is not described here (there are: {known}): start the \
                         server with --proposers FILE",
                        named.name
                    );
                    Err(Problem::field("proposer.name", &reason))
                }
            },
            Some(_) => {
                let reason = "must be \"named\" (described by the operator), or \"replay\" with \
                              answers: a request names no key, command or file of this host";
                Err(Problem::field("proposer.kind", reason))
            }
        }
    }
}

/// Begins one. The answer comes at once.
async fn begin(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<Response, Problem> {
    // Before the body is read, so that a full server holds no more bodies than it has room.
    let room = server.evolutions.enter(&principal)?;
    let text = body::text(request).await?;
    let mut file: TaskFile = body::parse(keep_large_integers(&text).as_bytes())?;
    file.proposer = server.evolutions.proposer(file.proposer)?;
    let applied = server.policy.of(&principal, &BTreeMap::new());
    applied.check_parts(
        file.level,
        &mut file.limits,
        file.language.as_deref().or(Some("python")),
    )?;
    applied.case_times("cases", &file.cases)?;
    applied.case_times("hidden", &file.hidden)?;
    applied.screen(&mut file.screen);
    let told = |error: Error| Problem::from(&error);
    let task = Task::of_request(file).map_err(|error| told(error.into()))?;
    let counted = server.policy.enter(&applied, 1)?;
    let left = server.limits.admit_caller(&principal.caller, &applied)?;
    let root = server.evolutions.root_of(&principal);
    let evolution = Evolution::begin(&server.engine, &root, task).map_err(told)?;
    let evolution = evolution.by(principal.caller.clone());
    // The line that says how it began is there already.
    let mut response = set_going(&server, evolution, 1, (room, counted));
    Left::mark(left.as_ref(), &mut response);
    Ok(response)
}

/// Lets it go on by itself, from this line on; the answer says which it is.
fn set_going(
    server: &Arc<Server>,
    evolution: Evolution,
    from: usize,
    held: (Share, Running),
) -> Response {
    let (id, summary) = (evolution.id().to_owned(), evolution.summary());
    let (sender, _) = broadcast::channel(MAX_BEHIND);
    let going = Going { sender, stop: Arc::default() };
    server.evolutions.running().insert(id.clone(), going.clone());
    tokio::spawn(go_on(Arc::clone(server), evolution, from, going, held));
    let mut response = (StatusCode::ACCEPTED, axum::Json(summary)).into_response();
    if let Ok(place) = HeaderValue::from_str(&format!("{}/{id}", wire::EVOLUTIONS)) {
        response.headers_mut().insert(LOCATION, place);
    }
    response
}

/// Carries it out, until it ends or the server does. What is not done then can be resumed.
async fn go_on(
    server: Arc<Server>,
    mut evolution: Evolution,
    mut number: usize,
    Going { sender, stop }: Going,
    held: (Share, Running),
) {
    let id = evolution.id().to_owned();
    let mut tell = |line: &Line, _: &Summary| {
        // Nobody has to listen.
        sender.send((number, Arc::new(line.clone()))).ok();
        number += 1;
    };
    tokio::select! {
        biased;
        () = server.stop.draining() => {}
        () = stop.notified() => {}
        // An error of ours is told by the lines ending without an end; the next who resumes it meets it.
        _ = evolution.run(&server.engine, Some(&server.queue), &mut tell) => {}
    }
    // In this order: whoever asks next finds the file free, and nobody who writes it.
    drop(evolution);
    let mut running = server.evolutions.running();
    // Somebody may have resumed it since.
    if running.get(&id).is_some_and(|one| Arc::ptr_eq(&one.stop, &stop)) {
        running.remove(&id);
    }
    drop(running);
    drop(held);
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EvolutionList")]
struct All {
    evolutions: Vec<Brief>,
    /// For the next part; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// An evolution in a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EvolutionBrief")]
struct Brief {
    id: String,
    name: String,
    begun_unix_ms: u64,
    running: bool,
    end: Option<End>,
    iterations: u32,
    best_score: Option<f64>,
}

async fn list(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    request: Request,
) -> Result<axum::Json<All>, Problem> {
    let part = question::<Paged>(&request)?.part()?;
    let root = server.evolutions.root_of(&principal);
    let all = read(root, "", move |root, _| {
        let mut ids = belljar_evolve::list(root)?;
        ids.sort_unstable();
        let page = part.of(ids, Clone::clone);
        // One that is removed meanwhile is not there.
        let told = page.items.iter().filter_map(|id| Evolution::summary_of(root, id).ok());
        let evolutions = told.map(Brief::of).collect();
        Ok(All { evolutions, next_cursor: page.next_cursor })
    });
    all.await.map(axum::Json)
}

impl Brief {
    fn of(summary: Summary) -> Self {
        Self {
            best_score: summary.best.as_ref().and_then(|best| best.score),
            id: summary.id,
            name: summary.name,
            begun_unix_ms: summary.begun_unix_ms,
            running: summary.running,
            end: summary.end,
            iterations: summary.iterations,
        }
    }
}

/// Ends it where it is.
async fn stop(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    // Only who finds it may stop it.
    read(server.evolutions.root_of(&principal), &id, Evolution::summary_of).await?;
    let Some(Going { sender, stop }) = server.evolutions.running().get(&id).cloned() else {
        return Err(Problem::coded("conflict", "it does not go on here: there is nothing to stop"));
    };
    stop.notify_one();
    // When nobody else has a sender any more it has ended.
    let mut ended = sender.subscribe();
    drop(sender);
    while !matches!(ended.recv().await, Err(RecvError::Closed)) {}
    Ok(StatusCode::NO_CONTENT)
}

/// An evolution in short.
async fn show(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let root = server.evolutions.root_of(&principal);
    let summary = read(root, &id, Evolution::summary_of).await?;
    Ok(axum::Json(summary).into_response())
}

/// Its lines from the first on, or from behind the one that a client saw last, and further ones as they come.
async fn events(
    State(server): State<Arc<Server>>,
    Who(principal): Who,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let format = Format::of_stream(request.headers());
    let seen = lines::last_event(request.headers());
    let from = seen.map_or(Ok(0), |seen| seen.parse::<usize>().map(|seen| seen.saturating_add(1)));
    let from = from.map_err(|_| Problem::field("Last-Event-ID", "is none of ours"))?;
    let root = server.evolutions.root_of(&principal);
    // Listen first, read then: so no line is missed, and those that come twice are known by their number.
    let live = server.evolutions.running().get(&id).map(|going| going.sender.subscribe());
    let known = read(root.clone(), &id, Evolution::lines).await?;
    let outbox = Outbox::default();
    let told = outbox.clone();
    let work = Box::pin(async move {
        let mut next = from;
        pass_on(format, &told, &mut next, known);
        let Some(mut live) = live else { return };
        loop {
            let received = tokio::select! {
                biased;
                () = server.stop.draining() => return,
                received = live.recv() => received,
            };
            match received {
                Ok((number, line)) if number == next => {
                    write(format, &told, number, &line);
                    next += 1;
                }
                Ok((number, _)) if number < next => {}
                Ok(_) | Err(RecvError::Lagged(_)) => {
                    let all = read(root.clone(), &id, Evolution::lines).await;
                    let Ok(all) = all else { return };
                    pass_on(format, &told, &mut next, all);
                }
                Err(RecvError::Closed) => return,
            }
        }
    });
    Ok(lines::answer(format, outbox, work))
}

fn pass_on(format: Format, outbox: &Outbox, next: &mut usize, all: Vec<Line>) {
    for line in all.iter().skip(*next) {
        write(format, outbox, *next, line);
        *next += 1;
    }
}

fn write(format: Format, to: &Outbox, number: usize, line: &Line) {
    to.tell_as(format, &number.to_string(), name(&line.record), line);
}

const fn name(record: &Record) -> &'static str {
    match record {
        Record::Begun { .. } => "begun",
        Record::Proposed(_) => "proposed",
        Record::Graded(_) => "graded",
        Record::Resumed { .. } => "resumed",
        Record::Ended { .. } => "ended",
        Record::Promoted { .. } => "promoted",
    }
}

/// Reads a store where waiting for the disk keeps nobody else waiting.
async fn read<T: Send + 'static>(
    root: PathBuf,
    id: &str,
    how: impl FnOnce(&std::path::Path, &str) -> Result<T, Error> + Send + 'static,
) -> Result<T, Problem> {
    store(root, id, how).await.map_err(|error| match is_of_id(&error) {
        true => Problem::not_found(error.to_string()),
        false => Problem::from(&error),
    })
}

async fn store<T: Send + 'static>(
    root: PathBuf,
    id: &str,
    how: impl FnOnce(&std::path::Path, &str) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let id = id.to_owned();
    let done = tokio::task::spawn_blocking(move || how(&root, &id)).await;
    done.unwrap_or(Err(Error::Lost { what: "the evolution was not read" }))
}

fn is_of_id(error: &Error) -> bool {
    matches!(error, Error::Spec(spec) if spec.field == "id")
}
