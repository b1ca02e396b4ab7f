//! Asserts: they run in a sandbox of their own, beside nothing of the candidate.
//!
//! What an assert calls of the candidate is carried to the candidate's sandbox and called there; what comes
//! back is a plain value. So the candidate never shares a process with the test, and never holds the
//! channel on which the test's verdict comes.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::calls::{self, Loaded};
use super::case::Case;
use super::judge::{self, Facts, Judged};
use super::lanes::{Group, RETRIES, Shared, is_final};
use super::session::{Session, Stopped, Told, run_request};
use super::value::Value;
use super::{CaseVerdict, Isolate, Raised};
use crate::model::error::Error;
use crate::queue::Turn;

const ASSERTS: &str = concat!(include_str!("codec.py"), include_str!("asserts.py"));

/// How often one assert may ask the candidate for something.
const MAX_ASKED: usize = 100_000;
/// How long the end of a case may take on each side.
const ENDING: Duration = Duration::from_secs(5);

/// Takes cases until there are none.
pub(super) async fn lane(shared: &Arc<Shared>, group: &Group) -> Result<(), Error> {
    let copies = shared.checked.request.isolate == Isolate::Process;
    let hidden = group.hidden;
    let mut lane = Lane { shared, hidden, pair: None, copies, turn: None };
    while let Some(index) = group.next() {
        let (judged, facts) = lane.settle(shared.case(index)).await?;
        let loads = judged.verdict != CaseVerdict::NotLoaded;
        shared.tell_in_group(group, index, judged, facts, loads);
    }
    lane.close().await;
    Ok(())
}

/// The two sandboxes that an assert needs.
struct Pair<'a> {
    candidate: Session<'a>,
    test: Session<'a>,
    /// Names of built-in functions that the candidate has its own of.
    shadows: Vec<String>,
}

struct Lane<'a> {
    shared: &'a Arc<Shared>,
    hidden: bool,
    pair: Option<Pair<'a>>,
    copies: bool,
    turn: Option<Turn>,
}

/// Why an attempt has no verdict of the test: one of the two sandboxes stopped.
enum Broken {
    Candidate(Stopped),
    Test(Stopped),
    Judged(Judged),
}

impl<'a> Lane<'a> {
    async fn settle(&mut self, case: &Case) -> Result<(Judged, Facts), Error> {
        let mut retries = 0;
        loop {
            if self.shared.is_over() {
                let why = "not run: the time of the whole grade is over";
                return Ok((Judged::new(CaseVerdict::TimeLimit, why), Facts::default()));
            }
            let started = Instant::now();
            let limit = self.shared.checked.limit(case);
            let ended = self.attempt(case, limit).await;
            let mut facts = Facts { duration: started.elapsed(), ..Facts::default() };
            if let Some(pair) = &mut self.pair {
                facts.printed = pair.candidate.printed();
            }
            let judged = match ended {
                Ok((judged, duration)) => {
                    facts.duration = duration;
                    return Ok((judged, facts));
                }
                Err(broken) => {
                    self.drop_pair();
                    judged(broken, limit)?
                }
            };
            if judged.verdict != CaseVerdict::Infrastructure || retries >= RETRIES {
                return Ok((judged, facts));
            }
            retries += 1;
        }
    }

    async fn attempt(
        &mut self,
        case: &Case,
        limit: Duration,
    ) -> Result<(Judged, Duration), Broken> {
        let mut pair = match self.pair.take() {
            Some(pair) => pair,
            None => self.open().await?,
        };
        let started = Instant::now();
        let judged = pair.check(self.shared, case, limit, self.copies).await?;
        let duration = started.elapsed();
        if self.copies {
            self.pair = Some(pair);
        } else {
            self.close_pair(pair).await;
        }
        Ok((judged, duration))
    }

    async fn open(&mut self) -> Result<Pair<'a>, Broken> {
        // One turn for the two: who held one and waited for the other could wait for ever.
        let ours = |error| Broken::Candidate(Stopped::Ours(error));
        self.turn = self.shared.turn().await.map_err(ours)?;
        let checked = &self.shared.checked;
        let mut loaded = calls::open(self.shared, self.hidden, self.copies, 0)
            .await
            .map_err(Broken::Candidate)?;
        if matches!(loaded, Loaded::Threads) {
            self.copies = false;
            loaded =
                calls::open(self.shared, self.hidden, false, 0).await.map_err(Broken::Candidate)?;
        }
        let (candidate, shadows) = match loaded {
            Loaded::Ready(session, shadows) => (session, shadows),
            Loaded::Failed(raised) => return Err(Broken::Judged(calls::not_loaded(raised))),
            Loaded::Threads => {
                let why = "said that it has threads when nobody asked";
                return Err(Broken::Candidate(Stopped::Tampered(why)));
            }
        };
        let (request, none) = (&checked.request, std::collections::BTreeMap::new());
        let request_of_test = run_request(request, ASSERTS.to_owned(), none, checked.left());
        let test = Session::start(self.shared, request_of_test, None, self.hidden);
        let mut test = test.map_err(|error| Broken::Test(Stopped::Ours(error)))?;
        let order = json!({ "setup": request.assert_setup });
        let deadline = self.shared.deadline(checked.load_limit());
        let told = test.ask(&order, deadline).await.map_err(Broken::Test)?;
        if told.loaded != Some(true) {
            return Err(Broken::Test(Stopped::Tampered("the test spoke out of turn")));
        }
        Ok(Pair { candidate, test, shadows })
    }

    fn drop_pair(&mut self) {
        (self.pair, self.turn) = (None, None);
    }

    async fn close_pair(&mut self, pair: Pair<'a>) {
        for session in [pair.candidate, pair.test] {
            if let Some(outcome) = session.close().await {
                self.shared.note(&outcome, self.hidden);
            }
        }
        self.turn = None;
    }

    async fn close(&mut self) {
        if let Some(pair) = self.pair.take() {
            self.close_pair(pair).await;
        }
    }
}

fn judged(broken: Broken, limit: Duration) -> Result<Judged, Error> {
    match broken {
        Broken::Candidate(Stopped::Ours(error)) | Broken::Test(Stopped::Ours(error))
            if is_final(&error) =>
        {
            Err(error)
        }
        Broken::Candidate(stopped) => Ok(judge::stopped(&stopped, limit)),
        Broken::Test(stopped @ (Stopped::Time | Stopped::Ours(_))) => {
            Ok(judge::stopped(&stopped, limit))
        }
        Broken::Test(stopped @ (Stopped::Ended(_) | Stopped::Tampered(_))) => {
            let of_test = judge::stopped(&stopped, limit);
            // A test that spoke out of turn is no candidate that did.
            let tampered = of_test.verdict == CaseVerdict::Tampered;
            let verdict = if tampered { CaseVerdict::Ended } else { of_test.verdict };
            Ok(Judged::new(verdict, format!("the test itself: {}", of_test.detail)))
        }
        Broken::Judged(judged) => Ok(judged),
    }
}

#[derive(Serialize)]
struct Asked<'a> {
    n: &'a str,
    #[serde(rename = "do")]
    act: &'a str,
    args: &'a [Value],
    more: bool,
}

/// What the candidate answered, for the test.
#[derive(Serialize)]
struct Answered {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    raised: Option<Raised>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<Vec<Value>>,
}

impl From<Told> for Answered {
    fn from(told: Told) -> Self {
        let empty = told.value.is_none() && told.raised.is_none() && told.missing.is_none();
        Self {
            kind: told.kind.unwrap_or_default(),
            raised: told.raised.map(judge::bounded),
            refused: told.refused.or_else(|| empty.then(|| "is nothing".to_owned())),
            missing: told.missing.map(|_| true),
            changed: told.changed,
            value: told.value,
        }
    }
}

impl Pair<'_> {
    /// Runs one assert, carrying what it asks to the candidate and back.
    async fn check(
        &mut self,
        shared: &Shared,
        case: &Case,
        limit: Duration,
        copies: bool,
    ) -> Result<Judged, Broken> {
        let deadline = shared.deadline(limit);
        let for_test = calls::nonce().map_err(Broken::Test)?;
        let for_candidate = calls::nonce().map_err(Broken::Test)?;
        let order = json!({
            "n": for_test, "source": case.assertion, "candidate": case.func_name,
            "shadows": self.shadows, "modules": [shared.checked.module(), "solution"],
        });
        self.test.tell(&order).map_err(Broken::Test)?;
        let mut asked = false;
        for _ in 0..MAX_ASKED {
            let told = self.test.hear(deadline).await.map_err(Broken::Test)?;
            if let Some(code) = told.ended {
                let why = format!("the test's own process exited with code {code}");
                return Err(Broken::Judged(Judged::new(CaseVerdict::Ended, why)));
            }
            calls::check_nonce(&told, &for_test).map_err(Broken::Test)?;
            let Some(act) = told.act else {
                self.end(shared, asked, &for_candidate, copies).await?;
                return Ok(verdict(told));
            };
            asked = true;
            let args = told.args.unwrap_or_default();
            let order = Asked { n: &for_candidate, act: &act, args: &args, more: true };
            let answer = self.candidate.ask(&order, deadline).await.map_err(Broken::Candidate)?;
            if let Some(code) = answer.ended {
                return Err(Broken::Judged(judge::ended(code)));
            }
            calls::check_nonce(&answer, &for_candidate).map_err(Broken::Candidate)?;
            self.test.tell(&Answered::from(answer)).map_err(Broken::Test)?;
        }
        let why = format!("asked the candidate more than {MAX_ASKED} times");
        Err(Broken::Judged(Judged::new(CaseVerdict::TimeLimit, why)))
    }

    /// Both sides end the case, so that the next begins afresh.
    async fn end(
        &mut self,
        shared: &Shared,
        asked: bool,
        nonce: &str,
        copies: bool,
    ) -> Result<(), Broken> {
        let deadline = shared.deadline(ENDING);
        let ended = self.test.hear(deadline).await.map_err(Broken::Test)?;
        if ended.ended.is_none() {
            return Err(Broken::Test(Stopped::Tampered("the test spoke after its verdict")));
        }
        if !asked {
            return Ok(());
        }
        let order = Asked { n: nonce, act: "end", args: &[], more: false };
        let answer = self.candidate.ask(&order, deadline).await.map_err(Broken::Candidate)?;
        calls::check_nonce(&answer, nonce).map_err(Broken::Candidate)?;
        if !copies {
            return Ok(());
        }
        match self.candidate.hear(deadline).await.map_err(Broken::Candidate)? {
            Told { ended: Some(_), n: None, .. } => Ok(()),
            _ => Err(Broken::Candidate(Stopped::Tampered("a case was answered twice"))),
        }
    }
}

fn verdict(told: Told) -> Judged {
    let Some(raised) = told.raised.map(judge::bounded) else {
        return match told.passed {
            Some(true) => Judged::new(CaseVerdict::Passed, ""),
            _ => Judged::new(CaseVerdict::Ended, "the test gave no verdict"),
        };
    };
    let verdict = match raised.kind.as_str() {
        "AssertionError" => CaseVerdict::WrongAnswer,
        _ => CaseVerdict::Raised,
    };
    let detail = match (verdict, raised.message.as_str()) {
        (CaseVerdict::WrongAnswer, message) if !message.is_empty() => message.to_owned(),
        _ => judge::one_line(&raised),
    };
    Judged { raised: Some(raised), ..Judged::new(verdict, detail) }
}
