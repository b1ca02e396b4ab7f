//! One file for each command.

mod batch;
mod catalogue;
mod doctor;
mod run;
mod serve;

use std::time::Duration;

use belljar::{Engine, Error};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Arguments, Command};

pub(crate) use serve::runtime as serve_runtime;

/// Carries out a command; the answer is the exit code.
pub(crate) async fn dispatch(arguments: Arguments) -> u8 {
    match arguments.command {
        Command::Run(run) => run::run(*run).await,
        Command::Batch(batch) => batch::batch(batch).await,
        Command::Serve(serve) => serve::serve(serve).await,
        Command::Doctor(doctor) => doctor::doctor(doctor).await,
        Command::Levels(format) => catalogue::levels(&format),
        Command::Languages(format) => catalogue::languages(&format),
    }
}

/// Ctrl-C, a polite kill or a closed terminal: the sandbox is ended and we say so.
pub(crate) async fn interrupted() {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// How long a cancelled run may take to be gone; it takes milliseconds.
const SETTLE: Duration = Duration::from_secs(10);

/// After the run was dropped: waits until nothing of it is left, so that Ctrl-C means gone.
pub(crate) async fn cancelled(engine: &Engine) -> Error {
    let gone = engine.settle(SETTLE).await;
    if gone { Error::Cancelled } else { Error::Lost { what: "it did not end in time" } }
}
