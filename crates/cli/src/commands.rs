//! One file for each command.

mod audit;
mod batch;
mod catalogue;
mod doctor;
mod evolve;
mod explain;
mod key;
mod mcp;
mod net;
mod policy;
mod run;
mod sandbox;
mod screen;
mod secret;
mod serve;
mod stats;
pub(crate) mod test;

use std::io;
use std::time::Duration;

use belljar::{Ahead, Engine, Error};
use belljar_sys::signal::hear_stop;
use tokio::net::unix::pipe::Receiver;

use crate::args::{Arguments, Command};

pub(crate) use serve::runtime as serve_runtime;

/// Carries out a command, with the keeper that was started ahead for it; the answer is the exit code.
pub(crate) async fn dispatch(arguments: Arguments, ahead: Option<Ahead>) -> u8 {
    match arguments.command {
        Command::Run(run) => run::run(*run, ahead).await,
        Command::Test(test) => test::test(*test).await,
        Command::Evolve(evolve) => evolve::evolve(*evolve).await,
        Command::Batch(batch) => batch::batch(batch).await,
        Command::Sandbox(sandbox) => sandbox::sandbox(*sandbox).await,
        Command::Secret(secret) => secret::secret(secret).await,
        Command::Serve(serve) => serve::serve(*serve).await,
        Command::Key(command) => key::key(command),
        Command::Mcp(mcp) => mcp::mcp(mcp).await,
        Command::Screen(screen) => screen::screen(screen).await,
        Command::Net(net) => net::net(net).await,
        Command::Stats(stats) => stats::stats(stats).await,
        Command::Explain(explain) => explain::explain(&explain),
        Command::Report(report) => explain::report(&report),
        Command::Audit(audit) => audit::audit(audit),
        Command::Policy(command) => policy::policy(command).await,
        Command::Doctor(doctor) => doctor::doctor(doctor).await,
        Command::Levels(format) => catalogue::levels(&format),
        Command::Languages(format) => catalogue::languages(&format),
    }
}

/// Ctrl-C, a polite kill or a closed terminal: the sandbox is ended and we say so.
pub(crate) async fn interrupted() {
    // Without it these signals end us as they end any program, and our keeper ends the run.
    let stop = hear_stop().map_err(io::Error::from);
    let stop = stop.and_then(|stop| Receiver::from_owned_fd(stop.try_clone_to_owned()?));
    match &stop {
        Ok(stop) if stop.readable().await.is_ok() => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}

/// How long a cancelled run may take to be gone; it takes milliseconds.
const SETTLE: Duration = Duration::from_secs(10);

/// After the run was dropped: waits until nothing of it is left, so that Ctrl-C means gone.
pub(crate) async fn cancelled(engine: &Engine) -> Error {
    let gone = engine.settle(SETTLE).await;
    if gone { Error::Cancelled } else { Error::Lost { what: "it did not end in time" } }
}
