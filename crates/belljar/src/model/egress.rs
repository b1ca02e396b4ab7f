//! What a sandbox may reach of the outside, as it is asked for: hosts by name, and what may be asked of them.

use std::fmt;
use std::net::IpAddr;

use belljar_jail::egress::{Host, MAX_HOSTS, MAX_PORTS, Range, Rule};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::SpecError;

/// Where HTTP and HTTPS are.
const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// The longest name, with its dots (RFC 1035).
const MAX_NAME: usize = 253;
/// Inside, these are the resolver's and the proxies'.
const TAKEN_PORTS: [u16; 3] = [53, 1080, 3128];
const MAX_METHODS: usize = 32;
const MAX_PREFIXES: usize = 64;

/// One entry of `egress`: `"HOST[:PORT[,PORT…]]"`, `"@SET"` for a set of the operator's, or a rule as an object.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum EgressEntry {
    Text(String),
    Rule(EgressRule),
}

/// Hosts, and what may be asked of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EgressRule {
    /// `example.com`, `*.example.com` (what is below, not the name itself), or an address.
    pub hosts: Vec<String>,
    /// 80 and 443 if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// HTTP methods, in capitals; all if empty. With one, TLS does not pass unless it is looked into (`inspect`): what is
    /// asked inside cannot be seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// What paths begin with, on the border of a segment; any if empty. As above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path_prefixes: Vec<String>,
    /// What may be spoken; by default `web` at ports 80 and 443, and `tcp` at others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Ranges that are not public, such as `10.0.0.0/8`, which these names may lead to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Whether TLS to these hosts is ended on the way, so that all of this and the host's name hold inside, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inspect: bool,
}

/// What may be spoken with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TLS or HTTP/1.1, for the host that is allowed and no other.
    Web,
    /// Anything; what is TLS or HTTP is checked all the same.
    Tcp,
}

/// What was reached at one host and port, as [`belljar_jail::egress::Reached`] is told.
#[derive(JsonSchema)]
#[schemars(rename = "Reached")]
#[expect(
    dead_code,
    reason = "only its shape is used: the crate that has the type knows no schemas"
)]
pub(crate) struct ReachedShape {
    host: String,
    port: u16,
    connections: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Serialize for EgressEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Rule(rule) => rule.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for EgressEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = EgressEntry;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("\"HOST[:PORT]\", \"@SET\", or an object with hosts")
            }

            fn visit_str<E>(self, text: &str) -> Result<EgressEntry, E> {
                Ok(EgressEntry::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EgressEntry, A::Error> {
                let rule = EgressRule::deserialize(MapAccessDeserializer::new(map));
                rule.map(EgressEntry::Rule)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl From<&str> for EgressEntry {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl EgressEntry {
    /// The set that it names.
    pub(crate) fn set(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.strip_prefix('@'),
            Self::Rule(_) => None,
        }
    }

    /// As a rule; a set is the operator's, and none of its own.
    fn rule(&self) -> Result<EgressRule, SpecError> {
        match self {
            Self::Rule(rule) => Ok(rule.clone()),
            Self::Text(text) => {
                let (host, ports) = host_and_ports(text)?;
                Ok(EgressRule { hosts: vec![host.to_owned()], ports, ..EgressRule::default() })
            }
        }
    }
}

fn wrong(reason: String) -> SpecError {
    SpecError::new("egress", reason)
}

/// `HOST:PORT,PORT`; an IPv6 address has brackets, so its colons are none of these.
fn host_and_ports(text: &str) -> Result<(&str, Vec<u16>), SpecError> {
    if text.contains('/') {
        return Err(not_a_name(text));
    }
    let colon = text.rfind(':').filter(|at| !text[*at..].contains(']'));
    let Some(colon) = colon else {
        return Ok((text, Vec::new()));
    };
    let ports = text[colon + 1..].split(',').map(|port| {
        let plain = port.bytes().all(|one| one.is_ascii_digit());
        port.parse().ok().filter(|port| plain && *port != 0).ok_or_else(|| {
            wrong(format!("\"{text}\": \"{port}\" is not a port: write HOST:443 or HOST:80,443"))
        })
    });
    Ok((&text[..colon], ports.collect::<Result<_, _>>()?))
}

/// Checks all entries, of which none names a set any more.
pub(crate) fn resolve(entries: &[EgressEntry]) -> Result<Vec<Rule>, SpecError> {
    let mut rules = Vec::new();
    for entry in entries {
        rules.extend(checked(&entry.rule()?)?);
    }
    let hosts: usize = rules.iter().map(|rule| rule.hosts.len()).sum();
    if hosts > MAX_HOSTS {
        return Err(wrong(format!(
            "names {hosts} hosts, more than {MAX_HOSTS}: use *.example.com"
        )));
    }
    let mut ports: Vec<u16> = rules.iter().flat_map(|rule| rule.ports.clone()).collect();
    ports.sort_unstable();
    ports.dedup();
    if ports.len() > MAX_PORTS {
        return Err(wrong(format!("names {} ports, more than {MAX_PORTS}", ports.len())));
    }
    Ok(rules)
}

/// One rule, or two: at the ports of the web nothing else passes.
fn checked(rule: &EgressRule) -> Result<Vec<Rule>, SpecError> {
    if rule.hosts.is_empty() {
        return Err(wrong(
            "has a rule without hosts: give \"hosts\": [\"example.com\"]".to_owned(),
        ));
    }
    let hosts = rule.hosts.iter().map(|text| host(text)).collect::<Result<Vec<_>, _>>()?;
    let mut ports = rule.ports.clone();
    if ports.is_empty() {
        ports.extend(DEFAULT_PORTS);
    }
    if let Some(port) = ports.iter().find(|port| **port == 0 || TAKEN_PORTS.contains(port)) {
        let reason =
            format!("names port {port}, which is the sandbox's own (its resolver, its proxy)");
        return Err(wrong(reason));
    }
    check_requests(rule)?;
    let addresses = rule.addresses.iter().map(|text| range(text)).collect::<Result<_, _>>()?;
    let whole = Rule {
        hosts,
        ports,
        raw: false,
        methods: rule.methods.clone(),
        path_prefixes: rule.path_prefixes.clone(),
        addresses,
        inspect: rule.inspect,
    };
    if let Some(address) = whole.hosts.iter().find(|one| matches!(one, Host::Address(_)))
        && rule.inspect
    {
        let reason = format!("has {address} with inspect: TLS is ended for hosts by name alone");
        return Err(wrong(reason));
    }
    let of_requests = rule.inspect || !rule.methods.is_empty() || !rule.path_prefixes.is_empty();
    match rule.protocol {
        Some(Protocol::Tcp) if of_requests => Err(wrong(
            "has methods, path_prefixes or inspect with protocol tcp: only HTTP has them, use web"
                .to_owned(),
        )),
        Some(protocol) => Ok(vec![Rule { raw: protocol == Protocol::Tcp, ..whole }]),
        None if of_requests => Ok(vec![whole]),
        None => {
            let (web, other): (Vec<u16>, Vec<u16>) =
                whole.ports.iter().partition(|port| DEFAULT_PORTS.contains(port));
            let parts = [(web, false), (other, true)].into_iter().filter(|part| !part.0.is_empty());
            Ok(parts.map(|(ports, raw)| Rule { ports, raw, ..whole.clone() }).collect())
        }
    }
}

fn check_requests(rule: &EgressRule) -> Result<(), SpecError> {
    if rule.methods.len() > MAX_METHODS || rule.path_prefixes.len() > MAX_PREFIXES {
        let reason = format!("has more than {MAX_METHODS} methods or {MAX_PREFIXES} path_prefixes");
        return Err(wrong(reason));
    }
    let is_method = |text: &String| {
        !text.is_empty() && text.bytes().all(|one| one.is_ascii_uppercase() || one == b'-')
    };
    if let Some(method) = rule.methods.iter().find(|one| !is_method(one)) {
        return Err(wrong(format!("has the method \"{method}\": write it in capitals, as GET")));
    }
    let is_prefix = |text: &String| {
        text.starts_with('/') && text.bytes().all(|one| one.is_ascii_graphic() && one != b'?')
    };
    if let Some(prefix) = rule.path_prefixes.iter().find(|one| !is_prefix(one)) {
        return Err(wrong(format!("has the path prefix \"{prefix}\": it must begin with /")));
    }
    Ok(())
}

/// A host as it is compared: lower case, no dot at the end, one notation of addresses.
fn host(text: &str) -> Result<Host, SpecError> {
    let plain = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = plain.parse::<IpAddr>() {
        return Ok(Host::Address(address));
    }
    if text == "*" {
        let reason = "\"*\" would be every host: name those that are needed, or *.example.com";
        return Err(wrong(reason.to_owned()));
    }
    let (name, below) = match text.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (text, false),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let labels = name.split('.').all(is_label);
    let last = name.rsplit('.').next().unwrap_or(name);
    let number = last.bytes().all(|one| one.is_ascii_digit()) || last.starts_with("0x");
    if name.is_empty() || name.len() > MAX_NAME || !labels || number {
        return Err(not_a_name(text));
    }
    let name = name.to_ascii_lowercase();
    if below && !name.contains('.') {
        let reason = format!("\"{text}\" would be a whole top-level domain: name what is needed");
        return Err(wrong(reason));
    }
    Ok(if below { Host::Below(name) } else { Host::Exact(name) })
}

fn not_a_name(text: &str) -> SpecError {
    wrong(format!(
        "\"{text}\" is not a host name: write example.com, *.example.com or an address, without scheme \
         or path"
    ))
}

fn is_label(label: &str) -> bool {
    let plain = |one: u8| one.is_ascii_alphanumeric() || one == b'-' || one == b'_';
    !label.is_empty()
        && label.len() <= 63
        && label.bytes().all(plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// `ADDRESS` or `ADDRESS/BITS`.
fn range(text: &str) -> Result<Range, SpecError> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let parsed = address.parse::<IpAddr>().ok().and_then(|address| {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits =
            bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most))?;
        Some(Range { address, bits })
    });
    parsed.ok_or_else(|| wrong(format!("has the range \"{text}\": write it as 10.0.0.0/8")))
}

/// What of it is not public: an address that is named, or a range that is allowed.
pub(crate) fn private_part(entry: &EgressEntry) -> Result<Option<String>, SpecError> {
    let rule = entry.rule()?;
    let hosts = rule.hosts.iter().map(|text| host(text)).collect::<Result<Vec<_>, _>>()?;
    let named = hosts.into_iter().find_map(|host| match host {
        Host::Address(address) if !belljar_egress::is_public(address) => Some(address.to_string()),
        Host::Address(_) | Host::Exact(_) | Host::Below(_) => None,
    });
    Ok(named.or_else(|| rule.addresses.first().cloned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(entries: &[&str]) -> Vec<Rule> {
        let entries: Vec<EgressEntry> = entries.iter().map(|one| (*one).into()).collect();
        resolve(&entries).unwrap()
    }

    #[test]
    fn a_host_alone_is_the_web() {
        let found = rules(&["Example.COM."]);
        let wanted = Rule {
            hosts: vec![Host::Exact("example.com".into())],
            ports: vec![80, 443],
            ..Rule::default()
        };
        assert_eq!(found, [wanted]);
    }

    #[test]
    fn ports_of_the_web_and_others_are_ruled_apart() {
        let found = rules(&["*.example.com:443,22"]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].ports.as_slice(), found[0].raw), (&[443][..], false));
        assert_eq!((found[1].ports.as_slice(), found[1].raw), (&[22][..], true));
        assert_eq!(found[1].hosts, [Host::Below("example.com".into())]);
        let six = rules(&["[2606:4700::1]:443"]);
        assert_eq!(six[0].hosts, [Host::Address("2606:4700::1".parse().unwrap())]);
    }

    #[test]
    fn what_is_wrong_is_told_with_the_way_out() {
        for (text, words) in [
            ("https://example.com", "scheme"),
            ("example.com/x", "path"),
            ("*", "every host"),
            ("*.com", "top-level"),
            ("example.com:0", "port"),
            ("example.com:http", "port"),
            ("example.com:53", "sandbox's own"),
            ("exa mple.com", "host name"),
            ("127.1", "host name"),
            ("a*.example.com", "host name"),
            ("user@example.com", "host name"),
            ("", "host name"),
            ("0x7f000001", "host name"),
            ("example.com:+80", "port"),
        ] {
            let error = resolve(&[text.into()]).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_rule_comes_as_an_object_and_unknown_words_are_named() {
        let json = r#"["a.example", {"hosts": ["b.example"], "methods": ["GET"], "path_prefixes": ["/simple/"]}]"#;
        let entries: Vec<EgressEntry> = serde_json::from_str(json).unwrap();
        let found = resolve(&entries).unwrap();
        assert_eq!(found[1].methods, ["GET"]);
        assert!(!found[1].raw);
        let error = serde_json::from_str::<EgressEntry>(r#"{"hots": []}"#).unwrap_err();
        assert!(error.to_string().contains("hots"), "{error}");
        assert!(serde_json::from_str::<EgressEntry>("5").is_err());
        let back = serde_json::to_string(&entries).unwrap();
        assert_eq!(serde_json::from_str::<Vec<EgressEntry>>(&back).unwrap(), entries);
        for (rule, words) in [
            (EgressRule::default(), "without hosts"),
            (
                EgressRule {
                    hosts: vec!["a.example".into()],
                    methods: vec!["get".into()],
                    ..EgressRule::default()
                },
                "capitals",
            ),
            (
                EgressRule {
                    hosts: vec!["a.example".into()],
                    path_prefixes: vec!["x".into()],
                    ..EgressRule::default()
                },
                "begin with /",
            ),
            (
                EgressRule {
                    hosts: vec!["a.example".into()],
                    addresses: vec!["10/8".into()],
                    ..EgressRule::default()
                },
                "10.0.0.0/8",
            ),
            (
                EgressRule {
                    hosts: vec!["a.example".into()],
                    methods: vec!["GET".into()],
                    protocol: Some(Protocol::Tcp),
                    ..EgressRule::default()
                },
                "use web",
            ),
            (
                EgressRule {
                    hosts: vec!["a.example".into()],
                    protocol: Some(Protocol::Tcp),
                    inspect: true,
                    ..EgressRule::default()
                },
                "use web",
            ),
            (
                EgressRule {
                    hosts: vec!["192.0.2.7".into()],
                    inspect: true,
                    ..EgressRule::default()
                },
                "by name alone",
            ),
        ] {
            let error = resolve(&[EgressEntry::Rule(rule)]).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_looked_into_is_the_web_at_every_port() {
        let rule = EgressRule {
            hosts: vec!["a.example".into()],
            ports: vec![443, 8443],
            inspect: true,
            ..EgressRule::default()
        };
        let found = resolve(&[EgressEntry::Rule(rule)]).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].inspect && !found[0].raw && found[0].ports == [443, 8443]);
        let plain = serde_json::to_string(&rules(&["a.example"])).unwrap();
        assert!(!plain.contains("inspect"), "older keepers do not know it: {plain}");
    }

    #[test]
    fn there_are_bounds() {
        let many: Vec<EgressEntry> =
            (0..=MAX_HOSTS).map(|one| EgressEntry::Text(format!("n{one}.example"))).collect();
        assert!(resolve(&many).unwrap_err().to_string().contains("more than 1024"));
        let ports: Vec<EgressEntry> = (0..=MAX_PORTS)
            .map(|one| EgressEntry::Text(format!("a.example:{}", 5000 + one)))
            .collect();
        assert!(resolve(&ports).unwrap_err().to_string().contains("more than 64"));
    }
}
