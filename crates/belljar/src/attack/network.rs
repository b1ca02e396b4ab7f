//! Reaching for the network: the host's listeners, the world, and families of sockets that have
//! broken kernels.
//!
//! What would send a packet to the world is tried only where a level promises that it cannot.

use super::fixture::Fixture;
use super::{Attempt, Category, Expect, Probe, reached};
use belljar_sys::attempt::call::{Arg, Call, syscall};
use belljar_sys::attempt::names::Errno;
use belljar_sys::attempt::special;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use Category::Network;

type Tried = Result<Attempt, Errno>;

const EPERM: Expect = Expect::Errno("EPERM");
const NO_ROUTE: Expect = Expect::Errno("ENETUNREACH");
const REFUSED: Expect = Expect::Errno("ECONNREFUSED");
const ABSENT: Expect = Expect::Absent("ENOENT");
/// Nobody listens on the sandbox's own loopback; where that is down, there is no route to it.
const NOBODY_THERE: Expect = Expect::OneOf(&["ECONNREFUSED", "ENETUNREACH"]);

/// A connection to the world gets no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
const WORLD: &str = "it would send a packet to the world";

const AF_INET: i64 = 2;
const AF_KEY: i64 = 15;
const AF_NETLINK: i64 = 16;
const AF_PACKET: i64 = 17;
const AF_ALG: i64 = 38;
const AF_VSOCK: i64 = 40;
const AF_XDP: i64 = 44;
const SOCK_STREAM: i64 = 1;
const SOCK_RAW: i64 = 3;
const SOCK_SEQPACKET: i64 = 5;

pub(super) const PROBES: &[Probe] = &[
    Probe::new("host_tcp", Network, "net_namespace", "Connects to a service on the host", |f| {
        connect(&format!("127.0.0.1:{}", f.tcp_port))
    })
    .basic(EPERM)
    .boxed(NOBODY_THERE),
    Probe::new(
        "host_tcp_mapped",
        Network,
        "net_namespace",
        "Connects to a service on the host by an IPv4-mapped IPv6 address",
        |f| connect(&format!("[::ffff:127.0.0.1]:{}", f.tcp_port)),
    )
    .basic(EPERM)
    .boxed(NOBODY_THERE),
    Probe::new(
        "host_abstract_socket",
        Network,
        "net_namespace",
        "Connects to an abstract socket of the host",
        |f| {
            UnixStream::connect_addr(&UnixAddr::from_abstract_name(&f.abstract_name)?)?;
            Attempt::allowed("connected")
        },
    )
    .basic(EPERM)
    .boxed(REFUSED),
    Probe::new("host_socket_file", Network, "root", "Connects to a socket file of the host", |f| {
        UnixStream::connect(&f.unix_path)?;
        Attempt::allowed("connected")
    })
    .basic(EPERM)
    .boxed(ABSENT),
    Probe::new("docker_socket", Network, "root", "Connects to the Docker engine", |f| {
        connect_if_present(f, "/var/run/docker.sock")
    })
    .basic(EPERM)
    .boxed(ABSENT),
    Probe::new("system_bus", Network, "root", "Connects to the system's message bus", |f| {
        connect_if_present(f, "/run/dbus/system_bus_socket")
    })
    .basic(EPERM)
    .boxed(ABSENT),
    Probe::new(
        "metadata_service",
        Network,
        "net_namespace",
        "Asks the cloud for credentials",
        |_| connect("169.254.169.254:80"),
    )
    .no_control(WORLD)
    .basic(EPERM)
    .boxed(NO_ROUTE),
    Probe::new("world_tcp", Network, "net_namespace", "Connects to the world", |_| {
        connect("192.0.2.1:443")
    })
    .no_control(WORLD)
    .basic(EPERM)
    .boxed(NO_ROUTE),
    Probe::new("world_tcp6", Network, "net_namespace", "Connects to the world by IPv6", |_| {
        connect("[2001:db8::1]:443")
    })
    .no_control(WORLD)
    .basic(EPERM)
    .boxed(Expect::OneOf(&["ENETUNREACH", "EADDRNOTAVAIL", "EACCES"])),
    Probe::new("world_udp", Network, "net_namespace", "Sends a datagram to the world", |_| {
        send("192.0.2.1:9")
    })
    .no_control(WORLD)
    .basic(EPERM)
    .boxed(NO_ROUTE),
    Probe::new("world_dns", Network, "net_namespace", "Sends a query to a name server", |_| {
        send("192.0.2.53:53")
    })
    .no_control(WORLD)
    .basic(EPERM)
    .boxed(NO_ROUTE),
    Probe::new(
        "broadcast",
        Network,
        "net_namespace",
        "Sends a datagram to the local network",
        |_| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_broadcast(true)?;
            socket.send_to(b"belljar", "255.255.255.255:9")?;
            Attempt::allowed("sent")
        },
    )
    .no_control(WORLD)
    .basic(EPERM)
    .boxed(NO_ROUTE),
    Probe::new(
        "privileged_port",
        Network,
        "capabilities",
        "Listens on a port that is reserved for the system",
        |_| {
            TcpListener::bind("127.0.0.1:1")?;
            Attempt::allowed("listened")
        },
    )
    .needs_root()
    .basic(EPERM)
    .boxed(Expect::Errno("EACCES")),
    Probe::new(
        "host_interface",
        Network,
        "net_namespace",
        "Finds a network card of the host",
        |f| {
            let Some(name) = &f.interface else {
                return Ok(Attempt::not_applicable("the host has only loopback"));
            };
            special::interface(name)?;
            Attempt::allowed("it is there")
        },
    )
    .basic(EPERM)
    .boxed(Expect::Absent("ENODEV"))
    // There the filter does not even let it ask.
    .strict(EPERM),
    Probe::new("raw_icmp", Network, "capabilities", "Opens a raw ICMP socket", |_| {
        socket(AF_INET, SOCK_RAW, 1)
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("packet_socket", Network, "seccomp", "Listens to every packet", |_| {
        socket(AF_PACKET, SOCK_RAW, 0x300)
    })
    .needs_root()
    .walled(EPERM),
    Probe::new("netlink_route", Network, "seccomp", "Opens the routing interface", |_| {
        socket(AF_NETLINK, SOCK_RAW, 0)
    })
    .walled(EPERM),
    Probe::new("netlink_netfilter", Network, "seccomp", "Opens the firewall interface", |_| {
        socket(AF_NETLINK, SOCK_RAW, 12)
    })
    .walled(EPERM),
    Probe::new(
        "netlink_by_high_bits",
        Network,
        "seccomp",
        "Opens the routing interface by a family with bits the kernel drops",
        |_| socket(AF_NETLINK | 1 << 32, SOCK_RAW, 0),
    )
    .walled(EPERM),
    Probe::new("crypto_socket", Network, "seccomp", "Opens AF_ALG (CVE-2026-31431)", |_| {
        socket(AF_ALG, SOCK_SEQPACKET, 0)
    })
    .walled(EPERM),
    Probe::new("vsock", Network, "seccomp", "Opens the line to the hypervisor's host", |_| {
        socket(AF_VSOCK, SOCK_STREAM, 0)
    })
    .walled(EPERM),
    Probe::new("xdp_socket", Network, "seccomp", "Opens AF_XDP", |_| socket(AF_XDP, SOCK_RAW, 0))
        .needs_root()
        .walled(EPERM),
    Probe::new("key_socket", Network, "seccomp", "Opens AF_KEY", |_| socket(AF_KEY, SOCK_RAW, 2))
        .needs_root()
        .walled(EPERM),
];

fn connect(address: &str) -> Tried {
    let address: SocketAddr = address.parse().map_err(|_| Errno::INVALID)?;
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => Attempt::allowed("connected"),
        // Nobody answered, but the packet left.
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Attempt::allowed("sent"),
        Err(error) => Err(error.into()),
    }
}

fn connect_if_present(fixture: &Fixture, path: &str) -> Tried {
    if !fixture.has(path) {
        return Ok(Attempt::not_applicable("the host has no such socket"));
    }
    UnixStream::connect(Path::new(path))?;
    Attempt::allowed("connected")
}

fn send(address: &str) -> Tried {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.send_to(b"belljar", address)?;
    Attempt::allowed("sent")
}

fn socket(family: i64, kind: i64, protocol: i64) -> Tried {
    let args = &mut [Arg::Int(family), Arg::Int(kind), Arg::Int(protocol)];
    reached(syscall(Call::SOCKET, args), &[])
}
