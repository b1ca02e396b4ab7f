//! A `belljar serve` that is measured: its own socket and state, ended with the benchmark.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::http::Client;
use crate::shell;

pub(super) const RUNS: &str = "/v1/runs";
const POOL: &str = "/v1/pool";
/// A thousand sandboxes on two busy cores take a good part of it.
const READY_LIMIT: Duration = Duration::from_secs(180);
const END_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    socket: PathBuf,
    port: u16,
    token: String,
}

impl Server {
    /// Starts one, and returns when it listens. `name` tells several of one benchmark apart.
    pub(super) fn start(belljar: &Path, scratch: &Path, name: &str, more: &[&str]) -> Result<Self> {
        Self::start_with(belljar, scratch, name, more, None)
    }

    /// The same with a settings file.
    pub(super) fn start_with(
        belljar: &Path,
        scratch: &Path,
        name: &str,
        more: &[&str],
        settings: Option<&Path>,
    ) -> Result<Self> {
        let (socket, state) = (scratch.join(format!("{name}.sock")), scratch.join(name));
        let log = scratch.join(format!("{name}.log"));
        let mut command = shell::command(belljar);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--rate", "off", "--socket"])
            .arg(&socket);
        command.arg("--state").arg(&state).args(more);
        command.envs(settings.map(|path| ("BELLJAR_CONFIG", path)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = command.spawn().context("cannot start belljar serve")?;
        let mut server = Self { child, socket, port: 0, token: String::new() };
        server.port = server.listening(&log)?;
        let token = fs::read_to_string(state.join("token")).context("it has no token")?;
        token.trim().clone_into(&mut server.token);
        Ok(server)
    }

    /// Its port, when its last line at the start was said.
    fn listening(&mut self, log: &Path) -> Result<u16> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let said = fs::read_to_string(log).unwrap_or_default();
            if said.contains("try: ") {
                let after = said.split("http://127.0.0.1:").nth(1).unwrap_or_default();
                let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
                return digits.parse().with_context(|| format!("no port in {said:?}"));
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("belljar serve ended with {status}: {said}");
            }
            ensure!(Instant::now() < deadline, "belljar serve does not listen: {said}");
            // It says so in a file, which has no event that we could wait for without more machinery.
            thread::park_timeout(LOOK_AGAIN);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn tcp(&self) -> Result<Client> {
        Client::tcp(self.port, &self.token)
    }

    pub(super) fn unix(&self) -> Result<Client> {
        Client::unix(&self.socket)
    }

    /// What the pool says of itself.
    pub(super) fn pool(&self) -> Result<Value> {
        self.unix()?.get(POOL)
    }

    /// Waits until this many sandboxes wait and none is being made: then the server does nothing.
    pub(super) fn settle(&self, waiting: usize) -> Result<()> {
        settle(&mut self.unix()?, waiting)
    }
}

/// The same over a connection that is open already.
pub(super) fn settle(client: &mut Client, waiting: usize) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let pool = client.get(POOL)?;
        // Those of older binaries have none that could be missing.
        let exits = pool["exits_wanted"].as_u64().unwrap_or(0);
        if pool["waiting"] == json!(waiting) && pool["making"] == json!(0) && exits == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the pool does not fill: {pool}");
        thread::park_timeout(LOOK_AGAIN);
    }
}

impl Drop for Server {
    /// As a user would end it; only one that does not go is killed, and told.
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            rustix::process::kill_process(pid, Signal::TERM).ok(); // it may just have ended
        }
        let deadline = Instant::now() + END_LIMIT;
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > deadline {
                shell::complain(format!(
                    "belljar serve (process {pid:?}) does not end; killing it"
                ));
                drop(self.child.kill());
                drop(self.child.wait());
                return;
            }
            thread::park_timeout(LOOK_AGAIN);
        }
    }
}
