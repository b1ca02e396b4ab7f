//! Questions and answers over a socket, in pairs: how processes that we keep are spoken to.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_jail::wire;
use belljar_sys::fd;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::Mutex;

/// One question at a time. Once an answer was not waited for to its end the line is dead: that answer
/// would be taken for the next one's. To the process at the other end a dead line means the end.
#[derive(Debug)]
pub(super) struct Line {
    control: Mutex<UnixDatagram>,
    is_dead: AtomicBool,
}

/// An answer that is waited for; dropped before it came, it takes the line along.
struct Awaited<'a> {
    line: &'a Line,
    control: &'a UnixDatagram,
    has_come: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if !self.has_come {
            self.line.is_dead.store(true, Ordering::Relaxed);
            rustix::net::shutdown(self.control, rustix::net::Shutdown::Both).ok();
        }
    }
}

impl Line {
    /// A line, and the other end of it.
    pub(super) fn open() -> io::Result<(Self, OwnedFd)> {
        let (control, theirs) = wire::control_pair()?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let control = Mutex::new(UnixDatagram::from_std(control.into())?);
        Ok((Self { control, is_dead: AtomicBool::new(false) }, theirs))
    }

    /// Asks, and hears the answer.
    pub(super) async fn ask(
        &self,
        question: impl FnOnce(&UnixDatagram) -> io::Result<()>,
        limit: Duration,
    ) -> io::Result<Vec<u8>> {
        let control = self.control.lock().await;
        if self.is_dead() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut awaited = Awaited { line: self, control: &control, has_come: false };
        question(&control)?;
        let heard = tokio::time::timeout(limit, hear(&control)).await;
        let answer = heard.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        awaited.has_come = true;
        Ok(answer)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Tells the other end to end.
    pub(super) fn close(&mut self) {
        rustix::net::shutdown(self.control.get_mut(), rustix::net::Shutdown::Both).ok();
    }
}

/// One message; an error when the other end is gone.
async fn hear(control: &UnixDatagram) -> io::Result<Vec<u8>> {
    let mut word = [0; 64];
    loop {
        control.readable().await?;
        let read = || Ok(fd::receive(control, &mut word)?);
        match control.try_io(Interest::READABLE, read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(received) if received.length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            result => return result.map(|received| word[..received.length].to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_not_the_next_ones() {
        let (line, theirs) = Line::open().unwrap();
        fd::send(&theirs, b"first", &[]).unwrap();
        assert_eq!(line.ask(|_| Ok(()), LIMIT).await.unwrap(), b"first");
        assert!(!line.is_dead());
        let given_up = line.ask(|_| Ok(()), Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        // The late answer finds nobody, and the other end is told to end.
        assert_eq!(fd::send(&theirs, b"late", &[]), Err(belljar_sys::Errno::PIPE));
        let next = line.ask(|_| Ok(()), LIMIT).await.unwrap_err();
        assert_eq!(next.kind(), io::ErrorKind::BrokenPipe);
        assert!(line.is_dead());
    }
}
