//! Who speaks with the keeper of a living sandbox.
//!
//! What is told of execs is a state, not a queue: a client that does not listen misses nothing but steps in between.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_sys::{Errno, Result, fd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
    sockopt,
};

use super::talk::{
    Answer, MAX_CLIENTS, MAX_PACKET_BYTES, Reach, Request, SOCKET, Word, packet, parse,
};

/// Connections that wait to be taken: enough for many a look at a keeper that is held up.
const BACKLOG: i32 = 256;

/// The socket in the sandbox's directory, and all who have come through it.
#[derive(Debug)]
pub(crate) struct Clients {
    listener: OwnedFd,
    all: Vec<Client>,
    next: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub number: u64,
    socket: OwnedFd,
    /// What was last told of each exec that it follows.
    follows: HashMap<String, Option<Reach>>,
    /// Something could not be told for lack of room.
    behind: bool,
}

/// What a client said.
#[derive(Debug)]
pub(crate) struct Said {
    pub request: Request,
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Clients {
    /// Makes the socket; one that a dead keeper left is replaced.
    pub(crate) fn open(directory: &OwnedFd) -> Result<Self> {
        match rustix::fs::unlinkat(directory, SOCKET, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &address(directory.as_fd())?)?;
        listen(&listener, BACKLOG)?;
        Ok(Self { listener, all: Vec::new(), next: 0 })
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>, bool)> {
        self.all.iter().map(|one| (one.number, one.socket.as_fd(), one.behind))
    }

    /// Takes who waits, if it is one of us or root.
    pub(crate) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else {
            return;
        };
        let own = rustix::process::geteuid();
        let ours =
            sockopt::socket_peercred(&socket).is_ok_and(|who| who.uid == own || who.uid.is_root());
        // Full: it is closed, which its maker sees at once.
        if ours && self.all.len() < MAX_CLIENTS {
            self.next += 1;
            let follows = HashMap::new();
            self.all.push(Client { number: self.next, socket, follows, behind: false });
        }
    }

    /// What a client said; `Err` when it is gone, or not to be understood: then it is let go.
    pub(crate) fn hear(&mut self, number: u64) -> Option<Said> {
        let client = self.all.iter().find(|one| one.number == number)?;
        let mut bytes = vec![0; MAX_PACKET_BYTES];
        let said = match fd::receive(&client.socket, &mut bytes) {
            Err(Errno::AGAIN) => return None,
            Ok(received) if received.length > 0 => parse::<Request>(&bytes[..received.length])
                .map(|(request, rest)| Said { request, bytes: rest.to_vec(), fds: received.fds }),
            Ok(_) | Err(_) => None,
        };
        if said.is_none() {
            self.drop_client(number);
        }
        said
    }

    fn drop_client(&mut self, number: u64) {
        self.all.retain(|one| one.number != number);
    }

    /// Answers. A client that has no room for its own answers is let go.
    pub(crate) fn answer(&mut self, to: (u64, u64), answer: Answer, fds: &[BorrowedFd<'_>]) {
        let (number, id) = to;
        let Some(client) = self.all.iter().find(|one| one.number == number) else {
            return;
        };
        let word = packet(&Word::Answer { id, answer }, &[]);
        let sent = word.ok_or(Errno::MSGSIZE).and_then(|word| fd::send(&client.socket, &word, fds));
        if sent.is_err() {
            self.drop_client(number);
        }
    }

    pub(crate) fn follow(&mut self, number: u64, exec: &str) {
        if let Some(client) = self.all.iter_mut().find(|one| one.number == number) {
            client.follows.insert(exec.to_owned(), None);
        }
    }

    pub(crate) fn unfollow(&mut self, number: u64, exec: &str) {
        if let Some(client) = self.all.iter_mut().find(|one| one.number == number) {
            client.follows.remove(exec);
        }
    }

    /// Tells all who follow how far an exec has come.
    pub(crate) fn tell(&mut self, exec: &str, reach: Reach) {
        self.all.iter_mut().for_each(|client| client.tell(exec, reach));
    }

    /// Tells one that has room again what it has missed.
    pub(crate) fn catch_up(&mut self, number: u64, reach_of: impl Fn(&str) -> Option<Reach>) {
        let Some(client) = self.all.iter_mut().find(|one| one.number == number) else {
            return;
        };
        client.behind = false;
        let followed: Vec<String> = client.follows.keys().cloned().collect();
        for exec in followed {
            if let Some(reach) = reach_of(&exec) {
                client.tell(&exec, reach);
            }
        }
    }
}

impl Client {
    fn tell(&mut self, exec: &str, reach: Reach) {
        let Some(told) = self.follows.get_mut(exec) else {
            return;
        };
        if *told == Some(reach) || self.behind {
            return;
        }
        let word = Word::Reach { exec: exec.to_owned(), reach };
        let sent = packet(&word, &[]).map(|word| fd::try_send(&self.socket, &word));
        match sent {
            Some(Ok(())) => *told = Some(reach),
            // One that is gone is noticed by what is read of it.
            Some(Err(_)) | None => self.behind = true,
        }
        if reach.ended && *told == Some(reach) {
            self.follows.remove(exec);
        }
    }
}

/// The socket's address: named from the directory, as the whole path may be longer than an address can be.
pub(crate) fn address(directory: BorrowedFd<'_>) -> Result<SocketAddrUnix> {
    use std::os::fd::AsRawFd;
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}
