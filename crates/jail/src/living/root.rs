//! The root of a living sandbox: overlays of directories that stay, with everything else that a run sees over them.
//!
//! What is in the layers was written by programs, or came from elsewhere as an archive: names in them may be links
//! to anywhere. So no path in them is resolved but one component at a time, following nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use belljar_sys::mount::{NO_DEV, NO_EXEC, NO_SUID, READ_ONLY, Reach, set_attributes};
use belljar_sys::{Errno, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::plan::{BindKind, Root, Tree};
use crate::report::{At, Step, Stopped};
use crate::root::{
    Disk, STAGE, Sources, add_devices, add_proc, add_terminals, attach, new_file, new_mount, pivot,
    relative,
};
use crate::tripwire::Tripwires;

/// What covers parts of /proc, and the witness, lie here: a place that no path inside leads to.
const CORNER: [(&str, &str); 3] = [("size", "1m"), ("nr_inodes", "256"), ("mode", "0755")];
/// /dev holds names and mount points.
const DEV: [(&str, &str); 3] = [("size", "64k"), ("nr_inodes", "64"), ("mode", "0755")];
/// A file that opens before Landlock and must not after: it is not beneath the sandbox's root.
pub(crate) const WITNESS: &str = "witness";

/// The directories of one overlay, opened while we may still look at them.
#[derive(Debug)]
pub(crate) struct Layers {
    lowers: Vec<OwnedFd>,
    upper: OwnedFd,
    work: OwnedFd,
}

/// What init needs of the finished root.
#[derive(Debug)]
pub(crate) struct Built {
    /// The fresh procfs.
    pub proc: OwnedFd,
    /// The directory with the witness.
    pub corner: OwnedFd,
    /// On what covers the kernel's secrets.
    pub tripwires: Tripwires,
}

pub(crate) fn open_layers(trees: &[Tree]) -> std::result::Result<Vec<Layers>, Stopped> {
    let open = |path: &PathBuf| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
    };
    let layers = |tree: &Tree| -> Result<Layers> {
        Ok(Layers {
            lowers: tree.lowers.iter().map(open).collect::<Result<_>>()?,
            upper: open(&tree.upper)?,
            work: open(&tree.work)?,
        })
    };
    let numbered = trees.iter().enumerate();
    numbered.map(|(index, tree)| layers(tree).at_item(Step::Sources, index)).collect()
}

/// Builds the root and moves into it.
pub(crate) fn build(
    plan: &Root,
    sources: &Sources,
    layers: &[Layers],
) -> std::result::Result<Built, Stopped> {
    let memory = Disk::make(&plan.writable).at(Step::Writable)?;
    let corner = corner().at(Step::Root)?;
    let (Some(own), Some((tree, others))) = (layers.first(), plan.trees.split_first()) else {
        return Err(Stopped::new(Step::Root, Errno::INVAL));
    };
    if tree.target != Path::new("/") {
        return Err(Stopped::new(Step::Root, Errno::INVAL));
    }
    let root = overlay(own).at(Step::Root)?;
    attach(root.as_fd(), CWD, Path::new(STAGE)).at(Step::Root)?;
    for (index, (tree, layers)) in others.iter().zip(layers.iter().skip(1)).enumerate() {
        let mounted =
            overlay(layers).and_then(|one| put(root.as_fd(), &one, &tree.target, Kind::Directory));
        mounted.at_item(Step::Root, index + 1)?;
    }
    for (index, (bind, tree)) in plan.binds.iter().zip(&sources.binds).enumerate() {
        let kind = match bind.kind {
            BindKind::ReadOnlyFile => Kind::File,
            BindKind::ReadOnlyDirectory | BindKind::WritableDirectory => Kind::Directory,
        };
        put(root.as_fd(), tree, &bind.target, kind).at_item(Step::Binds, index)?;
    }
    let dev = new_mount("tmpfs", &DEV, MountAttrFlags::empty()).at(Step::Devices)?;
    put(root.as_fd(), &dev, Path::new("/dev"), Kind::Directory).at(Step::Devices)?;
    add_devices(root.as_fd(), plan, &sources.devices).at(Step::Devices)?;
    if plan.pseudo_terminals {
        add_terminals(root.as_fd()).at(Step::Devices)?;
    }
    memory.attach(root.as_fd(), &plan.writable).at(Step::Writable)?;
    set_attributes(&dev, READ_ONLY | NO_SUID | NO_DEV | NO_EXEC, Reach::This).at(Step::Devices)?;
    mount_point(root.as_fd(), Path::new("/proc"), Kind::Directory).at(Step::Proc)?;
    let (proc, tripwires) = add_proc(root.as_fd(), corner.as_fd(), &plan.proc).at(Step::Proc)?;
    pivot(root.as_fd()).at(Step::Pivot)?;
    Ok(Built { proc, corner, tripwires })
}

/// A small file system that lies on the stage, where the root covers it and the pivot takes it away. Whoever has it
/// open keeps it.
fn corner() -> Result<OwnedFd> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let corner = new_mount("tmpfs", &CORNER, flags)?;
    attach(corner.as_fd(), CWD, Path::new(STAGE))?;
    new_file(corner.as_fd(), Path::new(WITNESS), Mode::from_raw_mode(0o444))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&corner, ".", flags, Mode::empty())
}

/// Mounts one over the other. Its attributes are in `user.overlay.*`: a user namespace may write no others.
fn overlay(layers: &Layers) -> Result<OwnedFd> {
    // One by one since Linux 6.5. Before, all in one text, which bounds how many there can be; such a kernel takes whatever it
    // is told, and says only in the end that it did not understand.
    match overlay_of(layers, OneByOne(true)) {
        Err(Errno::INVAL) => overlay_of(layers, OneByOne(false)),
        mounted => mounted,
    }
}

struct OneByOne(bool);

fn overlay_of(layers: &Layers, one_by_one: OneByOne) -> Result<OwnedFd> {
    let name = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&context, "userxattr")?;
    let lowers: Vec<String> = layers.lowers.iter().map(name).collect();
    if one_by_one.0 {
        for one in &lowers {
            fsconfig_set_string(&context, "lowerdir+", one)?;
        }
    } else {
        fsconfig_set_string(&context, "lowerdir", lowers.join(":"))?;
    }
    fsconfig_set_string(&context, "upperdir", name(&layers.upper))?;
    fsconfig_set_string(&context, "workdir", name(&layers.work))?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

fn put(root: BorrowedFd<'_>, mount: &OwnedFd, target: &Path, kind: Kind) -> Result<()> {
    let point = mount_point(root, target, kind)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &point, "", flags)
}

/// Opens a place in the root, which is made if it is not there. A link on the way is `ELOOP`: who put it there had
/// no good reason.
fn mount_point(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(root, ".", flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = relative(path).components().peekable();
    while let Some(Component::Normal(name)) = names.next() {
        let wanted = if names.peek().is_none() { kind } else { Kind::Directory };
        let made = match wanted {
            Kind::Directory => rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)),
            Kind::File => {
                new_file(at.as_fd(), Path::new(name), Mode::from_raw_mode(0o444)).map(drop)
            }
        };
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
        let found = FileType::from_raw_mode(rustix::fs::fstat(&at)?.st_mode);
        match (wanted, found) {
            (Kind::Directory, FileType::Directory) | (Kind::File, FileType::RegularFile) => {}
            (_, FileType::Symlink) => return Err(Errno::LOOP),
            (Kind::Directory, _) => return Err(Errno::NOTDIR),
            (Kind::File, _) => return Err(Errno::INVAL),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_in_the_layers_leads_nowhere() {
        let base = std::env::temp_dir().join(format!("bj-living-root-{}", std::process::id()));
        let (root, outside) = (base.join("root"), base.join("outside"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, root.join("opt")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        let top = rustix::fs::open(&root, OFlags::PATH, Mode::empty()).unwrap();
        let point = |path: &str, kind| mount_point(top.as_fd(), Path::new(path), kind).map(drop);
        assert_eq!(point("/opt/python", Kind::Directory), Err(Errno::LOOP));
        assert_eq!(point("/opt", Kind::File), Err(Errno::LOOP));
        assert_eq!(point("/file/x", Kind::Directory), Err(Errno::NOTDIR));
        assert_eq!(point("/file", Kind::File), Ok(()));
        assert_eq!(point("/a/b", Kind::Directory), Ok(()));
        assert_eq!(point("/a/c", Kind::File), Ok(()));
        assert!(root.join("a/b").is_dir() && root.join("a/c").is_file());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        fs::remove_dir_all(&base).unwrap();
    }
}
