//! The routes without a listener, for a command that finds no server: what it can do is what a server can do, by
//! the same code.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use belljar::living::Sandboxes;
use belljar::{Config, Engine, Error, Queue};
use tokio::io::DuplexStream;

use crate::admission::{Admission, AdmissionOptions};
use crate::connections::converse;
use crate::door::{Door, Peer};
use crate::http::body::Bodies;
use crate::http::evolutions::Evolutions;
use crate::http::{self, Server};
use crate::idempotency::Memory;
use crate::journal::{Journal, LogForm, LogLevel};
use crate::keys::Keys;
use crate::limits::{LimitOptions, Limits};
use crate::metrics::Metrics;
use crate::policy::Policy;
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
    pub async fn open(mut config: Config, state: PathBuf) -> Result<Self, Error> {
        token::state_directory(&state)?;
        config.secrets.state = Some(state.clone());
        let engine = Arc::new(Engine::open(config)?);
        let all_sandboxes = Sandboxes::open_briefly(&engine, &state).await?;
        let (routes, table) = http::api().finish();
        let metrics = Arc::new(Metrics::new(table.listed.len()));
        let keys = Keys::new(state.clone());
        let server = Arc::new(Server {
            engine,
            queue: Queue::new(NonZeroUsize::MIN, 0),
            door: Door { own_uid: rustix::process::geteuid().as_raw(), token: None, keys },
            stop: Stop::new(),
            evolutions: Evolutions::new(state.join(places::EVOLUTIONS), Default::default()),
            limits: Limits::new(&LimitOptions::default(), None),
            audit: None,
            all_sandboxes,
            policy: Policy::default(),
            // Who has no server has no operator either: nothing is kept from them.
            admission: Admission::new(AdmissionOptions::none()),
            memory: Memory::new(None),
            table,
            journal: Journal::start(LogLevel::Off, LogForm::Text, Arc::clone(&metrics)),
            metrics,
            spans: None,
            making: tokio::sync::Mutex::default(),
            terminals: http::terminals(),
            bodies: Bodies::new(1),
        });
        let router = http::router(routes, Arc::clone(&server));
        Ok(Self { server, router })
    }

    /// Lets other commands have the sandboxes while this one only looks on.
    pub fn let_go(&self) {
        self.server.all_sandboxes.let_go();
    }

    /// Ends what this process has begun and nobody follows any more; see [`Sandboxes::wind_up`].
    pub async fn wind_up(&self) {
        self.server.all_sandboxes.wind_up().await;
    }

    /// A connection to it.
    pub fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let peer = Peer::Local { uid: self.server.door.own_uid };
        let (router, stop) = (self.router.clone(), self.server.stop.clone());
        tokio::spawn(converse(theirs, peer, router, stop, None));
        ours
    }
}
