//! A server that was dialled, and what it says before its client has said anything.

use std::io;
use std::rc::Rc;

use tokio::net::TcpStream;

use super::Asked;
use crate::door::Shared;
use crate::ledger::Line;
use crate::relay::{Meter, Way, read_some};

/// What a server may say unasked while we wait for its client's first words. Whoever says more is heard as any stream is.
const MAX_GREETING: usize = 64 << 10;

/// The far end of a connection.
#[derive(Debug)]
pub(super) struct Far {
    pub server: TcpStream,
    pub line: Rc<Line>,
    /// What it said, as far as the client has not got it.
    pub unsent: Vec<u8>,
    said: usize,
    ended: bool,
}

impl Far {
    pub(super) fn reached(shared: &Shared, asked: &Asked, server: TcpStream) -> Self {
        let line = shared.ledger.reach(&asked.target.to_string(), asked.port);
        Self { server, line, unsent: Vec::new(), said: 0, ended: false }
    }

    /// There may be more to pass on.
    pub(super) fn may_greet(&self) -> bool {
        !self.unsent.is_empty() || !self.ended && !self.has_said_much()
    }

    pub(super) fn has_said_much(&self) -> bool {
        self.said > MAX_GREETING
    }

    /// Passes on one piece of what it says, and its end. Whenever this is dropped, nothing is lost, and nothing said twice:
    /// what the client has not got is in `unsent`.
    pub(super) async fn greet(&mut self, client: &TcpStream, meter: &Meter) -> io::Result<()> {
        if self.unsent.is_empty() {
            let length = read_some(&self.server, &mut self.unsent).await?;
            self.said += length;
            if length == 0 {
                self.ended = true;
                // Whoever has gone already does not mind.
                rustix::net::shutdown(client, rustix::net::Shutdown::Write).ok();
            }
            return Ok(());
        }
        client.writable().await?;
        match client.try_write(&self.unsent) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(length) => {
                self.unsent.drain(..length);
                meter.count(Way::In, length)?;
                meter.keep_pace(length).await;
                Ok(())
            }
        }
    }
}
