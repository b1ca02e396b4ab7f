//! Bringing changes of a copy-on-write workspace back.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::model::sandbox::SandboxWorkspace;

fn with_workspace(rig: &Rig) -> (Record, Overlay) {
    let host = rig.path.join("host");
    fs::write(host.join("kept"), "kept").unwrap();
    fs::write(host.join("edited"), "old").unwrap();
    fs::create_dir(host.join("dir")).unwrap();
    fs::write(host.join("dir/gone"), "x").unwrap();
    let mut new = new_sandbox("one");
    new.request.workspace =
        Some(SandboxWorkspace { path: Some(host), volume: None, mode: WorkspaceMode::CopyOnWrite });
    let record = rig.store().create(new).unwrap();
    let tree = rig.store().trees(&record).remove(2);
    assert_eq!(tree.target, Path::new("/workspace"));
    (record, Overlay::new(tree.upper, tree.lowers))
}

fn left(done: &Committed) -> Vec<(&str, &str)> {
    done.left.iter().map(|left| (left.path.as_str(), left.reason.as_str())).collect()
}

#[test]
fn a_commit_brings_changes_back_and_leaves_what_acts_by_itself() {
    let rig = Rig::new();
    let (record, overlay) = with_workspace(&rig);
    let host = rig.path.join("host");
    overlay.write("edited", "new", 0o755);
    overlay.remove("dir");
    overlay.mkdir("more");
    overlay.write("more/file", "text", 0o644);
    overlay.write(".bashrc", "evil", 0o644);
    overlay.mkdir(".git");
    overlay.mkdir(".git/hooks");
    overlay.write(".git/hooks/pre-commit", "evil", 0o755);
    overlay.symlink("out", "/etc/passwd");
    overlay.symlink("in", "edited");
    overlay.write("setuid", "x", 0o4755);
    let changes = rig.store().workspace_changes(&record).unwrap();
    assert!(changes.changes.iter().any(|change| change.path == "/workspace/edited"));
    let done = rig.store().commit("one", &Which::All, Conflicts::Leave).unwrap();
    assert_eq!(read(&host.join("edited")), "new");
    assert_eq!(read(&host.join("more/file")), "text");
    assert!(!host.join("dir").exists() && host.join("kept").exists());
    assert!(!host.join(".bashrc").exists() && !host.join(".git/hooks").exists());
    assert!(!host.join("setuid").exists() && fs::symlink_metadata(host.join("out")).is_err());
    assert_eq!(fs::read_link(host.join("in")).unwrap(), Path::new("edited"));
    let reasons = left(&done);
    for path in [".bashrc", ".git/hooks", ".git/hooks/pre-commit"] {
        assert!(
            reasons.iter().any(|(left, why)| *left == path && why.starts_with("protected")),
            "{reasons:?}"
        );
    }
    assert!(reasons.contains(&("out", "a link that leads out of the workspace")));
    assert!(reasons.contains(&("setuid", "setuid or setgid")));
    let named = Which::Paths(vec!["/workspace/.bashrc".to_owned(), ".git".to_owned()]);
    rig.store().commit("one", &named, Conflicts::Leave).unwrap();
    assert_eq!(read(&host.join(".bashrc")), "evil");
    assert!(!host.join(".git/hooks").exists(), "naming a directory above is not naming it");
}

#[test]
fn what_the_host_changed_too_is_told_and_kept_unless_forced() {
    let rig = Rig::new();
    let (_, overlay) = with_workspace(&rig);
    let host = rig.path.join("host");
    overlay.write("edited", "theirs", 0o644);
    overlay.write("kept", "first", 0o644);
    rig.store().commit("one", &Which::Paths(vec!["kept".to_owned()]), Conflicts::Leave).unwrap();
    overlay.write("kept", "second", 0o644);
    // Until the clock of files has gone on: a change in the same tick cannot be told from one before.
    let record = rig.store().get("one").unwrap();
    let since = record.workspace.unwrap().since;
    loop {
        fs::write(host.join("edited"), "ours").unwrap();
        let status = fs::metadata(host.join("edited")).unwrap();
        if (status.ctime(), status.ctime_nsec()) > since {
            break;
        }
    }
    let done = rig.store().commit("one", &Which::All, Conflicts::Leave).unwrap();
    assert_eq!(read(&host.join("edited")), "ours");
    assert_eq!(read(&host.join("kept")), "second", "our own earlier commit is no conflict");
    assert!(left(&done)[0].1.starts_with("conflict"), "{done:?}");
    rig.store().commit("one", &Which::All, Conflicts::Overwrite).unwrap();
    assert_eq!(read(&host.join("edited")), "theirs");
}

#[test]
fn nothing_is_written_through_a_link_on_the_host() {
    let rig = Rig::new();
    let (_, overlay) = with_workspace(&rig);
    let host = rig.path.join("host");
    let outside = rig.path.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "safe").unwrap();
    overlay.write("edited", "theirs", 0o644);
    overlay.write("dir/new", "theirs", 0o644);
    fs::remove_file(host.join("edited")).unwrap();
    symlink(outside.join("file"), host.join("edited")).unwrap();
    fs::remove_dir_all(host.join("dir")).unwrap();
    symlink(&outside, host.join("dir")).unwrap();
    rig.store().commit("one", &Which::All, Conflicts::Overwrite).unwrap();
    assert_eq!(read(&outside.join("file")), "safe");
    assert!(!outside.join("new").exists());
}

#[test]
fn another_directory_under_the_same_path_is_refused_and_discard_lets_go() {
    let rig = Rig::new();
    let (record, overlay) = with_workspace(&rig);
    overlay.write("edited", "theirs", 0o644);
    assert_eq!(rig.store().workspace_changes(&record).unwrap().changes.len(), 1);
    let record = rig.store().discard("one").unwrap();
    assert_eq!(rig.store().workspace_changes(&record).unwrap().changes, []);
    fs::rename(rig.path.join("host"), rig.path.join("moved")).unwrap();
    fs::create_dir(rig.path.join("host")).unwrap();
    fs::set_permissions(rig.path.join("host"), fs::Permissions::from_mode(0o755)).unwrap();
    let error = rig.store().commit("one", &Which::All, Conflicts::Leave).unwrap_err().to_string();
    assert!(error.contains("is another directory"), "{error}");
}
