//! What `doctor --fix` would change on this host, and changing it: files of the system and cgroups,
//! each shown before it is made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Where the profile that lets this binary make user namespaces is installed.
pub const APPARMOR_PROFILE: &str = "/etc/apparmor.d/belljar";
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-belljar.conf";
const DELEGATE_FILE: &str = "/etc/systemd/system/user@.service.d/60-belljar.conf";
const CGROUP: &str = "/sys/fs/cgroup";

/// The controllers that a run needs, as cgroup files and systemd spell them.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// One thing that `doctor --fix` would change, shown before it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    pub why: String,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Write a file, then run the commands that make it count.
    File { path: PathBuf, contents: String, mode: u32, then: Vec<Vec<String>> },
    /// Make a directory of the cgroup tree and give it to a user. Does not survive a reboot.
    Delegate { directory: PathBuf, uid: u32, gid: u32 },
}

/// Who cgroups are delegated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// What is missing for ordinary users on the host whose files are below `root`.
pub fn find(root: &Path, binary: &Path, user: Option<User>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    fixes.extend(apparmor(root, binary));
    fixes.extend(sysctls(root));
    if at(root, "/run/systemd/system").exists() {
        fixes.extend(systemd_delegation(root, user));
    } else if let Some(user) = user {
        fixes.extend(v1_delegations(root, user));
        fixes.extend(v2_delegation(root, user));
    }
    fixes
}

/// Carries out one fix. The caller has shown it and was told to go on.
pub fn apply(fix: &Fix) -> std::io::Result<()> {
    match &fix.change {
        Change::File { path, contents, mode, then } => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, contents)?;
            fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
            then.iter().try_for_each(|command| run(command))
        }
        Change::Delegate { directory, uid, gid } => {
            fs::create_dir_all(directory)?;
            let owner = (Some(*uid), Some(*gid));
            std::os::unix::fs::chown(directory, owner.0, owner.1)?;
            for file in ["cgroup.procs", "tasks"] {
                std::os::unix::fs::chown(directory.join(file), owner.0, owner.1)?;
            }
            Ok(())
        }
    }
}

fn run(command: &[String]) -> std::io::Result<()> {
    let Some((program, args)) = command.split_first() else {
        return Ok(());
    };
    let args: Vec<std::ffi::OsString> = args.iter().map(Into::into).collect();
    let output = belljar_sys::spawn::output(program, &args)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(std::io::Error::other(format!("{program} failed: {said}")))
}

/// A path of the host whose files are below `root`.
pub(crate) fn at(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// A setting of the kernel; empty where there is none of that name.
pub(crate) fn setting(root: &Path, path: &str) -> String {
    fs::read_to_string(at(root, path)).unwrap_or_default().trim().to_owned()
}

fn file(why: &str, path: PathBuf, contents: String, then: &[&[&str]]) -> Fix {
    let change = Change::File { path, contents, mode: 0o644, then: commands(then) };
    Fix { why: why.to_owned(), change }
}

/// As a [`Change`] carries them; one without words is none.
fn commands(all: &[&[&str]]) -> Vec<Vec<String>> {
    let there = all.iter().filter(|command| !command.is_empty());
    there.map(|command| command.iter().map(|word| (*word).to_owned()).collect()).collect()
}

fn apparmor(root: &Path, binary: &Path) -> Option<Fix> {
    let profile = at(root, APPARMOR_PROFILE);
    let restricted = setting(root, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1";
    let why = "AppArmor keeps user namespaces from ordinary users; this allows them to belljar";
    let contents = format!(
        "# Lets belljar make user namespaces; everything else is as without a profile.\n\
         abi <abi/4.0>,\ninclude <tunables/global>\n\n\
         profile belljar {} flags=(unconfined) {{\n  userns,\n}}\n",
        binary.display()
    );
    let then = ["apparmor_parser", "-r", APPARMOR_PROFILE];
    (restricted && !profile.exists()).then(|| file(why, profile, contents, &[&then]))
}

fn sysctls(root: &Path) -> Option<Fix> {
    let mut contents = String::new();
    if setting(root, "/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        contents += "kernel.unprivileged_userns_clone = 1\n";
    }
    if setting(root, "/proc/sys/user/max_user_namespaces") == "0" {
        contents += "user.max_user_namespaces = 15000\n";
    }
    let why = "user namespaces are switched off for ordinary users";
    let then = ["sysctl", "-p", SYSCTL_FILE];
    (!contents.is_empty()).then(|| file(why, at(root, SYSCTL_FILE), contents, &[&then]))
}

/// The drop-in that lets users have every controller, unless they have them.
fn systemd_delegation(root: &Path, user: Option<User>) -> Option<Fix> {
    let path = at(root, DELEGATE_FILE);
    if path.exists() || managers_have_all(root, user) || units_delegate_all(root) {
        return None;
    }
    let why = "systemd does not delegate memory, pids and cpu to users here (for those who log in from now on)";
    let contents = format!("[Service]\nDelegate={}\n", CONTROLLERS.join(" "));
    Some(file(why, path, contents, &[&["systemctl", "daemon-reload"]]))
}

/// Whether the users' own systemds that run now (or this user's) were given every controller.
fn managers_have_all(root: &Path, user: Option<User>) -> bool {
    let slices = fs::read_dir(at(root, CGROUP).join("user.slice")).into_iter().flatten().flatten();
    let mut seen = slices
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let uid: u32 = name.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()?;
            let manager = entry.path().join(format!("user@{uid}.service"));
            (user.is_none_or(|one| one.uid == uid) && manager.is_dir()).then_some(manager)
        })
        .map(|manager| lists_all(&manager.join("cgroup.controllers")))
        .peekable();
    seen.peek().is_some() && seen.all(|all| all)
}

/// Whether the unit of the users' systemds says so itself, as newer versions do, or a drop-in of
/// somebody else.
fn units_delegate_all(root: &Path) -> bool {
    let places = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"];
    let delegates = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        { text.lines() }
            .filter_map(|line| line.trim().strip_prefix("Delegate="))
            .any(|value| ["yes", "true", "on", "1"].contains(&value.trim()) || names_all(value))
    };
    places.iter().map(|place| at(root, place)).any(|place| {
        let drop_ins = fs::read_dir(place.join("user@.service.d")).into_iter().flatten().flatten();
        delegates(place.join("user@.service")) || drop_ins.map(|one| one.path()).any(delegates)
    })
}

fn lists_all(file: &Path) -> bool {
    names_all(&fs::read_to_string(file).unwrap_or_default())
}

fn names_all(text: &str) -> bool {
    CONTROLLERS.iter().all(|one| text.split_ascii_whitespace().any(|word| word == *one))
}

/// Version 1 without systemd: a directory for the user in each hierarchy that a run needs.
fn v1_delegations(root: &Path, user: User) -> Vec<Fix> {
    let v1 = ["memory", "pids", "cpu", "cpuacct", "cpu,cpuacct"];
    let v1 = v1.map(|name| at(root, CGROUP).join(name));
    let present = v1.into_iter().filter(|path| path.is_dir() && !path.is_symlink());
    present
        .map(|path| path.join("belljar").join(user.uid.to_string()))
        .filter(|path| !path.exists())
        .map(|directory| Fix {
            why: "no cgroup is delegated to this user (until the next reboot)".to_owned(),
            change: Change::Delegate { directory, uid: user.uid, gid: user.gid },
        })
        .collect()
}

/// Version 2 without systemd: a script that makes the user's subtree now and, where the host has a
/// way, at every boot.
fn v2_delegation(root: &Path, user: User) -> Option<Fix> {
    let top = at(root, CGROUP);
    let own = top.join("belljar").join(user.uid.to_string());
    let offered = lists_all(&top.join("cgroup.controllers"));
    if !offered || lists_all(&own.join("cgroup.subtree_control")) {
        return None;
    }
    let name = format!("belljar-{}", user.uid);
    let (path, lasts, register): (_, _, &[&str]) = if at(root, "/etc/local.d").is_dir() {
        let path = format!("/etc/local.d/{name}.start");
        (path, "again at every boot", &["rc-update", "add", "local", "default"])
    } else if at(root, "/etc/init.d").is_dir() && at(root, "/usr/sbin/update-rc.d").exists() {
        (format!("/etc/init.d/{name}"), "again at every boot", &["update-rc.d", &name, "defaults"])
    } else {
        (format!("/usr/local/sbin/{name}"), "until the next reboot, unless something runs it", &[])
    };
    let why = format!(
        "no cgroup is delegated to uid {uid} ({lasts}). Only root may move a process in from \
         outside, so a shell of that user needs once: {enter}",
        uid = user.uid,
        enter =
            format_args!("echo $$ | sudo tee {}/cgroup.procs", session(root, user.uid).display()),
    );
    let change = Change::File {
        path: at(root, &path),
        contents: delegation_script(&top, user, &CONTROLLERS),
        mode: 0o755,
        then: commands(&[register, &[&path, "start"]]),
    };
    Some(Fix { why, change })
}

/// Where the processes of a user go who was given a v2 subtree: beside its runs, as a directory that
/// hands controllers on may hold no process itself.
pub(crate) fn session(root: &Path, uid: u32) -> PathBuf {
    at(root, CGROUP).join("belljar").join(uid.to_string()).join("session")
}

/// Gives `user` a subtree of the v2 hierarchy at `top`, with these controllers. Doing it again changes
/// nothing.
pub fn delegation_script(top: &Path, user: User, controllers: &[&str]) -> String {
    let User { uid, gid } = user;
    let switches: Vec<String> = controllers.iter().map(|one| format!("+{one}")).collect();
    format!(
        r#"#!/bin/sh
### BEGIN INIT INFO
# Provides:          belljar-{uid}
# Required-Start:    mountkernfs
# Required-Stop:
# Default-Start:     2 3 4 5
# Default-Stop:
# Short-Description: a cgroup for what uid {uid} runs with belljar
### END INIT INFO
[ "${{1:-start}}" = start ] || exit 0
set -eu
cd '{top}'
if [ -e cgroup.type ]; then
    # A container's top, not the kernel's: to hand controllers on it may hold no process itself.
    mkdir -p init
    for pid in $(cat cgroup.procs); do echo "$pid" > init/cgroup.procs || true; done
fi
mkdir -p belljar/{uid}/session
for directory in . belljar belljar/{uid}; do
    echo '{switches}' > "$directory/cgroup.subtree_control"
done
# No more than delegation needs, see cgroups(7): the limits of the subtree itself stay root's.
for directory in belljar/{uid} belljar/{uid}/session; do
    chown {uid}:{gid} "$directory" "$directory/cgroup.procs" "$directory/cgroup.subtree_control"
done
"#,
        top = top.display(),
        switches = switches.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: User = User { uid: 1000, gid: 1000 };

    /// A host as `find` sees it, made of files.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("bj-doctor-{name}-{}", std::process::id()));
            for (path, contents) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, contents).unwrap();
            }
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn a_host_that_lacks_nothing_needs_no_fix() {
        let host = Fake::new("whole", &[("proc/sys/user/max_user_namespaces", "9000\n")]);
        assert_eq!(find(&host.0, Path::new("/usr/bin/belljar"), None), []);
    }

    #[test]
    fn an_apparmor_restriction_is_lifted_for_this_binary_only() {
        let restricted = "proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        let host = Fake::new("apparmor", &[(restricted, "1\n")]);
        let fixes = find(&host.0, Path::new("/opt/belljar"), None);
        let [Fix { change: Change::File { contents, then, .. }, .. }] = &fixes[..] else {
            panic!("{fixes:?}");
        };
        assert!(contents.contains("profile belljar /opt/belljar flags=(unconfined)"));
        assert_eq!(then[0][0], "apparmor_parser");
    }

    #[test]
    fn a_fix_that_is_in_place_is_not_offered_again() {
        let host = Fake::new("again", &[("proc/sys/kernel/unprivileged_userns_clone", "0\n")]);
        let binary = Path::new("/usr/bin/belljar");
        let offered = find(&host.0, binary, None);
        assert_eq!(offered.len(), 1);
        fs::write(host.0.join("proc/sys/kernel/unprivileged_userns_clone"), "1").unwrap();
        assert_eq!(find(&host.0, binary, None), []);
    }

    #[test]
    fn without_systemd_each_hierarchy_is_delegated_to_the_user() {
        let host = Fake::new(
            "v1",
            &[("sys/fs/cgroup/memory/tasks", ""), ("sys/fs/cgroup/pids/tasks", "")],
        );
        let fixes = find(&host.0, Path::new("/usr/bin/belljar"), Some(USER));
        assert_eq!(fixes.len(), 2);
        let systemd = Fake::new("systemd", &[("run/systemd/system/x", "")]);
        let fixes = find(&systemd.0, Path::new("/usr/bin/belljar"), Some(USER));
        assert!(matches!(&fixes[..], [Fix { change: Change::File { .. }, .. }]));
    }

    const V2: (&str, &str) = ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");

    fn script_of(fixes: &[Fix]) -> (&Path, &str, &[Vec<String>]) {
        let [Fix { change: Change::File { path, contents, mode: 0o755, then }, .. }] = fixes else {
            panic!("{fixes:?}");
        };
        (path, contents, then)
    }

    #[test]
    fn a_v2_host_without_systemd_gets_a_script_that_lasts_where_it_can() {
        let binary = Path::new("/usr/bin/belljar");
        for (name, more, path, register) in [
            ("openrc", "etc/local.d/README", "etc/local.d/belljar-1000.start", Some("rc-update")),
            ("bare", "etc/hostname", "usr/local/sbin/belljar-1000", None),
        ] {
            let host = Fake::new(name, &[V2, (more, "")]);
            let fixes = find(&host.0, binary, Some(USER));
            let (written, contents, then) = script_of(&fixes);
            assert_eq!(written, host.0.join(path));
            assert!(contents.contains("+memory +pids +cpu"), "{contents}");
            assert_eq!(then.last().unwrap(), &[format!("/{path}"), "start".to_owned()]);
            assert_eq!(then.len() == 2, register.is_some(), "{then:?}");
            assert!(fixes[0].why.contains("session/cgroup.procs"), "{}", fixes[0].why);
        }
        let rc = [("etc/init.d/x", ""), ("usr/sbin/update-rc.d", "")];
        let host = Fake::new("sysv", &[V2, rc[0], rc[1]]);
        let fixes = find(&host.0, binary, Some(USER));
        assert_eq!(script_of(&fixes).2[0], ["update-rc.d", "belljar-1000", "defaults"]);
        assert_eq!(find(&host.0, binary, None), [], "nobody to delegate to");
    }

    #[test]
    fn a_v2_tree_without_the_controllers_or_with_them_delegated_needs_no_script() {
        let binary = Path::new("/usr/bin/belljar");
        let host = Fake::new("hugetlb", &[("sys/fs/cgroup/cgroup.controllers", "hugetlb\n")]);
        assert_eq!(find(&host.0, binary, Some(USER)), []);
        let own = "sys/fs/cgroup/belljar/1000/cgroup.subtree_control";
        let host = Fake::new("delegated", &[V2, (own, "cpu memory pids\n")]);
        assert_eq!(find(&host.0, binary, Some(USER)), []);
    }

    #[test]
    fn systemd_is_left_alone_where_it_delegates_all() {
        let binary = Path::new("/usr/bin/belljar");
        let booted = ("run/systemd/system/x", "");
        let manager =
            "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers";
        let unit = "usr/lib/systemd/system/user@.service";
        let drop_in = "etc/systemd/system/user@.service.d/delegate.conf";
        for (name, path, contents, offered) in [
            ("manager", manager, "cpu memory pids\n", 0),
            ("no-cpu", manager, "memory pids\n", 1),
            ("unit", unit, "[Service]\nDelegate=pids memory cpu\n", 0),
            ("old-unit", unit, "[Service]\nDelegate=pids memory\n", 1),
            ("drop-in", drop_in, "[Service]\nDelegate=yes\n", 0),
        ] {
            let host = Fake::new(name, &[booted, (path, contents)]);
            assert_eq!(find(&host.0, binary, Some(USER)).len(), offered, "{name}");
            assert_eq!(find(&host.0, binary, None).len(), offered, "{name}, for anybody");
        }
        // Somebody else's systemd tells nothing of this user's.
        let host = Fake::new("other", &[booted, (manager, "cpu memory pids\n")]);
        let other = User { uid: 1001, gid: 1001 };
        assert_eq!(find(&host.0, binary, Some(other)).len(), 1);
    }
}
