//! The operator's policy: a file that says what keys and labels may ask for, read at the start, again when it changes,
//! and on SIGHUP. A file that cannot be read keeps the one before in force, and says so.

mod check;
mod outside;
mod rules;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar::sandbox::SandboxRequest;
use belljar::{Error, Level, LimitsRequest, RunRequest, ScreenMode, SpecError};
use serde::Serialize;

use crate::limits::Limiter;
use crate::principal::{Principal, Tenant};
use crate::problem::Problem;
use check::Section;
use rules::{PolicyFile, Rules};

/// A policy has some kilobytes.
const MOST_BYTES: u64 = 1 << 20;
/// How often it is looked whether the file has changed.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What is in force.
#[derive(Debug, Default)]
struct Loaded {
    file: PolicyFile,
    /// The rates of sections, by their names.
    limiters: HashMap<String, Limiters>,
    /// When it was read, in seconds since 1970; nothing without a file.
    since_s: Option<u64>,
}

#[derive(Debug)]
struct Limiters {
    runs: Option<Limiter>,
    requests: Option<Limiter>,
}

/// Tells one version of the file from the next.
type Version = (u64, u64, u64, i64, i64);

/// What is known of the file.
#[derive(Debug, Default)]
struct Seen {
    version: Option<Version>,
    /// Why what is in the file is not in force.
    error: Option<String>,
}

/// The policy of a server.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    path: Option<PathBuf>,
    loaded: RwLock<Arc<Loaded>>,
    seen: Mutex<Seen>,
    running: Arc<Mutex<HashMap<String, usize>>>,
}

/// What is told of the policy.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct PolicyState {
    /// `none`, `in_force`, or `stale`: the file is not what is in force.
    state: &'static str,
    file: Option<String>,
    /// When what is in force was read, in seconds since 1970.
    since_s: Option<u64>,
    /// Why the file is not in force.
    error: Option<String>,
    /// Sections by name.
    sections: Vec<String>,
}

/// What came of a look at the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    Same,
    Changed,
    Refused(String),
}

impl Policy {
    /// The policy in a file; the first one must be good.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self, Error> {
        let policy = Self { path, ..Self::default() };
        match policy.reload() {
            Reload::Refused(why) => Err(SpecError::new("policy", why).into()),
            Reload::Same | Reload::Changed => Ok(policy),
        }
    }

    pub(crate) fn has_file(&self) -> bool {
        self.path.is_some()
    }

    /// Looks at the file, and takes it over if it is another than before and good.
    pub(crate) fn look(&self) -> Reload {
        let Some(path) = &self.path else { return Reload::Same };
        let version = fs::metadata(path).ok().map(|status| version(&status));
        let known = self.seen.lock().unwrap_or_else(PoisonError::into_inner).version;
        if version == known { Reload::Same } else { self.reload() }
    }

    /// The same, whether it has changed or not.
    pub(crate) fn reload(&self) -> Reload {
        let Some(path) = &self.path else { return Reload::Same };
        let version = fs::metadata(path).ok().map(|status| version(&status));
        let read = read(path);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.version = version;
        match read {
            Ok(file) => {
                let loaded = Arc::new(Loaded::new(file));
                *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
                seen.error = None;
                Reload::Changed
            }
            Err(why) => {
                let why = format!("{}: {why}", path.display());
                seen.error = Some(why.clone());
                Reload::Refused(why)
            }
        }
    }

    pub(crate) fn state(&self) -> PolicyState {
        let loaded = self.loaded();
        let error = self.seen.lock().unwrap_or_else(PoisonError::into_inner).error.clone();
        let state = match (&self.path, &error) {
            (None, _) => "none",
            (Some(_), None) => "in_force",
            (Some(_), Some(_)) => "stale",
        };
        PolicyState {
            state,
            file: self.path.as_ref().map(|path| path.display().to_string()),
            since_s: loaded.since_s,
            error,
            sections: loaded.limiters.keys().cloned().collect(),
        }
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).error.is_some()
    }

    /// How long the audit trail is kept.
    pub(crate) fn retention(&self) -> Option<Duration> {
        self.loaded().file.server.retention
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The rules for somebody's request with these labels.
    pub(crate) fn of(&self, principal: &Principal, labels: &BTreeMap<String, String>) -> Applied {
        let loaded = self.loaded();
        let mut names = Vec::new();
        if loaded.since_s.is_some() {
            if let Some(key) = &principal.key {
                names.push(("default".to_owned(), Where::Default));
                if loaded.file.keys.contains_key(key) {
                    names.push((format!("keys.{key}"), Where::Key(key.clone())));
                }
            }
            for (label, _) in check::labelled(&loaded.file.labels, labels) {
                names.push((format!("labels.\"{label}\""), Where::Label(label.to_owned())));
            }
        }
        let is_tenant = principal.tenant != Tenant::Owner;
        Applied { loaded, names, who: principal.quota_name(), is_tenant }
    }

    /// A place among the runs of a tenant, by the least of the rules that count them.
    pub(crate) fn enter(&self, applied: &Applied, runs: usize) -> Result<Running, Problem> {
        self.enter_all(std::slice::from_ref(applied), runs)
    }

    /// The same for requests that come together, by the rules of each of them.
    pub(crate) fn enter_all(&self, all: &[Applied], runs: usize) -> Result<Running, Problem> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let who = all.first().map(|applied| applied.who.clone()).unwrap_or_default();
        let now = running.get(&who).copied().unwrap_or(0);
        for section in all.iter().flat_map(Applied::sections) {
            let Some(most) = section.rules.concurrent_runs else { continue };
            if now + runs > most {
                let rule = format!("{}.concurrent_runs", section.name);
                let detail = format!("{now} runs go on, and {most} may at once (rule {rule})");
                return Err(quota(&rule, detail));
            }
        }
        *running.entry(who.clone()).or_default() += runs;
        drop(running);
        Ok(Running { all: Arc::clone(&self.running), who, runs })
    }
}

/// A quota that is used up for now.
pub(crate) fn quota(rule: &str, detail: String) -> Problem {
    let mut problem = Problem::coded("quota", detail);
    let refusal = crate::problem::Refusal { rule: rule.to_owned(), retry_after_s: Some(1) };
    problem.refusal = Some(Box::new(refusal));
    problem
}

/// Runs of a tenant that go on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    all: Arc<Mutex<HashMap<String, usize>>>,
    who: String,
    runs: usize,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let left = all.get(&self.who).map_or(0, |now| now.saturating_sub(self.runs));
        if left == 0 {
            all.remove(&self.who);
        } else {
            all.insert(self.who.clone(), left);
        }
    }
}

#[derive(Debug)]
enum Where {
    Default,
    Key(String),
    Label(String),
}

/// The sections that apply to a request.
#[derive(Debug)]
pub(crate) struct Applied {
    loaded: Arc<Loaded>,
    names: Vec<(String, Where)>,
    who: String,
    is_tenant: bool,
}

impl Applied {
    fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        let file = &self.loaded.file;
        self.names.iter().filter_map(move |(name, place)| {
            let rules: &Rules = match place {
                Where::Default => &file.default,
                Where::Key(key) => file.keys.get(key)?,
                Where::Label(label) => file.labels.get(label)?,
            };
            Some(Section { name, rules })
        })
    }

    pub(crate) fn check_run(&self, asked: &mut RunRequest, above: &str) -> Result<(), Problem> {
        self.check_egress(&format!("{above}egress"), &asked.egress)?;
        self.check_secrets(&format!("{above}secrets"), &asked.secrets)?;
        self.sections().try_for_each(|section| section.check_run(asked, above))
    }

    pub(crate) fn check_parts(
        &self,
        level: Level,
        limits: &mut LimitsRequest,
        language: Option<&str>,
    ) -> Result<(), Problem> {
        self.sections().try_for_each(|section| section.check_parts(level, limits, language))
    }

    pub(crate) fn check_sandbox(&self, asked: &mut SandboxRequest) -> Result<(), Problem> {
        self.check_egress("egress", &asked.egress)?;
        self.check_secrets("secrets", &asked.secrets)?;
        self.sections().try_for_each(|section| section.check_sandbox(asked))
    }

    /// Whether a directory of the host may be a workspace: some rule must say so, and none otherwise. Given back is the
    /// path that was looked at, without links: the one that was asked for may lead elsewhere by now.
    pub(crate) fn check_workspace(&self, path: &Path) -> Result<PathBuf, Problem> {
        let real = fs::canonicalize(path).unwrap_or_default();
        let told: Vec<_> = self.sections().filter_map(|one| one.workspace(&real)).collect();
        if told.is_empty() {
            let reason = "names a directory of the server's host, which only its own user may do, over the \
                          socket, unless the policy lists it in workspaces: use a volume, or send files";
            return Err(Problem::field("workspace.path", reason));
        }
        told.into_iter().collect::<Result<(), Problem>>()?;
        Ok(real)
    }

    /// Whether cases may take so long.
    pub(crate) fn case_times<'a>(
        &self,
        field: &str,
        cases: impl IntoIterator<Item = &'a belljar::grade::Case>,
    ) -> Result<(), Problem> {
        for (index, case) in cases.into_iter().enumerate() {
            let field = format!("{field}[{index}].timeout_ms");
            self.sections().try_for_each(|section| section.time(case.timeout_ms, &field))?;
        }
        Ok(())
    }

    pub(crate) fn language(&self, language: Option<&str>) -> Result<(), Problem> {
        self.sections().try_for_each(|section| section.language(language, true, ""))
    }

    /// Whether a program may be started by its name.
    pub(crate) fn command(&self) -> Result<(), Problem> {
        self.sections().try_for_each(|section| section.language(None, false, ""))
    }

    pub(crate) fn timeout(&self, asked: Option<u64>) -> Result<(), Problem> {
        self.sections().try_for_each(|section| section.time(asked, "timeout_ms"))
    }

    pub(crate) fn screen(&self, mode: &mut ScreenMode) {
        self.sections().for_each(|section| section.screen(mode));
    }

    /// The fewest sandboxes that any rule allows, with its name.
    pub(crate) fn most_sandboxes(&self) -> Option<(String, usize)> {
        let most = |one: Section<'_>| {
            one.rules.sandboxes.map(|most| (format!("{}.sandboxes", one.name), most))
        };
        self.sections().filter_map(most).min_by_key(|(_, most)| *most)
    }

    /// The rates of runs that count for it, and whether each is for labels, which a caller chooses.
    pub(crate) fn run_rates(&self) -> impl Iterator<Item = (&str, &Limiter, bool)> {
        self.names.iter().filter_map(|(name, place)| {
            let limiter = self.loaded.limiters.get(name)?.runs.as_ref()?;
            Some((name.as_str(), limiter, matches!(place, Where::Label(_))))
        })
    }

    /// The rates of requests that count for it.
    pub(crate) fn request_rates(&self) -> impl Iterator<Item = (&str, &Limiter)> {
        self.names.iter().filter_map(|(name, _)| {
            Some((name.as_str(), self.loaded.limiters.get(name)?.requests.as_ref()?))
        })
    }
}

impl Loaded {
    fn new(file: PolicyFile) -> Self {
        let of = |rules: &Rules| Limiters {
            runs: rules.rate.map(Limiter::new),
            requests: rules.requests.map(Limiter::new),
        };
        let mut limiters = HashMap::from([("default".to_owned(), of(&file.default))]);
        limiters.extend(file.keys.iter().map(|(key, rules)| (format!("keys.{key}"), of(rules))));
        let labels = file.labels.iter();
        limiters.extend(labels.map(|(label, rules)| (format!("labels.\"{label}\""), of(rules))));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { file, limiters, since_s: Some(now) }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn parse_for_test(text: &str) -> Result<(), String> {
    PolicyFile::parse(text).map(drop)
}

fn read(path: &Path) -> Result<PolicyFile, String> {
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let status = file.metadata().map_err(|error| error.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if status.mode() & 0o022 != 0 || (status.uid() != own && status.uid() != 0) {
        return Err(
            "must be your own or root's, and writable by its owner alone: chmod go-w".to_owned()
        );
    }
    let mut text = String::new();
    let read: io::Result<usize> = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    let length = read.map_err(|error| error.to_string())?;
    if length as u64 > MOST_BYTES {
        return Err(format!("has more than {MOST_BYTES} bytes"));
    }
    PolicyFile::parse(&text)
}

fn version(status: &fs::Metadata) -> Version {
    (status.dev(), status.ino(), status.len(), status.mtime(), status.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Principal;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bj-policy-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_bad_file_keeps_the_one_before_and_says_so() {
        let path = file("bad", "[default]\nlanguages = [\"bash\"]\n");
        let policy = Policy::open(Some(path.clone())).unwrap();
        let (key, labels) = (Principal::of_key_for_test("ci"), BTreeMap::new());
        let mut asked = RunRequest::code("python", "1");
        assert!(policy.of(&key, &labels).check_run(&mut asked, "").is_err());
        assert!(
            policy.of(&Principal::of_owner_for_test(), &labels).check_run(&mut asked, "").is_ok()
        );
        fs::write(&path, "[default\n").unwrap();
        assert!(matches!(policy.look(), Reload::Refused(why) if why.contains("TOML")));
        assert_eq!(policy.look(), Reload::Same, "told once");
        assert_eq!((policy.state().state, policy.is_stale()), ("stale", true));
        assert!(policy.of(&key, &labels).check_run(&mut asked, "").is_err(), "the old one holds");
        fs::write(&path, "[keys.ci]\nlanguages = [\"python\"]\n").unwrap();
        assert_eq!(policy.look(), Reload::Changed);
        assert!(policy.of(&key, &labels).check_run(&mut asked, "").is_ok());
        assert_eq!((policy.state().state, policy.is_stale()), ("in_force", false));
        fs::remove_file(&path).unwrap();
        assert!(
            matches!(policy.look(), Reload::Refused(_)),
            "a file that is gone is no permission"
        );
        assert!(policy.is_stale());
    }

    #[test]
    fn a_first_file_that_is_bad_is_an_error() {
        let path = file("first", "x = 1");
        assert!(Policy::open(Some(path.clone())).unwrap_err().to_string().contains("policy"));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn runs_of_a_tenant_are_counted_until_they_end() {
        let path = file("count", "[keys.ci]\nconcurrent_runs = 2\n");
        let policy = Policy::open(Some(path.clone())).unwrap();
        let labels = BTreeMap::new();
        let applied = policy.of(&Principal::of_key_for_test("ci"), &labels);
        let first = policy.enter(&applied, 1).unwrap();
        let _second = policy.enter(&applied, 1).unwrap();
        let told = policy.enter(&applied, 1).unwrap_err();
        assert_eq!((told.status, &*told.kind), (429, "quota"));
        assert_eq!(told.refusal.unwrap().rule, "keys.ci.concurrent_runs");
        let other = policy.of(&Principal::of_key_for_test("other"), &labels);
        policy.enter(&other, 5).unwrap();
        drop(first);
        policy.enter(&applied, 1).unwrap();
        fs::remove_file(path).unwrap();
    }
}
