//! Directories that vanish with their test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Program;

/// A directory below the system's temporary one, which others may read: at some levels a run has a
/// host id of its own. Not under our own name: what begins with it counts as left behind.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl TempDir {
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// The same in another place: a sandbox has a /tmp of its own.
    pub fn below(parent: &Path) -> Self {
        let name =
            format!("bj-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path).expect("a temporary directory can be made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file in it, with whatever directories its name needs.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        let above = path.parent().expect("a file is in a directory");
        fs::create_dir_all(above).expect("directories can be made");
        fs::write(&path, contents).expect("files can be written");
        path
    }

    /// A file that can be run, written by another process: a test beside this one that starts a program
    /// just now would hold our descriptor for writing for a moment, and the file were busy.
    pub fn program(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name, "");
        let ended = Program::new("/bin/sh")
            .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
            .args([&path])
            .stdin(contents.as_ref())
            .run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        path
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.path).or_else(|_| {
            open_up(&self.path);
            fs::remove_dir_all(&self.path)
        });
        if let Err(error) = removed {
            // While a test fails there is something more important to say.
            assert!(std::thread::panicking(), "{}: {error}", self.path.display());
        }
    }
}

/// An overlay closes its own directory to everybody, and who is not root could not remove it then.
fn open_up(directory: &Path) {
    // What is gone meanwhile, or is not ours, the removal tells of.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).ok();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}
