//! CPU time that the runs of a label may use together in a time. What a run may use is kept free for it
//! before it begins, so that a budget is never exceeded and no limit is ever changed.

use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar::RunRequest;
use belljar::audit::{self, Filter};
use belljar::store::Store;
use belljar::units::parse_duration;

use super::{of_tenant, tenant_of, too_much};
use crate::problem::Problem;

/// Values of a label that are told apart; what is beyond shares one budget.
const MOST_VALUES: usize = 100_000;
const OTHERS: &str = "\0others";
/// When only runs that go on are in the way, one of them may end soon.
const SOON: Duration = Duration::from_secs(1);

/// CPU time in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuBudget {
    cpu_ms: u64,
    period: Duration,
}

impl FromStr for CpuBudget {
    type Err = String;

    /// `600s/h`: six hundred seconds of CPU time in every hour.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a budget: write 600s/h, 90m/d, 30s/m");
        let (cpu, period) = text.split_once('/').ok_or_else(wrong)?;
        let cpu = parse_duration(cpu).map_err(|_| wrong())?;
        let period = Duration::from_secs(match period {
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        });
        let cpu_ms = u64::try_from(cpu.as_millis()).map_err(|_| wrong())?;
        Ok(Self { cpu_ms, period })
    }
}

/// The time that is being counted for one value.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    used_ms: u64,
    reserved_ms: u64,
}

#[derive(Debug)]
struct Rule {
    label: String,
    budget: CpuBudget,
    windows: Mutex<HashMap<String, Window>>,
}

#[derive(Debug)]
pub(super) struct Budgets(Vec<Arc<Rule>>);

/// CPU time that is kept free for a run.
#[derive(Debug)]
pub(super) struct Reserved {
    rule: Arc<Rule>,
    value: String,
    /// Nothing once it was settled.
    reserved_ms: u64,
}

impl Budgets {
    pub(super) fn new(rules: &[(String, CpuBudget)], trail: Option<&Path>) -> Self {
        let rules = rules.iter().map(|(label, budget)| {
            let windows =
                trail.and_then(|trail| used_before(trail, label, *budget)).unwrap_or_default();
            let windows = Mutex::new(windows);
            Arc::new(Rule { label: label.clone(), budget: *budget, windows })
        });
        Self(rules.collect())
    }

    /// Keeps free what the requests may use; each with its place among them.
    pub(super) fn reserve(
        &self,
        tenant: &str,
        asked: &[RunRequest],
    ) -> Result<Vec<(usize, Reserved)>, Problem> {
        let mut all = Vec::new();
        for rule in &self.0 {
            for (index, request) in asked.iter().enumerate() {
                let Some(value) = request.labels.get(&rule.label) else { continue };
                // What cannot be resolved is refused by the engine, and uses nothing.
                let Ok(limits) = request.limits.resolve() else { continue };
                let who = (tenant, value.as_str());
                let reserved = Rule::reserve(rule, who, limits.cpu_ms, Instant::now());
                match reserved {
                    Ok(reserved) => all.push((index, reserved)),
                    Err(problem) => {
                        all.into_iter().for_each(|(_, one): (usize, Reserved)| one.settle(0));
                        return Err(problem);
                    }
                }
            }
        }
        Ok(all)
    }
}

impl Rule {
    fn reserve(
        rule: &Arc<Self>,
        (tenant, value): (&str, &str),
        asked_ms: u64,
        now: Instant,
    ) -> Result<Reserved, Problem> {
        let CpuBudget { cpu_ms, period } = rule.budget;
        let (name, shown) =
            (format!("cpu-budget {}", rule.label), format!("{}={value}", rule.label));
        if asked_ms > cpu_ms {
            let reason = format!(
                "is {asked_ms}, more than the whole budget of {shown}, {cpu_ms} ms (rule {name})"
            );
            return Err(Problem::field("limits.cpu_ms", &reason));
        }
        let mut windows = rule.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= MOST_VALUES {
            windows.retain(|_, one| one.reserved_ms > 0 || now.duration_since(one.began) < period);
        }
        let value = of_tenant(tenant, value);
        let full = windows.len() >= MOST_VALUES && !windows.contains_key(&value);
        let value = if full { OTHERS.to_owned() } else { value };
        let fresh = Window { began: now, used_ms: 0, reserved_ms: 0 };
        let window = windows.entry(value.clone()).or_insert(fresh);
        if now.duration_since(window.began) >= period {
            *window = Window { reserved_ms: window.reserved_ms, ..fresh };
        }
        if window.used_ms + window.reserved_ms + asked_ms <= cpu_ms {
            window.reserved_ms += asked_ms;
            drop(windows);
            return Ok(Reserved { rule: Arc::clone(rule), value, reserved_ms: asked_ms });
        }
        let until_end = period.saturating_sub(now.duration_since(window.began));
        let wait =
            if window.used_ms + asked_ms <= cpu_ms { SOON.min(until_end) } else { until_end };
        let detail = format!(
            "{shown} has used {} ms of its {cpu_ms} ms of CPU time, {} ms are kept for runs that go on, and this \
             one may use {asked_ms} ms (rule {name}): come back in {:.0} s, or ask for less with limits.cpu_ms",
            window.used_ms,
            window.reserved_ms,
            wait.as_secs_f64().ceil()
        );
        Err(too_much("budget_spent", &name, detail, wait))
    }

    fn settle(&self, value: &str, reserved_ms: u64, used_ms: u64) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = windows.get_mut(value) {
            window.reserved_ms = window.reserved_ms.saturating_sub(reserved_ms);
            window.used_ms = window.used_ms.saturating_add(used_ms);
        }
    }
}

impl Reserved {
    pub(super) fn settle(mut self, used_ms: u64) {
        let reserved_ms = std::mem::take(&mut self.reserved_ms);
        self.rule.settle(&self.value, reserved_ms, used_ms);
    }
}

impl Drop for Reserved {
    /// Nobody knows what was used: all that could have been.
    fn drop(&mut self) {
        if self.reserved_ms > 0 {
            self.rule.settle(&self.value, self.reserved_ms, self.reserved_ms);
        }
    }
}

/// What the audit trail says was used in the time before now. A trail that cannot be read is told by others.
fn used_before(trail: &Path, label: &str, budget: CpuBudget) -> Option<HashMap<String, Window>> {
    let now_us = audit::now_us();
    let period_us = u64::try_from(budget.period.as_micros()).ok()?;
    let filter = Filter {
        labels: vec![(label.to_owned(), None)],
        since_us: Some(now_us.saturating_sub(period_us)),
        ..Filter::default()
    };
    let runs = audit::list(&Store::read(trail).ok()?, &filter, None, usize::MAX).ok()?;
    let mut windows = HashMap::new();
    let now = Instant::now();
    for run in runs {
        let Some(value) = run.summary.labels.get(label) else { continue };
        let tenant = tenant_of(run.summary.key.as_deref());
        let age = now_us.saturating_sub(run.summary.began_us.unwrap_or(now_us));
        let began = now.checked_sub(Duration::from_micros(age)).unwrap_or(now);
        let window = windows.entry(of_tenant(tenant, value)).or_insert(Window {
            began,
            used_ms: 0,
            reserved_ms: 0,
        });
        window.began = window.began.min(began);
        let used = Duration::try_from_secs_f64(run.summary.cpu_ms.unwrap_or_default() / 1000.0);
        window.used_ms += used.map_or(0, |used| u64::try_from(used.as_millis()).unwrap_or(0));
    }
    Some(windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Arc<Rule> {
        let budget = text.parse().unwrap();
        Arc::new(Rule { label: "team".into(), budget, windows: Mutex::default() })
    }

    #[test]
    fn budgets_are_read_and_mistakes_told() {
        let budget: CpuBudget = "600s/h".parse().unwrap();
        assert_eq!((budget.cpu_ms, budget.period.as_secs()), (600_000, 3600));
        for wrong in ["", "600", "600s", "600s/x", "x/h", "600s/"] {
            assert!(wrong.parse::<CpuBudget>().unwrap_err().contains("is not a budget"), "{wrong}");
        }
    }

    #[test]
    fn what_runs_may_use_is_kept_free_and_what_they_did_not_use_given_back() {
        let (rule, now) = (rule("10s/m"), Instant::now());
        let first = Rule::reserve(&rule, ("", "red"), 6000, now).unwrap();
        let told = Rule::reserve(&rule, ("", "red"), 6000, now).unwrap_err();
        assert_eq!((told.status, &*told.kind), (429, "budget_spent"));
        let refusal = told.refusal.unwrap();
        assert_eq!((refusal.rule.as_str(), refusal.retry_after_s), ("cpu-budget team", Some(1)));
        Rule::reserve(&rule, ("", "blue"), 6000, now).unwrap().settle(0);
        Rule::reserve(&rule, ("else", "red"), 6000, now).unwrap().settle(0);
        first.settle(1000);
        let second = Rule::reserve(&rule, ("", "red"), 6000, now).unwrap();
        drop(second); // nobody knows: all of it
        let told =
            Rule::reserve(&rule, ("", "red"), 6000, now + Duration::from_secs(20)).unwrap_err();
        assert_eq!(told.refusal.unwrap().retry_after_s, Some(40), "{}", told.detail);
        assert!(Rule::reserve(&rule, ("", "red"), 3000, now).is_ok());
        assert!(Rule::reserve(&rule, ("", "red"), 6000, now + Duration::from_secs(61)).is_ok());
    }

    #[test]
    fn a_run_that_never_fits_is_told_by_its_field() {
        let told = Rule::reserve(&rule("1s/m"), ("", "red"), 2000, Instant::now()).unwrap_err();
        assert_eq!((told.status, told.field.as_deref()), (400, Some("limits.cpu_ms")));
    }
}
