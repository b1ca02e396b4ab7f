//! Code contexts of a living sandbox: programs that stay, and run one piece of code after the other with the
//! variables of the last.
//!
//! A context is one exec that runs a small program of ours ([`program`]), asked by lines on its input; its answers
//! stand as marked frames in its output ([`frames`]), between what the code prints. Nothing more than an exec with an
//! open input and an output that is followed is needed ([`channel`]), so a context outlives the server like every exec,
//! and is spoken with again after a restart. Our program shares its process with the code: what it says is the code's
//! word about itself, bounded and read strictly ([`gathered`]), and decides nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::model::error::{Error, SpecError};
use crate::model::sandbox::{CodeEvent, CodeRequest, CodeResult, ContextInfo, Interrupted};
use crate::model::spec::MAX_CODE_BYTES;

mod call;
mod channel;
mod context;
mod frames;
mod gathered;
mod program;
#[cfg(test)]
mod tests;

use self::context::{Asked, Context};

use self::channel::{Place, Soon};
pub(crate) use self::program::Language;

/// Contexts of one sandbox.
pub(crate) const MAX_CONTEXTS: usize = 16;
/// Calls that wait for their turn in one context.
pub(crate) const MAX_WAITING: usize = 16;
/// Events on their way to who listens.
const MAX_EVENTS: usize = 64;
const WORKSPACE: &str = "/workspace";

/// What holds for every call.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Of a call that names none.
    pub timeout: Duration,
    /// Most that a call may ask for.
    pub most_timeout: Duration,
    /// Kept of each stream, half of it the beginning, half the end.
    pub kept_bytes: u64,
    /// Written by a call before it is stopped.
    pub output_bytes: u64,
    /// Between an interrupt that we had to send and the end of the context.
    pub grace: Duration,
    /// The same of one that somebody asked for, while the code has not heard it. What has may take its time.
    pub deaf: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            most_timeout: Duration::from_secs(7 * 24 * 3600),
            kept_bytes: 100 << 10,
            output_bytes: 1 << 30,
            grace: Duration::from_secs(2),
            deaf: Duration::from_secs(10),
        }
    }
}

/// What is needed to find a context again after a restart of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub id: String,
    pub language: String,
    pub cwd: PathBuf,
    pub env: BTreeMap<String, String>,
    pub count: u64,
    /// Its exec, and the digits by which its frames are known.
    pub exec: Option<String>,
    pub nonce: String,
}

/// Writes down which contexts there are.
pub(crate) type Keep = Box<dyn Fn(Vec<Saved>) -> Soon<'static, ()> + Send + Sync>;

/// All contexts of one sandbox.
pub(crate) struct Contexts {
    place: Arc<dyn Place>,
    keep: Keep,
    /// Held by whoever writes them down: the last to write is the last to have looked.
    keeping: tokio::sync::Mutex<()>,
    settings: Settings,
    all: Mutex<BTreeMap<String, Arc<Context>>>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Contexts").field("all", &self.all).finish_non_exhaustive()
    }
}

impl Contexts {
    pub(crate) fn new(place: Arc<dyn Place>, keep: Keep, settings: Settings) -> Self {
        let keeping = tokio::sync::Mutex::default();
        Self { place, keep, keeping, settings, all: Mutex::default() }
    }

    /// Takes up contexts that were there before. `offsets` says how far the output of an exec reaches, if it runs:
    /// what was written until now belongs to calls for which nobody waits any more, so they are interrupted.
    pub(crate) async fn adopt(
        &self,
        saved: Vec<Saved>,
        offsets: impl Fn(&str) -> Option<[u64; 2]>,
    ) -> Result<(), Error> {
        for one in saved.into_iter().take(MAX_CONTEXTS) {
            let language = Language::parse(&one.language)?;
            let from = one.exec.as_deref().and_then(&offsets);
            let context = Context::adopt(one, language, &*self.place, from).await?;
            self.lock().insert(context.id.clone(), Arc::new(context));
        }
        Ok(())
    }

    /// Writes them down: before a process of one is started, so that none runs of which nobody knows, and whenever one has
    /// changed.
    async fn keep(&self) -> Result<(), Error> {
        let _keeping = self.keeping.lock().await;
        let saved = self.lock().values().map(|context| context.saved()).collect();
        (self.keep)(saved).await
    }

    /// Makes a context, in /workspace unless told otherwise, and starts it.
    pub(crate) async fn create(
        &self,
        language: Option<&str>,
        cwd: Option<PathBuf>,
        env: BTreeMap<String, String>,
    ) -> Result<ContextInfo, Error> {
        let language = Language::parse(language.unwrap_or("python"))?;
        check_env(&env)?;
        let cwd = check_cwd(cwd)?;
        let id = format!("ctx_{}", &context::digits()?[..16]);
        let context = self.insert(Context::new(id, language, cwd, env)?)?;
        match context.start(self).await {
            Ok(()) => Ok(context.info()),
            Err(error) => {
                self.lock().remove(&context.id);
                Err(error)
            }
        }
    }

    /// Starts the process that a call is for, unless it runs.
    pub(crate) async fn begin(&self, request: &CodeRequest) -> Result<(), Error> {
        self.find_or_make(request)?.start_if_free(self).await
    }

    pub(crate) fn list(&self) -> Vec<ContextInfo> {
        self.lock().values().map(|context| context.info()).collect()
    }

    /// Runs a piece of code; `sink` hears of it as it happens. Who drops this interrupts the code, and its
    /// variables stay.
    pub(crate) async fn run(
        self: &Arc<Self>,
        request: CodeRequest,
        sink: &mut (dyn FnMut(CodeEvent) + Send),
    ) -> Result<CodeResult, Error> {
        let context = self.find_or_make(&request)?;
        let asked = Asked {
            timeout: self.timeout(request.timeout_ms)?,
            code: check_code(request.code, context.language)?,
            env: check_env(&request.env).map(|()| request.env)?,
            settings: self.settings.clone(),
        };
        let _turn = Waiting::enter(&context)?;
        let (events, mut heard) = mpsc::channel(MAX_EVENTS);
        let (answer, answered) = oneshot::channel();
        let all = Arc::clone(self);
        let running = Arc::clone(&context);
        // On its own: when we are dropped it still has to interrupt the code and hear its end.
        tokio::spawn(async move {
            let result = running.carry_out(&all, asked, &events).await;
            drop(events);
            // That it runs is written down; what is new is only how often it was used.
            all.keep().await.ok();
            // Nobody waits for it when the call was given up.
            answer.send(result).ok();
        });
        while let Some(event) = heard.recv().await {
            sink(event);
        }
        answered.await.map_err(|_| Error::Lost { what: "the call ended with our own process" })?
    }

    /// Interrupts what a context runs, and says what came of it: once the code has heard it, has ended, or was ended.
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Interrupted, Error> {
        Ok(self.known(id)?.interrupt().await)
    }

    /// Ends what a context runs, and begins it anew without any variables.
    pub(crate) async fn restart(&self, id: &str) -> Result<ContextInfo, Error> {
        let context = self.known(id)?;
        context.end().await?;
        context.start(self).await?;
        Ok(context.info())
    }

    pub(crate) async fn remove(&self, id: &str) -> Result<(), Error> {
        let context = self.known(id)?;
        self.lock().remove(id);
        context.end().await?;
        self.keep().await
    }

    /// The context that something is done to.
    fn known(&self, id: &str) -> Result<Arc<Context>, Error> {
        self.get(id).map_err(|_| Error::NotFound {
            what: format!("there is no context {id:?}. hint: see the list of contexts"),
        })
    }

    /// The context that a request names.
    fn get(&self, id: &str) -> Result<Arc<Context>, SpecError> {
        let found = self.lock().get(id).cloned();
        found.ok_or_else(|| {
            SpecError::new("context", format!("{id:?} is not there: see the list of contexts"))
        })
    }

    /// The named context, or its language's own, which has its language's name.
    fn find_or_make(&self, request: &CodeRequest) -> Result<Arc<Context>, Error> {
        let wanted = request.language.as_deref().map(Language::parse).transpose()?;
        let default = wanted.unwrap_or(Language::Python);
        let id = request.context.as_deref().unwrap_or(default.name());
        if let Ok(context) = self.get(id) {
            if wanted.is_some_and(|wanted| wanted != context.language) {
                let reason =
                    format!("is not that of context {id:?}, which is {}", context.language.name());
                return Err(SpecError::new("language", reason).into());
            }
            return Ok(context);
        }
        match Language::ALL.into_iter().find(|language| language.name() == id) {
            Some(language) if wanted.is_none_or(|wanted| wanted == language) => {
                let cwd = PathBuf::from(WORKSPACE);
                self.insert(Context::new(id.to_owned(), language, cwd, BTreeMap::new())?)
            }
            _ => Err(self.get(id).err().map_or(Error::Cancelled, Error::from)),
        }
    }

    fn insert(&self, context: Context) -> Result<Arc<Context>, Error> {
        let mut all = self.lock();
        if let Some(there) = all.get(&context.id) {
            return Ok(Arc::clone(there)); // somebody was quicker
        }
        if all.len() >= MAX_CONTEXTS {
            let reason = format!("would be one more than {MAX_CONTEXTS}: remove one that is done");
            return Err(SpecError::new("context", reason).into());
        }
        let context = Arc::new(context);
        all.insert(context.id.clone(), Arc::clone(&context));
        Ok(context)
    }

    fn timeout(&self, asked_ms: Option<u64>) -> Result<Duration, SpecError> {
        let timeout = asked_ms.map_or(self.settings.timeout, Duration::from_millis);
        if timeout.is_zero() || timeout > self.settings.most_timeout {
            let most = self.settings.most_timeout.as_millis();
            return Err(SpecError::new("timeout_ms", format!("must be from 1 to {most}")));
        }
        Ok(timeout)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Context>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in a context's queue; the one that runs has one too.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(context: &'a Context) -> Result<Self, Error> {
        let there = context.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Self(&context.waiting);
        if there > MAX_WAITING {
            return Err(Error::Busy { running: 1, waiting: MAX_WAITING });
        }
        Ok(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn check_code(code: String, language: Language) -> Result<String, SpecError> {
    if code.len() > MAX_CODE_BYTES {
        let reason = format!("has {} bytes, more than {MAX_CODE_BYTES}", code.len());
        return Err(SpecError::new("code", reason));
    }
    if language == Language::Bash && code.contains('\0') {
        return Err(SpecError::new("code", "has a NUL, which no shell can read"));
    }
    Ok(code)
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), SpecError> {
    for (name, value) in env {
        let is_first = |letter: u8| letter.is_ascii_alphabetic() || letter == b'_';
        let is_name = name.bytes().next().is_some_and(is_first)
            && name.bytes().all(|letter| is_first(letter) || letter.is_ascii_digit());
        if !is_name || name.starts_with("__bj_") {
            let reason = format!(
                "has {name:?}, which cannot be a variable of a context: letters, digits and _ can"
            );
            return Err(SpecError::new("env", reason));
        }
        if value.contains('\0') {
            return Err(SpecError::new("env", format!("has a NUL in the value of {name}")));
        }
    }
    Ok(())
}

fn check_cwd(cwd: Option<PathBuf>) -> Result<PathBuf, SpecError> {
    let cwd = cwd.unwrap_or_else(|| PathBuf::from(WORKSPACE));
    if !cwd.is_absolute() {
        return Err(SpecError::new("cwd", "must be a path inside the sandbox from / on"));
    }
    Ok(cwd)
}
