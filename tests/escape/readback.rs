//! A barrier that is silently not there: the kernel says yes and does nothing. The run is not released.

use belljar_tests::{Ended, Layer, Program, TempDir, belljar_bin};

/// The layer is found missing, and named.
fn without(inject: &str, level: &str, layer: Layer) {
    let ended = skipping(inject, level);
    let error = ended.json()["error"].clone();
    assert_eq!(error["kind"], "not_verified", "{inject}: {ended:?}");
    let message = error["message"].to_string();
    assert!(message.contains(&format!("{layer} (")), "{inject}: {message}");
}

/// Under strace these calls are skipped and answer with success, for belljar and all that it starts:
/// `call:retval=0`. The program must not have run.
fn skipping(inject: &str, level: &str) -> Ended {
    let host = TempDir::new();
    let ran = host.join("ran");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(host.path(), open).expect("it is ours");
    let code = format!("open({:?}, 'w'); print('ran')", ran.display().to_string());
    let call = inject.split(':').next().unwrap_or_default();
    let (trace, inject) = (format!("trace={call}"), format!("inject={inject}"));
    let ended = Program::new("/usr/bin/strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject])
        .arg(belljar_bin())
        .args(["run", "--json", "--level", level, "-c", &code])
        .run();
    assert_eq!(ended.code, Some(125), "{inject}: {ended:?}");
    assert!(!ran.exists() && !ended.out().contains("\"stdout\""), "{inject}: it ran");
    ended
}

#[test]
fn no_release_without_landlock() {
    without("landlock_restrict_self:retval=0", "basic", Layer::Landlock);
    without("landlock_restrict_self:retval=0", "standard", Layer::Landlock);
    without("landlock_restrict_self:retval=0", "basic", Layer::Scopes);
}

#[test]
fn no_release_without_a_filter() {
    without("seccomp:retval=0", "basic", Layer::Seccomp);
    without("seccomp:retval=0", "standard", Layer::Seccomp);
}

#[test]
fn no_release_without_limits() {
    // The first ones are the runtime's own look at its stack.
    without("prlimit64:retval=0:when=4+", "basic", Layer::Rlimits);
    without("prlimit64:retval=0:when=4+", "standard", Layer::Rlimits);
}

#[test]
fn no_release_with_capabilities() {
    without("capset:retval=0", "standard", Layer::Capabilities);
}

#[test]
fn no_release_in_the_hosts_cgroup_namespace() {
    without("unshare:retval=0", "standard", Layer::CgroupNamespace);
}

#[test]
fn no_release_on_a_writable_root() {
    without("mount_setattr:retval=0", "standard", Layer::Root);
}

#[test]
fn no_release_in_the_callers_session() {
    without("setsid:retval=2", "standard", Layer::Session);
    without("setsid:retval=2", "none", Layer::Session);
}

#[test]
fn no_release_with_the_callers_id_or_privileges() {
    // Here the next barrier stumbles over the missing one before anybody reads back.
    skipping("prctl:retval=0", "basic");
    skipping("prctl:retval=0", "standard");
    if belljar_tests::is_root() {
        without("setresgid:retval=0", "basic", Layer::Identity);
        skipping("setresuid:retval=0", "basic");
        skipping("setresuid:retval=0", "standard");
    }
}
