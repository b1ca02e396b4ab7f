//! The directories that a living sandbox's overlays are made of.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use belljar_jail::plan::{BindKind, Tree};

use crate::native::layout;

/// In every base: what is mounted over, and what programs look for.
const BASE: [&str; 8] = ["dev", "etc", "home", "proc", "tmp", "usr", "var", "workspace"];

/// What belongs to the sandbox from its beginning, with its mode.
const OWN: [(&str, u32); 10] = [
    ("etc", 0o755),
    ("home", 0o755),
    ("home/sandbox", 0o755),
    ("opt", 0o755),
    ("srv", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/lib", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];

/// Writes the base of `/` for the image `host` into an empty directory: /etc, mount points, links.
pub fn furnish_base(directory: &Path) -> io::Result<()> {
    let inside = |path: &Path| directory.join(path.strip_prefix("/").unwrap_or(path));
    make(directory, 0o755)?;
    for name in BASE {
        make(&directory.join(name), 0o755)?;
    }
    let (symlinks, texts, binds) = layout::base();
    let parents = |path: &Path| {
        let parent = path.parent().unwrap_or(directory);
        let missing: Vec<&Path> = parent.ancestors().take_while(|one| !one.exists()).collect();
        missing.into_iter().rev().try_for_each(|one| make(one, 0o755))
    };
    for bind in binds {
        let path = inside(&bind.target);
        parents(&path)?;
        match bind.kind {
            BindKind::ReadOnlyFile => write(&path, "")?,
            BindKind::ReadOnlyDirectory | BindKind::WritableDirectory => make(&path, 0o755)?,
        }
    }
    for link in symlinks {
        let path = inside(&link.link);
        parents(&path)?;
        symlink(&link.points_to, path)?;
    }
    for text in texts {
        let path = inside(&text.path);
        parents(&path)?;
        write(&path, &text.contents)?;
    }
    Ok(())
}

/// Makes an upper (and, empty beside it, its work directory) ready for a sandbox: both exist and belong to `owner`.
/// For the upper of `/` that no sheet lies under, also its home, /tmp and /workspace.
pub fn furnish_upper(tree: &Tree, owner: (u32, u32)) -> io::Result<()> {
    let (uid, gid) = owner;
    let own = |path: &Path, mode| {
        make(path, mode)?;
        chown(path, Some(uid), Some(gid))
    };
    own(&tree.upper, 0o755)?;
    own(&tree.work, 0o755)?;
    if tree.target == Path::new("/") && tree.lowers.len() == 1 {
        for (name, mode) in OWN {
            own(&tree.upper.join(name), mode)?;
        }
    }
    Ok(())
}

/// A directory of exactly this mode, whatever the caller's mask; one that is there already is as it should be.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Read-only for everybody: where the caller is an ordinary user these files have the id of the programs inside.
fn write(path: &Path, contents: &str) -> io::Result<()> {
    fs::write(path, contents)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o444))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_has_what_programs_look_for() {
        let base = std::env::temp_dir().join(format!("bj-base-{}", std::process::id()));
        furnish_base(&base).unwrap();
        assert!(fs::read_to_string(base.join("etc/passwd")).unwrap().contains("sandbox:x:1000"));
        assert!(
            base.join("proc").is_dir() && base.join("dev").is_dir() && base.join("usr").is_dir()
        );
        assert!(fs::symlink_metadata(base.join("bin")).is_ok());
        assert!(!base.join(".belljar").exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
