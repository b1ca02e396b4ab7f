//! The one entry: everything that runs, runs through an Engine.

mod counts;
mod run;
mod unseen;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use belljar_jail::plan::{Fault, Hold};

use crate::attack;
use crate::audit::{Asked, AuditConfig, Caller, Recorder};
use crate::egress::{Network, settings_files};
use crate::execution_id::new_id;
use crate::languages::{Interpreter, Language, Languages};
use crate::model::error::{Error, SpecError};
use crate::model::level::Level;
use crate::model::outcome::Outcome;
use crate::model::request::RunRequest;
use crate::model::screening::ScreenMode;
use crate::model::secret::{self, SecretRequest};
use crate::model::spec::{LanguageFacts, Program, Spec};
use crate::native::alive::Alive;
use crate::native::cgroups::{Cgroups, Places};
use crate::native::host::Host;
use crate::native::kind::Kind;
use crate::native::park::{Holdings, Parked};
use crate::native::run::{Ahead, Keeper, Spare};
use crate::native::zygote::Zygote;
use crate::native::{self, Prepared};
use crate::pool::{Pool, PoolConfig, PoolStats, Profile};
use crate::screen::{Gate, Screener, Sources};
use crate::secrets::{Given, SecretPlaces};

pub use counts::{ByWord, RunCounts};
pub use run::Run;

/// Zygotes that may die before one makes the copy that is wanted.
const MOST_ZYGOTES: usize = 10;

/// Takes one of our own roles if this process was started for it. Call it first in `main`, before any
/// thread exists; when it answers, return that code at once.
pub fn enter_role() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    if role == belljar_jail::KEEPER_ROLE {
        return Some(ExitCode::from(belljar_jail::keeper::main()));
    }
    if role == belljar_jail::NURSERY_ROLE {
        return Some(ExitCode::from(belljar_jail::nursery::main()));
    }
    if role == belljar_jail::LIVING_ROLE {
        return Some(ExitCode::from(belljar_jail::living::main()));
    }
    if role == belljar_jail::egress::EGRESS_ROLE {
        return Some(ExitCode::from(belljar_egress::main()));
    }
    let rest = || args.collect::<Vec<_>>();
    (role == attack::ROLE).then(|| ExitCode::from(attack::main_inside(&rest())))
}

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The binary that takes the keeper's role: one whose `main` calls [`enter_role`].
    pub launcher: PathBuf,
    /// Directories with language files, beside the built-in ones. Later ones win.
    pub language_directories: Vec<PathBuf>,
    /// Files with screening rules of one's own, beside the built-in ones. Later ones win.
    pub screen_rules: Vec<PathBuf>,
    /// What every run is screened by at least, whatever its request says.
    pub screen_least: ScreenMode,
    /// Keep sandboxes ready ahead of the runs that will want them: for a process that lives long.
    /// [`Engine::tend_pool`] must then be running.
    pub pool: Option<PoolConfig>,
    /// Record every run, and run nothing that cannot be recorded.
    pub audit: Option<AuditConfig>,
    /// Where the secrets are that requests name.
    pub secrets: SecretPlaces,
    /// What the operator decides about networks, before the settings files are read.
    pub network: Network,
    /// Files with such settings (`belljar.toml`), where they exist. Later ones win.
    pub settings_files: Vec<PathBuf>,
    /// Breaks each run at a set-up step; for tests of what a failure leaves behind.
    pub fault: Option<Fault>,
}

impl Default for Config {
    /// This binary as launcher; language files from `/etc/belljar/languages` and the user's own
    /// configuration directory.
    fn default() -> Self {
        let home = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
        let mut language_directories = vec![PathBuf::from("/etc/belljar/languages")];
        let settings_files = settings_files(home.as_deref());
        language_directories.extend(home.map(|home| home.join("belljar/languages")));
        let launcher = PathBuf::from("/proc/self/exe");
        let (screen_rules, screen_least) = (Vec::new(), ScreenMode::Off);
        Self {
            launcher,
            language_directories,
            screen_rules,
            screen_least,
            pool: None,
            audit: None,
            secrets: SecretPlaces::default(),
            network: Network::default(),
            settings_files,
            fault: None,
        }
    }
}

/// Runs requests. Cheap to share by reference; holds no run's data.
#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    host: Host,
    languages: Languages,
    screener: Arc<Screener>,
    alive: Alive,
    spare: Arc<Mutex<Option<Spare>>>,
    pool: Option<Arc<Pool>>,
    audit: Option<Recorder>,
    swept: Arc<Once>,
    counts: Arc<RunCounts>,
}

impl Engine {
    /// Looks at the host and reads the language files. What killed runs left behind is removed beside the
    /// first run.
    pub fn open(config: Config) -> Result<Self, Error> {
        if std::env::args_os().nth(1).is_some_and(|role| role == belljar_jail::KEEPER_ROLE) {
            // We were started as a keeper and are not one: going on would start ourselves for ever.
            let why = std::io::Error::other("main does not begin with belljar::enter_role()");
            return Err(Error::Backend { operation: "open an engine", source: why });
        }
        // First: it opens the trail beside what follows.
        let audit = config.audit.clone().map(Recorder::start).transpose();
        let audit = audit.map_err(Error::backend("start the thread that records"))?;
        let network = config.network.clone().load(&config.settings_files)?;
        let config = Config { network, ..config };
        let languages = Languages::load(&config.language_directories)?;
        let screener = Arc::new(Screener::new(&config.screen_rules)?);
        let host = Host::look();
        let (alive, spare) = (Alive::default(), Arc::default());
        let pool = config.pool.clone().map(|config| Arc::new(Pool::new(config)));
        let swept = Arc::new(Once::new());
        let counts = Arc::default();
        Ok(Self { config, host, languages, screener, alive, spare, pool, audit, swept, counts })
    }

    /// Gives the first run a keeper that was started ahead.
    #[must_use]
    pub fn with_keeper(self, ahead: Ahead) -> Self {
        let spare = Spare::take_over(ahead, &self.alive);
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
        self
    }

    /// Removes what killed runs left behind, the first time it is called.
    fn sweep_once(&self) {
        self.swept.call_once(|| native::sweep(&self.host));
    }

    /// The keeper that was started ahead, or a new one.
    fn keeper(&self) -> std::io::Result<Keeper> {
        let ahead = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        let spare = match ahead {
            Some(spare) => spare,
            None => Spare::start(&self.config.launcher, &self.alive)?,
        };
        Keeper::adopt(spare)
    }

    /// Keeps the pool as its configuration says, until dropped. Run it once, beside everything else, in
    /// the runtime that runs the requests.
    pub async fn tend_pool(&self) {
        self.sweep_once();
        match &self.pool {
            Some(pool) => pool.tend(self).await,
            None => std::future::pending().await,
        }
    }

    /// What the pool holds and has done; `None` without one.
    pub fn pool_stats(&self) -> Option<PoolStats> {
        self.pool.as_ref().map(|pool| pool.stats())
    }

    /// Lets go of every sandbox that waits, and of the zygotes, for good: no others are made.
    pub fn empty_pool(&self) {
        if let Some(pool) = &self.pool {
            pool.empty();
        }
    }

    /// As [`Self::park`], in a task of its own: whoever gives up waiting must not cost a zygote, which ends
    /// when its answer is not read.
    async fn park_apart(&self, pool: &Arc<Pool>, profile: &Profile) -> Result<Parked, Error> {
        let (engine, pool, profile) = (self.clone(), Arc::clone(pool), profile.clone());
        let made = tokio::spawn(async move { engine.park(&pool, &profile).await }).await;
        made.unwrap_or(Err(Error::Lost { what: "its sandbox was not made to the end" }))
    }

    /// Makes a sandbox of a profile, to wait for its program.
    pub(crate) async fn park(&self, pool: &Pool, profile: &Profile) -> Result<Parked, Error> {
        let language = self.languages.get(profile.language())?;
        let interpreter = language.find()?;
        if profile.hold != Hold::Forked {
            return self.park_one(pool, profile, &interpreter, None).await;
        }
        for _ in 0..MOST_ZYGOTES {
            let zygote = pool.zygote(self, language, &interpreter).await?;
            let parked = self.park_one(pool, profile, &interpreter, Some(&zygote)).await;
            if parked.is_ok() || zygote.serves() {
                return parked;
            }
            // It has died: another is started here, before anybody misses it.
            pool.forget(&language.name, &zygote);
        }
        Err(Error::Lost { what: "every zygote died before it was copied" })
    }

    async fn park_one(
        &self,
        pool: &Pool,
        profile: &Profile,
        interpreter: &Interpreter,
        zygote: Option<&Zygote>,
    ) -> Result<Parked, Error> {
        let mut prepared = Prepared {
            id: "",
            spec: &profile.spec,
            host: &self.host,
            cgroups: &Err(String::new()),
            language: Some(self.languages.get(profile.language())?),
            interpreter: Some(interpreter),
            keeper: 0,
            keep_workspace: false,
            hold: Some(profile.hold),
            zygote_uid: zygote.and_then(|zygote| zygote.ids).map(|(uid, _)| uid),
            egress: None,
            fault: self.config.fault,
        };
        // Where systemd makes a place for each sandbox, none is planned before it has its keeper.
        let kind = if matches!(self.host.cgroups, Cgroups::Scope { .. }) {
            None
        } else {
            let places = self.cgroups(&profile.spec, "", 0).await;
            Some(pool.kind(profile, &Prepared { cgroups: &places, ..prepared })?)
        };
        let spare = pool.keeper(self, kind.as_deref()).await?;
        let keeper = Keeper::adopt(spare).map_err(Error::backend("start a keeper"))?;
        let id = new_id()?;
        let cgroups = match kind {
            Some(_) => Err(String::new()),
            None => self.cgroups(&profile.spec, &id, keeper.id()).await,
        };
        (prepared.id, prepared.keeper, prepared.cgroups) = (&id, keeper.id(), &cgroups);
        let kind = kind.map_or_else(|| Kind::make(&prepared, None).map(Arc::new), Ok);
        match kind.and_then(|kind| Ok((kind.adopt(&prepared)?, kind))) {
            Ok(((planned, own, claim), kind)) => {
                let cgroup = planned.plan.cgroup.clone();
                let holdings = Holdings { claim, cgroup, exit: None };
                let made = Parked::make(keeper, planned, &kind, &own, holdings, zygote).await;
                if made.is_err() {
                    pool.forget_kind(profile); // the host may have changed since it was planned
                }
                made
            }
            Err(error) => {
                keeper.reap();
                Err(error)
            }
        }
    }

    pub(crate) fn alive(&self) -> &Alive {
        &self.alive
    }

    /// Waits until every run, those that were dropped too, has ended wholly; for so long at most. Says
    /// whether nothing of them is left. A dropped run takes milliseconds.
    pub async fn settle(&self, limit: Duration) -> bool {
        let gone = self.alive.settle(limit).await;
        // What was dropped has been recorded as that by then; if it cannot be, its start says enough.
        tokio::time::timeout(limit, self.recorded()).await.ok();
        gone
    }

    /// Whether what it runs is recorded in an audit trail.
    pub fn records(&self) -> bool {
        self.audit.is_some()
    }

    /// Waits until all that was to be recorded is kept. Without an audit trail that is now.
    pub async fn recorded(&self) -> Result<(), Error> {
        match &self.audit {
            Some(audit) => audit.flush().await,
            None => Ok(()),
        }
    }

    /// The values of secrets, as they are now.
    pub(crate) async fn secrets(&self, wanted: &[SecretRequest]) -> Result<Vec<Given>, Error> {
        given(&self.config.secrets, wanted).await
    }

    /// Where the secrets are that requests name.
    pub fn secret_places(&self) -> &SecretPlaces {
        &self.config.secrets
    }

    /// What the operator decided about networks.
    pub fn network(&self) -> &Network {
        &self.config.network
    }

    /// Where each set-up is broken on purpose.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.config.fault
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Whether the operator has named sets of hosts, so that somebody will want out.
    pub(crate) fn names_hosts(&self) -> bool {
        !self.config.network.sets.is_empty()
    }

    pub(crate) fn launcher(&self) -> &std::path::Path {
        &self.config.launcher
    }

    /// How runs ended so far.
    pub fn counts(&self) -> &RunCounts {
        &self.counts
    }

    pub fn languages(&self) -> &Languages {
        &self.languages
    }

    /// What reads code before it is run.
    pub fn screener(&self) -> &Screener {
        &self.screener
    }

    /// Runs one request to its end. Dropping the future ends the program and all it started.
    ///
    /// Must be awaited in a tokio runtime with I/O enabled.
    pub async fn run(&self, request: RunRequest) -> Result<Outcome, Error> {
        self.prepare(request)?.run(&mut |_, _| {}).await
    }

    /// The same without reading the code: for what we run ourselves.
    pub(crate) async fn run_unscreened(&self, request: RunRequest) -> Result<Outcome, Error> {
        let mut run = self.prepare(request)?;
        run.gate.mode = ScreenMode::Off;
        run.run(&mut |_, _| {}).await
    }

    /// Checks a request and makes it ready to run; see [`Run`] for output as it comes and results.
    pub fn prepare(&self, request: RunRequest) -> Result<Run<'_>, Error> {
        let (language, start) = (self.language_of(&request)?, request.start);
        let mode = request.screen.max(self.config.screen_least);
        let facts =
            language.map(|one| LanguageFacts { name: one.name.clone(), file: one.file.clone() });
        let asked = self.audit.as_ref().map(|_| Asked::new(&request));
        let egress = self.config.network.expand(&request.egress)?;
        let spec = Spec::resolve(RunRequest { egress, ..request }, facts.as_ref())?;
        secret::check_reach(&spec.secrets, &spec.egress)?;
        if spec.level == Level::Maximum {
            return Err(Error::Unavailable {
                level: Level::Maximum,
                missing: "a second kernel: gVisor (runsc) or a microVM, which this build does not drive yet".to_owned(),
                hint: "use --level strict".to_owned(),
            });
        }
        let interpreter = match &spec.program {
            Program::Code { .. } => language.map(Language::find).transpose()?,
            Program::Command { .. } => None,
        };
        let sources = match mode {
            ScreenMode::Off => Sources::default(),
            ScreenMode::Advise | ScreenMode::Refuse => Sources::of(&spec, &self.languages),
        };
        let gate = Gate::new(mode, &self.screener, sources);
        Ok(Run {
            engine: self,
            spec,
            language,
            interpreter,
            out: None,
            start,
            gate,
            event_sink: None,
            asked,
            caller: Caller::own(),
        })
    }

    /// The place of a run's cgroup. To ask for one may take a while, so other runs go on meanwhile.
    pub(crate) async fn cgroups(
        &self,
        spec: &Spec,
        id: &str,
        keeper: u32,
    ) -> Result<Places, String> {
        let host = &self.host;
        if !spec.level.has_namespaces() {
            return Err(format!("level {} has no cgroup", spec.level));
        }
        if !matches!(host.cgroups, Cgroups::Scope { .. }) {
            return host.cgroups.provide(host.uid, id, keeper);
        }
        let (cgroups, uid, id) = (host.cgroups.clone(), host.uid, id.to_owned());
        tokio::task::spawn_blocking(move || cgroups.provide(uid, &id, keeper))
            .await
            .unwrap_or_else(|error| Err(format!("asking for a scope broke: {error}")))
    }

    fn language_of(&self, request: &RunRequest) -> Result<Option<&Language>, SpecError> {
        if request.command.is_some() {
            return Ok(None);
        }
        if let Some(name) = &request.language {
            return self.languages.get(name).map(Some);
        }
        let name = request.entry.as_ref().or(request.file_name.as_ref()).map(PathBuf::from);
        let code = request.code.as_deref().unwrap_or_default();
        self.languages.detect(name.as_deref(), code).map(Some)
    }
}

/// The values of secrets, beside everything else: a command may take its time.
pub(crate) async fn given(
    places: &SecretPlaces,
    wanted: &[SecretRequest],
) -> Result<Vec<Given>, Error> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let (places, wanted) = (places.clone(), wanted.to_vec());
    let found = tokio::task::spawn_blocking(move || places.resolve(&wanted)).await;
    Ok(found.map_err(|_| Error::Lost { what: "a secret could not be asked for" })??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_does_not_open_where_a_keeper_was_wanted() {
        let own_name = "engine::tests::an_engine_does_not_open_where_a_keeper_was_wanted";
        let opened = Engine::open(Config::default());
        if std::env::args_os().nth(1).is_some_and(|role| role == belljar_jail::KEEPER_ROLE) {
            let message = opened.unwrap_err().to_string();
            let words = "cannot open an engine: main does not begin with belljar::enter_role()";
            assert_eq!(message, words);
            return;
        }
        assert!(opened.is_ok(), "{opened:?}");
        // Then as an engine starts its keeper: this test binary has a main that knows no role. Its
        // harness takes the role for one more name of a test.
        let args = [belljar_jail::KEEPER_ROLE, own_name, "--exact"].map(Into::into);
        let program = std::env::current_exe().unwrap();
        let ended = belljar_sys::spawn::output(program, &args).unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && told.contains("1 passed"), "{told}");
    }
}
