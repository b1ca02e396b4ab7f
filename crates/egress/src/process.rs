//! The process's own life: told what to do, locked down, then nothing but connections.

use std::io;
use std::net::{TcpListener as StdListener, UdpSocket as StdDatagrams};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use belljar_jail::egress::{Bid, EgressPlan, Listener, Told, confine};
use belljar_jail::wire::{MAX_MESSAGE_BYTES, read_memory};
use belljar_swap::Sealed;
use belljar_sys::{Errno, fd};
use rustix::process::DumpableBehavior;
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket, UnixDatagram};
use tokio::task::{LocalSet, spawn_local};

use crate::door::{Shared, accept};
use crate::ended::Ended;
use crate::{dns, ledger};

/// The process's whole life, as its exit code.
pub fn main() -> u8 {
    u8::from(live().is_err())
}

/// What the keeper said.
struct Said {
    bid: Bid,
    fds: Vec<OwnedFd>,
}

fn live() -> io::Result<()> {
    fd::close_inherited(3)?;
    let control = fd::take_stdin()?;
    fd::place_at(belljar_jail::egress::null()?, 0)?;
    rustix::process::setsid().ok(); // it may lead one already
    rustix::thread::set_name(c"belljar-egress")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::chdir("/")?;
    let said = hear(&control)?;
    let Served { plan, secrets, listeners } = serve_bid(said)?;
    // Whom real hosts are verified by, and who speaks for them inside, while nothing is refused yet.
    let ended = Ended::new(secrets)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    rustix::io::ioctl_fionbio(&control, true)?;
    // Last: nothing that comes needs a file, and nothing has been accepted.
    confine(&plan)?;
    let local = LocalSet::new();
    local.block_on(&runtime, serve(control, (plan, ended), listeners))
}

fn hear(control: &OwnedFd) -> io::Result<Said> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let received = fd::receive(control, &mut bytes)?;
    if received.length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let bid = serde_json::from_slice(&bytes[..received.length])?;
    Ok(Said { bid, fds: received.fds })
}

type Listeners = Vec<(Listener, OwnedFd)>;

/// A bid to serve, read.
struct Served {
    plan: EgressPlan,
    secrets: Vec<Sealed>,
    listeners: Listeners,
}

fn serve_bid(said: Said) -> io::Result<Served> {
    let Bid::Serve { secrets, listeners } = said.bid else {
        return Err(Errno::PROTO.into());
    };
    let mut fds = said.fds.into_iter();
    let plan = read_memory(&fds.next().ok_or(Errno::PROTO)?)?;
    let secrets = fds.by_ref().take(secrets).map(|memory| Ok(read_memory(&memory)?));
    let secrets = secrets.collect::<io::Result<_>>()?;
    Ok(Served { plan, secrets, listeners: listeners.into_iter().zip(fds).collect() })
}

async fn serve(
    control: OwnedFd,
    (plan, ended): (EgressPlan, Ended),
    listeners: Listeners,
) -> io::Result<()> {
    let keeper = UnixDatagram::from_std(control.into())?;
    let shared = Rc::new(Shared::new(&plan, ended));
    drop(plan);
    open(&shared, listeners)?;
    ledger::say(&keeper, &Told::Ready).await?;
    tokio::select! {
        heard = obey(&shared, &keeper) => heard?,
        told = shared.ledger.keep_telling(&keeper) => told?,
    }
    shared.ledger.tell(&keeper).await
}

fn open(shared: &Rc<Shared>, listeners: Listeners) -> io::Result<()> {
    for (kind, socket) in listeners {
        let shared = Rc::clone(shared);
        match kind {
            Listener::DnsUdp => {
                let socket = UdpSocket::from_std(StdDatagrams::from(socket))?;
                spawn_local(dns::serve_datagrams(shared, socket));
            }
            Listener::DnsTcp => {
                let listener = TcpListener::from_std(StdListener::from(socket))?;
                spawn_local(dns::serve_streams(shared, listener));
            }
            Listener::Proxy | Listener::Port(_) => {
                let listener = TcpListener::from_std(StdListener::from(socket))?;
                spawn_local(accept(shared, listener, kind));
            }
        }
    }
    Ok(())
}

/// Until the keeper says that it is over; an error when it has gone.
async fn obey(shared: &Rc<Shared>, keeper: &UnixDatagram) -> io::Result<()> {
    loop {
        keeper.readable().await?;
        let heard = keeper.try_io(Interest::READABLE, || {
            let mut bytes = vec![0; MAX_MESSAGE_BYTES];
            let received = fd::receive(keeper, &mut bytes)?;
            bytes.truncate(received.length);
            Ok((bytes, received.fds))
        });
        let (bytes, fds) = match heard {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            heard => heard?,
        };
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match serde_json::from_slice(&bytes)? {
            Bid::Finish => return Ok(()),
            bid @ Bid::Serve { .. } => {
                let Served { plan, secrets, listeners } = serve_bid(Said { bid, fds })?;
                shared.ended.change(secrets);
                shared.change(&plan);
                open(shared, listeners)?;
            }
        }
    }
}
