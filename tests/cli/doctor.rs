//! `belljar doctor` on this host, and what `--fix` would leave on others.

use std::fs;
use std::path::{Path, PathBuf};

use belljar::doctor::fixes::{User, delegation_script};
use belljar_tests::{Program, TempDir, is_root};

#[test]
fn doctor_tells_the_levels_and_from_which_one_each_fact_is_needed() {
    let ended = Program::belljar().args(["doctor", "--json"]).run();
    let told = ended.json();
    let levels = told["levels"].as_array().expect("a list");
    assert_eq!(levels.len(), 5, "{ended:?}");
    assert!(levels[..4].iter().all(|one| one["works"] == true), "{ended:?}");
    assert_eq!(ended.code, Some(0));
    let needed = |name: &str| {
        let host = told["host"].as_array().expect("a list");
        let fact = host.iter().find(|fact| fact["name"] == name);
        fact.map(|fact| fact["needed_from"].clone())
    };
    assert_eq!(needed("landlock"), Some("basic".into()));
    assert_eq!(needed("cgroups"), Some("standard".into()));
    let ids = if is_root() { None } else { Some("strict".into()) };
    assert_eq!(needed("subordinate ids"), ids, "root takes ids as it likes");
}

#[test]
fn fix_is_for_root_alone() {
    if is_root() {
        let nobody = Program::belljar().args(["doctor", "--fix", "--user", "no-such-user"]).run();
        assert_eq!(nobody.code, Some(2), "{nobody:?}");
    } else {
        let ended = Program::belljar().args(["doctor", "--fix", "--yes"]).run();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err().contains("as root"), "{ended:?}");
    }
}

/// A directory of the v2 hierarchy that stands for the whole of it.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
        let line = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let mount = line.and_then(|line| line.split(' ').nth(4)).expect("cgroup2 is mounted");
        let path = Path::new(mount).join(format!("bj-test-{}", std::process::id()));
        fs::create_dir(&path).expect("root may make cgroups");
        Self(path)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for inner in ["belljar/4242/run", "belljar/4242/session", "belljar/4242", "belljar", "init"]
        {
            // Those that the test did not come to are not there.
            fs::remove_dir(self.0.join(inner)).ok();
        }
        fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn v2_subtree_is_the_users_once_a_process_is_inside() {
    let user = User { uid: 4242, gid: 4242 };
    let directory = TempDir::new();
    if !is_root() {
        // Without the right to make cgroups the script stops, and says at what.
        let script = delegation_script(directory.path(), user, &[]);
        let script = directory.file("script", script);
        let ended = Program::new("/bin/sh").arg(&script).run();
        assert_ne!(ended.code, Some(0), "{ended:?}");
        return;
    }
    let tree = Tree::new();
    let script = directory.file("script", delegation_script(&tree.0, user, &[]));
    for _ in 0..2 {
        let ended = Program::new("/bin/sh").arg(&script).arg("start").run();
        assert_eq!((ended.code, ended.err()), (Some(0), String::new()), "{ended:?}");
    }
    let own = tree.0.join("belljar/4242");
    // As that user: first from outside, where moving in is refused, then from inside.
    let enter = "mkdir -p run && echo made && echo 0 > run/cgroup.procs";
    let as_user = "exec setpriv --reuid 4242 --regid 4242 --clear-groups sh -c";
    let outside = format!("{as_user} '{enter}'");
    let run = |code: &str| Program::new("/bin/sh").args(["-c", code]).directory(&own).run();
    let refused = run(&outside);
    assert_eq!((refused.out(), refused.code), ("made\n".to_owned(), Some(1)), "{refused:?}");
    let inside = format!(
        "echo 0 > session/cgroup.procs && {as_user} '{enter} && grep ^0: /proc/self/cgroup'"
    );
    let moved = run(&inside);
    assert!(moved.out().trim_end().ends_with("/belljar/4242/run"), "{moved:?}");
    let limits = run(&format!("{as_user} 'echo 1 > cgroup.max.depth'"));
    assert_ne!(limits.code, Some(0), "the subtree's own bounds stay root's: {limits:?}");
}
