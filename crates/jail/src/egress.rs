//! The way out of a sandbox: what the egress process is told, what it tells, and who looks after it.
//!
//! The process itself is in the crate `belljar-egress`: it parses hostile bytes, so it is no part of the keeper, which
//! makes its listeners inside the sandbox's network ([`listeners`]), starts it ([`door`]), and starts it again
//! when it has crashed. While there is none nobody accepts, and nothing passes.

mod door;
mod listeners;
mod lockdown;
mod owner;
mod process;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::tried::Seen;

pub(crate) use door::{Door, Exit, Secrets, note};
pub use lockdown::confine;
pub(crate) use process::Given;
pub use process::{confine_there, start};

/// Nothing, to stand in the place of what is given away.
pub fn null() -> belljar_sys::Result<std::os::fd::OwnedFd> {
    crate::init::null()
}

/// The range that is local inside: each allowed name has an address of it.
pub const RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// Where programs find a proxy, if they want one.
pub const PROXY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// HTTP CONNECT, absolute-form requests, and SOCKS5, told apart by their first byte.
pub const PROXY_PORT: u16 = 3128;
/// The same, where clients of SOCKS look for it.
pub const SOCKS_PORT: u16 = 1080;
/// The first address of a name that is spelled out in the policy; the others follow in its order.
pub const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// The first of a name that a wildcard allows: given out as they are asked for.
pub const FIRST_WILD: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
/// Where the sandbox's own resolver listens.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Ports that one policy may name: each is a listener.
pub const MAX_PORTS: usize = 64;
/// Names and patterns that one policy may hold.
pub const MAX_HOSTS: usize = 1024;

/// What one sandbox may reach, and how the process that lets it is confined itself. Nothing is left to choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressPlan {
    pub rules: Vec<Rule>,
    pub nameservers: Vec<SocketAddr>,
    pub budget: Budget,
    /// Who it is: an id of its own where the keeper is root.
    pub ids: Option<(u32, u32)>,
    pub landlock_abi: u32,
    /// Its own filter, packed as a program's is.
    pub filter: Vec<u64>,
}

/// How the process that lets a sandbox out is confined itself: known before anybody wants out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    pub ids: Option<(u32, u32)>,
    pub landlock_abi: u32,
    pub filter: Vec<u64>,
    /// The kernel ends it with its keeper, whatever state it is in. Not where an engine started it: there the signal would
    /// come with the end of one of its threads, and the engine or the keeper that has it ends it.
    pub dies_with_parent: bool,
}

impl EgressPlan {
    /// As the child of a keeper.
    pub fn confinement(&self) -> Confinement {
        let (ids, landlock_abi, filter) = (self.ids, self.landlock_abi, self.filter.clone());
        Confinement { ids, landlock_abi, filter, dies_with_parent: true }
    }

    /// The ports that are listened on, each once.
    pub fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.rules.iter().flat_map(|rule| rule.ports.clone()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Addresses that the policy names themselves, so that a program may dial them without asking for a name. Not
    /// those of loopback: inside, that is the sandbox itself.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        let hosts = self.rules.iter().flat_map(|rule| &rule.hosts);
        let addresses = hosts.filter_map(|host| match host {
            Host::Address(IpAddr::V4(address)) if !address.is_loopback() => Some(*address),
            Host::Address(_) | Host::Exact(_) | Host::Below(_) => None,
        });
        addresses.collect()
    }
}

/// Hosts that may be reached, and what may be asked of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub hosts: Vec<Host>,
    pub ports: Vec<u16>,
    /// Any bytes pass, where they are neither TLS nor HTTP. Otherwise nothing else does.
    pub raw: bool,
    /// HTTP methods; all of them if empty.
    pub methods: Vec<String>,
    /// What paths begin with; any if empty.
    pub path_prefixes: Vec<String>,
    /// Ranges that are not public which these names may resolve to.
    pub addresses: Vec<Range>,
    /// TLS to these hosts is ended and looked into. Not written where it is not so: keepers that were started before there
    /// was such a thing read the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inspect: bool,
}

/// A host as a policy names it. Names are lower-case, with no dot at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    Exact(String),
    /// Every name below this one, not the name itself: `*.example.com`.
    Below(String),
    Address(IpAddr),
}

impl std::fmt::Display for Host {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => out.write_str(name),
            Self::Below(name) => write!(out, "*.{name}"),
            Self::Address(IpAddr::V6(address)) => write!(out, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => write!(out, "{address}"),
        }
    }
}

/// Addresses that share so many first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub address: IpAddr,
    pub bits: u8,
}

impl Range {
    pub fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// How much of it: every number is finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Bytes in both directions, of all connections together.
    pub bytes: u64,
    /// Of them in a second, over a burst of a quarter of that.
    pub bytes_per_second: u64,
    /// Connections over the sandbox's whole life.
    pub connections: u64,
    /// At the same time; more wait to be accepted.
    pub connections_at_once: u32,
    /// New ones in a second, over a burst of the same number.
    pub connections_per_second: u32,
    /// Names asked for in a second, over a burst of the same number.
    pub lookups_per_second: u32,
    /// Nothing passed in either direction for so long.
    pub idle_ms: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: 64 << 30,
            bytes_per_second: 64 << 30,
            connections: 1_000_000,
            connections_at_once: 256,
            connections_per_second: 500,
            lookups_per_second: 500,
            idle_ms: 300_000,
        }
    }
}

/// What the egress process tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It is locked down, and waits for what to accept.
    Ready,
    /// What it was told while it served counts from now on, for what is open too.
    Obeyed,
    /// Something was refused, for the first time or again.
    Refused(Refused),
    /// What was reached so far: whole numbers, not differences.
    Reached(Vec<Reached>),
}

/// One kind of refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub time_ms: u64,
    /// Which of this process's refusals it is: the same one is told again with a higher count.
    pub number: u32,
    pub host: String,
    /// Zero for a name that was only asked for.
    pub port: u16,
    pub why: Why,
    /// What was seen: an address, a name, a method; empty where there is nothing to add.
    pub detail: String,
    pub count: u64,
    /// Where the client is, while it waits for the refusal: the keeper looks who it is, and says [`Bid::Noted`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<From>,
    /// Who was refused for the first time, if it could be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Seen>,
}

/// A client inside, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct From {
    pub address: SocketAddr,
    /// Rather than a stream.
    pub datagrams: bool,
}

/// Which rule of the egress process refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// No rule allows the name.
    Name,
    /// The name is allowed, not at this port.
    Port,
    /// It resolves to an address that is not public, and no rule names that.
    Address,
    /// It does not resolve, or nobody answers there.
    Unreachable,
    /// The name in the TLS handshake is another, is missing, or is encrypted.
    Sni,
    /// The Host of a request is another.
    Host,
    /// Neither TLS nor HTTP, where nothing else may pass; or a kind of either that cannot be checked.
    Protocol,
    /// A request whose bounds could be read in two ways.
    Framing,
    Method,
    Path,
    /// A budget is used up.
    Budget,
    /// The policy was tightened while it was open.
    Tightened,
    /// A placeholder on its way to where it may not go.
    Placeholder,
    /// A value that nobody needs, on its way out.
    Canary,
    /// The real host does not show that it is who it should be, where the egress process looks inside.
    Certificate,
    /// The real host speaks no HTTP/1.1, where the egress process looks inside.
    Http2,
    /// The real host's answer is compressed, though it was asked not to be: nobody could look into it.
    Encoded,
    /// The program does not believe the sandbox's own authority.
    Distrusted,
    /// The egress process itself crashed.
    Crashed,
}

/// What was reached at one host and port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    pub host: String,
    pub port: u16,
    pub connections: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// What the keeper tells the egress process, beside descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bid {
    /// First of all: the descriptor holds a [`Confinement`].
    Confine,
    /// The plan is in the first descriptor; in so many that follow is what it must know of secrets, of which the later
    /// one counts; then come these listeners, in this order. Said again when something changes.
    Serve { secrets: usize, listeners: Vec<Listener> },
    /// Who was refused this has been looked for.
    Noted { number: u32 },
    /// Say what was not said, and end.
    Finish,
}

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listener {
    DnsUdp,
    DnsTcp,
    /// Whoever connects says where it wants to go.
    Proxy,
    /// Whoever connects to this port has chosen by address.
    Port(u16),
}

/// The word in `argv[1]` that makes the binary take the egress process's role.
pub const EGRESS_ROLE: &str = "__egress";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_shares_its_bits() {
        let range = |text: &str, bits| Range { address: text.parse().unwrap(), bits };
        let holds = |range: Range, text: &str| range.holds(text.parse().unwrap());
        assert!(holds(range("10.0.0.0", 8), "10.255.1.2"));
        assert!(!holds(range("10.0.0.0", 8), "11.0.0.1"));
        assert!(holds(range("10.0.0.1", 32), "10.0.0.1"));
        assert!(!holds(range("10.0.0.1", 32), "10.0.0.2"));
        assert!(holds(range("0.0.0.0", 0), "1.2.3.4") && !holds(range("0.0.0.0", 0), "::1"));
        assert!(holds(range("fd00::", 8), "fdff::1") && !holds(range("fd00::", 8), "fe80::1"));
        assert!(holds(range("::", 0), "fe80::1"));
    }
}
