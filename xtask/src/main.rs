//! Developer commands of Belljar: `cargo xtask <COMMAND>`.
//!
//! What CI runs is what a developer runs: `.ci/run` is `cargo xtask test` and nothing else.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

mod cgroups;
mod r#gen;
mod leaks;
mod ordinary_user;
mod prereqs;
mod processes;
mod shell;
mod suites;
mod test;
mod tidy;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Developer commands of Belljar"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check and test: what CI runs. The last line says `N passed, N failed`
    Test(TestArgs),
    /// Format, clippy and tidy: the checks that need no kernel feature
    Check,
    /// The house rules that no other tool checks: layering, live test names, links, sizes
    Tidy,
    /// Only the escape suite: the same as `test escape`
    Escape(Scope),
    /// Write the generated documents again (docs/reference/cli.md)
    Gen,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Run only these (default: all, in this order): prereqs, format, clippy, tidy, unit, docs, and the
    /// real-kernel suites conformance, escape, faults, benign, concurrency, cli, leaks
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    #[command(flatten)]
    scope: Scope,
}

/// As whom the real-kernel suites run, and which of their tests.
#[derive(Debug, Args)]
pub(crate) struct Scope {
    /// Run the real-kernel suites as an ordinary user only
    #[arg(long, conflicts_with = "root_only")]
    user_only: bool,
    /// Run the real-kernel suites as root only
    #[arg(long)]
    root_only: bool,
    /// Passed to each real-kernel test binary, for example a test's name
    #[arg(last = true, value_name = "LIBTEST ARGS")]
    libtest: Vec<String>,
}

fn main() -> ExitCode {
    let verdict = match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Check => test::check(),
        Command::Tidy => tidy::run(),
        Command::Escape(scope) => test::run(&TestArgs {
            suites: vec!["escape".into()],
            scope,
        }),
        Command::Gen => r#gen::write().map(|()| Passed::Yes),
    };
    report(verdict)
}

/// Whether the checks of a command held. Not an error: the command itself did its work and said what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Yes,
    No,
}

fn report(verdict: Result<Passed>) -> ExitCode {
    match verdict {
        Ok(Passed::Yes) => ExitCode::SUCCESS,
        Ok(Passed::No) => ExitCode::FAILURE,
        Err(error) => {
            shell::complain(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
