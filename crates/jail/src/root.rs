//! The sandbox's own root: a tmpfs that holds read-only views of the host, a fresh /proc, six devices
//! and one bounded place to write. Built by init before any hostile code exists, mounted by descriptor
//! throughout, so that no path is ever resolved twice.
//!
//! What of it is the same for many sandboxes a nursery holds ready ([`ready`]); init then takes a copy of that.

mod procfs;
pub(crate) mod ready;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use belljar_sys::mount::{NO_DEV, NO_EXEC, NO_SUID, READ_ONLY, Reach, set_attributes};
use belljar_sys::{Errno, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, open_tree, unmount,
};

use crate::plan::{Bind, BindKind, Device, Root, Text, Writable};
use crate::report::{At, Step, Stopped};
use crate::tripwire::Tripwires;

pub(crate) use procfs::add_proc;

/// A directory that every plan binds, so it exists; the new root is put over it for a moment.
pub(crate) const STAGE: &str = "/usr";
/// The root holds names, small files and mount points; nothing that grows.
const ROOT_BYTES: &str = "32m";
const ROOT_INODES: &str = "8192";
/// Pseudo-terminals of one sandbox: the host has some four thousand for all.
const TERMINALS: &str = "64";
const READABLE: Mode = Mode::from_raw_mode(0o755);

/// Trees of the host, opened in our mount namespace before we give up the id that may look at them.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) binds: Vec<OwnedFd>,
    pub(crate) devices: Vec<OwnedFd>,
    /// In place of both: a copy of a root that holds them already.
    ready: Option<OwnedFd>,
}

/// What init needs of the finished root.
#[derive(Debug)]
pub(crate) struct Built {
    /// The fresh procfs, also when it is not shown inside.
    pub proc: OwnedFd,
    /// The top of the writable file system, which the program sees only in parts.
    pub disk: OwnedFd,
    /// What tells when the watched entries of /proc are opened.
    pub tripwires: Tripwires,
}

/// Opens the trees of the host, or a root where a nursery holds one ready.
pub(crate) fn open_sources(
    root: &Root,
    ready: Option<&Path>,
) -> std::result::Result<Sources, Stopped> {
    // Nothing that we mount may reach the host, nor the other way round.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).at(Step::Sources)?;
    if let Some(place) = ready {
        let ready = Some(ready::copy(place).at(Step::Sources)?);
        return Ok(Sources { binds: Vec::new(), devices: Vec::new(), ready });
    }
    let (binds, devices) = open_trees(root)?;
    Ok(Sources { binds, devices, ready: None })
}

/// Those of the binds, and of the devices.
fn open_trees(root: &Root) -> std::result::Result<(Vec<OwnedFd>, Vec<OwnedFd>), Stopped> {
    let mut binds = Vec::with_capacity(root.binds.len());
    for (index, bind) in root.binds.iter().enumerate() {
        binds.push(open_bind(bind).at_item(Step::Sources, index)?);
    }
    let mut devices = Vec::with_capacity(root.devices.len());
    for (index, device) in root.devices.iter().enumerate() {
        devices.push(open_device(device).at_item(Step::Devices, index)?);
    }
    Ok((binds, devices))
}

fn open_bind(bind: &Bind) -> Result<OwnedFd> {
    // The engine resolved the path; a symlink that appears in it now was put there since.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let source = rustix::fs::openat2(CWD, &bind.source, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&source)?;
    if bind.identity.is_some_and(|expected| expected != (stat.st_dev, stat.st_ino)) {
        return Err(Errno::STALE);
    }
    let tree = clone_tree(source.as_fd())?;
    let read_only = if bind.kind == BindKind::WritableDirectory { 0 } else { READ_ONLY };
    set_attributes(&tree, read_only | NO_SUID | NO_DEV, Reach::Tree)?;
    Ok(tree)
}

fn clone_tree(source: BorrowedFd<'_>) -> Result<OwnedFd> {
    clone_of(source, "")
}

fn clone_of(at: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(at, path, clone)
}

/// A device node of the host, checked by its numbers: a planted file is not /dev/null (CVE-2025-31133).
fn open_device(device: &Device) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = Path::new("/dev").join(&device.name);
    let node = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&node)?;
    let numbers = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_device || numbers != (device.major, device.minor) {
        return Err(Errno::NXIO);
    }
    let tree = clone_tree(node.as_fd())?;
    set_attributes(&tree, NO_SUID | NO_EXEC, Reach::This)?;
    Ok(tree)
}

/// Builds the root and moves into it; the host's tree is then gone from our sight.
pub(crate) fn build(
    plan: &Root,
    sources: &Sources,
    place_files: impl FnOnce(BorrowedFd<'_>) -> std::result::Result<(), Stopped>,
) -> std::result::Result<Built, Stopped> {
    let disk = Disk::make(&plan.writable).at(Step::Writable)?;
    let (root, corner) = match &sources.ready {
        Some(ready) => ready::stage(ready).at(Step::Root)?,
        None => (stage().at(Step::Root)?, None),
    };
    if sources.ready.is_none() {
        fill(root.as_fd(), plan, &sources.binds, &sources.devices)?;
    }
    if plan.pseudo_terminals {
        add_terminals(root.as_fd()).at(Step::Devices)?;
    }
    let corner = corner.as_ref().unwrap_or(&root).as_fd();
    let (proc, tripwires) = add_proc(root.as_fd(), corner, &plan.proc).at(Step::Proc)?;
    disk.attach(root.as_fd(), &plan.writable).at(Step::Writable)?;
    // After the writable ones: a host directory may stand where one of them would.
    for (index, (bind, tree)) in plan.binds.iter().zip(&sources.binds).enumerate() {
        if bind.kind == BindKind::WritableDirectory {
            attach_bind(root.as_fd(), bind, tree).at_item(Step::Binds, index)?;
        }
    }
    place_files(root.as_fd())?;
    set_attributes(&root, READ_ONLY | NO_SUID | NO_DEV, Reach::This).at(Step::Pivot)?;
    pivot(root.as_fd()).at(Step::Pivot)?;
    Ok(Built { proc, disk: disk.top, tripwires })
}

/// Puts a fresh tmpfs over the stage and opens it.
fn stage() -> Result<OwnedFd> {
    stage_at(Path::new(STAGE))
}

fn stage_at(place: &Path) -> Result<OwnedFd> {
    let options = [("size", ROOT_BYTES), ("nr_inodes", ROOT_INODES), ("mode", "0755")];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = new_mount("tmpfs", &options, flags)?;
    attach(root.as_fd(), CWD, place)?;
    Ok(root)
}

/// What of the root is the same for every sandbox with this plan: names, small files, views of the host, devices.
fn fill(
    root: BorrowedFd<'_>,
    plan: &Root,
    binds: &[OwnedFd],
    devices: &[OwnedFd],
) -> std::result::Result<(), Stopped> {
    furnish(root, plan).at(Step::Root)?;
    for (index, (bind, tree)) in plan.binds.iter().zip(binds).enumerate() {
        if bind.kind != BindKind::WritableDirectory {
            attach_bind(root, bind, tree).at_item(Step::Binds, index)?;
        }
    }
    add_devices(root, plan, devices).at(Step::Devices)
}

pub(crate) fn new_mount(
    kind: &str,
    options: &[(&str, &str)],
    flags: MountAttrFlags,
) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

pub(crate) fn attach(mount: BorrowedFd<'_>, at: BorrowedFd<'_>, target: &Path) -> Result<()> {
    move_mount(mount, "", at, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Directories, links and small files of the root itself.
fn furnish(root: BorrowedFd<'_>, plan: &Root) -> Result<()> {
    for directory in &plan.directories {
        make_directories(root, directory)?;
    }
    for symlink in &plan.symlinks {
        make_parent(root, &symlink.link)?;
        rustix::fs::symlinkat(&symlink.points_to, root, relative(&symlink.link))?;
    }
    for Text { path, contents } in &plan.texts {
        make_parent(root, path)?;
        let mut file = new_file(root, path, Mode::from_raw_mode(0o644))?;
        file.write_all(contents.as_bytes()).map_err(crate::cgroup::errno)?;
    }
    Ok(())
}

fn attach_bind(root: BorrowedFd<'_>, bind: &Bind, tree: &OwnedFd) -> Result<()> {
    if bind.kind == BindKind::ReadOnlyFile {
        make_parent(root, &bind.target)?;
        new_file(root, &bind.target, Mode::from_raw_mode(0o444))?;
    } else {
        make_directories(root, &bind.target)?;
    }
    attach(tree.as_fd(), root, relative(&bind.target))
}

pub(crate) fn add_devices(root: BorrowedFd<'_>, plan: &Root, nodes: &[OwnedFd]) -> Result<()> {
    make_directories(root, Path::new("/dev"))?;
    for (device, node) in plan.devices.iter().zip(nodes) {
        let target = Path::new("/dev").join(&device.name);
        new_file(root, &target, Mode::from_raw_mode(0o444))?;
        attach(node.as_fd(), root, relative(&target))?;
    }
    if plan.pseudo_terminals {
        make_directories(root, Path::new("/dev/pts"))?;
        rustix::fs::symlinkat("pts/ptmx", root, "dev/ptmx")?;
    }
    let links = [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")];
    let more = [("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")];
    for (name, to) in links.into_iter().chain(more) {
        rustix::fs::symlinkat(to, root, Path::new("dev").join(name))?;
    }
    Ok(())
}

/// Pseudo-terminals, for which [`add_devices`] has left the place.
pub(crate) fn add_terminals(root: BorrowedFd<'_>) -> Result<()> {
    // Every devpts mount is an instance of its own since Linux 4.7.
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("max", TERMINALS)];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let terminals = new_mount("devpts", &options, flags)?;
    attach(terminals.as_fd(), root, Path::new("dev/pts"))
}

/// One tmpfs for everything writable, so that one limit bounds it all.
pub(crate) struct Disk {
    pub(crate) top: OwnedFd,
    parts: Vec<OwnedFd>,
}

impl Disk {
    /// Makes it and clones its parts. Only what is attached somewhere can be cloned, so it goes onto
    /// the stage, where the root will cover it and the pivot take it away: no unmount of its own.
    pub(crate) fn make(plan: &Writable) -> Result<Self> {
        let (bytes, inodes) = (plan.bytes.to_string(), plan.inodes.to_string());
        let options = [("size", bytes.as_str()), ("nr_inodes", inodes.as_str()), ("mode", "0755")];
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let disk = new_mount("tmpfs", &options, flags)?;
        attach(disk.as_fd(), CWD, Path::new(STAGE))?;
        let mut parts = Vec::with_capacity(plan.directories.len());
        for directory in &plan.directories {
            rustix::fs::mkdirat(&disk, &directory.name, READABLE)?;
            parts.push(clone_of(disk.as_fd(), &directory.name)?);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::openat(&disk, ".", flags, Mode::empty())?;
        Ok(Self { top, parts })
    }

    pub(crate) fn attach(&self, root: BorrowedFd<'_>, plan: &Writable) -> Result<()> {
        for (directory, part) in plan.directories.iter().zip(&self.parts) {
            make_directories(root, &directory.target)?;
            attach(part.as_fd(), root, relative(&directory.target))?;
        }
        Ok(())
    }
}

pub(crate) fn pivot(root: BorrowedFd<'_>) -> Result<()> {
    rustix::process::fchdir(root)?;
    // With both names ".", the old root ends up stacked on the new one, and goes with one unmount.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

/// A new file in the root we are building: nobody else can be in it yet, and nothing is followed.
pub(crate) fn new_file(root: BorrowedFd<'_>, path: &Path, mode: Mode) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, relative(path), flags, mode).map(File::from)
}

pub(crate) fn make_parent(root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |parent| make_directories(root, parent))
}

pub(crate) fn make_directories(root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    // Most often all above it is there.
    match rustix::fs::mkdirat(root, relative(path), READABLE) {
        Ok(()) | Err(Errno::EXIST) => return Ok(()),
        Err(Errno::NOENT) => {} // nothing to make, or not all at once
        Err(errno) => return Err(errno),
    }
    let mut made = std::path::PathBuf::new();
    for component in relative(path).components() {
        let Component::Normal(name) = component else {
            continue;
        };
        made.push(name);
        match rustix::fs::mkdirat(root, &made, READABLE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Paths in a plan are absolute, as the program sees them; here they start at the root's descriptor.
pub(crate) fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}
