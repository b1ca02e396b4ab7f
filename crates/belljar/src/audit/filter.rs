//! Which runs are meant.

use super::entry::Summary;
use crate::model::error::SpecError;
use crate::model::event::{EventKind, Risk};

/// Narrows a list of runs. Every part that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Labels by name, with their values where they matter.
    pub labels: Vec<(String, Option<String>)>,
    /// The word of a verdict, or `error`, `cancelled`, `unfinished`, `running`.
    pub verdict: Option<String>,
    /// Begun at or after this.
    pub since_us: Option<u64>,
    /// Begun before this.
    pub until_us: Option<u64>,
    /// A user's name or number, or the name of a key.
    pub user: Option<String>,
    /// Has an event of this kind.
    pub event: Option<EventKind>,
    /// At least this risk.
    pub risk: Option<Risk>,
    /// Came with the request of this name.
    pub request_id: Option<String>,
    /// Runs of this tenant's keys alone. No word of a question says it.
    pub tenant: Option<String>,
}

const VERDICTS: [&str; 13] = [
    "exited",
    "signaled",
    "wall_time_limit",
    "cpu_time_limit",
    "memory_limit",
    "output_limit",
    "disk_limit",
    "syscall_denied",
    "start_failed",
    "error",
    "cancelled",
    "unfinished",
    "running",
];

impl Filter {
    /// A filter from words, as people and programs write them; `field` of a mistake is the word's name.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = (&'a str, &'a str)>,
        now_us: u64,
    ) -> Result<Self, SpecError> {
        let mut filter = Self::default();
        for (name, value) in words {
            match name {
                "label" => {
                    let (name, value) = value
                        .split_once('=')
                        .map_or((value, None), |(n, v)| (n, Some(v.to_owned())));
                    filter.labels.push((name.to_owned(), value));
                }
                "verdict" => filter.verdict = Some(one_of(name, value, &VERDICTS)?),
                "since" => filter.since_us = Some(moment(name, value, now_us)?),
                "until" => filter.until_us = Some(moment(name, value, now_us)?),
                "user" => filter.user = Some(value.to_owned()),
                "request_id" => filter.request_id = Some(value.to_owned()),
                "event" => {
                    let kinds = EventKind::ALL.map(EventKind::name);
                    let found = one_of(name, value, &kinds)?;
                    filter.event = EventKind::ALL.into_iter().find(|kind| kind.name() == found);
                }
                "risk" => {
                    let all = [Risk::Low, Risk::Medium, Risk::High, Risk::Critical];
                    let found = one_of(name, value, &all.map(Risk::name))?;
                    filter.risk = all.into_iter().find(|risk| risk.name() == found);
                }
                _ => {
                    let reason = "is no filter: there are label, verdict, since, until, user, event, risk, request_id";
                    return Err(SpecError::new(name, reason));
                }
            }
        }
        Ok(filter)
    }

    /// Whether it lets everything through.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn matches(&self, began_us: u64, verdict: &str, summary: &Summary) -> bool {
        let labelled = |(name, value): &(String, Option<String>)| {
            let found = summary.labels.get(name);
            found.is_some_and(|found| value.as_ref().is_none_or(|value| found == value))
        };
        let by = |user: &String| {
            let uid = summary.uid.map(|uid| uid.to_string());
            [&summary.user, &summary.key, &uid].into_iter().flatten().any(|one| one == user)
        };
        self.tenant.as_ref().is_none_or(|tenant| summary.is_of(tenant))
            && self.request_id.as_ref().is_none_or(|id| summary.request_id.as_ref() == Some(id))
            && self.labels.iter().all(labelled)
            && self.verdict.as_ref().is_none_or(|wanted| wanted == verdict)
            && self.since_us.is_none_or(|since| began_us >= since)
            && self.until_us.is_none_or(|until| began_us < until)
            && self.user.as_ref().is_none_or(by)
            && self.event.is_none_or(|kind| summary.events.contains_key(kind.name()))
            && self.risk.is_none_or(|least| summary.risk.is_some_and(|risk| risk >= least))
    }
}

fn one_of(name: &str, value: &str, known: &[&str]) -> Result<String, SpecError> {
    if known.contains(&value) {
        return Ok(value.to_owned());
    }
    Err(SpecError::new(name, format!("is \"{value}\": there are {}", known.join(", "))))
}

/// A moment: a date, a date with a time (UTC), or so long ago.
pub(super) fn moment(name: &str, value: &str, now_us: u64) -> Result<u64, SpecError> {
    let wrong = || {
        let reason = format!(
            "is \"{value}\": write 2026-01-31, 2026-01-31T12:00:00Z, or 90m, 24h, 30d for so long ago"
        );
        SpecError::new(name, reason)
    };
    let whole = match value.len() {
        10 => format!("{value}T00:00:00Z"),
        _ => value.to_owned(),
    };
    if let Some(at) = super::read_time(&whole) {
        return Ok(at);
    }
    let digits = value.len() - value.trim_start_matches(|one: char| one.is_ascii_digit()).len();
    let (number, unit) = value.split_at(digits);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ago = number.checked_mul(seconds).and_then(|one| one.checked_mul(1_000_000));
    Ok(now_us.saturating_sub(ago.ok_or_else(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    #[test]
    fn moments_are_dates_or_so_long_ago() {
        let of = |text: &str| moment("since", text, NOW);
        assert_eq!(of("1970-01-02"), Ok(86_400_000_000));
        assert_eq!(of("1970-01-01T00:00:01Z"), Ok(1_000_000));
        assert_eq!(of("90m"), Ok(NOW - 5_400_000_000));
        assert_eq!(of("2d"), Ok(NOW - 172_800_000_000));
        for wrong in ["", "yesterday", "5", "d", "99999999999999999999d", "2026-13-01"] {
            let error = of(wrong).unwrap_err();
            assert!(error.to_string().starts_with("since is \""), "{error}");
        }
    }

    #[test]
    fn every_part_must_hold() {
        let summary = Summary {
            uid: Some(7),
            user: Some("ann".into()),
            labels: [("team".to_owned(), "red".to_owned())].into(),
            events: [("escape_attempt".to_owned(), 1)].into(),
            risk: Some(Risk::High),
            ..Summary::default()
        };
        let holds = |words: &[(&str, &str)]| {
            Filter::parse(words.iter().copied(), NOW).unwrap().matches(1000, "exited", &summary)
        };
        for (name, fits, not) in [
            ("label", "team=red", "team=blue"),
            ("label", "team", "other"),
            ("verdict", "exited", "error"),
            ("user", "ann", "bob"),
            ("user", "7", "8"),
            ("event", "escape_attempt", "timeout_exceeded"),
            ("risk", "medium", "critical"),
            ("since", "1970-01-01", "1970-01-02"),
            ("until", "1970-01-02", "1970-01-01"),
        ] {
            assert!(holds(&[(name, fits)]), "{name} {fits}");
            assert!(!holds(&[(name, not)]), "{name} {not}");
            assert!(!holds(&[("user", "ann"), (name, not)]), "{name} {not}");
        }
    }

    #[test]
    fn unknown_words_are_told_with_the_known_ones() {
        for (name, value, hint) in [
            ("verdict", "crashed", "memory_limit"),
            ("risk", "huge", "critical"),
            ("colour", "red", "label"),
        ] {
            let error = Filter::parse([(name, value)], NOW).unwrap_err();
            assert!(error.field == name && error.reason.contains(hint), "{error}");
        }
    }
}
