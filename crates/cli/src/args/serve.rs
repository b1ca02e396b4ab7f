//! Arguments of `belljar serve`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use belljar::{ScreenMode, units};
use belljar_server::{CpuBudget, LogForm, LogLevel, Rate};
use clap::Args;

use super::audit;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar serve
  belljar serve --listen none                      # the Unix socket only
  belljar key create ci --expires 30d              # then: Authorization: Bearer bj_…
  belljar serve --policy /etc/belljar/belljar.toml --log-level info --log json
  belljar serve --max-runs 8 --max-queue 200 --drain 10s
  curl --unix-socket $XDG_RUNTIME_DIR/belljar/belljar.sock http://localhost/v1/runs \\
    -d '{\"language\": \"python\", \"code\": \"print(6 * 7)\"}'
  curl http://127.0.0.1:7070/v1/runs -H \"Authorization: Bearer $(cat ~/.local/state/belljar/token)\" \\
    -H 'Accept: application/x-ndjson' -d '{\"language\": \"bash\", \"code\": \"echo hi\"}'

The socket is $BELLJAR_SOCKET; else belljar/belljar.sock in $XDG_RUNTIME_DIR; else, as root, in /run;
else in the state directory. That is $BELLJAR_STATE; else belljar in $XDG_STATE_HOME or ~/.local/state; for root
/var/lib/belljar. The socket serves you and root. TCP needs the token: $BELLJAR_TOKEN, or the file token in the
state directory, which is made at the first start; or a key of belljar key create, which works at once.
An address that others can reach needs --listen-anywhere and a key. While a server of yours is running,
belljar run uses it. SIGTERM and SIGINT let what runs end first; a second one does not wait. SIGHUP reads the
policy again, and ends a server that has none.

/healthz says whether it lives, /readyz whether it takes work, /metrics counts (scope admin), /openapi.json and
/docs tell every operation. The policy is belljar.toml in the state directory unless --policy names another; it
is taken over when it changes, and one with a mistake is not: the one before stays, and the log and /v1/policy
say so. With sockets from systemd (LISTEN_FDS) those are served. Traces go to --otlp or
$OTEL_EXPORTER_OTLP_ENDPOINT.")]
pub(crate) struct Serve {
    /// The TCP address, or none
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", value_parser = listen)]
    pub listen: Listen,

    /// Let --listen be an address that others can reach; there is no TLS
    #[arg(long)]
    pub listen_anywhere: bool,

    /// The Unix socket [default: see below]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    #[command(flatten)]
    pub audit: audit::AuditArgs,

    /// Runs at once [default: two for each core, at least four]
    #[arg(long, value_name = "N")]
    pub max_runs: Option<NonZeroUsize>,

    /// Requests that wait for a run to end; the next is told to come back
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_queue: usize,

    /// Read the code of every run at least so: off, advise or refuse
    #[arg(long, value_name = "MODE", default_value = "off")]
    pub screen: ScreenMode,

    /// A file of screening rules of your own; see `belljar screen --help`
    #[arg(long, value_name = "FILE")]
    pub screen_rules: Vec<PathBuf>,

    /// How long runs may go on after the first signal
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::parse_duration)]
    pub drain: Duration,

    /// Who may propose in /v1/evolutions: a TOML file with a table [NAME] for each, as [proposer] in a task
    #[arg(long, value_name = "FILE")]
    pub proposers: Option<PathBuf>,

    /// Sandboxes kept ready at most; 0 keeps none
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub pool: usize,

    /// Sandboxes kept ready for each language of --warm, however few are used
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub pool_floor: usize,

    /// A language that is ready before anybody asked [default: python, bash, node]
    #[arg(long, value_name = "LANGUAGE")]
    pub warm: Vec<String>,

    /// A module that is loaded before the program comes, as python:numpy
    #[arg(long, value_name = "LANGUAGE:MODULE", value_parser = module)]
    pub preload: Vec<(String, String)>,

    /// Runs, and programs in sandboxes, that each key or token may begin: 100/m, 5/s, 100/m:20 for 20 at once, or off
    #[arg(long, value_name = "RATE", default_value = "100/m", value_parser = rate)]
    pub rate: Rated,

    /// The same for each user of the Unix socket
    #[arg(long, value_name = "RATE", default_value = "off", value_parser = rate)]
    pub rate_local: Rated,

    /// The same for each value of a label, as sandbox=30/m
    #[arg(long, value_name = "LABEL=RATE", value_parser = labelled::<Rate>)]
    pub rate_label: Vec<(String, Rate)>,

    /// Programs that may begin in each sandbox that stays, whoever asks: 30/m
    #[arg(long, value_name = "RATE", default_value = "off", value_parser = rate)]
    pub rate_sandbox: Rated,

    /// CPU time that the runs of each value of a label may use together, as team=600s/h
    #[arg(long, value_name = "LABEL=TIME/PERIOD", value_parser = labelled::<CpuBudget>)]
    pub cpu_budget: Vec<(String, CpuBudget)>,

    /// Sandboxes that stay, in all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub sandboxes: usize,

    /// Disk limits of all sandboxes together [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub sandbox_disk: Option<u64>,

    /// Sandboxes of each owner: a user of the socket, or a key [default: no limit]
    #[arg(long, value_name = "N")]
    pub owner_sandboxes: Option<usize>,

    /// Disk limits of each owner's sandboxes together [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub owner_disk: Option<u64>,

    /// What keys and labels may ask for: a TOML file [default: belljar.toml in the state directory, if it is there]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Connections of each listener at once; the oldest that asks for nothing makes room
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// What is logged to standard error: off, warn, or info for each request too
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: LogLevel,

    /// How: text or json
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub log: LogForm,

    /// A collector of OpenTelemetry traces, by HTTP: http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,

    /// Begin nothing new with less memory available than this; 0 is off
    #[arg(long, value_name = "SIZE", default_value = "128m", value_parser = units::parse_bytes)]
    pub shed_memory: u64,

    /// Begin nothing new while all programs of the host wait for memory for so many percent of the time; 0 is off
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0)]
    pub shed_memory_pressure: f64,

    /// The same for waiting for disks
    #[arg(long, value_name = "PERCENT", default_value_t = 60.0)]
    pub shed_io_pressure: f64,

    /// The same while some program waits for a processor
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub shed_cpu_pressure: f64,

    /// Print the OpenAPI document and end
    #[arg(long, hide = true)]
    pub print_openapi: bool,

    /// With less memory available than this, nothing is kept ready
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = units::parse_bytes)]
    pub memory_reserve: u64,
}

/// A rate, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rated(pub Option<Rate>);

fn rate(word: &str) -> Result<Rated, String> {
    if word == "off" {
        return Ok(Rated(None));
    }
    word.parse().map(|rate| Rated(Some(rate)))
}

fn labelled<T: FromStr<Err = String>>(word: &str) -> Result<(String, T), String> {
    let pair = word.split_once('=').filter(|(label, _)| !label.is_empty());
    let (label, value) = pair.ok_or("must be a label and what counts for it: team=100/m")?;
    Ok((label.to_owned(), value.parse()?))
}

fn module(word: &str) -> Result<(String, String), String> {
    let pair = word.split_once(':').filter(|(name, module)| !name.is_empty() && !module.is_empty());
    let (name, module) = pair.ok_or("must be a language and a module: python:numpy")?;
    Ok((name.to_owned(), module.to_owned()))
}

/// A TCP address, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen(pub Option<SocketAddr>);

fn listen(text: &str) -> Result<Listen, String> {
    if text == "none" {
        return Ok(Listen(None));
    }
    // Names are not looked up: where we listen must not depend on what a name means today.
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    let address = numeric.parse().map_err(|_| {
        "write an address and a port, as in 127.0.0.1:7070 or [::1]:7070, or none".to_owned()
    })?;
    Ok(Listen(Some(address)))
}
