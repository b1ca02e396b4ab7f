//! How a plan and its descriptors reach the keeper: one message over a sequenced-packet socket.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use belljar_sys::process::{NEW_IPC, NEW_MOUNT, NEW_NET, NEW_UTS};
use belljar_sys::{Errno, Result, fd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::egress::Given;
use crate::payload;
use crate::plan::{Delivery, Own, Placed, Plan};

/// Files that one run may be given: what fits beside the plan, the standard streams, and two files of certificates.
pub const MAX_PLACED: usize = fd::MAX_FDS - 6; // fewer descriptors come with a delivery: a letter, a process's two

/// The largest plan: a filter, some binds and the environment come nowhere near.
pub const MAX_PLAN_BYTES: usize = 4 << 20;

/// The longest letter that goes in the message itself.
const MAX_SHORT_BYTES: usize = 4 << 10;

/// The largest [`Own`].
const MAX_OWN_BYTES: usize = 4 << 10;

/// Plans that a [`Known`] remembers: as many kinds of sandbox are made at once, and few more.
const MAX_KNOWN: usize = 8;

/// The largest message that is not a plan.
pub const MAX_MESSAGE_BYTES: usize = 32 << 10;

/// What the keeper starts from.
#[derive(Debug)]
pub(crate) struct Opening {
    pub plan: Plan,
    pub stdio: [OwnedFd; 3],
    pub placed: Vec<OwnedFd>,
}

/// The two ends of a keeper's control socket.
pub fn control_pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// A memory file that holds `bytes` and can never change again.
pub fn sealed_memory(name: &str, bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.write_all(bytes)?;
    file.rewind()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// A plan in the form in which it travels.
pub fn plan_memory(plan: &Plan) -> std::io::Result<OwnedFd> {
    sealed_memory("plan", &serde_json::to_vec(plan)?)
}

/// Sends the plan, what of it is this sandbox's own where it is that of a kind, the program's standard
/// streams and the contents of its placed files.
pub fn send_plan(
    control: impl AsFd,
    plan: BorrowedFd<'_>,
    own: Option<&Own>,
    stdio: [BorrowedFd<'_>; 3],
    placed: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    let mut fds = vec![plan];
    fds.extend(stdio);
    fds.extend(placed);
    Ok(fd::send(control, &serde_json::to_vec(&own)?, &fds)?)
}

/// Receives what [`send_plan`] sent; anything else is `EPROTO`. A plan that is known is not read again.
pub(crate) fn receive_plan(control: impl AsFd, known: Option<Rc<Plan>>) -> Result<Opening> {
    let mut own = [0; MAX_OWN_BYTES];
    let received = fd::receive(control, &mut own)?;
    let own: Option<Own> =
        serde_json::from_slice(&own[..received.length]).map_err(|_| Errno::PROTO)?;
    let mut fds = received.fds.into_iter();
    let mut next = || fds.next().ok_or(Errno::PROTO);
    let memory = next()?;
    let stdio = [next()?, next()?, next()?];
    let placed: Vec<OwnedFd> = fds.collect();
    let mut plan = match known {
        Some(plan) => Rc::unwrap_or_clone(plan),
        None => read_memory(&memory)?,
    };
    if let Some(own) = own {
        plan.adopt(own);
    }
    if plan.placed.len() == placed.len() {
        Ok(Opening { plan, stdio, placed })
    } else {
        Err(Errno::PROTO)
    }
}

/// Plans that were read before. What holds one is sealed, so the same file is the same plan.
#[derive(Debug)]
pub(crate) struct Known {
    /// Held open: the number of a closed file is given to another.
    plans: Vec<(OwnedFd, u64, Rc<Plan>)>,
}

impl Known {
    pub(crate) const fn new() -> Self {
        Self { plans: Vec::new() }
    }

    /// Reads it, unless that was done.
    pub(crate) fn plan(&mut self, memory: OwnedFd) -> Result<Rc<Plan>> {
        let number = rustix::fs::fstat(&memory)?.st_ino;
        if let Some((_, _, plan)) = self.plans.iter().find(|one| one.1 == number) {
            return Ok(Rc::clone(plan));
        }
        let plan = Rc::new(read_memory(&memory)?);
        // To read it took some megabytes, which every copy of us would carry along.
        belljar_sys::memory::give_back();
        self.plans.truncate(MAX_KNOWN - 1);
        self.plans.insert(0, (memory, number, Rc::clone(&plan)));
        Ok(plan)
    }
}

/// What a copy of a zygote needs to be the payload of a sandbox that stands.
#[derive(Debug)]
pub(crate) struct Joining {
    pub plan: Rc<Plan>,
    pub namespaces: Namespaces,
    pub ends: payload::Ends,
    /// The v2 cgroup that it is born into.
    pub birthplace: Option<OwnedFd>,
}

/// The namespaces of a sandbox.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub user: OwnedFd,
    pub pid: OwnedFd,
    /// The others, each with its kind.
    pub rest: [(OwnedFd, u64); 4],
}

impl Namespaces {
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let rest = self.rest.iter().map(|(namespace, _)| namespace.as_fd());
        [self.user.as_fd(), self.pid.as_fd()].into_iter().chain(rest).collect()
    }
}

/// Asks for a payload: the keeper to the engine, with what [`send_joining`] passes on.
pub(crate) fn joining_fds<'a>(
    namespaces: &'a Namespaces,
    ends: &'a payload::Ends,
    birthplace: Option<BorrowedFd<'a>>,
) -> Vec<BorrowedFd<'a>> {
    let mut fds = namespaces.fds();
    fds.extend([ends.notes.as_fd(), ends.gate.as_fd(), ends.orders.as_fd()]);
    fds.extend(ends.stdio.iter().map(AsFd::as_fd));
    fds.extend(birthplace);
    fds
}

/// Asks a zygote for a copy of itself, in the sandbox whose keeper sent these descriptors.
pub fn send_joining(
    zygote: impl AsFd,
    plan: BorrowedFd<'_>,
    joining: &[OwnedFd],
) -> std::io::Result<()> {
    let mut fds = vec![plan];
    fds.extend(joining.iter().map(AsFd::as_fd));
    Ok(fd::send(zygote, b"join", &fds)?)
}

/// Receives what [`send_joining`] sent. `ECANCELED`: the engine is gone.
pub(crate) fn receive_joining(engine: impl AsFd) -> Result<Vec<OwnedFd>> {
    let mut word = [0; 8];
    let received = fd::receive(engine, &mut word)?;
    if received.length == 0 { Err(Errno::CANCELED) } else { Ok(received.fds) }
}

impl Joining {
    pub(crate) fn from_fds(fds: Vec<OwnedFd>, known: &mut Known) -> Result<Self> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(Errno::PROTO);
        let plan = known.plan(next()?)?;
        let namespaces = Namespaces {
            user: next()?,
            pid: next()?,
            rest: [
                (next()?, NEW_MOUNT),
                (next()?, NEW_NET),
                (next()?, NEW_IPC),
                (next()?, NEW_UTS),
            ],
        };
        let ends = payload::Ends {
            notes: next()?,
            gate: next()?,
            orders: next()?,
            stdio: [next()?, next()?, next()?],
        };
        Ok(Self { plan, namespaces, ends, birthplace: fds.next() })
    }
}

/// Makes a held sandbox one run's own. `exit`: an egress process that was kept ready, as [`Delivery`] has it.
pub fn send_delivery(
    control: impl AsFd,
    delivery: &Delivery,
    placed: &[BorrowedFd<'_>],
    exit: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    Ok(Letter::write(delivery)?.send(control, &[placed, exit].concat())?)
}

/// Receives what [`send_delivery`] sent. Anything else means that none will come: `ECANCELED`.
pub(crate) fn receive_delivery(
    control: impl AsFd,
) -> Result<(Delivery, Vec<OwnedFd>, Option<Given>)> {
    let received = receive_letter::<Delivery>(control)?;
    let (delivery, mut fds) = received.ok_or(Errno::CANCELED)?;
    let exit = fds.split_off(delivery.placed.len().min(fds.len()));
    if delivery.placed.len() != fds.len() {
        return Err(Errno::PROTO);
    }
    let mut exit = exit.into_iter();
    let given = match (delivery.exit, exit.next(), exit.next(), exit.next()) {
        (Some(id), Some(socket), Some(pidfd), None) => Some(Given { id, socket, pidfd }),
        (None, None, None, None) => None,
        _ => return Err(Errno::PROTO),
    };
    Ok((delivery, fds, given))
}

/// Sends what the egress process must know of secrets, in a sealed file of memory: in a packet of its own, which the
/// keeper takes when init has been made, so that nothing inside ever had a way to it.
pub fn send_secrets(control: impl AsFd, memory: BorrowedFd<'_>) -> std::io::Result<()> {
    Ok(fd::send(control, b"secrets", &[memory])?)
}

/// Receives what [`send_secrets`] sent, if that is to come.
pub(crate) fn receive_secrets(control: impl AsFd, come: bool) -> Result<Option<OwnedFd>> {
    if !come {
        return Ok(None);
    }
    let mut word = [0; 8];
    let received = fd::receive(control, &mut word)?;
    match (&word[..received.length], received.fds.into_iter().next()) {
        (b"secrets", Some(memory)) => Ok(Some(memory)),
        (b"", _) => Err(Errno::CANCELED),
        _ => Err(Errno::PROTO),
    }
}

/// Sends init files to place in a sandbox that stands already.
pub(crate) fn send_placed(
    commands: impl AsFd,
    placed: &[Placed],
    contents: &[OwnedFd],
) -> Result<()> {
    let contents: Vec<BorrowedFd<'_>> = contents.iter().map(AsFd::as_fd).collect();
    Letter::write(&placed).map_err(|_| Errno::NOMEM)?.send(commands, &contents)
}

/// What the keeper sent init: files to place, or nothing, which means the end.
pub(crate) fn receive_placed(commands: impl AsFd) -> Result<Option<(Vec<Placed>, Vec<OwnedFd>)>> {
    let Some((placed, contents)) = receive_letter::<Vec<Placed>>(commands)? else {
        return Ok(None);
    };
    if placed.len() == contents.len() { Ok(Some((placed, contents))) } else { Err(Errno::PROTO) }
}

/// Something to send beside descriptors. Most are short, and go in the message itself.
enum Letter {
    Short(Vec<u8>),
    Long(OwnedFd),
}

/// The first byte of a message whose letter is long, in a file. JSON begins with none such.
const LONG: u8 = b'l';

impl Letter {
    fn write(value: &impl serde::Serialize) -> std::io::Result<Self> {
        let json = serde_json::to_vec(value)?;
        if json.len() <= MAX_SHORT_BYTES {
            return Ok(Self::Short(json));
        }
        sealed_memory("letter", &json).map(Self::Long)
    }

    fn send(&self, socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> Result<()> {
        match self {
            Self::Short(json) => fd::send(socket, json, fds),
            Self::Long(memory) => fd::send(socket, &[LONG], &[&[memory.as_fd()], fds].concat()),
        }
    }
}

/// A letter, and the descriptors beside it; `None` for any other word, and for the end.
fn receive_letter<T: serde::de::DeserializeOwned>(
    socket: impl AsFd,
) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; MAX_SHORT_BYTES];
    let mut received = fd::receive(socket, &mut bytes)?;
    match bytes.first().filter(|_| received.length > 0) {
        Some(&LONG) if !received.fds.is_empty() => {
            let memory = received.fds.remove(0);
            Ok(Some((read_memory(&memory)?, received.fds)))
        }
        Some(b'{' | b'[') => {
            let value = serde_json::from_slice(&bytes[..received.length]);
            Ok(Some((value.map_err(|_| Errno::PROTO)?, received.fds)))
        }
        _ => Ok(None),
    }
}

/// From its beginning, wherever others have read: they share the file.
pub fn read_memory<T: serde::de::DeserializeOwned>(memory: &OwnedFd) -> Result<T> {
    let length = rustix::fs::fstat(memory)?.st_size;
    let length = usize::try_from(length).map_err(|_| Errno::PROTO)?;
    if length > MAX_PLAN_BYTES {
        return Err(Errno::MSGSIZE);
    }
    let mut json = vec![0; length];
    let memory = File::from(memory.try_clone().map_err(|_| Errno::MFILE)?);
    memory.read_exact_at(&mut json, 0).map_err(|_| Errno::IO)?;
    serde_json::from_slice(&json).map_err(|_| Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Identity;

    /// A plan of which nothing has a meaning but what a test looks at.
    fn plan() -> Plan {
        let json = r#"{
            "id": "", "identity": "caller", "lockdown": null, "placed": [],
            "cgroup": {"name": "", "hierarchies": []},
            "files": {"host": {"scratch": {"parent": "/", "name": "", "directories": []}}},
            "program": {"path": "/", "argv": [], "environment": [], "directory": "/"},
            "wall_ms": 1, "cpu_ms": 1, "millicpus": 1, "expect": [], "keep_workspace": false,
            "fault": null
        }"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_same_file_is_read_once_and_another_is_not_taken_for_it() {
        let mut known = Known::new();
        let memory = plan_memory(&plan()).unwrap();
        let first = known.plan(memory.try_clone().unwrap()).unwrap();
        assert!(Rc::ptr_eq(&first, &known.plan(memory.try_clone().unwrap()).unwrap()));
        for wall_ms in 2..20 {
            let other = Plan { wall_ms, ..plan() };
            assert_eq!(*known.plan(plan_memory(&other).unwrap()).unwrap(), other);
            assert!(known.plans.len() <= MAX_KNOWN);
        }
        assert_eq!(known.plan(memory).unwrap(), first, "read again when it was forgotten");
    }

    #[test]
    fn what_is_a_sandboxs_own_is_added_to_the_plan_of_its_kind() {
        let (control, theirs) = control_pair().unwrap();
        let kind = plan();
        let memory = plan_memory(&kind).unwrap();
        let identity = Identity::Host { uid: 5, gid: 6 };
        let own = Own { id: "a".to_owned(), identity, name: "b".to_owned() };
        let null = crate::init::null().unwrap();
        let stdio = [null.as_fd(), null.as_fd(), null.as_fd()];
        send_plan(&control, memory.as_fd(), Some(&own), stdio, &[]).unwrap();
        send_plan(&control, memory.as_fd(), None, stdio, &[]).unwrap();
        let mut expected = kind.clone();
        expected.adopt(own);
        assert_eq!(expected.cgroup.as_ref().unwrap().name, "b");
        assert_eq!(receive_plan(&theirs, Some(Rc::new(kind.clone()))).unwrap().plan, expected);
        assert_eq!(receive_plan(&theirs, None).unwrap().plan, kind);
    }
}
