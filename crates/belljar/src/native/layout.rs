//! What a sandbox's root looks like for the image `host`: the host's programs and libraries, read-only,
//! and nothing of the host's people.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_jail::plan::{
    Bind, BindKind, Device, Proc, Root, Symlink, Text, Tree, Writable, WritableDirectory,
};

use rustix::fs::{Access, AtFlags, CWD};

use super::identity::INSIDE;
use crate::languages::Interpreter;
use crate::model::error::SpecError;
use crate::model::level::Level;
use crate::model::request::Workspace;
use crate::model::spec::{Spec, WORKSPACE};

/// Programs and libraries. Where the host has links (merged /usr), so has the sandbox.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// The parts of /etc that programs need and that tell nothing about the host's people.
const ETC: [&str; 17] = [
    "/etc/alternatives",
    // Without these no program of Debian's Java looks a name up: a part of the library is a link to them.
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/java-25-openjdk",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/magic",
    "/etc/matplotlibrc", // Debian keeps a part of the library there
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Entries of /proc that tell about the host or its kernel; covered by something empty.
/// Those of [`MASKED`] that nobody opens by accident, or to print a statistic. Files, all of them.
const WATCHED: [&str; 11] = [
    "config.gz",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
];

const MASKED: [&str; 32] = [
    "acpi",
    "asound",
    "buddyinfo",
    "bus",
    "cmdline",
    "config.gz",
    "device-tree",
    "diskstats",
    "driver",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "modules",
    "mtrr",
    "partitions",
    "sched_debug",
    "schedstat",
    "scsi",
    "slabinfo",
    // Names the host across runs.
    "sys/kernel/random/boot_id",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
    "zoneinfo",
];

/// Entries that one blocked path may split a directory into.
const MAX_SPLIT: usize = 4096;

/// /dev/shm of a living sandbox is memory, beside its files.
const SHARED_MEMORY_BYTES: u64 = 64 << 20;
const SHARED_MEMORY_INODES: u64 = 1024;

/// A file in our own corner of the root that Landlock must hide: how the payload sees that it is in force.
pub(crate) const WITNESS: &str = "/.belljar/witness";

/// The writable places; all of them parts of one bounded disk.
pub(crate) const WRITABLE: [(&str, &str); 4] =
    [("workspace", WORKSPACE), ("tmp", "/tmp"), ("home", "/home/sandbox"), ("shm", "/dev/shm")];

/// A host directory at /workspace, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostWorkspace {
    pub path: PathBuf,
    pub writable: bool,
    pub owner: (u32, u32),
    mode: u32,
    identity: (u64, u64),
}

impl HostWorkspace {
    /// Resolves and checks the directory that the request names.
    pub(crate) fn open(request: &Workspace, level: Level) -> Result<Self, SpecError> {
        let wrong = |reason: String| SpecError::new("workspace", reason);
        let shown = request.path.display();
        let path =
            request.path.canonicalize().map_err(|error| wrong(format!("{shown}: {error}")))?;
        let metadata = fs::metadata(&path).map_err(|error| wrong(format!("{shown}: {error}")))?;
        if !metadata.is_dir() {
            return Err(wrong(format!("{shown} is not a directory")));
        }
        let reserved = [
            "/", "/usr", "/bin", "/lib", "/etc", "/proc", "/sys", "/dev", "/boot", "/root",
            "/home", "/var", "/run", "/tmp",
        ];
        if reserved.iter().any(|one| path == Path::new(one)) {
            return Err(wrong(format!(
                "{} is a part of the system: give the directory of one project",
                path.display()
            )));
        }
        if level == Level::None && !request.writable {
            return Err(wrong(
                "cannot be read-only at level none: use basic or above, or DIR:rw".into(),
            ));
        }
        Ok(Self {
            path,
            writable: request.writable,
            owner: (metadata.uid(), metadata.gid()),
            mode: metadata.mode(),
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    /// Whether this process may look into it, by whatever rule the kernel has for that.
    pub(crate) fn readable_by_us(&self) -> bool {
        let access = Access::READ_OK | Access::EXEC_OK;
        rustix::fs::accessat(CWD, &self.path, access, AtFlags::EACCESS).is_ok()
    }

    /// Whether somebody else with these ids, and no other group, may look into it.
    pub(crate) fn readable_by(&self, uid: u32, gid: u32) -> bool {
        // The owner of a directory can open it to itself, and would be told by the program's error.
        uid == self.owner.0 || may_read(self.mode, self.owner.1 == gid)
    }
}

/// The kernel's rule for whoever is not the owner: the group's bits count for the group, and only they.
fn may_read(mode: u32, in_group: bool) -> bool {
    let needed = if in_group { 0o050 } else { 0o005 };
    mode & needed == needed
}

/// The root of a run.
pub(crate) fn root(
    spec: &Spec,
    interpreter: Option<&Interpreter>,
    workspace: Option<&HostWorkspace>,
) -> Result<Root, SpecError> {
    let mut root = Root {
        hostname: "belljar".to_owned(),
        binds: Vec::new(),
        directories: vec![PathBuf::from("/etc"), PathBuf::from("/home")],
        symlinks: Vec::new(),
        texts: texts(),
        devices: DEVICES.map(device).to_vec(),
        pseudo_terminals: true,
        proc: proc(spec),
        writable: writable(spec, workspace.is_some()),
        trees: Vec::new(),
        bound: None,
    };
    for path in SYSTEM.iter().chain(&ETC) {
        show(&mut root, Path::new(path));
    }
    if let Some(prefix) = interpreter.and_then(|one| one.prefix.as_deref()) {
        show(&mut root, prefix);
        show_link(&mut root, interpreter.map(|one| one.path.as_path()), prefix);
    }
    for path in &spec.block_paths {
        block(&mut root, path)?;
    }
    if let Some(workspace) = workspace {
        let writable = BindKind::WritableDirectory;
        root.binds.push(Bind {
            source: workspace.path.clone(),
            target: PathBuf::from(WORKSPACE),
            kind: if workspace.writable { writable } else { BindKind::ReadOnlyDirectory },
            identity: Some(workspace.identity),
        });
    }
    Ok(root)
}

/// What is mounted over the overlays of a living sandbox of the image `host`: as a run's root, but for what is in the
/// overlays themselves ([`base`]).
pub(crate) fn over_trees(spec: &Spec, trees: &[Tree]) -> Result<Root, SpecError> {
    let whole = root(spec, None, None)?;
    let is_tree = |path: &Path| trees.iter().any(|tree| tree.target == path);
    let memory = Writable {
        bytes: SHARED_MEMORY_BYTES.min(spec.limits.memory_bytes) / 4096 * 4096,
        inodes: SHARED_MEMORY_INODES,
        directories: vec![WritableDirectory { name: "shm".into(), target: "/dev/shm".into() }],
    };
    Ok(Root {
        binds: whole.binds.into_iter().filter(|bind| !is_tree(&bind.target)).collect(),
        directories: Vec::new(),
        symlinks: Vec::new(),
        texts: Vec::new(),
        writable: memory,
        trees: trees.to_vec(),
        ..whole
    })
}

/// The parts of a root that the base of a living sandbox's `/` holds: directories, links, texts, and the places where
/// something is mounted.
pub(crate) fn base() -> (Vec<Symlink>, Vec<Text>, Vec<Bind>) {
    let mut shown = Root {
        hostname: String::new(),
        binds: Vec::new(),
        directories: Vec::new(),
        symlinks: Vec::new(),
        texts: Vec::new(),
        devices: Vec::new(),
        pseudo_terminals: false,
        proc: Proc { only_processes: true, masked: Vec::new(), watched: Vec::new(), absent: true },
        writable: Writable { bytes: 0, inodes: 0, directories: Vec::new() },
        trees: Vec::new(),
        bound: None,
    };
    for path in SYSTEM.iter().chain(&ETC) {
        show(&mut shown, Path::new(path));
    }
    let texts = texts().into_iter().filter(|text| text.path != Path::new(WITNESS)).collect();
    (shown.symlinks, texts, shown.binds)
}

fn device((name, major, minor): (&str, u32, u32)) -> Device {
    Device { name: name.to_owned(), major, minor }
}

/// Shows a host path at the same place: a link as a link, anything else as a read-only view.
fn show(root: &mut Root, path: &Path) {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return;
    };
    if metadata.is_symlink() {
        let Ok(points_to) = fs::read_link(path) else {
            return;
        };
        root.symlinks.push(Symlink { link: path.to_owned(), points_to });
        return;
    }
    // Links on the way to it are resolved here, so that none is followed when it is opened.
    let Ok(source) = path.canonicalize() else {
        return;
    };
    let kind = if metadata.is_dir() { BindKind::ReadOnlyDirectory } else { BindKind::ReadOnlyFile };
    if metadata.is_dir() || metadata.is_file() {
        root.binds.push(Bind { source, target: path.to_owned(), kind, identity: None });
    }
}

/// An interpreter that was found through a link outside its prefix keeps that path.
fn show_link(root: &mut Root, interpreter: Option<&Path>, prefix: &Path) {
    if let Some(path) = interpreter.filter(|path| !path.starts_with(prefix)) {
        show(root, path);
    }
}

fn texts() -> Vec<Text> {
    let text = |path: &str, contents: &str| Text {
        path: PathBuf::from(path),
        contents: contents.to_owned(),
    };
    let id = INSIDE;
    vec![
        text(
            "/etc/passwd",
            &format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
             sandbox:x:{id}:{id}:sandbox:/home/sandbox:/bin/bash\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        text("/etc/group", &format!("root:x:0:\nsandbox:x:{id}:\nnogroup:x:65534:\n")),
        text("/etc/hosts", "127.0.0.1 localhost belljar\n::1 localhost belljar\n"),
        text("/etc/hostname", "belljar\n"),
        // Where there is no way out nobody listens there, which is told at once.
        text("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n"),
        text(
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
        ),
        text(WITNESS, "This is a Belljar sandbox.\n"),
    ]
}

fn proc(spec: &Spec) -> Proc {
    let only_processes = spec.level >= Level::Strict;
    let masked = if only_processes { &[][..] } else { &MASKED[..] };
    Proc {
        only_processes,
        masked: masked.iter().map(|name| (*name).to_owned()).collect(),
        watched: WATCHED
            .iter()
            .filter(|name| masked.contains(name))
            .map(|name| (*name).to_owned())
            .collect(),
        absent: false,
    }
}

fn writable(spec: &Spec, host_workspace: bool) -> Writable {
    let own = WRITABLE.iter().filter(|(name, _)| !(host_workspace && *name == "workspace"));
    Writable {
        bytes: spec.limits.disk_bytes / 4096 * 4096,
        inodes: spec.limits.inodes,
        directories: own
            .map(|(name, target)| WritableDirectory {
                name: (*name).to_owned(),
                target: PathBuf::from(target),
            })
            .collect(),
    }
}

/// Takes a path out of the root, so that it does not exist inside.
fn block(root: &mut Root, path: &Path) -> Result<(), SpecError> {
    let essential = WRITABLE.iter().any(|(_, target)| Path::new(target).starts_with(path));
    if essential && path != Path::new("/dev/shm") {
        let reason = format!("has {}, which the program needs to work in", path.display());
        return Err(SpecError::new("block_paths", reason));
    }
    root.symlinks.retain(|one| !one.link.starts_with(path));
    root.texts.retain(|one| !one.path.starts_with(path) || one.path == Path::new(WITNESS));
    root.directories.retain(|one| !one.starts_with(path));
    root.writable.directories.retain(|one| one.target != path);
    root.devices.retain(|one| Path::new("/dev").join(&one.name) != path);
    root.pseudo_terminals &= !path.starts_with("/dev/pts") && path != Path::new("/dev/ptmx");
    if path == Path::new("/proc") {
        root.proc.absent = true;
    } else if let Ok(inner) = path.strip_prefix("/proc") {
        root.proc.masked.push(inner.to_string_lossy().into_owned());
    }
    // Through a link (/bin/su is /usr/bin/su on a merged host) the same file is blocked by its own name.
    let resolved = resolve_links(path);
    split(root, path)?;
    if resolved != path { split(root, &resolved) } else { Ok(()) }
}

fn resolve_links(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Replaces the view that covers `path` by views of its siblings, level by level, without it.
fn split(root: &mut Root, path: &Path) -> Result<(), SpecError> {
    root.binds.retain(|bind| !bind.target.starts_with(path));
    let Some(index) = root.binds.iter().position(|bind| path.starts_with(&bind.target)) else {
        return Ok(());
    };
    if fs::symlink_metadata(path).is_err() {
        return Ok(()); // it does not exist on this host either
    }
    let cover = root.binds.remove(index);
    root.directories.push(cover.target.clone());
    let mut here = cover.target;
    loop {
        let entries = fs::read_dir(&here).map_err(|error| {
            SpecError::new("block_paths", format!("{}: {error}", here.display()))
        })?;
        let siblings: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        if siblings.len() > MAX_SPLIT {
            let reason = format!(
                "{} has more than {MAX_SPLIT} entries to show without it: block the directory",
                here.display()
            );
            return Err(SpecError::new("block_paths", reason));
        }
        for sibling in siblings.iter().filter(|one| !path.starts_with(one)) {
            show(root, sibling);
        }
        match siblings.into_iter().find(|one| path.starts_with(one)) {
            Some(next) if next != path => {
                root.directories.push(next.clone());
                here = next;
            }
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_bits_count_for_the_group_and_only_they() {
        assert!(may_read(0o755, false) && may_read(0o755, true));
        assert!(may_read(0o750, true) && !may_read(0o750, false));
        assert!(!may_read(0o705, true) && may_read(0o705, false));
        assert!(!may_read(0o744, false), "what cannot be entered cannot be read");
    }
}
