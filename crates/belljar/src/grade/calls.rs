//! Cases that call a function: one sandbox with the loaded candidate, one copy of it for each case.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::case::Case;
use super::judge::{self, Facts, Judged};
use super::lanes::{Group, RETRIES, Shared, is_final};
use super::marshal;
use super::session::{CALL, LOAD, NONCE, Session, Stopped, Told, run_request};
use super::value::Value;
use super::{CaseVerdict, Isolate, Raised};
use crate::model::error::Error;
use crate::model::request::Data;

pub(super) const INSIDE: &str = concat!(include_str!("codec.py"), include_str!("inside.py"));

/// The CPU time of a sandbox unless told; see the limits of a run.
const DEFAULT_CPU_MS: u64 = 30_000;
/// How long the end of a process that has answered may take, and of all that it left.
const ENDING: Duration = Duration::from_secs(5);

/// How a candidate came to be loaded.
pub(super) enum Loaded<'a> {
    /// With the names of built-in functions that it has its own of.
    Ready(Session<'a>, Vec<String>),
    /// It raised.
    Failed(Raised),
    /// It has threads, so it cannot be copied.
    Threads,
}

/// Takes cases until there are none.
pub(super) async fn lane(shared: &Arc<Shared>, group: &Group) -> Result<(), Error> {
    let copies = shared.checked.request.isolate == Isolate::Process;
    let hidden = group.hidden;
    let mut lane =
        Lane { shared, hidden, session: None, copies, turn: None, fate: Fate::Alive, ahead: 0 };
    while let Some(index) = group.next() {
        let (judged, facts) = lane.settle(group, index).await?;
        shared.tell_in_group(group, index, judged, facts, lane.fate != Fate::Unloadable);
    }
    lane.close().await;
    Ok(())
}

struct Lane<'a> {
    shared: &'a Arc<Shared>,
    hidden: bool,
    session: Option<Session<'a>>,
    /// Whether one sandbox serves many cases.
    copies: bool,
    turn: Option<crate::queue::Turn>,
    fate: Fate,
    /// Cases that this sandbox was told to expect and that did not come yet.
    ahead: usize,
}

/// What the last attempt did to its session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Alive,
    /// Its run ended.
    RunEnded,
    Dropped,
    /// The candidate cannot be loaded at all.
    Unloadable,
}

impl<'a> Lane<'a> {
    /// One case, with what is tried again.
    async fn settle(&mut self, group: &Group, index: usize) -> Result<(Judged, Facts), Error> {
        let mut retries = 0;
        loop {
            if self.shared.is_over() {
                let why = "not run: the time of the whole grade is over";
                return Ok((Judged::new(CaseVerdict::TimeLimit, why), Facts::default()));
            }
            let first = self.session.is_none();
            let (judged, facts) = self.attempt(group, index).await?;
            let ours = judged.verdict == CaseVerdict::Infrastructure;
            let limit = matches!(
                judged.verdict,
                CaseVerdict::TimeLimit
                    | CaseVerdict::MemoryLimit
                    | CaseVerdict::OutputLimit
                    | CaseVerdict::DiskLimit
            );
            // What others left may have filled a limit: once more, alone.
            let alone = limit && self.fate == Fate::RunEnded && !first && retries == 0;
            if !(alone || (ours && retries < RETRIES)) {
                return Ok((judged, facts));
            }
            self.drop_session();
            retries += 1;
        }
    }

    async fn attempt(&mut self, group: &Group, index: usize) -> Result<(Judged, Facts), Error> {
        self.fate = Fate::Alive;
        let shared = self.shared;
        let case = shared.case(index);
        let limit = shared.checked.limit(case);
        if self.session.is_none() {
            self.ahead = group.len() + 1; // this one
            match self.load().await {
                Ok(session) => self.session = Some(session),
                Err(Ok(judged)) => {
                    self.fate = Fate::Unloadable;
                    return Ok((judged, Facts::default()));
                }
                Err(Err(stopped)) => {
                    return self.over(stopped, shared.checked.load_limit(), Facts::default());
                }
            }
        }
        let Some(session) = &mut self.session else {
            return Err(Error::Lost { what: "its session is gone" });
        };
        let started = Instant::now();
        let last = !self.copies || self.ahead == 1;
        let answers = if last { Answers::Loader } else { Answers::Copy };
        let answer = call(session, shared, case, limit, answers).await;
        self.ahead = self.ahead.saturating_sub(1);
        let mut facts = Facts { duration: started.elapsed(), ..Facts::default() };
        facts.printed = session.printed();
        match answer {
            Ok((told, duration, memory_bytes)) => {
                (facts.duration, facts.memory_bytes) = (duration, memory_bytes);
                if last {
                    self.close().await;
                }
                Ok((told, facts))
            }
            Err(stopped) => self.over(stopped, limit, facts),
        }
    }

    /// The session came to an end during a case.
    fn over(
        &mut self,
        stopped: Stopped,
        limit: Duration,
        facts: Facts,
    ) -> Result<(Judged, Facts), Error> {
        self.drop_session();
        self.fate = Fate::Dropped;
        if let Stopped::Ended(outcome) = &stopped {
            self.fate = Fate::RunEnded;
            self.shared.note(outcome, self.hidden);
        }
        let judged = judge::stopped(&stopped, limit);
        match stopped {
            Stopped::Ours(error) if is_final(&error) => Err(error),
            Stopped::Ours(_) | Stopped::Ended(_) | Stopped::Time | Stopped::Tampered(_) => {
                Ok((judged, facts))
            }
        }
    }

    /// A sandbox with the candidate in it. The inner `Ok` is what came of one that cannot be loaded.
    async fn load(&mut self) -> Result<Session<'a>, Result<Judged, Stopped>> {
        self.turn = self.shared.turn().await.map_err(|error| Err(Stopped::Ours(error)))?;
        for _ in 0..2 {
            match open(self.shared, self.hidden, self.copies, self.ahead).await.map_err(Err)? {
                Loaded::Ready(session, _) => return Ok(session),
                Loaded::Threads => self.copies = false,
                Loaded::Failed(raised) => return Err(Ok(not_loaded(raised))),
            }
        }
        Err(Err(Stopped::Tampered("said that it has threads when nobody asked")))
    }

    fn drop_session(&mut self) {
        (self.session, self.turn) = (None, None);
    }

    async fn close(&mut self) {
        if let Some(session) = self.session.take()
            && let Some(outcome) = session.close().await
        {
            self.shared.note(&outcome, self.hidden);
        }
        self.turn = None;
    }
}

/// What is said of every case of a candidate that raises when it is loaded.
pub(super) fn not_loaded(raised: Raised) -> Judged {
    let raised = judge::bounded(raised);
    let why = format!("could not be loaded: {}", judge::one_line(&raised));
    Judged { raised: Some(raised), ..Judged::new(CaseVerdict::NotLoaded, why) }
}

/// The same with instructions counted, from before the candidate is loaded.
pub(super) async fn open_counted(
    shared: &Arc<Shared>,
    hidden: bool,
) -> Result<Loaded<'_>, Stopped> {
    let session = start(shared, hidden)?;
    session.counts.want();
    load(shared, session, true, 0).await
}

/// Starts a sandbox and loads the candidate. The process that loaded it answers the last of `cases` itself, if so many
/// are known to come; 0 if not.
pub(super) async fn open(
    shared: &Arc<Shared>,
    hidden: bool,
    copies: bool,
    cases: usize,
) -> Result<Loaded<'_>, Stopped> {
    load(shared, start(shared, hidden)?, copies, cases).await
}

fn start(shared: &Arc<Shared>, hidden: bool) -> Result<Session<'_>, Stopped> {
    let checked = &shared.checked;
    let mut files = checked.request.files.clone();
    files.insert(checked.file.clone(), Data::from(checked.request.code.clone()));
    let mut request = run_request(&checked.request, INSIDE.to_owned(), files, checked.left());
    // As much as one case may take; a sandbox whose cases have used it up together is replaced. Left alone
    // where the default will do, so that a sandbox that was made ahead fits.
    let longest_ms = u64::try_from(checked.load_limit().as_millis()).unwrap_or(u64::MAX);
    if request.limits.cpu_ms.is_none() && longest_ms > DEFAULT_CPU_MS {
        request.limits.cpu_ms = Some(longest_ms);
    }
    let code = &checked.request.code;
    Session::start(shared, request, Some(code), hidden).map_err(Stopped::Ours)
}

async fn load<'a>(
    shared: &'a Arc<Shared>,
    mut session: Session<'a>,
    copies: bool,
    cases: usize,
) -> Result<Loaded<'a>, Stopped> {
    let checked = &shared.checked;
    session.tell_plain(&load_order(shared, copies, cases)?)?;
    let told = session.hear(shared.deadline(checked.load_limit())).await?;
    if let Some(raised) = told.failed {
        return Ok(Loaded::Failed(raised));
    }
    if told.threads == Some(true) {
        return Ok(Loaded::Threads);
    }
    if told.loaded != Some(true) {
        return Err(Stopped::Tampered("an answer came before anything was asked"));
    }
    session.printed(); // what it prints while it is loaded belongs to no case
    Ok(Loaded::Ready(session, told.names.unwrap_or_default()))
}

/// What to load, and what will come.
fn load_order(shared: &Shared, copies: bool, cases: usize) -> Result<Vec<u8>, Stopped> {
    let request = &shared.checked.request;
    let pairs = [
        ("file", Value::Str(format!("/workspace/{}", shared.checked.file))),
        ("setup", request.setup_code.as_deref().map_or(Value::None, Value::from)),
        ("copies", Value::Bool(copies)),
        ("threads", Value::from(if copies { "refuse" } else { "allow" })),
        ("cases", Value::from(i32::try_from(cases).unwrap_or(0))),
        ("alone", Value::Bool(request.files.is_empty())),
    ];
    let order = Value::Dict(pairs.map(|(name, value)| (Value::from(name), value)).to_vec());
    let mut plain = vec![LOAD];
    marshal::write(&order, &mut plain)
        .ok_or(Stopped::Ours(Error::Lost { what: "its setup code is longer than 2 GiB" }))?;
    Ok(plain)
}

/// Asks one case and judges the answer; with it how long that took and the memory of its process.
pub(super) async fn call(
    session: &mut Session<'_>,
    shared: &Shared,
    case: &Case,
    limit: Duration,
    answers: Answers,
) -> Result<(Judged, Duration, Option<u64>), Stopped> {
    let nonce = nonce()?;
    let deadline = shared.deadline(limit);
    let started = Instant::now();
    match plain_order(case, &nonce) {
        Some(order) => session.tell_plain(&order)?,
        None => session.tell(&Order {
            n: &nonce,
            func: case.func_name.as_deref(),
            args: &case.input_args,
            kwargs: case.input_kwargs.as_ref().unwrap_or(&Value::Dict(Vec::new())),
        })?,
    }
    let mut told = session.hear(deadline).await?;
    let duration = started.elapsed();
    if let Some(code) = told.ended {
        return Ok((judge::ended(code), duration, told.memory));
    }
    check_nonce(&told, &nonce)?;
    // Only then is the next input sent: nothing of this case is left that could read it.
    if answers == Answers::Copy {
        told.memory = session.hear_end(shared.deadline(ENDING)).await?;
    }
    let memory_bytes = told.memory;
    Ok((judge::call(case, told), duration, memory_bytes))
}

/// Who answers a case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// A copy, whose end is told.
    Copy,
    /// The process that loaded the candidate, as its last act.
    Loader,
}

/// The shorter form of an order, for values that have it.
fn plain_order(case: &Case, nonce: &str) -> Option<Vec<u8>> {
    let mut order = vec![CALL];
    order.extend(nonce.as_bytes());
    let name = case.func_name.as_deref().map_or(Value::None, Value::from);
    let kwargs = case.input_kwargs.clone().unwrap_or(Value::Dict(Vec::new()));
    order.extend(b"(\x03\0\0\0");
    marshal::write(&name, &mut order)?;
    marshal::write_all(b'[', &case.input_args, &mut order)?;
    marshal::write(&kwargs, &mut order)?;
    Some(order)
}

#[derive(serde::Serialize)]
struct Order<'a> {
    n: &'a str,
    func: Option<&'a str>,
    args: &'a [Value],
    kwargs: &'a Value,
}

/// An answer must carry the word that only this case's process was given.
pub(super) fn check_nonce(told: &Told, nonce: &str) -> Result<(), Stopped> {
    if told.n.as_deref() == Some(nonce) {
        return Ok(());
    }
    Err(Stopped::Tampered("an answer came from somebody else than the process that was asked"))
}

/// A word that nobody can guess.
pub(super) fn nonce() -> Result<String, Stopped> {
    let mut random = [0u8; NONCE / 2];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(
        |errno| Stopped::Ours(Error::Backend { operation: "get randomness", source: errno.into() }),
    )?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
