//! How often somebody may run something, and how much CPU time a label may use. Every refusal names the
//! rule, and says when to come back.

mod budget;
mod rate;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use axum::response::Response;
use belljar::audit::Caller;
use belljar::{Error, Outcome, RunRequest};
use hyper::StatusCode;
use hyper::header::HeaderValue;

use crate::http::Server;
use crate::policy::Applied;
use crate::principal::Principal;
use crate::problem::{Problem, Refusal};
use budget::{Budgets, Reserved};

pub use budget::CpuBudget;
pub use rate::Rate;
pub(crate) use rate::{Left, Limiter};

/// What an operator allows.
#[derive(Clone, Debug, Default)]
pub struct LimitOptions {
    /// For each key; the token is one.
    pub keys: Option<Rate>,
    /// For each user of the Unix socket.
    pub local: Option<Rate>,
    /// For each value of a label: `sandbox` names what a run belongs to.
    pub labels: Vec<(String, Rate)>,
    /// For each sandbox that stays: what begins in it.
    pub sandboxes: Option<Rate>,
    /// For each value of a label.
    pub cpu: Vec<(String, CpuBudget)>,
}

#[derive(Debug)]
pub(crate) struct Limits {
    keys: Option<Limiter>,
    local: Option<Limiter>,
    labels: Vec<(String, Limiter)>,
    sandboxes: Option<Limiter>,
    budgets: Budgets,
}

/// Runs that may begin: what is left of the caller's rate, and what is kept free of budgets.
#[derive(Debug)]
pub(crate) struct Admitted {
    left: Option<Left>,
    /// Each with the place of its request.
    reserved: Vec<(usize, Reserved)>,
}

impl Limits {
    /// What was used of a budget before is read from the audit trail, where there is one.
    pub(crate) fn new(options: &LimitOptions, audit: Option<&Path>) -> Self {
        let labels = options.labels.iter().map(|(name, rate)| (name.clone(), Limiter::new(*rate)));
        Self {
            keys: options.keys.map(Limiter::new),
            local: options.local.map(Limiter::new),
            labels: labels.collect(),
            sandboxes: options.sandboxes.map(Limiter::new),
            budgets: Budgets::new(&options.cpu, audit),
        }
    }

    /// Lets a caller's requests begin, all of them or none; each has its own rules.
    pub(crate) fn admit(
        &self,
        caller: &Caller,
        asked: &[RunRequest],
        applied: &[Applied],
    ) -> Result<Admitted, Problem> {
        let left = self.admit_all(caller, applied)?;
        for one in asked {
            self.admit_labels(caller, &one.labels)?;
        }
        // Last: whoever is refused above has nothing to give back.
        let reserved = self.budgets.reserve(tenant_of(caller.key.as_deref()), asked)?;
        Ok(Admitted { left, reserved })
    }

    /// Lets a program begin in a sandbox that stays, told by its id and labels. For its caller it counts as a run does.
    pub(crate) fn admit_exec(
        &self,
        caller: &Caller,
        (sandbox, labels): (&str, &BTreeMap<String, String>),
        applied: &Applied,
    ) -> Result<Option<Left>, Problem> {
        let left = self.admit_caller(caller, applied)?;
        self.admit_labels(caller, labels)?;
        if let Some(limiter) = &self.sandboxes {
            let told = |no: rate::No| no.told("rate-sandbox", "the sandbox");
            limiter.take(sandbox, 1).map_err(told)?;
        }
        Ok(left)
    }

    /// Counted for each tenant: what one sends under a label costs no other, and tells no other of it.
    pub(crate) fn admit_labels(
        &self,
        caller: &Caller,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), Problem> {
        let tenant = tenant_of(caller.key.as_deref());
        for (name, limiter) in &self.labels {
            let Some(value) = labels.get(name) else { continue };
            let rule = format!("rate-label {name}");
            let told = |no: rate::No| no.told(&rule, &format!("{name}={value}"));
            limiter.take(&of_tenant(tenant, value), 1).map_err(told)?;
        }
        Ok(())
    }

    pub(crate) fn admit_caller(
        &self,
        caller: &Caller,
        applied: &Applied,
    ) -> Result<Option<Left>, Problem> {
        self.admit_all(caller, std::slice::from_ref(applied))
    }

    /// So many as there are rules for. A rate of the policy for its key stands in for that of the flags; one for a label,
    /// which the caller chose, counts beside it.
    fn admit_all(&self, caller: &Caller, applied: &[Applied]) -> Result<Option<Left>, Problem> {
        let (rule, limiter, who) = match (&caller.key, caller.uid) {
            (Some(key), _) => ("rate", &self.keys, key.clone()),
            (None, uid) => ("rate-local", &self.local, format!("uid {}", uid.unwrap_or_default())),
        };
        let mut counted: Vec<(String, &Limiter, u32)> = Vec::new();
        let mut stands_in = false;
        for (section, limiter, is_label) in applied.iter().flat_map(Applied::run_rates) {
            let rule = format!("{section}.rate");
            stands_in |= !is_label;
            match counted.iter_mut().find(|(known, ..)| *known == rule) {
                Some((.., count)) => *count += 1,
                None => counted.push((rule, limiter, 1)),
            }
        }
        if let (false, Some(limiter)) = (stands_in, limiter) {
            let count = u32::try_from(applied.len()).unwrap_or(u32::MAX);
            counted.push((rule.to_owned(), limiter, count));
        }
        let mut left: Option<Left> = None;
        for (rule, limiter, count) in counted {
            let one = limiter.take(&who, count).map_err(|no| no.told(&rule, &who))?;
            left = left.filter(|left| left.remaining <= one.remaining).or(Some(one));
        }
        Ok(left)
    }
}

/// Whose records and labels are meant by a caller's name; the owner has none.
fn tenant_of(key: Option<&str>) -> &str {
    match key {
        None | Some("token") => "",
        Some(key) => key.split('/').next().unwrap_or_default(),
    }
}

/// A label's value as it is counted.
fn of_tenant(tenant: &str, value: &str) -> String {
    format!("{tenant}/{value}")
}

impl Limits {
    /// Lets a request of any kind in, as the policy says.
    pub(crate) fn admit_request(
        &self,
        server: &Server,
        principal: &Principal,
    ) -> Result<(), Problem> {
        if !server.policy.has_file() {
            return Ok(());
        }
        let Some(who) = &principal.caller.key else { return Ok(()) };
        let none = std::collections::BTreeMap::new();
        let applied = server.policy.of(principal, &none);
        for (section, limiter) in applied.request_rates() {
            let rule = format!("{section}.requests");
            limiter.take(who, 1).map_err(|no| no.told(&rule, who))?;
        }
        Ok(())
    }
}

impl Left {
    /// Says it in an answer.
    pub(crate) fn mark(left: Option<&Self>, response: &mut Response) {
        let Some(left) = left else { return };
        let headers = response.headers_mut();
        for (name, value) in [
            ("ratelimit-limit", u64::from(left.limit)),
            ("ratelimit-remaining", u64::from(left.remaining)),
            ("ratelimit-reset", left.reset.as_secs()),
        ] {
            headers.insert(name, HeaderValue::from(value));
        }
        // The same as the newer drafts of the IETF write it.
        let (remaining, reset, limit) = (left.remaining, left.reset.as_secs(), left.limit);
        let window = left.window.as_secs();
        for (name, value) in [
            ("ratelimit", format!("\"runs\";r={remaining};t={reset}")),
            ("ratelimit-policy", format!("\"runs\";q={limit};w={window}")),
        ] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
    }
}

impl Admitted {
    pub(crate) fn left(&self) -> Option<Left> {
        self.left.clone()
    }

    /// Gives back what a run did not use. Dropped without this, it used all that it could have.
    pub(crate) fn settle(&mut self, index: usize, result: &Result<Outcome, Error>) {
        let used_ms = match result {
            Ok(outcome) => outcome.limits.get("cpu_ms").and_then(|one| one.used),
            // Nothing ran.
            Err(
                Error::Spec(_)
                | Error::Setup { .. }
                | Error::Unavailable { .. }
                | Error::Busy { .. },
            ) => Some(0),
            Err(_) => None,
        };
        for (_, one) in self.reserved.extract_if(.., |(of, _)| *of == index) {
            match used_ms {
                Some(used_ms) => one.settle(used_ms),
                None => drop(one),
            }
        }
    }
}

/// Too much, by which rule, and until when.
fn too_much(kind: &str, rule: &str, detail: String, retry_after: Duration) -> Problem {
    let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, kind, detail);
    // Rounded up: whoever comes back then is let in.
    let retry_after_s = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
    let refusal = Refusal { rule: rule.to_owned(), retry_after_s: Some(retry_after_s.max(1)) };
    problem.refusal = Some(Box::new(refusal));
    problem
}
