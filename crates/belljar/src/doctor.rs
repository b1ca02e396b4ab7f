//! What this host can keep, level by level, and the command that would enable the rest.
//!
//! A level works when a run at it works: doctor tries, and explains only what failed.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::engine::Engine;
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
    /// Commands that would make it work.
    pub fixes: Vec<String>,
}

/// Something that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    pub name: String,
    pub found: String,
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
        Ok(outcome) => Some(format!("a trial run ended with {:?}", outcome.verdict)),
        Err(error) => Some(error.to_string()),
    };
    let fixes = match &problem {
        None => Vec::new(),
        Some(_) if level == Level::Maximum => Vec::new(),
        Some(_) => host.iter().filter_map(|fact| fact.fix.clone()).collect(),
    };
    LevelState { level, works: problem.is_none(), problem, fixes }
}

fn facts(engine: &Engine) -> Vec<Fact> {
    let host = engine.host();
    let mut facts = vec![landlock(host.landlock_abi)];
    if host.uid != 0 {
        facts.push(user_namespaces());
        facts.push(subordinate_ids(host.uid));
    }
    facts.push(cgroups(engine));
    facts
}

fn fact(name: &str, found: impl Into<String>, fix: Option<String>) -> Fact {
    Fact { name: name.to_owned(), found: found.into(), fix }
}

/// What each ABI still leaves open, so that nobody takes Landlock for more than it is there.
fn landlock(abi: Option<u32>) -> Fact {
    let Some(abi) = abi else {
        let fix = "boot with landlock in the kernel's lsm= list (Linux 5.13 or later)".to_owned();
        return fact("landlock", "absent", Some(fix));
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
    fact("landlock", format!("ABI {abi}; leaves open: {}", open.join(", ")), None)
}

/// The switches by which distributions keep user namespaces from ordinary users.
fn user_namespaces() -> Fact {
    let name = "user namespaces";
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let by_hand = |setting: &str| Some(format!("sudo sysctl -w {setting}"));
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1")
        && !Path::new(APPARMOR_PROFILE).exists()
    {
        let found = "restricted by AppArmor (kernel.apparmor_restrict_unprivileged_userns = 1)";
        return fact(name, found, Some("sudo belljar doctor --fix".to_owned()));
    }
    if read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        let fix = by_hand("kernel.unprivileged_userns_clone=1");
        return fact(name, "switched off (kernel.unprivileged_userns_clone = 0)", fix);
    }
    if read("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        let fix = by_hand("user.max_user_namespaces=15000");
        return fact(name, "none allowed (user.max_user_namespaces = 0)", fix);
    }
    fact(name, "not restricted", None)
}

fn subordinate_ids(uid: u32) -> Fact {
    let name = "subordinate ids";
    if !Path::new("/usr/bin/newuidmap").exists() {
        let fix = "sudo apt-get install uidmap".to_owned();
        return fact(name, "newuidmap is not installed; strict needs it", Some(fix));
    }
    match crate::native::subordinate_ranges(uid) {
        Some((start, count)) => fact(name, format!("{count} from {start}"), None),
        None => {
            let fix = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER";
            fact(name, "no range for this user; strict needs one", Some(fix.to_owned()))
        }
    }
}

fn cgroups(engine: &Engine) -> Fact {
    let cgroups = &engine.host().cgroups;
    let fix = "sudo belljar doctor --fix --user $USER, or run with --allow-missing cgroup";
    let missing = matches!(cgroups, Cgroups::None(_));
    fact("cgroups", cgroups.to_string(), missing.then(|| fix.to_owned()))
}

fn languages(engine: &Engine) -> Vec<Fact> {
    let describe = |language: &crate::languages::Language| match language.find() {
        Ok(found) => {
            let version = language.probe_version(&found).unwrap_or_default();
            fact(&language.name, format!("{version} {}", found.path.display()), None)
        }
        Err(error) => fact(&language.name, "not installed", Some(error.reason)),
    };
    engine.languages().iter().map(describe).collect()
}

/// Where the profile that lets this binary make user namespaces is installed.
pub const APPARMOR_PROFILE: &str = "/etc/apparmor.d/belljar";
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-belljar.conf";
const DELEGATE_FILE: &str = "/etc/systemd/system/user@.service.d/60-belljar.conf";

/// One thing that `doctor --fix` would change, shown before it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    pub why: String,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Write a file, then run a command that makes it count.
    File { path: PathBuf, contents: String, then: Vec<String> },
    /// Make a directory of the cgroup tree and give it to a user. Does not survive a reboot.
    Delegate { directory: PathBuf, uid: u32, gid: u32 },
}

/// What is missing for ordinary users on this host; `user` is who cgroups are delegated to.
pub fn fixes(root: &Path, binary: &Path, user: Option<(u32, u32)>) -> Vec<Fix> {
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    let setting = |path: &str| fs::read_to_string(at(path)).unwrap_or_default().trim().to_owned();
    let mut fixes = Vec::new();
    let mut add_file = |why: &str, path: &str, contents: String, then: &[&str]| {
        let change = Change::File {
            path: at(path),
            contents,
            then: then.iter().map(|word| (*word).to_owned()).collect(),
        };
        fixes.push(Fix { why: why.to_owned(), change });
    };
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
        && !at(APPARMOR_PROFILE).exists()
    {
        let why = "AppArmor keeps user namespaces from ordinary users; this allows them to belljar";
        let then = ["apparmor_parser", "-r", APPARMOR_PROFILE];
        add_file(why, APPARMOR_PROFILE, apparmor_profile(binary), &then);
    }
    let mut sysctls = String::new();
    if setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        sysctls += "kernel.unprivileged_userns_clone = 1\n";
    }
    if setting("/proc/sys/user/max_user_namespaces") == "0" {
        sysctls += "user.max_user_namespaces = 15000\n";
    }
    if !sysctls.is_empty() {
        let why = "user namespaces are switched off for ordinary users";
        add_file(why, SYSCTL_FILE, sysctls, &["sysctl", "-p", SYSCTL_FILE]);
    }
    let systemd = at("/run/systemd/system").exists();
    if systemd && !at(DELEGATE_FILE).exists() {
        let why = "systemd delegates memory and pids to users by default, but not always cpu";
        let contents = "[Service]\nDelegate=cpu memory pids\n".to_owned();
        add_file(why, DELEGATE_FILE, contents, &["systemctl", "daemon-reload"]);
    }
    if let (false, Some((uid, gid))) = (systemd, user) {
        fixes.extend(delegations(root, uid, gid));
    }
    fixes
}

fn apparmor_profile(binary: &Path) -> String {
    format!(
        "# Lets belljar make user namespaces; everything else is as without a profile.\n\
         abi <abi/4.0>,\ninclude <tunables/global>\n\n\
         profile belljar {} flags=(unconfined) {{\n  userns,\n}}\n",
        binary.display()
    )
}

/// On a host without systemd: a directory for the user in each hierarchy that a run needs.
fn delegations(root: &Path, uid: u32, gid: u32) -> Vec<Fix> {
    let top = root.join("sys/fs/cgroup");
    let v1 = ["memory", "pids", "cpu", "cpuacct", "cpu,cpuacct"].map(|name| top.join(name));
    let present = v1.into_iter().filter(|path| path.is_dir() && !path.is_symlink());
    present
        .map(|path| path.join("belljar").join(uid.to_string()))
        .filter(|path| !path.exists())
        .map(|directory| Fix {
            why: "no cgroup is delegated to this user (until the next reboot)".to_owned(),
            change: Change::Delegate { directory, uid, gid },
        })
        .collect()
}

/// Carries out one fix. The caller has shown it and was told to go on.
pub fn apply(fix: &Fix) -> std::io::Result<()> {
    match &fix.change {
        Change::File { path, contents, then } => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, contents)?;
            let Some((program, args)) = then.split_first() else {
                return Ok(());
            };
            let args: Vec<std::ffi::OsString> = args.iter().map(Into::into).collect();
            let output = belljar_sys::spawn::output(program, &args)?;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(std::io::Error::other(format!("{program} failed: {said}")))
        }
        Change::Delegate { directory, uid, gid } => {
            fs::create_dir_all(directory)?;
            let owner = (Some(*uid), Some(*gid));
            std::os::unix::fs::chown(directory, owner.0, owner.1)?;
            for file in ["cgroup.procs", "tasks"] {
                std::os::unix::fs::chown(directory.join(file), owner.0, owner.1)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host as `fixes` sees it, made of files.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("bj-doctor-{name}-{}", std::process::id()));
            for (path, contents) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, contents).unwrap();
            }
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn a_host_that_lacks_nothing_needs_no_fix() {
        let host = Fake::new("whole", &[("proc/sys/user/max_user_namespaces", "9000\n")]);
        assert_eq!(fixes(&host.0, Path::new("/usr/bin/belljar"), None), []);
    }

    #[test]
    fn an_apparmor_restriction_is_lifted_for_this_binary_only() {
        let restricted = "proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        let host = Fake::new("apparmor", &[(restricted, "1\n")]);
        let fixes = fixes(&host.0, Path::new("/opt/belljar"), None);
        let [Fix { change: Change::File { contents, then, .. }, .. }] = &fixes[..] else {
            panic!("{fixes:?}");
        };
        assert!(contents.contains("profile belljar /opt/belljar flags=(unconfined)"));
        assert_eq!(then[0], "apparmor_parser");
    }

    #[test]
    fn a_fix_that_is_in_place_is_not_offered_again() {
        let host = Fake::new("again", &[("proc/sys/kernel/unprivileged_userns_clone", "0\n")]);
        let binary = Path::new("/usr/bin/belljar");
        let offered = fixes(&host.0, binary, None);
        assert_eq!(offered.len(), 1);
        fs::write(host.0.join("proc/sys/kernel/unprivileged_userns_clone"), "1").unwrap();
        assert_eq!(fixes(&host.0, binary, None), []);
    }

    #[test]
    fn without_systemd_each_hierarchy_is_delegated_to_the_user() {
        let host = Fake::new(
            "v1",
            &[("sys/fs/cgroup/memory/tasks", ""), ("sys/fs/cgroup/pids/tasks", "")],
        );
        let fixes = fixes(&host.0, Path::new("/usr/bin/belljar"), Some((1000, 1000)));
        assert_eq!(fixes.len(), 2);
        let systemd = Fake::new("systemd", &[("run/systemd/system/x", "")]);
        let fixes = super::fixes(&systemd.0, Path::new("/usr/bin/belljar"), Some((1000, 1000)));
        assert!(matches!(&fixes[..], [Fix { change: Change::File { .. }, .. }]));
    }
}
