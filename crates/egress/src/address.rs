//! Which addresses may be dialled: public ones, and what the policy names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use belljar_jail::egress::Range;

/// Ranges of IPv4 that are no public host's, with their number of bits: this host, private ones, carriers' own,
/// loopback, link-local (where clouds keep their metadata), documentation, protocol assignments, 6to4 relays,
/// benchmarks (our own range among them), multicast, reserved, broadcast.
const NOT_PUBLIC_V4: [([u8; 4], u8); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
    // Azure's wire server, which a guest reaches like any other host.
    ([168, 63, 129, 16], 32),
];

/// Whether it is an address of the public network, in its own form: what carries an IPv4 address within (mapped,
/// NAT64, 6to4, Teredo) is not, whatever that is.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|(first, bits)| {
            let range = Range { address: Ipv4Addr::from(*first).into(), bits: *bits };
            range.holds(address.into())
        }),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Only 2000::/3 is public at all; of it not Teredo and other special ones (2001::/23), documentation (2001:db8::/32
/// and 3fff::/20) and 6to4 (2002::/16). NAT64, mapped, local and multicast ones lie outside of it.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let within =
        |first: Ipv6Addr, bits| Range { address: first.into(), bits }.holds(address.into());
    let v6 = |a, b| Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0);
    within(v6(0x2000, 0), 3)
        && !within(v6(0x2001, 0), 23)
        && !within(v6(0x2001, 0xdb8), 32)
        && !within(v6(0x2002, 0), 16)
        && !within(v6(0x3fff, 0), 20)
}

/// Whether a name may lead there. `named` is what the policy says beyond the public network.
pub(crate) fn may_be_dialled(address: IpAddr, named: &[Range]) -> bool {
    // The same host by another way of writing it has to be named as what it is.
    let plain = match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    if named.iter().any(|range| range.holds(plain)) {
        return true;
    }
    is_public(address) && !is_own(address)
}

/// Whether it is this host's own: the kernel would then send from the address to itself. Nothing is sent to find out.
fn is_own(address: IpAddr) -> bool {
    // All of that range is this host, though only its first address is a source.
    if address.is_loopback() {
        return true;
    }
    let any: SocketAddr = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    // One that cannot be reached is refused by the dialling itself.
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "3fff::1",
            "5f00::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "93.184.216.34",
            "172.15.255.255",
            "172.32.0.0",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "2400:cb00::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_the_policy_names_may_be_dialled_and_nothing_beside_it() {
        let named = [Range { address: "127.0.0.0".parse().unwrap(), bits: 8 }];
        for (text, may) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::1", false),
            ("64:ff9b::7f00:1", false),
            ("169.254.169.254", false),
        ] {
            assert_eq!(may_be_dialled(text.parse().unwrap(), &named), may, "{text}");
        }
    }

    #[test]
    fn an_own_address_is_found_without_sending_anything() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(is_own("127.9.8.7".parse().unwrap()));
        assert!(!is_own("192.0.2.1".parse().unwrap()));
    }
}
