//! The store as a whole, on directories; what the kernel does in between is done by [`overlay`].

mod archives;
mod claims;
mod crashes;
mod model;
mod overlay;
mod points;
mod records;
mod workspaces;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use overlay::Overlay;

/// A store in a directory that vanishes with its test.
pub(super) struct Rig {
    pub path: PathBuf,
    store: Option<Store>,
    ground: Ground,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Rig {
    pub(super) fn new() -> Self {
        Self::on(Ground::Directory)
    }

    pub(super) fn on(ground: Ground) -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Memory: thousands of cases do not wait for a disk.
        let shared = PathBuf::from("/dev/shm");
        let above = if shared.is_dir() && ground == Ground::Directory {
            shared
        } else {
            std::env::temp_dir()
        };
        let path = above.join(format!("bj-store-{}-{number}", std::process::id()));
        for directory in ["base/etc/dir", "base/home", "usr/bin", "host"] {
            fs::create_dir_all(path.join(directory)).unwrap();
        }
        fs::write(path.join("base/etc/passwd"), "root").unwrap();
        fs::write(path.join("base/etc/dir/x"), "x").unwrap();
        fs::write(path.join("base/a"), "base a").unwrap();
        fs::write(path.join("usr/bin/sh"), "sh").unwrap();
        let mut rig = Self { path, store: None, ground };
        rig.reopen();
        rig
    }

    pub(super) fn config(&self) -> StoreConfig {
        Self::config_of(&self.path, self.ground)
    }

    pub(super) fn config_of(path: &Path, ground: Ground) -> StoreConfig {
        StoreConfig {
            state: path.join("state"),
            base: Base { root: path.join("base"), usr: path.join("usr") },
            limits: SandboxLimits::default(),
            ground: Some(ground),
            holder: Holder::Server,
        }
    }

    /// As a start after a crash: read, then sweep.
    pub(super) fn reopen(&mut self) {
        self.store = None;
        let store = Store::open(self.config()).unwrap();
        store.sweep(&BTreeSet::new()).unwrap();
        self.store = Some(store);
    }

    pub(super) fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    pub(super) fn create(&self, name: &str) -> Record {
        self.store().create(new_sandbox(name)).unwrap()
    }

    pub(super) fn overlay(&self, id: &str) -> Overlay {
        let record = self.store().get(id).unwrap();
        let tree = self.store().trees(&record).remove(0);
        Overlay::new(tree.upper, tree.lowers)
    }

    /// Holds what a sandbox stands on seen, where that is more than directories.
    pub(super) fn attached(&self, id: &str) -> Attached {
        let store = self.store();
        store.attach(&store.get(id).unwrap()).unwrap()
    }

    pub(super) fn disks(&self) -> Vec<String> {
        let mut found: Vec<_> = fs::read_dir(self.path.join("state/disks"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        found
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(store) = self.store.take() {
            for record in store.list() {
                store.remove(&record.id).unwrap();
            }
        }
        fs::remove_dir_all(&self.path).unwrap();
    }
}

pub(super) fn new_sandbox(name: &str) -> NewSandbox {
    let uid = rustix::process::geteuid();
    let gid = rustix::process::getegid().as_raw();
    NewSandbox {
        tenant: String::new(),
        name: Some(Name::new(name).unwrap()),
        request: SandboxRequest::default(),
        ids: Some(Ids { uid: uid.as_raw(), gid }),
        owner: owner(),
    }
}

pub(super) fn owner() -> Owner {
    Owner::local(1000)
}

pub(super) fn tag(text: &str) -> Tag {
    Tag::new(text).unwrap()
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
