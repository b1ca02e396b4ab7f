//! What is allowed: a plan's rules, asked.

use std::net::IpAddr;

use belljar_jail::egress::{EgressPlan, Host, Range, Rule, Why};

use crate::names::Target;

/// The rules in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    rules: Vec<Rule>,
}

/// What may be done at one host and port: everything that some rule for both allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    rules: Vec<Rule>,
    /// The policy names the address itself.
    own: Vec<Range>,
    /// Of which policy it is: they are counted.
    pub since: u64,
}

impl Policy {
    pub(crate) fn new(plan: &EgressPlan) -> Self {
        Self { rules: plan.rules.clone() }
    }

    /// Whether the name may be asked for.
    pub(crate) fn knows(&self, name: &str) -> bool {
        let target = Target::Name(name.to_owned());
        self.rules.iter().any(|rule| rule.hosts.iter().any(|host| covers(host, &target)))
    }

    pub(crate) fn grant(&self, target: &Target, port: u16) -> Result<Grant, Why> {
        let named: Vec<&Rule> = self
            .rules
            .iter()
            .filter(|rule| rule.hosts.iter().any(|host| covers(host, target)))
            .collect();
        if named.is_empty() {
            return Err(Why::Name);
        }
        let rules: Vec<Rule> =
            named.into_iter().filter(|rule| rule.ports.contains(&port)).cloned().collect();
        if rules.is_empty() {
            return Err(Why::Port);
        }
        let own = match target {
            Target::Address(address) => vec![whole(*address)],
            Target::Name(_) => Vec::new(),
        };
        Ok(Grant { rules, own, since: 0 })
    }
}

fn whole(address: IpAddr) -> Range {
    Range { address, bits: if address.is_ipv4() { 32 } else { 128 } }
}

/// On the borders of labels: `*.example.com` is neither example.com nor notexample.com.
fn covers(host: &Host, target: &Target) -> bool {
    match (host, target) {
        (Host::Exact(name), Target::Name(other)) => name == other,
        (Host::Below(name), Target::Name(other)) => {
            let above = other.strip_suffix(name.as_str());
            above.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        }
        (Host::Address(address), Target::Address(other)) => address == other,
        _ => false,
    }
}

impl Grant {
    /// Any bytes may pass, if they are neither TLS nor HTTP.
    pub(crate) fn is_raw(&self) -> bool {
        !self.inspects() && self.rules.iter().any(|rule| rule.raw && is_open(rule))
    }

    /// What is inside TLS may be anything: some rule asks for no method and no path, and none wants to look.
    pub(crate) fn allows_tls(&self) -> bool {
        !self.inspects() && self.rules.iter().any(is_open)
    }

    /// TLS is ended here: one rule that wants that goes before all that do not.
    pub(crate) fn inspects(&self) -> bool {
        self.rules.iter().any(|rule| rule.inspect)
    }

    pub(crate) fn ranges(&self) -> Vec<Range> {
        let named = self.rules.iter().flat_map(|rule| rule.addresses.iter().copied());
        named.chain(self.own.iter().copied()).collect()
    }

    /// Whether one rule allows both.
    pub(crate) fn allows_request(&self, method: &str, path: &str) -> Result<(), Why> {
        let method_allowed = |rule: &&Rule| {
            rule.methods.is_empty() || rule.methods.iter().any(|known| known == method)
        };
        let mut by_method = self.rules.iter().filter(method_allowed).peekable();
        if by_method.peek().is_none() {
            return Err(Why::Method);
        }
        let below = |rule: &Rule| {
            rule.path_prefixes.is_empty()
                || is_plain(path) && rule.path_prefixes.iter().any(|prefix| is_below(path, prefix))
        };
        if by_method.any(below) { Ok(()) } else { Err(Why::Path) }
    }
}

fn is_open(rule: &Rule) -> bool {
    rule.methods.is_empty() && rule.path_prefixes.is_empty()
}

/// Nothing that a server might read as another path: no dots to climb by, no hidden slashes.
fn is_plain(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    let climbs = path.split('/').any(|part| {
        let name = part.split(';').next().unwrap_or(part); // "..;" is ".." to some servers
        name == "." || name == ".."
    });
    // What is behind a '#' no client sends, and no two servers treat alike.
    has_plain_escapes(path) && !climbs && !path.contains(['\\', '#']) && !path.contains("//")
}

/// Whole escapes of text, and of nothing by which a path is divided or climbed.
fn has_plain_escapes(path: &str) -> bool {
    let (mut decoded, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|one| char::from(*one).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return false };
        let byte = u8::try_from(high * 16 + low).unwrap_or(0);
        if byte.is_ascii_control() || b"./\\%;".contains(&byte) {
            return false;
        }
        decoded.push(byte);
        rest = &after[2..];
    }
    // Otherwise a longer spelling of one of those may be among them.
    String::from_utf8(decoded).is_ok()
}

fn is_below(path: &str, prefix: &str) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    match path.strip_prefix(prefix) {
        Some(rest) => prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: Vec<Rule>) -> Policy {
        Policy { rules }
    }

    fn rule(hosts: &[Host], ports: &[u16]) -> Rule {
        Rule { hosts: hosts.to_vec(), ports: ports.to_vec(), ..Rule::default() }
    }

    fn exact(name: &str) -> Host {
        Host::Exact(name.into())
    }

    fn target(text: &str) -> Target {
        Target::parse(text).unwrap()
    }

    #[test]
    fn a_wildcard_is_what_is_below_on_the_border_of_a_label() {
        let policy = policy(vec![rule(&[Host::Below("example.com".into())], &[443])]);
        for (name, known) in [
            ("a.example.com", true),
            ("a.b.example.com", true),
            ("example.com", false),
            ("notexample.com", false),
            ("example.com.evil.org", false),
            ("a.example.org", false),
        ] {
            assert_eq!(policy.knows(name), known, "{name}");
            assert_eq!(policy.grant(&target(name), 443).is_ok(), known, "{name}");
        }
    }

    #[test]
    fn a_port_belongs_to_the_rule_that_names_it() {
        let policy =
            policy(vec![rule(&[exact("a.example")], &[443]), rule(&[exact("b.example")], &[22])]);
        assert!(policy.grant(&target("a.example"), 443).is_ok());
        assert_eq!(policy.grant(&target("a.example"), 22).unwrap_err(), Why::Port);
        assert_eq!(policy.grant(&target("c.example"), 443).unwrap_err(), Why::Name);
        assert_eq!(policy.grant(&target("1.2.3.4"), 443).unwrap_err(), Why::Name);
    }

    #[test]
    fn one_rule_that_looks_inside_goes_before_those_that_do_not() {
        let open = Rule { raw: true, ..rule(&[exact("a.example"), exact("b.example")], &[443]) };
        let inspected = Rule { inspect: true, ..rule(&[exact("a.example")], &[443, 8443]) };
        let policy = policy(vec![open, inspected]);
        let grant = |name: &str| policy.grant(&target(name), 443).unwrap();
        let (looked, passed) = (grant("a.example"), grant("b.example"));
        assert!(looked.inspects() && !looked.is_raw() && !looked.allows_tls());
        assert!(!passed.inspects() && passed.is_raw() && passed.allows_tls());
        assert_eq!(looked.allows_request("PUT", "/x"), Ok(()));
    }

    #[test]
    fn one_rule_must_allow_method_and_path() {
        let read = Rule {
            methods: vec!["GET".into(), "HEAD".into()],
            path_prefixes: vec!["/simple".into(), "/files/".into()],
            ..rule(&[exact("a.example")], &[80])
        };
        let write = Rule {
            methods: vec!["POST".into()],
            path_prefixes: vec!["/upload".into()],
            ..rule(&[exact("a.example")], &[80])
        };
        let grant = policy(vec![read, write]).grant(&target("a.example"), 80).unwrap();
        assert!(!grant.allows_tls() && !grant.is_raw());
        for (method, path, answer) in [
            ("GET", "/simple", Ok(())),
            ("GET", "/simple/x?q=..", Ok(())),
            ("HEAD", "/files/a", Ok(())),
            ("POST", "/upload", Ok(())),
            ("GET", "/simpleton", Err(Why::Path)),
            ("GET", "/upload", Err(Why::Path)),
            ("POST", "/simple", Err(Why::Path)),
            ("DELETE", "/simple", Err(Why::Method)),
            ("get", "/simple", Err(Why::Method)),
            ("GET", "/simple/../upload", Err(Why::Path)),
            ("GET", "/simple/%2e%2e/upload", Err(Why::Path)),
            ("GET", "/simple/..;/upload", Err(Why::Path)),
            ("GET", "/simple//x", Err(Why::Path)),
            ("GET", "/simple/%252e", Err(Why::Path)),
            ("GET", "/simple\\..", Err(Why::Path)),
            ("GET", "/simple/a%20b%c3%a9", Ok(())),
            ("GET", "/simple/..%3b/upload", Err(Why::Path)),
            ("GET", "/simple/%c0%ae%c0%ae/upload", Err(Why::Path)),
            ("GET", "/simple/%0a", Err(Why::Path)),
            ("GET", "/simple/%2", Err(Why::Path)),
            ("GET", "/simple/%+1", Err(Why::Path)),
            ("GET", "/simple/#/../../upload", Err(Why::Path)),
            ("GET", "http://b.example/simple", Err(Why::Path)),
            ("GET", "/files", Err(Why::Path)),
        ] {
            assert_eq!(grant.allows_request(method, path), answer, "{method} {path}");
        }
    }
}
