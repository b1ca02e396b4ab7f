//! Developer commands of Belljar: `cargo xtask <COMMAND>`.
//!
//! What CI runs is what a developer runs: `.ci/run` is `cargo xtask test` and nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

mod bench;
mod cgroups;
mod fuzz;
mod r#gen;
mod leaks;
mod ordinary_user;
mod packages;
mod prereqs;
mod processes;
mod shell;
mod suites;
mod test;
mod tidy;
mod vm;
mod warm;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Developer commands of Belljar")]
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
    /// Measure, and compare with the targets
    #[command(subcommand)]
    Bench(Bench),
    /// Feed everything that reads bytes of strangers with what it was not made for (libFuzzer)
    Fuzz(FuzzArgs),
    /// Write the generated documents again (docs/reference)
    Gen,
    /// The work that `bench overhead` measures
    #[command(hide = true)]
    Work(WorkArgs),
    /// The client that `bench egress` measures
    #[command(hide = true)]
    EgressWork(EgressWorkArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Run only these (default: all, in this order): prereqs, format, clippy, tidy, unit, docs, and the
    /// real-kernel suites conformance, escape, events, faults, benign, concurrency, cli, server, audit, grade, evolve,
    /// warm, living, sdk, mcp, leaks; and vm, which boots another kernel
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

#[derive(Debug, Subcommand)]
enum Bench {
    /// The time and memory of one cold run, interleaved with bare python3, bwrap, docker and runsc
    Cold(ColdArgs),
    /// Warm runs beside cold ones, bare python3, a bare fork and other sandboxes; then many clients at once
    Peers(PeersArgs),
    /// The memory of 1,000 sandboxes that wait, and what they do to the time of a run
    Idle(IdleArgs),
    /// Many thousand runs of every kind against one server, which must be as small after them as before
    Soak(SoakArgs),
    /// Sandboxes that stay: exec, snapshot, rollback and fork, with few and with many files
    Living(LivingArgs),
    /// What recording costs: warm throughput and cold runs, with the audit trail and without, in turns
    Audit(AuditBenchArgs),
    /// What allowed calls cost inside: getpid, files, processes and connections, beside bwrap and runsc
    Overhead(OverheadArgs),
    /// 164 small problems with their cases, sealed, beside a plain python3 for each; and tiny cases in a second
    Grade(GradeArgs),
    /// The way out: throughput and first bytes beside loopback and a proxy of others, and warm runs that have one
    Egress(EgressArgs),
    /// The server as clients see it: requests in a second, many streams at once, the weight of a connection
    Http(HttpArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ColdArgs {
    /// Measured rounds; each runs every contender once
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Rounds thrown away at the beginning
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    warm_up: u32,
    /// Also write the figures as JSON; a bare file name goes under bench-results/
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Measured rounds; each runs every contender once, slow ones in every fifth
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Rounds thrown away at the beginning
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    warm_up: u32,
    /// How long the eight clients press
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Keep the figures as bench-results/peers.json and the plot as docs/images/peers.svg
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    /// Sandboxes that wait
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sandboxes: u32,
    /// Measured runs with so many waiting, and as many with a few
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Keep the figures as bench-results/idle.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct OverheadArgs {
    /// Measured rounds; each lets every contender do each kind of work for a while
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Keep the figures as bench-results/overhead.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditBenchArgs {
    /// Rounds; each presses both servers once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// How long each press lasts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Cold runs of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Keep the figures as bench-results/audit.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// Runs between the two looks, after 500 to warm up
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    runs: u32,
    /// Keep the figures as bench-results/soak.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LivingArgs {
    /// Measured rounds of everything
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Keep the figures as bench-results/living.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GradeArgs {
    /// Measured rounds, after one to warm up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Keep the figures as bench-results/grade.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct EgressArgs {
    /// Measured rounds; each lets every contender connect, receive and send
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Warm runs of each kind
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Keep the figures as bench-results/egress.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// Under a filter of one instruction, which allows everything: the least that any filter costs
    #[arg(long)]
    filter: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EgressWorkArgs {
    /// Who is connected to, as HOST:PORT
    target: String,
    /// By CONNECT through this proxy
    #[arg(long, value_name = "ADDRESS:PORT")]
    proxy: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// How long wrk presses each time
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Keep the figures as bench-results/http.json
    #[arg(long)]
    keep: bool,
    /// Measure this binary instead of building the release one
    #[arg(long, value_name = "PATH")]
    belljar: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Only this one (default: all, one after the other)
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// How long for each
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

fn main() -> ExitCode {
    let verdict = match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Check => test::check(),
        Command::Tidy => tidy::run(),
        Command::Escape(scope) => test::run(&TestArgs { suites: vec!["escape".into()], scope }),
        Command::Bench(Bench::Cold(args)) => bench::cold(&args).map(|()| Passed::Yes),
        Command::Bench(Bench::Peers(args)) => bench::peers::peers(&args),
        Command::Bench(Bench::Idle(args)) => bench::idle::idle(&args),
        Command::Bench(Bench::Soak(args)) => bench::soak::soak(&args),
        Command::Bench(Bench::Living(args)) => bench::living::living(&args),
        Command::Bench(Bench::Audit(args)) => bench::audit::audit(&args),
        Command::Bench(Bench::Overhead(args)) => bench::overhead::overhead(&args),
        Command::Work(args) => bench::overhead::work(&args),
        Command::Bench(Bench::Egress(args)) => bench::egress::egress(&args),
        Command::EgressWork(args) => bench::egress::work(&args),
        Command::Bench(Bench::Grade(args)) => bench::grade::grade(&args),
        Command::Bench(Bench::Http(args)) => bench::web::web(&args),
        Command::Fuzz(args) => fuzz::fuzz(&args),
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
