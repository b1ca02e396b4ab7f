//! The process's own life: told what to do, locked down, then nothing but connections.

use std::io;
use std::net::{TcpListener as StdListener, UdpSocket as StdDatagrams};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use belljar_jail::egress::{Bid, Confinement, EgressPlan, Listener, Told, confine};
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

/// How often all others have their turn before it is said that a change counts: in each turn some sixty connections look
/// whether they may go on.
const TURNS: usize = 16;

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
    let confinement = confinement(&hear(&control)?)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    rustix::io::ioctl_fionbio(&control, true)?;
    // Before it is told anything: nothing that comes needs a file, and there is nothing to accept from.
    confine(&confinement)?;
    let local = LocalSet::new();
    local.block_on(&runtime, serve(control))
}

fn confinement(said: &Said) -> io::Result<Confinement> {
    match (&said.bid, &said.fds[..]) {
        (Bid::Confine, [memory]) => Ok(read_memory(memory)?),
        _ => Err(Errno::PROTO.into()),
    }
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

async fn serve(control: OwnedFd) -> io::Result<()> {
    let keeper = UnixDatagram::from_std(control.into())?;
    ledger::say(&keeper, &Told::Ready).await?;
    // However long it takes until somebody wants a way out.
    let said = next(&keeper).await?;
    if said.bid == Bid::Finish {
        return Ok(());
    }
    let Served { plan, secrets, listeners } = serve_bid(said)?;
    // Whom real hosts are verified by, and who speaks for them inside, all comes with the bid: no file is needed.
    let shared = Rc::new(Shared::new(&plan, Ended::new(secrets)?));
    drop(plan);
    open(&shared, listeners)?;
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
        let said = next(keeper).await?;
        match said.bid {
            Bid::Finish => return Ok(()),
            Bid::Noted { number } => shared.ledger.noted(number),
            Bid::Confine | Bid::Serve { .. } => {
                let Served { plan, secrets, listeners } = serve_bid(said)?;
                shared.ended.change(secrets);
                shared.change(&plan);
                open(shared, listeners)?;
                for _ in 0..TURNS {
                    tokio::task::yield_now().await;
                }
                ledger::say(keeper, &Told::Obeyed).await?;
            }
        }
    }
}

/// What the keeper says next; an error when it has gone.
async fn next(keeper: &UnixDatagram) -> io::Result<Said> {
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
        return Ok(Said { bid: serde_json::from_slice(&bytes)?, fds });
    }
}
