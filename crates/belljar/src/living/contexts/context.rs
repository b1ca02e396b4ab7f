//! One context: its process, begun when it is needed, and the calls that it takes one at a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::call::{Act, Call, Ended, Line, Stop, stopped_error};
use super::channel::{Place, Start};
use super::frames::{CALL_DIGITS, Frames, NONCE_DIGITS};
use super::gathered::Told;
use super::program::{Language, Order};
use super::{Contexts, Saved, Settings};
use crate::execution_id::new_id;
use crate::model::error::Error;
use crate::model::outcome::{FaultDomain, Verdict};
use crate::model::sandbox::{CodeError, CodeEvent, CodeResult, ContextInfo, ExecEnd, Interrupted};

const SIGINT: i32 = 2;
/// Between two interrupts of the same call that was not heard of: some come where nothing takes them.
const AGAIN: Duration = Duration::from_millis(250);
/// The same of bash, which hears of one when the program that it waits for has ended: long enough for most to clear up.
const AGAIN_BASH: Duration = Duration::from_secs(2);
/// A process that had died before it took up the code is replaced; one that does so at once is not.
const STARTS: usize = 2;

/// A piece of code that was checked.
#[derive(Debug)]
pub(super) struct Asked {
    pub code: String,
    pub env: BTreeMap<String, String>,
    pub timeout: Duration,
    pub settings: Settings,
}

#[derive(Debug)]
pub(super) struct Context {
    pub id: String,
    pub language: Language,
    /// Calls that are here, the running one among them.
    pub waiting: AtomicUsize,
    cwd: PathBuf,
    env: BTreeMap<String, String>,
    nonce: String,
    count: AtomicU64,
    busy: AtomicBool,
    /// Its process; whoever holds this speaks with it.
    line: tokio::sync::Mutex<Option<Line>>,
    /// The name of the process, once it was started.
    exec: Mutex<Option<String>>,
    /// To the call that runs.
    acts: Mutex<Option<mpsc::Sender<Act>>>,
}

/// What came of a call, before it is told.
struct Came<'a> {
    call: Call<'a>,
    ended: Ended,
    restarted: bool,
}

impl Context {
    pub(super) fn new(
        id: String,
        language: Language,
        cwd: PathBuf,
        env: BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        Ok(Self {
            id,
            language,
            waiting: AtomicUsize::new(0),
            cwd,
            env,
            nonce: digits()?,
            count: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            line: tokio::sync::Mutex::new(None),
            exec: Mutex::default(),
            acts: Mutex::default(),
        })
    }

    /// One that was there before. What it ran is of no use to anybody any more.
    pub(super) async fn adopt(
        saved: Saved,
        language: Language,
        place: &dyn Place,
        from: Option<[u64; 2]>,
    ) -> Result<Self, Error> {
        let mut context = Self::new(saved.id, language, saved.cwd, saved.env)?;
        context.nonce = saved.nonce;
        context.count = AtomicU64::new(saved.count);
        if let (Some(exec), Some(from)) = (&saved.exec, from)
            && let Some(mut channel) = place.attach(exec, from).await?
        {
            channel.signal(SIGINT).await?;
            let line = Line {
                channel,
                stdout: Frames::new(&context.nonce),
                stderr: Frames::new(&context.nonce),
                restarted: false,
            };
            context.line = tokio::sync::Mutex::new(Some(line));
        }
        context.exec = Mutex::new(saved.exec);
        Ok(context)
    }

    pub(super) fn info(&self) -> ContextInfo {
        ContextInfo {
            id: self.id.clone(),
            language: self.language.name().to_owned(),
            cwd: self.cwd.display().to_string(),
            busy: self.busy.load(Ordering::Relaxed),
            count: self.count.load(Ordering::Relaxed),
        }
    }

    pub(super) fn saved(&self) -> Saved {
        Saved {
            id: self.id.clone(),
            language: self.language.name().to_owned(),
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            count: self.count.load(Ordering::Relaxed),
            exec: lock(&self.exec).clone(),
            nonce: self.nonce.clone(),
        }
    }

    /// Starts its process, if there is none.
    pub(super) async fn start(&self, all: &Contexts) -> Result<(), Error> {
        let mut line = self.line.lock().await;
        if line.is_none() {
            *line = Some(self.begin(all).await?);
        }
        Ok(())
    }

    /// The same, of one that may be at work: then it has one.
    pub(super) async fn start_if_free(&self, all: &Contexts) -> Result<(), Error> {
        if let Ok(mut line) = self.line.try_lock()
            && line.is_none()
        {
            *line = Some(self.begin(all).await?);
        }
        Ok(())
    }

    async fn begin(&self, all: &Contexts) -> Result<Line, Error> {
        let start =
            Start { cmd: self.language.command(), cwd: self.cwd.clone(), env: self.env.clone() };
        let exec = new_id()?;
        let restarted = lock(&self.exec).replace(exec.clone()).is_some();
        all.keep().await?;
        let mut channel = all.place.start(exec, start).await?;
        let greeting = self.language.greeting(&self.nonce);
        // One that has ended already is heard of when it is asked.
        channel.write(&greeting).await.ok();
        let frames = || Frames::new(&self.nonce);
        Ok(Line { channel, stdout: frames(), stderr: frames(), restarted })
    }

    /// Interrupts the call that runs, and says what came of it.
    pub(super) async fn interrupt(&self) -> Interrupted {
        let Some(acts) = lock(&self.acts).clone() else { return Interrupted::Idle };
        let (answer, answered) = oneshot::channel();
        // Whoever is not there to answer has ended meanwhile.
        acts.send(Act::Interrupt(answer)).await.ok();
        answered.await.unwrap_or(Interrupted::Ended)
    }

    /// Ends its process, and with it the call that runs.
    pub(super) async fn end(&self) -> Result<(), Error> {
        let acts = lock(&self.acts).clone();
        if let Some(acts) = acts {
            acts.send(Act::Kill).await.ok(); // gone: it ended meanwhile
        }
        let mut line = self.line.lock().await;
        // Whoever asked for this knows that the next is a fresh one.
        *lock(&self.exec) = None;
        if let Some(mut line) = line.take() {
            line.channel.kill().await?;
        }
        Ok(())
    }

    /// Runs a piece of code when it is its turn.
    pub(super) async fn carry_out(
        &self,
        all: &Contexts,
        asked: Asked,
        events: &mpsc::Sender<CodeEvent>,
    ) -> Result<CodeResult, Error> {
        let mut line = tokio::select! {
            line = self.line.lock() => line,
            () = events.closed() => return Err(Error::Cancelled),
        };
        let _busy = Busy::enter(self);
        let begun = Instant::now();
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let came = self.attempt(&mut line, all, &asked, events, count).await;
        if !matches!(&came, Ok(Came { ended: Ended::Told(_), .. })) {
            // It is of no more use, whatever it is.
            if let Some(mut line) = line.take() {
                line.channel.kill().await.ok();
            }
        }
        let mut result = self.told(came?);
        result.count = count;
        result.elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(result)
    }

    /// Asks its process, or a new one where the last has died without taking up the code.
    async fn attempt<'a>(
        &self,
        line: &mut Option<Line>,
        all: &Contexts,
        asked: &Asked,
        events: &'a mpsc::Sender<CodeEvent>,
        count: u64,
    ) -> Result<Came<'a>, Error> {
        for start in 1.. {
            // From here on it can be interrupted and ended, also while its process is begun.
            let (sender, acts) = mpsc::channel(4);
            *lock(&self.acts) = Some(sender);
            let there = match line {
                Some(there) => there,
                None => line.insert(self.begin(all).await?),
            };
            let restarted = std::mem::take(&mut there.restarted);
            let context = self.id.clone();
            let started = CodeEvent::Started { context, count, restarted };
            let id = digits()?[..CALL_DIGITS].to_owned();
            let mut call = Call::new(id, asked.timeout, &asked.settings, events, acts, started);
            call.interrupt_again(match self.language {
                Language::Node | Language::Python => AGAIN,
                Language::Bash => AGAIN_BASH,
            });
            let order = Order { call: &call.id, number: count, code: &asked.code, env: &asked.env };
            // One that has ended does not take it; that is heard next.
            there.channel.write(&self.language.request(&order)).await.ok();
            let ended = call.follow(there).await?;
            *lock(&self.acts) = None;
            call.answer(match &ended {
                Ended::Told(_) => Interrupted::Ended,
                Ended::Died { .. } | Ended::Strange => Interrupted::Restarted,
            });
            let is_unused = matches!(ended, Ended::Died { begun: false, .. });
            if !is_unused || start == STARTS || call.stop.is_some() {
                return Ok(Came { call, ended, restarted });
            }
            *line = None;
        }
        Err(Error::Lost { what: "a context could not be started" })
    }

    fn told(&self, came: Came<'_>) -> CodeResult {
        let Came { call, ended, restarted } = came;
        let stop = call.stop;
        let (stdout, stderr, results, dropped_results) = call.gathered.finish();
        let (error, exit_code, end) = match ended {
            Ended::Told(told) => {
                let status = told.status;
                (self.error_of(told, stop), status, None)
            }
            Ended::Died { end, .. } => (Some(self.died(stop, end.as_ref())), None, end),
            Ended::Strange => {
                let value = "the code spoke in the context's place, so it was ended".to_owned();
                (Some(died_error(value)), None, None)
            }
        };
        CodeResult {
            context: self.id.clone(),
            ok: error.is_none(),
            stdout: stdout.0,
            stderr: stderr.0,
            stdout_truncated: stdout.1,
            stderr_truncated: stderr.1,
            results,
            dropped_results,
            error,
            exit_code,
            restarted,
            end,
            ..CodeResult::default()
        }
    }

    fn error_of(&self, told: Told, stop: Option<Stop>) -> Option<CodeError> {
        let was_stopped = told.stopped == Some(1);
        let error = match (told.error, told.status) {
            // A program that node waited for ended by the same signal, and was first to be heard of.
            (Some(error), _) if self.language == Language::Node && stop == Some(Stop::Asked) => {
                Some(CodeError { name: "Interrupted".to_owned(), ..error })
            }
            (Some(error), _) => Some(error),
            (None, Some(status)) if status != 0 && !was_stopped => Some(CodeError {
                name: "ExitStatus".to_owned(),
                value: status.to_string(),
                ..CodeError::default()
            }),
            (None, _) => None,
        };
        match stop {
            Some(Stop::Asked) if error.is_none() && !was_stopped => None, // it ended by itself just before
            Some(stop) => Some(stopped_error(stop, error)),
            None if was_stopped => Some(stopped_error(Stop::Asked, None)),
            None => error,
        }
    }

    fn died(&self, stop: Option<Stop>, end: Option<&ExecEnd>) -> CodeError {
        let language = self.language.name();
        let gone = "its variables are gone, and the next call begins in a fresh one";
        match stop {
            Some(stop @ (Stop::Time(_) | Stop::Output(_) | Stop::Deaf)) => {
                let error = stopped_error(stop, None);
                let value = format!("{} and did not heed it: {gone}", error.value);
                CodeError { value, ..error }
            }
            Some(Stop::Killed) => died_error(format!("the context was ended by request: {gone}")),
            Some(Stop::Asked | Stop::Abandoned) | None => {
                let how = end.map_or_else(|| "was lost".to_owned(), how_it_ended);
                died_error(format!("the context's {language} {how}: {gone}"))
            }
        }
    }
}

fn died_error(value: String) -> CodeError {
    CodeError { name: "ContextDied".to_owned(), value, ..CodeError::default() }
}

fn how_it_ended(end: &ExecEnd) -> String {
    match (&end.verdict, end.fault_domain) {
        (Verdict::Exited { code }, FaultDomain::Program) => {
            format!("exited with status {code}")
        }
        (Verdict::Signaled { signal }, _) => format!("was ended by signal {signal}"),
        (Verdict::MemoryLimit { limit_bytes }, _) => {
            format!("met the memory limit of {limit_bytes} bytes")
        }
        (verdict, _) => format!("ended with verdict {}", verdict.kind()),
    }
}

/// Marks a context as at work.
struct Busy<'a>(&'a Context);

impl<'a> Busy<'a> {
    fn enter(context: &'a Context) -> Self {
        context.busy.store(true, Ordering::Relaxed);
        Self(context)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        *lock(&self.0.acts) = None;
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

/// Digits that nobody can guess.
pub(super) fn digits() -> Result<String, Error> {
    let mut random = [0u8; NONCE_DIGITS / 2];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::Backend { operation: "get randomness", source: errno.into() })?;
    let mut digits = String::with_capacity(NONCE_DIGITS);
    for byte in random {
        write!(digits, "{byte:02x}").ok(); // to a String, which cannot fail
    }
    Ok(digits)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
