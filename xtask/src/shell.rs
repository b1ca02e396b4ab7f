//! The one place where xtask starts programs and prints words, so that every other module stays under the
//! workspace's bans and every program is started, watched and ended the same way.

use std::fmt::Display;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::processes;

/// How long a finished program's output may stay open. Longer means that something it started still holds it.
const OUTPUT_GRACE: Duration = Duration::from_secs(5);

/// What a watched program did.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) output: String,
    pub(crate) end: End,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    /// Said in words, because people read it and nothing decides on it.
    Failure(String),
}

/// Prints one line for people. Not `println!`, which panics when the reader has gone, as in `… | head`.
pub(crate) fn say(line: impl Display) {
    drop(writeln!(std::io::stdout(), "{line}"));
}

/// Prints one line about what went wrong.
pub(crate) fn complain(line: impl Display) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// A program to start. Developer commands run on trusted input, so the plain standard library will do.
#[expect(
    clippy::disallowed_methods,
    reason = "the ban protects the sandbox's own launches; xtask starts cargo, apt-get and test binaries"
)]
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some(host) = crate::bench::engine::host() {
        command.env("DOCKER_HOST", host);
    }
    command
}

/// The cargo that started us, so that the pinned toolchain is kept.
pub(crate) fn cargo() -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(repo_root()).stdin(Stdio::null());
    // What cargo told us of our own package. Some build scripts ask for these names, and would run again, with all that
    // stands on their crates, whenever somebody used cargo without us in between.
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if ours {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The root of the workspace.
pub(crate) fn repo_root() -> PathBuf {
    // Cargo sets the variable at run time too; a moved checkout makes the compiled-in path a lie.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs to the end with our own output streams; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end and returns standard output; anything but success is an error with what it complained of.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", shown(command), output.status, stderr.trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} printed text that is not UTF-8", shown(command)))
}

/// Like [`output`], with what it says on standard error shown as it comes: for builds that take minutes.
pub(crate) fn output_showing_errors(command: &mut Command) -> Result<String> {
    output(command.stderr(Stdio::inherit()))
}

/// Runs with both output streams echoed line by line and kept, for at most `limit`; then it and all that it started die.
///
/// It stays in our process group, so that Ctrl-C at the terminal reaches it too.
///
/// Only one program may be watched at a time: the wait takes *any* child that ends. `adopt_orphans` makes the
/// orphans of a test our children, and a test that checks that a killed process is gone must not find its zombie.
pub(crate) fn watch(mut command: Command, limit: Duration) -> Result<Watched> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let name = shown(&command);
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    drop(command); // It holds our copies of the pipe's writing end, and the reader waits for the last one.
    let pid = Pid::from_child(&child);
    let (lines, ended) = (echo(reader), reap_until(pid));

    let mut end = match ended.recv_timeout(limit) {
        Ok(status) => describe(status?),
        Err(RecvTimeoutError::Timeout) => {
            kill_descendants()?;
            // Its end is awaited, or the waiting thread would take the children of the next program.
            ended
                .recv_timeout(OUTPUT_GRACE)
                .with_context(|| format!("{name} survives SIGKILL"))??;
            End::Failure(format!("killed after {} s without an end", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => bail!("the thread that waits for {name} died"),
    };
    let mut output = String::new();
    let deadline = Instant::now() + OUTPUT_GRACE;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => output.push_str(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if end == End::Success {
                    end =
                        End::Failure("a process that it left behind holds its output open".into());
                }
                break;
            }
        }
    }
    Ok(Watched { output, end })
}

/// Ends everything below us: the watched program and, with `adopt_orphans`, whatever hid from it.
pub(crate) fn kill_descendants() -> Result<()> {
    for pid in processes::descendants()? {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            continue;
        };
        match rustix::process::kill_process(pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno).with_context(|| format!("cannot kill {pid:?}")),
        }
    }
    Ok(())
}

/// Makes every orphan below us our child, so that what a test leaves behind can be found by parentage.
pub(crate) fn adopt_orphans() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the reaper of orphaned test processes")
}

/// Takes the zombies among our children, so that only living processes are counted as left behind.
pub(crate) fn reap_zombies() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// The command as one would type it, shortened to the program's name and its arguments.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    format!("`{}`", words.join(" "))
}

/// Echoes the stream and hands its lines on; the channel closes at the end of the stream.
fn echo(reader: PipeReader) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            say(text.strip_suffix('\n').unwrap_or(&text));
            line.clear();
            if send.send(text).is_err() {
                return; // The watcher gave up on the stream and has said so.
            }
        }
    });
    receive
}

/// Reaps every child that ends until it is `pid`, whose status is sent.
fn reap_until(pid: Pid) -> Receiver<Result<WaitStatus>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let status = loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((ended, status))) if ended == pid => break Ok(status),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => break Err(errno).context("cannot wait for a child"),
            }
        };
        // A watcher that timed out no longer listens; the process is reaped all the same.
        drop(send.send(status));
    });
    receive
}

fn describe(status: WaitStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => End::Success,
        (Some(code), _) => End::Failure(format!("exit code {code}")),
        (None, Some(signal)) => End::Failure(format!("killed by signal {signal}")),
        (None, None) => End::Failure("neither exited nor killed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, because only one program may be watched at a time in a process.
    #[test]
    fn watch_tells_success_failure_signal_timeout_and_held_output_apart() {
        let sh = |script: &str, limit| {
            let mut command = command("/bin/sh");
            command.args(["-c", script]);
            watch(command, Duration::from_millis(limit)).unwrap()
        };
        let fine = sh("echo one; echo two >&2", 20_000);
        assert_eq!((fine.output.as_str(), fine.end), ("one\ntwo\n", End::Success));
        assert_eq!(sh("exit 3", 20_000).end, End::Failure("exit code 3".into()));
        assert_eq!(sh("kill -9 $$", 20_000).end, End::Failure("killed by signal 9".into()));
        let End::Failure(why) = sh("exec sleep 60", 50).end else { panic!("it ran for a minute") };
        assert!(why.starts_with("killed after"), "{why}");
        let End::Failure(why) = sh("sleep 7 & exit 0", 20_000).end else { panic!("not noticed") };
        assert!(why.contains("holds its output open"), "{why}");
    }
}
