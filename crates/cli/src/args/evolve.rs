//! The arguments of `belljar evolve` and of what is done with its store.

use std::path::PathBuf;

use belljar_evolve::StepId;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "belljar evolve [OPTIONS] <TASK.toml>\n       belljar evolve <COMMAND>"
)]
#[command(after_help = "\
Examples:
  belljar evolve examples/evolve/regression.toml   # needs no model
  belljar evolve task.toml --max-iterations 20 --seed 7
  belljar evolve show 3f2a9c…
  belljar evolve resume 3f2a9c… --max-iterations 40
  belljar evolve export 3f2a9c… --report report.html
  belljar evolve promote 3f2a9c… --out better.py

A task says what is wanted, by which cases it is judged and who proposes:
  prompt = \"Sort a list of numbers.\"
  func = \"sort\"
  cases_file = \"public.json\"
  hidden_file = \"hidden.json\"
  [proposer]
  kind = \"openai\"               # or anthropic, ollama, command, replay
  model = \"…\"
Every proposal runs in a sandbox, and is kept in the state directory with its prompt, score and cost. The
exit code is 0 when the target score was reached, 1 when not, 2 for a mistake in the task, 125 when we
failed.")]
pub(crate) struct Evolve {
    #[command(subcommand)]
    pub command: Option<EvolveCommand>,

    /// The task
    #[arg(value_name = "TASK.toml", required = true)]
    pub task: Option<PathBuf>,

    /// Iterations at most, whatever the task says
    #[arg(long, value_name = "N")]
    pub max_iterations: Option<u32>,

    /// The number that all choices follow from, whatever the task says
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub place: Place,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,

    /// Tell nothing while it runs
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvolveCommand {
    /// Print the evolutions that are kept, the newest first
    List(List),
    /// Print what has come of an evolution so far
    Show(Show),
    /// Go on with an evolution that ended, was cut short or was killed
    Resume(Resume),
    /// Write an evolution as lines of JSON, as a page of HTML, or as a recording
    Export(Export),
    /// Print the best program, to be read
    Best(Best),
    /// Let a program out of the store: write it to a file
    Promote(Promote),
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Where evolutions are kept [default: evolutions in the state directory]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub place: Place,

    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    pub id: String,

    #[command(flatten)]
    pub place: Place,

    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
What was proposed is not asked for again. Numbers that are given here replace those of the task.")]
pub(crate) struct Resume {
    pub id: String,

    /// Iterations at most, those that were made among them
    #[arg(long, value_name = "N")]
    pub max_iterations: Option<u32>,

    /// Sandboxes at most, those that were used among them
    #[arg(long, value_name = "N")]
    pub budget_executions: Option<u64>,

    /// Seconds at most, those that were used among them
    #[arg(long, value_name = "N")]
    pub budget_seconds: Option<f64>,

    /// Tokens at most, those that were used among them
    #[arg(long, value_name = "N")]
    pub budget_tokens: Option<u64>,

    /// Money at most, what was spent among it
    #[arg(long, value_name = "N")]
    pub budget_money: Option<f64>,

    #[command(flatten)]
    pub place: Place,

    #[arg(long)]
    pub json: bool,

    /// Tell nothing while it runs
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --report and --recording the lines go to standard output. Nothing that hidden cases hold is in any
of them.")]
pub(crate) struct Export {
    pub id: String,

    /// One page of HTML that needs nothing else: scores, lineage, changes
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// The proposer's answers, for a proposer of kind replay
    #[arg(long, value_name = "FILE")]
    pub recording: Option<PathBuf>,

    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Best {
    pub id: String,

    /// Another step than the best, as 3.1
    #[arg(long, value_name = "STEP", value_parser = step)]
    pub step: Option<StepId>,

    #[command(flatten)]
    pub place: Place,

    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
What was evolved was never run outside of a sandbox. Read it first: belljar evolve best ID. A file that
exists is not written over.")]
pub(crate) struct Promote {
    pub id: String,

    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,

    /// Another step than the best, as 3.1
    #[arg(long, value_name = "STEP", value_parser = step)]
    pub step: Option<StepId>,

    #[command(flatten)]
    pub place: Place,
}

fn step(text: &str) -> Result<StepId, String> {
    StepId::try_from(text.to_owned())
}
