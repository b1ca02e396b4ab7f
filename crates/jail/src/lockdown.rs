//! The order of barriers: what the payload gives up, for good, before it becomes the program.

use std::os::fd::OwnedFd;

use belljar_sys::process::{clear_groups, set_gid, set_uid};
use belljar_sys::{Errno, Result, landlock, notify, seccomp};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{self, AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Resource as Kind, Rlimit as Limit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::plan::{Identity, Landlock, Lockdown, Resource, Rlimit};
use crate::report::{At, Step, Stopped};

/// What Landlock was seen to refuse: each worked before, or was there to be reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    /// The witness file.
    pub files: bool,
    /// A socket with an abstract name and a signal to init: what the scopes are for.
    pub neighbours: bool,
}

/// Everything but the system-call filter, which is last of all (see [`install_filter`]).
pub(crate) fn lock_down(
    plan: &Lockdown,
    identity: &Identity,
) -> std::result::Result<Refused, Stopped> {
    drop_bounding_set().at(Step::Capabilities)?;
    become_program(identity).at(Step::Identity)?;
    drop_capabilities().at(Step::Capabilities)?;
    forbid_new_privileges().at(Step::NoNewPrivileges)?;
    let refuses = match &plan.landlock {
        Some(rules) => restrict_files(rules, init_of(identity))?,
        None => Refused::default(),
    };
    // After all that opens a descriptor of ours, so that even a very low limit is the program's alone.
    set_rlimits(&plan.rlimits)?;
    Ok(refuses)
}

/// The filter. After it nothing may need a call that programs are refused.
/// What it brings to the keeper comes by the descriptor.
pub(crate) fn install_filter(plan: &Lockdown) -> Result<Option<OwnedFd>> {
    let filter: Vec<_> = plan.filter.iter().map(|one| crate::plan::unpack(*one)).collect();
    if plan.listen.is_some() {
        return notify::install(&filter).map(Some);
    }
    seccomp::install(&filter).map(|()| None)
}

fn set_rlimits(limits: &[Rlimit]) -> std::result::Result<(), Stopped> {
    for (index, limit) in limits.iter().enumerate() {
        let both = Limit { current: Some(limit.value), maximum: Some(limit.value) };
        setrlimit(kind(limit.resource), both).at_item(Step::Rlimits, index)?;
    }
    Ok(())
}

pub(crate) fn kind(resource: Resource) -> Kind {
    match resource {
        Resource::Core => Kind::Core,
        Resource::CpuSeconds => Kind::Cpu,
        Resource::DataBytes => Kind::Data,
        Resource::FileBytes => Kind::Fsize,
        Resource::OpenFiles => Kind::Nofile,
        Resource::Processes => Kind::Nproc,
        Resource::MessageQueueBytes => Kind::Msgqueue,
        Resource::LockedBytes => Kind::Memlock,
        Resource::PendingSignals => Kind::Sigpending,
    }
}

/// Takes every capability out of reach of any later exec. Needs CAP_SETPCAP: root, or a new user
/// namespace. An ordinary user without one has none to lose, and `no_new_privs` keeps it so.
pub(crate) fn drop_bounding_set() -> Result<()> {
    let mine = rustix::thread::capabilities(None)?;
    if !mine.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for number in 0..64 {
        let Some(one) = CapabilitySet::from_bits(1 << number) else {
            continue;
        };
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // EINVAL: this kernel does not know so high a number.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Becomes the program's ids, real, effective and saved.
fn become_program(identity: &Identity) -> Result<()> {
    let (uid, gid) = match *identity {
        Identity::Caller => return Ok(()),
        Identity::Host { uid, gid } => {
            clear_groups()?;
            (uid, gid)
        }
        // Groups were cleared by the keeper if it may; in the namespace setgroups is denied.
        Identity::Mapped { inside, .. } => (inside, inside),
    };
    set_gid(gid)?;
    set_uid(uid)
}

/// Process 1 where there is a namespace of processes. A copy that has just joined one may still have
/// another parent.
fn init_of(identity: &Identity) -> Option<Pid> {
    match identity {
        Identity::Mapped { .. } => Some(Pid::INIT),
        Identity::Caller | Identity::Host { .. } => rustix::process::getppid(),
    }
}

/// Empties the effective, permitted, inheritable and ambient sets.
pub(crate) fn drop_capabilities() -> Result<()> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)?;
    rustix::thread::clear_ambient_capability_set()
}

pub(crate) fn forbid_new_privileges() -> Result<()> {
    rustix::thread::set_no_new_privs(true)
}

/// Landlock, and a look whether it holds: what was open before must be refused after.
fn restrict_files(plan: &Landlock, init: Option<Pid>) -> std::result::Result<Refused, Stopped> {
    let handled = landlock::all_access(plan.abi);
    let rules = landlock::create_ruleset(handled, plan.scopes).at(Step::Landlock)?;
    for (index, rule) in plan.rules.iter().enumerate() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let parent: OwnedFd = match rustix::fs::openat(CWD, &rule.path, flags, Mode::empty()) {
            // What the host does not have needs no permission.
            Err(Errno::NOENT) => continue,
            result => result.at_item(Step::Landlock, index)?,
        };
        let access = rule.access & handled;
        landlock::allow_beneath(&rules, &parent, access).at_item(Step::Landlock, index)?;
    }
    let open_witness = || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, &plan.witness, flags, Mode::empty())
    };
    let opened_before = open_witness().is_ok();
    let neighbour = match plan.scopes {
        0 => None,
        _ => Some(Neighbour::meet(init).at(Step::Landlock)?),
    };
    landlock::restrict_self(&rules).at(Step::Landlock)?;
    Ok(Refused {
        files: opened_before && open_witness().err() == Some(Errno::ACCESS),
        neighbours: neighbour.is_some_and(|one| one.is_out_of_reach()),
    })
}

/// Somebody outside the domain that Landlock makes: a socket of the time before, and init.
struct Neighbour {
    init: Option<Pid>,
    address: SocketAddrAny,
    /// Its name lives as long as it is open.
    _socket: OwnedFd,
}

impl Neighbour {
    fn meet(init: Option<Pid>) -> Result<Self> {
        let socket = datagrams()?;
        // Bound to no name, it gets an abstract one that nobody else has (unix(7), "Autobind").
        net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
        let address = net::getsockname(&socket)?;
        net::connect(datagrams()?, &address)?;
        Ok(Self { init, address, _socket: socket })
    }

    /// Root's run has another id than init, so the signal is refused without a scope as well; the two
    /// scopes are raised by one call, and the socket tells them apart from none.
    fn is_out_of_reach(&self) -> bool {
        let reached = datagrams().and_then(|socket| net::connect(socket, &self.address));
        let signalled = self.init.map(rustix::process::test_kill_process);
        reached == Err(Errno::PERM) && signalled == Some(Err(Errno::PERM))
    }
}

fn datagrams() -> Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}
