//! Arguments of `belljar key`.

use std::path::PathBuf;

use belljar_server::Scope;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Make a key and print it, once: only a digest of it is kept
    Create(Create),
    /// Print the keys there are, without their secrets
    List(Listed),
    /// Take a key back, by its name or id; a running server refuses it at once
    Revoke(Revoke),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar key create ci
  belljar key create reader --scope sandboxes:read --scope audit:read --expires 30d
  belljar key create ci-2 --tenant ci              # sees what ci sees: to change one key for another
  curl http://127.0.0.1:7070/v1/runs -H \"Authorization: Bearer $KEY\" -d '{\"language\": \"bash\", \"code\": \"id\"}'

Each tenant sees its own sandboxes, runs and records, and nothing of others. What a key may ask for is the
policy's to say, in a section [keys.NAME]: see `belljar serve --help`. Works beside a running server.")]
pub(crate) struct Create {
    /// Lower-case letters, digits and -
    pub name: String,

    /// Whose sandboxes, runs and records it sees [default: its name]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,

    /// runs, sandboxes:read, sandboxes:write, audit:read or admin [default: all but admin]
    #[arg(long, value_name = "SCOPE")]
    pub scope: Vec<Scope>,

    /// Until when: 12h, 30d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = long_time)]
    pub expires: Option<u64>,

    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Listed {
    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// A name or an id
    #[arg(value_name = "NAME|ID")]
    pub which: String,

    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The state directory of the server
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    #[arg(long)]
    pub json: bool,
}

/// Seconds.
fn long_time(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no time: write 30d, 12h, 90m or 45s");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|time| *time > 0).ok_or_else(wrong)
}
