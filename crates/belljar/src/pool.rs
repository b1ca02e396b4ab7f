//! The pool: sandboxes that were made ahead of the runs that will want them.
//!
//! What can be made ahead depends on little of a request: its language, level and limits, not its code,
//! arguments, files or input. That is a [`Profile`]; each profile that is asked for gets a shelf. A run
//! takes from its shelf, and a used sandbox is destroyed, never reset. [`Pool::tend`] refills the shelves
//! beside the runs: more where they were found empty, fewer where nobody came, none when memory is short.

mod exits;
mod profile;
mod stats;

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::engine::Engine;
use crate::languages::{Interpreter, Language};
use crate::model::error::Error;
use crate::native::Prepared;
use crate::native::exit::Exit;
use crate::native::kind::Kind;
use crate::native::nursery::Nursery;
use crate::native::park::Parked;
use crate::native::run::Spare;
use crate::native::zygote::Zygote;

pub(crate) use profile::{Profile, Wanted};
pub use stats::{PoolStats, ShelfStats, ZygoteStats};

/// How often the pool is looked after when nothing happens.
const TICK: Duration = Duration::from_secs(1);
/// How long a shelf is watched before it shrinks.
const WINDOW: Duration = Duration::from_secs(15);
/// The first pause after a sandbox could not be made; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the memory that was seen to be free is believed in.
const MEMORY_LOOK: Duration = Duration::from_millis(100);

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

    /// One that lives. The newest: what was touched last is in the processor's caches.
    fn take_well(&mut self) -> Option<Parked> {
        // One that died while it waited is dropped, and mended by the next look.
        std::iter::from_fn(|| self.waiting.pop_back()).find(Parked::is_well)
    }

    /// The end of a window: nobody came in vain, so half of what was never used can go.
    fn shrink(&mut self) -> Vec<Parked> {
        if self.window_misses == 0 {
            let idle = self.window_least.div_ceil(2);
            self.target = self.target.saturating_sub(idle).max(self.floor);
        }
        self.window_misses = 0;
        self.window_least = self.waiting.len();
        let surplus = self.waiting.len().saturating_sub(self.target);
        self.waiting.drain(..surplus).collect()
    }
}

#[derive(Default)]
struct State {
    shelves: HashMap<String, Shelf>,
    zygotes: HashMap<String, Brood>,
    nursery: Option<Arc<Nursery>>,
    /// What sandboxes are made from, by profile.
    kinds: HashMap<String, Arc<Kind>>,
    exits: exits::Exits,
    made: u64,
    failed: u64,
    let_go: u64,
    /// Emptied for good: what is still being made goes to nobody.
    closed: bool,
    window: Option<Instant>,
    looked: Option<Instant>,
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
    /// Runs that go on in a sandbox of ours. While there are a few, what is made for later stands back.
    running: AtomicUsize,
    /// Who may make a sandbox for a run that found none. All at once would be in each other's way.
    makers: Semaphore,
}

/// How a run that found no sandbox comes to one.
pub(crate) enum Made<'a> {
    /// Somebody has put one back, or was quicker.
    Meanwhile(Box<Parked>),
    /// To be made; hold this until it is.
    ByYou(#[expect(dead_code, reason = "held, not read")] Option<SemaphorePermit<'a>>),
}

/// A run that goes on; dropped with it.
pub(crate) struct Running<'a>(&'a Pool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_one();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(config: PoolConfig) -> Self {
        let makers = config.makers.max(1);
        Self {
            config,
            state: Mutex::default(),
            changed: Notify::new(),
            starting: tokio::sync::Mutex::default(),
            running: AtomicUsize::new(0),
            makers: Semaphore::new(makers),
        }
    }

    pub(crate) fn running(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(self)
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
        let parked = shelf.take_well();
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

    /// Waits for the right to make one for a run that found none, or for one that was made meanwhile.
    pub(crate) async fn make_or_take(&self, wanted: &Wanted) -> Made<'_> {
        // Never closed; and without the right it would be made all the same.
        let right = self.makers.acquire().await.ok();
        let mut state = self.state();
        let shelf = state.shelves.get_mut(&wanted.profile.key);
        match shelf.and_then(Shelf::take_well) {
            Some(parked) => Made::Meanwhile(Box::new(parked)),
            None => Made::ByYou(right),
        }
    }

    pub(crate) fn lacks_memory(&self) -> bool {
        memory_is_short(&mut self.state(), self.config.memory_reserve_bytes)
    }

    /// Looks after the shelves, for ever.
    pub(crate) async fn tend(self: &Arc<Self>, engine: &Engine) {
        self.open_shelves(engine);
        loop {
            drop(self.look_after());
            self.replace_worn(engine);
            self.replace_exits(engine);
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
        if engine.names_hosts() {
            exits::expect(&mut self.state());
        }
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
        // A lone run shall not share the processors with what is made for later. When there are more runs than
        // processors nobody is alone, and what is not made now will be waited for in a moment.
        let busy = self.is_busy();
        let makers = if busy { 1 } else { self.config.makers };
        if making >= makers || making + waiting >= self.config.ceiling {
            return None;
        }
        if memory_is_short(&mut state, self.config.memory_reserve_bytes) {
            return None;
        }
        let now = Instant::now();
        let pressing = |one: &&mut Shelf| {
            let half = if busy { one.target / 2 } else { one.target };
            one.wants() > 0 && one.waiting.len() + one.making < half.max(1)
        };
        let shelves = state.shelves.values_mut().filter(pressing);
        let shelf = shelves.filter(|one| one.not_before <= now).max_by_key(|one| one.wants())?;
        shelf.making += 1;
        Some(shelf.profile.clone())
    }

    /// A few runs go on, and would notice what is made beside them.
    fn is_busy(&self) -> bool {
        (1..=self.config.makers).contains(&self.running.load(Ordering::Relaxed))
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
    fn look_after(&self) -> (Vec<Parked>, Vec<Exit>) {
        let mut state = self.state();
        let mut gone = Vec::new();
        let short = memory_is_short(&mut state, self.config.memory_reserve_bytes);
        let now = Instant::now();
        // Each look costs a call, and there may be a thousand; who takes one looks at that one anyway.
        let looks = state.looked.is_none_or(|last| now - last >= TICK);
        if looks {
            state.looked = Some(now);
        }
        let exits = if looks || short { state.exits.look_after(short) } else { Vec::new() };
        let window_ends = state.window.is_none_or(|began| now - began >= WINDOW);
        if window_ends {
            state.window = Some(now);
        }
        for shelf in state.shelves.values_mut() {
            if short {
                shelf.target = shelf.floor;
                gone.extend(shelf.waiting.drain(..));
            }
            if looks {
                let (well, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut shelf.waiting)
                    .into_iter()
                    .partition(|one| one.is_well() && one.age() < self.config.oldest);
                shelf.waiting = well;
                gone.extend(others);
            }
            if window_ends {
                gone.extend(shelf.shrink());
            }
        }
        let idle = self.config.oldest;
        state.shelves.retain(|_, one| {
            one.floor > 0 || one.making > 0 || !one.waiting.is_empty() || one.used.elapsed() < idle
        });
        state.let_go += gone.len() as u64;
        (gone, exits)
    }

    /// Whether the language's zygote can be copied, as far as is known.
    pub(crate) fn can_fork(&self, language: &Language) -> bool {
        let state = self.state();
        let broken = state.zygotes.get(&language.name).and_then(|one| one.broken.as_ref());
        broken.is_none_or(|(since, _)| since.elapsed() >= LONGEST_PAUSE)
    }

    /// A keeper, from the nursery, which is started if need be. One that has died is replaced here.
    pub(crate) async fn keeper(
        &self,
        engine: &Engine,
        kind: Option<&Kind>,
    ) -> Result<Spare, Error> {
        let current = self.state().nursery.clone();
        if let Some(nursery) = current
            && let Ok(spare) = nursery.keeper(kind).await
        {
            return Ok(spare);
        }
        let started = Nursery::start(engine.launcher(), engine.alive());
        let nursery = Arc::new(started.map_err(Error::backend("start a nursery"))?);
        let spare = nursery.keeper(kind).await.map_err(Error::backend("start a keeper"))?;
        let mut state = self.state();
        let before = if state.closed { Some(nursery) } else { state.nursery.replace(nursery) };
        drop(state);
        drop(before);
        Ok(spare)
    }

    /// What a profile's sandboxes are made from: planned now, unless that was done a moment ago.
    pub(crate) fn kind(
        &self,
        profile: &Profile,
        prepared: &Prepared<'_>,
    ) -> Result<Arc<Kind>, Error> {
        let known = self.state().kinds.get(&profile.key).cloned();
        if let Some(kind) = known.clone().filter(|one| one.serves(prepared.zygote_uid)) {
            return Ok(kind);
        }
        let kind = Arc::new(Kind::make(prepared, known.as_deref())?);
        let mut state = self.state();
        let kept = &mut state.kinds;
        kept.retain(|key, one| one.is_fresh() || *key == profile.key);
        if !state.closed {
            state.kinds.insert(profile.key.clone(), kind.clone());
        }
        Ok(kind)
    }

    pub(crate) fn forget_kind(&self, profile: &Profile) {
        self.state().kinds.remove(&profile.key);
    }

    fn current(&self, language: &str) -> Option<Arc<Zygote>> {
        self.state().zygotes.get(language).and_then(|brood| brood.current.clone())
    }

    /// Has it replaced before anybody misses it.
    pub(crate) fn forget(&self, language: &str, dead: &Arc<Zygote>) {
        let mut state = self.state();
        let brood = state.zygotes.entry(language.to_owned()).or_default();
        let gone = brood.current.take_if(|one| Arc::ptr_eq(one, dead));
        drop(state);
        drop(gone);
    }

    /// The language's zygote, which is started if need be.
    pub(crate) async fn zygote(
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
        let mut state = self.state();
        state.closed = true;
        let (shelves, zygotes) =
            (std::mem::take(&mut state.shelves), std::mem::take(&mut state.zygotes));
        let (nursery, kinds) = (state.nursery.take(), std::mem::take(&mut state.kinds));
        let exits = state.exits.clear();
        drop(state);
        drop((shelves, zygotes, nursery, kinds, exits));
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
            exits: state.exits.waiting(),
            exits_wanted: state.exits.wanted(),
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
    if let Some((_, short)) = state.memory.filter(|(at, _)| at.elapsed() < MEMORY_LOOK) {
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
