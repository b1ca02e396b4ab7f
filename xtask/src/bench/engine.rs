//! A Docker engine for the benchmarks that stand beside one: the host's own if that answers, else one of ours that is
//! started for them, with everything of it in the scratch directory, and ended after them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{prereqs, shell};

const PACKAGE: prereqs::Package = ("docker.io", "/usr/sbin/dockerd");
const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Where ours listens, for every `docker` that is started.
static HOST: OnceLock<String> = OnceLock::new();

pub(crate) fn host() -> Option<&'static str> {
    HOST.get().map(String::as_str)
}

/// One of ours; it ends with this.
#[derive(Debug)]
pub(super) struct Engine(Child);

/// None when the host has one, or none can be had: the contenders then say why they are absent.
pub(super) fn provide(scratch: &Path) -> Option<Engine> {
    if answers() || !shell::is_root() {
        return None;
    }
    prereqs::install_what_can_be(&[PACKAGE]);
    match start(scratch) {
        Ok(engine) => Some(engine),
        Err(error) => {
            shell::say(format!("no Docker engine: {error:#}"));
            None
        }
    }
}

fn answers() -> bool {
    shell::output(shell::command("docker").args(["version", "--format", "{{.Server.Version}}"]))
        .is_ok()
}

fn start(scratch: &Path) -> Result<Engine> {
    let place = scratch.join("docker");
    fs::create_dir_all(&place)?;
    let at = |name: &str| -> PathBuf { place.join(name) };
    let host = format!("unix://{}", at("socket").display());
    let mut command = shell::command(PACKAGE.1);
    // Containers here have no network, so it must touch none of the host's.
    command.args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--host", &host]);
    command.arg("--data-root").arg(at("data")).arg("--exec-root").arg(at("exec"));
    command.arg("--pidfile").arg(at("pid")).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(at("log"))?);
    let mut engine = Engine(command.spawn().context("cannot start dockerd")?);
    ensure!(HOST.set(host).is_ok(), "one was started already");
    let deadline = Instant::now() + START_LIMIT;
    while !answers() {
        if let Some(status) = engine.0.try_wait()? {
            bail!("dockerd ended with {status}");
        }
        ensure!(Instant::now() < deadline, "dockerd does not answer");
        thread::park_timeout(LOOK_AGAIN);
    }
    Ok(engine)
}

impl Drop for Engine {
    fn drop(&mut self) {
        // In good order, so that it unmounts what it mounted and ends what it started.
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed()) {
            kill_process(pid, Signal::TERM).ok(); // it may have ended by itself
        }
        drop(self.0.wait());
    }
}
