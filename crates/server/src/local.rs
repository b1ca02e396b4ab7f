//! The routes without a listener, for a command that finds no server: what it can do is what a server can do, by
//! the same code.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use belljar::living::Sandboxes;
use belljar::{Config, Engine, Error, Queue};
use tokio::io::DuplexStream;

use crate::door::{Door, Peer};
use crate::http::evolutions::Evolutions;
use crate::http::{self, Server};
use crate::limits::{LimitOptions, Limits};
use crate::serve::converse;
use crate::stop::Stop;
use crate::{places, token};

/// What is under way between the two ends of a conversation.
const PIPE_BYTES: usize = 64 << 10;

/// A server inside of its only client.
#[derive(Debug)]
pub struct Local {
    server: Arc<Server>,
    router: Router,
}

impl Local {
    /// Takes over the sandboxes of this state directory, as long as it lives.
    pub async fn open(config: Config, state: PathBuf) -> Result<Self, Error> {
        token::state_directory(&state)?;
        let engine = Arc::new(Engine::open(config)?);
        let sandboxes = Sandboxes::open_briefly(&engine, &state).await?;
        let server = Arc::new(Server {
            engine,
            queue: Queue::new(NonZeroUsize::MIN, 0),
            door: Door { own_uid: rustix::process::geteuid().as_raw(), token: None },
            stop: Stop::new(),
            evolutions: Evolutions::new(state.join(places::EVOLUTIONS), Default::default()),
            limits: Limits::new(&LimitOptions::default(), None),
            audit: None,
            sandboxes,
        });
        let router = http::router(Arc::clone(&server));
        Ok(Self { server, router })
    }

    /// Lets other commands have the sandboxes while this one only looks on.
    pub fn let_go(&self) {
        self.server.sandboxes.let_go();
    }

    /// Ends what this process has begun and nobody follows any more; see [`Sandboxes::wind_up`].
    pub async fn wind_up(&self) {
        self.server.sandboxes.wind_up().await;
    }

    /// A connection to it.
    pub fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let peer = Peer::Local { uid: self.server.door.own_uid };
        tokio::spawn(converse(theirs, peer, self.router.clone(), self.server.stop.clone()));
        ours
    }
}
