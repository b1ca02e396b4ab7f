//! Arguments as typed. Nothing is decided here but what a word means.

pub(crate) mod audit;
pub(crate) mod evolve;
pub(crate) mod key;
pub(crate) mod net;
pub(crate) mod sandbox;
pub(crate) mod secret;
pub(crate) mod serve;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use belljar::grade::Isolate;
use belljar::{Level, ScreenMode, StartRequest, units};
use clap::{Args, Parser, Subcommand};

/// Run code that AI agents write where it can do no harm, and be told the truth about it.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: the program's own; 2 bad request, 124 time limit, 125 our fault, \
126 not executable, 127 not found, 128+n ended by signal n (137 also for memory, disk and output limits)."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one program in a fresh sandbox
    Run(Box<Run>),
    /// Grade a candidate by its test cases, with the comparison outside of its sandbox
    Test(Box<Test>),
    /// Improve a program by proposals that are graded in sandboxes
    Evolve(Box<evolve::Evolve>),
    /// Run many requests in parallel, one JSON object a line
    Batch(Batch),
    /// Sandboxes that stay, by name: files, execs, snapshots, forks
    Sandbox(Box<sandbox::Sandbox>),
    /// Keep secrets, encrypted, for programs that are given them by name: set, list, remove
    Secret(secret::Secret),
    /// Serve runs over HTTP, on a Unix socket and on loopback
    Serve(Box<serve::Serve>),
    /// Keys for the server: make, list and revoke them, also while it runs
    #[command(subcommand)]
    Key(key::Key),
    /// Give a model tools over standard input and output: the Model Context Protocol
    Mcp(Mcp),
    /// Print numbers of all recorded runs, and what the running server keeps ready
    Stats(audit::Stats),
    /// Say in plain words what a run was refused, and what to do about it
    Explain(audit::Explain),
    /// Print a security report of a run: risk, reasons, recommendations, receipt
    Report(audit::Report),
    /// Look at the audit trail: list, show, export, verify, prune
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Tell of networks: what may be reached, what was, what was refused
    #[command(subcommand)]
    Net(net::Net),
    /// Learn the least that a run needs
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Read a program without running it, and tell what looks dangerous
    Screen(Screen),
    /// Say what this host can keep, level by level, and what would enable the rest
    Doctor(Doctor),
    /// Print the isolation levels and what each promises
    Levels(Format),
    /// Print the languages and which are installed
    Languages(Format),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Write the least policy under which a recorded run passes, and prove it by running again
    Learn(Learn),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar run --record solve.py
  belljar policy learn last --out solve.toml
  belljar run --record --json solve.py > recorded.json
  belljar policy learn recorded.json --out solve.toml
  belljar run --policy solve.toml solve.py

What is listed under [seen] is for people. The exit code is 0 when the policy was proved, 1 when none was found.")]
pub(crate) struct Learn {
    /// The id of a recorded run, or its beginning, or `last`; or a file of what `belljar run --record --json` printed
    #[arg(value_name = "EXEC_ID|OUTCOME")]
    pub outcome: PathBuf,

    /// The state directory whose audit trail has the run
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Write the policy here instead of printing it
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true, // so that our own message says what is wrong with one
    override_usage = "belljar run [OPTIONS] <FILE|-> [-- ARGS…]\n       belljar run [OPTIONS] -c CODE [-- ARGS…]"
)]
#[command(after_help = "\
Examples:
  belljar run hello.py
  belljar run -c 'print(6 * 7)'
  echo 'echo hi' | belljar run --language bash -
  belljar run --json --timeout 5s --memory 256m solve.py -- --fast input.txt
  belljar run --file data.csv:data.csv --out results analyse.py
  belljar run --workspace ./project test.py        # read-only; ./project:rw to write

The program works in /workspace, sees no network and nothing of your files but what you give it.")]
pub(crate) struct Run {
    /// The program: a file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "code", conflicts_with = "code")]
    pub program: Option<PathBuf>,

    /// The program as text; Python unless --language says otherwise
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// python, bash, node or another that is described; else told by extension or #! line
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,

    /// Arguments for the program
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<String>,

    /// Give the program this file as standard input; - reads ours to its end first
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,

    /// Set an environment variable; nothing else of ours enters
    #[arg(long = "env", value_name = "K=V")]
    pub env: Vec<String>,

    /// The same for a value that is recorded nowhere; without =V it is taken from our environment
    #[arg(long = "env-secret", value_name = "K[=V]")]
    pub env_secret: Vec<String>,

    /// Give the program a secret by name, hidden in all that it says; with hosts it gets a placeholder, which becomes
    /// the value on its way to them; see `belljar secret --help`
    #[arg(long = "secret", value_name = "NAME[=env:VAR][@HOST,…]")]
    pub secrets: Vec<String>,

    /// Copy a file in: host path, then path inside (relative to /workspace)
    #[arg(long = "file", id = "copies", value_name = "HOST:INSIDE")]
    pub copies: Vec<String>,

    /// Show a host directory at /workspace, read-only unless :rw
    #[arg(long, value_name = "DIR[:rw]")]
    pub workspace: Option<String>,

    /// Copy what the program leaves in /workspace to this new or empty directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// A label for records, as name=value
    #[arg(long = "label", value_name = "K=V")]
    pub labels: Vec<String>,

    /// Keep a timeline of what is executed, opened, connected to and written; see it with --json
    #[arg(long)]
    pub record: bool,

    /// Let it reach a host by name: HOST[:PORT[,PORT]], *.example.com, or @SET of belljar.toml. Ports are 80 and 443
    /// if none is given; nothing else is reached
    #[arg(long = "egress", id = "egress", value_name = "HOST[:PORT]")]
    pub egress: Vec<String>,

    /// A value that no honest program prints: in the output it is an event
    #[arg(long = "canary", id = "canaries", value_name = "VALUE")]
    pub canaries: Vec<String>,

    /// Print one Outcome as JSON instead of streaming the output
    #[arg(long)]
    pub json: bool,

    /// Print nothing of our own, only the program's output
    #[arg(short, long)]
    pub quiet: bool,

    /// Let control sequences through to the terminal as they are
    #[arg(long)]
    pub raw: bool,

    /// Give it to the server that listens at this socket, and to no other
    #[arg(long, value_name = "PATH", conflicts_with = "no_server")]
    pub server: Option<PathBuf>,

    /// Run it here, even if a server of yours is running
    #[arg(long)]
    pub no_server: bool,

    /// Take a sandbox that was made ahead (warm), a new one (cold), or what comes sooner (any)
    #[arg(long, value_name = "HOW", default_value = "any", value_parser = start)]
    pub start: StartRequest,

    /// Read the code first: off, advise (tell what looks dangerous), or refuse (do not run that)
    #[arg(long, value_name = "MODE", default_value = "advise")]
    pub screen: ScreenMode,

    /// A file of screening rules of your own; see `belljar screen --help`
    #[arg(long, value_name = "FILE")]
    pub screen_rules: Vec<PathBuf>,

    /// Break set-up at a step, as step or step:die; for tests
    #[arg(long = "break-at", hide = true, value_name = "STEP")]
    pub fault: Option<String>,

    #[command(flatten)]
    pub audit: audit::AuditArgs,

    // Last: the heading of a flattened group goes on to whatever follows it in the help.
    #[command(flatten)]
    pub confine: Confine,

    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Isolation")]
pub(crate) struct Confine {
    /// none, basic, standard, strict or maximum; see `belljar levels`
    #[arg(long, default_value = "standard", value_name = "LEVEL")]
    pub level: Level,

    /// Go on without a layer: cgroup, landlock, scopes or uid_per_run; the receipt shows it
    #[arg(long, value_name = "LAYER")]
    pub allow_missing: Vec<String>,

    /// Lay a policy file over all other options; `belljar policy learn` writes one
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Allow a system call that the level refuses
    #[arg(long, value_name = "NAME")]
    pub allow_syscall: Vec<String>,

    /// Refuse a system call that the level allows
    #[arg(long, value_name = "NAME")]
    pub deny_syscall: Vec<String>,

    /// Make a path not exist inside
    #[arg(long, value_name = "PATH")]
    pub block_path: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits (sizes take k, m, g; times ms, s, m)")]
pub(crate) struct LimitArgs {
    /// Real time [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub timeout: Option<u64>,

    /// CPU time of all processes [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub cpu_time: Option<u64>,

    /// Cores at once [default: 1]
    #[arg(long, value_name = "N", value_parser = units::parse_cpus)]
    pub cpus: Option<u64>,

    /// Memory of all processes [default: 512m]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub memory: Option<u64>,

    /// Processes and threads at once [default: 64]
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub pids: Option<u64>,

    /// Everything written, together [default: 100m]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub disk: Option<u64>,

    /// Files and directories made [default: 10000]
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub inodes: Option<u64>,

    /// Open descriptors of one process [default: 1024]
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub files: Option<u64>,

    /// One file [default: 100m]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub file_size: Option<u64>,

    /// Kept of each output stream, head and tail [default: 100k]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub output: Option<u64>,

    /// Written to one stream before the run is ended [default: 1g]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub output_total: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    override_usage = "belljar test [OPTIONS] <FILE> --cases <CASES>\n       belljar test [OPTIONS] <SAMPLES.jsonl> --cases <PROBLEMS>\n       belljar test [OPTIONS] --canonical --cases <PROBLEMS>"
)]
#[command(after_help = "\
Examples:
  belljar test solution.py --cases cases.json
  belljar test solution.py --func add --cases public.json --hidden secret.json --json
  belljar test solution.py --cases tests.py --junit report.xml    # a file of asserts
  belljar test main.sh --cases samples/                           # 1.in 1.out 2.in 2.out …
  belljar test completions.jsonl --cases problems.jsonl           # HumanEval or MBPP
  belljar test --canonical --cases problems.jsonl --quiet

A case is one of
  {\"name\": \"small\", \"input_args\": [2, 3], \"expected_output\": 5}
  {\"name\": \"bad\", \"input_args\": [\"x\"], \"expected_exception\": \"ValueError\", \"weight\": 2}
  {\"name\": \"io\", \"stdin\": \"2 3\\n\", \"expected_stdout\": \"5\\n\"}
  {\"name\": \"law\", \"assert\": \"assert add(1, 2) == add(2, 1)\"}
What is expected never enters the sandbox of the candidate. The exit code is 0 when all passed, 1 when
not, 2 for a mistake in the request, 125 when we failed and the score is not to be trusted.")]
pub(crate) struct Test {
    /// The candidate; or completions of a set of problems, as .jsonl
    #[arg(value_name = "FILE", required_unless_present = "canonical")]
    pub file: Option<PathBuf>,

    /// The cases: JSON, JSONL, TOML, a Python file of asserts, a set of problems, or a folder
    #[arg(long, value_name = "CASES")]
    pub cases: PathBuf,

    /// More cases, of which nothing is shown but whether they passed
    #[arg(long, value_name = "CASES")]
    pub hidden: Option<PathBuf>,

    /// json, jsonl, toml, asserts, humaneval, mbpp or folder; else found out
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<belljar::grade::formats::Format>,

    /// The function to call, if the candidate defines more than one
    #[arg(long, value_name = "NAME")]
    pub func: Option<String>,

    /// Code that runs before the candidate, in its module
    #[arg(long, value_name = "FILE")]
    pub setup: Option<PathBuf>,

    /// One problem of a set
    #[arg(long, value_name = "ID")]
    pub task: Option<String>,

    /// Test the solutions that come with a set of problems
    #[arg(long, conflicts_with = "file")]
    pub canonical: bool,

    /// The candidate's language; else told by extension or #! line
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,

    /// Keep cases apart by process, or by a sandbox for each case
    #[arg(long, value_name = "HOW", default_value = "process", value_parser = crate::commands::test::isolate)]
    pub isolate: Isolate,

    /// Run the cases in an order made from this number
    #[arg(long, value_name = "SEED")]
    pub shuffle: Option<u64>,

    /// Sandboxes at once [default: one for each core]
    #[arg(long, value_name = "N")]
    pub parallel: Option<NonZeroUsize>,

    /// Real time for all cases of a candidate [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub total_time: Option<u64>,

    /// Measure the CPU time of each case that passes, until it is known well
    #[arg(long)]
    pub timing: bool,

    /// Show what hidden cases hold
    #[arg(long)]
    pub show_hidden: bool,

    /// Characters of advice [default: 2000]
    #[arg(long, value_name = "N")]
    pub feedback: Option<usize>,

    /// Print the Grade as JSON
    #[arg(long)]
    pub json: bool,

    /// Also write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Print only what failed, without advice
    #[arg(short, long)]
    pub quiet: bool,

    /// Give it to the server that listens at this socket, and to no other
    #[arg(long, value_name = "PATH", conflicts_with = "no_server")]
    pub server: Option<PathBuf>,

    /// Grade here, even if a server of yours is running
    #[arg(long)]
    pub no_server: bool,

    /// Take sandboxes that were made ahead (warm), new ones (cold), or what comes sooner (any)
    #[arg(long, value_name = "HOW", default_value = "any", value_parser = start)]
    pub start: StartRequest,

    /// Break set-up at a step, as step or step:die; for tests
    #[arg(long = "break-at", hide = true, value_name = "STEP")]
    pub fault: Option<String>,

    /// standard or strict
    #[arg(long, default_value = "standard", value_name = "LEVEL")]
    pub level: Level,

    // Last: the heading of a flattened group goes on to whatever follows it in the help.
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is a request, for example:
  {\"language\": \"python\", \"code\": \"print(1)\", \"limits\": {\"wall_ms\": 5000}}
One result a line, in the order of the input: an Outcome, or {\"error\": …}. The exit code is 0 when
every request has an Outcome.")]
pub(crate) struct Batch {
    /// Requests, one JSON object a line; - for standard input
    pub file: PathBuf,

    /// Runs at once [default: one for each core]
    #[arg(long, value_name = "N")]
    pub parallel: Option<usize>,

    /// CPU time that all runs together may use
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub budget_cpu_time: Option<u64>,

    /// Real time for the whole batch
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub budget_time: Option<u64>,

    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,

    #[command(flatten)]
    pub audit: audit::AuditArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
For the configuration of an MCP client: {\"mcpServers\": {\"belljar\": {\"command\": \"belljar\", \"args\": [\"mcp\"]}}}.
The tools are those of your running server; where none runs, this process becomes one at the first call, at the usual
socket, until its input ends. A server speaks MCP over HTTP at /mcp by itself.")]
pub(crate) struct Mcp {
    /// Use the server at this socket, and no other
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,

    /// The state directory of a server that is started here [default: as of belljar serve]
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar screen tool.py
  echo 'rm -rf /' | belljar screen --language bash -
  belljar screen --json --rules own.toml tool.py
  belljar screen --list                            # every rule, with its reason

This is advice from reading the code; the sandbox is the wall, whatever this says. What the code does
by names that are only known when it runs, nobody can read. Whether the text is a program at all is
asked of the language itself, in a sandbox. The exit code is 0 when nothing was found that `belljar
run --screen refuse` would refuse, 1 when something was.

A file of rules is TOML:
  refuse = \"high\"                  # what --screen refuse refuses; medium unless told
  off = [\"python/open-write\"]
  severity = { \"python/socket\" = \"high\" }
  [[rule]]
  id = \"no-boto\"
  language = \"python\"
  severity = \"medium\"
  reason = \"speaks to the cloud\"
  modules = [\"boto3\"]              # or calls, commands, redirects, query")]
pub(crate) struct Screen {
    /// The program: a file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "list", conflicts_with = "list")]
    pub program: Option<PathBuf>,

    /// python, bash or node; else told by extension or #! line
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,

    /// A file of rules of your own; later ones win
    #[arg(long, value_name = "FILE")]
    pub rules: Vec<PathBuf>,

    /// Print every rule instead
    #[arg(long)]
    pub list: bool,

    #[arg(long)]
    pub json: bool,
}

fn start(word: &str) -> Result<StartRequest, String> {
    match word {
        "any" => Ok(StartRequest::Any),
        "cold" => Ok(StartRequest::Cold),
        "warm" => Ok(StartRequest::Warm),
        _ => Err("is none of any, cold, warm".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The exit code is 0 when level standard works here, 1 when it does not; with \
--attack also 1 when any probe escaped."
)]
pub(crate) struct Doctor {
    /// Attack each level that works here with the built-in probes and print a score table
    #[arg(long)]
    pub attack: bool,

    /// Only these levels (with --attack)
    #[arg(long, value_name = "LEVEL", requires = "attack")]
    pub level: Vec<Level>,

    /// As root: install what is missing, showing each file before it is written
    #[arg(long, conflicts_with = "attack")]
    pub fix: bool,

    /// The user that --fix delegates cgroups to
    #[arg(long, value_name = "NAME", requires = "fix")]
    pub user: Option<String>,

    /// With --fix: write without asking
    #[arg(long, requires = "fix")]
    pub yes: bool,

    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Format {
    #[arg(long)]
    pub json: bool,
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let time = units::parse_duration(text)?;
    u64::try_from(time.as_millis()).map_err(|_| format!("{text} is longer than can be counted"))
}
