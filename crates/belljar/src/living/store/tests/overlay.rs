//! What the kernel's overlay does with an upper directory, in a few lines: quick enough for thousands of cases.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

/// What is seen under a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Node {
    Directory,
    File(String, u32),
    Link(String),
}

pub(in super::super) type Tree = BTreeMap<String, Node>;

pub(in super::super) struct Overlay {
    upper: PathBuf,
    lowers: Vec<PathBuf>,
}

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|status| status.file_type().is_char_device() && status.rdev() == 0)
}

fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 8];
    rustix::fs::getxattr(path, "user.overlay.opaque", &mut value[..])
        .is_ok_and(|n| &value[..n] == b"y")
}

impl Overlay {
    pub(in super::super) fn new(upper: PathBuf, lowers: Vec<PathBuf>) -> Self {
        Self { upper, lowers }
    }

    fn layers(&self) -> Vec<&PathBuf> {
        std::iter::once(&self.upper).chain(&self.lowers).collect()
    }

    /// The layers in which a path is seen, the highest first; of anything but a directory the first alone.
    fn seen(&self, path: &str) -> Vec<PathBuf> {
        let mut candidates: Vec<PathBuf> = self.layers().into_iter().cloned().collect();
        if path.is_empty() {
            return candidates;
        }
        for part in path.split('/') {
            let mut next = Vec::new();
            for directory in &candidates {
                let found = directory.join(part);
                let Ok(status) = fs::symlink_metadata(&found) else { continue };
                if is_whiteout(&found) || (!next.is_empty() && !status.is_dir()) {
                    break;
                }
                next.push(found.clone());
                if !status.is_dir() || is_opaque(&found) {
                    break;
                }
            }
            candidates = next;
        }
        candidates
    }

    pub(in super::super) fn node(&self, path: &str) -> Option<Node> {
        let found = self.seen(path).into_iter().next()?;
        let status = fs::symlink_metadata(&found).unwrap();
        Some(if status.is_dir() {
            Node::Directory
        } else if status.is_symlink() {
            Node::Link(fs::read_link(&found).unwrap().to_str().unwrap().to_owned())
        } else {
            Node::File(fs::read_to_string(&found).unwrap(), status.mode() & 0o7777)
        })
    }

    pub(in super::super) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut waiting = vec![String::new()];
        while let Some(path) = waiting.pop() {
            for directory in self.seen(&path) {
                for entry in fs::read_dir(directory).unwrap() {
                    let name = entry.unwrap().file_name().into_string().unwrap();
                    let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                    let Some(node) = self.node(&below) else { continue };
                    if tree.insert(below.clone(), node.clone()).is_none() && node == Node::Directory
                    {
                        waiting.push(below);
                    }
                }
            }
        }
        tree
    }

    fn parent_is_there(&self, path: &str) -> bool {
        match path.rsplit_once('/') {
            Some((above, _)) => self.node(above) == Some(Node::Directory),
            None => true,
        }
    }

    /// Copies the directories above a path up, as a change below them does.
    fn copy_up_above(&self, path: &str) {
        let mut at = self.upper.clone();
        let parts: Vec<&str> = path.split('/').collect();
        for part in &parts[..parts.len() - 1] {
            at.push(part);
            if !at.is_dir() {
                fs::create_dir(&at).unwrap();
                fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
    }

    fn is_below(&self, path: &str) -> bool {
        Self { upper: PathBuf::from("/nonexistent"), lowers: self.lowers.clone() }
            .node(path)
            .is_some()
    }

    pub(in super::super) fn write(&self, path: &str, text: &str, mode: u32) -> bool {
        if !self.parent_is_there(path) || self.node(path) == Some(Node::Directory) {
            return false;
        }
        self.copy_up_above(path);
        let target = self.upper.join(path);
        fs::remove_file(&target).ok();
        fs::write(&target, text).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        true
    }

    pub(in super::super) fn link(&self, from: &str, to: &str) -> bool {
        let Some(Node::File(text, mode)) = self.node(from) else { return false };
        if self.node(to).is_some() || !self.parent_is_there(to) {
            return false;
        }
        self.write(from, &text, mode);
        self.copy_up_above(to);
        fs::remove_file(self.upper.join(to)).ok();
        fs::hard_link(self.upper.join(from), self.upper.join(to)).unwrap();
        true
    }

    pub(in super::super) fn symlink(&self, path: &str, target: &str) -> bool {
        if !self.parent_is_there(path) || self.node(path).is_some() {
            return false;
        }
        self.copy_up_above(path);
        fs::remove_file(self.upper.join(path)).ok();
        symlink(target, self.upper.join(path)).unwrap();
        true
    }

    pub(in super::super) fn mkdir(&self, path: &str) -> bool {
        if !self.parent_is_there(path) || self.node(path).is_some() {
            return false;
        }
        self.copy_up_above(path);
        let target = self.upper.join(path);
        let hidden = is_whiteout(&target);
        fs::remove_file(&target).ok();
        fs::create_dir(&target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
        if hidden {
            rustix::fs::setxattr(&target, "user.overlay.opaque", b"y", XattrFlags::empty())
                .unwrap();
        }
        true
    }

    pub(in super::super) fn remove(&self, path: &str) -> bool {
        if self.node(path).is_none() {
            return false;
        }
        let target = self.upper.join(path);
        match fs::symlink_metadata(&target) {
            Ok(status) if status.is_dir() => fs::remove_dir_all(&target).unwrap(),
            Ok(_) => fs::remove_file(&target).unwrap(),
            Err(_) => {}
        }
        if self.is_below(path) {
            self.copy_up_above(path);
            let kind = FileType::CharacterDevice;
            rustix::fs::mknodat(CWD, &target, kind, Mode::empty(), 0).unwrap();
        }
        true
    }

    pub(in super::super) fn rename(&self, from: &str, to: &str) -> bool {
        let Some(Node::File(text, mode)) = self.node(from) else { return false };
        from != to && self.write(to, &text, mode) && self.remove(from)
    }

    pub(in super::super) fn chmod(&self, path: &str, mode: u32) -> bool {
        let Some(Node::File(text, _)) = self.node(path) else { return false };
        self.write(path, &text, mode)
    }
}
