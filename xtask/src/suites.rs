//! The suites that need a real kernel: built once, then run as root and again as an ordinary user.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Scope;
use crate::cgroups::Delegation;
use crate::leaks::{self, Snapshot};
use crate::ordinary_user::User;
use crate::packages;
use crate::shell;
use crate::test::{Counts, Tally, libtest};
use crate::warm;

/// Test targets of `belljar-tests`, in the order of running. `leaks` looks at what the others left, so it comes last.
pub(crate) const SUITES: [&str; 18] = [
    "conformance",
    "escape",
    "events",
    "faults",
    "benign",
    "concurrency",
    "cli",
    "server",
    "audit",
    "grade",
    "evolve",
    "warm",
    "living",
    "secrets",
    "egress",
    "sdk",
    "mcp",
    "leaks",
];
/// These look at the whole host or at their neighbours' speed, so their tests do not run beside each other.
const ONE_AT_A_TIME: [&str; 2] = ["concurrency", "leaks"];
/// These run again in sandboxes that were made before there was a program.
const ALSO_WARM: [&str; 5] = ["conformance", "escape", "events", "benign", "leaks"];
/// Tests that the warm pass would only repeat: of levels that are never kept ready, and of how a sandbox is made,
/// which is the same however long it waits then.
const NOT_WARM: [&str; 3] = ["::none", "::basic", "readback::"];
const SUITE_LIMIT: Duration = Duration::from_secs(600);
/// More sandboxes at once than this only make a small machine swap; the concurrency suite makes its own.
const MOST_THREADS: usize = 4;

/// Runs the wanted suites and adds what they came to.
pub(crate) fn run(scope: &Scope, wanted: &BTreeSet<&str>, tally: &mut Tally) {
    let suites: Vec<_> = SUITES.into_iter().filter(|suite| wanted.contains(suite)).collect();
    if suites.is_empty() {
        return;
    }
    let mut stage = None;
    tally.step("build", || {
        let built = Stage::build(&suites)?;
        if suites.contains(&packages::WHEEL_SUITE) {
            packages::build_wheel(&built.directory)?;
        }
        stage = Some(built);
        Ok(Counts::one())
    });
    // Without binaries there is nothing to run, and the step has already failed.
    let Some(stage) = stage else { return };
    for identity in identities(scope, tally) {
        run_as(&identity, &stage, &suites, &scope.libtest, tally);
    }
}

/// As whom the suites run.
#[derive(Debug)]
pub(crate) enum Identity {
    Root,
    /// The account that root made for it.
    TestUser(User),
    /// We are an ordinary user ourselves.
    Myself,
}

impl Identity {
    fn word(&self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::TestUser(_) | Self::Myself => "ordinary",
        }
    }
}

/// As whom the suites can run here. Somebody who cannot be had and was not excluded is a failure, never a skip.
fn identities(scope: &Scope, tally: &mut Tally) -> Vec<Identity> {
    let mut found = Vec::new();
    if !scope.user_only {
        if shell::is_root() {
            found.push(Identity::Root);
        } else {
            tally.step("suites as root", || {
                bail!("not run: we are not root. hint: sudo cargo xtask test, or pass --user-only")
            });
        }
    }
    if !scope.root_only && shell::is_root() {
        tally.step("test user", || {
            found.push(Identity::TestUser(User::provide()?));
            Ok(Counts::one())
        });
    } else if !scope.root_only {
        found.push(Identity::Myself);
    }
    found
}

/// One pass over the suites as one identity, between two looks at the host.
fn run_as(
    identity: &Identity,
    stage: &Stage,
    suites: &[&str],
    libtest_args: &[String],
    tally: &mut Tally,
) {
    let word = identity.word();
    let test_uid = match identity {
        Identity::TestUser(user) => Some(user.uid),
        Identity::Root | Identity::Myself => None,
    };
    let (mut before, mut delegation) = (None, None);
    tally.step(&format!("prepare ({word})"), || {
        before = Some(Snapshot::take(test_uid)?);
        if let Identity::TestUser(user) = identity {
            delegation = Some(Delegation::prepare(user)?);
        }
        Ok(Counts::one())
    });
    let start_in = delegation.as_ref().and_then(|delegation| delegation.start_in.clone());
    for suite in suites {
        tally.step(&format!("{suite} ({word})"), || {
            let binary = stage.suites.get(*suite).context("the package has no such test target")?;
            let mut command = stage.command(binary, identity, start_in.as_deref());
            command.arg(format!("--test-threads={}", threads(suite))).args(libtest_args);
            libtest(command, SUITE_LIMIT)
        });
        if ALSO_WARM.contains(suite) {
            tally.step(&format!("{suite}, warm ({word})"), || {
                let server = warm::Server::start(stage, identity, start_in.as_deref())?;
                let binary =
                    stage.suites.get(*suite).context("the package has no such test target")?;
                let mut command = stage.command(binary, identity, start_in.as_deref());
                server.name_in(&mut command);
                for name in NOT_WARM {
                    command.args(["--skip", name]);
                }
                command.arg(format!("--test-threads={}", threads(suite))).args(libtest_args);
                let counts = libtest(command, SUITE_LIMIT)?;
                server.close(counts, libtest_args.is_empty())
            });
        }
    }
    // Before the second look, or our own cgroups would count as left behind.
    delegation.iter_mut().for_each(Delegation::remove);
    tally.step(&format!("leftovers ({word})"), || {
        let before = before.context("the host was not looked at before the suites")?;
        let left = before.left_since()?;
        leaks::end_processes()?; // Named first, then ended: the next pass begins on a quiet host.
        let failed = u32::try_from(left.len())?;
        Ok(if failed == 0 { Counts::one() } else { Counts { passed: 0, failed, why: left } })
    });
}

fn threads(suite: &str) -> usize {
    if ONE_AT_A_TIME.contains(&suite) {
        return 1;
    }
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS))
}

/// A directory that anyone may read, with every executable that the suites need. The checkout may lie where
/// the test user cannot look, such as /root.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: PathBuf,
    pub(crate) belljar: PathBuf,
    suites: BTreeMap<String, PathBuf>,
}

impl Stage {
    fn build(suites: &[&str]) -> Result<Self> {
        let built = build_tests(suites)?;
        // Not under our own name: what begins with it in /tmp counts as left behind.
        let directory = std::env::temp_dir().join(format!("xtask-stage-{}", std::process::id()));
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let mut stage = Self { directory, belljar: PathBuf::new(), suites: BTreeMap::new() };
        fs::set_permissions(&stage.directory, fs::Permissions::from_mode(0o755))?;
        stage.belljar = stage.add(&program(&built)?, "belljar")?;
        // The attackers are this binary, copied into sandboxes: with what a debugger wants it would not fit their disk.
        shell::run(shell::command("strip").arg("--strip-debug").arg(&stage.belljar))?;
        for artifact in built.iter().filter(|artifact| suites.contains(&artifact.name.as_str())) {
            let path = stage.add(&artifact.path, &artifact.name)?;
            stage.suites.insert(artifact.name.clone(), path);
        }
        Ok(stage)
    }

    /// Copied, never linked: a test that damages its binary must not damage the build's.
    fn add(&self, executable: &Path, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::copy(executable, &path)
            .with_context(|| format!("cannot copy {}", executable.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// `binary` as `identity`, with nothing in its environment but what the suites are promised.
    pub(crate) fn command(
        &self,
        binary: &Path,
        identity: &Identity,
        start_in: Option<&Path>,
    ) -> Command {
        let mut command = match identity {
            Identity::TestUser(user) => user.command(binary, start_in),
            Identity::Root | Identity::Myself => shell::command(binary),
        };
        command
            .current_dir(&self.directory)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("RUST_BACKTRACE", "1")
            .env("BELLJAR_BIN", &self.belljar)
            // Nobody listens here: a server of the developer must not run what the suites try.
            .env("BELLJAR_SOCKET", self.directory.join("no-server.sock"))
            .env("BELLJAR_TEST_DIR", &self.directory)
            // What the suites run is recorded, but not among the developer's own runs.
            .env("BELLJAR_STATE", state(identity.word()))
            .env("BELLJAR_MUST_RUN", "native")
            .env("BELLJAR_TEST_USER", identity.word())
            .envs(packages::variables());
        match identity {
            Identity::Root => {
                command.env("HOME", "/root").env("USER", "root");
            }
            Identity::TestUser(user) => {
                command.env("HOME", &user.home).env("USER", &user.name);
            }
            Identity::Myself => {
                // The last two lead to the user's own bus, which grants cgroup delegation on a systemd host.
                for name in ["HOME", "USER", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"] {
                    if let Some(value) = std::env::var_os(name) {
                        command.env(name, value);
                    }
                }
            }
        }
        command
    }
}

/// The state directory of a pass; belljar makes it.
fn state(word: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bj-state-{}-{word}", std::process::id()))
}

impl Drop for Stage {
    fn drop(&mut self) {
        for word in ["root", "ordinary"] {
            match fs::remove_dir_all(state(word)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    shell::complain(format!("cannot remove {}: {error}", state(word).display()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            shell::complain(format!("cannot remove {}: {error}", self.directory.display()));
        }
    }
}

/// Every package at once, whatever is wanted of them: cargo settles the features of crates that several share by what was
/// asked for together, so each other choice of packages would compile most of them again.
pub(crate) const SELECTED: [&str; 2] = ["test", "--workspace"];
/// The test target beside the command. Cargo builds the command with it.
pub(crate) const BESIDE_BELLJAR: &str = "program";

/// Builds the command and says where it lies.
pub(crate) fn build_belljar() -> Result<PathBuf> {
    program(&build_tests(&[])?)
}

/// The command and the suites.
fn build_tests(suites: &[&str]) -> Result<Vec<Artifact>> {
    let mut cargo = shell::cargo();
    cargo.args(SELECTED).arg("--no-run");
    for target in suites.iter().chain([&BESIDE_BELLJAR]) {
        cargo.args(["--test", target]);
    }
    executables(&mut cargo)
}

fn program(built: &[Artifact]) -> Result<PathBuf> {
    let belljar = built.iter().find(|artifact| artifact.name == "belljar");
    belljar.map(|found| found.path.clone()).context("cargo built no executable called belljar")
}

/// An executable that cargo made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub name: String,
    pub path: PathBuf,
}

/// Builds, and says what was made: where cargo puts things is its own business.
pub(crate) fn executables(cargo: &mut Command) -> Result<Vec<Artifact>> {
    let messages =
        shell::output_showing_errors(cargo.arg("--message-format=json-render-diagnostics"))?;
    messages.lines().filter_map(|line| artifact(line).transpose()).collect()
}

/// Reads one message of cargo. Wanted are test targets and programs; the unit-test binary that cargo also makes of a library
/// or program is neither.
fn artifact(line: &str) -> Result<Option<Artifact>> {
    let message: Value =
        serde_json::from_str(line).context("cargo printed a line that is not JSON")?;
    let Some(path) = message["executable"].as_str() else {
        return Ok(None);
    };
    let name =
        message["target"]["name"].as_str().context("cargo built something without a name")?;
    let is = |kind: &str| {
        message["target"]["kind"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|found| found == kind))
    };
    let is_test_build = message["profile"]["test"].as_bool().unwrap_or(false);
    if !is("test") && (is_test_build || !is("bin")) {
        return Ok(None);
    }
    Ok(Some(Artifact { name: name.to_owned(), path: PathBuf::from(path) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"],"name":"escape"}},"profile":{{"test":{test}}},"executable":"/t/escape-1"}}"#
        )
    }

    #[test]
    fn suites_and_their_programs_are_taken_and_unit_test_binaries_are_not() {
        for message in [message("test", true), message("bin", false)] {
            assert_eq!(artifact(&message).unwrap().unwrap().name, "escape");
        }
        assert_eq!(artifact(&message("bin", true)).unwrap(), None);
        assert_eq!(artifact(&message("lib", true)).unwrap(), None);
        assert_eq!(artifact(r#"{"reason":"build-finished","success":true}"#).unwrap(), None);
    }

    #[test]
    fn leaks_come_last() {
        assert_eq!(SUITES.last(), Some(&"leaks"));
        assert_eq!(threads("leaks"), 1);
    }
}
