//! The listeners inside a sandbox's network, and the route that leads there.
//!
//! Made by a child of the keeper that joins the network for it: the sandbox's own processes have lost the right by the
//! time, and never get it back.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};

use belljar_sys::process::{NEW_NET, NEW_USER, SingleThreaded, done_by_child, join};
use belljar_sys::{Errno, Result};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::{EgressPlan, Listener, PROXY, PROXY_PORT, RANGE, RESOLVER, SOCKS_PORT};
use crate::cgroup::errno;
use crate::wire::Namespaces;

/// Connections that wait to be accepted, for each listener.
const BACKLOG: i32 = 256;
/// The index of loopback in every network namespace.
const LOOPBACK: u32 = 1;
const DNS_PORT: u16 = 53;

/// Where the listeners are made.
#[derive(Debug)]
pub(crate) struct Network {
    /// The user namespace that the network belongs to.
    pub user: OwnedFd,
    pub net: OwnedFd,
}

impl Network {
    pub(super) fn of(namespaces: &Namespaces) -> Result<Self> {
        let net = namespaces.rest.iter().find(|(_, kind)| *kind == NEW_NET).ok_or(Errno::INVAL)?;
        let copy = |one: &OwnedFd| one.try_clone().map_err(errno);
        Ok(Self { user: copy(&namespaces.user)?, net: copy(&net.0)? })
    }
}

/// The listeners of a plan, with what each is for.
pub(super) type Listeners = Vec<(Listener, OwnedFd)>;

/// What there is already, and stays: a port that is no longer named is refused by the rules, and may be named again.
#[derive(Debug, Default)]
pub(super) struct Opened {
    ports: Vec<u16>,
    addresses: Vec<Ipv4Addr>,
}

impl Opened {
    pub(super) fn add(&mut self, plan: &EgressPlan) {
        let ports = plan.ports().into_iter().filter(|port| !self.ports.contains(port));
        let ports: Vec<u16> = ports.collect();
        self.ports.extend(ports);
        let new = plan.addresses().into_iter().filter(|one| !self.addresses.contains(one));
        let new: Vec<Ipv4Addr> = new.collect();
        self.addresses.extend(new);
    }
}

/// Makes those of the ports that are not there `before`, and the route and the fixed ones the first time.
pub(super) fn open(
    single: &SingleThreaded,
    network: &Network,
    plan: &EgressPlan,
    before: Option<&Opened>,
) -> Result<Listeners> {
    let wanted = wanted(plan, before);
    let routes = routes(plan, before);
    let sockets = done_by_child(single, || inside(network, &wanted, &routes));
    // Whoever joins a user namespace gains rights in it, for which the kernel may make our memory readable.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(wanted.into_iter().zip(sockets??).collect())
}

fn wanted(plan: &EgressPlan, before: Option<&Opened>) -> Vec<Listener> {
    let known = before.map_or(&[][..], |before| &before.ports);
    let new = plan.ports().into_iter().filter(|port| !known.contains(port)).map(Listener::Port);
    let fixed = [Listener::DnsUdp, Listener::DnsTcp, Listener::Proxy, Listener::Proxy];
    fixed.into_iter().filter(|_| before.is_none()).chain(new).collect()
}

fn routes(plan: &EgressPlan, before: Option<&Opened>) -> Vec<(Ipv4Addr, u8)> {
    let known = before.map_or(&[][..], |before| &before.addresses);
    let new = plan.addresses().into_iter().filter(|address| !known.contains(address));
    let range = before.is_none().then_some(RANGE);
    range.into_iter().chain(new.map(|address| (address, 32))).collect()
}

/// In the child: joins, makes the routes and the sockets.
fn inside(
    network: &Network,
    wanted: &[Listener],
    routes: &[(Ipv4Addr, u8)],
) -> Result<Vec<OwnedFd>> {
    join(network.user.as_fd(), NEW_USER)?;
    join(network.net.as_fd(), NEW_NET)?;
    routes.iter().try_for_each(|(address, bits)| route_here(*address, *bits))?;
    let mut proxies = [PROXY_PORT, SOCKS_PORT].into_iter();
    wanted
        .iter()
        .map(|listener| match *listener {
            Listener::DnsUdp => {
                let socket = socket(SocketType::DGRAM)?;
                rustix::net::bind(&socket, &SocketAddrV4::new(RESOLVER, DNS_PORT))?;
                Ok(socket)
            }
            Listener::DnsTcp => listen(RESOLVER, DNS_PORT),
            Listener::Proxy => listen(PROXY, proxies.next().unwrap_or(PROXY_PORT)),
            // Of every address: which one was meant is asked of each connection.
            Listener::Port(port) => listen(Ipv4Addr::UNSPECIFIED, port),
        })
        .collect()
}

fn socket(kind: SocketType) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::INET, kind, flags, None)
}

fn listen(address: Ipv4Addr, port: u16) -> Result<OwnedFd> {
    let socket = socket(SocketType::STREAM)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(address, port))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// `ip route add local ADDRESS/BITS dev lo`: from then on every one of them is this host's own.
fn route_here(address: Ipv4Addr, bits: u8) -> Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::RAW;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?; // NETLINK_ROUTE is number 0
    let request = route_request(address, bits);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &kernel)?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // An nlmsghdr, whose type is NLMSG_ERROR, and an errno: zero is the acknowledgement.
    let number = |at: usize| answer[..length].get(at..).and_then(<[u8]>::first_chunk::<4>);
    match number(16).map(|bytes| i32::from_ne_bytes(*bytes)) {
        Some(0) => Ok(()),
        Some(errno) => match Errno::from_raw_os_error(-errno) {
            Errno::EXIST => Ok(()), // of a try that found a port taken
            errno => Err(errno),
        },
        None => Err(Errno::PROTO),
    }
}

/// RTM_NEWROUTE as rtnetlink(7) has it: a header, an rtmsg, and two attributes.
fn route_request(address: Ipv4Addr, bits: u8) -> Vec<u8> {
    const RTM_NEWROUTE: u16 = 24;
    const REQUEST_ACK_CREATE: u16 = 0x1 | 0x4 | 0x400;
    const AF_INET: u8 = 2;
    const TABLE_LOCAL: u8 = 255;
    const PROTO_BOOT: u8 = 3;
    const SCOPE_HOST: u8 = 254;
    const TYPE_LOCAL: u8 = 2;
    const RTA_DST: u16 = 1;
    const RTA_OIF: u16 = 4;
    let attribute =
        |kind: u16, value: [u8; 4]| [&8u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat();
    let message =
        [AF_INET, bits, 0, 0, TABLE_LOCAL, PROTO_BOOT, SCOPE_HOST, TYPE_LOCAL, 0, 0, 0, 0];
    let body = [
        &message[..],
        &attribute(RTA_DST, address.octets()),
        &attribute(RTA_OIF, LOOPBACK.to_ne_bytes()),
    ]
    .concat();
    let length = u32::try_from(16 + body.len()).unwrap_or(0);
    [
        &length.to_ne_bytes()[..],
        &RTM_NEWROUTE.to_ne_bytes(),
        &REQUEST_ACK_CREATE.to_ne_bytes(),
        &1u32.to_ne_bytes(),
        &0u32.to_ne_bytes(),
        &body,
    ]
    .concat()
}
