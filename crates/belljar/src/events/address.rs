//! Socket addresses as the kernel takes them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::shown;

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Ip(SocketAddr),
    /// A name in the file system, or an abstract one.
    Unix(Vec<u8>),
    /// Another family, or one that could not be read.
    Other(Option<u16>),
}

/// Where clouds tell an instance its secrets: AWS, Azure, Google and others; AWS over IPv6; Alibaba;
/// Oracle's older one.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// How the kernel keeps those in an address, and at which place: as what they are, and IPv4 within IPv6.
pub(super) fn metadata_bytes() -> impl Iterator<Item = (usize, Vec<u8>)> {
    const OF_V4: usize = 4;
    const OF_V6: usize = 8;
    METADATA.into_iter().flat_map(|address| match address {
        IpAddr::V4(old) => {
            let mapped = old.to_ipv6_mapped().octets().to_vec();
            vec![(OF_V4, old.octets().to_vec()), (OF_V6, mapped)]
        }
        IpAddr::V6(new) => vec![(OF_V6, new.octets().to_vec())],
    })
}

impl Address {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let Some((family, rest)) = bytes.split_first_chunk::<2>() else {
            return Self::Other(None);
        };
        let family = u16::from_le_bytes(*family);
        let port = rest.first_chunk::<2>().map_or(0, |port| u16::from_be_bytes(*port));
        match (family, rest.get(2..)) {
            (1, _) => Self::Unix(rest.to_vec()),
            (2, Some(address)) => match address.first_chunk::<4>() {
                Some(ip) => Self::Ip(SocketAddr::new(Ipv4Addr::from(*ip).into(), port)),
                None => Self::Other(Some(family)),
            },
            (10, Some(address)) => match address.get(4..).and_then(<[u8]>::first_chunk::<16>) {
                Some(ip) => {
                    // The same host by another way of writing it.
                    let ip = IpAddr::from(Ipv6Addr::from(*ip)).to_canonical();
                    Self::Ip(SocketAddr::new(ip, port))
                }
                None => Self::Other(Some(family)),
            },
            _ => Self::Other(Some(family)),
        }
    }

    pub(super) fn is_metadata(&self) -> bool {
        matches!(self, Self::Ip(address) if METADATA.contains(&address.ip()))
    }

    /// The sandbox itself, or nobody.
    pub(super) fn is_own(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_loopback() || address.ip().is_unspecified(),
            Self::Unix(_) | Self::Other(_) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Unix(name) => match name.strip_prefix(b"\0") {
                Some(name) => write!(f, "unix:@{}", shown::plain(name)),
                None => {
                    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                    write!(f, "unix:{}", shown::plain(name))
                }
            },
            Self::Other(Some(family)) => write!(f, "an address of family {family}"),
            Self::Other(None) => f.write_str("an address that cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(ip: &str) -> Vec<u8> {
        let ip: Ipv6Addr = ip.parse().unwrap();
        [&[10, 0, 0, 80, 0, 0, 0, 0][..], &ip.octets(), &[0; 4]].concat()
    }

    #[test]
    fn addresses_are_read_as_the_kernel_does() {
        let v4 = [2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Address::read(&v4).to_string(), "127.0.0.1:8080");
        assert_eq!(Address::read(&v6("fd00:ec2::254")).to_string(), "[fd00:ec2::254]:80");
        assert_eq!(Address::read(b"\x01\0/run/x\0junk").to_string(), "unix:/run/x");
        assert_eq!(Address::read(b"\x01\0\0name").to_string(), "unix:@name");
        assert_eq!(Address::read(&[2, 0, 1]), Address::Other(Some(2)));
        assert_eq!(Address::read(&[]), Address::Other(None));
    }

    #[test]
    fn metadata_is_known_however_it_is_written() {
        assert!(Address::read(&[2, 0, 0, 80, 169, 254, 169, 254]).is_metadata());
        assert!(Address::read(&v6("::ffff:169.254.169.254")).is_metadata());
        assert!(Address::read(&v6("fd00:ec2::254")).is_metadata());
        assert!(!Address::read(&[2, 0, 0, 80, 169, 254, 169, 253]).is_metadata());
    }
}
