//! Which program inside holds a socket, told by its address: for the words of a refusal, never for a decision.
//!
//! The kernel's table of the sandbox's sockets gives the number of the one; whose it is, the descriptors of the
//! processes below init tell. Whoever is refused waits meanwhile, so it is there to be found. A socket that several
//! hold is the first one's; who cannot be found in a bounded time is not told.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use super::From;
use crate::notify::seen;
use crate::tree::below;
use crate::tried::Seen;

/// What is read of the table of sockets: some ten thousand lines.
const MAX_TABLE: u64 = 2 << 20;
/// Processes and descriptors that are looked at.
const MAX_PROCESSES: usize = 512;
const MAX_DESCRIPTORS: usize = 8192;

/// The program in init's network that speaks from this address.
pub(super) fn of(init: u32, from: From) -> Option<Seen> {
    let tables = if from.datagrams { ["udp", "udp6"] } else { ["tcp", "tcp6"] };
    let number = tables.into_iter().find_map(|name| {
        let mut table = String::new();
        let file = fs::File::open(format!("/proc/{init}/net/{name}")).ok()?;
        file.take(MAX_TABLE).read_to_string(&mut table).ok()?;
        socket_at(&table, from.address)
    })?;
    let link = format!("socket:[{number}]");
    let mut left = MAX_DESCRIPTORS;
    let holder = below(init, MAX_PROCESSES).into_iter().find(|pid| holds(*pid, &link, &mut left));
    holder.map(seen)
}

fn holds(pid: u32, link: &str, left: &mut usize) -> bool {
    let Ok(all) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    for one in all.flatten() {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        if fs::read_link(one.path()).is_ok_and(|found| found.as_os_str() == link) {
            return true;
        }
    }
    false
}

/// The number of the socket whose own address this is, in a table as proc(5) has it: address and port in
/// hexadecimal, the address as the host would read it as whole numbers of four bytes.
fn socket_at(table: &str, address: SocketAddr) -> Option<u64> {
    let IpAddr::V4(own) = address.ip() else { return None };
    let own = format!("{:08X}", u32::from_ne_bytes(own.octets()));
    let port = format!("{:04X}", address.port());
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (place, found) = fields.nth(1)?.split_once(':')?;
        // Of IPv6 the last number holds an IPv4 address. All zeros: it was never bound to one.
        let same = place.get(place.len().checked_sub(8)?..)? == own;
        let any = place.bytes().all(|one| one == b'0');
        (found == port && (same || any)).then(|| fields.nth(7)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_socket_is_found_by_its_own_address_alone() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 11 1 0 100 0 0 10 0\n\
            1: 0100007F:9C40 000112C6:01BB 01 00000000:00000000 00:00000000 00000000 0 0 22 1 0 100 0 0 10 0\n\
            2: 000112C6:01BB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000 0 0 33 1 0 100 0 0 10 0\n\
            3: 0000000000000000FFFF00000100007F:9C41 x:0 01 0:0 00:0 0 0 0 44 1 0\n\
            4: 00000000:9C42 00000000:0000 07 0:0 00:0 0 0 0 55 1 0\n\
            broken\n";
        let at = |text: &str| socket_at(table, text.parse().unwrap());
        assert_eq!(at("127.0.0.1:40000"), Some(22));
        assert_eq!(at("127.0.0.1:40001"), Some(44));
        assert_eq!(at("127.0.0.1:40002"), Some(55));
        assert_eq!(at("127.0.0.2:40000"), None);
        assert_eq!(at("127.0.0.1:443"), None);
        assert_eq!(at("[::1]:40000"), None);
    }

    #[test]
    fn the_kernels_own_table_is_understood() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = |fd: i32| {
            let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
            link.to_str().unwrap().trim_matches(|one: char| !one.is_ascii_digit()).parse().ok()
        };
        let table = |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap();
        let found = socket_at(&table("tcp"), client.local_addr().unwrap());
        assert_eq!(found, number(client.as_raw_fd()));
        let found = socket_at(&table("udp"), datagrams.local_addr().unwrap());
        assert_eq!(found, number(datagrams.as_raw_fd()));
    }
}
