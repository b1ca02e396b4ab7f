//! The warm pass of a suite: a server whose sandboxes wait, and the share of runs that took one.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::shell;
use crate::suites::{Identity, Stage};
use crate::test::Counts;

/// Of a hundred runs at levels that are kept ready, at least so many must have been warm. The rest share a directory
/// with the host, want their files back, or are looked at through belljar's own process.
const LEAST_SHARE: usize = 60;
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(60);

/// `belljar serve` for one suite, as the user who runs it.
#[derive(Debug)]
pub(crate) struct Server {
    directory: PathBuf,
    process: Child,
    /// Its words, and then the end.
    words: Receiver<String>,
}

impl Server {
    pub(crate) fn start(
        stage: &Stage,
        identity: &Identity,
        start_in: Option<&Path>,
    ) -> Result<Self> {
        // Not under our own name: what begins with it in /tmp counts as left behind.
        let directory = std::env::temp_dir().join(format!("xtask-warm-{}", std::process::id()));
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        if let Identity::TestUser(user) = identity {
            chown(&directory, Some(user.uid), Some(user.gid))?;
        }
        let mut command = stage.command(&stage.belljar, identity, start_in);
        command
            .args(["serve", "--listen", "none", "--max-runs", "64", "--max-queue", "1000"])
            .args(["--drain", "1s", "--memory-reserve", "0"])
            .arg("--socket")
            .arg(directory.join("belljar.sock"))
            .arg("--state")
            .arg(directory.join("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().context("cannot start belljar serve")?;
        let stderr = process.stderr.take().context("its words are piped")?;
        let server = Self { directory, process, words: listen(stderr) };
        loop {
            match server.words.recv_timeout(START_LIMIT) {
                Ok(line) if line.contains("try: ") => return Ok(server),
                Ok(_) => {}
                Err(error) => bail!("belljar serve does not begin to listen: {error}"),
            }
        }
    }

    /// Tells a suite of it.
    pub(crate) fn name_in(&self, command: &mut Command) {
        command.env("BELLJAR_TEST_SERVER", self.directory.join("belljar.sock"));
        command.env("BELLJAR_TEST_NOTES", self.directory.join("notes"));
    }

    /// Ends it, and adds to the counts whether it ended well and whether enough was warm. A selection of tests may
    /// have no warm run at all.
    pub(crate) fn close(mut self, mut counts: Counts, is_whole: bool) -> Result<Counts> {
        let notes = fs::read_to_string(self.directory.join("notes")).unwrap_or_default();
        let warm = notes.lines().filter(|line| *line == "warm").count();
        let all = notes.lines().count();
        shell::say(format!("{warm} of {all} runs were warm"));
        if is_whole && warm * 100 < all * LEAST_SHARE {
            counts.failed += 1;
            counts.why.push(format!("{warm} of {all} runs were warm, not {LEAST_SHARE} %"));
        }
        let id = Pid::from_child(&self.process);
        kill_process(id, Signal::TERM).context("belljar serve died during the suite")?;
        // Its words end with it.
        while self.words.recv_timeout(END_LIMIT).is_ok() {}
        let status = self.process.wait().context("cannot wait for belljar serve")?;
        ensure!(status.success(), "belljar serve ended with {status}");
        Ok(counts)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails for one that has ended, as it has on every good path.
        self.process.kill().ok();
        self.process.wait().ok();
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            shell::complain(format!("cannot remove {}: {error}", self.directory.display()));
        }
    }
}

fn listen(stderr: ChildStderr) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}
