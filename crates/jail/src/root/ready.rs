//! A root that is held ready. Of some sixty mounts most are the same in every sandbox: views of the host, devices, and
//! a tmpfs of names and small files that is read-only by the time that a program sees it. A nursery makes those once,
//! in a mount namespace of its own, which its keepers are in and their inits get copies of. Init then clones the tree
//! in one call, and adds what is its sandbox's own: /proc, terminals, and all that can be written.
//!
//! Only root's nursery can have one: an ordinary user's would need a user namespace around it, in which ids can be
//! mapped no more. And nothing depends on it: where there is none, init makes everything itself.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use belljar_sys::Result;
use belljar_sys::mount::{NO_DEV, NO_SUID, READ_ONLY, Reach, set_attributes};
use belljar_sys::process::unshare_mounts;
use rustix::fs::{CWD, Mode};
use rustix::mount::{
    FsPickFlags, MountAttrFlags, MountPropagationFlags, UnmountFlags, fsconfig_reconfigure,
    fsconfig_set_flag, fspick, mount_change, unmount,
};

use super::{STAGE, attach, clone_of, fill, make_directories, new_mount, open_trees, stage_at};
use crate::plan::{BindKind, Files, Plan, Root};

/// Where they lie: directories that a Linux has (hier(7)) and that none of its programs live in.
const PLACES: [&str; 3] = ["/mnt", "/srv", "/media"];
/// Roots held at once. Each adds its mounts to what every sandbox's mount namespace begins with.
const MOST_ROOTS: usize = 3;
/// How long the host is believed to be as it was. A file that is replaced, as by an upgrade, is another from then on.
const BELIEVED: Duration = Duration::from_secs(1);
/// Plans that a root is known to serve.
const MOST_PLANS: usize = 8;
/// What lies in a corner: covers, which are empty.
const CORNER: [(&str, &str); 3] = [("size", "64k"), ("nr_inodes", "64"), ("mode", "0755")];

/// The roots that a nursery holds.
#[derive(Debug)]
pub(crate) struct ReadyRoots {
    /// The last made is the last.
    roots: Vec<Ready>,
    place: Option<PathBuf>,
    made: u32,
    /// When one could last not be made. Not tried again at once: each try keeps a keeper waiting.
    failed: Option<Instant>,
}

#[derive(Debug)]
struct Ready {
    layout: Root,
    /// Device and inode of each source when it was made.
    sources: Vec<Option<(u64, u64)>>,
    /// When they were last looked at.
    looked: Instant,
    place: PathBuf,
    /// Plans that were compared with it, and found to want the same of a host that is the same.
    serves: Vec<Rc<Plan>>,
}

impl Ready {
    /// Its sources are still what it shows.
    fn is_as_it_was(&mut self) -> bool {
        if self.looked.elapsed() < BELIEVED {
            return true;
        }
        self.looked = Instant::now();
        self.sources == sources_of(&self.layout)
    }
}

impl ReadyRoots {
    /// Moves this process to a mount namespace of its own, which follows what the host mounts and unmounts. `None`:
    /// it may not.
    pub(crate) fn begin() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        unshare_mounts().ok()?;
        let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", follow).ok()?;
        let_go_of_disks();
        Some(Self { roots: Vec::new(), place: None, made: 0, failed: None })
    }

    /// The place of a root for a plan, which is made if need be. `None`: init is to make it, and will tell what is in
    /// the way if something is.
    pub(crate) fn of(&mut self, plan: &Rc<Plan>) -> Option<PathBuf> {
        let known = |one: &&mut Ready| one.serves.iter().any(|served| Rc::ptr_eq(served, plan));
        if let Some(ready) = self.roots.iter_mut().find(known) {
            if ready.is_as_it_was() {
                return Some(ready.place.clone());
            }
            ready.serves.clear(); // it goes when there are too many: somebody may be about to copy it
        }
        let Files::Root(layout) = &plan.files else { return None };
        let failed = self.failed.is_some_and(|at| at.elapsed() < BELIEVED);
        if failed || !is_common(plan, layout) {
            return None;
        }
        let sources = sources_of(layout);
        let same = |one: &&mut Ready| one.sources == sources && is_same(&one.layout, layout);
        if let Some(ready) = self.roots.iter_mut().find(same) {
            ready.serves.truncate(MOST_PLANS - 1);
            ready.serves.insert(0, Rc::clone(plan));
            return Some(ready.place.clone());
        }
        while self.roots.len() >= MOST_ROOTS {
            let oldest = self.roots.remove(0);
            // Those who have copies of it keep them.
            unmount(&oldest.place, UnmountFlags::DETACH).ok()?;
        }
        let place = self.make(layout).ok()?;
        let serves = vec![Rc::clone(plan)];
        let looked = Instant::now();
        let (layout, made) = (layout.clone(), place.clone());
        self.roots.push(Ready { layout, sources, looked, place: made, serves });
        Some(place)
    }

    fn make(&mut self, layout: &Root) -> Result<PathBuf> {
        let above = match &self.place {
            Some(place) => place.clone(),
            None => open_place(layout)?,
        };
        self.place = Some(above.clone());
        self.made += 1;
        let place = above.join(self.made.to_string());
        // Ours may be stricter, and what is made here is for others to read.
        let before = rustix::process::umask(Mode::from_raw_mode(0o022));
        let made = make_at(&place, layout);
        rustix::process::umask(before);
        if made.is_err() {
            self.failed = Some(Instant::now());
            unmount(&place, UnmountFlags::DETACH).ok();
        }
        made.map(|()| place)
    }
}

/// Takes the disks of living sandboxes out of our sight. Our namespace is a copy of the host's, and where the host does not
/// share its mounts, one that it takes away stays in the copy, with its device, for as long as we live. What is mounted
/// later never comes here, or goes as it came.
fn let_go_of_disks() {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    // Gone meanwhile, perhaps.
    mounts.split(|byte| *byte == b'\n').filter_map(disk_of).for_each(|disk| {
        unmount(disk, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).ok();
    });
}

/// Where a disk of ours is mounted, if this line of mountinfo is of one (proc_pid_mountinfo(5)): `STATE/disks/ID/files`, or
/// `STATE/templates/ID/mounted` while one is made, on a loop device.
fn disk_of(line: &[u8]) -> Option<PathBuf> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let path = PathBuf::from(OsString::from_vec(unescaped(words.get(4)?)));
    let middle = words.iter().position(|word| *word == b"-")?;
    let on_loop = words.get(middle + 2)?.starts_with(b"/dev/loop");
    let mut names = path.iter().rev().map(OsStr::as_bytes);
    let (own, _, shelf) = (names.next()?, names.next()?, names.next()?);
    let is_disk = matches!((shelf, own), (b"disks", b"files") | (b"templates", b"mounted"));
    (on_loop && is_disk).then_some(path)
}

/// Spaces and the like are written as a backslash and three digits of base eight.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => (plain.push(byte), rest = &after[3..]),
            None => (plain.push(*first), rest = after),
        };
    }
    plain
}

/// Covers the first place that no view of the host comes from.
fn open_place(layout: &Root) -> Result<PathBuf> {
    let is_free = |place: &&&str| {
        let is_source = layout.binds.iter().any(|bind| bind.source.starts_with(place));
        Path::new(place).is_dir() && !is_source
    };
    let place = PathBuf::from(PLACES.iter().find(is_free).ok_or(belljar_sys::Errno::NOENT)?);
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let cover = new_mount("tmpfs", &CORNER, flags)?;
    attach(cover.as_fd(), CWD, &place)?;
    Ok(place)
}

fn make_at(place: &Path, layout: &Root) -> Result<()> {
    let errno =
        |stopped: crate::report::Stopped| belljar_sys::Errno::from_raw_os_error(stopped.errno);
    rustix::fs::mkdir(place, super::READABLE)?;
    let (binds, devices) = open_trees(layout).map_err(errno)?;
    let root = stage_at(place)?;
    fill(root.as_fd(), layout, &binds, &devices).map_err(errno)?;
    make_directories(root.as_fd(), Path::new("/proc"))?;
    for directory in &layout.writable.directories {
        make_directories(root.as_fd(), &directory.target)?;
    }
    set_attributes(&root, READ_ONLY | NO_SUID | NO_DEV, Reach::This)?;
    make_read_only(&root)
}

/// The file system itself, beneath the mounts of it: so who tries to write is told that it is read-only, as in a root
/// that init made, and not whose it is.
fn make_read_only(root: &OwnedFd) -> Result<()> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let context = fspick(root, "", flags)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_reconfigure(&context)
}

/// What only some sandboxes have, or what is broken on purpose, init makes itself.
fn is_common(plan: &Plan, layout: &Root) -> bool {
    let writable = |one: &crate::plan::Bind| one.kind == BindKind::WritableDirectory;
    plan.hold.is_some()
        && plan.fault.is_none()
        && plan.placed.is_empty()
        && layout.trees.is_empty()
        && !layout.proc.absent
        && !layout.binds.iter().any(writable)
}

/// Whether both want the same of what is held ready.
fn is_same(one: &Root, other: &Root) -> bool {
    one.binds == other.binds
        && one.directories == other.directories
        && one.symlinks == other.symlinks
        && one.texts == other.texts
        && one.devices == other.devices
        && one.pseudo_terminals == other.pseudo_terminals
        && one.writable.directories == other.writable.directories
}

/// What is where the sources are, now.
fn sources_of(layout: &Root) -> Vec<Option<(u64, u64)>> {
    let look =
        |path: &Path| std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let devices = layout.devices.iter().map(|device| look(&Path::new("/dev").join(&device.name)));
    layout.binds.iter().map(|bind| look(&bind.source)).chain(devices).collect()
}

/// A copy of a root that is held ready, of our own mount namespace's copy.
pub(super) fn copy(place: &Path) -> Result<OwnedFd> {
    clone_of(CWD, place.to_str().ok_or(belljar_sys::Errno::INVAL)?)
}

/// Puts such a copy onto the stage, over a corner for what is this sandbox's own and nobody shall see.
pub(super) fn stage(ready: &OwnedFd) -> Result<(OwnedFd, Option<OwnedFd>)> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let corner = new_mount("tmpfs", &CORNER, flags)?;
    attach(corner.as_fd(), CWD, Path::new(STAGE))?;
    attach(ready.as_fd(), CWD, Path::new(STAGE))?;
    let root = ready.try_clone().map_err(crate::cgroup::errno)?;
    Ok((root, Some(corner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(source: &Path) -> Root {
        let bind = serde_json::json!({
            "source": source, "target": "/etc/one", "kind": "read_only_file", "identity": null
        });
        let root = serde_json::json!({
            "hostname": "a", "binds": [bind], "directories": [], "symlinks": [], "texts": [],
            "devices": [], "pseudo_terminals": true,
            "proc": {"absent": false, "only_processes": true, "masked": [], "watched": []},
            "writable": {"bytes": 1, "inodes": 1, "directories": []},
        });
        serde_json::from_value(root).unwrap()
    }

    #[test]
    fn a_root_whose_sources_were_replaced_is_not_used_for_longer_than_a_second() {
        let path = std::env::temp_dir().join(format!("belljar-ready-{}", std::process::id()));
        std::fs::write(&path, "old").unwrap();
        let layout = layout(&path);
        let sources = sources_of(&layout);
        let long_ago = Instant::now().checked_sub(2 * BELIEVED).unwrap();
        let mut ready =
            Ready { layout, sources, looked: long_ago, place: PathBuf::new(), serves: Vec::new() };
        assert!(ready.is_as_it_was());
        let other = path.with_extension("new");
        std::fs::write(&other, "new").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(ready.is_as_it_was(), "it was looked at just now");
        ready.looked = long_ago;
        assert!(!ready.is_as_it_was());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn disks_of_sandboxes_are_known_among_all_mounts() {
        let line = |path: &str, source: &str| {
            format!("49 30 7:0 / {path} rw,nosuid,nodev,noatime shared:1 - ext4 {source} rw")
        };
        let found = |path: &str, source: &str| disk_of(line(path, source).as_bytes());
        let disk = Path::new("/a b/state/disks/01K/files");
        assert_eq!(found(r"/a\040b/state/disks/01K/files", "/dev/loop0").as_deref(), Some(disk));
        let draft = "/state/templates/.new-1/mounted";
        assert_eq!(found(draft, "/dev/loop12"), Some(PathBuf::from(draft)));
        assert_eq!(found("/state/disks/01K/files", "/dev/vda1"), None);
        assert_eq!(found("/snap/core/files", "/dev/loop1"), None);
        assert_eq!(found("/", "/dev/loop1"), None);
        assert_eq!(disk_of(b""), None);
    }

    #[test]
    fn what_is_not_in_a_ready_root_may_differ_and_what_is_may_not() {
        let one = layout(Path::new("/a"));
        let mut other = one.clone();
        (other.hostname, other.writable.bytes, other.proc.only_processes) =
            ("b".to_owned(), 2, false);
        assert!(is_same(&one, &other));
        other.binds[0].source = PathBuf::from("/b");
        assert!(!is_same(&one, &other));
    }
}
