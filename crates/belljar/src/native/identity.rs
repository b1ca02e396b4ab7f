//! Which host id a program gets.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use belljar_jail::layer::Layer;
use belljar_jail::plan::{Identity, MapWriter};

use super::host::Host;
use super::layout::HostWorkspace;
use crate::model::error::{Error, SpecError};
use crate::model::level::Level;
use crate::model::spec::Spec;

/// The id that every program sees for itself.
pub(crate) const INSIDE: u32 = 1000;

/// Root gives each run an id of its own from here up, by its keeper's process id: no two live runs
/// of one host share it. No distribution hands out ids in this range.
const FIRST_RUN_UID: u32 = 0x7000_0000;

/// Above all that a run can get: process ids have 22 bits.
const FIRST_ZYGOTE_UID: u32 = 0x7080_0000;

/// Root's living sandboxes own their files by ids from here up: below those of zygotes, above those of runs.
const FIRST_LIVING_UID: u32 = 0x7040_0000;
/// So many of them are told apart.
const LIVING_UIDS: u32 = 1 << 20;

/// The host id of a living sandbox's files. Sandboxes that share files share it.
pub(crate) fn living_ids(host: &Host, number: u32) -> (u32, u32) {
    let own = FIRST_LIVING_UID + number % LIVING_UIDS;
    if host.is_root() { (own, own) } else { (host.uid, host.gid) }
}

/// Root's egress processes have ids of their own, by their keeper's process id: above those of zygotes.
const FIRST_EGRESS_UID: u32 = 0x7900_0000;

/// Who a sandbox's egress process is.
pub(crate) fn egress_ids(host: &Host, keeper: u32) -> Option<(u32, u32)> {
    let own = FIRST_EGRESS_UID + keeper;
    host.is_root().then_some((own, own))
}

/// Subordinate ids tried before we say that all are in use.
const MAX_TRIES: u32 = 256;

/// An identity, and what keeps others from taking the same one.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub identity: Identity,
    /// An abstract socket name: gone with the process that holds it, so nothing is left to clean up.
    pub _claim: Option<UnixListener>,
}

/// Chooses for a run whose keeper has this process id.
pub(crate) fn choose(
    spec: &Spec,
    host: &Host,
    keeper: u32,
    workspace: Option<&HostWorkspace>,
) -> Result<Chosen, Error> {
    let plain = |identity| Ok(Chosen { identity, _claim: None });
    if spec.level == Level::None {
        return plain(Identity::Caller);
    }
    let writable = workspace.filter(|one| one.writable);
    if spec.level == Level::Strict && writable.is_some() {
        let reason = "cannot be writable at strict, where no file is shared with the host: use --out, or level standard";
        return Err(SpecError::new("workspace", reason).into());
    }
    if host.is_root() {
        let own = FIRST_RUN_UID + keeper;
        let (uid, gid) = match writable {
            Some(directory) if directory.owner.0 == 0 => return Err(owned_by_root()),
            Some(directory) => directory.owner,
            None => (own, own),
        };
        return plain(if spec.level.has_namespaces() {
            Identity::Mapped { inside: INSIDE, uid, gid, writer: MapWriter::Keeper }
        } else {
            Identity::Host { uid, gid }
        });
    }
    if !spec.level.has_namespaces() {
        return plain(Identity::Caller);
    }
    let own_id = spec.level == Level::Strict && !spec.allow_missing.contains(&Layer::UidPerRun);
    if own_id {
        return subordinate(host, keeper);
    }
    let (uid, gid) = (host.uid, host.gid);
    plain(Identity::Mapped { inside: INSIDE, uid, gid, writer: MapWriter::Keeper })
}

/// The ids of a zygote: root's has its own, which no run has, by its engine's process id and its own
/// number.
pub(crate) fn zygote_ids(host: &Host, number: u32) -> Option<(u32, u32)> {
    let id = FIRST_ZYGOTE_UID + (std::process::id() << 5) + number % 32;
    host.is_root().then_some((id, id))
}

fn owned_by_root() -> Error {
    let reason = "belongs to root, and the code inside never acts as root: chown it to an ordinary \
                  user, or take the results with --out";
    SpecError::new("workspace", reason).into()
}

/// The caller's range of subordinate user ids: where it starts and how many there are.
pub(crate) fn subordinate_ranges(uid: u32) -> Option<(u32, u32)> {
    let name = user_name(uid);
    read_range(Path::new("/etc/subgid"), uid, name.as_deref())?;
    read_range(Path::new("/etc/subuid"), uid, name.as_deref())
}

/// Where a host says which ids an ordinary user may give away, and the programs that map them.
struct Subordinate<'a> {
    uids: &'a Path,
    gids: &'a Path,
    helpers: [&'a Path; 2],
}

impl Subordinate<'_> {
    /// The user's ranges, or what it takes to have them.
    fn ranges(&self, uid: u32, name: Option<&str>) -> Result<[(u32, u32); 2], Error> {
        let helpers = self.helpers.iter().all(|one| one.exists());
        let (uids, gids) = (read_range(self.uids, uid, name), read_range(self.gids, uid, name));
        if let (Some(uids), Some(gids), true) = (uids, gids, helpers) {
            return Ok([uids, gids]);
        }
        let name = name.map_or_else(|| uid.to_string(), ToOwned::to_owned);
        Err(Error::Unavailable {
            level: Level::Strict,
            missing: "an id of its own for each run".to_owned(),
            hint: format!(
                "apt-get install uidmap, and as root: usermod --add-subuids 100000-165535 \
                 --add-subgids 100000-165535 {name}; or say --allow-missing uid_per_run"
            ),
        })
    }
}

/// One id of the caller's subordinate range that no other run of this user holds.
fn subordinate(host: &Host, keeper: u32) -> Result<Chosen, Error> {
    let here = Subordinate {
        uids: Path::new("/etc/subuid"),
        gids: Path::new("/etc/subgid"),
        helpers: [Path::new("/usr/bin/newuidmap"), Path::new("/usr/bin/newgidmap")],
    };
    let [uids, gids] = here.ranges(host.uid, user_name(host.uid).as_deref())?;
    let count = uids.1.min(gids.1);
    for attempt in 0..count.min(MAX_TRIES) {
        let offset = (keeper.wrapping_add(attempt)) % count;
        let uid = uids.0 + offset;
        let address = SocketAddr::from_abstract_name(format!("belljar-uid-{uid}"));
        if let Ok(claim) = address.and_then(|address| UnixListener::bind_addr(&address)) {
            let identity = Identity::Mapped {
                inside: INSIDE,
                uid,
                gid: gids.0 + offset,
                writer: MapWriter::Helpers,
            };
            return Ok(Chosen { identity, _claim: Some(claim) });
        }
    }
    Err(Error::Unavailable {
        level: Level::Strict,
        missing: "a free subordinate id: all that were tried are in use".to_owned(),
        hint: "run fewer at once, or give this user a longer range with usermod --add-subuids"
            .to_owned(),
    })
}

/// The first range of this user in a file of `name:start:count` lines.
fn read_range(file: &Path, uid: u32, name: Option<&str>) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let ours = Some(owner) == name || owner.parse() == Ok(uid);
        let start = fields.next()?.parse().ok()?;
        let count: u32 = fields.next()?.trim().parse().ok()?;
        (ours && count > 0).then_some((start, count))
    })
}

fn user_name(uid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_helper_or_range_is_told_with_the_command_that_brings_it() {
        let host = std::env::temp_dir().join(format!("bj-identity-{}", std::process::id()));
        std::fs::create_dir(&host).unwrap();
        let all = ["subuid", "subgid", "newuidmap", "newgidmap"].map(|name| host.join(name));
        let [uids, gids, newuidmap, newgidmap] = all.each_ref().map(|path| path.as_path());
        let here = Subordinate { uids, gids, helpers: [newuidmap, newgidmap] };
        for path in &all {
            std::fs::write(path, "eve:100000:10\nada:200000:65536\n").unwrap();
        }
        let range = (200_000, 65_536);
        assert_eq!(here.ranges(7, Some("ada")).unwrap(), [range, range]);
        for path in &all {
            std::fs::remove_file(path).unwrap();
            let message = here.ranges(7, Some("ada")).unwrap_err().to_string();
            assert!(message.starts_with("level strict needs an id of its own"), "{message}");
            for words in ["apt-get install uidmap", "usermod --add-subuids", " ada;"] {
                assert!(message.contains(words), "{message}");
            }
            assert!(message.ends_with("or say --allow-missing uid_per_run"), "{message}");
            std::fs::write(path, "ada:200000:65536\n").unwrap();
        }
        std::fs::remove_dir_all(&host).unwrap();
    }
}
