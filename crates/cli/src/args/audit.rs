//! Arguments of the commands that record, and of those that look at what was recorded.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What is recorded, and where.
#[derive(Clone, Debug, Args)]
pub(crate) struct AuditArgs {
    /// Record what is run, whatever BELLJAR_AUDIT says; without it that is done unless there is no home
    #[arg(long, conflicts_with = "no_audit")]
    pub audit: bool,

    /// Record nothing of what is run
    #[arg(long, conflicts_with = "audit_digests")]
    pub no_audit: bool,

    /// Record digests of code and output instead of the text
    #[arg(long)]
    pub audit_digests: bool,

    /// The state directory, which holds the audit trail [default: $BELLJAR_STATE, see serve --help]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar stats
  belljar stats --since 24h --label team=red --json

With a server of yours running, its numbers are asked for; without one, the audit trail is read.")]
pub(crate) struct Stats {
    /// The server's socket [default: as belljar run finds it]
    #[arg(long, value_name = "PATH", conflicts_with = "state")]
    pub server: Option<PathBuf>,

    /// Read the audit trail of this state directory, and ask no server
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[arg(long)]
    pub json: bool,
}

/// Which runs are meant.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// With this label, as name or name=value
    #[arg(long, value_name = "K[=V]")]
    pub label: Vec<String>,

    /// That ended so: exited, signaled, wall_time_limit … or error, cancelled, unfinished, running
    #[arg(long, value_name = "WORD")]
    pub verdict: Option<String>,

    /// Begun since then: 2026-01-31, 2026-01-31T12:00:00Z, or 90m, 24h, 30d ago
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,

    /// Begun before then
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,

    /// Of this user (name or number) or key
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// With an event of this kind
    #[arg(long, value_name = "KIND")]
    pub event: Option<String>,

    /// Of at least this risk: low, medium, high, critical
    #[arg(long, value_name = "RISK")]
    pub risk: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar explain last
  belljar explain 01KPX4V7 --short 400        # to hand to a model
  belljar explain last --json

ID is an execution id, its beginning (6 characters or more), or last.")]
pub(crate) struct Explain {
    #[arg(value_name = "ID")]
    pub id: String,

    /// In so many characters at most
    #[arg(long, value_name = "CHARACTERS", num_args = 0..=1, default_missing_value = "600", conflicts_with = "json")]
    pub short: Option<usize>,

    #[arg(long)]
    pub json: bool,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar report last
  belljar report 01KPX4V7 --html report.html
  belljar report last --json

ID is an execution id, its beginning (6 characters or more), or last.")]
pub(crate) struct Report {
    #[arg(value_name = "ID")]
    pub id: String,

    /// Write one page of HTML to this new file; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,

    #[arg(long)]
    pub json: bool,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// List recorded runs, the newest first
    List(AuditList),
    /// Show all that is recorded of one run
    Show(AuditShow),
    /// Write the trail as lines of JSON, which can be verified on their own
    Export(AuditExport),
    /// Walk the whole chain; name the first record that was changed, removed, reordered or cut off
    Verify(AuditVerify),
    /// Let go of old records; what is left can still be verified
    Prune(AuditPrune),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar audit list --since 24h --risk medium
  belljar audit list --label team=red --verdict memory_limit --json")]
pub(crate) struct AuditList {
    #[command(flatten)]
    pub filter: FilterArgs,

    /// No more than so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,

    /// One JSON object a line
    #[arg(long)]
    pub json: bool,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "ID is an execution id, its beginning (6 characters or more), or last.")]
pub(crate) struct AuditShow {
    #[arg(value_name = "ID")]
    pub id: String,

    #[arg(long)]
    pub json: bool,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar audit export > trail.jsonl
  belljar audit export --out trail.jsonl && belljar audit verify trail.jsonl

With a filter the file holds some of the records: each of them can be verified, not that none is missing.")]
pub(crate) struct AuditExport {
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Write to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar audit verify
  belljar audit verify --head 6f0c…          # the head that you kept elsewhere must be in it
  belljar audit verify trail.jsonl

The exit code is 0 when every record is as it was written, 1 when one is not. Whoever can write to the
state directory can write the whole trail anew: keep the head that this prints in another place.")]
pub(crate) struct AuditVerify {
    /// A file that export wrote, instead of the trail itself
    #[arg(value_name = "FILE", conflicts_with = "state")]
    pub file: Option<PathBuf>,

    /// A hash that an earlier verify printed as its head
    #[arg(long, value_name = "HASH")]
    pub head: Option<belljar::audit::chain::ChainHash>,

    #[arg(long)]
    pub json: bool,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar audit export --out until-june.jsonl && belljar audit prune --before 2026-06-01
  belljar audit prune --before 90d

A run without an end keeps its start, and all that came after it.")]
pub(crate) struct AuditPrune {
    /// Let go of what is older: 2026-01-31, 2026-01-31T12:00:00Z, or 90m, 24h, 30d
    #[arg(long, value_name = "WHEN")]
    pub before: String,

    #[arg(long)]
    pub json: bool,

    /// The state directory [default: as belljar run has it]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}
