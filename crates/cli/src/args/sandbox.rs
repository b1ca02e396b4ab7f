//! The arguments of `belljar sandbox`: a place that stays, by name.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Confine, LimitArgs, milliseconds};

const STATES: [&str; 6] = ["created", "running", "paused", "stopped", "failed", "removing"];

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar sandbox create work --memory 1g --disk 500m
  belljar sandbox exec work -- pip install --user ./wheel.whl
  belljar sandbox shell work                       # a terminal inside
  belljar sandbox shell work -c 'make test'
  belljar sandbox code work -c 'x = 6 * 7; x'      # variables stay
  belljar sandbox cp data.csv work:/workspace/
  belljar sandbox snapshot work before
  belljar sandbox diff work before
  belljar sandbox rollback work before
  belljar sandbox fork work -n 8 --as try          # try-1 … try-8
  belljar sandbox promote try-3 work
  belljar sandbox rm --force work

They go on when this command, or the server, has ended. A running server is spoken to; without one the
command does it itself.")]
pub(crate) struct Sandbox {
    #[command(subcommand)]
    pub command: SandboxCommand,

    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,

    /// The server that listens at this socket, and no other
    #[arg(long, global = true, value_name = "PATH")]
    pub server: Option<PathBuf>,

    /// The state directory, when no server is running
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    /// Make a sandbox and start it
    Create(Box<Create>),
    /// List the sandboxes
    #[command(visible_alias = "ls-all")]
    List(List),
    /// Tell all that is known of one: state, resource use, receipt, the last error
    Info(Name),
    /// Run a program in one, without a shell
    Exec(Exec),
    /// Run a script in one; without -c, a terminal
    Shell(Shell),
    /// Run code in a context that keeps its variables
    Code(Code),
    /// Run Python code in a sandbox that is made for it and torn down after it
    #[command(visible_alias = "run_python")]
    RunPython(Box<Once>),
    /// Run a script by bash in a sandbox that is made for it and torn down after it
    #[command(visible_alias = "run_shell")]
    RunShell(Box<Once>),
    /// List contexts, or interrupt, restart or remove one
    Contexts(Contexts),
    /// List the execs of one
    Execs(Name),
    /// Follow an exec that runs in the background, from where you like
    Attach(Attach),
    /// Send a signal to an exec
    Signal(SignalArgs),
    /// Print what its execs wrote
    Logs(Logs),
    /// End what runs in it, in order; files stay
    Stop(Stop),
    /// Start one that was stopped
    Start(Name),
    /// Change what it may reach, at once: exactly these hosts, or none
    Egress(Egress),
    /// Hold everything in it still
    Pause(Name),
    /// Let it go on
    Resume(Name),
    /// End what runs in it at once; files stay
    Kill(Name),
    /// Remove one with all its files
    Rm(Remove),
    /// Copy a file or a tree in or out: one side is NAME:PATH
    Cp(Copy),
    /// List files inside
    Ls(PathInside),
    /// Watch a directory inside, until interrupted
    Watch(Watch),
    /// Keep a point to come back to
    Snapshot(Snapshot),
    /// List the points of one
    Snapshots(Snapshots),
    /// Make the files what they were at a point; what runs is ended
    Rollback(Point),
    /// Tell what differs: since it was made, since a point, or between two
    Diff(Diff),
    /// Go back to before the last exec (of a sandbox made with --undo)
    Undo(Name),
    /// Take an undo back
    Redo(Name),
    /// Make others with the same files, which go their own ways
    Fork(Fork),
    /// Test that a sandbox and its forks have nothing in common but files
    CheckFork(CheckFork),
    /// Let a fork take the place of another sandbox
    Promote(Promote),
    /// Write a sandbox's files as one portable file
    Export(Export),
    /// Make a sandbox of such a file
    Import(Import),
    /// What a copy-on-write workspace has changed: list, commit to the host, or discard
    #[command(subcommand)]
    Workspace(WorkspaceCommand),
}

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// The sandbox
    pub name: String,
}

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Egress {
    pub name: String,

    /// HOST[:PORT[,PORT]], *.example.com, or @SET of belljar.toml; nothing is reached if none is given
    #[arg(value_name = "HOST[:PORT]")]
    pub hosts: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Lower-case letters, digits and -; made up when left out
    pub name: Option<String>,

    /// What its files begin with: host is the one of this version
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,

    /// Set a variable for everything that runs in it
    #[arg(long = "env", value_name = "K=V")]
    pub env: Vec<String>,

    /// Give its programs a secret by name, hidden in all that they say; with hosts they get a placeholder, which
    /// becomes the value on its way to them; see `belljar secret --help`
    #[arg(long = "secret", value_name = "NAME[=env:VAR][@HOST,…]")]
    pub secrets: Vec<String>,

    /// A label, as name=value
    #[arg(long = "label", value_name = "K=V")]
    pub labels: Vec<String>,

    /// Let it reach a host by name: HOST[:PORT[,PORT]], *.example.com, or @SET of belljar.toml
    #[arg(long = "egress", value_name = "HOST[:PORT]")]
    pub egress: Vec<String>,

    /// A host directory at /workspace: read-only, :rw, or :cow (changes stay inside until committed)
    #[arg(long, value_name = "DIR[:rw|:cow]")]
    pub workspace: Option<String>,

    /// A named volume at /workspace, made when it is not there
    #[arg(long, value_name = "NAME", conflicts_with = "workspace")]
    pub volume: Option<String>,

    /// Stop it when nothing has run in it for so long
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub idle: Option<u64>,

    /// Remove it, with its files, after so long
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub ttl: Option<u64>,

    /// Keep a point to go back to before each exec
    #[arg(long)]
    pub undo: bool,

    /// Let programs write beneath this path only; may be given again
    #[arg(long = "write-path", value_name = "PATH")]
    pub write_paths: Vec<PathBuf>,

    #[command(flatten)]
    pub confine: Confine,

    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only those with this label
    #[arg(long = "label", value_name = "K=V")]
    pub labels: Vec<String>,

    /// Only those in this state: created, running, paused, stopped, failed, removing
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    pub in_state: Option<String>,
}

/// What `exec` and `shell` have in common.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// The directory to run it in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,

    /// Set a variable
    #[arg(long = "env", value_name = "K=V")]
    pub env: Vec<String>,

    /// As whom it runs: sandbox is the one user there is inside
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Give it this file as standard input; - reads ours to its end first
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,

    /// End it after so long [default: the sandbox's --timeout]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub timeout: Option<u64>,

    /// Print its id and let it go on; see `attach`
    #[arg(long)]
    pub background: bool,

    /// Leave its standard input open, for `attach`
    #[arg(long, requires = "background")]
    pub keep_stdin: bool,

    /// Let control sequences through to the terminal as they are
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    pub name: String,

    #[command(flatten)]
    pub how: How,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD ARGS")]
    pub cmd: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Shell {
    pub name: String,

    /// The script, for bash
    #[arg(short = 'c', value_name = "SCRIPT", allow_hyphen_values = true)]
    pub script: Option<String>,

    #[command(flatten)]
    pub how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Code {
    pub name: String,

    /// A file of code, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "code", conflicts_with = "code")]
    pub file: Option<PathBuf>,

    /// The code as text
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// The context [default: the language's own]
    #[arg(long, value_name = "C")]
    pub context: Option<String>,

    /// python, bash or node [default: python]
    #[arg(short, long, value_name = "LANGUAGE")]
    pub language: Option<String>,

    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub timeout: Option<u64>,
}

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Once {
    /// A file of code, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "code", conflicts_with = "code")]
    pub file: Option<PathBuf>,

    /// The code as text
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub code: Option<String>,

    /// Give it this file as standard input; - reads ours to its end first
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,

    /// The directory to run it in [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,

    /// Set a variable
    #[arg(long = "env", value_name = "K=V")]
    pub env: Vec<String>,

    /// A host directory at /workspace: read-only, :rw, or :cow (changes are lost with the sandbox)
    #[arg(long, value_name = "DIR[:rw|:cow]")]
    pub workspace: Option<String>,

    /// A named volume at /workspace, made when it is not there
    #[arg(long, value_name = "NAME", conflicts_with = "workspace")]
    pub volume: Option<String>,

    /// Let control sequences through to the terminal as they are
    #[arg(long)]
    pub raw: bool,

    #[command(flatten)]
    pub confine: Confine,

    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Contexts {
    pub name: String,

    /// Make a new one of this language
    #[arg(long, value_name = "LANGUAGE", conflicts_with_all = ["interrupt", "restart", "remove"])]
    pub create: Option<String>,

    /// Interrupt what runs in this one
    #[arg(long, value_name = "C")]
    pub interrupt: Option<String>,

    /// Start this one anew, without its variables
    #[arg(long, value_name = "C")]
    pub restart: Option<String>,

    /// Remove this one
    #[arg(long, value_name = "C")]
    pub remove: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Attach {
    pub name: String,

    /// The exec
    pub id: String,

    /// Begin at this byte of its standard output
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub from: u64,

    /// Send it our standard input, as it comes
    #[arg(long)]
    pub stdin: bool,

    /// Let control sequences through to the terminal as they are
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SignalArgs {
    pub name: String,
    /// The exec
    pub id: String,
    /// TERM, INT, KILL, HUP, USR1 …, or a number
    #[arg(default_value = "TERM")]
    pub signal: String,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    pub name: String,

    /// The last N lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,

    /// Go on until interrupted
    #[arg(long)]
    pub follow: bool,

    /// Let control sequences through to the terminal as they are
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    pub name: String,

    /// How long programs have to end by themselves
    #[arg(long, value_name = "TIME", value_parser = milliseconds, default_value = "5s")]
    pub grace: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,

    /// Also if it is running
    #[arg(long, short)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// A host path, or NAME:PATH
    #[arg(value_name = "A")]
    pub from: String,
    /// A host path, or NAME:PATH
    #[arg(value_name = "B")]
    pub to: String,
}

#[derive(Debug, Args)]
pub(crate) struct PathInside {
    pub name: String,
    #[arg(default_value = "/workspace")]
    pub path: String,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub place: PathInside,

    /// Also everything below it
    #[arg(long, short)]
    pub recursive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    pub name: String,
    /// What to call it [default: its number]
    pub tag: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshots {
    pub name: String,

    /// Remove this one
    #[arg(long, value_name = "TAG")]
    pub remove: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Point {
    pub name: String,
    pub tag: String,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    pub name: String,
    /// A point, or `image` [default: image]
    pub from: Option<String>,
    /// A point, or `now` [default: now]
    pub to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Fork {
    pub name: String,

    /// How many
    #[arg(short = 'n', value_name = "N", default_value_t = 1)]
    pub count: u32,

    /// Their name; with a number after it when there are several
    #[arg(long = "as", value_name = "NEW")]
    pub new_name: Option<String>,

    /// Hand this variable on though it looks like a secret; may be given again
    #[arg(long = "keep-env", value_name = "NAME")]
    pub keep_env: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckFork {
    pub name: String,

    /// Sandboxes to compare with [default: two forks that are made for it and removed]
    pub forks: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Promote {
    /// The fork
    pub fork: String,
    /// Whose place it takes; that one is removed
    pub name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    pub name: String,
    /// The file to write; - is standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// A point [default: now]
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file to read; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to call it; made up when left out
    pub name: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkspaceCommand {
    /// List what changed
    Changes(Name),
    /// Write changes to the host's directory
    Commit(Commit),
    /// Forget the changes
    Discard(Name),
}

#[derive(Debug, Args)]
pub(crate) struct Commit {
    pub name: String,

    /// Only these paths, relative to the workspace; those that tools run by themselves must be named
    pub paths: Vec<String>,

    /// Also where the host's file has changed meanwhile
    #[arg(long)]
    pub force: bool,
}
