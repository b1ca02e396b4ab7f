//! What the way out tells: refusals as events, and what was reached.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use belljar_jail::egress::{
    FIRST_NAME, Host, PROXY, PROXY_PORT, RANGE, Range, Reached, Refused, Rule, SOCKS_PORT, Told,
    Why,
};

use super::{Tally, process, shown, time_of};
use crate::model::event::{Event, EventKind, Severity};
use crate::model::wording;

/// Where clouds keep an instance's secrets: the usual address.
const METADATA: &str = "169.254.169.254";
/// Refusals that one run's events hold.
const MAX_REFUSALS: usize = 512;
/// Hosts of a ledger, and one more line for the rest.
const MAX_REACHED: usize = 1025;

/// What a connection to an address means where there is a way out.
pub(super) enum Meaning {
    /// The egress process answers, and tells of it.
    Passes,
    /// The host is allowed at other ports only, so nobody listens.
    Closed(String),
    /// No address of ours.
    Elsewhere,
}

pub(super) fn meaning(rules: &[Rule], target: SocketAddr) -> Meaning {
    let IpAddr::V4(address) = target.ip() else { return Meaning::Elsewhere };
    let port = target.port();
    let ours = Range { address: RANGE.0.into(), bits: RANGE.1 }.holds(address.into());
    let named = rules
        .iter()
        .flat_map(|rule| &rule.hosts)
        .any(|host| *host == Host::Address(address.into()));
    if !ours && !named {
        return Meaning::Elsewhere;
    }
    let proxy = address == PROXY && [PROXY_PORT, SOCKS_PORT].contains(&port);
    if proxy || rules.iter().any(|rule| rule.ports.contains(&port)) {
        return Meaning::Passes;
    }
    Meaning::Closed(name_of(rules, address).unwrap_or_else(|| address.to_string()))
}

/// The name that an address stands for, if the policy spells it out: the egress process numbers them in this order.
fn name_of(rules: &[Rule], address: Ipv4Addr) -> Option<String> {
    let place = address.to_bits().checked_sub(FIRST_NAME.to_bits())?;
    let mut names: Vec<&String> = Vec::new();
    for host in rules.iter().flat_map(|rule| &rule.hosts) {
        if let Host::Exact(name) = host
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names.get(usize::try_from(place).ok()?).map(|name| (*name).clone())
}

pub(super) fn closed_port(host: &str, port: u16) -> Event {
    let refused = Refused {
        time_ms: 0,
        number: 0,
        host: host.to_owned(),
        port,
        why: Why::Port,
        detail: String::new(),
        count: 1,
        from: None,
        program: None,
    };
    event(&refused)
}

impl Tally {
    /// With what may be reached, which says what a refusal means.
    pub(crate) fn with_egress(mut self, rules: &[Rule]) -> Self {
        self.rules_out = rules.to_vec();
        self
    }

    /// What was reached so far.
    pub(crate) fn reached(&self) -> Vec<Reached> {
        let mut reached = self.reached.clone();
        reached.sort_by(|one, other| (&one.host, one.port).cmp(&(&other.host, other.port)));
        reached
    }

    pub(crate) fn hear_egress(&mut self, told: &Told) {
        match told {
            Told::Ready | Told::Obeyed => {}
            Told::Refused(refused) => self.take_refusal(refused),
            Told::Reached(lines) => lines.iter().for_each(|line| self.take_line(line)),
        }
    }

    fn take_refusal(&mut self, refused: &Refused) {
        let known = self.refusals.get(&refused.number).and_then(|at| self.events.get_mut(*at));
        if let Some(known) = known {
            known.count = known.count.max(refused.count);
            return;
        }
        let event = event(refused);
        let like = self.events.iter().position(|known| known.is_like(&event));
        if let Some(place) = like {
            self.refusals.insert(refused.number, place);
            self.events[place].count += event.count;
        } else if self.refusals.len() < MAX_REFUSALS {
            self.refusals.insert(refused.number, self.events.len());
            self.tell(event);
        }
    }

    fn take_line(&mut self, line: &Reached) {
        let same = |known: &Reached| (&known.host, known.port) == (&line.host, line.port);
        match self.reached.iter().position(same) {
            Some(place) => self.reached[place].clone_from(line),
            None if self.reached.len() < MAX_REACHED => self.reached.push(line.clone()),
            None => {}
        }
    }
}

/// A refusal as an event: what was tried, which rule refused, and the line that would allow it.
pub(crate) fn event(refused: &Refused) -> Event {
    let (kind, severity) = weight(refused);
    let host = shown::plain(refused.host.as_bytes());
    let detail = shown::plain(refused.detail.as_bytes());
    Event {
        kind,
        severity,
        time: time_of(refused.time_ms),
        process: refused.program.as_ref().and_then(process),
        syscall: None,
        detail: wording::egress_refused(refused.why, &host, refused.port, &detail),
        rule: format!("egress/{}", rule(refused.why)),
        fix: wording::egress_fix(refused.why, &host, refused.port, &detail),
        count: refused.count,
    }
}

fn weight(refused: &Refused) -> (EventKind, Severity) {
    match refused.why {
        Why::Name | Why::Port | Why::Method | Why::Path => {
            (EventKind::PermissionDenied, Severity::Low)
        }
        Why::Address if refused.detail == METADATA => (EventKind::EscapeAttempt, Severity::High),
        Why::Address => (EventKind::EscapeAttempt, Severity::Medium),
        Why::Sni | Why::Host => (EventKind::EscapeAttempt, Severity::High),
        Why::Framing => (EventKind::SuspiciousBehavior, Severity::Medium),
        Why::Protocol => (EventKind::PermissionDenied, Severity::Low),
        Why::Unreachable | Why::Tightened => (EventKind::PermissionDenied, Severity::Info),
        Why::Placeholder => (EventKind::EscapeAttempt, Severity::High),
        Why::Canary => (EventKind::SuspiciousBehavior, Severity::Critical),
        Why::Certificate => (EventKind::SuspiciousBehavior, Severity::Medium),
        Why::Http2 | Why::Encoded | Why::Distrusted => (EventKind::PermissionDenied, Severity::Low),
        Why::Budget => (EventKind::ResourceLimitExceeded, Severity::Low),
        Why::Crashed => (EventKind::SuspiciousBehavior, Severity::High),
    }
}

const fn rule(why: Why) -> &'static str {
    match why {
        Why::Name => "name",
        Why::Port => "port",
        Why::Address => "address",
        Why::Unreachable => "unreachable",
        Why::Sni => "sni",
        Why::Host => "host",
        Why::Protocol => "protocol",
        Why::Framing => "framing",
        Why::Method => "method",
        Why::Path => "path",
        Why::Budget => "budget",
        Why::Tightened => "tightened",
        Why::Placeholder => "placeholder",
        Why::Canary => "canary",
        Why::Certificate => "certificate",
        Why::Http2 => "http2",
        Why::Encoded => "encoded",
        Why::Distrusted => "distrusted",
        Why::Crashed => "crashed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Vec<Rule> {
        let exact = |name: &str| Host::Exact(name.into());
        let below = Host::Below("c.example".into());
        let first =
            Rule { hosts: vec![exact("a.example"), below], ports: vec![443], ..Rule::default() };
        let second = Rule {
            hosts: vec![exact("b.example"), exact("a.example")],
            ports: vec![22],
            ..Rule::default()
        };
        vec![first, second]
    }

    #[test]
    fn an_address_of_ours_is_told_by_the_name_it_stands_for() {
        let at = |text: &str| meaning(&rules(), text.parse().unwrap());
        assert!(matches!(at("198.18.1.1:25"), Meaning::Closed(name) if name == "b.example"));
        assert!(matches!(at("198.18.1.0:443"), Meaning::Passes));
        assert!(matches!(at("198.18.0.1:3128"), Meaning::Passes));
        assert!(matches!(at("198.19.0.0:25"), Meaning::Closed(name) if name == "198.19.0.0"));
        assert!(matches!(at("10.0.0.1:443"), Meaning::Elsewhere));
        assert!(matches!(at("[2001:db8::1]:443"), Meaning::Elsewhere));
    }

    #[test]
    fn a_refusal_names_the_line_that_would_allow_it() {
        let refused = |why, port| Refused {
            time_ms: 0,
            number: 0,
            host: "a.example".into(),
            port,
            why,
            detail: String::new(),
            count: 2,
            from: None,
            program: None,
        };
        let name = event(&refused(Why::Name, 0));
        assert_eq!(
            (name.fix.as_str(), name.rule.as_str(), name.count),
            ("--egress a.example", "egress/name", 2)
        );
        assert_eq!(event(&refused(Why::Port, 25)).fix, "--egress a.example:25");
        assert_eq!(event(&refused(Why::Name, 8080)).fix, "--egress a.example:8080");
        assert_eq!(event(&refused(Why::Sni, 443)).severity, Severity::High);
    }
}
