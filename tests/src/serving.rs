//! `belljar serve` with a directory of its own, stopped with the test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar::{Level, PoolStats, ShelfStats, StartRequest};
use rustix::process::Signal;

use crate::directory::TempDir;
use crate::processes::children;
use crate::program::{DEADLINE, Ended, Program, Running};
use crate::sandbox::Sandbox;

/// A server that listens on its Unix socket only, unless told otherwise.
#[derive(Debug)]
pub struct Server {
    /// Until it was waited for.
    running: Option<Running>,
    directory: Option<TempDir>,
    /// What it said until it was ready.
    lines: Vec<String>,
}

impl Drop for Server {
    /// Lets it clean up: what a killed server leaves, only the start of another removes.
    fn drop(&mut self) {
        if let Some(running) = self.running.take().filter(Running::is_running) {
            running.signal(Signal::INT);
            running.signal(Signal::TERM);
            running.ends_unread();
        }
        // Whoever took it over goes on with them.
        if let Some(directory) = &self.directory {
            end_sandboxes(&directory.join("state/sandboxes"));
        }
    }
}

impl Server {
    pub fn with(options: &[&str]) -> Self {
        Self::in_directory(TempDir::new(), options)
    }

    /// Starts one and waits until it listens.
    pub fn in_directory(directory: TempDir, options: &[&str]) -> Self {
        Self::started(directory, options, &[])
    }

    pub fn started(directory: TempDir, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut program = Self::program(&directory, options);
        for (name, value) in variables {
            program = program.env(name, value);
        }
        let mut running = program.start();
        let mut lines = Vec::new();
        // It says where it listens, and then what to try.
        loop {
            let line = running.read_line();
            assert!(line.starts_with("belljar: "), "{line:?}: {:?}", running.wait());
            let is_last = line.contains("try: ");
            lines.push(line);
            if is_last {
                return Self { running: Some(running), directory: Some(directory), lines };
            }
        }
    }

    /// `belljar serve` in this directory, with its words on standard output, where a test can wait for them.
    /// An option that is given stands in for the usual one.
    pub fn program(directory: &TempDir, options: &[&str]) -> Program {
        let inside = |name: &str| directory.join(name).display().to_string();
        let usual = [
            ("--listen", "none".to_owned()),
            ("--socket", inside("belljar.sock")),
            ("--state", inside("state")),
            ("--memory-reserve", "0".to_owned()), // others use this machine too
        ];
        let mut program = Program::new("/bin/sh")
            .args(["-c", "exec \"$@\" 2>&1", "sh"])
            .arg(crate::belljar_bin())
            .arg("serve")
            .args(options);
        for (name, value) in usual.into_iter().filter(|(name, _)| !options.contains(name)) {
            program = program.arg(name).arg(value);
        }
        program
    }

    /// What it said until it was ready.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub fn path(&self) -> &Path {
        self.directory.as_ref().expect("it runs").path()
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("belljar.sock")
    }

    pub fn id(&self) -> u32 {
        self.running().id()
    }

    pub fn signal(&self, signal: Signal) {
        self.running().signal(signal);
    }

    pub fn peak_memory(&self) -> u64 {
        self.running().peak_memory().expect("it runs")
    }

    /// The keepers and whatever else it has started and not reaped.
    pub fn children(&self) -> Vec<u32> {
        children(self.id())
    }

    /// Waits for its end; its directory can be used again.
    pub fn wait(mut self) -> (Ended, TempDir) {
        let running = self.running.take().expect("it runs");
        (running.wait(), self.directory.take().expect("it ran"))
    }

    /// What `belljar stats` says.
    pub fn stats(&self) -> PoolStats {
        let ended = self.stats_as(&["--json"]);
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    pub fn stats_as(&self, options: &[&str]) -> Ended {
        Program::belljar().arg("stats").arg("--server").arg(self.socket()).args(options).run()
    }

    /// The sandboxes of a kind that are kept, if any are.
    pub fn shelf(&self, language: &str, level: Level) -> Option<ShelfStats> {
        let shelves = self.stats().shelves.into_iter();
        shelves
            .filter(|one| one.language == language && one.level == level)
            .max_by_key(|one| one.hits)
    }

    /// Looks until the pool is so, for as long as a test may take: nothing else tells of it.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&PoolStats) -> bool) -> PoolStats {
        let step = Duration::from_millis(20);
        for _ in 0..DEADLINE.as_millis() / step.as_millis() {
            let stats = self.stats();
            if is_so(&stats) {
                return stats;
            }
            std::thread::park_timeout(step);
        }
        panic!("never: {what}: {:#?}", self.stats());
    }

    /// So many wait, and nothing is being made.
    pub fn wait_until_full(&self, waiting: usize) -> PoolStats {
        self.wait_until("full", |stats| stats.waiting == waiting && stats.making == 0)
    }

    pub fn warm(&self, level: Level) -> Sandbox {
        Sandbox::at(level).through(self, StartRequest::Warm)
    }

    pub fn cold(&self, level: Level) -> Sandbox {
        Sandbox::at(level).through(self, StartRequest::Cold)
    }

    pub fn any(&self, level: Level) -> Sandbox {
        Sandbox::at(level).through(self, StartRequest::Any)
    }
}

/// Those that stay outlive their server, and are nobody's when its directory is gone.
fn end_sandboxes(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        crate::block_on(async {
            if let Ok(Some(living)) = belljar::runtime::Living::connect(&entry.path()).await {
                living.kill().await.ok();
            }
        });
    }
}
