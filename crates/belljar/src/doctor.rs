//! What this host can keep, level by level, and the command that would enable the rest.
//!
//! A level works when a run at it works: doctor tries, and explains only what failed.

pub mod fixes;

use std::path::Path;

use serde::Serialize;

use crate::engine::Engine;
use crate::model::error::Error;
use crate::model::level::Level;
use crate::model::request::RunRequest;
use crate::native::cgroups::Cgroups;

/// The whole picture.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    pub belljar: String,
    pub kernel: String,
    pub uid: u32,
    pub levels: Vec<LevelState>,
    pub host: Vec<Fact>,
    pub languages: Vec<Fact>,
}

/// Whether a level works here.
#[derive(Clone, Debug, Serialize)]
pub struct LevelState {
    pub level: Level,
    pub works: bool,
    /// Why it does not.
    pub problem: Option<String>,
    /// Commands for everything that it lacks, what lower levels lack too included.
    pub fixes: Vec<String>,
}

/// Something that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    pub name: String,
    pub found: String,
    /// The lowest level that cannot be without it.
    pub needed_from: Level,
    /// What would help, if it is not as it should be.
    pub fix: Option<String>,
}

impl Diagnosis {
    /// Whether the default level works: what doctor's exit code says.
    pub fn standard_works(&self) -> bool {
        self.levels.iter().any(|one| one.level == Level::Standard && one.works)
    }
}

/// Tries every level and looks at what they stand on.
pub async fn diagnose(engine: &Engine) -> Diagnosis {
    let host = facts(engine);
    let mut levels = Vec::new();
    for level in Level::ALL {
        levels.push(try_level(engine, level, &host).await);
    }
    Diagnosis {
        belljar: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: engine.host().kernel.clone(),
        uid: engine.host().uid,
        levels,
        host,
        languages: languages(engine),
    }
}

async fn try_level(engine: &Engine, level: Level, host: &[Fact]) -> LevelState {
    let request = RunRequest { level, ..RunRequest::command(["true"]) };
    let problem = match engine.run(request).await {
        Ok(outcome) if outcome.ok() => None,
        Ok(outcome) => {
            Some(Problem::plain(format!("a trial run ended with {:?}", outcome.verdict)))
        }
        Err(error) => Some(Problem::of(error)),
    };
    state(level, problem, host)
}

/// Why a trial failed, and what the error itself would do about it.
struct Problem {
    what: String,
    hint: Option<String>,
}

impl Problem {
    fn plain(what: String) -> Self {
        Self { what, hint: None }
    }

    fn of(error: Error) -> Self {
        match error {
            Error::Unavailable { missing, hint, .. } => {
                Self { what: format!("needs {missing}"), hint: Some(hint) }
            }
            Error::Spec(_)
            | Error::Screened(_)
            | Error::Setup { .. }
            | Error::NotVerified { .. }
            | Error::Backend { .. }
            | Error::Lost { .. }
            | Error::Busy { .. }
            | Error::Audit { .. }
            | Error::NotFound { .. }
            | Error::Conflict { .. }
            | Error::Budget { .. }
            | Error::Cancelled => Self::plain(error.to_string()),
        }
    }
}

/// A level with what it lacks itself. The error's own hint stands in where no fact explains it.
fn state(level: Level, problem: Option<Problem>, host: &[Fact]) -> LevelState {
    let Some(Problem { what, hint }) = problem else {
        return LevelState { level, works: true, problem: None, fixes: Vec::new() };
    };
    // Nothing that could be done here would be enough for maximum.
    let needed = host.iter().filter(|fact| fact.needed_from <= level && level < Level::Maximum);
    let fixes: Vec<String> = needed.filter_map(|fact| fact.fix.clone()).collect();
    let problem = match hint {
        Some(hint) if fixes.is_empty() => format!("{what}; {hint}"),
        Some(_) | None => what,
    };
    LevelState { level, works: false, problem: Some(problem), fixes }
}

fn facts(engine: &Engine) -> Vec<Fact> {
    let (host, root) = (engine.host(), Path::new("/"));
    let mut facts = vec![landlock(host.landlock_abi)];
    if host.uid != 0 {
        facts.push(user_namespaces(root));
        facts.push(subordinate_ids(root, crate::native::subordinate_ranges(host.uid)));
    }
    facts.push(cgroups(root, &host.cgroups, host.uid));
    facts
}

fn fact(name: &str, needed_from: Level, found: impl Into<String>, fix: Option<String>) -> Fact {
    Fact { name: name.to_owned(), found: found.into(), needed_from, fix }
}

/// What each ABI still leaves open, so that nobody takes Landlock for more than it is there.
fn landlock(abi: Option<u32>) -> Fact {
    let Some(abi) = abi else {
        let fix = "boot with landlock in the kernel's lsm= list (Linux 5.13 or later)".to_owned();
        return fact("landlock", Level::Basic, "absent", Some(fix));
    };
    let mut open = vec!["stat, chmod and times (seccomp refuses the latter at basic)"];
    for (since, gap) in [
        (3, "truncation"),
        (5, "device ioctls"),
        (6, "signals and abstract sockets: basic needs --allow-missing scopes"),
    ] {
        if abi < since {
            open.push(gap);
        }
    }
    let found = format!("ABI {abi}; leaves open: {}", open.join(", "));
    fact("landlock", Level::Basic, found, None)
}

/// The switches by which distributions keep user namespaces from ordinary users.
fn user_namespaces(root: &Path) -> Fact {
    let fact = |found: &str, fix| fact("user namespaces", Level::Standard, found, fix);
    let setting = |path: &str| fixes::setting(root, path);
    let by_hand = |setting: &str| Some(format!("sudo sysctl -w {setting}"));
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
        && !fixes::at(root, fixes::APPARMOR_PROFILE).exists()
    {
        let found = "restricted by AppArmor (kernel.apparmor_restrict_unprivileged_userns = 1)";
        return fact(found, Some("sudo belljar doctor --fix".to_owned()));
    }
    if setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        let fix = by_hand("kernel.unprivileged_userns_clone=1");
        return fact("switched off (kernel.unprivileged_userns_clone = 0)", fix);
    }
    if setting("/proc/sys/user/max_user_namespaces") == "0" {
        let fix = by_hand("user.max_user_namespaces=15000");
        return fact("none allowed (user.max_user_namespaces = 0)", fix);
    }
    fact("not restricted", None)
}

fn subordinate_ids(root: &Path, range: Option<(u32, u32)>) -> Fact {
    let fact = |found: &str, fix| fact("subordinate ids", Level::Strict, found, fix);
    if !fixes::at(root, "/usr/bin/newuidmap").exists() {
        let fix = "sudo apt-get install uidmap".to_owned();
        return fact("newuidmap is not installed", Some(fix));
    }
    match range {
        Some((start, count)) => fact(&format!("{count} from {start}"), None),
        None => {
            let fix = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER";
            fact("no range for this user", Some(fix.to_owned()))
        }
    }
}

fn cgroups(root: &Path, cgroups: &Cgroups, uid: u32) -> Fact {
    let missing = matches!(cgroups, Cgroups::None(_));
    let fix = missing.then(|| format!("{}, or run with --allow-missing cgroup", way_in(root, uid)));
    fact("cgroups", Level::Standard, cgroups.to_string(), fix)
}

/// How this user gets a cgroup.
fn way_in(root: &Path, uid: u32) -> String {
    let session = fixes::session(root, uid);
    match uid {
        0 => "as said there".to_owned(),
        // Delegated, but only root may move a process in from outside (cgroups(7), "Delegation").
        _ if session.exists() => format!("echo $$ | sudo tee {}/cgroup.procs", session.display()),
        _ => "sudo belljar doctor --fix --user $USER".to_owned(),
    }
}

fn languages(engine: &Engine) -> Vec<Fact> {
    let describe = |language: &crate::languages::Language| match language.find() {
        Ok(found) => {
            let version = language.probe_version(&found).unwrap_or_default();
            let found = format!("{version} {}", found.path.display());
            fact(&language.name, Level::None, found, None)
        }
        Err(error) => fact(&language.name, Level::None, "not installed", Some(error.reason)),
    };
    engine.languages().iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(name: &str, needed_from: Level) -> Fact {
        fact(name, needed_from, "absent", Some(format!("get {name}")))
    }

    fn unavailable(level: Level) -> Option<Problem> {
        let (missing, hint) = ("a cgroup".to_owned(), "allow it to be missing".to_owned());
        Some(Problem::of(Error::Unavailable { level, missing, hint }))
    }

    #[test]
    fn a_level_lists_only_what_it_lacks_itself() {
        let host = [
            lacking("landlock", Level::Basic),
            lacking("cgroups", Level::Standard),
            lacking("ids", Level::Strict),
        ];
        let fixes = |level| state(level, unavailable(level), &host).fixes;
        assert_eq!(fixes(Level::None), [""; 0]);
        assert_eq!(fixes(Level::Basic), ["get landlock"]);
        assert_eq!(fixes(Level::Standard), ["get landlock", "get cgroups"]);
        assert_eq!(fixes(Level::Strict).len(), 3);
        assert_eq!(fixes(Level::Maximum), [""; 0]);
        assert_eq!(state(Level::Basic, None, &host).fixes, [""; 0], "it works as it is");
    }

    #[test]
    fn the_errors_own_hint_stands_in_where_no_fact_explains_it() {
        let known = state(
            Level::Standard,
            unavailable(Level::Standard),
            &[lacking("cgroups", Level::Standard)],
        );
        assert_eq!(known.problem.as_deref(), Some("needs a cgroup"));
        let unknown = state(Level::Standard, unavailable(Level::Standard), &[]);
        assert_eq!(unknown.problem.as_deref(), Some("needs a cgroup; allow it to be missing"));
    }
}
