//! Bytes from one socket to another: counted, bounded in memory, and without passing through ours where they need
//! no more looking at (splice(2)).

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::door::Shared;
use crate::ended::Watch;
use crate::ledger::Line;
use crate::policy::Grant;

/// What one splice moves at most, and the size that is asked for a pipe.
const PIPE_BYTES: usize = 256 << 10;
/// One read where bytes do pass through us.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// Requests of one connection that are remembered, and how long a path of one may be.
const MAX_REMEMBERED: usize = 32;
const MAX_PATH: usize = 1024;

/// Counts one connection.
#[derive(Debug)]
pub(crate) struct Meter {
    shared: Rc<Shared>,
    line: Rc<Line>,
    last: Cell<Instant>,
    /// Bytes with the host, bytes with the program where they are others (TLS that ends here), and those of them that were
    /// charged: as many as the larger.
    outer: Cell<u64>,
    inner: Cell<u64>,
    charged: Cell<u64>,
    /// What leaves is looked at: absent where nothing is looked for, or what passes is encrypted.
    watch: Option<RefCell<Watch>>,
    /// What was asked for on it, by method and path; `None` when that is too much to remember.
    asked: RefCell<Option<Vec<(String, String)>>>,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    In,
}

impl Meter {
    pub(crate) fn new(shared: &Rc<Shared>, line: Rc<Line>, host: &str) -> Self {
        let watch = shared.ended.watch(host).map(RefCell::new);
        Self { watch, ..Self::blind(shared, line) }
    }

    /// The same, for what is encrypted, or looked at by somebody else.
    pub(crate) fn blind(shared: &Rc<Shared>, line: Rc<Line>) -> Self {
        let (shared, last) = (Rc::clone(shared), Cell::new(Instant::now()));
        let asked = RefCell::new(Some(Vec::new()));
        let (outer, inner, charged) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Self { shared, line, last, outer, inner, charged, watch: None, asked }
    }

    /// This is asked for on it from now on.
    pub(crate) fn ask(&self, method: &str, path: &str) {
        let path = path.split('?').next().unwrap_or(path);
        let mut asked = self.asked.borrow_mut();
        let Some(known) = asked.as_mut() else { return };
        if known.iter().any(|one| one.0 == method && one.1 == path) {
            return;
        }
        if known.len() < MAX_REMEMBERED && path.len() <= MAX_PATH {
            known.push((method.to_owned(), path.to_owned()));
        } else {
            *asked = None;
        }
    }

    /// Whether all that was asked for on it may be asked for under other rules. Which of it is done with nobody knows:
    /// answers are passed on as they are.
    pub(crate) fn may_go_on(&self, now: &Grant) -> bool {
        match &*self.asked.borrow() {
            Some(known) => {
                known.iter().all(|(method, path)| now.allows_request(method, path).is_ok())
            }
            None => now.allows_tls(), // whatever it was
        }
    }

    /// Looks at what is about to leave.
    fn look(&self, way: Way, bytes: &[u8]) -> io::Result<()> {
        match &self.watch {
            Some(watch) if way == Way::Out => watch.borrow_mut().look(bytes),
            Some(_) | None => Ok(()),
        }
    }

    /// So many bytes have passed.
    pub(crate) fn count(&self, way: Way, bytes: usize) -> io::Result<()> {
        self.last.set(Instant::now());
        match way {
            Way::Out => self.line.send(bytes),
            Way::In => self.line.receive(bytes),
        }
        self.outer.set(self.outer.get() + bytes as u64);
        self.charge()
    }

    /// How long to wait until more may pass, after so many.
    pub(crate) fn pause(&self, bytes: usize) -> Duration {
        self.shared.budget.passing.pass(bytes, std::time::Instant::now())
    }

    pub(crate) async fn keep_pace(&self, bytes: usize) {
        let pause = self.pause(bytes);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }

    /// So many bytes of TLS that ends here have passed, either way, between us and the program.
    pub(crate) fn count_inner(&self, bytes: usize) -> io::Result<()> {
        self.inner.set(self.inner.get() + bytes as u64);
        self.charge()
    }

    fn charge(&self) -> io::Result<()> {
        let owed = self.outer.get().max(self.inner.get());
        let new = owed - self.charged.replace(owed);
        match self.shared.budget.pass(new) {
            true => Ok(()),
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    /// Until nothing has passed for so long.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let until = self.last.get() + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Reads what there is, at the end of `bytes`: how much it was, zero at the end.
pub(crate) async fn read_some(from: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let start = bytes.len();
    loop {
        from.readable().await?;
        bytes.resize(start + READ_BYTES, 0);
        let read = from.try_read(&mut bytes[start..]);
        bytes.truncate(start + read.as_ref().map_or(0, |length| *length));
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(length) => bytes = &bytes[length..],
        }
    }
    Ok(())
}

/// The same, counted.
pub(crate) async fn send(to: &TcpStream, bytes: &[u8], meter: &Meter, way: Way) -> io::Result<()> {
    meter.look(way, bytes)?;
    write_all(to, bytes).await?;
    meter.count(way, bytes.len())?;
    meter.keep_pace(bytes.len()).await;
    Ok(())
}

/// Both ways until both have ended.
pub(crate) async fn relay(client: &TcpStream, server: &TcpStream, meter: &Meter) -> io::Result<()> {
    tokio::try_join!(pump(client, server, meter, Way::Out), pump(server, client, meter, Way::In))?;
    Ok(())
}

/// One way until its end, which is passed on.
pub(crate) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    meter: &Meter,
    way: Way,
) -> io::Result<()> {
    let is_watched = meter.watch.is_some() && way == Way::Out;
    // Without a pipe (too many are open), and where it is looked at, it goes through a buffer.
    match pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC) {
        Ok((out, into)) if !is_watched => {
            // The size it has will do if a larger one is not granted.
            fcntl_setpipe_size(&into, PIPE_BYTES).ok();
            splice_all(from, to, (&out, &into), meter, way).await?;
        }
        Ok(_) | Err(_) => {
            let mut bytes = Vec::new();
            while read_some(from, &mut bytes).await? > 0 {
                send(to, &bytes, meter, way).await?;
                bytes.clear();
            }
        }
    }
    // Whoever has gone already does not mind.
    rustix::net::shutdown(to, rustix::net::Shutdown::Write).ok();
    Ok(())
}

async fn splice_all(
    from: &TcpStream,
    to: &TcpStream,
    (out, into): (&OwnedFd, &OwnedFd),
    meter: &Meter,
    way: Way,
) -> io::Result<()> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        from.readable().await?;
        let moved = from
            .try_io(Interest::READABLE, || Ok(splice(from, None, into, None, PIPE_BYTES, flags)?));
        let mut left = match moved {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
            Ok(0) => return Ok(()),
            Ok(moved) => moved,
        };
        let whole = left;
        while left > 0 {
            to.writable().await?;
            let moved = to.try_io(Interest::WRITABLE, || {
                Ok(splice(out, None, to, None, left, flags | SpliceFlags::MORE)?)
            });
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => left -= moved,
            }
        }
        meter.count(way, whole)?;
        meter.keep_pace(whole).await;
    }
}
