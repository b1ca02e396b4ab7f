//! So many runs in a time, for each of many names.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use super::too_much;
use crate::problem::Problem;

/// Names that are told apart at once. Beyond it those that rest are forgotten, which gives them nothing.
const MOST_NAMES: usize = 100_000;
/// What those of one tenant share for whom there is no room.
const OTHERS: &str = "\0others";
/// How often those that rest are looked for: it takes time for each of them.
const SWEEP: Duration = Duration::from_secs(1);

/// A number of runs in a time, and how many of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU32,
    period: Duration,
    burst: NonZeroU32,
}

impl FromStr for Rate {
    type Err = String;

    /// `100/m`, or `100/m:20` for no more than 20 at once.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "\"{text}\" is not a rate: write 100/m, 5/s, 1000/h, or 100/m:20 for 20 at once"
            )
        };
        let (rate, burst) =
            text.split_once(':').map_or((text, None), |(rate, burst)| (rate, Some(burst)));
        let (count, unit) = rate.split_once('/').ok_or_else(wrong)?;
        let count: NonZeroU32 = count.parse().map_err(|_| wrong())?;
        let burst = burst.map_or(Ok(count), |burst| burst.parse().map_err(|_| wrong()))?;
        let period = Duration::from_secs(match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        });
        Ok(Self { count, period, burst })
    }
}

impl Rate {
    fn quota(self) -> Quota {
        let each = self.period / self.count.get();
        // Only a billion a second would be too short to count; then it is as good as none.
        let quota = Quota::with_period(each.max(Duration::from_nanos(1)));
        quota.unwrap_or_else(|| Quota::per_second(NonZeroU32::MAX)).allow_burst(self.burst)
    }
}

/// What is left of a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub limit: u32,
    pub remaining: u32,
    /// Until all of it is there again.
    pub reset: Duration,
    /// In which the limit counts.
    pub window: Duration,
}

/// Why not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum No {
    Later(Duration),
    /// More at once than ever.
    Never {
        most: u32,
        asked: u32,
    },
}

impl No {
    pub(crate) fn told(&self, rule: &str, who: &str) -> Problem {
        match self {
            Self::Later(wait) => {
                let detail = format!(
                    "too many runs of {who} (rule {rule}): come back in {:.1} s",
                    wait.as_secs_f64()
                );
                too_much("rate_limited", rule, detail, *wait)
            }
            Self::Never { most, asked } => {
                let reason =
                    format!("are {asked}, and {who} may begin {most} at once (rule {rule})");
                Problem::field("requests", &reason)
            }
        }
    }
}

type Keyed<C> = RateLimiter<String, DefaultKeyedStateStore<String>, C, StateInformationMiddleware>;

#[derive(Debug)]
pub(crate) struct Limiter<C: Clock = DefaultClock> {
    rate: Rate,
    limiter: Keyed<C>,
    clock: C,
    most: usize,
    swept: Mutex<Option<Instant>>,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self::with_clock(rate, DefaultClock::default())
    }
}

impl<C: Clock + Clone> Limiter<C> {
    fn with_clock(rate: Rate, clock: C) -> Self {
        let store = DefaultKeyedStateStore::default();
        let limiter = Keyed::<C>::new(rate.quota(), store, clock.clone());
        Self { rate, limiter, clock, most: MOST_NAMES, swept: Mutex::default() }
    }

    /// Takes so many of what `who` has left.
    pub(crate) fn take(&self, who: &str, count: u32) -> Result<Left, No> {
        if self.limiter.len() >= self.most {
            self.sweep();
        }
        let who = if self.limiter.len() >= self.most { others(who) } else { who.to_owned() };
        let Some(count) = NonZeroU32::new(count) else {
            return Ok(self.left(self.rate.burst.get()));
        };
        match self.limiter.check_key_n(&who, count) {
            Ok(Ok(state)) => Ok(self.left(state.remaining_burst_capacity())),
            Ok(Err(until)) => Err(No::Later(until.wait_time_from(self.clock.now()))),
            Err(_) => Err(No::Never { most: self.rate.burst.get(), asked: count.get() }),
        }
    }

    fn sweep(&self) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            self.limiter.retain_recent();
            *swept = Some(Instant::now());
        }
    }

    fn left(&self, remaining: u32) -> Left {
        let limit = self.rate.burst.get();
        let each = self.rate.period / self.rate.count.get();
        let reset = each * limit.saturating_sub(remaining);
        Left { limit, remaining, reset, window: self.rate.period }
    }
}

/// Names begin with their tenant's: what one of them makes up costs the others none of their own.
fn others(who: &str) -> String {
    let tenant = who.split_once('/').map_or("", |(tenant, _)| tenant);
    format!("{OTHERS}/{tenant}")
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn rates_are_read_and_mistakes_told() {
        let rate: Rate = "100/m".parse().unwrap();
        assert_eq!((rate.count.get(), rate.burst.get(), rate.period.as_secs()), (100, 100, 60));
        assert_eq!("100/m:20".parse::<Rate>().unwrap().burst.get(), 20);
        for wrong in ["", "100", "0/m", "100/y", "-1/m", "100/m:0", "100/m:x", "1e3/s"] {
            let error = wrong.parse::<Rate>().unwrap_err();
            assert!(error.contains("is not a rate"), "{error}");
        }
    }

    #[test]
    fn bursts_pass_and_then_the_sustained_rate_counts() {
        let clock = FakeRelativeClock::default();
        let limiter = Limiter::with_clock("60/m:3".parse().unwrap(), clock.clone());
        let left = |who: &str| limiter.take(who, 1).map(|left| left.remaining);
        assert_eq!([left("a"), left("a"), left("a")], [Ok(2), Ok(1), Ok(0)]);
        assert_eq!(left("a"), Err(No::Later(Duration::from_secs(1))));
        assert_eq!(left("b"), Ok(2), "each has its own");
        clock.advance(Duration::from_millis(400));
        assert_eq!(left("a"), Err(No::Later(Duration::from_millis(600))));
        clock.advance(Duration::from_millis(600));
        assert_eq!(left("a"), Ok(0));
        clock.advance(Duration::from_secs(60));
        assert_eq!(left("a"), Ok(2), "no more than a burst is saved up");
        assert_eq!(limiter.take("c", 4), Err(No::Never { most: 3, asked: 4 }));
        assert_eq!(limiter.take("c", 3).unwrap().reset, Duration::from_secs(3));
    }

    #[test]
    fn names_beyond_the_most_cost_no_other_tenant() {
        let limiter = Limiter::with_clock("60/m:3".parse().unwrap(), FakeRelativeClock::default());
        let limiter = Limiter { most: 10, ..limiter };
        let taken = (0..100).filter(|n| limiter.take(&format!("one/{n}"), 1).is_ok()).count();
        assert_eq!(taken, 13, "ten of their own, and one more for all the others");
        assert_eq!(limiter.take("two/a", 1).map(|left| left.remaining), Ok(2));
    }
}
