//! `belljar mcp`: the tools for a model, over standard input and output.
//!
//! They are the tools of the user's server. Where none runs, this process becomes one at the first call, at the usual
//! socket, so that other commands and further clients share it; the next one takes over when this one ends.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_server::mcp::{Connecting, Reach, Tools};
use belljar_server::places;
use clap::Parser;
use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::JoinHandle;

use super::serve::serve_and_tell;
use crate::args::{Arguments, Command, Mcp};
use crate::{remote, render};

/// How long our own server may take to end what nobody waits for any more.
const FAREWELL: Duration = Duration::from_secs(20);

pub(crate) async fn mcp(args: Mcp) -> u8 {
    let Some(path) = args.server.clone().or_else(places::socket) else {
        return render::trouble("there is no place for a socket: set HOME or BELLJAR_SOCKET", 125);
    };
    let own = Arc::new(Own {
        path,
        named: args.server.is_some(),
        state: args.state,
        task: Mutex::default(),
        ended: Arc::default(),
    });
    let reached = Arc::clone(&own);
    let reach = Reach::outside(move || -> Connecting {
        let own = Arc::clone(&reached);
        Box::pin(async move { own.connect().await })
    });
    let served = tokio::select! {
        served = Tools::new(reach).serve_stdio() => served,
        // A signal has ended the server in us; it was meant for all of us.
        () = own.ended.notified() => Ok(()),
    };
    own.end().await;
    match served {
        Ok(()) => 0,
        Err(error) => render::trouble(&format!("cannot speak MCP: {error}"), render::OURS),
    }
}

/// The server that is reached, and ours if we are one.
struct Own {
    path: PathBuf,
    /// Somebody named it: then no other will do.
    named: bool,
    state: Option<PathBuf>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Our server has listened, and does so no more.
    ended: Arc<Notify>,
}

impl Own {
    async fn connect(&self) -> io::Result<UnixStream> {
        match self.reach() {
            Ok(stream) => return Ok(stream),
            Err(error) if self.named => {
                let words = format!("cannot reach the server at {}: {error}", self.path.display());
                return Err(io::Error::new(error.kind(), words));
            }
            Err(_) => {}
        }
        let mut task = self.task.lock().await;
        // Another call, or another process, may have been quicker.
        if let Ok(stream) = self.reach() {
            return Ok(stream);
        }
        let (ready, listens) = oneshot::channel();
        let (ended, listened) = (Arc::clone(&self.ended), Arc::new(AtomicBool::new(false)));
        let begun = Arc::clone(&listened);
        let serve = serve_and_tell(self.server()?, move |_| {
            begun.store(true, Ordering::Relaxed);
            ready.send(()).ok();
        });
        *task = Some(tokio::spawn(async move {
            serve.await; // what went wrong was said
            if listened.load(Ordering::Relaxed) {
                ended.notify_one();
            }
        }));
        if listens.await.is_err() {
            // Why was said on standard error, where clients keep what their servers say.
            return self
                .reach()
                .map_err(|_| io::Error::other("cannot start a server: its log tells why"));
        }
        self.reach()
    }

    fn reach(&self) -> io::Result<UnixStream> {
        remote::connect(&self.path).and_then(UnixStream::from_std)
    }

    /// As `belljar serve` would be, without TCP.
    fn server(&self) -> io::Result<crate::args::Serve> {
        let mut words = vec!["belljar".into(), "serve".into(), "--listen".into(), "none".into()];
        words.extend(["--socket".into(), self.path.clone().into_os_string()]);
        if let Some(state) = &self.state {
            words.extend(["--state".into(), state.clone().into_os_string()]);
        }
        match Arguments::try_parse_from(words).map(|arguments| arguments.command) {
            Ok(Command::Serve(serve)) => Ok(serve),
            Ok(_) => Err(io::Error::other("serve is no command")),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Ends our server as a signal would: it lets go of its socket, and sandboxes that stay go on.
    async fn end(&self) {
        let Some(task) = self.task.lock().await.take() else { return };
        if task.is_finished()
            || rustix::process::kill_process(rustix::process::getpid(), Signal::TERM).is_err()
        {
            return;
        }
        tokio::time::timeout(FAREWELL, task).await.ok();
    }
}
