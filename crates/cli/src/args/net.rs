//! The arguments of `belljar net`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Net {
    /// Tell what a sandbox or a run may reach, what it reached, and what it was refused
    Explain(NetExplain),
}

#[derive(Debug, Args)]
pub(crate) struct NetExplain {
    /// The name of a sandbox, or the id of a run
    #[arg(value_name = "SANDBOX|EXEC_ID")]
    pub name: String,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The server that listens at this socket, and no other
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,

    /// The state directory, when no server is running
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}
