//! What the operator's file says, as it is written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use belljar::{Level, LimitsRequest, ScreenMode};
use serde::{Deserialize, Deserializer};

use crate::limits::Rate;

/// The whole file. Every section that applies to a request must allow it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PolicyFile {
    /// For every key, and the token.
    pub(crate) default: Rules,
    /// For one key, by name; `token` is the token.
    pub(crate) keys: BTreeMap<String, Rules>,
    /// For what has a label: `"team=red"`, or `"team"` for any value. Whoever sends it.
    pub(crate) labels: BTreeMap<String, Rules>,
    pub(crate) server: ServerRules,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerRules {
    /// Records of the audit trail that are older are let go.
    #[serde(deserialize_with = "long_time")]
    pub(crate) retention: Option<Duration>,
}

/// What may be asked for. A rule that is left out forbids nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rules {
    pub(crate) least_level: Option<Level>,
    /// The most of each limit.
    pub(crate) limits: LimitsRequest,
    pub(crate) images: Option<Vec<String>>,
    /// Languages of code. Commands of any kind need the word `command` among them.
    pub(crate) languages: Option<Vec<String>>,
    /// Directories of the host that may be, or hold, a workspace. None unless told, for a key.
    pub(crate) workspaces: Option<Vec<PathBuf>>,
    /// Paths inside that programs may write; all of them where a request names none.
    pub(crate) write_paths: Option<Vec<PathBuf>>,
    /// Layers that may be absent. None where `least_level` is given and this is not.
    pub(crate) allow_missing: Option<Vec<String>>,
    pub(crate) allow_syscalls: Option<Vec<String>>,
    /// Host names that may be reached; `*.example.org` is every name below.
    pub(crate) egress: Option<Vec<String>>,
    /// Secrets that may be used, by name.
    pub(crate) secrets: Option<Vec<String>>,
    /// Code is read at least so.
    pub(crate) screen: Option<ScreenMode>,
    /// Runs in a time.
    pub(crate) rate: Option<Rate>,
    /// Requests of any kind in a time.
    pub(crate) requests: Option<Rate>,
    /// Runs at once of one tenant.
    pub(crate) concurrent_runs: Option<usize>,
    /// Sandboxes of one tenant.
    pub(crate) sandboxes: Option<usize>,
    /// The longest that a sandbox may live.
    #[serde(deserialize_with = "long_time")]
    pub(crate) retention: Option<Duration>,
}

impl PolicyFile {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for name in file.labels.keys() {
            if name.is_empty() || name.starts_with('=') {
                return Err(format!("labels.\"{name}\" must be \"name=value\" or \"name\""));
            }
        }
        Ok(file)
    }
}

/// `30d`, `12h`, `90m`, `45s`.
fn long_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    read_time(&text).map(Some).ok_or_else(|| {
        serde::de::Error::custom(format!("\"{text}\" is no time: write 30d, 12h, 90m or 45s"))
    })
}

fn read_time(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(Duration::from_secs(number.checked_mul(seconds)?)).filter(|time| !time.is_zero())
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_its_mistakes_are_told() {
        let file = PolicyFile::parse(
            "[default]\nleast_level = \"standard\"\n[default.limits]\nwall_ms = 5000\n\
             [keys.ci]\nlanguages = [\"python\"]\nrate = \"10/m\"\nretention = \"2d\"\n\
             [labels.\"team=red\"]\nconcurrent_runs = 2\n[server]\nretention = \"30d\"\n",
        );
        let file = file.unwrap();
        assert_eq!(file.default.limits.wall_ms, Some(5000));
        assert_eq!(file.keys["ci"].retention, Some(Duration::from_secs(2 * 86_400)));
        assert_eq!(file.labels["team=red"].concurrent_runs, Some(2));
        for (wrong, word) in [
            ("[default]\nleast_levle = \"strict\"", "least_levle"),
            ("[default.limits]\nram = 1", "ram"),
            ("[keys.ci]\nrate = \"often\"", "is not a rate"),
            ("[keys.ci]\nretention = \"0d\"", "is no time"),
            ("[labels.\"=x\"]", "must be"),
            ("[default", "TOML"),
        ] {
            let told = PolicyFile::parse(wrong).unwrap_err();
            assert!(told.contains(word), "{told}");
        }
    }
}
