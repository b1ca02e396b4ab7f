//! Host names in one spelling, and the addresses that stand for them inside.
//!
//! One parser for every way in which a name can come: a question to the resolver, a CONNECT, a SOCKS request, a Host
//! header, a TLS handshake. What two parsers could read differently is refused.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use belljar_jail::egress::{EgressPlan, FIRST_NAME, FIRST_WILD, Host};

/// The longest name (RFC 1035), written with dots.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// Names that wildcards gave an address: full is an answer.
pub(crate) const MAX_WILD: usize = 16_384;

/// Who is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Name(String),
    Address(IpAddr),
}

impl std::fmt::Display for Target {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => out.write_str(name),
            Self::Address(address) => write!(out, "{address}"),
        }
    }
}

impl Target {
    /// A name of letters, digits and hyphens, or an address in its usual form. Nothing else: no other notation of
    /// addresses (decimal, octal, hexadecimal, short), no user, no blank, no NUL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        let brackets = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(Ok(address)) = brackets.map(str::parse::<Ipv6Addr>) {
            return Some(Self::Address(address.into()));
        }
        name(text).map(Self::Name)
    }

    /// `HOST:PORT`, as CONNECT has it.
    pub(crate) fn with_port(text: &str) -> Option<(Self, u16)> {
        let (host, port) = text.rsplit_once(':')?;
        Some((Self::parse(host)?, self::port(port)?))
    }

    /// `HOST` or `HOST:PORT`, as a Host header has it.
    pub(crate) fn maybe_with_port(text: &str) -> Option<(Self, Option<u16>)> {
        if let Some(target) = Self::parse(text) {
            return Some((target, None));
        }
        Self::with_port(text).map(|(target, port)| (target, Some(port)))
    }
}

/// Digits only, and none too many: `+80`, `0080` and `65616` are not ports.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|one| one.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

/// A name in lower case without the dot at its end.
pub(crate) fn name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() || text.len() > MAX_NAME || !text.split('.').all(is_label) {
        return None;
    }
    // A last label that is a number makes an address of it for some, in one of many notations.
    let last = text.rsplit('.').next().unwrap_or(text);
    let hexadecimal = last.len() > 1 && last.starts_with('0') && last[1..].starts_with(['x', 'X']);
    if last.bytes().all(|one| one.is_ascii_digit()) || hexadecimal {
        return None;
    }
    Some(text.to_ascii_lowercase())
}

fn is_label(label: &str) -> bool {
    let plain = |one: u8| one.is_ascii_alphanumeric() || one == b'-' || one == b'_';
    !label.is_empty()
        && label.len() <= MAX_LABEL
        && label.bytes().all(plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Which address stands for which name. One that was given out never means another name.
#[derive(Debug, Default)]
pub(crate) struct Book {
    by_name: HashMap<String, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, String>,
    wild: usize,
}

impl Book {
    /// Names that the policy spells out have the same address whenever this process is started.
    pub(crate) fn learn(&mut self, plan: &EgressPlan) {
        let hosts = plan.rules.iter().flat_map(|rule| &rule.hosts);
        let exact = hosts.filter_map(|host| match host {
            Host::Exact(name) => Some(name),
            Host::Below(_) | Host::Address(_) => None,
        });
        for name in exact {
            if self.by_name.contains_key(name) {
                continue;
            }
            let place = u32::try_from(self.by_name.len() - self.wild).unwrap_or(u32::MAX);
            if place >= FIRST_WILD.to_bits() - FIRST_NAME.to_bits() {
                return; // so often was the policy changed: the rest have addresses as they are asked for
            }
            self.insert(name.clone(), Ipv4Addr::from_bits(FIRST_NAME.to_bits() + place));
        }
    }

    /// The address of an allowed name; `None` when there are too many.
    pub(crate) fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        if let Some(address) = self.by_name.get(name) {
            return Some(*address);
        }
        if self.wild >= MAX_WILD {
            return None;
        }
        let address = Ipv4Addr::from_bits(FIRST_WILD.to_bits() + u32::try_from(self.wild).ok()?);
        self.wild += 1;
        self.insert(name.to_owned(), address);
        Some(address)
    }

    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<&str> {
        self.by_address.get(&address).map(String::as_str)
    }

    fn insert(&mut self, name: String, address: Ipv4Addr) {
        self.by_address.insert(address, name.clone());
        self.by_name.insert(name, address);
    }
}

#[cfg(test)]
mod tests {
    use belljar_jail::egress::{Budget, Rule};

    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        for text in ["Example.COM", "example.com.", "example.com"] {
            assert_eq!(name(text).as_deref(), Some("example.com"));
        }
        assert_eq!(name("a_b.example").as_deref(), Some("a_b.example"));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_name() {
        let long = format!("{}.example", "a".repeat(64));
        for text in [
            "",
            ".",
            "a..b",
            "example.com..",
            "exa mple.com",
            "user@example.com",
            "example.com/x",
            "example.com\0.evil.org",
            "-a.example",
            "a-.example",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "127.1",
            "0177.0.0.1",
            "127.0.0.1.",
            "1.2.3.4.5",
            "exämple.com",
            "[::1]",
            "::1",
            "a:80",
            "a.0x",
            &long,
        ] {
            assert_eq!(name(text), None, "{text:?}");
        }
    }

    #[test]
    fn addresses_are_taken_in_their_usual_form_only() {
        let v4 = Some(Target::Address("127.0.0.1".parse().unwrap()));
        assert_eq!(Target::parse("127.0.0.1"), v4);
        assert_eq!(Target::parse("[::1]"), Some(Target::Address("::1".parse().unwrap())));
        for text in ["::1", "127.1", "0127.0.0.1", "[127.0.0.1]", "[::1", "[::1%lo]"] {
            assert_eq!(Target::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_port_is_digits() {
        assert_eq!(Target::with_port("a.example:443").map(|one| one.1), Some(443));
        for text in ["a.example", "a.example:", "a.example:+1", "a.example:080", "a.example:65536"]
        {
            assert_eq!(Target::with_port(text), None, "{text}");
        }
        let host = |text| Target::maybe_with_port(text).map(|(_, port)| port);
        assert_eq!((host("a.example"), host("a.example:8080")), (Some(None), Some(Some(8080))));
        assert_eq!(host("[::1]:80"), Some(Some(80)));
    }

    #[test]
    fn every_name_has_an_address_of_its_own_and_there_is_an_end() {
        let rule = |hosts| Rule { hosts, ..Rule::default() };
        let hosts = vec![Host::Exact("a.example".into()), Host::Exact("b.example".into())];
        let plan = EgressPlan {
            rules: vec![rule(hosts)],
            nameservers: Vec::new(),
            budget: Budget::default(),
            ids: None,
            landlock_abi: 0,
            filter: Vec::new(),
        };
        let mut book = Book::default();
        book.learn(&plan);
        let first = book.address("a.example").unwrap();
        assert_eq!(first, FIRST_NAME);
        assert_eq!(book.name(first), Some("a.example"));
        for number in 0..MAX_WILD {
            let name = format!("n{number}.wild.example");
            let address = book.address(&name).unwrap();
            assert_eq!(book.name(address), Some(name.as_str()));
        }
        assert_eq!(book.address("one-more.wild.example"), None);
        assert_eq!(book.address("n0.wild.example"), Some(FIRST_WILD));
        book.learn(&plan);
        assert_eq!(book.address("b.example").map(|one| one.to_bits()), Some(first.to_bits() + 1));
        // However many names come and go, none has the address of another.
        for round in 0..70 {
            let hosts = (0..1024).map(|one| Host::Exact(format!("n{one}.r{round}.example")));
            let rules = vec![rule(hosts.collect())];
            book.learn(&EgressPlan { rules, ..plan.clone() });
        }
        assert_eq!(book.name(FIRST_WILD), Some("n0.wild.example"));
        let last = Ipv4Addr::from_bits(FIRST_WILD.to_bits() - 1);
        assert!(book.name(last).is_some_and(|name| book.by_name.get(name) == Some(&last)));
    }
}
