//! The line to the keeper of a living sandbox: questions and answers by number, and how far execs have come.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_jail::living::talk::{
    Answer, Ask, MAX_PACKET_BYTES, Reach, Request, SOCKET, Word, packet, parse,
};
use belljar_sys::fd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixDatagram;
use tokio::sync::{oneshot, watch};

use crate::model::error::Error;

/// Of a keeper that stands still itself, or waits for a disk that does.
pub(super) const MUTE: &str = "its keeper does not answer";
/// How long it may take to answer what it knows.
const QUESTION: Duration = Duration::from_secs(2);
/// The same for what it does at once, though it may be busy.
const PROMPT: Duration = Duration::from_secs(10);
/// The same for what it has to do: a payload has 20 s to be set up, and programs 5 to die.
const ACT: Duration = Duration::from_secs(30);
/// A keeper that has not ended all in it by then is ended itself.
const KILLING: Duration = Duration::from_secs(15);

/// How long an answer is waited for.
fn patience(ask: &Ask) -> Duration {
    match ask {
        Ask::Usage | Ask::List => QUESTION,
        Ask::Stop { grace_ms } => ACT + Duration::from_millis(*grace_ms),
        Ask::Input { .. }
        | Ask::CloseInput { .. }
        | Ask::Resize { .. }
        | Ask::Signal { .. }
        | Ask::Follow { .. }
        | Ask::Unfollow { .. }
        | Ask::Freeze
        | Ask::Thaw
        | Ask::Hide
        | Ask::Touch
        | Ask::Rename { .. } => PROMPT,
        Ask::Exec | Ask::Agent | Ask::Renew | Ask::Egress | Ask::Network => ACT,
        Ask::Kill => KILLING,
    }
}

/// A connection. Its copies are the same one; with the last of them it is closed.
#[derive(Clone, Debug)]
pub(super) struct Line {
    shared: Arc<Shared>,
    _open: Arc<Open>,
}

/// An answer, and the descriptor that came with it.
type Answered = (Answer, Option<OwnedFd>);

#[derive(Debug)]
struct Shared {
    /// A sequenced-packet socket; tokio has no type of that name, and readiness is all we want of it.
    socket: UnixDatagram,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
    followed: Mutex<HashMap<String, watch::Sender<Reach>>>,
    gone: watch::Sender<bool>,
    /// The process at the other end; nothing where its number means nothing to us, in another pid namespace.
    keeper: Option<AsyncFd<OwnedFd>>,
}

/// Tells the reader that nobody listens to it any more.
#[derive(Debug)]
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        rustix::net::shutdown(&self.0.socket, rustix::net::Shutdown::Both).ok();
    }
}

impl Line {
    /// Connects; `None` when nobody listens there. In the runtime that will use it.
    pub(super) fn open(directory: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        // Named from its directory: the whole path may be longer than an address can be.
        let name = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        // Not to be waited for, if nobody is there to take it up.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match connect(&socket, &SocketAddrUnix::new(name)?) {
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            connected => connected?,
        }
        #[expect(deprecated, reason = "an owned descriptor, which is never replaced")]
        let keeper = keeper_of(&socket).map(AsyncFd::new).transpose()?;
        let shared = Arc::new(Shared {
            socket: UnixDatagram::from_std(socket.into())?,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            followed: Mutex::default(),
            gone: watch::Sender::new(false),
            keeper,
        });
        tokio::spawn(hear(Arc::clone(&shared)));
        Ok(Some(Self { _open: Arc::new(Open(Arc::clone(&shared))), shared }))
    }

    /// Asks, and waits for the answer and the descriptor that may come with it.
    pub(super) async fn ask(
        &self,
        ask: Ask,
        bytes: &[u8],
        memory: Option<&OwnedFd>,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let shared = &self.shared;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let words = packet(&Request { id, ask: ask.clone() }, bytes)
            .ok_or_else(|| Error::backend("ask the sandbox")(io::ErrorKind::InvalidInput.into()))?;
        let (tell, answer) = oneshot::channel();
        lock(&shared.waiting).insert(id, tell);
        let fds: Vec<BorrowedFd<'_>> = memory.iter().map(AsFd::as_fd).collect();
        let within = patience(&ask);
        let answered = tokio::time::timeout(within, async {
            if shared.send(&words, &fds).await.is_err() || *shared.gone.borrow() {
                return Err(lost());
            }
            answer.await.map_err(|_| lost())
        });
        let answered = answered.await.unwrap_or(Err(Error::Lost { what: MUTE }));
        if answered.is_err() {
            lock(&shared.waiting).remove(&id);
        }
        answered
    }

    /// Ends a keeper that does not answer. All that it keeps ends with it, but for the files.
    pub(super) fn kill_keeper(&self) {
        if let Some(keeper) = &self.shared.keeper {
            belljar_sys::process::kill(keeper.get_ref().as_fd()).ok(); // gone is as good
        }
    }

    /// How far an exec has come, from now on.
    pub(super) async fn follow(&self, exec: &str) -> Result<watch::Receiver<Reach>, Error> {
        let receiver = {
            let mut followed = lock(&self.shared.followed);
            let sender = followed
                .entry(exec.to_owned())
                .or_insert_with(|| watch::Sender::new(Reach::default()));
            sender.subscribe()
        };
        let answer = self.ask(Ask::Follow { exec: exec.to_owned() }, &[], None).await?.0;
        if matches!(answer, Answer::Done) { Ok(receiver) } else { Err(super::unexpected(answer)) }
    }

    pub(super) async fn gone(&self) {
        let mut gone = self.shared.gone.subscribe();
        gone.wait_for(|gone| *gone).await.ok();
    }

    /// Whether the keeper has ended, or does within this time. A line that was closed is no end: one that has as many clients
    /// as it takes closes the next.
    pub(super) async fn ended(&self, within: Duration) -> bool {
        let Some(keeper) = &self.shared.keeper else {
            return tokio::time::timeout(within, self.gone()).await.is_ok();
        };
        // Readable is what a process is that has ended, reaped or not.
        matches!(tokio::time::timeout(within, keeper.readable()).await, Ok(Ok(_)))
    }
}

/// Who listens at the other end. It lives, as the connection was made, so the number is still its own.
fn keeper_of(socket: &OwnedFd) -> Option<OwnedFd> {
    let keeper = rustix::net::sockopt::socket_peercred(socket).ok()?.pid;
    pidfd_open(keeper, PidfdFlags::NONBLOCK).ok()
}

fn lost() -> Error {
    Error::Lost { what: "its keeper is gone" }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    async fn send(&self, words: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            self.socket.writable().await?;
            let sent =
                self.socket.try_io(Interest::WRITABLE, || Ok(fd::send(&self.socket, words, fds)?));
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    async fn receive(&self) -> io::Result<(Word, Option<OwnedFd>)> {
        let mut bytes = Vec::new();
        loop {
            self.socket.readable().await?;
            bytes.resize(MAX_PACKET_BYTES, 0);
            let received = self
                .socket
                .try_io(Interest::READABLE, || Ok(fd::receive(&self.socket, &mut bytes)?));
            let received = match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                result => result?,
            };
            if received.length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (word, _) = parse::<Word>(&bytes[..received.length])
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            return Ok((word, received.fds.into_iter().next()));
        }
    }
}

/// Passes on what the keeper says, until it is gone.
async fn hear(shared: Arc<Shared>) {
    while let Ok((word, fd)) = shared.receive().await {
        match word {
            Word::Answer { id, answer } => {
                if let Some(waiting) = lock(&shared.waiting).remove(&id) {
                    waiting.send((answer, fd)).ok(); // who asked may have given up
                }
            }
            Word::Reach { exec, reach } => {
                let mut followed = lock(&shared.followed);
                if reach.ended
                    && let Some(told) = followed.remove(&exec)
                {
                    told.send_replace(reach);
                } else if let Some(told) = followed.get(&exec) {
                    told.send_replace(reach);
                }
            }
        }
    }
    shared.gone.send_replace(true);
    lock(&shared.waiting).clear();
    lock(&shared.followed).clear();
}
