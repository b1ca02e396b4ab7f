//! The pool: sandboxes that were made ahead of the runs that will want them.
//!
//! What can be made ahead depends on little of a request: its language, level and limits, not its code,
//! arguments, files or input. That is a [`Profile`]; each profile that is asked for gets a shelf. A run
//! takes from its shelf, and a used sandbox is destroyed, never reset. [`Pool::tend`] refills the shelves
//! beside the runs: more where they were found empty, fewer where nobody came, none when memory is short.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_jail::plan::{Hold, MAX_DELIVERY_BYTES};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::engine::{Engine, Run};
use crate::languages::{How, Interpreter, Language};
use crate::model::error::Error;
use crate::model::level::Level;
use crate::model::limits::LimitsRequest;
use crate::model::spec::{Program, Spec, WORKSPACE};
use crate::native::park::Parked;
use crate::native::run::Spare;
use crate::native::zygote::Zygote;

/// How often the pool is looked after when nothing happens.
const TICK: Duration = Duration::from_secs(1);
/// How long a shelf is watched before it shrinks.
const WINDOW: Duration = Duration::from_secs(15);
/// The first pause after a sandbox could not be made; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the memory that was seen to be free is believed in.
const MEMORY_LOOK: Duration = Duration::from_millis(100);
/// What interpreters and the C library read when they start, which is before the program comes.
const READ_AT_START: [&str; 12] = [
    "PYTHON", "NODE_", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "OPENSSL_", "SSL_", "UV_",
    "RES_",
];

/// How much is kept ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Sandboxes kept for each language in `from_start`, however few are used.
    pub floor: usize,
    /// Sandboxes that wait, all together, at most.
    pub ceiling: usize,
    /// Kinds of sandbox, by language, level and limits, kept at once.
    pub profiles: usize,
    /// Sandboxes made at the same time.
    pub makers: usize,
    /// A sandbox that nobody wanted for so long is replaced by a new one.
    pub oldest: Duration,
    /// Copies, and time, after which another zygote takes over: what its copies share changes then.
    pub zygote_copies: u64,
    pub zygote_oldest: Duration,
    /// With less memory than this available nothing is made, and what waits is let go.
    pub memory_reserve_bytes: u64,
    /// Languages that are kept ready, at level standard, before anybody asked. Those that are not
    /// installed are left out.
    pub from_start: Vec<String>,
    /// More modules to load, by language: `("python", "numpy")`.
    pub modules: Vec<(String, String)>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            floor: 2,
            ceiling: 64,
            profiles: 16,
            makers: cores,
            oldest: Duration::from_secs(600),
            zygote_copies: 5_000,
            zygote_oldest: Duration::from_secs(600),
            memory_reserve_bytes: 256 << 20,
            from_start: ["python", "bash", "node"].map(str::to_owned).to_vec(),
            modules: Vec::new(),
        }
    }
}

/// What a sandbox depends on that is made before its program is known.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub spec: Spec,
    pub hold: Hold,
    key: String,
}

impl Profile {
    fn new(spec: Spec, hold: Hold) -> Self {
        let key = format!("{hold:?} {}", spec.digest());
        Self { spec, hold, key }
    }

    pub(crate) fn language(&self) -> &str {
        match &self.spec.program {
            Program::Code { language, .. } => language,
            Program::Command { .. } => "",
        }
    }
}

/// A run that a sandbox made ahead can serve.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub profile: Profile,
}

impl Wanted {
    /// Says why not, where none can.
    pub(crate) fn new(run: &Run<'_>) -> Result<Self, &'static str> {
        let spec = run.spec();
        let (Program::Code { path, .. }, Some(language)) = (&spec.program, run.language()) else {
            return Err("it is a command, not code in a language");
        };
        let warm = language.warm.as_ref().ok_or("its language has no [warm] section")?;
        if !matches!(spec.level, Level::Standard | Level::Strict) {
            return Err("only the levels standard and strict are kept ready");
        }
        if spec.workspace.is_some() || run.keeps_files() {
            return Err("it shares a workspace with the host, or its files are wanted");
        }
        if spec.placed.iter().any(|file| !file.path.starts_with(WORKSPACE)) {
            return Err("a file of it lies outside of /workspace");
        }
        let arguments: usize = spec.args.iter().map(String::len).sum();
        let variables: usize = spec.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        // As JSON a byte can take six.
        if 6 * (arguments + variables) > MAX_DELIVERY_BYTES - 4096 {
            return Err("its arguments are too long");
        }
        let hold = match (warm.how, spec.level) {
            (How::Park, _) => Hold::Exec,
            (How::Fork, Level::Standard) if run.can_fork() => Hold::Forked,
            (How::Fork | How::Start, _) if !warm.start.is_empty() => Hold::Started,
            (How::Fork | How::Start, _) => return Err("its language has no warm start here"),
        };
        let at_start = |name: &String| READ_AT_START.iter().any(|one| name.starts_with(one));
        if hold != Hold::Exec && spec.env.keys().any(at_start) {
            return Err("a variable of it is read when the interpreter starts");
        }
        let keeps_path =
            hold == Hold::Started && warm.start.iter().any(|one| one.contains("{file}"));
        let path = if keeps_path { path.clone() } else { program_path(language) };
        Ok(Self { profile: Profile::new(stripped(spec, &language.name, path), hold) })
    }
}

fn program_path(language: &Language) -> std::path::PathBuf {
    std::path::Path::new(WORKSPACE).join(&language.file)
}

/// A Spec without all that comes with the program.
fn stripped(spec: &Spec, language: &str, path: std::path::PathBuf) -> Spec {
    let mut limits = spec.limits;
    if let Ok(plain) = LimitsRequest::default().resolve() {
        limits.wall_ms = plain.wall_ms;
        limits.output_bytes = plain.output_bytes;
        limits.output_total_bytes = plain.output_total_bytes;
    }
    Spec {
        program: Program::Code { language: language.to_owned(), path },
        args: Vec::new(),
        env: std::collections::BTreeMap::new(),
        stdin: None,
        placed: Vec::new(),
        workspace: None,
        level: spec.level,
        limits,
        allow_missing: spec.allow_missing.clone(),
        allow_syscalls: spec.allow_syscalls.clone(),
        deny_syscalls: spec.deny_syscalls.clone(),
        block_paths: spec.block_paths.clone(),
        labels: std::collections::BTreeMap::new(),
    }
}

/// Sandboxes of one profile.
struct Shelf {
    profile: Profile,
    floor: usize,
    target: usize,
    waiting: VecDeque<Parked>,
    making: usize,
    hits: u64,
    misses: u64,
    used: Instant,
    /// Since the window began: runs that found it empty, and the fewest that waited.
    window_misses: u64,
    window_least: usize,
    failures: u32,
    not_before: Instant,
    last_error: Option<String>,
}

impl Shelf {
    fn new(profile: Profile, floor: usize) -> Self {
        let now = Instant::now();
        Self {
            profile,
            floor,
            target: floor,
            waiting: VecDeque::new(),
            making: 0,
            hits: 0,
            misses: 0,
            used: now,
            window_misses: 0,
            window_least: 0,
            failures: 0,
            not_before: now,
            last_error: None,
        }
    }

    fn wants(&self) -> usize {
        self.target.saturating_sub(self.waiting.len() + self.making)
    }

    /// The end of a window: nobody came in vain, so half of what was never used can go.
    fn shrink(&mut self) -> Vec<Parked> {
        if self.window_misses == 0 {
            let idle = self.window_least.div_ceil(2);
            self.target = self.target.saturating_sub(idle).max(self.floor);
        }
        self.window_misses = 0;
        self.window_least = self.waiting.len();
        self.waiting.split_off(self.target.min(self.waiting.len())).into()
    }
}

#[derive(Default)]
struct State {
    shelves: HashMap<String, Shelf>,
    zygotes: HashMap<String, Brood>,
    made: u64,
    failed: u64,
    let_go: u64,
    /// Emptied for good: what is still being made goes to nobody.
    closed: bool,
    window: Option<Instant>,
    memory: Option<(Instant, bool)>,
}

/// The zygote of one language.
#[derive(Default)]
struct Brood {
    current: Option<Arc<Zygote>>,
    replacing: bool,
    /// Why there can be none, and since when.
    broken: Option<(Instant, String)>,
}

/// All that is kept ready.
pub(crate) struct Pool {
    config: PoolConfig,
    state: Mutex<State>,
    /// Something was taken, made or lost.
    changed: Notify,
    /// One zygote is started at a time.
    starting: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            state: Mutex::default(),
            changed: Notify::new(),
            starting: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that waits, if there is one. Either way it is noted that one was wanted.
    pub(crate) fn take(&self, wanted: &Wanted) -> Option<Parked> {
        let mut state = self.state();
        let key = &wanted.profile.key;
        if !state.shelves.contains_key(key) {
            make_room(&mut state, self.config.profiles);
            state.shelves.insert(key.clone(), Shelf::new(wanted.profile.clone(), 0));
        }
        let shelf = state.shelves.get_mut(key)?;
        shelf.used = Instant::now();
        let parked = loop {
            match shelf.waiting.pop_front() {
                Some(parked) if parked.is_well() => break Some(parked),
                Some(_) => {} // died while it waited; dropped, and mended by the next look
                None => break None,
            }
        };
        shelf.window_least = shelf.window_least.min(shelf.waiting.len());
        if parked.is_some() {
            shelf.hits += 1;
        } else {
            shelf.misses += 1;
            shelf.window_misses += 1;
            shelf.target = (shelf.target * 2).clamp(1, self.config.ceiling.max(1));
        }
        drop(state);
        self.changed.notify_one();
        parked
    }

    /// Looks after the shelves, for ever.
    pub(crate) async fn tend(self: &Arc<Self>, engine: &Engine) {
        self.open_shelves(engine);
        loop {
            drop(self.look_after());
            self.replace_worn(engine);
            while let Some(profile) = self.next_to_make() {
                let (pool, engine) = (self.clone(), engine.clone());
                tokio::spawn(async move {
                    let made = engine.park(&pool, &profile).await;
                    pool.put(&profile, made);
                });
            }
            // Whichever comes first; a timeout is the tick.
            tokio::time::timeout(TICK, self.changed.notified()).await.ok();
        }
    }

    /// The shelves of the languages that are ready before anybody asked.
    fn open_shelves(&self, engine: &Engine) {
        for name in &self.config.from_start {
            let request = crate::RunRequest::code(name.as_str(), "#");
            let Ok(run) = engine.prepare(request) else {
                continue; // not installed
            };
            if let Ok(Wanted { profile }) = Wanted::new(&run) {
                let shelf = Shelf::new(profile.clone(), self.config.floor);
                self.state().shelves.entry(profile.key.clone()).or_insert(shelf);
            }
        }
    }

    /// What should be made next, counted as being made.
    fn next_to_make(&self) -> Option<Profile> {
        let mut state = self.state();
        let all = state.shelves.values();
        let making: usize = all.clone().map(|shelf| shelf.making).sum();
        let waiting: usize = all.map(|shelf| shelf.waiting.len()).sum();
        if making >= self.config.makers || making + waiting >= self.config.ceiling {
            return None;
        }
        if memory_is_short(&mut state, self.config.memory_reserve_bytes) {
            return None;
        }
        let now = Instant::now();
        let shelves = state.shelves.values_mut().filter(|one| one.wants() > 0);
        let shelf = shelves.filter(|one| one.not_before <= now).max_by_key(|one| one.wants())?;
        shelf.making += 1;
        Some(shelf.profile.clone())
    }

    fn put(&self, profile: &Profile, made: Result<Parked, Error>) {
        let mut state = self.state();
        match &made {
            Ok(_) => state.made += 1,
            Err(_) => state.failed += 1,
        }
        let surplus = match (state.shelves.get_mut(&profile.key), made) {
            (Some(shelf), Ok(parked)) => {
                shelf.making = shelf.making.saturating_sub(1);
                shelf.failures = 0;
                shelf.waiting.push_back(parked);
                None
            }
            (Some(shelf), Err(error)) => {
                shelf.making = shelf.making.saturating_sub(1);
                shelf.failures = shelf.failures.saturating_add(1);
                let pause = FIRST_PAUSE * 2u32.saturating_pow(shelf.failures.min(16) - 1);
                shelf.not_before = Instant::now() + pause.min(LONGEST_PAUSE);
                shelf.last_error = Some(error.to_string());
                None
            }
            (None, made) => made.ok(), // its shelf is gone
        };
        drop(state);
        drop(surplus);
        self.changed.notify_one();
    }

    /// What is too old, too many, dead, or more than memory allows; to be dropped outside of the lock.
    fn look_after(&self) -> Vec<Parked> {
        let mut state = self.state();
        let mut gone = Vec::new();
        let short = memory_is_short(&mut state, self.config.memory_reserve_bytes);
        let now = Instant::now();
        let window_ends = state.window.is_none_or(|began| now - began >= WINDOW);
        if window_ends {
            state.window = Some(now);
        }
        for shelf in state.shelves.values_mut() {
            if short {
                shelf.target = shelf.floor;
                gone.extend(shelf.waiting.drain(..));
            }
            let (well, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut shelf.waiting)
                .into_iter()
                .partition(|one| one.is_well() && one.age() < self.config.oldest);
            shelf.waiting = well;
            gone.extend(others);
            if window_ends {
                gone.extend(shelf.shrink());
            }
        }
        let idle = self.config.oldest;
        state.shelves.retain(|_, one| {
            one.floor > 0 || one.making > 0 || !one.waiting.is_empty() || one.used.elapsed() < idle
        });
        state.let_go += gone.len() as u64;
        gone
    }

    /// Whether the language's zygote can be copied, as far as is known.
    pub(crate) fn can_fork(&self, language: &Language) -> bool {
        let state = self.state();
        let broken = state.zygotes.get(&language.name).and_then(|one| one.broken.as_ref());
        broken.is_none_or(|(since, _)| since.elapsed() >= LONGEST_PAUSE)
    }

    /// A keeper that is a copy of the language's zygote, which is started if need be. One that has died is
    /// replaced here, before anybody misses it.
    pub(crate) async fn copy(
        &self,
        engine: &Engine,
        language: &Language,
        interpreter: &Interpreter,
    ) -> Result<(Spare, Arc<Zygote>), Error> {
        let zygote = self.zygote(engine, language, interpreter).await?;
        if let Ok(spare) = zygote.copy().await {
            return Ok((spare, zygote));
        }
        self.forget(&language.name, &zygote);
        let zygote = self.zygote(engine, language, interpreter).await?;
        let spare = zygote.copy().await.map_err(Error::backend("copy a zygote"))?;
        Ok((spare, zygote))
    }

    fn current(&self, language: &str) -> Option<Arc<Zygote>> {
        self.state().zygotes.get(language).and_then(|brood| brood.current.clone())
    }

    fn forget(&self, language: &str, dead: &Arc<Zygote>) {
        let mut state = self.state();
        let brood = state.zygotes.entry(language.to_owned()).or_default();
        let gone = brood.current.take_if(|one| Arc::ptr_eq(one, dead));
        drop(state);
        drop(gone);
    }

    async fn zygote(
        &self,
        engine: &Engine,
        language: &Language,
        interpreter: &Interpreter,
    ) -> Result<Arc<Zygote>, Error> {
        if let Some(zygote) = self.current(&language.name) {
            return Ok(zygote);
        }
        let _one_at_a_time = self.starting.lock().await;
        if let Some(zygote) = self.current(&language.name) {
            return Ok(zygote); // somebody else has started it meanwhile
        }
        self.start_zygote(engine, language, interpreter).await
    }

    async fn start_zygote(
        &self,
        engine: &Engine,
        language: &Language,
        interpreter: &Interpreter,
    ) -> Result<Arc<Zygote>, Error> {
        let started = self.start(engine, language, interpreter).await;
        let mut state = self.state();
        let closed = state.closed;
        let brood = state.zygotes.entry(language.name.clone()).or_default();
        brood.replacing = false;
        let (result, before) = match started {
            Ok(zygote) if closed => {
                let gone = Error::Lost { what: "the pool was closed while its zygote started" };
                (Err(gone), Some(Arc::new(zygote)))
            }
            Ok(zygote) => {
                let zygote = Arc::new(zygote);
                brood.broken = None;
                let before = brood.current.replace(zygote.clone());
                (Ok(zygote), before)
            }
            Err(error) => {
                brood.broken = Some((Instant::now(), error.to_string()));
                (Err(error), None)
            }
        };
        drop(state);
        drop(before);
        result
    }

    async fn start(
        &self,
        engine: &Engine,
        language: &Language,
        interpreter: &Interpreter,
    ) -> Result<Zygote, Error> {
        let mut warm = language.warm.clone().ok_or(Error::Backend {
            operation: "start a zygote",
            source: std::io::Error::other("its language has no [warm] section"),
        })?;
        let more = self.config.modules.iter().filter(|(name, _)| *name == language.name);
        warm.modules.extend(more.map(|(_, module)| module.clone()));
        let request = crate::RunRequest::code(language.name.as_str(), "#");
        let run = engine.prepare(request)?;
        let program =
            crate::native::plan::invocation(run.spec(), Some(language), Some(interpreter))?;
        let (host, alive) = (engine.host(), engine.alive());
        Zygote::start(language, &warm, interpreter, program.environment, host, alive).await
    }

    /// Starts another zygote for one whose layout was shared for too long; it serves until then.
    fn replace_worn(self: &Arc<Self>, engine: &Engine) {
        let worn: Vec<String> = {
            let mut state = self.state();
            let (copies, oldest) = (self.config.zygote_copies, self.config.zygote_oldest);
            let broods = state.zygotes.iter_mut().filter(|(_, brood)| {
                !brood.replacing
                    && brood.current.as_ref().is_some_and(|one| one.is_worn(copies, oldest))
            });
            broods
                .map(|(name, brood)| {
                    brood.replacing = true;
                    name.clone()
                })
                .collect()
        };
        for name in worn {
            let (pool, engine) = (self.clone(), engine.clone());
            tokio::spawn(async move {
                let Ok(language) = engine.languages().get(&name) else {
                    return;
                };
                if let Ok(interpreter) = language.find() {
                    // Told in the statistics if it fails; the worn one serves on.
                    pool.start_zygote(&engine, language, &interpreter).await.ok();
                }
            });
        }
    }

    pub(crate) fn empty(&self) {
        let (shelves, zygotes) = {
            let mut state = self.state();
            state.closed = true;
            (std::mem::take(&mut state.shelves), std::mem::take(&mut state.zygotes))
        };
        drop((shelves, zygotes));
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut state = self.state();
        let memory_short = memory_is_short(&mut state, self.config.memory_reserve_bytes);
        let mut shelves: Vec<ShelfStats> = state.shelves.values().map(ShelfStats::of).collect();
        shelves.sort_by(|a, b| (&a.language, a.level).cmp(&(&b.language, b.level)));
        let zygotes = state.zygotes.iter();
        let mut zygotes: Vec<ZygoteStats> =
            zygotes.map(|(name, brood)| ZygoteStats::of(name, brood)).collect();
        zygotes.sort_by(|a, b| a.language.cmp(&b.language));
        PoolStats {
            waiting: shelves.iter().map(|one| one.waiting).sum(),
            making: shelves.iter().map(|one| one.making).sum(),
            floor: self.config.floor,
            ceiling: self.config.ceiling,
            hits: shelves.iter().map(|one| one.hits).sum(),
            misses: shelves.iter().map(|one| one.misses).sum(),
            made: state.made,
            failed: state.failed,
            let_go: state.let_go,
            memory_short,
            shelves,
            zygotes,
        }
    }
}

/// Lets the least recently used shelf go when there are too many.
fn make_room(state: &mut State, most: usize) {
    if state.shelves.len() < most.max(1) {
        return;
    }
    let idle = state.shelves.iter().filter(|(_, shelf)| shelf.floor == 0);
    let oldest = idle.min_by_key(|(_, shelf)| shelf.used).map(|(key, _)| key.clone());
    if let Some(key) = oldest {
        state.shelves.remove(&key);
    }
}

/// Less than the reserve is available, as the kernel estimates it.
fn memory_is_short(state: &mut State, reserve_bytes: u64) -> bool {
    if let Some((at, short)) = state.memory.filter(|(at, _)| at.elapsed() < MEMORY_LOOK) {
        let _ = at;
        return short;
    }
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        let kibibytes = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?;
        kibibytes.parse::<u64>().ok()
    });
    // A kernel that does not tell has none to complain of.
    let short = available.is_some_and(|kibibytes| kibibytes * 1024 < reserve_bytes);
    state.memory = Some((Instant::now(), short));
    short
}

/// What the pool holds and has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    pub waiting: usize,
    pub making: usize,
    pub floor: usize,
    pub ceiling: usize,
    /// Runs that found a sandbox waiting, and runs that did not.
    pub hits: u64,
    pub misses: u64,
    pub made: u64,
    pub failed: u64,
    /// Sandboxes that were never used: too old, too many, or given up for memory.
    pub let_go: u64,
    pub memory_short: bool,
    pub shelves: Vec<ShelfStats>,
    pub zygotes: Vec<ZygoteStats>,
}

/// Sandboxes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShelfStats {
    pub language: String,
    pub level: Level,
    pub hold: Hold,
    pub waiting: usize,
    pub making: usize,
    pub target: usize,
    pub hits: u64,
    pub misses: u64,
    pub last_error: Option<String>,
}

impl ShelfStats {
    fn of(shelf: &Shelf) -> Self {
        Self {
            language: shelf.profile.language().to_owned(),
            level: shelf.profile.spec.level,
            hold: shelf.profile.hold,
            waiting: shelf.waiting.len(),
            making: shelf.making,
            target: shelf.target,
            hits: shelf.hits,
            misses: shelf.misses,
            last_error: shelf.last_error.clone(),
        }
    }
}

/// The zygote of a language.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteStats {
    pub language: String,
    pub process_id: Option<u32>,
    pub copies: u64,
    pub last_error: Option<String>,
}

impl ZygoteStats {
    fn of(language: &str, brood: &Brood) -> Self {
        Self {
            language: language.to_owned(),
            process_id: brood.current.as_ref().map(|one| one.process_id()),
            copies: brood.current.as_ref().map_or(0, |one| one.copies()),
            last_error: brood.broken.as_ref().map(|(_, why)| why.clone()),
        }
    }
}
