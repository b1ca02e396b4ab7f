//! Programs of this host in place of execs in a sandbox.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_sys::spawn::{Talker, talker};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::super::channel::{Channel, Heard, Place, Soon, Start};
use crate::model::error::Error;
use crate::model::outcome::{FaultDomain, Stream, Verdict};
use crate::model::sandbox::ExecEnd;

#[derive(Debug)]
pub(super) struct Local {
    /// In place of /workspace.
    directory: PathBuf,
}

impl Local {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("contexts-{}-{number}", id()));
        std::fs::create_dir(&directory).unwrap();
        Self { directory }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

impl Place for Local {
    fn start(&self, _: String, program: Start) -> Soon<'_, Box<dyn Channel>> {
        Box::pin(async move {
            let mut environment = vec![
                ("PATH".to_owned(), OsString::from("/usr/bin:/bin")),
                ("HOME".to_owned(), self.directory.clone().into_os_string()),
                ("LANG".to_owned(), OsString::from("C.UTF-8")),
            ];
            environment.extend(program.env.into_iter().map(|(name, value)| (name, value.into())));
            // Whoever runs these tests in the background may ignore interrupts, and a shell cannot take that back. In a sandbox
            // it is done before the program is executed.
            let mut words = vec!["--default-signal=INT".to_owned()];
            words.extend(program.cmd.iter().cloned());
            let env = OsStr::new("/usr/bin/env");
            let mut talker = talker(env, &words, &environment, &self.directory).unwrap();
            let (stdin, stdout, stderr) = talker.streams().unwrap();
            #[expect(deprecated, reason = "an owned descriptor, which is never replaced")]
            let pidfd = AsyncFd::new(talker.pidfd().try_clone().unwrap()).unwrap();
            let info = format!("/proc/self/fdinfo/{}", talker.pidfd().as_raw_fd());
            let info = std::fs::read_to_string(info).unwrap();
            let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap();
            Ok(Box::new(Process {
                group: Pid::from_raw(pid.trim().parse().unwrap()).unwrap(),
                stdin: Sender::from_owned_fd(stdin).unwrap(),
                stdout: Receiver::from_owned_fd(stdout).unwrap(),
                stderr: Receiver::from_owned_fd(stderr).unwrap(),
                pidfd,
                talker: Some(talker),
            }) as Box<dyn Channel>)
        })
    }

    fn attach<'a>(&'a self, _: &'a str, _: [u64; 2]) -> Soon<'a, Option<Box<dyn Channel>>> {
        Box::pin(async { Ok(None) })
    }
}

#[derive(Debug)]
struct Process {
    group: Pid,
    stdin: Sender,
    stdout: Receiver,
    stderr: Receiver,
    pidfd: AsyncFd<std::os::fd::OwnedFd>,
    talker: Option<Talker>,
}

impl Process {
    fn left(&mut self) -> Option<Heard> {
        let mut bytes = vec![0; 1 << 16];
        for (stream, from) in [(Stream::Stdout, &self.stdout), (Stream::Stderr, &self.stderr)] {
            if let Ok(count @ 1..) = from.try_read(&mut bytes) {
                return Some(Heard::Output(stream, bytes[..count].to_vec()));
            }
        }
        None
    }

    fn ended(&mut self) -> Heard {
        let code = self.talker.take().and_then(Talker::end);
        let verdict = code.map_or(Verdict::Signaled { signal: 0 }, |code| Verdict::Exited { code });
        Heard::Ended(Some(ExecEnd {
            verdict,
            exit_code: code,
            signal: None,
            fault_domain: FaultDomain::Program,
            elapsed_ms: 0,
            cpu_ms: None,
            memory_peak_bytes: None,
        }))
    }
}

impl Channel for Process {
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> Soon<'a, ()> {
        Box::pin(async {
            self.stdin.write_all(bytes).await.map_err(Error::backend("write to a program"))
        })
    }

    fn hear(&mut self) -> Soon<'_, Heard> {
        Box::pin(async {
            let (mut out, mut err) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            let (stream, count, bytes) = tokio::select! {
                biased;
                Ok(count @ 1..) = self.stdout.read(&mut out) => (Stream::Stdout, count, out),
                Ok(count @ 1..) = self.stderr.read(&mut err) => (Stream::Stderr, count, err),
                _ = self.pidfd.readable() => {
                    return Ok(match self.left() {
                        Some(heard) => heard,
                        None => self.ended(),
                    });
                }
            };
            Ok(Heard::Output(stream, bytes[..count].to_vec()))
        })
    }

    fn signal(&mut self, number: i32) -> Soon<'_, ()> {
        Box::pin(async move {
            let signal = Signal::from_named_raw(number).unwrap();
            // Gone is as good.
            kill_process_group(self.group, signal).ok();
            Ok(())
        })
    }

    fn kill(&mut self) -> Soon<'_, ()> {
        self.signal(9)
    }
}
