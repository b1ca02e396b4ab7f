//! Writing to our own streams without going deaf: a reader that does not read makes us wait, and while
//! we wait somebody may ask us to end.
//!
//! Their flags are left alone. A terminal, and often a pipe, is shared with the shell and with others,
//! who would all find it non-blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use belljar_sys::Errno;
use belljar_sys::signal::heard_stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a pipe that has room takes without making us wait: PIPE_BUF of pipe(7).
const PIECE_BYTES: usize = 4096;

/// Writes all of it. Once we were asked to end, only what needs no waiting is written; the rest is
/// `Interrupted`.
pub(crate) fn put(stream: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let stream = stream.as_fd();
    let mut rest = bytes;
    while !rest.is_empty() {
        wait_for_room(stream)?;
        match rustix::io::write(stream, &rest[..rest.len().min(PIECE_BYTES)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            // Asked to end meanwhile; or whoever shares the stream made it non-blocking and filled it.
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Whether we were asked to end.
pub(crate) fn asked_to_end() -> bool {
    heard_stop().is_some_and(|stop| {
        let mut look = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    })
}

fn wait_for_room(stream: BorrowedFd<'_>) -> io::Result<()> {
    let stop = heard_stop();
    loop {
        let mut waited = vec![PollFd::from_borrowed_fd(stream, PollFlags::OUT)];
        waited.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        match poll(&mut waited, None) {
            Ok(_) if !waited[0].revents().is_empty() => return Ok(()), // or broken: the write tells
            Ok(_) => return Err(io::ErrorKind::Interrupted.into()),
            Err(Errno::INTR) => {} // the signal is in `stop` by now, if it was one for us
            Err(errno) => return Err(errno.into()),
        }
    }
}
