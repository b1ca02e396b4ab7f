//! What a request may reach outside its sandbox, and which secrets it may use: for a tenant nothing that no rule names.

use belljar::{EgressEntry, EgressRule, SecretRequest};

use super::Applied;
use super::check::{Section, words};
use crate::problem::Problem;

/// Where HTTP and HTTPS are: what is meant where no port is said.
const USUAL_PORTS: [u16; 2] = [80, 443];

impl Applied {
    pub(crate) fn check_egress(&self, field: &str, asked: &[EgressEntry]) -> Result<(), Problem> {
        if asked.is_empty() {
            return Ok(());
        }
        let told: Vec<_> = self.sections().filter_map(|one| one.egress(field, asked)).collect();
        if told.is_empty() && self.is_tenant {
            return Err(Problem::field(
                field,
                "names hosts, and no rule of the policy lists any in egress",
            ));
        }
        told.into_iter().collect()
    }

    pub(crate) fn check_secrets(
        &self,
        field: &str,
        asked: &[SecretRequest],
    ) -> Result<(), Problem> {
        if asked.is_empty() {
            return Ok(());
        }
        let told: Vec<_> = self.sections().filter_map(|one| one.secrets(field, asked)).collect();
        if told.is_empty() && self.is_tenant {
            return Err(Problem::field(
                field,
                "names secrets, and no rule of the policy lists any in secrets",
            ));
        }
        told.into_iter().collect()
    }
}

impl Section<'_> {
    /// Nothing where no rule speaks of hosts.
    fn egress(&self, field: &str, asked: &[EgressEntry]) -> Option<Result<(), Problem>> {
        let may = self.rules.egress.as_ref()?;
        let beyond = asked.iter().find_map(|entry| beyond(entry, may));
        Some(match beyond {
            None => Ok(()),
            Some(one) => {
                let why = format!("has {one}, and there may be {}", words(may));
                Err(self.refuse("egress", field, &why))
            }
        })
    }

    fn secrets(&self, field: &str, asked: &[SecretRequest]) -> Option<Result<(), Problem>> {
        let may = self.rules.secrets.as_ref()?;
        let beyond = asked.iter().find(|secret| !may.contains(&secret.name));
        Some(match beyond {
            None => Ok(()),
            Some(one) => {
                let why = format!("has {:?}, and there may be {}", one.name, words(may));
                Err(self.refuse("secrets", field, &why))
            }
        })
    }
}

/// The first part of an entry that the list does not cover.
fn beyond(entry: &EgressEntry, may: &[String]) -> Option<String> {
    let rule = match entry {
        EgressEntry::Text(text) if text.starts_with('@') => {
            return (!may.contains(text)).then(|| text.clone());
        }
        EgressEntry::Text(text) => {
            let (host, ports) = parts(text);
            EgressRule { hosts: vec![host.to_owned()], ports, ..EgressRule::default() }
        }
        EgressEntry::Rule(rule) => rule.clone(),
    };
    // Which ranges that are not public a name may lead to is the operator's to say, in a set.
    if !rule.addresses.is_empty() {
        return Some("addresses, which only a set of the operator's has".to_owned());
    }
    let ports = if rule.ports.is_empty() { USUAL_PORTS.to_vec() } else { rule.ports };
    let wanted = rule.hosts.iter().flat_map(|host| ports.iter().map(move |port| (host, *port)));
    let mut uncovered =
        wanted.filter(|(host, port)| !may.iter().any(|one| covers(one, host, *port)));
    uncovered.next().map(|(host, port)| format!("{host}:{port}"))
}

/// Whether a listed host, `example.com[:PORT,…]` or `*.example.com`, covers this one at this port.
fn covers(listed: &str, host: &str, port: u16) -> bool {
    let (pattern, ports) = parts(listed);
    let ports: &[u16] = if ports.is_empty() { &USUAL_PORTS } else { &ports };
    let (pattern, host) = (pattern.to_ascii_lowercase(), host.to_ascii_lowercase());
    let is_below = |below: &str| host.len() > below.len() && host.ends_with(below);
    let is_covered = pattern == host || pattern.strip_prefix('*').is_some_and(is_below);
    is_covered && ports.contains(&port)
}

/// The host and its ports; a port that is none is one that nothing covers.
fn parts(text: &str) -> (&str, Vec<u16>) {
    let colon = text.rfind(':').filter(|at| !text[*at..].contains(']'));
    match colon {
        None => (text, Vec::new()),
        Some(at) => {
            let ports = text[at + 1..].split(',').map(|port| port.parse().unwrap_or(0));
            (&text[..at], ports.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(may: &[&str], asked: &str) -> Option<String> {
        let may: Vec<String> = may.iter().map(|&one| one.to_owned()).collect();
        beyond(&serde_json::from_str(asked).unwrap(), &may)
    }

    #[test]
    fn hosts_are_covered_by_name_wildcard_port_and_set() {
        let may = ["api.example.com", "*.example.org", "db.example.com:5432", "@packages"];
        for good in [
            r#""api.example.com""#,
            r#""API.example.com:443""#,
            r#""a.b.example.org:80,443""#,
            r#""*.example.org""#,
            r#""db.example.com:5432""#,
            r#""@packages""#,
            r#"{"hosts": ["api.example.com", "x.example.org"], "methods": ["GET"]}"#,
        ] {
            assert_eq!(refused(&may, good), None, "{good}");
        }
        for (bad, what) in [
            (r#""example.org""#, "example.org:80"),
            (r#""evilexample.org""#, "evilexample.org:80"),
            (r#""*.example.com""#, "*.example.com:80"),
            (r#""api.example.com:22""#, "api.example.com:22"),
            (r#""db.example.com""#, "db.example.com:80"),
            (r#""@other""#, "@other"),
            (r#"{"hosts": ["api.example.com", "else.example"]}"#, "else.example:80"),
        ] {
            assert_eq!(refused(&may, bad).as_deref(), Some(what));
        }
        let private = r#"{"hosts": ["api.example.com"], "addresses": ["10.0.0.0/8"]}"#;
        assert!(refused(&may, private).is_some_and(|why| why.starts_with("addresses")));
    }
}
