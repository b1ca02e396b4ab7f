//! One file for each command.

mod batch;
mod catalogue;
mod run;

use crate::args::{Arguments, Command};

/// Carries out a command; the answer is the exit code.
pub(crate) async fn dispatch(arguments: Arguments) -> u8 {
    match arguments.command {
        Command::Run(run) => run::run(*run).await,
        Command::Batch(batch) => batch::batch(batch).await,
        Command::Doctor(_) => 125,
        Command::Levels(format) => catalogue::levels(&format),
        Command::Languages(format) => catalogue::languages(&format),
    }
}
