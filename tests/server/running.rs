//! A server under test: started with a directory of its own, stopped with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_tests::{DEADLINE, Ended, Program, Running, TempDir, belljar_bin};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Answer, Connection};

pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) socket: PathBuf,
    /// Until it was waited for.
    running: Option<Running>,
    directory: Option<TempDir>,
}

impl Drop for Server {
    /// Lets it clean up: what a killed server leaves, only the start of another removes.
    fn drop(&mut self) {
        if let Some(running) = self.running.take().filter(Running::is_running) {
            running.signal(Signal::INT);
            running.signal(Signal::TERM);
            running.ends_unread();
        }
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with more options and waits until it listens.
    pub(crate) fn with(options: &[&str]) -> Self {
        Self::started(TempDir::new(), options, &[])
    }

    pub(crate) fn started(
        directory: TempDir,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut program = program(&directory, options);
        for (name, value) in variables {
            program = program.env(name, value);
        }
        let mut running = program.start();
        let mut port = 0;
        // It says where it listens, and then what to try.
        loop {
            let line = running.read_line();
            assert!(line.starts_with("belljar: "), "{line:?}: {:?}", running.wait());
            if let Some(address) = line.trim_end().split("http://127.0.0.1:").nth(1) {
                let digits: String = address.chars().take_while(char::is_ascii_digit).collect();
                port = digits.parse().expect("a port");
            }
            if line.contains("try: ") {
                break;
            }
        }
        let socket = directory.join("belljar.sock");
        Self { port, socket, running: Some(running), directory: Some(directory) }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(crate) fn id(&self) -> u32 {
        self.running().id()
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.as_ref().expect("it runs").path()
    }

    pub(crate) fn unix(&self) -> Connection {
        Connection::unix(&self.socket)
    }

    pub(crate) fn tcp(&self) -> Connection {
        Connection::tcp(self.port)
    }

    pub(crate) fn token(&self) -> String {
        let text = fs::read_to_string(self.path().join("state/token")).expect("a token");
        text.trim().to_owned()
    }

    /// One run over the Unix socket.
    pub(crate) fn run(&self, request: &Value) -> Answer {
        self.unix().post("/v1/runs", &[], request)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running().signal(signal);
    }

    pub(crate) fn peak_memory(&self) -> u64 {
        self.running().peak_memory().expect("it runs")
    }

    /// Waits for its end. What it left in its directory can be looked at afterwards.
    pub(crate) fn wait(mut self) -> (Ended, TempDir) {
        let running = self.running.take().expect("it runs");
        (running.wait(), self.directory.take().expect("it ran"))
    }

    /// The keepers and whatever else it has started and not reaped.
    pub(crate) fn children(&self) -> Vec<u32> {
        children(self.id())
    }
}

/// `belljar serve` in this directory unless the options say otherwise, with its words on standard output,
/// where a test can wait for them.
pub(crate) fn program(directory: &TempDir, options: &[&str]) -> Program {
    let inside = |name: &str| directory.join(name).display().to_string();
    let usual = [
        ("--listen", "127.0.0.1:0".to_owned()),
        ("--socket", inside("belljar.sock")),
        ("--state", inside("state")),
        // Its children are then those of its runs; the suite `warm` has the pool.
        ("--pool", "0".to_owned()),
    ];
    let mut program = Program::new("/bin/sh")
        .args(["-c", "exec \"$@\" 2>&1", "sh"])
        .arg(belljar_bin())
        .arg("serve")
        .args(options);
    for (name, value) in usual.into_iter().filter(|(name, _)| !options.contains(name)) {
        program = program.arg(name).arg(value);
    }
    program
}

/// The children of any thread of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|one| fs::read_to_string(one.path().join("children")).ok());
    texts
        .flat_map(|text| {
            text.split_ascii_whitespace().filter_map(|one| one.parse().ok()).collect::<Vec<u32>>()
        })
        .collect()
}

/// Looks again until it is so, for as long as a test may take. For what has no event to wait for.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let step = Duration::from_millis(10);
    for _ in 0..DEADLINE.as_millis() / step.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(step);
    }
    panic!("never: {what}");
}

pub(crate) fn python(code: &str) -> Value {
    json!({ "language": "python", "code": code })
}

pub(crate) fn bash(code: &str) -> Value {
    json!({ "language": "bash", "code": code })
}

pub(crate) const LINES: (&str, &str) = ("Accept", "application/x-ndjson");
