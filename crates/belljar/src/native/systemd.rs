//! Asking systemd for a cgroup: a transient scope around one keeper, with the controllers delegated.
//!
//! On a host that systemd runs, cgroups are systemd's to make: what others make beside its units loses
//! its controllers whenever it tidies up. A delegated scope is the way it offers, to root by the system
//! bus and to an ordinary user by the user's own. When the keeper ends, the scope goes with it.

mod dbus;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dbus::{Call, Connection, Message, Trouble, Writer};

/// From the first byte to a keeper that sits in its scope.
const LIMIT: Duration = Duration::from_secs(5);
/// How long to listen to the bus between two looks at where the keeper is.
const LOOK: Duration = Duration::from_millis(2);

const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";

/// A socket through which systemd can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bus {
    pub path: PathBuf,
    pub kind: BusKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// A message bus, with systemd as one of the services on it.
    Daemon,
    /// systemd's own socket, which needs no bus daemon: what `systemctl` uses.
    Manager,
}

/// Whether systemd runs this host (see sd_booted(3)).
pub(crate) fn runs_this_host() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The sockets that lead to the systemd which would make a scope for this user, the best first.
pub(crate) fn buses(uid: u32) -> Vec<Bus> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let session = variable("DBUS_SESSION_BUS_ADDRESS");
    let mut found = candidates(uid, &session, &variable("XDG_RUNTIME_DIR"));
    found.retain(|bus| bus.path.exists());
    found
}

fn candidates(uid: u32, session: &str, runtime: &str) -> Vec<Bus> {
    let daemon = |path: PathBuf| Bus { path, kind: BusKind::Daemon };
    let manager = |path: PathBuf| Bus { path, kind: BusKind::Manager };
    if uid == 0 {
        // Never root's session bus: root's limits are the host's business, not a login's.
        return vec![
            daemon("/run/dbus/system_bus_socket".into()),
            manager("/run/systemd/private".into()),
        ];
    }
    let runtime = if runtime.starts_with('/') {
        PathBuf::from(runtime)
    } else {
        PathBuf::from(format!("/run/user/{uid}"))
    };
    let mut all: Vec<Bus> = session.split(';').filter_map(unix_path).map(daemon).collect();
    all.push(daemon(runtime.join("bus")));
    all.push(manager(runtime.join("systemd/private")));
    all.dedup();
    all
}

/// The path of an address such as `unix:path=/run/user/1000/bus,guid=…`; other kinds are not for us.
fn unix_path(address: &str) -> Option<PathBuf> {
    let pairs = address.strip_prefix("unix:")?;
    let path = pairs.split(',').find_map(|pair| pair.strip_prefix("path="))?;
    // Escaped bytes are legal and never seen; an address with one is as good as none.
    (path.starts_with('/') && !path.contains('%')).then(|| PathBuf::from(path))
}

/// Puts `pid` into a scope of its own. On success it is there, and the cgroup is its owner's to use.
pub(crate) fn start_scope(buses: &[Bus], uid: u32, id: &str, pid: u32) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    let scope = format!("belljar-{id}.scope");
    let mut troubles = Vec::new();
    for bus in buses {
        match ask(bus, uid, &scope, pid, deadline) {
            Ok(()) => return Ok(()),
            Err(trouble) => troubles.push(format!("{}: {trouble}", bus.path.display())),
        }
    }
    Err(format!(
        "systemd made no scope ({}). hint: {} shows whether it can",
        troubles.join("; "),
        if uid == 0 {
            "systemd-run --scope -p Delegate=yes true"
        } else {
            "systemd-run --user --scope -p Delegate=yes true"
        }
    ))
}

fn ask(bus: &Bus, uid: u32, scope: &str, pid: u32, deadline: Instant) -> Result<(), Trouble> {
    let mut connection = Connection::open(&bus.path, uid, deadline)?;
    if bus.kind == BusKind::Daemon {
        connection.call(&to_bus("Hello", None))?;
        // Only to hear of a failure at once; the keeper's place is what counts.
        let rule = format!("type='signal',interface='{SYSTEMD}.Manager',member='JobRemoved'");
        connection.call(&to_bus("AddMatch", Some(&rule)))?;
    }
    connection.call(&start_transient_unit(bus.kind, scope, pid))?;
    loop {
        if is_in(pid, scope) {
            return Ok(());
        }
        let message = connection.read_message(LOOK)?;
        if let Some(result) = message.and_then(|message| result_of(&message, scope))
            && result != "done"
        {
            let what = format!("the job of {scope} ended as {result:?}");
            return Err(io::Error::other(what).into());
        }
    }
}

fn to_bus(member: &'static str, argument: Option<&str>) -> Call<'static> {
    let mut body = Writer::default();
    if let Some(text) = argument {
        body.string(text);
    }
    Call {
        destination: Some(BUS),
        path: "/org/freedesktop/DBus",
        interface: BUS,
        member,
        signature: if argument.is_some() { "s" } else { "" },
        body: body.finish(),
    }
}

/// `StartTransientUnit(name, mode, properties, auxiliary units)`.
fn start_transient_unit(kind: BusKind, scope: &str, pid: u32) -> Call<'static> {
    let mut body = Writer::default();
    body.string(scope).string("fail");
    body.array(8, |all| {
        let property = |all: &mut Writer, name: &str, kind: &str| {
            all.structure().string(name).signature(kind);
        };
        property(all, "Description", "s");
        all.string("A Belljar sandbox");
        property(all, "Delegate", "b");
        all.bool(true);
        property(all, "PIDs", "au");
        all.array(4, |pids| {
            pids.u32(pid);
        });
        // A scope that failed would otherwise stay and be listed for ever.
        property(all, "CollectMode", "s");
        all.string("inactive-or-failed");
    });
    body.array(8, |_| {});
    Call {
        destination: (kind == BusKind::Daemon).then_some(SYSTEMD),
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "StartTransientUnit",
        signature: "ssa(sv)a(sa(sv))",
        body: body.finish(),
    }
}

/// What `JobRemoved(id, job, unit, result)` says of our unit.
fn result_of(message: &Message, scope: &str) -> Option<String> {
    let removed = message.kind == Message::SIGNAL
        && message.member.as_deref() == Some("JobRemoved")
        && message.signature == "uoss";
    if !removed {
        return None;
    }
    let mut body = message.body();
    let (_id, _job) = (body.u32().ok()?, body.string().ok()?);
    let (unit, result) = (body.string().ok()?, body.string().ok()?);
    (unit == scope).then(|| result.to_owned())
}

/// The move is the last thing that systemd does for a scope: who is inside finds it ready.
fn is_in(pid: u32, scope: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.strip_prefix("0::"))
        .any(|path| Path::new(path).ends_with(scope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_user_asks_the_session_bus_first_and_root_the_system_bus() {
        let paths = |all: Vec<Bus>| -> Vec<String> {
            all.into_iter().map(|bus| bus.path.display().to_string()).collect()
        };
        let session = "tcp:host=x;unix:path=/tmp/bus,guid=00;unix:abstract=/tmp/y";
        assert_eq!(
            paths(candidates(7, session, "")),
            ["/tmp/bus", "/run/user/7/bus", "/run/user/7/systemd/private"]
        );
        assert_eq!(
            paths(candidates(7, "unix:path=/r/bus", "/r")),
            ["/r/bus", "/r/systemd/private"]
        );
        assert_eq!(
            paths(candidates(0, session, "/r")),
            ["/run/dbus/system_bus_socket", "/run/systemd/private"]
        );
    }

    #[test]
    fn the_request_for_a_scope_is_spelled_as_systemd_reads_it() {
        let call = start_transient_unit(BusKind::Daemon, "b.scope", 0x0102);
        let mut expected = b"\x07\0\0\0b.scope\0\x04\0\0\0fail\0\0\0\0".to_vec();
        expected.extend(b"\x8b\0\0\0\0\0\0\0"); // how long the properties are, then the first
        expected.extend(b"\x0b\0\0\0Description\0\x01s\0\0\x11\0\0\0A Belljar sandbox\0\0\0");
        expected.extend(b"\0\0\0\0\x08\0\0\0Delegate\0\x01b\0\x01\0\0\0\0\0\0\0");
        expected.extend(b"\x04\0\0\0PIDs\0\x02au\0\0\0\0\x04\0\0\0\x02\x01\0\0");
        expected.extend(b"\x0b\0\0\0CollectMode\0\x01s\0\0\x12\0\0\0inactive-or-failed\0\0");
        expected.extend(b"\0\0\0\0"); // no auxiliary units
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(shown(&call.body), shown(&expected));
        assert_eq!(call.signature, "ssa(sv)a(sa(sv))");
        assert_eq!(start_transient_unit(BusKind::Manager, "b.scope", 1).destination, None);
    }
}
