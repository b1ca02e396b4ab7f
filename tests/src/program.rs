//! Starting programs on the host and waiting for them, each with a deadline: a test never hangs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Longer than any run of a test on a loaded machine; what takes longer hangs.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A program of the host that is about to be started.
#[derive(Debug)]
pub struct Program {
    command: Command,
    stdin: Option<Vec<u8>>,
}

impl Program {
    #[expect(
        clippy::disallowed_methods,
        reason = "the tests start belljar as a user would, through the standard library"
    )]
    pub fn new(path: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(path), stdin: None }
    }

    /// The binary under test.
    pub fn belljar() -> Self {
        Self::new(crate::belljar_bin())
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<T: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// What it reads; without this, nothing.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Starts it and leaves it running.
    pub fn start(mut self) -> Running {
        let input = match &self.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        };
        self.command.stdin(input);
        self.start_with_stdin_as_set()
    }

    /// Starts it with an open standard input, which is written by [`Running::write`].
    pub fn start_interactive(mut self) -> Running {
        self.command.stdin(Stdio::piped());
        self.start_with_stdin_as_set()
    }

    fn start_with_stdin_as_set(mut self) -> Running {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown: Vec<OsString> = std::iter::once(self.command.get_program())
            .chain(self.command.get_args())
            .map(ToOwned::to_owned)
            .collect();
        let mut child =
            self.command.spawn().unwrap_or_else(|error| panic!("cannot start {shown:?}: {error}"));
        let stdin = child.stdin.take();
        let stdin = match (stdin, self.stdin) {
            (Some(mut pipe), Some(bytes)) => {
                // In a thread: a program that does not read must not stop the test. One that closes
                // its input early is in its right.
                thread::spawn(move || pipe.write_all(&bytes).ok());
                None
            }
            (stdin, _) => stdin,
        };
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let stderr = child.stderr.take().expect("stderr is piped");
        Running {
            child,
            stdin,
            stdout: Some(Box::new(stdout)),
            stderr: collect(stderr),
            deadline: Instant::now() + DEADLINE,
        }
    }

    /// Runs it with a new terminal for its output and gives back what the terminal got.
    pub fn run_on_terminal(mut self) -> Vec<u8> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a pseudo-terminal");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it is ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let path = Path::new(OsStr::from_bytes(name.as_bytes()));
        let theirs = || {
            let opened = File::options().read(true).write(true).open(path);
            Stdio::from(opened.expect("it can be opened"))
        };
        self.command.stdin(theirs()).stdout(theirs()).stderr(theirs());
        let mut child = self.command.spawn().expect("it can be started");
        // The command holds the other ends; when the program's are closed too, reading ends.
        drop(self.command);
        let shown = collect(File::from(ours));
        let pid = Pid::from_child(&child);
        assert!(ends_within(pid, DEADLINE), "{pid:?} hangs");
        child.wait().expect("it can be waited for");
        shown.recv_timeout(DEADLINE).expect("nobody else holds the terminal")
    }

    /// Runs it to its end.
    pub fn run(self) -> Ended {
        self.start().wait()
    }
}

/// A program that was started. Killed if the test drops it.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<Box<dyn BufRead + Send>>,
    stderr: Receiver<Vec<u8>>,
    deadline: Instant,
}

impl fmt::Debug for Running {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Running({})", self.child.id())
    }
}

impl Running {
    /// Gives it longer, or less, than programs usually have.
    pub fn within(mut self, time: Duration) -> Self {
        self.deadline = Instant::now() + time;
        self
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line on its standard output: how a test knows that the program came so far.
    pub fn read_line(&mut self) -> String {
        let mut reader = self.stdout.take().expect("stdout is not being read");
        let (send, receive) = channel();
        thread::spawn(move || {
            let mut line = String::new();
            let read = reader.read_line(&mut line);
            // The test may have given up on us.
            send.send((read, line, reader)).ok();
        });
        let left = self.deadline.saturating_duration_since(Instant::now());
        let (read, line, reader) = receive.recv_timeout(left).expect("a line before the deadline");
        read.expect("standard output can be read");
        self.stdout = Some(reader);
        line
    }

    pub fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(bytes).expect("the program reads");
        stdin.flush().expect("the program reads");
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it still runs");
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        !ends_within(self.pid(), Duration::ZERO)
    }

    /// Waits until its standard output is full because nobody reads it.
    pub fn wait_until_stuck(&self) {
        let pipe = File::options().write(true).open(format!("/proc/{}/fd/1", self.id()));
        let pipe = pipe.expect("its end of the pipe");
        // Not by its bytes: the kernel counts pages, and one may hold a single byte.
        let has_room = || {
            let mut look = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::OUT)];
            poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        while has_room() {
            assert!(self.is_running() && Instant::now() < self.deadline, "{self:?} fills no pipe");
            thread::yield_now();
        }
    }

    /// Whether it ends though nobody reads its standard output.
    pub fn ends_unread(&self) -> bool {
        ends_within(self.pid(), self.deadline.saturating_duration_since(Instant::now()))
    }

    /// The most memory that it has held so far, in bytes; nothing once it has ended.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    }

    /// Waits for its end and for the end of its output.
    pub fn wait(mut self) -> Ended {
        self.stdin = None;
        let stdout = collect(self.stdout.take().expect("stdout is not being read"));
        let left = || self.deadline.saturating_duration_since(Instant::now());
        assert!(ends_within(self.pid(), left()), "{self:?} hangs");
        let status = self.child.wait().expect("it can be waited for");
        // Whoever still holds the streams outlived the program.
        let stdout = stdout.recv_timeout(left()).expect("nobody else holds stdout");
        let stderr = self.stderr.recv_timeout(left()).expect("nobody else holds stderr");
        Ended {
            code: status.code(),
            signal: std::os::unix::process::ExitStatusExt::signal(&status),
            stdout,
            stderr,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a program that is gone already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// How a program of the host ended.
#[derive(Clone, PartialEq, Eq)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Ended {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, signal, .. } = self;
        let (stdout, stderr) = (self.out(), self.err());
        write!(out, "code {code:?}, signal {signal:?}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// Whether a process ends in time, told by its pidfd.
pub(crate) fn ends_within(pid: Pid, time: Duration) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true; // gone already
    };
    let mut waited = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    let timeout = Timespec::try_from(time).expect("a deadline that can be counted");
    poll(&mut waited, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

fn collect(mut stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok();
        // The test may have given up on us.
        send.send(bytes).ok();
    });
    receive
}
